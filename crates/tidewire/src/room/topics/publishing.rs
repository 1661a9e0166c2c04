//! Publishing: a message goes once to the log of each pattern that matches its topic.

use std::sync::Arc;

use tidewire_proto::backplane::{Entry, SequenceKind};
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, Message};
use tidewire_proto::topic::validate_topic;

use super::cache::Match;
use super::{LaneTopics, TopicTable};
use crate::broker::Addressee;
use crate::history::{MessageHistory, Record, TopicHistory, encode_record};
use crate::mailbox::LaneSet;
use crate::room::deliveries::{InEachCodec, LaneDeliveries, LaneLogs, NewFrame, OpenRooms, Origin};
use crate::room::histories::LaneHistories;
use crate::room::{RoomError, SharedRoom};
use crate::session::{LaneSessions, LogKey, Session, SessionId};

impl TopicTable {
    /// Makes a topic the recent one.
    #[inline(never)]
    fn look_up(
        &mut self,
        open: &OpenRooms,
        sessions: &LaneSessions,
        publisher: SessionId,
        topic: &str,
    ) -> Result<(), RoomError> {
        self.cache.look_up(topic, &self.routes)?;
        let owner = || sessions.table.find(publisher).and_then(Session::owner);
        self.history = open.directory().histories().topic(topic, owner);
        Ok(())
    }
}

impl LaneTopics<'_> {
    /// Whether a message may be published now.
    pub(crate) fn check_publish(
        &mut self,
        topic: &str,
        payload_bytes: usize,
    ) -> Result<(), RoomError> {
        validate_topic(topic).map_err(RoomError::Topic)?;
        let config = &self.sessions.config;
        config.check_shared_frame(payload_bytes, PUBLISHED_OVERHEAD_BYTES + topic.len())?;
        match self.sessions.relief.is_short() && !self.sessions.relief_pass().may_grow() {
            true => Err(RoomError::OutOfMemory),
            false => Ok(()),
        }
    }

    /// Appends a message to the logs of all patterns that match. Returns whether the publisher must stop for now.
    pub(crate) fn publish(
        &mut self,
        id: SessionId,
        topic: &str,
        payload: &[u8],
    ) -> Result<bool, RoomError> {
        self.open.directory().refresh(&mut self.topics.routes);
        if !self.topics.cache.is_recent(topic, &self.topics.routes) {
            self.topics.look_up(self.open, self.sessions, id, topic)?;
        }
        let overhead = PUBLISHED_OVERHEAD_BYTES + topic.len();
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), overhead)?;
        if self.sessions.relief.is_short() && !self.sessions.relief_pass().may_grow() {
            return Err(RoomError::OutOfMemory);
        }
        let congested = match &self.topics.history {
            None => self.append_to_each_match(topic, payload)?,
            Some(TopicHistory::Here(history)) => {
                let history = Arc::clone(history);
                self.publish_recorded(id, topic, payload, &history)?
            }
            Some(TopicHistory::OfCarrier) => self.publish_by_carrier(id, topic, payload)?,
        };
        self.sessions.counters.published.add(1);
        // One congested room is enough to pause the publisher. When it is clear, the next message checks the others.
        let must_wait = self.sessions.relief.is_short()
            && self
                .sessions
                .relief
                .pause_publisher(&mut self.sessions.table, id);
        if congested.is_none() && !self.topics.cache.has_groups() {
            return Ok(must_wait);
        }
        Ok(self.publish_rest(id, topic, payload, congested)? || must_wait)
    }

    /// Gives a message to the queue groups that match the recent topic, and pauses the publisher if a match is
    /// congested. Returns whether it did.
    #[cold]
    #[inline(never)]
    fn publish_rest(
        &mut self,
        id: SessionId,
        topic: &str,
        payload: &[u8],
        congested: Option<usize>,
    ) -> Result<bool, RoomError> {
        let blocking = self.publish_to_groups(topic, payload)?;
        let matches = self.topics.cache.matches();
        let congested = congested.and_then(|index| matches.get(index));
        let congested = congested.map(|it| Arc::clone(it.shared()));
        let room = blocking.or(congested);
        Ok(room.is_some_and(|room| self.hold_publisher(id, &room)))
    }

    /// Appends a message to the log of each pattern that matches the recent topic. Returns the index of a match that is
    /// congested.
    #[inline(always)]
    fn append_to_each_match(
        &mut self,
        topic: &str,
        payload: &[u8],
    ) -> Result<Option<usize>, EncodeError> {
        let (mut congested, mut result) = (None, Ok(()));
        for index in 0..self.topics.cache.matches().len() {
            if let Err(error) = self.append_published(index, topic, payload) {
                result = result.and(Err(error));
            }
            if self.topics.cache.matches()[index].shared().is_congested() {
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
        id: SessionId,
        topic: &str,
        payload: &[u8],
        history: &MessageHistory,
    ) -> Result<Option<usize>, RoomError> {
        let overhead = RECORDED_OVERHEAD_BYTES;
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), overhead)?;
        let message = Record::without_author(payload);
        let recording = loop {
            let matches = self.topics.cache.matches();
            let exact = matches.iter().find(|it| !it.shared().is_wildcard());
            // No room has the alias 0, so a topic without subscribers has no log.
            let alias = exact.map_or(0, |it| it.shared().alias());
            let mut histories = LaneHistories::new(self.open, self.sessions, self.exchange);
            let recording = histories.begin_record(history, alias);
            // A session of another lane may have subscribed, and read the history, after the look-up above.
            if self.open.directory().is_fresh(&self.topics.routes) {
                break recording;
            }
            drop(recording);
            self.open.directory().refresh(&mut self.topics.routes);
            self.topics.look_up(self.open, self.sessions, id, topic)?;
        };
        let (offset, expected) = (recording.offset(), overhead + payload.len());
        let congested = self.append_rarely(|deliveries, shared| {
            if shared.is_wildcard() {
                // Its frames have no offsets, so no lane must look for the message in the history.
                return append_without_offset(deliveries, shared, topic, payload);
            }
            let (at, origin) = (Some(offset), Origin::Local);
            deliveries.append_shared(shared, expected, at, &origin, &|codec, out| {
                encode_record(codec, shared.alias(), true, offset, &message, out)
            })
        })?;
        recording.end(&message, self.sessions);
        Ok(congested)
    }

    /// Gives the node a message for the history of the recent topic. Subscribers of the topic get the message when the
    /// carrier gives it back. Subscribers of wildcards have no positions, and get the message now.
    #[cold]
    #[inline(never)]
    fn publish_by_carrier(
        &mut self,
        sender: SessionId,
        topic: &str,
        payload: &[u8],
    ) -> Result<Option<usize>, RoomError> {
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), RECORDED_OVERHEAD_BYTES + topic.len())?;
        if self.open.directory().histories().is_full() {
            return Err(RoomError::HistoryFull);
        }
        let congested =
            self.append_rarely(|deliveries, shared| match shared.is_numbered_by_carrier() {
                true => Ok(()),
                false => append_without_offset(deliveries, shared, topic, payload),
            })?;
        let (kind, session) = (SequenceKind::Topic, sender.number());
        let to = Addressee::History { kind, session };
        let published = Entry::Published { payload };
        self.exchange.send_to_nodes(to, topic, &published);
        Ok(congested)
    }

    /// Calls `append` for each pattern that matches the recent topic. Returns the index of a match that is congested.
    fn append_rarely(
        &mut self,
        append: impl Fn(&mut LaneDeliveries<'_>, &SharedRoom) -> Result<(), EncodeError>,
    ) -> Result<Option<usize>, EncodeError> {
        let (mut congested, mut result) = (None, Ok(()));
        let mut deliveries = LaneDeliveries::new(self.open, self.sessions, self.exchange);
        let matches = self.topics.cache.matches().iter().map(Match::shared);
        for (index, shared) in matches.enumerate() {
            if let Err(error) = append(&mut deliveries, shared) {
                result = result.and(Err(error));
            }
            if shared.is_congested() {
                congested = congested.or(Some(index));
            }
        }
        result.map(|()| congested)
    }

    /// Pauses a publisher until a congested room is clear. Returns false if the session has ended.
    #[cold]
    fn hold_publisher(&mut self, id: SessionId, room: &Arc<SharedRoom>) -> bool {
        let slot = self.sessions.table.slot_of(id);
        slot.map(|slot| self.deliveries().hold(slot, room))
            .is_some()
    }

    /// Frames a message once for the subscribers of one pattern, on this lane and the others. The pattern is the match
    /// of the recent topic with this index.
    #[inline(always)]
    fn append_published(
        &mut self,
        index: usize,
        topic: &str,
        payload: &[u8],
    ) -> Result<(), EncodeError> {
        let (shared, delivery) = self.topics.cache.matches_mut()[index].parts();
        let alias = shared.alias();
        let name = shared.named_topic(topic);
        let message = Message::new(Kind::Deliver, alias, payload).with_name(name);
        let (logs, _) = LaneLogs::of(self.sessions, self.exchange);
        let expected = PUBLISHED_OVERHEAD_BYTES + name.len() + payload.len();
        let appended = self.open.append(
            logs,
            LogKey::main(alias),
            expected,
            |codec, out| delivery.encode_again(codec, &message, out),
            |_, _, _| 0,
        );
        if let Ok(Some(appended)) = appended {
            if appended.is_for_others() {
                self.send_published(index, appended, topic, payload);
            }
            return Ok(());
        }
        let others = shared.others(self.exchange.lane());
        match appended {
            // Subscribers with other codecs get a message that the main codec cannot express.
            Err(error) if !others.has_other_codecs() => Err(error),
            _ if others.is_empty() => Ok(()),
            _ => self.append_elsewhere(index, others, &message, topic),
        }
    }

    /// Sends a message that was appended here to other lanes, nodes and codecs. A function of its own, for the same
    /// reason as the next one.
    #[inline(never)]
    fn send_published(&mut self, index: usize, appended: NewFrame, topic: &str, payload: &[u8]) {
        let shared = Arc::clone(self.topics.cache.matches()[index].shared());
        let name = shared.named_topic(topic);
        let message = Message::new(Kind::Deliver, shared.alias(), payload).with_name(name);
        let frame = |codec: &AnyCodec, out: &mut Vec<u8>| codec.encode(&message, out);
        let origin = Origin::Published { topic, payload };
        let message = InEachCodec::by_nobody(
            &frame,
            PUBLISHED_OVERHEAD_BYTES + topic.len() + payload.len(),
        );
        self.deliveries().send_on(appended, None, &origin, message);
    }

    /// Sends a published message that is in no log of this lane to other lanes, nodes and codecs. A function of its
    /// own, so that the loop over the matches keeps its values in registers.
    #[inline(never)]
    fn append_elsewhere(
        &mut self,
        index: usize,
        others: LaneSet,
        message: &Message<'_>,
        topic: &str,
    ) -> Result<(), EncodeError> {
        let payload = message.payload;
        if others.has_other_codecs() {
            let shared = Arc::clone(self.topics.cache.matches()[index].shared());
            let frame = |codec: &AnyCodec, out: &mut Vec<u8>| codec.encode(message, out);
            let expected = PUBLISHED_OVERHEAD_BYTES + topic.len() + payload.len();
            let message = InEachCodec::by_nobody(&frame, expected);
            let origin = Origin::Published { topic, payload };
            message.share(&mut self.deliveries(), &shared, None, &origin);
            return Ok(());
        }
        if others.has_node() {
            self.exchange
                .send_to_nodes(Addressee::Topic, topic, &Entry::Published { payload });
        }
        let others = others.lanes_only();
        if others.is_empty() {
            return Ok(());
        }
        let mut frame = self.sessions.outputs.take_buffer();
        let result = self
            .sessions
            .config
            .codecs
            .main()
            .encode(message, &mut frame);
        if result.is_ok() {
            self.deliveries()
                .send_chat_message(others, message.channel, None, &frame);
        }
        self.sessions.outputs.put_buffer(frame);
        result
    }
}

/// Frames a message for one pattern, without a template, in the rare cases. A second call of
/// [`LaneTopics::append_published`] keeps the compiler from inlining that function, which costs each message 36
/// instructions.
pub(super) fn append_without_offset(
    deliveries: &mut LaneDeliveries<'_>,
    shared: &SharedRoom,
    topic: &str,
    payload: &[u8],
) -> Result<(), EncodeError> {
    let name = shared.named_topic(topic);
    let message = Message::new(Kind::Deliver, shared.alias(), payload).with_name(name);
    let expected = PUBLISHED_OVERHEAD_BYTES + name.len() + payload.len();
    let origin = Origin::Published { topic, payload };
    deliveries.append_shared(shared, expected, None, &origin, &|codec, out| {
        codec.encode(&message, out)
    })
}

/// Most bytes that the frame of a delivery adds to its topic and payload: a header with an id, and the length of the
/// topic.
pub(crate) const PUBLISHED_OVERHEAD_BYTES: usize = 13;

/// The same for a delivery of a topic with a history, which has an offset.
pub(crate) const RECORDED_OVERHEAD_BYTES: usize = PUBLISHED_OVERHEAD_BYTES + 8;
