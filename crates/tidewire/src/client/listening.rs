//! The lane's side of a client's subscriptions: the channel of each, and the requests that they still need.
//!
//! The client requests a subscription, gets an alias for it, requests it again on every new connection, and finally
//! unsubscribes. Messages arrive under the alias until the server has confirmed the end. Until then the entry of a
//! dropped subscription stays here, without a queue, and its messages are ignored.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tidewire_io::clock::now_ns;
use tidewire_proto::body::{
    ErrorCode, GapBody, PositionBody, RecoveryBody, Since, SubscribeBody, split_delivery,
};
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{FLAG_POSITION, Kind, Message};
use tidewire_proto::room::Policy;
use tidewire_proto::topic::{Pattern, validate_topic};

use super::effect::{Effect, EffectKey};
use super::error::{Disconnected, RequestError};
use super::room_positions::recovered;
use super::service::ClientService;
use super::slots::SlotId;
use super::submissions::{RequestHead, WhenWindowFull};
use super::subscription::{TopicEvent, TopicMessage, TopicQueue};
use crate::broker::Position;
use crate::limits::nanoseconds;
use crate::service::Context;

#[derive(Debug, Default)]
pub(super) struct Listening {
    entries: Slab<Entry>,
    by_alias: HashMap<u16, usize>,
    /// Keys of entries to check in the next turn.
    due: Vec<usize>,
    /// Time of the next registration, with a codec whose subscribers register.
    register_at_ns: u64,
}

/// A request that a subscription needs.
#[derive(Debug)]
pub(super) enum Step {
    Subscribe {
        pattern: Arc<str>,
        policy: Option<Policy>,
        since: Option<Since>,
    },
    Unsubscribe {
        alias: u16,
    },
}

#[derive(Debug)]
struct Entry {
    pattern: Arc<str>,
    policy: Option<Policy>,
    /// `None` once the application has dropped it.
    queue: Option<Arc<TopicQueue>>,
    alias: Option<u16>,
    /// Whether a request about it is pending.
    is_asked: bool,
    /// Whether the server has ever agreed. From then on the application gets an event for each change.
    was_agreed: bool,
    /// The position of the last message, if the topic keeps a history.
    position: Option<Position>,
}

impl Listening {
    pub(super) fn add(
        &mut self,
        pattern: Arc<str>,
        policy: Option<Policy>,
        queue: Arc<TopicQueue>,
    ) -> usize {
        self.entries.insert(Entry {
            pattern,
            policy,
            queue: Some(queue),
            alias: None,
            is_asked: false,
            was_agreed: false,
            position: None,
        })
    }

    pub(super) fn remove(&mut self, key: usize) {
        self.entries.try_remove(key);
    }

    /// Ends the entry of a subscription that the application dropped.
    pub(super) fn give_up(&mut self, queue: &Arc<TopicQueue>) {
        let of_queue = |entry: &Entry| {
            let own = entry.queue.as_ref();
            own.is_some_and(|own| Arc::ptr_eq(own, queue))
        };
        let found = self.entries.iter().find(|(_, entry)| of_queue(entry));
        if let Some((key, _)) = found {
            self.entries[key].queue = None;
            self.due.push(key);
        }
    }

    /// Returns the next request that is due, with the key of its entry.
    pub(super) fn next_step(&mut self) -> Option<(usize, Step)> {
        while let Some(key) = self.due.pop() {
            let Some(entry) = self.entries.get(key).filter(|entry| !entry.is_asked) else {
                continue;
            };
            match (&entry.queue, entry.alias) {
                (None, None) => self.remove(key),
                (None, Some(alias)) => return Some((key, Step::Unsubscribe { alias })),
                (Some(_), Some(_)) => {}
                (Some(_), None) => {
                    let step = Step::Subscribe {
                        pattern: Arc::clone(&entry.pattern),
                        policy: entry.policy,
                        since: entry.since(),
                    };
                    return Some((key, step));
                }
            }
        }
        None
    }

    /// Makes an entry due again, because its request could not be sent now.
    pub(super) fn put_off(&mut self, key: usize) {
        self.due.push(key);
    }

    /// Records that a request about this entry is pending.
    pub(super) fn note_asked(&mut self, key: usize) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_asked = true;
        }
    }

    /// Handles the reply to a request of this kind: its channel, or the refusal. Returns the outcome for the request's
    /// caller.
    pub(super) fn handle_answer(
        &mut self,
        key: usize,
        kind: Kind,
        result: Result<u16, RequestError>,
    ) -> Result<u16, RequestError> {
        let Some(entry) = self.entries.get_mut(key) else {
            return result;
        };
        entry.is_asked = false;
        if kind == Kind::Unsubscribe {
            // The subscription ends with any reply.
            if let Some(alias) = entry.alias {
                self.remove_alias(alias, key);
            }
            self.remove(key);
            return result;
        }
        match (&result, entry.alias) {
            (Ok(alias), _) => self.agree(key, *alias),
            // The server had agreed to the same subscription before it was given up. So the server refuses this
            // duplicate, and the client uses the alias of the first.
            (Err(_), Some(alias)) => {
                self.unsubscribe_if_unwanted(key);
                return Ok(alias);
            }
            // The server goes away. The next connection requests it again.
            (
                Err(RequestError::Refused {
                    code: ErrorCode::Draining,
                    ..
                }),
                None,
            ) if entry.was_agreed => {}
            (Err(error), None) => {
                if entry.was_agreed {
                    entry.tell(TopicEvent::Refused(error.clone()));
                    entry.tell(TopicEvent::Ended);
                }
                self.remove(key);
            }
        }
        result
    }

    /// Records the alias of a subscription that the server agreed to.
    fn agree(&mut self, key: usize, alias: u16) {
        let key = match self.successor(key) {
            Some(successor) => {
                self.remove(key);
                successor
            }
            None => key,
        };
        let entry = &mut self.entries[key];
        if let Some(former) = entry.alias.replace(alias) {
            self.remove_alias(former, key);
        }
        self.by_alias.insert(alias, key);
        let entry = &mut self.entries[key];
        if std::mem::replace(&mut entry.was_agreed, true) {
            entry.tell(TopicEvent::Resumed);
        }
        self.unsubscribe_if_unwanted(key);
    }

    /// Notes the replay for a subscription that the server agreed to, and tells the application.
    pub(super) fn handle_recovery(&mut self, alias: u16, body: RecoveryBody) {
        let Some(entry) = self.entry_mut(alias) else {
            return;
        };
        // A pattern with a wildcard has no positions.
        if validate_topic(&entry.pattern).is_ok() {
            entry.position = Some(body.position);
        }
        if let Some(missing) = recovered(body.recovery) {
            entry.tell(TopicEvent::Recovered { missing });
        }
    }

    /// Notes which position the next message of a subscription follows.
    pub(super) fn handle_position(&mut self, message: &Message<'_>) {
        let Ok(PositionBody { position }) = PositionBody::decode(message.payload) else {
            return;
        };
        if let Some(entry) = self.entry_mut(message.channel) {
            let former = entry.position.replace(position);
            if former.is_some_and(|former| former.epoch != position.epoch) {
                entry.tell(TopicEvent::Recovered { missing: None });
            }
        }
    }

    fn entry_mut(&mut self, alias: u16) -> Option<&mut Entry> {
        let key = *self.by_alias.get(&alias)?;
        self.entries.get_mut(key)
    }

    /// Removes the alias of a subscription, unless a newer subscription got it first, as may happen over UDP.
    fn remove_alias(&mut self, alias: u16, key: usize) {
        if self.by_alias.get(&alias) == Some(&key) {
            self.by_alias.remove(&alias);
        }
    }

    /// Finds a newer entry with the same pattern and policy, if the application dropped this entry. The server refuses
    /// the newer request as a duplicate, because it agreed to this entry.
    fn successor(&self, key: usize) -> Option<usize> {
        let given_up = self
            .entries
            .get(key)
            .filter(|entry| entry.queue.is_none())?;
        let is_same = |entry: &Entry| {
            entry.is_asked
                && entry.queue.is_some()
                && entry.alias.is_none()
                && (&entry.pattern, entry.policy) == (&given_up.pattern, given_up.policy)
        };
        let mut entries = self.entries.iter();
        entries.find_map(|(key, entry)| is_same(entry).then_some(key))
    }

    fn unsubscribe_if_unwanted(&mut self, key: usize) {
        if self.entries[key].queue.is_none() {
            self.due.push(key);
        }
    }

    /// Ends a subscription whose request was not answered in time. The entry stays, so that the client can unsubscribe
    /// if the server agrees later.
    pub(super) fn handle_timeout(&mut self, key: usize) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if entry.was_agreed {
            entry.tell(TopicEvent::Refused(RequestError::TimedOut));
            entry.tell(TopicEvent::Ended);
        }
        entry.queue = None;
    }

    /// Stops waiting for the reply to a request about a subscription that was given up. If the server agreed to the
    /// subscription, it is asked to unsubscribe again.
    pub(super) fn handle_no_answer(&mut self, key: usize) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_asked = false;
            self.due.push(key);
        }
    }

    /// Passes a published message to every subscription that matches, with codecs of registering subscribers.
    pub(super) fn handle_broadcast(&self, message: &Message<'_>) {
        for (_, entry) in &self.entries {
            let pattern = Pattern::parse(&entry.pattern);
            if let Some(queue) = &entry.queue
                && pattern.is_ok_and(|pattern| pattern.matches(message.name))
            {
                queue.push(TopicEvent::Message(TopicMessage {
                    topic: message.name.into(),
                    payload: message.payload.to_vec(),
                    position: None,
                }));
            }
        }
    }

    /// Resolves a step without a reply, with codecs of registering subscribers.
    fn resolve(&mut self, key: usize, step: &Step) {
        match step {
            Step::Subscribe { .. } => {
                let Some(entry) = self.entries.get_mut(key) else {
                    return;
                };
                entry.alias = Some(0);
                if std::mem::replace(&mut entry.was_agreed, true) {
                    entry.tell(TopicEvent::Resumed);
                }
            }
            Step::Unsubscribe { .. } => self.remove(key),
        }
    }

    /// Passes on a message under a subscription's alias. Returns false if no subscription has that alias.
    pub(super) fn handle_message(&mut self, message: &Message<'_>) -> bool {
        let Some(entry) = self.entry_mut(message.channel) else {
            return false;
        };
        let Some(queue) = &entry.queue else {
            return true;
        };
        if message.kind == Kind::Deliver {
            let topic = match message.name {
                "" => Arc::clone(&entry.pattern),
                name => name.into(),
            };
            let (offset, payload) = split_delivery(message).unwrap_or((None, message.payload));
            if let (Some(offset), Some(position)) = (offset, &mut entry.position) {
                position.offset = offset;
            }
            queue.push(TopicEvent::Message(TopicMessage {
                topic,
                payload: payload.to_vec(),
                position: entry.position,
            }));
        } else if let Ok(GapBody { lost }) = GapBody::decode(message.payload) {
            if let Some(position) = &mut entry.position {
                position.offset += lost;
            }
            queue.push(TopicEvent::Gap { lost });
        }
        true
    }

    /// Ends a subscription that a handler of the server has ended. Returns false if no subscription has that alias.
    pub(super) fn handle_removed(&mut self, alias: u16) -> bool {
        let Some(key) = self.by_alias.remove(&alias) else {
            return false;
        };
        if let Some(entry) = self.entries.try_remove(key) {
            entry.tell(TopicEvent::Ended);
        }
        true
    }

    /// Makes all subscriptions due on a new connection.
    pub(super) fn handle_open(&mut self) {
        self.due.clear();
        self.due.extend(self.entries.iter().map(|(key, _)| key));
    }

    /// Handles the end of the connection: aliases and pending requests are void. Subscriptions that the server never
    /// agreed to are removed; their requests have failed.
    pub(super) fn handle_close(&mut self, end: &Disconnected) {
        self.by_alias.clear();
        self.entries
            .retain(|_, entry| entry.was_agreed && entry.queue.is_some());
        for (_, entry) in &mut self.entries {
            entry.is_asked = false;
            if entry.alias.take().is_some() {
                entry.tell(TopicEvent::Interrupted {
                    reason: end.reason,
                    text: Arc::clone(&end.text),
                });
            }
        }
    }

    pub(super) fn end(&mut self) {
        for entry in self.entries.drain() {
            entry.tell(TopicEvent::Ended);
        }
    }
}

impl ClientService {
    pub(super) fn ask(
        &mut self,
        cx: &mut Context<'_>,
        key: usize,
        step: &Step,
        deadline_ns: u64,
        slot: Option<SlotId>,
    ) -> Result<(), RequestError> {
        if cx.codec().format().registers_subscribers {
            return self.ask_to_register(cx, key, step, slot);
        }
        let (mut body, mut flags) = (Vec::new(), 0);
        let (kind, channel) = match step {
            Step::Subscribe {
                pattern,
                policy,
                since,
            } => {
                if let Some(since) = since.filter(|_| self.server_knows_positions(cx)) {
                    since.encode(&mut body);
                    flags = FLAG_POSITION;
                }
                let policy = *policy;
                SubscribeBody { policy, pattern }.encode(&mut body);
                (Kind::Subscribe, 0)
            }
            Step::Unsubscribe { alias } => (Kind::Unsubscribe, *alias),
        };
        let head = RequestHead {
            slot,
            kind,
            channel,
            deadline_ns,
            idempotent: false,
            when_full: WhenWindowFull::Refuse,
            effect: Some(Effect::Subscription {
                key: EffectKey::of_entry(key),
            }),
            is_given_up: false,
        };
        self.pending.send_one(cx, &head, flags, &body)?;
        self.listening.note_asked(key);
        Ok(())
    }

    /// Registers for all messages, or removes a subscription, of which the server does not know.
    fn ask_to_register(
        &mut self,
        cx: &mut Context<'_>,
        key: usize,
        step: &Step,
        slot: Option<SlotId>,
    ) -> Result<(), RequestError> {
        if let Step::Subscribe { .. } = step {
            self.register(cx)?;
        }
        self.listening.resolve(key, step);
        let completions = &mut self.pending.completions;
        self.link.table.reply(completions, slot, 0, &[]);
        Ok(())
    }

    fn register(&mut self, cx: &mut Context<'_>) -> Result<(), RequestError> {
        let Some(session) = self.pending.session else {
            return Err(self.pending.not_connected());
        };
        self.listening.register_at_ns = now_ns().saturating_add(nanoseconds(REGISTER_INTERVAL));
        let registration = Message::new(Kind::Subscribe, 0, &[]);
        Ok(cx.send_to(session, &registration)?)
    }

    /// Registers again before the server forgets the client. Returns the time of the next registration.
    pub(super) fn register_due(&mut self, cx: &mut Context<'_>, now_ns: u64) -> Option<u64> {
        let wanted = cx.codec().format().registers_subscribers
            && self.pending.session.is_some()
            && !self.listening.entries.is_empty();
        if !wanted {
            return None;
        }
        if self.listening.register_at_ns <= now_ns
            && let Err(error) = self.register(cx)
        {
            tracing::debug!(%error, "cannot register again now");
        }
        Some(self.listening.register_at_ns)
    }

    /// Sends the requests that are due and have no caller.
    pub(super) fn ask_due(&mut self, cx: &mut Context<'_>) {
        while self.pending.session.is_some()
            && let Some((key, step)) = self.listening.next_step()
        {
            // No deadline while reading may be paused, because the reply may be there unread.
            let is_untimed = matches!(step, Step::Subscribe { .. }) && self.link.may_hold_reading();
            let deadline_ns = match is_untimed {
                true => u64::MAX,
                false => now_ns().saturating_add(nanoseconds(ASK_TIMEOUT)),
            };
            let asked = self.ask(cx, key, &step, deadline_ns, None);
            if let Err(error) = asked {
                // The window or the queue is full. A later turn tries again.
                tracing::debug!(%error, "cannot send a request about a subscription now; a later turn tries again");
                self.listening.put_off(key);
                return;
            }
        }
    }
}

impl Entry {
    /// Returns the part of the history to request with the next subscription.
    fn since(&self) -> Option<Since> {
        // A pattern with a wildcard has no position, so the subscriber learns that messages may be missing.
        let is_wildcard = validate_topic(&self.pattern).is_err();
        let unknown = (is_wildcard && self.was_agreed).then(Position::default);
        self.position.or(unknown).map(Since::Position)
    }

    fn tell(&self, event: TopicEvent) {
        if let Some(queue) = &self.queue {
            queue.push(event);
        }
    }
}

/// Timeout for the server's reply when the client requests a subscription again.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of registrations. A server forgets a client after a minute, so several registrations may be lost.
const REGISTER_INTERVAL: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests;
