//! Messages of rooms whose members have several codecs.
//!
//! Problem: the log of a room holds frames, and members of one room may have different codecs. Approach: each codec
//! with members on a lane has a log of its own there. A message is framed once for each of them. Lanes send each other
//! a frame for each codec that has members there. Messages of a history go without frames: the history has no codec,
//! and the other lane frames them itself. [`Receiver::OtherCodecs`](crate::mailbox::Receiver::OtherCodecs) in the set
//! of receivers leads here, so a server with one codec pays nothing.
//!
//! Rejected: one neutral log for each room, because each member would need frames of its own.

use std::sync::Arc;

use tidewire_proto::codec::AnyCodec;
use tidewire_proto::error::EncodeError;
use tidewire_proto::room::RoomLog;

use super::appending::{NewFrame, membership_of, skip_own};
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
    frame: &'f Frame<'f>,
    bytes_expected: usize,
    /// The session of this lane that wrote the message. It does not get the message.
    author: SessionId,
    /// Whether members who cannot get it lose a message. A codec without notices only lacks them.
    is_message: bool,
}

impl<'f> InEachCodec<'f> {
    /// A message of a session of this lane, which does not get the message.
    pub(in crate::room) fn by(
        author: SessionId,
        frame: &'f Frame<'f>,
        bytes_expected: usize,
    ) -> Self {
        Self {
            frame,
            bytes_expected,
            author,
            is_message: true,
        }
    }

    /// A message that no session of this lane has in its own log.
    pub(in crate::room) fn by_nobody(frame: &'f Frame<'f>, bytes_expected: usize) -> Self {
        Self::by(SessionId::NONE, frame, bytes_expected)
    }

    /// A notice. A codec that cannot express it leaves it out.
    pub(super) fn notice(frame: &'f Frame<'f>, bytes_expected: usize) -> Self {
        Self {
            is_message: false,
            ..Self::by_nobody(frame, bytes_expected)
        }
    }

    /// Gives a message of a room to all its members, on all lanes and nodes. A member whose codec cannot express the
    /// message loses it.
    #[cold]
    pub(in crate::room) fn share(
        self,
        to: &mut LaneDeliveries<'_>,
        shared: &SharedRoom,
        offset: Option<u64>,
        origin: &Origin<'_>,
    ) {
        self.append_to_all(to, shared.alias());
        if shared.others(to.exchange.lane()).has_node() {
            to.send_to_nodes(shared, origin);
        }
        self.send(to, shared, offset);
    }

    /// Appends a message to the logs of a room or topic on this lane. Returns the frame in the log of the main codec.
    pub(super) fn append(
        self,
        to: &mut LaneDeliveries<'_>,
        alias: u16,
    ) -> Result<Option<NewFrame>, EncodeError> {
        let appended = self.append_in(to, LogKey::main(alias));
        if !to.sessions.config.codecs.is_one() {
            self.append_to_others(to, alias);
        }
        appended
    }

    fn append_in(
        self,
        to: &mut LaneDeliveries<'_>,
        key: LogKey,
    ) -> Result<Option<NewFrame>, EncodeError> {
        let author = to.sessions.table.slot_of(self.author);
        let (logs, table) = LaneLogs::of(to.sessions, to.exchange);
        let skip = |log: &RoomLog, position, bytes| {
            let session = author.map(|slot| &mut table[slot]);
            skip_own(session, key, log, (position, bytes))
        };
        let expected = self.bytes_expected;
        to.open.append(logs, key, expected, self.frame, skip)
    }

    /// Appends a message to all logs of a room on this lane. A member whose codec cannot express the message loses it.
    #[cold]
    pub(super) fn append_to_all(self, to: &mut LaneDeliveries<'_>, alias: u16) {
        if let Err(error) = self.append(to, alias) {
            self.note_inexpressible(to, LogKey::main(alias), error);
        }
    }

    /// Appends a message to the logs of this lane with other codecs than the main one.
    #[cold]
    pub(super) fn append_to_others(self, to: &mut LaneDeliveries<'_>, alias: u16) {
        let config = Arc::clone(&to.sessions.config);
        for codec in config.codecs.numbers().filter(|codec| !codec.is_main()) {
            let key = LogKey::new(alias, codec);
            if to.sessions.logs.members(key) > 0
                && let Err(error) = self.append_in(to, key)
            {
                self.note_inexpressible(to, key, error);
            }
        }
    }

    fn note_inexpressible(self, to: &mut LaneDeliveries<'_>, key: LogKey, error: EncodeError) {
        if self.is_message {
            tracing::debug!(%error, "a message was not framed for members of a room");
            to.drop_inexpressible(key, self.author);
        }
    }

    /// Frames a message of a room for the members with all codecs on the other lanes. With an offset in the history of
    /// the room, other lanes take the message from there.
    #[cold]
    pub(super) fn send(
        self,
        to: &mut LaneDeliveries<'_>,
        shared: &SharedRoom,
        offset: Option<u64>,
    ) {
        let (alias, own) = (shared.alias(), to.exchange.lane());
        // A lane whose members came before the history takes frames.
        if offset.is_some() && shared.history().is_some() {
            return to.send_chat_message(shared.lanes().without(own), alias, offset, &[]);
        }
        let config = Arc::clone(&to.sessions.config);
        let mut frame = to.sessions.outputs.take_buffer();
        for codec in config.codecs.numbers() {
            let lanes = shared.lanes_with(codec).without(own);
            if lanes.is_empty() {
                continue;
            }
            frame.clear();
            let framed = (self.frame)(config.codecs.get(codec), &mut frame);
            match framed {
                Ok(()) => send_frame(to, lanes, codec, alias, &frame),
                // An empty frame tells the lanes that their members lose a message.
                Err(_) if self.is_message => send_frame(to, lanes, codec, alias, &[]),
                Err(_) => {}
            }
        }
        let LaneSessions {
            relief, outputs, ..
        } = &mut *to.sessions;
        outputs.put_buffer(frame);
        // As in `send_chat_message`.
        relief.charge_common(outputs, to.exchange.held_bytes());
    }
}

impl LaneDeliveries<'_> {
    /// Counts a message that the codec of a log cannot express. Its author, who may be a member, loses nothing.
    #[cold]
    pub(super) fn drop_inexpressible(&self, key: LogKey, author: SessionId) {
        let author = self.sessions.table.find(author);
        let own = author.and_then(|it| membership_of(it, key));
        let members = self.sessions.logs.members(key) as u64 - u64::from(own.is_some());
        let counters = &self.sessions.counters;
        counters.room_offered.add(members);
        counters.room_dropped[DropReason::Inexpressible as usize].add(members);
    }
}

fn send_frame(
    to: &mut LaneDeliveries<'_>,
    lanes: LaneSet,
    codec: CodecNumber,
    alias: u16,
    frame: &[u8],
) {
    let log = LogKey::new(alias, codec);
    for lane in lanes.lanes() {
        to.exchange.batch(lane, &BatchEntry::Room { log, frame });
    }
}
