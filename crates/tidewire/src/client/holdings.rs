//! The rooms and subscriptions that a client holds at its server.
//!
//! Problem: the server forgets both with the connection. The program's subscriptions shall go on with the next one, and
//! a room that is joined again shall bring the messages that were missed.
//!
//! Approach: one registry that outlives connections, with an entry for each room and subscription. Requests carry the
//! key of their entry, and messages the alias that the server assigned. An entry stays while a request about it has no
//! reply, so a late reply never meets another entry under its key. The client requests each subscription again on a new
//! connection. Messages arrive under the alias of a dropped subscription until the server has confirmed its end. Until
//! then its entry stays, without a queue, and its messages are ignored.
//!
//! Rooms differ in two ways. The program joins them again itself, because a join has a result: the name may be taken,
//! and the member's number changes. And a room without a history is not kept, because there is nothing to continue.

use std::collections::HashMap;
use std::sync::Arc;

use slab::Slab;
use tidewire_proto::body::{
    ErrorCode, GapBody, PlacementBody, PositionBody, Recovery, RecoveryBody, Since, split_delivery,
};
use tidewire_proto::message::{FLAG_POSITION, Kind, Message, RoomId};
use tidewire_proto::topic::{Pattern, validate_topic};

use super::effect::Effect;
use super::error::{Disconnected, RequestError};
use super::events::{Event, OwnedMessage};
use super::link::Link;
use super::slots::SlotId;
use super::submissions::{RequestHead, WhenWindowFull};
use super::subscription::{TopicEvent, TopicMessage, TopicQueue};
use crate::broker::Position;

#[derive(Debug)]
pub(super) struct Holdings {
    link: Arc<Link>,
    entries: Slab<Holding>,
    by_alias: HashMap<u16, usize>,
    /// Keys of entries that may need a request.
    due: Vec<usize>,
    /// Openings that wait for room in the window.
    waiting: Vec<Opening>,
    /// Time of the next registration, with a codec whose subscribers register.
    register_at_ns: u64,
}

/// The application's request to join a room or to subscribe.
#[derive(Debug)]
pub(crate) struct Opening {
    /// [`Kind::Join`] or [`Kind::Subscribe`].
    pub(super) kind: Kind,
    /// The name of the room, or the pattern.
    pub(super) name: Arc<str>,
    /// The body of the request. The lane puts the position before it.
    pub(super) body: Vec<u8>,
    /// The events of a subscription. Those of a room come to the client.
    pub(super) queue: Option<Arc<TopicQueue>>,
    /// The position from which the application requests messages. Without it the lane uses the position of an earlier
    /// connection.
    pub(super) since: Option<Since>,
    pub(super) deadline_ns: u64,
    pub(super) when_full: WhenWindowFull,
    pub(super) slot: SlotId,
}

#[derive(Debug)]
struct Holding {
    /// The kind of the request that opens it.
    kind: Kind,
    name: Arc<str>,
    /// The body of that request without a position. The client repeats the request for a subscription.
    body: Vec<u8>,
    /// `None` for a room, and once the application has dropped the subscription.
    queue: Option<Arc<TopicQueue>>,
    alias: Option<u16>,
    /// Requests about it without a reply.
    pending: u32,
    /// Whether the server has ever agreed. From then on the application gets an event for each change.
    was_agreed: bool,
    /// The position of the last message, if there is a history.
    position: Option<Position>,
    /// The number of newest messages of each topic to request again, for a pattern with a wildcard.
    newest: Option<u64>,
}

/// A request about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    key: usize,
    kind: Kind,
    channel: u16,
}

impl Holdings {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            entries: Slab::new(),
            by_alias: HashMap::new(),
            due: Vec::new(),
            waiting: Vec::new(),
            register_at_ns: 0,
        }
    }

    /// Returns the key of the entry to open. A room has one entry, however often it is joined.
    fn entry_for(&mut self, opening: &Opening) -> usize {
        let is_room = |entry: &Holding| entry.kind == Kind::Join && entry.name == opening.name;
        if opening.kind == Kind::Join
            && let Some((key, _)) = self.entries.iter().find(|(_, entry)| is_room(entry))
        {
            return key;
        }
        self.entries.insert(Holding {
            kind: opening.kind,
            name: Arc::clone(&opening.name),
            body: opening.body.clone(),
            queue: opening.queue.clone(),
            alias: None,
            pending: 0,
            was_agreed: false,
            position: None,
            newest: match opening.since {
                Some(Since::Last(count)) => Some(count),
                _ => None,
            },
        })
    }

    /// Ends a subscription that the application dropped.
    pub(super) fn give_up(&mut self, queue: &Arc<TopicQueue>) {
        let is_own = |entry: &Holding| {
            entry
                .queue
                .as_ref()
                .is_some_and(|it| Arc::ptr_eq(it, queue))
        };
        let found = self.entries.iter().find(|(_, entry)| is_own(entry));
        if let Some((key, _)) = found {
            self.entries[key].queue = None;
            self.settle(key);
        }
    }

    /// Removes an entry that is of no use, or notes that its subscription must end. The entry stays while a request
    /// about it is pending.
    fn settle(&mut self, key: usize) {
        let entry = self.entries.get(key).filter(|entry| entry.pending == 0);
        match entry.map(|entry| (entry.is_wanted(), entry.alias)) {
            Some((false, None)) => drop(self.entries.remove(key)),
            Some((false, Some(_))) => self.due.push(key),
            Some((true, _)) | None => {}
        }
    }

    /// Returns the next request that is due and has no caller.
    fn next_step(&mut self) -> Option<Step> {
        while let Some(key) = self.due.pop() {
            let Some(entry) = self.entries.get(key).filter(|entry| entry.pending == 0) else {
                continue;
            };
            let (kind, channel) = match (entry.is_wanted(), entry.alias) {
                (false, Some(alias)) => (Kind::Unsubscribe, alias),
                (true, None) if entry.kind == Kind::Subscribe => (Kind::Subscribe, 0),
                _ => continue,
            };
            return Some(Step { key, kind, channel });
        }
        None
    }

    /// Handles the reply to a request of this kind: its channel, or the refusal. Returns the outcome for the request's
    /// caller.
    pub(super) fn handle_answer(
        &mut self,
        key: usize,
        kind: Kind,
        mut result: Result<u16, RequestError>,
        recovery: Option<RecoveryBody>,
    ) -> Result<u16, RequestError> {
        let Some(entry) = self.entries.get_mut(key) else {
            return result;
        };
        entry.pending = entry.pending.saturating_sub(1);
        match (&result, entry.alias) {
            // The subscription ends with any reply.
            _ if kind == Kind::Unsubscribe => self.replace_alias(key, None),
            (Ok(alias), _) => self.agree(key, *alias, recovery),
            // The server had agreed to the same subscription before it was given up. So the server refuses this
            // duplicate, and the client uses the alias of the first.
            (Err(_), Some(alias)) if kind == Kind::Subscribe => result = Ok(alias),
            (Err(_), Some(_)) => {}
            // The server goes away. The next connection requests it again.
            (
                Err(RequestError::Refused {
                    code: ErrorCode::Draining,
                    ..
                }),
                None,
            ) if entry.was_agreed => {}
            (Err(error), None) => entry.end(Some(error)),
        }
        self.settle(key);
        result
    }

    /// Notes the alias of a room or subscription that the server agreed to, and what is replayed.
    fn agree(&mut self, key: usize, alias: u16, recovery: Option<RecoveryBody>) {
        let key = match self.successor(key) {
            Some(successor) => {
                self.entries.remove(key);
                successor
            }
            None => key,
        };
        let entry = &mut self.entries[key];
        if entry.kind == Kind::Join && recovery.is_none() {
            entry.position = None;
            return self.replace_alias(key, None);
        }
        let is_resumed = std::mem::replace(&mut entry.was_agreed, true);
        if is_resumed {
            entry.tell(TopicEvent::Resumed);
        }
        self.replace_alias(key, Some(alias));
        let Some(RecoveryBody { position, recovery }) = recovery else {
            return;
        };
        let entry = &mut self.entries[key];
        if entry.has_positions() {
            entry.position = Some(position);
        }
        match recovery {
            // The newest messages of each topic follow, and others may be missing.
            Recovery::NotAsked if is_resumed && !entry.has_positions() => {
                entry.tell_recovered(&self.link, None);
            }
            Recovery::NotAsked => {}
            Recovery::Recovered => entry.tell_recovered(&self.link, Some(0)),
            Recovery::Missing(count) => entry.tell_recovered(&self.link, count),
        }
    }

    /// Sets or removes the alias of an entry. Over UDP a newer entry may have got the former alias first.
    fn replace_alias(&mut self, key: usize, alias: Option<u16>) {
        let former = std::mem::replace(&mut self.entries[key].alias, alias);
        if let Some(former) = former
            && self.by_alias.get(&former) == Some(&key)
        {
            self.by_alias.remove(&former);
        }
        self.by_alias.extend(alias.map(|alias| (alias, key)));
    }

    /// Finds a newer entry with the same pattern and policy, if the application dropped this subscription. The server
    /// refuses the newer request as a duplicate, because it agreed to this one.
    fn successor(&self, key: usize) -> Option<usize> {
        let given_up = &self.entries[key];
        let is_same = |entry: &Holding| {
            entry.pending > 0
                && entry.queue.is_some()
                && entry.alias.is_none()
                && entry.body == given_up.body
        };
        if given_up.kind == Kind::Join || given_up.queue.is_some() {
            return None;
        }
        let mut entries = self.entries.iter();
        entries.find_map(|(key, entry)| is_same(entry).then_some(key))
    }

    /// Handles a request that was not answered in time. The entry stays, so that the client can end a subscription that
    /// the server agrees to later. When the request is given up, no such reply is expected any more.
    pub(super) fn handle_timeout(&mut self, head: &RequestHead) {
        let Some(Effect::Holding { key }) = head.effect else {
            return;
        };
        let Some(entry) = self.entries.get_mut(key.get()) else {
            return;
        };
        if head.is_given_up {
            entry.pending = entry.pending.saturating_sub(1);
            self.settle(key.get());
        } else {
            entry.end(Some(&RequestError::TimedOut));
        }
    }

    /// Passes a published message to every subscription that matches, with codecs of registering subscribers.
    pub(super) fn handle_broadcast(&self, message: &Message<'_>) {
        for (_, entry) in &self.entries {
            let pattern = Pattern::parse(&entry.name);
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

    /// Handles a delivery, a gap or a position. Returns false for a message without a position that is for no
    /// subscription: it goes to the application as it is.
    pub(super) fn handle_message(&mut self, message: &Message<'_>) -> bool {
        let key = self.by_alias.get(&message.channel);
        let mut entry = key.and_then(|key| self.entries.get_mut(*key));
        let is_subscribed = matches!(&entry, Some(entry) if entry.kind == Kind::Subscribe);
        match message.kind {
            Kind::Position => {
                if let Some(entry) = entry
                    && let Ok(PositionBody { position }) = PositionBody::decode(message.payload)
                {
                    let former = entry.position.replace(position);
                    if former.is_some_and(|former| former.epoch != position.epoch) {
                        entry.tell_recovered(&self.link, None);
                    }
                }
            }
            Kind::Deliver if is_subscribed || message.flags & FLAG_POSITION != 0 => {
                let (offset, payload) = split_delivery(message).unwrap_or((None, message.payload));
                let position = entry.as_mut().and_then(|entry| entry.pass(offset));
                match entry.filter(|_| is_subscribed) {
                    Some(entry) => entry.deliver(message.name, payload, position),
                    None => {
                        let flags = message.flags & !FLAG_POSITION;
                        let mut owned = OwnedMessage::from(Message {
                            flags,
                            payload,
                            ..*message
                        });
                        owned.position = position;
                        self.link.events.push(Event::Message(owned));
                    }
                }
            }
            Kind::Gap if is_subscribed => {
                if let Some(entry) = entry
                    && let Ok(GapBody { lost }) = GapBody::decode(message.payload)
                {
                    if let Some(position) = &mut entry.position {
                        position.offset = position.offset.saturating_add(lost);
                    }
                    entry.tell(TopicEvent::Gap { lost });
                }
            }
            _ => return false,
        }
        true
    }

    /// Handles a placement: a handler of the server put this client into a room or subscription, or removed it.
    #[cold]
    pub(super) fn handle_placement(&mut self, message: &Message<'_>) {
        let Ok(placement) = PlacementBody::decode(message.payload) else {
            return;
        };
        // The application has the subscription, which gets the event.
        if placement != PlacementBody::Out || !self.handle_left(message.channel) {
            let event = Event::of_placement(message.channel, &placement);
            self.link.events.push(event);
        }
    }

    /// Ends a room or subscription that this client is not in any more. Returns whether it is a subscription.
    pub(super) fn handle_left(&mut self, alias: u16) -> bool {
        let Some(key) = self.by_alias.get(&alias).copied() else {
            return false;
        };
        self.replace_alias(key, None);
        let entry = &mut self.entries[key];
        entry.position = None;
        entry.end(None);
        let is_subscription = entry.kind == Kind::Subscribe;
        self.settle(key);
        is_subscription
    }

    /// Makes all entries due on a new connection.
    pub(super) fn handle_open(&mut self) {
        self.due.clear();
        self.due.extend(self.entries.iter().map(|(key, _)| key));
    }

    /// Handles the end of the connection: aliases and pending requests are void. Subscriptions that the server never
    /// agreed to are removed; their requests have failed.
    pub(super) fn handle_close(&mut self, end: &Disconnected) {
        self.by_alias.clear();
        self.entries
            .retain(|_, entry| entry.was_agreed && entry.is_wanted());
        for (_, entry) in &mut self.entries {
            entry.pending = 0;
            if entry.alias.take().is_some() {
                entry.tell(TopicEvent::Interrupted {
                    reason: end.reason,
                    text: Arc::clone(&end.text),
                });
            }
        }
    }

    /// Ends all subscriptions with the client.
    pub(super) fn end(&mut self) {
        for mut entry in self.entries.drain() {
            entry.end(None);
        }
    }
}

impl Holding {
    /// Whether there is something to continue on the next connection.
    fn is_wanted(&self) -> bool {
        self.queue.is_some() || (self.kind == Kind::Join && self.position.is_some())
    }

    /// A pattern with a wildcard has no positions.
    fn has_positions(&self) -> bool {
        self.kind == Kind::Join || validate_topic(&self.name).is_ok()
    }

    /// Returns the part of the history to request. Within a connection nothing is missing.
    fn since(&self) -> Option<Since> {
        let since = match self.has_positions() {
            true => self.position.map(Since::Position),
            false if !self.was_agreed => None,
            // The subscriber of a pattern with a wildcard learns that messages may be missing.
            false => Some(match self.newest {
                Some(count) => Since::Last(count),
                None => Since::Position(Position::default()),
            }),
        };
        since.filter(|_| self.alias.is_none())
    }

    /// Notes the offset of a message. Returns the position of the message.
    fn pass(&mut self, offset: Option<u64>) -> Option<Position> {
        let (position, offset) = self.position.as_mut().zip(offset)?;
        position.offset = offset;
        Some(*position)
    }

    fn deliver(&self, topic: &str, payload: &[u8], position: Option<Position>) {
        if let Some(queue) = &self.queue {
            let topic = match topic {
                "" => Arc::clone(&self.name),
                topic => topic.into(),
            };
            queue.push(TopicEvent::Message(TopicMessage {
                topic,
                payload: payload.to_vec(),
                position,
            }));
        }
    }

    /// Tells the application how many messages are missing, `None` if the server does not know it.
    fn tell_recovered(&self, link: &Link, missing: Option<u64>) {
        match (self.kind, self.alias) {
            (Kind::Join, Some(alias)) => {
                let room = RoomId(alias);
                link.events.push(Event::Recovered { room, missing });
            }
            _ => self.tell(TopicEvent::Recovered { missing }),
        }
    }

    fn tell(&self, event: TopicEvent) {
        if let Some(queue) = &self.queue {
            queue.push(event);
        }
    }

    /// Ends a subscription for the application.
    fn end(&mut self, error: Option<&RequestError>) {
        if self.was_agreed {
            error
                .into_iter()
                .for_each(|it| self.tell(TopicEvent::Refused(it.clone())));
            self.tell(TopicEvent::Ended);
        }
        self.queue = None;
    }
}

mod asking;
#[cfg(test)]
mod tests;
