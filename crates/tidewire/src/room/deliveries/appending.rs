//! The one way of a frame into the log of a room or topic on this lane: it is appended, counted for the members, and a
//! sweep is planned.

use std::cmp::Reverse;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, MemberId, Position};
use tidewire_proto::room::RoomLog;

use super::codecs::{Frame, InEachCodec};
use super::fanout::GROWTH_STEP_BYTES;
use super::{FRAME_OVERHEAD_BYTES_MAX, LaneDeliveries, OpenRooms, Origin};
use crate::config::{Config, SharedFrameError};
use crate::history::encode_position;
use crate::mailbox::{Exchange, LaneSet};
use crate::observe::LaneCounters;
use crate::session::{
    LaneSessions, LogKey, Logs, Relief, Session, SessionId, SessionTable, Timers,
};

/// The parts of a lane that an append needs. The sessions stay free, because the author is one of them. Each part is
/// read where it is needed: a copy of the time or a pointer into an `Arc` lived in a register too long, which cost each
/// message 5 instructions.
pub(in crate::room) struct LaneLogs<'l> {
    logs: &'l mut Logs,
    relief: &'l mut Relief,
    config: &'l Arc<Config>,
    counters: &'l Arc<CachePadded<LaneCounters>>,
    timers: &'l Timers,
    exchange: &'l Exchange,
}

/// A frame at the end of a log.
#[derive(Clone, Copy, Debug)]
#[must_use = "other lanes and nodes may need the frame"]
pub(in crate::room) struct NewFrame {
    log: LogKey,
    bytes: usize,
    /// The other lanes with members, the node if messages go to other nodes, and whether members have other codecs.
    others: LaneSet,
}

impl NewFrame {
    pub(in crate::room) fn alias(&self) -> u16 {
        self.log.alias()
    }

    /// Whether other lanes, nodes or codecs need the message.
    #[inline(always)]
    pub(in crate::room) fn is_for_others(&self) -> bool {
        !self.others.is_empty()
    }
}

impl<'l> LaneLogs<'l> {
    #[inline(always)]
    pub(in crate::room) fn of(
        sessions: &'l mut LaneSessions,
        exchange: &'l Exchange,
    ) -> (Self, &'l mut SessionTable) {
        let LaneSessions {
            logs,
            relief,
            config,
            counters,
            timers,
            table,
            ..
        } = sessions;
        let logs = Self {
            logs,
            relief,
            config,
            counters,
            timers,
            exchange,
        };
        (logs, table)
    }

    /// Checks that a payload with this overhead fits a frame that all members get.
    #[inline]
    pub(in crate::room) fn check_frame(
        &self,
        payload_bytes: usize,
        overhead_bytes: usize,
    ) -> Result<(), SharedFrameError> {
        self.config
            .check_shared_frame(payload_bytes, overhead_bytes)
    }
}

/// Returns the index of a session's membership in the room of a log, if the session reads that log.
pub(super) fn membership_of(session: &Session, key: LogKey) -> Option<usize> {
    let index = session.room_membership(key.alias());
    index.filter(|index| session.memberships[*index].log() == key)
}

/// Lets a session skip its own frame at the end of a log that it reads. Returns how many members that is.
pub(super) fn skip_own(
    session: Option<&mut Session>,
    key: LogKey,
    log: &RoomLog,
    (position, bytes): (u64, usize),
) -> u64 {
    let Some(session) = session else {
        return 0;
    };
    let Some(index) = membership_of(session, key) else {
        return 0;
    };
    let subscriber = &mut session.memberships[index].subscriber;
    // A subscriber that is being sent the history gets nothing from the log.
    if subscriber.next_of_history().is_some() {
        return 0;
    }
    subscriber.skip_own(log, position, bytes);
    1
}

impl OpenRooms {
    /// Appends a frame to a log of a room or topic, counts it for the log's members on this lane, and plans a sweep.
    /// `None` if the log is not here. `skip` lets the author of the frame skip it: it gets the log with the frame,
    /// whose position and length follow, and returns how many members do not get the frame.
    #[inline(always)]
    pub(in crate::room) fn append(
        &mut self,
        to: LaneLogs<'_>,
        key: LogKey,
        bytes_expected: usize,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
        skip: impl FnOnce(&RoomLog, u64, usize) -> u64,
    ) -> Result<Option<NewFrame>, EncodeError> {
        let LaneLogs {
            logs,
            relief,
            config,
            counters,
            timers,
            exchange,
        } = to;
        let (alias, codec) = (key.alias(), key.codec());
        let Some(charged) = logs.get_charged(key) else {
            return Ok(None);
        };
        let log = charged.log();
        let codec = config.codecs.get(codec);
        let (position, bytes) = log.append_with(bytes_expected, |out| encode(codec, out))?;
        let own = skip(log, position, bytes);
        let offered = charged.members() as u64 - own;
        debug_assert!(
            self.get(alias).is_some(),
            "a log is open as long as its room"
        );
        let Some(room) = self.get_mut(alias) else {
            return Ok(None);
        };
        counters.room_offered.add(offered);
        let due_ns = room.coalescer.handle_append(timers.now_ns());
        let others = room.shared.others(exchange.lane());
        let changed_bits = position ^ (position + bytes as u64);
        if changed_bits >= GROWTH_STEP_BYTES || due_ns.is_some() {
            self.note_growth(logs, relief, key, due_ns, changed_bits);
        }
        Ok(Some(NewFrame {
            log: key,
            bytes,
            others,
        }))
    }

    /// Notes that a log grew by a step, or that its next sweep is planned.
    #[inline(never)]
    fn note_growth(
        &mut self,
        logs: &mut Logs,
        relief: &mut Relief,
        key: LogKey,
        due_ns: Option<u64>,
        changed_bits: u64,
    ) {
        let alias = key.alias();
        if let Some(due_ns) = due_ns {
            self.due.push(Reverse((due_ns, alias)));
        }
        if changed_bits >= GROWTH_STEP_BYTES && self.grown.last() != Some(&alias) {
            self.grown.push(alias);
        }
        if changed_bits >= CHARGE_STEP_BYTES || due_ns.is_some() {
            relief.charge_log(logs, key);
        }
    }
}

impl LaneDeliveries<'_> {
    /// Appends a notice to the logs of a room or topic on this lane, for all its members here. A codec that cannot
    /// express the notice leaves it out.
    #[inline]
    fn append_notice(
        &mut self,
        alias: u16,
        frame: impl Fn(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) {
        let notice = InEachCodec::notice(&frame, FRAME_OVERHEAD_BYTES_MAX);
        let _ = notice.append(self, alias);
    }

    /// Sends the newest frame of a log to other lanes, and its message to other nodes and to members with other codecs.
    /// `offset` is the offset of the message in the history of the room. Call it only if [`NewFrame::is_for_others`]:
    /// most messages end before it.
    #[inline(never)]
    pub(in crate::room) fn send_on(
        &mut self,
        appended: NewFrame,
        offset: Option<u64>,
        origin: &Origin<'_>,
        message: InEachCodec<'_>,
    ) {
        let NewFrame { log, bytes, others } = appended;
        let alias = log.alias();
        if others.has_node() || others.has_other_codecs() {
            let Some(shared) = self.open.shared(alias).cloned() else {
                return;
            };
            if others.has_node() {
                self.send_to_nodes(&shared, origin);
            }
            if others.has_other_codecs() {
                message.append_to_others(self, alias);
                return message.send(self, &shared, offset);
            }
        }
        let others = others.lanes_only();
        if others.is_empty() {
            return;
        }
        let mut frame = self.sessions.outputs.take_buffer();
        let Some(log) = self.sessions.logs.get(log) else {
            return;
        };
        frame.extend_from_slice(log.newest(bytes));
        self.send_chat_message(others, alias, offset, &frame);
        self.sessions.outputs.put_buffer(frame);
    }

    /// Appends a message whose author may be a session of this lane. The author does not get the message. Returns
    /// whether the room has members here.
    pub(in crate::room) fn append_of(
        &mut self,
        alias: u16,
        author: Option<SessionId>,
        bytes_expected: usize,
        frame: &Frame<'_>,
    ) -> bool {
        let author = author.unwrap_or(SessionId::NONE);
        let message = InEachCodec::by(author, frame, bytes_expected);
        message.append_to_all(self, alias);
        self.open.has(alias)
    }

    /// The session of this lane that is this member of a room.
    pub(in crate::room) fn session_of_member(
        &self,
        alias: u16,
        member: MemberId,
    ) -> Option<SessionId> {
        let room = self.open.get(alias).filter(|_| member != MemberId(0))?;
        let is_member = |slot: &&usize| {
            let session = self.sessions.table.get(**slot);
            let own = session.and_then(|it| it.profile.member.as_ref());
            own.is_some_and(|own| own.id() == member)
        };
        let slot = room.members.iter().find(is_member)?;
        Some(self.sessions[*slot].id)
    }

    /// Appends the position that the next message follows to the log of a room or topic.
    #[cold]
    pub(in crate::room) fn append_position(&mut self, alias: u16, position: Position) {
        self.append_notice(alias, |codec, out| {
            // Clients of a codec without positions cannot come back with a position either.
            match codec.format().has_positions {
                true => encode_position(codec, alias, position, out),
                false => Err(EncodeError::Unsupported {
                    codec: codec.name(),
                    kind: Kind::Position,
                }),
            }
        });
    }

    /// Appends the notice that messages are missing to the logs of a room. The caller has counted them.
    pub(in crate::room) fn append_gap(&mut self, alias: u16, lost: &mut u64) {
        let count = std::mem::take(lost);
        if count > 0 {
            // A codec without gap notices cannot tell. The loss is counted.
            self.append_notice(alias, |codec, out| codec.encode_gap(alias, count, out));
        }
    }
}

/// Step of growth, a power of two, after which a log is charged. A log is also charged when a sweep is planned or
/// done.
const CHARGE_STEP_BYTES: u64 = 16 * 1024;
