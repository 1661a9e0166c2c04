//! The scalability protocols of nanomsg and nng over TCP, as a SUB socket speaks them.
//!
//! ```text
//! both:   0, "SP", version 0, type of socket (u16, big-endian), 0, 0
//! server: a message per publication: length (u64, big-endian), body
//! ```
//!
//! A subscription is the subscriber's own affair: the publisher sends everything to everybody.

use super::dialect::{Dialect, DialectError, Next, Role, whole, within_limit};

#[derive(Debug, Default)]
pub(super) struct Sp {
    /// Whether the server has said what it is.
    is_open: bool,
}

impl Dialect for Sp {
    fn greet(&mut self, _: Role, out: &mut Vec<u8>) {
        out.extend_from_slice(&head(SUB));
    }

    #[inline]
    fn next<'a>(&mut self, bytes: &'a [u8], _: &mut Vec<u8>) -> Result<Next<'a>, DialectError> {
        let (first, rest) = whole!(bytes.split_first_chunk::<HEAD_BYTES>());
        if !self.is_open {
            if *first != head(PUB) {
                return Err(DialectError::Malformed("a head that is not of a publisher"));
            }
            self.is_open = true;
            return Ok(Next::Other(HEAD_BYTES));
        }
        let length = within_limit(u64::from_be_bytes(*first))?;
        Ok(Next::Message(
            whole!(rest.get(..length)),
            HEAD_BYTES + length,
        ))
    }

    fn is_ready(&self) -> bool {
        self.is_open
    }
}

/// The first bytes that a socket of this type sends.
fn head(kind: u8) -> [u8; HEAD_BYTES] {
    [0, b'S', b'P', 0, 0, kind, 0, 0]
}

/// Types of sockets.
const PUB: u8 = 0x20;
const SUB: u8 = 0x21;

/// Bytes of the head, and of a length as well.
const HEAD_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::super::dialect::tests::{error, hear, survives_anything};
    use super::*;

    const CONVERSATION: &[u8] = b"\0SP\0\0\x20\0\0\0\0\0\0\0\0\0\x04news\0\0\0\0\0\0\0\0";

    #[test]
    fn everything_that_is_published_comes_out() {
        let (heard, out, ready) = hear::<Sp>(CONVERSATION);
        assert_eq!(heard, [&b"news"[..], b""]);
        assert_eq!(out, b"\0SP\0\0\x21\0\0");
        assert!(ready);
        let (_, _, ready) = hear::<Sp>(&CONVERSATION[..7]);
        assert!(!ready);
    }

    #[test]
    fn who_is_no_publisher_is_refused_and_nothing_panics() {
        for bad in [
            &b"\0SP\0\0\x30\0\0"[..],
            b"\0SQ\0\0\x20\0\0",
            b"\xff\0\0\0\0\0\0\0",
        ] {
            assert!(matches!(error::<Sp>(bad), DialectError::Malformed(_)));
        }
        let long = [&CONVERSATION[..8], &[0xff; 8]].concat();
        assert_eq!(
            error::<Sp>(&long),
            DialectError::TooLarge { bytes: u64::MAX }
        );
        survives_anything::<Sp>(CONVERSATION);
    }
}
