//! From a message to the output of its session.
//!
//! Problem: whoever sends message by message pays for finding the session, for the checks and for the way to the flush at
//! the end of the turn, with every one of them. Approach: all of it is done on one look at the session, and a
//! [`SessionSender`](crate::SessionSender) does it once for many messages. An output that holds a block is written at once
//! and not at the end of the turn: more would leave the processor's cache before the kernel copies it. Not so that of the
//! session whose message is being handled, which is the current one of the outbox: it is not read while its output is full.

use std::mem;

use thiserror::Error;
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::Message;

use super::buffers::BufferPool;
use super::outbox::Outbox;
use super::{LaneSessions, Output, Session, SessionId};
use crate::config::Config;
use crate::observe::LaneCounters;
use crate::transport::datagram::Packing;

/// A message could not be enqueued. Nothing of it was sent.
/// An error of [`Context::send_to`](crate::Context::send_to) and [`SessionHandle::send`](crate::SessionHandle::send).
/// [`Context::with_sender`](crate::Context::with_sender) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The session ended, or is not open yet.
    #[error("the session is not open")]
    NotOpen,
    /// The receiver does not take what it was sent; its queue is full.
    #[error("the session's output queue is full")]
    QueueFull,
    /// The codec cannot express the message.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Appends one frame, unless it is larger than its receiver takes: it would end the connection there.
#[inline(always)]
pub(crate) fn encode_within(
    frame_bytes_max: usize,
    out: &mut Vec<u8>,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let before = out.len();
    encode(out)?;
    let bytes = out.len() - before;
    if bytes > frame_bytes_max {
        out.truncate(before);
        return Err(EncodeError::PayloadTooLarge {
            bytes: bytes as u64,
            limit: frame_bytes_max as u64,
        });
    }
    Ok(())
}

/// The output of a session while a [`SessionSender`](crate::SessionSender) works on it.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Without capacity there are none.
    pub(crate) bytes: Vec<u8>,
    /// Where their datagrams end, if they are sent as datagrams.
    pub(crate) packing: Option<Box<Packing>>,
    /// Largest frame that both sides take.
    pub(crate) frame_bytes_max: usize,
    /// Bytes, with those that went already, above which the session takes no more.
    pub(crate) full_above: usize,
}

impl Taken {
    /// Of a session of another lane there is nothing.
    pub(crate) const NOTHING: Self = Self {
        bytes: Vec::new(),
        packing: None,
        frame_bytes_max: usize::MAX,
        full_above: usize::MAX,
    };
}

impl LaneSessions {
    /// Appends frames to the output of the session whose messages are handled.
    #[inline(always)]
    pub(crate) fn append_to_current(
        &mut self,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let Outbox {
            current, buffers, ..
        } = &mut self.outbox;
        append_frames(current, buffers, &self.config, &self.counters, encode)
    }

    /// Appends the frame of a message with a name to the output of the session whose messages are handled.
    pub(crate) fn append_named_to_current(
        &mut self,
        frame_bytes_max: usize,
        message: &Message<'_>,
    ) -> Result<(), EncodeError> {
        let Outbox {
            current,
            buffers,
            repeated,
            ..
        } = &mut self.outbox;
        append_frames(
            current,
            buffers,
            &self.config,
            &self.counters,
            |codec, out| {
                encode_within(frame_bytes_max, out, |out| {
                    repeated.encode(codec, message, out)
                })
            },
        )
    }

    /// Appends frames that are within the limit to the output of a session of this lane.
    pub(crate) fn send_frames(&mut self, id: SessionId, frames: &[u8]) -> Result<(), SendError> {
        self.with_output_in_place(id.slot(), |sessions| {
            sessions.append_to(id, |_, _, out| {
                out.extend_from_slice(frames);
                Ok(())
            })
        })
    }

    /// Appends what `encode` writes, which is told the largest frame that the session takes. Not for the session whose messages
    /// are handled: see [`Self::with_output_in_place`].
    #[inline(always)]
    pub(crate) fn append_to(
        &mut self,
        id: SessionId,
        encode: impl FnOnce(usize, &AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), SendError> {
        let Self {
            slab,
            outbox,
            config,
            counters,
            ..
        } = self;
        // The output stays where it is. Taken out and put back, its length would be read together with its neighbours just
        // after it was written alone, and the processor would wait for that with every message.
        let session = match slab.get_mut(id.slot()) {
            Some(session) if session.takes_from(id) => session,
            _ => return Err(self.refuse_to_send(SendError::NotOpen)),
        };
        let slot = id.slot();
        debug_assert!(!outbox.is_current(slot), "its output is elsewhere");
        let output = &mut session.output;
        if output.len() > outbox.queue_bytes_max {
            return Err(self.refuse_to_send(SendError::QueueFull));
        }
        let limit = session.connection.frame_bytes_max();
        let result = append_frames(
            output,
            &mut outbox.buffers,
            config,
            counters,
            #[inline(always)]
            |codec, out| encode(limit, codec, out),
        );
        let holds_a_block = output.len() >= WRITE_BYTES;
        if !session.dirty {
            session.dirty = true;
            outbox.dirty.push(slot);
        }
        if holds_a_block && session.may_be_written() {
            self.flush(slot);
        }
        Ok(result?)
    }

    /// Takes the output of a session of this lane for a sender, which always gives it back with [`Self::put_back_and_write`]. The session
    /// whose messages are handled is not read while its output is full, so that its own messages need no refusal.
    pub(crate) fn take_output(&mut self, id: SessionId) -> Result<Taken, SendError> {
        let slot = id.slot();
        let Self {
            slab,
            outbox,
            config,
            ..
        } = self;
        let session = match slab.get_mut(slot) {
            Some(session) if session.id == id && outbox.is_current(slot) => session,
            Some(session) if session.takes_from(id) => session,
            _ => return Err(self.refuse_to_send(SendError::NotOpen)),
        };
        let is_current = outbox.is_current(slot);
        let (output, buffers) = outbox.of(slot, &mut session.output);
        let mut bytes = mem::take(&mut output.bytes);
        if bytes.capacity() == 0 {
            bytes = buffers.take();
            // Only the first buffers of a lane have none.
            bytes.reserve(1);
        }
        let full_above = match is_current {
            true => usize::MAX,
            false => output.sent.saturating_add(config.limits.queue_bytes_max),
        };
        let taken = Taken {
            bytes,
            packing: output.packing.take(),
            frame_bytes_max: session.connection.frame_bytes_max(),
            full_above,
        };
        self.mark_dirty(slot);
        Ok(taken)
    }

    /// Gives a session its output back.
    pub(crate) fn put_back(&mut self, slot: usize, bytes: Vec<u8>, packing: Option<Box<Packing>>) {
        let output = self.output_mut(slot);
        (output.bytes, output.packing) = (bytes, packing);
        if let Some(packing) = &mut output.packing {
            packing.end_appending(output.bytes.len());
        }
    }

    /// The same, and writes a block at once. Not that of the session whose messages are handled.
    pub(crate) fn put_back_and_write(
        &mut self,
        slot: usize,
        bytes: Vec<u8>,
        packing: Option<Box<Packing>>,
    ) {
        self.put_back(slot, bytes, packing);
        if self.slab[slot].holds_a_block() {
            self.flush(slot);
        }
    }

    /// Writes a full output that a sender has, if it may be written, and gives it to the sender again. There is nothing to give
    /// when the session ended of it.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_room(
        &mut self,
        slot: usize,
        bytes: Vec<u8>,
        packing: Option<Box<Packing>>,
    ) -> Option<Taken> {
        self.put_back(slot, bytes, packing);
        if self.slab[slot].may_be_written() {
            self.flush(slot);
        }
        let session = &self.slab[slot];
        let id = session.id;
        match session.connection.is_closed() {
            true => None,
            false => self.take_output(id).ok(),
        }
    }

    /// Counts a message that was not taken.
    #[cold]
    pub(crate) fn refuse_to_send(&self, error: SendError) -> SendError {
        self.counters.sends_refused.add(1);
        error
    }
}

impl Session {
    /// Whether it is this session, and not its successor, and takes messages.
    #[inline(always)]
    fn takes_from(&self, id: SessionId) -> bool {
        self.id == id && self.connection.may_send()
    }

    /// Whether its output is worth a write of its own in the middle of a turn.
    #[inline(always)]
    fn holds_a_block(&self) -> bool {
        self.output.len() >= WRITE_BYTES && self.may_be_written()
    }

    /// Whether its output may be written in the middle of a turn: what the session ends with may still be to come.
    #[inline(always)]
    fn may_be_written(&self) -> bool {
        self.connection.may_write_early()
    }
}

/// Appends the frames that `encode` writes to an output, which is lent a buffer if it has none.
#[inline(always)]
fn append_frames(
    output: &mut Output,
    buffers: &mut BufferPool,
    config: &Config,
    counters: &LaneCounters,
    encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    output.ensure_buffer(buffers);
    let result = encode(&config.codec, &mut output.bytes);
    if let Err(EncodeError::PayloadTooLarge { .. }) = &result {
        counters.sends_too_large.add(1);
    }
    // Before a frame that failed there may be others.
    output.handle_appended(&config.codec);
    result
}

/// Bytes of output that are written at once: the calls to the kernel hardly cost less for larger ones, and two of them fit
/// into the smallest second-level cache in use, with room for the kernel's copy.
const WRITE_BYTES: usize = 64 << 10;
