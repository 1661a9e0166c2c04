//! What codecs with a length in front of the payload share.

use super::Decoded;
use crate::error::DecodeError;
use crate::message::Message;

/// The payload of a frame whose header says how long it is, or what is missing.
pub(super) enum Framed<'a> {
    /// All of it is there.
    Whole { payload: &'a [u8], consumed: usize },
    /// More must arrive.
    Part { frame_bytes: usize },
}

impl<'a> Framed<'a> {
    /// Cuts the payload out of `input` behind `header_bytes`, if the limit allows such a frame.
    ///
    /// `payload_bytes` is at most 2^32, so its sum with a header cannot overflow.
    #[inline(always)]
    pub(super) fn cut(
        input: &'a [u8],
        header_bytes: usize,
        payload_bytes: u64,
        frame_bytes_max: usize,
    ) -> Result<Self, DecodeError> {
        let frame_bytes = header_bytes as u64 + payload_bytes;
        if frame_bytes > frame_bytes_max as u64 {
            return Err(DecodeError::FrameTooLarge {
                bytes: frame_bytes,
                limit: frame_bytes_max as u64,
            });
        }
        // It is at most `frame_bytes_max`, which is a usize.
        let frame_bytes = frame_bytes as usize;
        Ok(match input.get(header_bytes..frame_bytes) {
            Some(payload) => Self::Whole {
                payload,
                consumed: frame_bytes,
            },
            None => Self::Part { frame_bytes },
        })
    }

    /// The frame that `message` makes of the payload.
    #[inline(always)]
    pub(super) fn decoded(self, message: impl FnOnce(&'a [u8]) -> Message<'a>) -> Decoded<'a> {
        match self {
            Self::Whole { payload, consumed } => Decoded::Frame {
                message: message(payload),
                consumed,
            },
            Self::Part { frame_bytes } => Decoded::Incomplete { frame_bytes },
        }
    }
}
