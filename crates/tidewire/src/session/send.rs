//! Appending messages to the output of a session.
//!
//! Problem: a sender of single messages pays for each of them: it finds the session, checks it and lists it for the
//! flush. Approach: all of that takes one access to the session, and a [`SessionSender`](crate::SessionSender) does it
//! once for many messages. An output that holds a block is written at once and not at the end of the turn: more bytes
//! would leave the processor's cache before the kernel copies them. A handler's answers to its own session are not
//! written early: that session is not read while its output is full.

use thiserror::Error;
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::error::EncodeError;

use super::{LaneSessions, OutputLoan, Session, SessionId};
use crate::transport::datagram::Packing;

/// A message could not be queued, or another act on a session or client was refused. No part of it was done. An error
/// of [`Context::send_to`](crate::Context::send_to), [`SessionHandle::send`](crate::SessionHandle::send),
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
    /// The receiver reads too slowly, and the queue to it is full: the output of a session, or the queue to the lane of
    /// a client.
    #[error("the queue is full; try again when the receiver has taken some of it")]
    QueueFull,
    /// The client has ended.
    #[error("the client has ended")]
    Ended,
    /// The client belongs to another process: this one is its child by `fork`, and has no lane of the client. Connect
    /// after the fork.
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

impl LaneSessions {
    /// Copies to a session's output what its rooms and topics have for it, so that the next frame of the output comes
    /// after that.
    #[inline]
    pub(crate) fn bring_forward(&mut self, slot: usize) {
        if let Some(session) = self.table.get_mut(slot) {
            self.writer
                .bring_forward(session, &mut self.outputs, &mut self.logs);
        }
    }

    /// Appends the frame that `encode` writes; its argument is the largest frame that the session accepts.
    #[inline(always)]
    pub(crate) fn append_to(
        &mut self,
        id: SessionId,
        encode: impl FnOnce(usize, &AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), SendError> {
        let slot = id.slot();
        let session = match self.table.get(slot) {
            Some(session) if session.takes_from(id) => session,
            _ => return Err(self.outputs.refuse(SendError::NotOpen)),
        };
        let limit = session.connection.handshake().frame_bytes_max();
        let mut full_above = self.outputs.bytes_max();
        if !session.memberships.is_empty() {
            if self.outputs.is_full(slot) {
                return Err(self.outputs.refuse(SendError::QueueFull));
            }
            self.bring_forward(slot);
            // The deliveries may have filled the output. The message follows them and must not be lost.
            full_above = usize::MAX;
        }
        let has_block = self.outputs.offer(
            slot,
            full_above,
            #[inline(always)]
            |codec, out| encode(limit, codec, out),
        )?;
        if has_block {
            self.flush_block(slot);
        }
        Ok(())
    }

    /// Writes an output in the middle of a turn, if that is allowed. Not if that could be its last write.
    #[cold]
    #[inline(never)]
    pub(super) fn flush_block(&mut self, slot: usize) {
        if self.table[slot].connection.output().may_write_early() {
            self.flush(slot);
        }
    }

    /// Lends the output of a session of this lane to a sender, which must return it with [`Self::put_back_and_write`].
    pub(crate) fn lend_output(&mut self, id: SessionId) -> Result<OutputLoan, SendError> {
        let slot = id.slot();
        self.bring_forward(slot);
        let session = match self.table.get(slot) {
            Some(session) if session.id == id && self.outputs.is_current(slot) => session,
            Some(session) if session.takes_from(id) => session,
            _ => return Err(self.outputs.refuse(SendError::NotOpen)),
        };
        let frame_bytes_max = session.connection.handshake().frame_bytes_max();
        Ok(self.outputs.lend(slot, frame_bytes_max))
    }

    /// Returns the output to its session, and writes a full block at once. That of the session whose messages are
    /// handled is written at the end of the turn.
    pub(crate) fn put_back_and_write(
        &mut self,
        slot: usize,
        bytes: Vec<u8>,
        packing: Option<Box<Packing>>,
    ) {
        self.outputs.of_mut(slot).put_back(bytes, packing);
        if self.outputs.has_block(slot) && !self.outputs.is_current(slot) {
            self.flush_block(slot);
        }
    }

    /// Writes a sender's full output, if that is allowed, and lends it to the sender again. Returns `None` if the
    /// session ended.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_room(
        &mut self,
        slot: usize,
        bytes: Vec<u8>,
        packing: Option<Box<Packing>>,
    ) -> Option<OutputLoan> {
        self.outputs.of_mut(slot).put_back(bytes, packing);
        self.flush_block(slot);
        let session = &self.table[slot];
        let id = session.id;
        match session.connection.is_closed() {
            true => None,
            false => self.lend_output(id).ok(),
        }
    }
}

impl Session {
    /// Whether it is the session with this id, not its successor, and accepts messages.
    #[inline(always)]
    fn takes_from(&self, id: SessionId) -> bool {
        self.id == id && self.connection.may_send()
    }
}
