//! The output of a session.

mod adapt;
mod datagrams;

use tidewire_io::append::FramePattern;
use tidewire_proto::codec::{AnyCodec, Codec, Subscription};
use tidewire_proto::error::EncodeError;
use tidewire_proto::room::Advance;

pub(super) use datagrams::SendOutcome;

use super::SessionShared;
use super::buffers::BufferPool;
use crate::config::CodecNumber;
use crate::transport::datagram::Packing;

/// Bytes that wait for the socket. The first `sent` bytes are written already.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
    /// The ends of its datagrams, if it is sent as datagrams.
    packing: Option<Box<Packing>>,
    codec: CodecNumber,
    /// An upper bound on the bytes from other threads, which are reserved in the shared session.
    outside_bytes: usize,
    /// Room messages inside `bytes`, torn or copied. They count as delivered once the output is empty. Each has a byte
    /// at least, so 32 bits are enough.
    room_messages: u32,
    /// Whether the session is listed for the flush at the end of the turn.
    is_listed: bool,
}

impl Output {
    pub(crate) fn new(codec: CodecNumber, packing: Option<Box<Packing>>) -> Self {
        Self {
            codec,
            packing,
            ..Self::default()
        }
    }

    /// The number of the codec of its frames.
    #[inline(always)]
    pub(super) fn codec_number(&self) -> CodecNumber {
        self.codec
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    #[inline]
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Memory of its buffer.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether more than `bytes_max` bytes wait. The written part is subtracted only if that could change the result.
    #[inline(always)]
    pub(super) fn is_above(&self, bytes_max: usize) -> bool {
        self.bytes.len() > bytes_max && {
            std::hint::cold_path();
            self.len() > bytes_max
        }
    }

    #[inline]
    pub(crate) fn has_datagrams(&self) -> bool {
        self.packing.is_some()
    }

    /// Lists the session for the flush. Returns whether it was not listed before.
    #[inline(always)]
    pub(super) fn list(&mut self) -> bool {
        let was_listed = self.is_listed;
        if !was_listed {
            self.is_listed = true;
        }
        !was_listed
    }

    pub(super) fn unlist(&mut self) {
        self.is_listed = false;
    }

    /// Gives the output a buffer, if it has none.
    #[inline(always)]
    pub(super) fn ensure_buffer(&mut self, buffers: &mut BufferPool) {
        if self.bytes.capacity() == 0 {
            self.bytes = buffers.take();
        }
    }

    /// Appends the frame of a small reply, if the output has room for it in its buffer. A datagram's end is not
    /// recorded.
    #[inline(always)]
    pub(super) fn append_small(&mut self, pattern: &FramePattern, id: u32, payload: &[u8]) -> bool {
        pattern.append_small(id, payload, &mut self.bytes)
    }

    /// As [`Self::append_small`], for a reply of any length.
    #[inline(always)]
    pub(super) fn append_pattern(
        &mut self,
        pattern: &FramePattern,
        id: u32,
        payload: &[u8],
    ) -> bool {
        pattern.append(id, payload, &mut self.bytes)
    }

    /// Appends the frames that `encode` writes. There may be whole frames before one that failed.
    #[inline(always)]
    pub(super) fn append(
        &mut self,
        codec: &AnyCodec,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mut appended = AppendGuard::new(&mut self.bytes);
        let result = encode(codec, appended.bytes);
        appended.is_finished = true;
        drop(appended);
        if let Some(packing) = &mut self.packing {
            packing.handle_appended(&self.bytes, codec);
        }
        result
    }

    pub(super) fn append_frames(&mut self, codec: &AnyCodec, frames: &[u8]) {
        self.bytes.extend_from_slice(frames);
        if let Some(packing) = &mut self.packing {
            packing.handle_appended(&self.bytes, codec);
        }
    }

    /// Appends a whole frame, or several that share a datagram.
    pub(super) fn push_frame(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
        if let Some(packing) = &mut self.packing {
            packing.handle_frame(self.bytes.len());
        }
    }

    /// Copies a frame of a log after the header of its subscriber.
    pub(crate) fn push_delivery(
        &mut self,
        codec: &AnyCodec,
        subscription: Subscription,
        shared: &[u8],
    ) {
        codec.delivery_header(subscription, shared, &mut self.bytes);
        self.push_frame(shared);
    }

    /// Bytes of whole frames that fit into the last datagram. Unlimited for streams.
    #[inline]
    pub(super) fn datagram_room(&self) -> usize {
        self.packing
            .as_ref()
            .map_or(usize::MAX, |packing| packing.room())
    }

    /// Moves a subscriber past written bytes. The rest of a torn frame goes into the output, and its message counts
    /// when that rest has left. Returns the number of messages that were delivered.
    #[inline(always)]
    pub(super) fn take_torn(&mut self, advance: impl FnOnce(&mut Vec<u8>) -> Advance) -> u64 {
        let advance = advance(&mut self.bytes);
        let torn = u32::from(advance.torn);
        self.room_messages += torn;
        advance.messages - u64::from(torn)
    }

    /// Notes that room messages were copied to the output.
    pub(crate) fn add_room_messages(&mut self, messages: u64) {
        self.room_messages += messages as u32;
    }

    /// The room messages in the output, which do not count for it any more.
    pub(super) fn take_room_messages(&mut self) -> u64 {
        std::mem::take(&mut self.room_messages).into()
    }

    /// Notes bytes of other threads that come next.
    pub(super) fn add_outside(&mut self, bytes: usize) {
        self.outside_bytes += bytes;
    }

    /// Releases the reservations of other threads for bytes that have left the output.
    #[inline]
    pub(super) fn release_outside(&mut self, shared: Option<&SessionShared>) {
        let outside_bytes = self.outside_bytes;
        let waiting = outside_bytes.min(self.len());
        if waiting < outside_bytes {
            if let Some(shared) = shared {
                shared.release(outside_bytes - waiting);
            }
            self.outside_bytes = waiting;
        }
    }

    /// Lends its bytes and the ends of its datagrams to a sender. `full_above` is the largest number of unsent bytes to
    /// which the sender appends.
    pub(super) fn lend(&mut self, frame_bytes_max: usize, full_above: usize) -> OutputLoan {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() == 0 {
            // A buffer without capacity would mean that there is no output.
            bytes.reserve(1);
        }
        OutputLoan {
            bytes,
            packing: self.packing.take(),
            frame_bytes_max,
            full_above: self.sent.saturating_add(full_above),
        }
    }

    /// Takes back what it lent.
    pub(super) fn put_back(&mut self, bytes: Vec<u8>, packing: Option<Box<Packing>>) {
        (self.bytes, self.packing) = (bytes, packing);
        if let Some(packing) = &mut self.packing {
            packing.end_appending(self.bytes.len());
        }
    }

    /// Clears the output and returns its buffer.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        self.sent = 0;
        if let Some(packing) = &mut self.packing {
            packing.clear();
        }
        std::mem::take(&mut self.bytes)
    }

    /// Removes `count` written bytes. Moves the rest to the front when that is cheap compared to the written part.
    #[inline]
    pub(super) fn consume(&mut self, count: usize) {
        self.sent += count;
        if self.is_empty() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
impl Output {
    /// An output whose first bytes are written already.
    pub(crate) fn partly_sent(bytes: Vec<u8>, sent: usize) -> Self {
        Self {
            bytes,
            sent,
            ..Self::default()
        }
    }

    /// The length of the first datagrams, and where the last of them ends.
    pub(crate) fn first_run(&self) -> Option<(usize, usize)> {
        let run = self.packing.as_ref()?.run(0)?;
        Some((run.segment_bytes(), run.end()))
    }
}

/// The output of a session while a [`SessionSender`](crate::SessionSender) works on it.
#[derive(Debug)]
pub(crate) struct OutputLoan {
    /// The output's bytes. A buffer without capacity means that there is no output.
    pub(crate) bytes: Vec<u8>,
    /// The ends of its datagrams, if it is sent as datagrams.
    pub(crate) packing: Option<Box<Packing>>,
    /// Largest frame that both sides accept.
    pub(crate) frame_bytes_max: usize,
    /// The output is full above this length of `bytes`, written part included.
    pub(crate) full_above: usize,
}

impl OutputLoan {
    /// The value for a session of another lane, which has no output here.
    pub(crate) const NOTHING: Self = Self {
        bytes: Vec::new(),
        packing: None,
        frame_bytes_max: usize::MAX,
        full_above: usize::MAX,
    };
}

/// Bytes that are appended to. If the codec of a program panics, no partial frame may remain.
struct AppendGuard<'a> {
    bytes: &'a mut Vec<u8>,
    before: usize,
    is_finished: bool,
}

impl<'a> AppendGuard<'a> {
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

impl Drop for AppendGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_finished {
            self.bytes.truncate(self.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_keeps_what_was_not_sent() {
        let mut output = Output {
            bytes: b"0123456789".to_vec(),
            ..Output::default()
        };
        output.consume(4);
        assert_eq!(output.unsent(), b"456789");
        output.consume(3);
        assert_eq!((output.unsent(), output.sent), (&b"789"[..], 0));
        output.consume(3);
        assert!(output.is_empty());
    }
}
