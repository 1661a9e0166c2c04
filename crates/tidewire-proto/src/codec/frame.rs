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
/// message is but for id and payload. Where that is more than eight bytes, they are kept as the last frame has them, which is
/// why this lives no longer than the input.
#[derive(Clone, Copy, Debug)]
pub struct LastFrame<'a> {
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
    /// The name in the last frame, for codecs that expect names again.
    pub(super) name_seen: &'a str,
    /// What is expected around id and payload, for the same codecs.
    pub(super) around: Around<'a>,
}

/// All of a frame but four bytes of id and the payload, in this order: head, id, middle, payload, tail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    pub(super) head: &'a [u8],
    pub(super) middle: &'a [u8],
    pub(super) tail: &'a [u8],
    /// The name that lies somewhere in these.
    pub(super) name: &'a str,
}

impl Around<'_> {
    /// Id and payload of the frame at the front of `input` that is like this but for them, and what is behind it.
    #[inline(always)]
    pub(super) fn split<'b>(
        &self,
        input: &'b [u8],
        payload_bytes: usize,
    ) -> Option<(u32, &'b [u8], &'b [u8])> {
        let rest = strip(self.head, input)?;
        let (id, rest) = rest.split_first_chunk()?;
        let rest = strip(self.middle, rest)?;
        let (payload, rest) = rest.split_at_checked(payload_bytes)?;
        let behind = strip(self.tail, rest)?;
        Some((u32::from_le_bytes(*id), payload, behind))
    }
}

impl<'a> LastFrame<'a> {
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
            name_seen: "",
            around: Around {
                head: &[],
                middle: &[],
                tail: &[],
                name: "",
            },
        }
    }

    /// Whether this is what came again of the last header, too; the next one is compared with it.
    #[inline(always)]
    pub(super) fn came_again(&mut self, word: u64) -> bool {
        std::mem::replace(&mut self.seen, word) == word
    }

    /// Notes what comes again of the header of `message`. Returns whether it is expected now.
    #[inline(always)]
    pub(super) fn note(&mut self, word: u64, message: &Message<'_>) -> bool {
        let came_again = self.came_again(word);
        if came_again {
            self.expected = word;
            self.payload_bytes = message.payload.len();
            self.kind = message.kind;
            self.has_id = message.kind.has_id();
        }
        came_again
    }
}

impl Default for LastFrame<'_> {
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

/// Where the four bytes of an id, little-endian, and the payload stand in a frame; see
/// [`AnyCodec::frame_places`](super::AnyCodec::frame_places).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePlaces {
    /// Bytes in front of the id.
    pub id_at: usize,
    /// Bytes in front of the payload.
    pub payload_at: usize,
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

/// What is behind `part` at the front of `input`. Parts of 8 to 32 bytes are compared without a call, as two ends that may
/// overlap.
#[inline(always)]
fn strip<'a>(part: &[u8], input: &'a [u8]) -> Option<&'a [u8]> {
    let (front, rest) = input.split_at_checked(part.len())?;
    let is_same = match part.len() {
        8..=16 => has_ends_of::<8>(front, part),
        17..=32 => has_ends_of::<16>(front, part),
        _ => front == part,
    };
    is_same.then_some(rest)
}

/// Whether the first and the last `N` bytes are those of the other.
#[inline(always)]
fn has_ends_of<const N: usize>(one: &[u8], other: &[u8]) -> bool {
    one.first_chunk::<N>() == other.first_chunk() && one.last_chunk::<N>() == other.last_chunk()
}

/// The header of the native protocol with an id.
const HEAD_BYTES_MAX: usize = 12;

/// What nothing is taken for that came before.
const NO_HEADER: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_in_front_whatever_its_length() {
        let part: Vec<u8> = (1..50).collect();
        for length in 0..part.len() {
            let part = &part[..length];
            let mut input = part.to_vec();
            input.extend_from_slice(b"rest");
            assert_eq!(strip(part, &input), Some(&b"rest"[..]));
            assert_eq!(strip(part, part), Some(&b""[..]));
            for at in 0..length {
                assert_eq!(strip(part, &part[..at]), None, "{at} of {length}");
                input[at] = 0;
                assert_eq!(strip(part, &input), None, "{at} of {length}");
                input[at] = part[at];
            }
        }
    }
}
