//! Frames: the result of decoding, and code that codecs with a length before the payload share.

use crate::error::DecodeError;
use crate::message::Message;

/// The result of `decode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// There is no whole frame yet. `frame_bytes` is the frame's whole length if the header already contains it, else
    /// 0.
    Incomplete {
        /// The whole length of the partial frame, or 0 if it is not known yet.
        frame_bytes: usize,
    },
    /// One frame.
    Frame {
        /// The frame, which borrows the input.
        message: Message<'a>,
        /// The number of bytes of the input that it took.
        consumed: usize,
    },
}

/// The payload of a frame whose header contains its length, or the missing length.
pub(super) enum Framed<'a> {
    /// The frame is complete.
    Whole { payload: &'a [u8], consumed: usize },
    /// More bytes must arrive.
    Part { frame_bytes: usize },
}

impl<'a> Framed<'a> {
    /// Cuts the payload after `header_bytes` out of `input`, if the limit allows the frame.
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
        // The value is at most `frame_bytes_max`, which is a usize.
        let frame_bytes = frame_bytes as usize;
        Ok(match input.get(header_bytes..frame_bytes) {
            Some(payload) => Self::Whole {
                payload,
                consumed: frame_bytes,
            },
            None => Self::Part { frame_bytes },
        })
    }

    /// Returns the frame with the message that `message` makes of the payload.
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

/// The header in front of a payload: up to twelve bytes, which fit registers, so that computing them needs no memory.
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// The first eight bytes and the next four, in memory order.
    words: (u64, u32),
    bytes: usize,
}

impl Head {
    /// Takes the first `bytes` of these words, little-endian.
    #[inline(always)]
    pub(super) const fn new(first: u64, next: u32, bytes: usize) -> Self {
        Self {
            words: (first, next),
            bytes,
        }
    }

    /// Appends the frame of this header and a payload.
    #[inline(always)]
    pub(super) fn push_with(self, payload: &[u8], out: &mut Vec<u8>) {
        self.push(out);
        out.extend_from_slice(payload);
    }

    /// Appends all twelve bytes, which takes a single capacity check, and truncates the surplus.
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
