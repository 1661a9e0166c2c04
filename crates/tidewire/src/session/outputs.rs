//! The outputs of a lane's sessions.
//!
//! Problem: the answers of a handler go to one output, many in a row, and each look-up by slot costs a small answer a
//! sixth of its instructions. Approach: while a session's messages are handled, its output lies in a place of its own,
//! where answers find it. Only this file knows that place. Everybody else names the slot of a session and gets its
//! output, wherever that lies.
//!
//! Rejected: all outputs at their slots, always. A message that is echoed took 121 instructions in place of 104.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_io::append::FramePattern;
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::error::EncodeError;

use super::buffers::BufferPool;
use super::{Output, OutputLoan, SendError};
use crate::config::{CodecNumber, Config};
use crate::observe::{DropReason, LaneCounters};
use crate::transport::datagram::Packing;

/// The outputs by slot, with their buffers, and the list of those to write.
#[derive(Debug)]
pub(crate) struct Outputs {
    /// By slot. The outputs of free slots, and of the current session, are empty here.
    all: Vec<Output>,
    /// The output of the session whose messages are handled.
    current: Output,
    /// The slot of that session, or [`NO_SLOT`].
    current_slot: usize,
    buffers: BufferPool,
    /// Sessions with output to write at the end of the turn.
    listed: Vec<usize>,
    /// Sessions that wait for room in a UDP socket that they share, with the number of its port.
    port_waiters: Vec<(usize, usize)>,
    /// An output is full when more bytes than this wait in it.
    bytes_max: usize,
    config: Arc<Config>,
    counters: Arc<CachePadded<LaneCounters>>,
}

impl Outputs {
    pub(super) fn new(config: Arc<Config>, counters: Arc<CachePadded<LaneCounters>>) -> Self {
        Self {
            all: Vec::new(),
            current: Output::default(),
            current_slot: NO_SLOT,
            buffers: BufferPool::default(),
            listed: Vec::new(),
            port_waiters: Vec::new(),
            bytes_max: config.limits.connections.queue_bytes_max(),
            config,
            counters,
        }
    }

    pub(crate) fn open(&mut self, slot: usize, codec: CodecNumber, packing: Option<Box<Packing>>) {
        if self.all.len() <= slot {
            self.all.resize_with(slot + 1, Output::default);
        }
        self.all[slot] = Output::new(codec, packing);
    }

    /// Drops the output of a session that is being removed.
    pub(super) fn close(&mut self, slot: usize) {
        self.clear(slot);
        *self.of_mut(slot) = Output::default();
    }

    /// Drops the bytes of an output, and keeps its buffer for others.
    pub(super) fn clear(&mut self, slot: usize) {
        let (output, buffers) = self.parts(slot);
        if output.held_bytes() > 0 {
            buffers.put(output.take_buffer());
        }
    }

    /// Makes the output of this session the current one, until [`Self::leave`].
    #[inline]
    pub(crate) fn enter(&mut self, slot: usize) {
        debug_assert_eq!(self.current_slot, NO_SLOT, "one session at a time");
        if let Some(output) = self.all.get_mut(slot) {
            self.current = std::mem::take(output);
            self.current_slot = slot;
        }
    }

    /// Ends the handling of the current session's messages. Their output is written at the end of the turn.
    #[inline]
    pub(crate) fn leave(&mut self) {
        let slot = std::mem::replace(&mut self.current_slot, NO_SLOT);
        if let Some(output) = self.all.get_mut(slot) {
            *output = std::mem::take(&mut self.current);
            if !output.is_empty() && output.list() {
                self.listed.push(slot);
            }
        }
    }

    /// Whether this session's messages are being handled.
    #[inline]
    pub(super) fn is_current(&self, slot: usize) -> bool {
        slot == self.current_slot
    }

    #[inline(always)]
    pub(crate) fn of(&self, slot: usize) -> &Output {
        match slot == self.current_slot {
            true => &self.current,
            false => &self.all[slot],
        }
    }

    #[inline(always)]
    pub(super) fn of_mut(&mut self, slot: usize) -> &mut Output {
        self.parts(slot).0
    }

    /// The output in this slot, and the spare buffers.
    #[inline(always)]
    fn parts(&mut self, slot: usize) -> (&mut Output, &mut BufferPool) {
        let output = match slot == self.current_slot {
            true => &mut self.current,
            false => &mut self.all[slot],
        };
        (output, &mut self.buffers)
    }

    /// An output that has a buffer.
    #[inline(always)]
    pub(super) fn with_buffer(&mut self, slot: usize) -> &mut Output {
        let (output, buffers) = self.parts(slot);
        output.ensure_buffer(buffers);
        output
    }

    #[inline]
    pub(crate) fn is_full(&self, slot: usize) -> bool {
        self.of(slot).is_above(self.bytes_max)
    }

    /// The output of the session whose messages are handled. It is empty if there is none.
    #[inline(always)]
    pub(crate) fn current(&self) -> &Output {
        &self.current
    }

    #[inline(always)]
    pub(crate) fn is_current_full(&self) -> bool {
        self.current.is_above(self.bytes_max)
    }

    /// Appends the frame of a small reply to the current output, if that has room for it in its buffer. Returns whether
    /// it had.
    #[inline(always)]
    pub(crate) fn append_small(&mut self, pattern: &FramePattern, id: u32, payload: &[u8]) -> bool {
        self.current.append_small(pattern, id, payload)
    }

    /// As [`Self::append_small`], for a reply of any length. The output gets a buffer if it has none.
    #[inline(always)]
    pub(crate) fn append_pattern(
        &mut self,
        pattern: &FramePattern,
        id: u32,
        payload: &[u8],
    ) -> bool {
        self.current.ensure_buffer(&mut self.buffers);
        self.current.append_pattern(pattern, id, payload)
    }

    /// Appends the frames that `encode` writes to the current output.
    #[inline(always)]
    pub(crate) fn append(
        &mut self,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let Self {
            current,
            buffers,
            config,
            counters,
            ..
        } = self;
        current.ensure_buffer(buffers);
        append_counted(current, config, counters, encode)
    }

    /// Appends encoded frames, whose ends the codec finds.
    pub(crate) fn append_frames(&mut self, slot: usize, frames: &[u8]) {
        let Self {
            all,
            current,
            current_slot,
            buffers,
            config,
            ..
        } = self;
        let output = match slot == *current_slot {
            true => current,
            false => &mut all[slot],
        };
        output.ensure_buffer(buffers);
        let codec = config.codecs.get(output.codec_number());
        output.append_frames(codec, frames);
    }

    /// The number of unsent bytes above which an output is full.
    #[inline]
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Appends the frames that `encode` writes to any output, unless that has more unsent bytes than `full_above`.
    /// Lists the session for the flush. Returns whether the output holds enough bytes to be written now.
    #[inline(always)]
    pub(super) fn offer(
        &mut self,
        slot: usize,
        full_above: usize,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<bool, SendError> {
        let Self {
            all,
            current,
            buffers,
            config,
            counters,
            ..
        } = self;
        // The place of the current output has no buffer, so most messages need no other question.
        let output = match all.get_mut(slot) {
            Some(output) if output.held_bytes() > 0 => output,
            place => filled(place, current, slot == self.current_slot, buffers),
        };
        if output.is_above(full_above) {
            counters.sends_refused.add(1);
            return Err(SendError::QueueFull);
        }
        let result = append_counted(output, config, counters, encode);
        let has_block = output.len() >= WRITE_BYTES;
        if output.list() {
            self.listed.push(slot);
        }
        result?;
        Ok(has_block)
    }

    /// Whether an output holds enough bytes to be written in the middle of a turn.
    #[inline]
    pub(super) fn has_block(&self, slot: usize) -> bool {
        self.of(slot).len() >= WRITE_BYTES
    }

    /// Lends an output to a sender, and lists the session for the flush. To the current output the sender appends at
    /// any length: its session is not read while it is full.
    pub(super) fn lend(&mut self, slot: usize, frame_bytes_max: usize) -> OutputLoan {
        self.list(slot);
        let full_above = match self.is_current(slot) {
            true => usize::MAX,
            false => self.bytes_max,
        };
        self.with_buffer(slot).lend(frame_bytes_max, full_above)
    }

    /// Counts a message that is refused.
    #[cold]
    pub(crate) fn refuse(&self, error: SendError) -> SendError {
        self.counters.sends_refused.add(1);
        error
    }

    /// Lists a session for the flush at the end of the turn.
    #[inline]
    pub(crate) fn list(&mut self, slot: usize) {
        if self.of_mut(slot).list() {
            self.listed.push(slot);
        }
    }

    #[cfg(test)]
    pub(super) fn is_listed(&self, slot: usize) -> bool {
        self.listed.contains(&slot)
    }

    /// The sessions that were listed, for [`Self::end_flush`]. Each is to be unlisted.
    pub(super) fn begin_flush(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.listed)
    }

    /// Takes the emptied list for the next turn.
    pub(super) fn end_flush(&mut self, list: Vec<usize>) {
        // Flushing may close sessions but lists no others.
        debug_assert!(self.listed.is_empty());
        self.listed = list;
    }

    /// Lists a session that waits for room in the shared socket with this number.
    pub(super) fn await_port(&mut self, port: usize, slot: usize) {
        self.port_waiters.push((port, slot));
    }

    /// Takes a session that waits for room in a shared socket, with the number of the socket.
    #[inline]
    pub(crate) fn take_port_waiter(&mut self) -> Option<(usize, usize)> {
        self.port_waiters.pop()
    }

    /// Notes bytes that another thread has reserved in the shared session, and that are appended next.
    pub(crate) fn add_outside(&mut self, slot: usize, bytes: usize) {
        self.of_mut(slot).add_outside(bytes);
    }

    /// Counts the room messages in the output of a closing session, which will not get them.
    pub(crate) fn drop_room_messages(&mut self, slot: usize) {
        let messages = self.of_mut(slot).take_room_messages();
        self.counters.room_dropped[DropReason::Closed as usize].add(messages);
    }

    /// Takes an empty buffer, for any use.
    #[inline]
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.take()
    }

    /// Keeps a buffer for the next who needs one.
    #[inline]
    pub(crate) fn put_buffer(&mut self, buffer: Vec<u8>) {
        self.buffers.put(buffer);
    }

    /// Memory of the spare buffers.
    #[inline]
    pub(super) fn spare_bytes(&self) -> usize {
        self.buffers.held_bytes()
    }

    /// Sets whether spare buffers are kept. If not, they are freed now.
    pub(super) fn keep_spare(&mut self, keep: bool) {
        self.buffers.keep_spare(keep);
    }
}

/// The output that belongs in a place without a buffer: the current one, or the one there. It has a buffer now.
#[cold]
#[inline(never)]
fn filled<'a>(
    place: Option<&'a mut Output>,
    current: &'a mut Output,
    is_current: bool,
    buffers: &mut BufferPool,
) -> &'a mut Output {
    let output = match place {
        Some(output) if !is_current => output,
        _ => current,
    };
    output.ensure_buffer(buffers);
    output
}

/// Appends the frames that `encode` writes, and counts one that is too large.
#[inline(always)]
fn append_counted(
    output: &mut Output,
    config: &Config,
    counters: &LaneCounters,
    encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let codec = config.codecs.get(output.codec_number());
    let result = output.append(codec, encode);
    if let Err(EncodeError::PayloadTooLarge { .. }) = &result {
        counters.sends_too_large.add(1);
    }
    result
}

/// The value of `current_slot` while no session's messages are handled.
const NO_SLOT: usize = usize::MAX;

/// Bytes of output that are written at once. Calls to the kernel are hardly cheaper per byte for larger blocks. Two
/// blocks of this size, and the kernel's copy, fit into the smallest second-level cache in use.
const WRITE_BYTES: usize = 64 << 10;
