//! Topics on a lane: subscribe, unsubscribe, publish.
//!
//! Subscribers of the same pattern share a log on each lane. That log is a [`Room`](super::Room), so sweeps, cursors,
//! policies, gap notices and messages to other lanes use the same code. The difference is where a message goes. A
//! room's message is appended to the one log of that room. A topic's message is appended once to the log of every
//! pattern that matches, never once per subscriber, and its publisher need not be a subscriber.
//!
//! A session that is subscribed to two matching patterns gets the message once for each. Rejected: one delivery in
//! total. The two subscriptions have their own policies, positions and gaps. So a search for sessions that get a
//! message twice would visit every subscriber for every message.

use std::sync::Arc;

use tidewire_proto::backplane::{Entry, SequenceKind};
use tidewire_proto::body::{RecoveryBody, Since};
use tidewire_proto::codec::Codec;
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, MemberId, Message};
use tidewire_proto::room::Policy;
use tidewire_proto::topic::{Pattern, validate_topic};

use super::appending::LaneLogs;
use super::refusal::{NotSubscribed, PublishError, ReachedLimit, SubscribeError};
use super::replay::UNKNOWN;
use super::rooms::LaneRooms;
use super::routes::Match;
use super::shared_room::SharedRoom;
use super::spanning::Origin;
use crate::broker::{Addressee, RoomOrTopic};
use crate::history::{History, MessageHistory, Record, TopicHistory, encode_record};
use crate::mailbox::LaneSet;
use crate::observe::DropReason;
use crate::session::{Session, SessionId};

impl LaneRooms<'_> {
    /// Attaches a session to the log of a pattern. Returns the alias of the subscription.
    pub(crate) fn subscribe(
        &mut self,
        id: SessionId,
        pattern: &str,
        policy: Option<Policy>,
    ) -> Result<u16, SubscribeError> {
        let subscribed = self.try_subscribe(id, pattern, policy);
        if let Err(SubscribeError::LimitReached(_)) = subscribed {
            self.sessions.counters.rooms_refused.add(1);
        }
        let is_registration = self.sessions.config.codec.format().registers_subscribers;
        if let Err(
            error @ (SubscribeError::LimitReached(_)
            | SubscribeError::TooManyRegistrations(_)
            | SubscribeError::Unproven),
        ) = subscribed
            && is_registration
        {
            self.note_registration_refused(id, error);
        }
        subscribed
    }

    /// Counts a refused registration, and logs it at a limited rate, because a flood of them must not flood the log.
    /// The subscriber gets no error, so the log tells the operator.
    fn note_registration_refused(&mut self, id: SessionId, error: SubscribeError) {
        if let Some(unlogged) = self.table.registration_log.may_log(self.sessions.now_ns()) {
            let peer = self
                .sessions
                .find(id)
                .and_then(|session| session.profile.peer.as_deref());
            let peer = peer.map(tracing::field::display);
            tracing::warn!(
                session = %id,
                peer,
                unlogged,
                %error,
                "a registration is refused; further refusals are counted and not logged for 10 s"
            );
        }
        // The counter changes last, so that a test that sees the count finds the line in the log.
        self.sessions.counters.registrations_refused.add(1);
    }

    /// Whether a session may subscribe, but for the limits that all sessions share. Returns its slot and the pattern.
    pub(crate) fn check_subscribe<'p>(
        &self,
        id: SessionId,
        pattern: &'p str,
        policy: Option<Policy>,
    ) -> Result<(usize, Pattern<'p>), SubscribeError> {
        let pattern = Pattern::parse(pattern)?;
        if let Some(policy) = policy {
            self.sessions.config.policies.check(policy)?;
        }
        let slot = self.sessions.slot_of(id).ok_or(SubscribeError::NotOpen)?;
        if self.sessions[slot].stream.is_unproven() {
            return Err(SubscribeError::Unproven);
        }
        if self.sessions[slot].connection.handshake().frame_bytes_max()
            < self.sessions.config.limits.connections.frame_bytes_max()
        {
            // As in rooms, a message is framed once for all subscribers.
            return Err(SubscribeError::FrameLimit);
        }
        let session = &self.sessions[slot];
        if let Some(alias) = self.table.directory.alias_of_pattern(pattern.text())
            && session.subscription(alias).is_some()
        {
            return Err(SubscribeError::AlreadySubscribed);
        }
        let identity = session.profile.admitted.as_ref();
        let own_max = identity.and_then(|it| it.identity.own_limits().subscriptions_max);
        let count_max = self.sessions.config.limits.topics.per_session_max();
        if session.has_memberships(true, own_max.unwrap_or(count_max).min(count_max)) {
            return Err(SubscribeError::LimitReached(ReachedLimit::Session));
        }
        if self.sessions.is_at_its_share(id) {
            return Err(SubscribeError::LimitReached(ReachedLimit::Memory));
        }
        Ok((slot, pattern))
    }

    fn try_subscribe(
        &mut self,
        id: SessionId,
        pattern: &str,
        policy: Option<Policy>,
    ) -> Result<u16, SubscribeError> {
        let (slot, pattern) = self.check_subscribe(id, pattern, policy)?;
        let owner = self.sessions[slot].owner();
        let directory = Arc::clone(&self.table.directory);
        let limiter = Arc::clone(&self.table.limiter);
        let registers = self.sessions.config.codec.format().registers_subscribers;
        if registers {
            let registered = limiter.register(owner);
            registered.map_err(|full| SubscribeError::TooManyRegistrations(full.into()))?;
        }
        let topic = match directory.subscribe(&pattern, self.exchange.lane, owner) {
            Ok(topic) => topic,
            Err(full) => {
                if registers {
                    limiter.unregister(owner);
                }
                return Err(SubscribeError::LimitReached(full.into()));
            }
        };
        if registers {
            self.sessions.counters.registrations.add(1);
        }
        self.open_room(&topic);
        let policy = policy.unwrap_or(self.sessions.config.room_defaults.policy);
        self.attach(slot, &topic, policy);
        Ok(topic.alias)
    }

    pub(crate) fn unsubscribe(&mut self, id: SessionId, alias: u16) -> Result<(), NotSubscribed> {
        let slot = self.sessions.slot_of(id).ok_or(NotSubscribed)?;
        let index = self.sessions[slot]
            .subscription(alias)
            .ok_or(NotSubscribed)?;
        self.detach(slot, index, DropReason::Left);
        Ok(())
    }

    /// Whether a message may be published now.
    pub(crate) fn check_publish(
        &mut self,
        topic: &str,
        payload_bytes: usize,
    ) -> Result<(), PublishError> {
        validate_topic(topic)?;
        let config = &self.sessions.config;
        config.check_shared_frame(payload_bytes, PUBLISHED_OVERHEAD_BYTES + topic.len())?;
        match self.sessions.relief.is_short() && !self.sessions.may_grow() {
            true => Err(PublishError::OutOfMemory),
            false => Ok(()),
        }
    }

    /// Appends a message to the logs of all patterns that match. Returns whether the publisher must stop for now.
    pub(crate) fn publish(
        &mut self,
        id: SessionId,
        topic: &str,
        payload: &[u8],
    ) -> Result<bool, PublishError> {
        self.table.directory.refresh(&mut self.table.routes);
        if !self.table.recent.is(topic, &self.table.routes) {
            self.look_up(id, topic)?;
        }
        let overhead = PUBLISHED_OVERHEAD_BYTES + topic.len();
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), overhead)?;
        if self.sessions.relief.is_short() && !self.sessions.may_grow() {
            return Err(PublishError::OutOfMemory);
        }
        let congested = match &self.table.recent.history {
            None => self.append_to_each_match(|rooms, index| {
                rooms.append_published(index, topic, payload)
            })?,
            Some(TopicHistory::Here(history)) => {
                let history = Arc::clone(history);
                self.publish_recorded(topic, payload, &history)?
            }
            Some(TopicHistory::OfCarrier) => self.publish_by_carrier(id, topic, payload)?,
        };
        self.sessions.counters.published.add(1);
        // One congested room is enough to pause the publisher. When it is clear, the next message checks the others.
        let must_wait = self.sessions.relief.is_short() && self.sessions.wait_for_memory(id);
        Ok(congested.is_some_and(|index| self.hold_publisher(id, index)) || must_wait)
    }

    /// Makes a topic the recent one.
    #[inline(never)]
    fn look_up(&mut self, id: SessionId, topic: &str) -> Result<(), PublishError> {
        validate_topic(topic)?;
        let (table, sessions) = (&mut *self.table, &*self.sessions);
        table.recent.look_up(topic, &table.routes);
        let owner = || sessions.find(id).and_then(Session::owner);
        table.recent.history = table.directory.histories().topic(topic, owner);
        Ok(())
    }

    /// Calls `append` for each pattern that matches the recent topic. Returns the index of a match that is congested.
    #[inline(always)]
    pub(super) fn append_to_each_match(
        &mut self,
        mut append: impl FnMut(&mut Self, usize) -> Result<(), EncodeError>,
    ) -> Result<Option<usize>, EncodeError> {
        let (mut congested, mut result) = (None, Ok(()));
        for index in 0..self.table.recent.matches.len() {
            if let Err(error) = append(self, index) {
                result = result.and(Err(error));
            }
            if self.table.recent.matches[index].shared.is_congested() {
                congested = congested.or(Some(index));
            }
        }
        result.map(|()| congested)
    }

    /// Publishes to a topic that keeps a history, and records the message.
    #[cold]
    #[inline(never)]
    fn publish_recorded(
        &mut self,
        topic: &str,
        payload: &[u8],
        history: &MessageHistory,
    ) -> Result<Option<usize>, PublishError> {
        let recent = &self.table.recent;
        let overhead = RECORDED_OVERHEAD_BYTES;
        self.sessions
            .config
            .check_shared_frame(payload.len(), overhead)?;
        let exact = recent.matches.iter().find(|it| !it.shared.is_wildcard);
        // No room has the alias 0, so a topic without subscribers has no log.
        let alias = exact.map_or(0, |it| it.shared.alias);
        let message = Record {
            member: MemberId(0),
            name: "",
            payload,
        };
        let sent = self.recorded(history, alias, &message, |rooms, offset| {
            rooms.append_to_each_match(|rooms, index| {
                let shared = Arc::clone(&rooms.table.recent.matches[index].shared);
                if !shared.is_wildcard {
                    let expected = overhead + payload.len();
                    let origin = Origin::Local;
                    let at = Some(offset);
                    return rooms.append_shared(&shared, expected, at, &origin, |codec, out| {
                        encode_record(codec, shared.alias, true, offset, &message, out)
                    });
                }
                // Its frames have no offsets, so no lane must look for it in the history.
                rooms.append_without_offset(&shared, topic, payload)
            })
        });
        Ok(sent?)
    }

    /// Does the same as [`Self::append_published`], without a template. It serves the rare cases: a second call of that function in
    /// `publish` keeps the compiler from inlining it, which costs each message 36 instructions.
    pub(super) fn append_without_offset(
        &mut self,
        shared: &SharedRoom,
        topic: &str,
        payload: &[u8],
    ) -> Result<(), EncodeError> {
        let name = if shared.is_wildcard { topic } else { "" };
        let message = Message::new(Kind::Deliver, shared.alias, payload).with_name(name);
        let expected = PUBLISHED_OVERHEAD_BYTES + name.len() + payload.len();
        let origin = Origin::Published { topic, payload };
        self.append_shared(shared, expected, None, &origin, |codec, out| {
            codec.encode(&message, out)
        })
    }

    /// Plans what a new subscriber gets of the history of its topic. `None` if the topic keeps none.
    pub(crate) fn open_topic_history(
        &mut self,
        id: SessionId,
        alias: u16,
        since: Option<Since>,
    ) -> Option<RecoveryBody> {
        let directory = Arc::clone(&self.table.directory);
        let shared = Arc::clone(&self.table.get(alias)?.shared);
        let topic = shared.pattern.as_deref()?;
        if shared.is_wildcard {
            let is_asked = since.is_some() && directory.histories().keeps_topics();
            return is_asked.then_some(UNKNOWN);
        }
        let history = match directory
            .histories()
            .topic(topic, || self.sessions.find(id).and_then(Session::owner))?
        {
            TopicHistory::Here(history) => history,
            TopicHistory::OfCarrier => directory
                .histories()
                .of_node(&RoomOrTopic::new(SequenceKind::Topic, topic))?,
        };
        shared.history.get_or_init(|| history);
        self.plan_replay(id, alias, since)
    }

    /// The limits of the history of a topic. `None` for a pattern, and if the topic keeps none.
    pub(crate) fn history_limits(&self, id: SessionId, pattern: &str) -> Option<History> {
        let histories = self.table.directory.histories();
        validate_topic(pattern).ok()?;
        histories.topic(pattern, || self.sessions.find(id).and_then(Session::owner))?;
        histories.topic_limits(pattern)
    }

    /// Pauses a publisher until a congested room is clear. Returns false if the session has ended.
    #[cold]
    fn hold_publisher(&mut self, id: SessionId, index: usize) -> bool {
        let room = Arc::clone(&self.table.recent.matches[index].shared);
        let slot = self.sessions.slot_of(id);
        slot.map(|slot| self.hold(slot, &room)).is_some()
    }

    /// Frames a message once for the subscribers of one pattern, on this lane and the others. The pattern is the match of
    /// the recent topic with this index.
    #[inline(always)]
    fn append_published(
        &mut self,
        index: usize,
        topic: &str,
        payload: &[u8],
    ) -> Result<(), EncodeError> {
        let Match { shared, delivery } = &mut self.table.recent.matches[index];
        let alias = shared.alias;
        let name = if shared.is_wildcard { topic } else { "" };
        let message = Message::new(Kind::Deliver, alias, payload).with_name(name);
        let (logs, _) = LaneLogs::of(self.sessions, self.exchange);
        let expected = PUBLISHED_OVERHEAD_BYTES + name.len() + payload.len();
        let appended = self.table.rooms.append(
            logs,
            alias,
            expected,
            |codec, out| delivery.encode_again(codec, &message, out),
            |_, _, _| 0,
        )?;
        if let Some(appended) = appended {
            self.pass_on(appended, None, || Origin::Published { topic, payload });
            return Ok(());
        }
        let others = shared.others(self.exchange.lane);
        match others.is_empty() {
            true => Ok(()),
            false => self.append_elsewhere(others, &message, topic),
        }
    }

    /// Sends a published message to other lanes and nodes. This lane has no subscriber. A function of its own, so that
    /// the loop over the matches keeps its values in registers.
    #[inline(never)]
    fn append_elsewhere(
        &mut self,
        others: LaneSet,
        message: &Message<'_>,
        topic: &str,
    ) -> Result<(), EncodeError> {
        let payload = message.payload;
        if others.has_node() {
            self.exchange
                .send_to_nodes(Addressee::Topic, topic, &Entry::Published { payload });
        }
        let others = others.without_node();
        if others.is_empty() {
            return Ok(());
        }
        let mut frame = self.sessions.outputs.take_buffer();
        let result = self.sessions.config.codec.encode(message, &mut frame);
        if result.is_ok() {
            self.send_chat_message(others, message.channel, None, &frame);
        }
        self.sessions.outputs.put_buffer(frame);
        result
    }
}

/// Most bytes that the frame of a delivery adds to its topic and payload: a header with an id, and the topic's
/// length.
pub(crate) const PUBLISHED_OVERHEAD_BYTES: usize = 13;

/// The same for a delivery of a topic with a history, which has an offset.
pub(crate) const RECORDED_OVERHEAD_BYTES: usize = PUBLISHED_OVERHEAD_BYTES + 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::lane;
    use crate::observe::{QUIET_NS, logged};
    use crate::server::Server;

    /// Regression: each refusal was a line in the log, so any sender of datagrams could fill it.
    #[test]
    fn a_flood_of_refused_registrations_is_counted_and_not_logged() {
        const FLOOD: u64 = 1_000;
        let mut core = lane(&Server::builder()).core;
        let mut refuse = |count: u64| {
            logged(|| {
                for _ in 0..count {
                    core.rooms()
                        .note_registration_refused(SessionId::NONE, SubscribeError::Unproven);
                }
                core.sessions.pass_time(QUIET_NS);
            })
        };
        for text in [refuse(FLOOD), refuse(FLOOD)] {
            assert_eq!(
                text.matches("a registration is refused").count(),
                1,
                "{text}"
            );
        }
        assert_eq!(core.counters.registrations_refused.read(), 2 * FLOOD);
    }

    /// A session finds its place in a room or pattern by a binary search, whatever came and went before.
    #[test]
    fn memberships_stay_in_order_when_subscriptions_end_and_others_take_their_aliases() {
        const COUNT: usize = 200;
        let mut lane = lane(&Server::builder());
        let (slot, _end) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        let name = |number: usize| format!("topic.{number}");
        let mut aliases = Vec::new();
        for number in 0..COUNT {
            let subscribed = lane.core.rooms().subscribe(id, &name(number), None);
            aliases.push(subscribed.unwrap());
        }
        let subscribed_again = lane.core.rooms().subscribe(id, &name(7), None);
        assert!(matches!(
            subscribed_again,
            Err(SubscribeError::AlreadySubscribed)
        ));
        for alias in aliases.iter().step_by(3) {
            lane.core.rooms().unsubscribe(id, *alias).unwrap();
        }
        for number in (0..COUNT).step_by(3) {
            let subscribed = lane.core.rooms().subscribe(id, &name(number), None);
            aliases[number] = subscribed.unwrap();
        }
        let session = &lane.core.sessions[slot];
        assert!(session.memberships.is_sorted_by_key(|it| it.room));
        for alias in &aliases {
            let index = session.subscription(*alias).unwrap();
            assert_eq!(session.memberships[index].room, *alias);
        }
        for alias in aliases {
            lane.core.rooms().unsubscribe(id, alias).unwrap();
        }
        assert!(lane.core.sessions[slot].memberships.is_empty());
    }
}
