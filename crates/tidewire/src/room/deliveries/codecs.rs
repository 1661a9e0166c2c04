//! Messages of rooms whose members have several codecs.
//!
//! Problem: the log of a room holds frames, and members of one room may have different codecs. Approach: each codec with
//! members on a lane has a log of its own there. A message is framed once for each of them. Lanes send each other a frame
//! for each codec that has members there. Messages of a history go without frames: the history has no codec, and the
//! other lane frames them itself. [`Receiver::OtherCodecs`](crate::mailbox::Receiver::OtherCodecs) in the set of
//! receivers leads here, so a server with one codec pays nothing.
//!
//! Rejected: one neutral log for each room, because each member would need frames of its own.

use std::sync::Arc;

use tidewire_proto::codec::AnyCodec;
use tidewire_proto::error::EncodeError;
use tidewire_proto::room::RoomLog;

use super::{LaneDeliveries, LaneLogs, Origin};
use crate::config::CodecNumber;
use crate::mailbox::{BatchEntry, LaneSet};
use crate::observe::DropReason;
use crate::room::SharedRoom;
use crate::session::{LaneSessions, LogKey, SessionId};

/// Frames one message or notice with a codec.
pub(in crate::room) type Frame<'f> =
    dyn Fn(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError> + 'f;

/// A message or notice for the logs of other codecs.
#[derive(Clone, Copy)]
pub(in crate::room) struct InEachCodec<'f> {
    pub(in crate::room) frame: &'f Frame<'f>,
    pub(in crate::room) bytes_expected: usize,
    /// The session of this lane that wrote the message. It does not get the message.
    pub(in crate::room) author: SessionId,
    /// Whether members who cannot get it lose a message. A codec without notices only lacks them.
    pub(in crate::room) is_message: bool,
}

impl<'f> InEachCodec<'f> {
    /// A message that no session of this lane has in its own log.
    pub(in crate::room) fn by_nobody(frame: &'f Frame<'f>, bytes_expected: usize) -> Self {
        Self {
            frame,
            bytes_expected,
            author: SessionId::NONE,
            is_message: true,
        }
    }
}

impl LaneDeliveries<'_> {
    /// Gives a message of a room to all its members, on all lanes and nodes. A member whose codec cannot express the
    /// message loses it.
    #[cold]
    pub(in crate::room) fn share(
        &mut self,
        shared: &SharedRoom,
        offset: Option<u64>,
        origin: &Origin<'_>,
        message: InEachCodec<'_>,
    ) {
        self.append_to_all(shared.alias(), message);
        if shared.others(self.exchange.lane()).has_node() {
            self.send_to_nodes(shared, origin);
        }
        self.send_in_each_codec(shared, offset, message);
    }

    /// Appends a message to all logs of a room on this lane. A member whose codec cannot express the message loses it.
    #[cold]
    pub(super) fn append_to_all(&mut self, alias: u16, message: InEachCodec<'_>) {
        if let Err(error) = self.append_here(alias, message) {
            self.note_inexpressible(LogKey::main(alias), error, message);
        }
    }

    /// Appends a message to the logs of this lane with other codecs than the main one.
    #[cold]
    pub(super) fn append_to_others(&mut self, alias: u16, message: InEachCodec<'_>) {
        let config = Arc::clone(&self.sessions.config);
        for codec in config.codecs.numbers().filter(|codec| !codec.is_main()) {
            let key = LogKey { alias, codec };
            if self.sessions.logs.members(key) > 0 {
                self.append_in_codec(key, message);
            }
        }
    }

    fn append_in_codec(&mut self, key: LogKey, message: InEachCodec<'_>) {
        let author = self.sessions.table.slot_of(message.author);
        let (logs, table) = LaneLogs::of(self.sessions, self.exchange);
        let skip = |log: &RoomLog, position, bytes| {
            let session = author.map(|slot| &mut table[slot]);
            session.map_or(0, |it| it.skip_own(key, log, position, bytes))
        };
        let expected = message.bytes_expected;
        let appended = self.open.append(logs, key, expected, message.frame, skip);
        if let Err(error) = appended {
            self.note_inexpressible(key, error, message);
        }
    }

    fn note_inexpressible(&self, key: LogKey, error: EncodeError, message: InEachCodec<'_>) {
        if message.is_message {
            tracing::debug!(%error, "a message was not framed for members of a room");
            self.drop_inexpressible(key, message.author);
        }
    }

    /// Counts a message that the codec of a log cannot express. Its author, who may be a member, loses nothing.
    #[cold]
    pub(super) fn drop_inexpressible(&self, key: LogKey, author: SessionId) {
        let author = self.sessions.table.find(author);
        let own = author.and_then(|it| it.membership_of(key));
        let members = self.sessions.logs.members(key) as u64 - u64::from(own.is_some());
        let counters = &self.sessions.counters;
        counters.room_offered.add(members);
        counters.room_dropped[DropReason::Inexpressible as usize].add(members);
    }

    /// Frames a message of a room for the members with all codecs on the other lanes. With an offset in the history of
    /// the room, other lanes take the message from there.
    #[cold]
    pub(super) fn send_in_each_codec(
        &mut self,
        shared: &SharedRoom,
        offset: Option<u64>,
        message: InEachCodec<'_>,
    ) {
        let (alias, own) = (shared.alias(), self.exchange.lane());
        // A lane whose members came before the history takes frames.
        if offset.is_some() && shared.history().is_some() {
            return self.send_chat_message(shared.lanes().without(own), alias, offset, &[]);
        }
        let config = Arc::clone(&self.sessions.config);
        let mut frame = self.sessions.outputs.take_buffer();
        for codec in config.codecs.numbers() {
            let lanes = shared.lanes_with(codec).without(own);
            if lanes.is_empty() {
                continue;
            }
            frame.clear();
            let framed = (message.frame)(config.codecs.get(codec), &mut frame);
            match framed {
                Ok(()) => self.send_frame(lanes, codec, alias, &frame),
                // An empty frame tells the lanes that their members lose a message.
                Err(_) if message.is_message => self.send_frame(lanes, codec, alias, &[]),
                Err(_) => {}
            }
        }
        let LaneSessions {
            relief, outputs, ..
        } = &mut *self.sessions;
        outputs.put_buffer(frame);
        // As in `send_chat_message`.
        relief.charge_common(outputs, self.exchange.held_bytes());
    }

    fn send_frame(&mut self, lanes: LaneSet, codec: CodecNumber, alias: u16, frame: &[u8]) {
        let log = LogKey { alias, codec };
        for lane in lanes.lanes() {
            self.exchange.batch(lane, &BatchEntry::Room { log, frame });
        }
    }
}
