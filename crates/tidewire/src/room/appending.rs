//! The one way of a frame into the log of a room or topic on this lane: it is appended, counted for the members, and a sweep is
//! planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::error::EncodeError;
use tidewire_proto::room::RoomLog;

use super::fanout::GROWTH_STEP_BYTES;
use super::rooms::Room;
use crate::config::{Config, SharedFrameError};
use crate::mailbox::{Exchange, LaneSet};
use crate::observe::LaneCounters;
use crate::session::{LaneSessions, Logs, Relief, SessionSlab, Timers};

/// The rooms with members, and the patterns with subscribers, on a lane, by alias; and when their logs are swept.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    all: Vec<Option<Box<Room>>>,
    /// Planned sweeps, earliest first.
    due: BinaryHeap<Reverse<(u64, u16)>>,
    /// Rooms whose logs grew by a step in this turn. An early sweep of them may be worth its writes.
    grown: Vec<u16>,
}

/// The parts of a lane that an append needs. The sessions stay free, because the author is one of them. Each part is read where it
/// is needed: a copy of the time or a pointer into an `Arc` lived in a register too long, which cost each message 5 instructions.
pub(super) struct LaneLogs<'l> {
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
pub(super) struct Appended {
    pub(super) alias: u16,
    pub(super) bytes: usize,
    /// The other lanes with members, and the node if messages go to other nodes.
    pub(super) others: LaneSet,
}

impl<'l> LaneLogs<'l> {
    /// Returns the logs, and the sessions.
    #[inline(always)]
    pub(super) fn of(
        sessions: &'l mut LaneSessions,
        exchange: &'l Exchange,
    ) -> (Self, &'l mut SessionSlab) {
        let LaneSessions {
            logs,
            relief,
            config,
            counters,
            timers,
            slab,
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
        (logs, slab)
    }

    /// Checks that a payload with this overhead fits a frame that all members get.
    #[inline]
    pub(super) fn check_frame(
        &self,
        payload_bytes: usize,
        overhead_bytes: usize,
    ) -> Result<(), SharedFrameError> {
        self.config
            .check_shared_frame(payload_bytes, overhead_bytes)
    }
}

impl Rooms {
    #[inline]
    pub(super) fn get(&self, alias: u16) -> Option<&Room> {
        self.all.get(usize::from(alias))?.as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, alias: u16) -> Option<&mut Room> {
        self.all.get_mut(usize::from(alias))?.as_deref_mut()
    }

    /// The number of aliases that rooms may have here.
    pub(super) fn aliases(&self) -> usize {
        self.all.len()
    }

    /// Adds a room unless it is there.
    pub(super) fn open(&mut self, alias: u16, begin: impl FnOnce() -> Room) {
        let index = usize::from(alias);
        if self.all.len() <= index {
            self.all.resize_with(index + 1, || None);
        }
        self.all[index].get_or_insert_with(|| Box::new(begin()));
    }

    pub(super) fn close(&mut self, alias: u16) {
        self.all[usize::from(alias)] = None;
    }

    /// When the next sweep is due.
    pub(super) fn sweep_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the next sweep that is due at a time.
    #[inline]
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<u16> {
        while let Some(Reverse((at, alias))) = self.due.peek().copied() {
            if at > now_ns {
                return None;
            }
            self.due.pop();
            // The room may have been swept earlier.
            let room = self.get(alias);
            if room.and_then(|room| room.coalescer.due_ns()) == Some(at) {
                return Some(alias);
            }
        }
        None
    }

    /// Whether the log of a room grew by a step in this turn.
    #[inline]
    pub(super) fn has_grown(&self) -> bool {
        !self.grown.is_empty()
    }

    /// Takes a room whose log grew by a step in this turn.
    pub(super) fn take_grown(&mut self) -> Option<u16> {
        self.grown.pop()
    }

    /// Appends a frame to the log of a room or topic, counts it for the members on this lane, and plans a sweep. `None` if the log
    /// is not here. `skip` lets the author of the frame skip it: it gets the log with the frame, whose position and length follow,
    /// and returns how many members do not get the frame.
    #[inline(always)]
    pub(super) fn append(
        &mut self,
        to: LaneLogs<'_>,
        alias: u16,
        bytes_expected: usize,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
        skip: impl FnOnce(&RoomLog, u64, usize) -> u64,
    ) -> Result<Option<Appended>, EncodeError> {
        let LaneLogs {
            logs,
            relief,
            config,
            counters,
            timers,
            exchange,
        } = to;
        let Some(log) = logs.get_mut(alias) else {
            return Ok(None);
        };
        debug_assert!(
            self.get(alias).is_some(),
            "a log is open as long as its room"
        );
        let appended = log.append_with(bytes_expected, |out| encode(&config.codec, out));
        let (position, bytes) = appended?;
        let own = skip(log, position, bytes);
        let Some(room) = self.get_mut(alias) else {
            return Ok(None);
        };
        counters.room_offered.add(room.members.len() as u64 - own);
        let due_ns = room.coalescer.handle_append(timers.now_ns());
        let others = room.shared.others(exchange.lane);
        let changed_bits = position ^ (position + bytes as u64);
        if changed_bits >= GROWTH_STEP_BYTES || due_ns.is_some() {
            self.note_growth(logs, relief, alias, due_ns, changed_bits);
        }
        Ok(Some(Appended {
            alias,
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
        alias: u16,
        due_ns: Option<u64>,
        changed_bits: u64,
    ) {
        if let Some(due_ns) = due_ns {
            self.due.push(Reverse((due_ns, alias)));
        }
        if changed_bits >= GROWTH_STEP_BYTES && self.grown.last() != Some(&alias) {
            self.grown.push(alias);
        }
        if changed_bits >= CHARGE_STEP_BYTES || due_ns.is_some() {
            relief.charge_log(logs, alias);
        }
    }
}

/// Step of growth, a power of two, after which a log is charged. A log is also charged when a sweep is planned or
/// done.
const CHARGE_STEP_BYTES: u64 = 16 * 1024;
