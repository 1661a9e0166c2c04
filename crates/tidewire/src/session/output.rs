//! What waits to be written to a session.
//!
//! A sender takes the bytes out, to have them in registers. What it leaves is an empty output like any other, with a mark:
//! safe code can keep a sender from ever giving anything back, and must not bring the lane down by that. Rejected: lending
//! nothing, which would cost every message a look at the output in memory.

use tidewire_proto::codec::AnyCodec;

use crate::transport::datagram::Packing;

/// Bytes waiting for the socket. `sent` of them already went.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sent: usize,
    /// While a sender has the bytes, how many of them went. What is here then is an empty output of a stream like any other.
    lent: Option<usize>,
    /// Where its datagrams end, if it is sent as datagrams.
    pub(crate) packing: Option<Box<Packing>>,
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

    /// Whole frames were appended. Streams do not mind where they end.
    #[inline]
    pub(crate) fn handle_appended(&mut self, codec: &AnyCodec) {
        if let Some(packing) = &mut self.packing {
            packing.handle_appended(&self.bytes, codec);
        }
    }

    /// Lends the bytes to a sender, and where their datagrams end. They must have capacity when they come back.
    pub(crate) fn lend(&mut self) -> (Vec<u8>, Option<Box<Packing>>) {
        self.lent = Some(std::mem::take(&mut self.sent));
        (std::mem::take(&mut self.bytes), self.packing.take())
    }

    /// Takes lent bytes back. Without capacity they are not those that were lent: a codec that panicked has taken them along.
    pub(crate) fn take_back(&mut self, bytes: Vec<u8>, packing: Option<Box<Packing>>) {
        if bytes.capacity() > 0 {
            (self.bytes, self.packing) = (bytes, packing);
            self.sent = self.lent.take().unwrap_or_default();
            if let Some(packing) = &mut self.packing {
                packing.settle(self.bytes.len());
            }
        }
    }

    /// Whether a sender has the bytes. When there is none, they are lost, and maybe the rest of a frame with them.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Forgets what waits, and gives its buffer away.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        self.sent = 0;
        if let Some(packing) = &mut self.packing {
            packing.clear();
        }
        std::mem::take(&mut self.bytes)
    }

    /// `count` more bytes went. Moves the rest to the front when that is cheap compared to what went.
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

    #[test]
    fn output_that_is_lent_is_empty_until_it_comes_back() {
        let mut output = Output {
            bytes: b"0123456789".to_vec(),
            sent: 4,
            ..Output::default()
        };
        let (mut bytes, packing) = output.lend();
        assert!(output.is_lent() && output.is_empty());
        assert_eq!((output.len(), output.unsent()), (0, &b""[..]));
        bytes.push(b'a');
        output.take_back(bytes, packing);
        assert!(!output.is_lent());
        assert_eq!(output.unsent(), b"456789a");
        drop(output.lend());
        output.take_back(Vec::new(), None);
        assert!(output.is_lent() && output.is_empty(), "that was not lent");
    }
}
