//! Appending messages to the output of a session.
//!
//! Problem: a sender of single messages pays for each of them: it finds the session, checks it and lists it for the flush.
//! Approach: all of that takes one access to the session, and a [`SessionSender`](crate::SessionSender) does it once for
//! many messages. An output that holds a block is written at once and not at the end of the turn: more bytes would leave the
//! processor's cache before the kernel copies them. The current output, of the session whose message is being handled, is
//! not written early: that session is not read while its output is full.

use std::mem;

use thiserror::Error;
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::Message;

use super::buffers::BufferPool;
use super::ordering::bring_forward;
use super::outbox::Outbox;
use super::{LaneSessions, Output, Session, SessionId};
use crate::config::Config;
use crate::observe::LaneCounters;
use crate::transport::datagram::Packing;

/// A message could not be queued, or another act on a session or client was refused. No part of it was done. An error of
/// [`Context::send_to`](crate::Context::send_to), [`SessionHandle::send`](crate::SessionHandle::send),
/// [`SessionHandle::close`](crate::SessionHandle::close), [`Client::send`](crate::Client::send) and others.
///
/// ```
/// use tidewire::{Client, SendError};
///
/// let server = tidewire::serve("tcp://127.0.0.1:0", |_, _| Ok(()))?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// client.close().wait();
/// assert_eq!(client.send(b"too late"), Err(SendError::Ended));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The session has ended, or is not open yet.
    #[error("the session is not open")]
    NotOpen,
    /// The receiver reads too slowly, and the queue to it is full: the output of a session, or the queue to the lane of a client.
    #[error("the queue is full; try again when the receiver has taken some of it")]
    QueueFull,
    /// The client has ended.
    #[error("the client has ended")]
    Ended,
    /// The client belongs to another process: this one is its child by `fork`, and has no lane of the client. Connect after the
    /// fork.
    #[error("this client belongs to another process; connect after the fork")]
    OtherProcess,
    /// The codec cannot express the message.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Appends one frame. Refuses a frame that is larger than the receiver accepts, because it would end the connection.
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
    /// The output's bytes. A buffer without capacity means that there is no output.
    pub(crate) bytes: Vec<u8>,
    /// The ends of its datagrams, if it is sent as datagrams.
    pub(crate) packing: Option<Box<Packing>>,
    /// Largest frame that both sides accept.
    pub(crate) frame_bytes_max: usize,
    /// The output is full above this length of `bytes`, written part included.
    pub(crate) full_above: usize,
}

impl Taken {
    /// The value for a session of another lane, which has no output here.
    pub(crate) const NOTHING: Self = Self {
        bytes: Vec::new(),
        packing: None,
        frame_bytes_max: usize::MAX,
        full_above: usize::MAX,
    };
}

impl LaneSessions {
    /// Appends frames to the current output.
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

    /// Appends the frame of a message with a name to the current output.
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

    /// Appends encoded frames, each within the limit, to the output of a session of this lane.
    pub(crate) fn send_frames(&mut self, id: SessionId, frames: &[u8]) -> Result<(), SendError> {
        self.with_output_in_place(id.slot(), |sessions| {
            sessions.append_to(id, |_, _, out| {
                out.extend_from_slice(frames);
                Ok(())
            })
        })
    }

    /// Appends the frame that `encode` writes; its argument is the largest frame that the session accepts. It must not be
    /// called for the session whose messages are handled: see [`Self::with_output_in_place`].
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
        // The output is changed in place. Moving it would read its length together with its neighbours just after a
        // store to the length alone. The processor would stall on that for every message.
        let session = match slab.get_mut(id.slot()) {
            Some(session) if session.takes_from(id) => session,
            _ => return Err(self.refuse_to_send(SendError::NotOpen)),
        };
        let slot = id.slot();
        debug_assert!(!outbox.is_current(slot), "the outbox has its output");
        let output = &mut session.output;
        if output.len() > outbox.queue_bytes_max {
            return Err(self.refuse_to_send(SendError::QueueFull));
        }
        let limit = session.connection.handshake().frame_bytes_max();
        if !session.memberships.is_empty() {
            bring_forward(session, outbox, config, counters);
        }
        let output = &mut session.output;
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

    /// Takes the output of a session of this lane for a sender, which must return it with [`Self::put_back_and_write`]. The
    /// current session is not read while its output is full, so its own messages are never refused.
    pub(crate) fn take_output(&mut self, id: SessionId) -> Result<Taken, SendError> {
        let slot = id.slot();
        self.bring_forward(slot);
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
            // A buffer without capacity would mean that there is no output.
            bytes.reserve(1);
        }
        let full_above = match is_current {
            true => usize::MAX,
            false => output.sent.saturating_add(config.limits.queue_bytes_max),
        };
        let taken = Taken {
            bytes,
            packing: output.packing.take(),
            frame_bytes_max: session.connection.handshake().frame_bytes_max(),
            full_above,
        };
        self.mark_dirty(slot);
        Ok(taken)
    }

    /// Returns the output to its session.
    pub(crate) fn put_back(&mut self, slot: usize, bytes: Vec<u8>, packing: Option<Box<Packing>>) {
        let output = self.output_mut(slot);
        (output.bytes, output.packing) = (bytes, packing);
        if let Some(packing) = &mut output.packing {
            packing.end_appending(output.bytes.len());
        }
    }

    /// Returns the output to its session, and writes a full block at once. It must not be called for the current session.
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

    /// Writes a sender's full output, if that is allowed, and takes it again for the sender. Returns `None` if the session
    /// ended.
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

    /// Counts a message that was refused.
    #[cold]
    pub(crate) fn refuse_to_send(&self, error: SendError) -> SendError {
        self.counters.sends_refused.add(1);
        error
    }
}

impl Session {
    /// Whether it is the session with this id, not its successor, and accepts messages.
    #[inline(always)]
    fn takes_from(&self, id: SessionId) -> bool {
        self.id == id && self.connection.may_send()
    }

    /// Whether its output is large enough to be written in the middle of a turn.
    #[inline(always)]
    fn holds_a_block(&self) -> bool {
        self.output.len() >= WRITE_BYTES && self.may_be_written()
    }

    /// Whether its output may be written in the middle of a turn. Not if that could be its last write.
    #[inline(always)]
    fn may_be_written(&self) -> bool {
        self.connection.output().may_write_early()
    }
}

/// Appends the frames that `encode` writes to an output. The output gets a buffer if it has none.
#[inline(always)]
fn append_frames(
    output: &mut Output,
    buffers: &mut BufferPool,
    config: &Config,
    counters: &LaneCounters,
    encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    output.ensure_buffer(buffers);
    let mut appended = Unfinished::new(&mut output.bytes);
    let result = encode(&config.codec, appended.bytes);
    appended.is_finished = true;
    drop(appended);
    if let Err(EncodeError::PayloadTooLarge { .. }) = &result {
        counters.sends_too_large.add(1);
    }
    // There may be complete frames before one that failed.
    output.handle_appended(&config.codec);
    result
}

/// Bytes that are appended to. If the codec of a program panics, no partial frame may remain.
struct Unfinished<'a> {
    bytes: &'a mut Vec<u8>,
    before: usize,
    is_finished: bool,
}

impl<'a> Unfinished<'a> {
    #[inline(always)]
    fn new(bytes: &'a mut Vec<u8>) -> Self {
        let before = bytes.len();
        Self {
            bytes,
            before,
            is_finished: false,
        }
    }
}

impl Drop for Unfinished<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_finished {
            self.bytes.truncate(self.before);
        }
    }
}

/// Bytes of output that are written at once. Calls to the kernel are hardly cheaper per byte for larger blocks. Two blocks
/// of this size, and the kernel's copy, fit into the smallest second-level cache in use.
const WRITE_BYTES: usize = 64 << 10;
