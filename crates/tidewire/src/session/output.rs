//! The output buffer of a session.

use tidewire_proto::codec::AnyCodec;

use super::buffers::BufferPool;
use crate::transport::datagram::Packing;

/// Bytes that wait for the socket. The first `sent` bytes are written already.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sent: usize,
    /// The ends of its datagrams, if it is sent as datagrams.
    pub(crate) packing: Option<Box<Packing>>,
    /// An upper bound on the bytes from other threads, which are reserved in the shared session.
    pub(crate) outside_bytes: usize,
    /// Room messages inside `bytes`, torn or copied. They count as delivered once the output is empty.
    pub(crate) room_messages: u64,
}

impl Output {
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

    /// Marks appended bytes as complete frames. Only datagrams need their ends.
    #[inline]
    pub(crate) fn handle_appended(&mut self, codec: &AnyCodec) {
        if let Some(packing) = &mut self.packing {
            packing.handle_appended(&self.bytes, codec);
        }
    }

    /// Takes a buffer from the pool, unless the output has one.
    #[inline(always)]
    pub(crate) fn ensure_buffer(&mut self, buffers: &mut BufferPool) {
        if self.bytes.capacity() == 0 {
            self.bytes = buffers.take();
        }
    }

    /// Bytes of whole frames that fit into the last datagram. Unlimited for streams.
    #[inline]
    pub(crate) fn datagram_room(&self) -> usize {
        self.packing
            .as_ref()
            .map_or(usize::MAX, |packing| packing.room())
    }

    /// Appends a whole frame, or several that share a datagram.
    pub(crate) fn push_frame(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
        if let Some(packing) = &mut self.packing {
            packing.handle_frame(self.bytes.len());
        }
    }

    /// Clears the output and returns its buffer.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        self.sent = 0;
        if let Some(packing) = &mut self.packing {
            packing.clear();
        }
        std::mem::take(&mut self.bytes)
    }

    /// Removes `count` written bytes. Moves the rest to the front when that is cheap compared to the written part.
    #[inline]
    pub(crate) fn consume(&mut self, count: usize) {
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
