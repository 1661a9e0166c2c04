//! The state that all outputs of a lane share: buffers, the list of outputs to flush, and the logs of rooms and topics. Each
//! subscriber is written its part of a log.

use std::hint::cold_path;
use std::mem;
use std::sync::Arc;

use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::room::{Deliveries, RoomLog};

use super::answer::{SpareFrames, Token};
use super::buffers::BufferPool;
use super::{LaneSessions, Output, RepeatedFrame};
use crate::memory::{LaneMemory, Pressure};

/// See the module.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) buffers: BufferPool,
    /// Emptied frames on their way back from lanes to those who answer later.
    pub(crate) spare_frames: Arc<SpareFrames>,
    /// Tokens of answered requests, to be used again.
    pub(crate) spare_tokens: Vec<Arc<Token>>,
    /// Sessions with output to write at the end of the turn.
    pub(super) dirty: Vec<usize>,
    pub(crate) logs: Logs,
    /// The last frame with a name that a sender sent.
    pub(crate) repeated: RepeatedFrame,
    /// The output of the session whose messages are handled, within reach of every reply.
    pub(crate) current: Output,
    /// The slot of that session, or [`NO_SLOT`].
    current_slot: usize,
    /// Bytes that wait above which an output is full.
    pub(super) queue_bytes_max: usize,
    /// The way of streams' output to their transports, which the codec decides.
    pub(super) way: Way,
    /// Whether the codec's deliveries have headers.
    pub(super) has_headers: bool,
    /// Deliveries with their headers, as one write offers them.
    pub(super) deliveries: Deliveries,
}

/// How output gets to the transport of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As it is, gathered from output and logs.
    Plain,
    /// What logs have is copied behind the header of the subscriber.
    WithHeaders,
    /// All of it is copied to the output, and adapted to the connection.
    Adapted,
}

impl Way {
    fn of(codec: &AnyCodec) -> Self {
        match (codec.keeps_state(), codec.delivery_header_bytes_max()) {
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
            has_headers: codec.delivery_header_bytes_max() > 0,
            deliveries: Deliveries::default(),
        }
    }
}

impl LaneSessions {
    /// Begins to handle messages of a session: until [`Self::leave`] its output is the current one.
    #[inline]
    pub(crate) fn enter(&mut self, slot: usize) {
        debug_assert_eq!(self.outbox.current_slot, NO_SLOT, "one session at a time");
        if let Some(session) = self.slab.get_mut(slot) {
            self.outbox.current = mem::take(&mut session.output);
            self.outbox.current_slot = slot;
        }
    }

    /// The session's messages are handled. What they led to is written at the end of the turn.
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

    /// Runs `work` while this session has its output, as every other session has.
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

    /// The output of a session.
    #[inline]
    pub(crate) fn output(&self, slot: usize) -> &Output {
        match slot == self.outbox.current_slot {
            true => &self.outbox.current,
            false => &self.slab[slot].output,
        }
    }

    /// As [`Self::output`], to be changed.
    #[inline]
    pub(crate) fn output_mut(&mut self, slot: usize) -> &mut Output {
        match slot == self.outbox.current_slot {
            true => &mut self.outbox.current,
            false => &mut self.slab[slot].output,
        }
    }
}

impl Outbox {
    /// Whether the current output is full. The bytes that went already are looked at only if they could matter.
    #[inline(always)]
    pub(crate) fn is_current_full(&self) -> bool {
        self.current.bytes.len() > self.queue_bytes_max && {
            cold_path();
            self.current.len() > self.queue_bytes_max
        }
    }

    /// Whether messages of the session in this slot are handled.
    #[inline]
    pub(super) fn is_current(&self, slot: usize) -> bool {
        slot == self.current_slot
    }

    /// The output of the session in this slot, which is the current one or the session's `own`. The buffers come with it.
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

/// A log, and the part of its memory that is charged.
#[derive(Debug, Default)]
struct ChargedLog {
    log: RoomLog,
    bytes: usize,
}

impl ChargedLog {
    /// Charges what the log holds. While memory is short it keeps nothing to reuse.
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

    /// Charges a log for what it holds since it was appended to, or read from.
    #[inline]
    pub(crate) fn charge(&mut self, alias: u16, memory: &mut LaneMemory) {
        if let Some(Some(log)) = self.0.get_mut(usize::from(alias)) {
            log.charge(memory);
        }
    }

    /// Charges all logs.
    pub(super) fn charge_all(&mut self, memory: &mut LaneMemory) {
        for log in self.0.iter_mut().flatten() {
            log.charge(memory);
        }
    }

    /// Adds the log of a room, unless it has one.
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

    /// Drops the log of a room that has no subscriber any more.
    pub(crate) fn close(&mut self, alias: u16, memory: &mut LaneMemory) {
        if let Some(log) = self.0.get_mut(usize::from(alias)).and_then(Option::take) {
            memory.resize(ROOM_BYTES + log.bytes, 0);
        }
    }
}

/// No session's messages are handled.
const NO_SLOT: usize = usize::MAX;

/// Memory of a room, or of a pattern, on a lane beside its log, and of its part in the server's tables.
const ROOM_BYTES: usize = 1_024;
