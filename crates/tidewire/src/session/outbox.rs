//! The state that all outputs of a lane share: buffers, the list of outputs to flush, and the logs of rooms and topics.
//! Each session is sent the part of a log that it has not received yet.

use std::hint::cold_path;
use std::mem;
use std::sync::Arc;

use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::room::{Deliveries, RoomLog};

use super::answer::{SpareFrames, Token};
use super::buffers::BufferPool;
use super::{LaneSessions, Output, RepeatedFrame};
use crate::memory::{LaneMemory, Pressure};

#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) buffers: BufferPool,
    /// Empty frames for the threads that answer later, returned by the lanes.
    pub(crate) spare_frames: Arc<SpareFrames>,
    /// Tokens of answered requests, for reuse.
    pub(crate) spare_tokens: Vec<Arc<Token>>,
    /// Sessions with output to write at the end of the turn.
    pub(super) dirty: Vec<usize>,
    pub(crate) logs: Logs,
    /// The last frame with a name that was sent through a sender.
    pub(crate) repeated: RepeatedFrame,
    /// The output of the session whose messages are handled, so that replies find it fast.
    pub(crate) current: Output,
    /// The slot of that session, or [`NO_SLOT`].
    current_slot: usize,
    /// An output is full when more bytes than this wait in it.
    pub(super) queue_bytes_max: usize,
    /// The way from streams' output to their transports. The codec decides it.
    pub(super) way: Way,
    /// Whether the codec's deliveries have headers.
    pub(super) has_headers: bool,
    /// Deliveries with their headers, gathered for one write.
    pub(super) deliveries: Deliveries,
}

/// The way from output to the transport of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Unchanged, gathered from output and logs.
    Plain,
    /// Log frames are copied behind the header of the subscriber.
    WithHeaders,
    /// Everything is copied to the output and adapted to the connection.
    Adapted,
}

impl Way {
    fn of(codec: &AnyCodec) -> Self {
        match (
            codec.format().keeps_state(),
            codec.format().delivery_header_bytes_max,
        ) {
            (true, _) => Self::Adapted,
            (false, 0) => Self::Plain,
            (false, _) => Self::WithHeaders,
        }
    }
}

impl Outbox {
    pub(super) fn new(
        codec: &AnyCodec,
        spare_frames: Arc<SpareFrames>,
        queue_bytes_max: usize,
    ) -> Self {
        Self {
            buffers: BufferPool::default(),
            spare_frames,
            spare_tokens: Vec::new(),
            dirty: Vec::new(),
            logs: Logs::default(),
            repeated: RepeatedFrame::default(),
            current: Output::default(),
            current_slot: NO_SLOT,
            queue_bytes_max,
            way: Way::of(codec),
            has_headers: codec.format().delivery_header_bytes_max > 0,
            deliveries: Deliveries::default(),
        }
    }
}

impl LaneSessions {
    /// Starts to handle messages of a session. Until [`Self::leave`] its output is the current one.
    #[inline]
    pub(crate) fn enter(&mut self, slot: usize) {
        debug_assert_eq!(self.outbox.current_slot, NO_SLOT, "one session at a time");
        if let Some(session) = self.slab.get_mut(slot) {
            self.outbox.current = mem::take(&mut session.output);
            self.outbox.current_slot = slot;
        }
    }

    /// Ends the handling of a session's messages. Their output is written at the end of the turn.
    #[inline]
    pub(crate) fn leave(&mut self) {
        let slot = mem::replace(&mut self.outbox.current_slot, NO_SLOT);
        if let Some(session) = self.slab.get_mut(slot) {
            session.output = mem::take(&mut self.outbox.current);
            if !session.output.is_empty() {
                self.mark_dirty(slot);
            }
        }
    }

    /// Runs `work` while the output of this session is back in the session, where the output of any other session is.
    pub(crate) fn with_output_in_place<T>(
        &mut self,
        slot: usize,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if self.outbox.current_slot != slot {
            return work(self);
        }
        self.outbox.current_slot = NO_SLOT;
        self.slab[slot].output = mem::take(&mut self.outbox.current);
        let result = work(self);
        self.enter(slot);
        result
    }

    #[inline]
    pub(crate) fn output(&self, slot: usize) -> &Output {
        match slot == self.outbox.current_slot {
            true => &self.outbox.current,
            false => &self.slab[slot].output,
        }
    }

    /// Returns the output of a session to change it.
    #[inline]
    pub(crate) fn output_mut(&mut self, slot: usize) -> &mut Output {
        match slot == self.outbox.current_slot {
            true => &mut self.outbox.current,
            false => &mut self.slab[slot].output,
        }
    }
}

impl Outbox {
    /// Whether the current output is full. The written part is subtracted only if that could change the result.
    #[inline(always)]
    pub(crate) fn is_current_full(&self) -> bool {
        self.current.bytes.len() > self.queue_bytes_max && {
            cold_path();
            self.current.len() > self.queue_bytes_max
        }
    }

    /// The slot of the session whose messages are being handled, or [`NO_SLOT`].
    pub(super) fn current_slot(&self) -> usize {
        self.current_slot
    }

    /// Whether this slot's messages are being handled.
    #[inline]
    pub(super) fn is_current(&self, slot: usize) -> bool {
        slot == self.current_slot
    }

    /// Returns the output of the session in this slot, and the buffers. The output is the current one or the session's
    /// `own`.
    #[inline]
    pub(super) fn of<'a>(
        &'a mut self,
        slot: usize,
        own: &'a mut Output,
    ) -> (&'a mut Output, &'a mut BufferPool) {
        let output = match slot == self.current_slot {
            true => &mut self.current,
            false => own,
        };
        (output, &mut self.buffers)
    }
}

/// The lane's logs of rooms and topics, by alias.
#[derive(Debug, Default)]
pub(crate) struct Logs(Vec<Option<Box<ChargedLog>>>);

/// A log, and the part of its memory that is charged to the account.
#[derive(Debug, Default)]
struct ChargedLog {
    log: RoomLog,
    bytes: usize,
}

impl ChargedLog {
    /// Charges the memory that the log holds. Frees its spare memory while memory is short.
    #[inline]
    fn charge(&mut self, memory: &mut LaneMemory) {
        if memory.pressure() != Pressure::Normal {
            self.log.release_spare();
        }
        let held = self.log.held_bytes();
        memory.resize(self.bytes, held);
        self.bytes = held;
    }
}

impl Logs {
    #[inline]
    pub(crate) fn get(&self, alias: u16) -> Option<&RoomLog> {
        Some(&self.0.get(usize::from(alias))?.as_deref()?.log)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, alias: u16) -> Option<&mut RoomLog> {
        Some(&mut self.0.get_mut(usize::from(alias))?.as_deref_mut()?.log)
    }

    /// Charges a log after an append or a read.
    #[inline]
    pub(crate) fn charge(&mut self, alias: u16, memory: &mut LaneMemory) {
        if let Some(Some(log)) = self.0.get_mut(usize::from(alias)) {
            log.charge(memory);
        }
    }

    /// Charges all logs. Returns what they hold.
    pub(super) fn charge_all(&mut self, memory: &mut LaneMemory) -> usize {
        let logs = self.0.iter_mut().flatten();
        logs.map(|log| {
            log.charge(memory);
            log.bytes
        })
        .sum()
    }

    /// Frees the buffers of a log that all its subscribers have read. `at_head` is the number of subscribers that are at its
    /// head. Returns whether it was drained.
    pub(crate) fn release_drained(
        &mut self,
        alias: u16,
        at_head: usize,
        memory: &mut LaneMemory,
    ) -> bool {
        let Some(Some(log)) = self.0.get_mut(usize::from(alias)) else {
            return false;
        };
        let is_drained = log.log.release_drained(at_head);
        log.charge(memory);
        is_drained
    }

    /// The number of aliases that logs may have here.
    pub(super) fn aliases(&self) -> usize {
        self.0.len()
    }

    /// Creates the log of a room, unless the room has one.
    pub(crate) fn open(&mut self, alias: u16, memory: &mut LaneMemory) {
        let index = usize::from(alias);
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index].get_or_insert_with(|| {
            memory.resize(0, ROOM_BYTES);
            Box::default()
        });
    }

    /// Drops the log of a room without subscribers.
    pub(crate) fn close(&mut self, alias: u16, memory: &mut LaneMemory) {
        if let Some(log) = self.0.get_mut(usize::from(alias)).and_then(Option::take) {
            memory.resize(ROOM_BYTES + log.bytes, 0);
        }
    }
}

/// The value of `current_slot` while no session's messages are handled.
pub(super) const NO_SLOT: usize = usize::MAX;

/// Memory of a room, or of a pattern, beside its log: on a lane and in the server's tables.
const ROOM_BYTES: usize = 1_024;
