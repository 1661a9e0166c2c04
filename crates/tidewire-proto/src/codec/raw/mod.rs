//! Raw: bytes as they come, without any framing.
//!
//! Problem: some peers send a stream without frames, and some datagrams are one message with any content. Approach: the
//! available bytes are one message. Over a stream, each read gives a message, so the cuts have no meaning. Only the
//! concatenation is the sent data. It is the only codec for which another cut of the bytes gives other frames.
//!
//! Rejected: waiting for more bytes before passing them on, because the wait could only be a guess.

use super::spec::BuiltIn;
use super::{Codec, Decoded, Format, FrameLayout, Framing, check_unnamed, is_bare, unsupported};
use crate::error::{DecodeError, EncodeError};
use crate::message::{Kind, Message};

/// The codec without frames. A message is the bytes of one read, up to the frame limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raw;

impl BuiltIn for Raw {
    const FORMAT: Format = FORMAT;
}

impl Codec for Raw {
    #[inline(always)]
    fn format(&self) -> &'static Format {
        &FORMAT
    }

    #[inline]
    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        if input.is_empty() {
            return Ok(Decoded::Incomplete { frame_bytes: 0 });
        }
        let payload = &input[..input.len().min(frame_bytes_max)];
        if payload.is_empty() {
            return Err(DecodeError::FrameTooLarge { bytes: 1, limit: 0 });
        }
        Ok(Decoded::Frame {
            message: Message::new(Kind::OneWay, 0, payload),
            consumed: payload.len(),
        })
    }

    #[inline(always)]
    fn layout(&self, frame: &[u8], _: &Message<'_>) -> Option<FrameLayout> {
        Some(FrameLayout::new(0..frame.len()))
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if !is_bare(message.kind) {
            return Err(unsupported(NAME, message.kind));
        }
        check_unnamed(message, NAME)?;
        if message.payload.is_empty() {
            return Err(EncodeError::EmptyFrame { codec: NAME });
        }
        out.extend_from_slice(message.payload);
        Ok(())
    }
}

const FORMAT: Format = Format {
    framing: Some(Framing::Datagrams),
    repeats_names: false,
    ..Format::new("raw")
};
const NAME: &str = FORMAT.name;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_bytes_are_one_message_up_to_the_limit() {
        let frame = |payload, consumed| {
            let message = Message::new(Kind::OneWay, 0, payload);
            Ok(Decoded::Frame { message, consumed })
        };
        assert_eq!(Raw.decode(b"hello", 100), frame(b"hello", 5));
        assert_eq!(Raw.decode(b"hello", 5), frame(b"hello", 5));
        assert_eq!(Raw.decode(b"hello", 2), frame(b"he", 2));
        assert_eq!(
            Raw.decode(b"", 100),
            Ok(Decoded::Incomplete { frame_bytes: 0 })
        );
        assert_eq!(
            Raw.decode(b"h", 0),
            Err(DecodeError::FrameTooLarge { bytes: 1, limit: 0 })
        );
    }

    #[test]
    fn a_payload_is_written_unchanged_and_an_empty_one_is_refused() {
        let mut out = b"<".to_vec();
        for kind in [Kind::OneWay, Kind::Request, Kind::Reply, Kind::Deliver] {
            Raw.encode(&Message::with_id(kind, 1, 2, b"hi"), &mut out)
                .unwrap();
        }
        assert_eq!(out, b"<hihihihi");
        assert_eq!(
            Raw.encode(&Message::new(Kind::OneWay, 0, b""), &mut out),
            Err(EncodeError::EmptyFrame { codec: "raw" })
        );
        assert_eq!(
            Raw.encode(&Message::new(Kind::Error, 0, b"no"), &mut out),
            Err(unsupported("raw", Kind::Error))
        );
        assert_eq!(
            Raw.encode_gap(1, 2, &mut out),
            Err(unsupported("raw", Kind::Gap))
        );
        assert_eq!(out, b"<hihihihi");
    }
}
