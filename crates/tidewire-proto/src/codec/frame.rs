//! What codecs with a length in front of the payload share: cutting it out on the way in, and the header on the way out.

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

/// What stands in front of a payload: up to twelve bytes, which fit registers, so that finding out what they are has no
/// need of memory.
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// The first eight, and the next four, in the order of memory.
    words: (u64, u32),
    bytes: usize,
}

impl Head {
    /// The first `bytes` of these, little-endian.
    #[inline(always)]
    pub(super) const fn new(first: u64, next: u32, bytes: usize) -> Self {
        Self {
            words: (first, next),
            bytes,
        }
    }

    /// Appends the frame that this makes of a payload.
    #[inline(always)]
    pub(super) fn push_with(self, payload: &[u8], out: &mut Vec<u8>) {
        self.push(out);
        out.extend_from_slice(payload);
    }

    /// Appends all twelve bytes, which takes a single check for room, and cuts off what is too much.
    #[inline(always)]
    pub(super) fn push(self, out: &mut Vec<u8>) {
        let (first, next) = self.words;
        let mut bytes = [0; HEAD_BYTES_MAX];
        bytes[..size_of::<u64>()].copy_from_slice(&first.to_le_bytes());
        bytes[size_of::<u64>()..].copy_from_slice(&next.to_le_bytes());
        let start = out.len();
        out.extend_from_slice(&bytes);
        out.truncate(start + self.bytes);
    }
}

/// The header of the native protocol with an id.
const HEAD_BYTES_MAX: usize = 12;
