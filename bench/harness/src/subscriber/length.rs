//! Frames with their length of four bytes, big-endian, before them: hand-written publishers. Being connected is being
//! subscribed.

use super::dialect::{Dialect, DialectError, Next, Role, whole, within_limit};

#[derive(Debug, Default)]
pub(super) struct Length;

impl Dialect for Length {
    fn greet(&mut self, _: Role, _: &mut Vec<u8>) {}

    #[inline]
    fn next<'a>(&mut self, bytes: &'a [u8], _: &mut Vec<u8>) -> Result<Next<'a>, DialectError> {
        let (length, rest) = whole!(bytes.split_first_chunk());
        let length = within_limit(u32::from_be_bytes(*length).into())?;
        Ok(Next::Message(
            whole!(rest.get(..length)),
            HEADER_BYTES + length,
        ))
    }

    fn is_ready(&self) -> bool {
        true
    }
}

const HEADER_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::dialect::tests::{error, hear, survives_anything};
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in() {
        let (heard, out, ready) = hear::<Length>(b"\0\0\0\x02hi\0\0\0\0\0\0\0\x03you\0\0");
        assert_eq!(heard, [&b"hi"[..], b"", b"you"]);
        assert!(out.is_empty() && ready);
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_and_nothing_panics() {
        assert_eq!(
            error::<Length>(b"\xff\xff\xff\xff"),
            DialectError::TooLarge {
                bytes: u32::MAX.into()
            }
        );
        survives_anything::<Length>(b"\0\0\0\x02hi\0\0\0\x03you");
    }
}
