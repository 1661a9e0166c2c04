//! What codecs with a length in front of the payload share: cutting it out on the way in, and the header on the way out.

use super::Decoded;
use crate::error::DecodeError;
use crate::message::{Kind, Message};

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

/// What a codec found out about the last frames of a stream, for [`Codec::decode_alike`](super::Codec::decode_alike).
///
/// Messages of one session often have headers that are the same byte for byte. Such a header was checked before, and a
/// processor that expects it to be the same goes on to the frame behind it before it has read this one. Only what came
/// twice in a row is expected again: where lengths vary, a guess that fails costs more than it saves.
///
/// A codec says which bits of a header come again: all but those of an id. They must say where the frame ends and what its
/// message is but for id and payload.
#[derive(Clone, Copy, Debug)]
pub struct LastFrame {
    /// What comes again of the last header, of which eight bytes at most are looked at.
    seen: u64,
    /// The same of the header that is expected; the rest says what it means.
    pub(super) expected: u64,
    /// Which bits of the first eight bytes these are, for codecs whose headers have several forms.
    pub(super) mask: u64,
    /// Bytes in front of the payload, for the same codecs.
    pub(super) header_bytes: usize,
    pub(super) payload_bytes: usize,
    pub(super) kind: Kind,
    pub(super) has_id: bool,
}

impl LastFrame {
    /// Nothing was decoded yet, or the largest frame that is taken is another one now.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            seen: NO_HEADER,
            expected: NO_HEADER,
            mask: 0,
            header_bytes: 0,
            // No input is so long.
            payload_bytes: usize::MAX,
            kind: Kind::OneWay,
            has_id: false,
        }
    }

    /// Notes what comes again of the header of `message`. Returns whether it is expected now.
    #[inline(always)]
    pub(super) fn note(&mut self, word: u64, message: &Message<'_>) -> bool {
        let came_again = word == self.seen;
        if came_again {
            self.expected = word;
            self.payload_bytes = message.payload.len();
            self.kind = message.kind;
            self.has_id = message.kind.has_id();
        }
        self.seen = word;
        came_again
    }
}

impl Default for LastFrame {
    fn default() -> Self {
        Self::new()
    }
}

/// What stands in front of the payload of a frame that is nothing else, for whoever frames many alike; see
/// [`AnyCodec::frame_head`](super::AnyCodec::frame_head).
///
/// But for the id, it is the same for all messages that agree in kind, flags, channel and length of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Its first eight bytes, little-endian.
    pub word: u64,
    /// How many bytes it has. Those from the ninth to the twelfth are the message's id, little-endian.
    pub bytes: usize,
    /// Whether the lowest byte of the id is the second one of `word`.
    pub has_sequence: bool,
    /// The bits of the number before an id that must be 0, or the id cannot be expressed.
    pub id_mask: u32,
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

    /// The same for those outside; bytes behind the eighth are an id, and all ids can be expressed.
    pub(super) const fn public(self) -> FrameHead {
        FrameHead {
            word: self.words.0,
            bytes: self.bytes,
            has_sequence: false,
            id_mask: 0,
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

/// What nothing is taken for that came before.
const NO_HEADER: u64 = u64::MAX;
