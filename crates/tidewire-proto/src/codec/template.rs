//! Frame templates: frames of a known form, read and written without the codec.
//!
//! Problem: messages of one session often differ only in id and payload, and the header costs more than the rest of the
//! message. Approach: a codec says once where id and payload are in a frame ([`Codec::layout`]). A [`FrameTemplate`] of
//! that frame reads the next frames by comparing all other bytes with those of the first, and writes frames by copying
//! them. The length of the payload is one of the bytes that do not change. A template is therefore for payloads of one
//! length, and does not depend on the encoding of the length.
//!
//! If all compared bytes are within the first eight, one comparison of a word is enough. For a known codec the compiler
//! folds the layout into that comparison as long as the template is a local variable of the loop.
//!
//! Rejected: a template that owns its bytes, because every message with a name would check it again. Rejected: letting
//! the codec read and write known frames, with three methods that only the codecs of this library could implement.

use std::ops::Range;

use super::Codec;
use crate::message::Message;

/// The positions of id and payload in a frame; see [`Codec::layout`]. All bytes after the payload belong to the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    payload: Range<usize>,
    id: IdPosition,
    ignored: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdPosition {
    Nowhere,
    /// In four bytes.
    Word {
        at: usize,
    },
    /// In one byte, for ids from `first` on.
    Byte {
        at: usize,
        first: u32,
    },
}

impl FrameLayout {
    /// A frame with this payload and without an id. It is read with id 0, and written for any id of the message.
    #[inline(always)]
    #[must_use]
    pub const fn new(payload: Range<usize>) -> Self {
        Self {
            payload,
            id: IdPosition::Nowhere,
            ignored: 0..0,
        }
    }

    /// Adds an id: the four bytes from `at` on, little-endian, in front of the payload.
    #[inline(always)]
    #[must_use]
    pub const fn with_id(self, at: usize) -> Self {
        let id = IdPosition::Word { at };
        Self { id, ..self }
    }

    /// Adds an id whose lowest byte is the byte at `at`, in front of the payload. The byte stands for one of the 256
    /// ids from `first` on. The frame can express no other ids.
    #[inline(always)]
    #[must_use]
    pub const fn with_id_byte(self, at: usize, first: u32) -> Self {
        let id = IdPosition::Byte { at, first };
        Self { id, ..self }
    }

    /// Adds bytes in front of the payload that decoding ignores, so that they may differ between frames.
    #[inline(always)]
    #[must_use]
    pub const fn with_ignored(self, ignored: Range<usize>) -> Self {
        Self { ignored, ..self }
    }

    /// The range of the payload.
    #[must_use]
    pub fn payload(&self) -> Range<usize> {
        self.payload.clone()
    }

    /// The range of the id: empty, one byte or four.
    #[must_use]
    pub const fn id(&self) -> Range<usize> {
        match self.id {
            IdPosition::Nowhere => 0..0,
            IdPosition::Word { at } => at..at.saturating_add(ID_BYTES),
            IdPosition::Byte { at, .. } => at..at.saturating_add(1),
        }
    }

    /// The smallest of the 256 ids that an id of one byte stands for.
    #[must_use]
    pub const fn first_id(&self) -> u32 {
        match self.id {
            IdPosition::Byte { first, .. } => first,
            _ => 0,
        }
    }

    /// The range of bytes that decoding ignores.
    #[must_use]
    pub fn ignored(&self) -> Range<usize> {
        self.ignored.clone()
    }

    /// Whether a frame of `frame_bytes` with a payload of `payload_bytes` can have this layout.
    #[inline(always)]
    fn fits(&self, frame_bytes: usize, payload_bytes: usize) -> bool {
        let is_in_front =
            |part: &Range<usize>| part.start <= part.end && part.end <= self.payload.start;
        self.payload.start <= self.payload.end
            && self.payload.end <= frame_bytes
            && self.payload.end - self.payload.start == payload_bytes
            && is_in_front(&self.id())
            && is_in_front(&self.ignored)
    }
}

/// The parts of a frame that its template compares and reads. A loop over frames of one form has no branch for the
/// form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateForm {
    /// The header is a word, and there is no id.
    Word,
    /// The header is a word and the id after it.
    WordAndId,
    /// The header is within a word, with an id or without one.
    InWord,
    /// Everything else.
    Other,
}

/// A frame whose variants differ only in id and payload. See the module's documentation.
#[derive(Clone, Debug)]
pub struct FrameTemplate<'a> {
    frame: &'a [u8],
    message: Message<'a>,
    layout: FrameLayout,
    payload_bytes: usize,
    /// Whether only the first [`WORD_BYTES`] of a frame are compared.
    is_short: bool,
    /// The required value of the first eight bytes, and a mask of the compared bits.
    word: u64,
    mask: u64,
    /// Whether the id is the four bytes after them. Otherwise it is within them.
    is_id_behind: bool,
    /// The shift of the id in the word, and the mask of its bits.
    id_shift: u32,
    id_bits: u32,
    first_id: u32,
    /// The number of bytes before the payload, if they are at most a word.
    short_header_bytes: usize,
    /// The compared parts of a frame that is not short.
    parts: Parts<'a>,
}

/// The compared parts of a longer frame. They surround a hole, which is an id or ignored bytes, and the payload: the
/// bytes before the hole, between the hole and the payload, and after the payload.
#[derive(Clone, Copy, Debug)]
struct Parts<'a> {
    head: &'a [u8],
    hole_bytes: usize,
    middle: &'a [u8],
    tail: &'a [u8],
}

impl<'a> Parts<'a> {
    const NONE: Self = Self {
        head: &[],
        hole_bytes: 0,
        middle: &[],
        tail: &[],
    };

    #[inline]
    fn of(frame: &'a [u8], layout: &FrameLayout) -> Option<Self> {
        let (id, ignored) = (layout.id(), layout.ignored());
        let hole = match (id.is_empty(), ignored.is_empty()) {
            (true, _) => ignored,
            (false, true) => id,
            (false, false) => return None,
        };
        Some(Self {
            head: frame.get(..hole.start)?,
            hole_bytes: hole.len(),
            middle: frame.get(hole.end..layout.payload.start)?,
            tail: frame.get(layout.payload.end..)?,
        })
    }
}

impl<'a> FrameTemplate<'a> {
    /// Makes the template of `frame`, if the codec knows a layout. `codec` decodes the frame to `message`, or has
    /// encoded it.
    ///
    /// Frames of less than eight bytes have no template.
    #[inline(always)]
    #[must_use]
    pub fn learn<C: Codec + ?Sized>(
        codec: &C,
        frame: &'a [u8],
        message: &Message<'a>,
    ) -> Option<Self> {
        let layout = codec.layout(frame, message)?;
        let first = frame.first_chunk::<WORD_BYTES>()?;
        let payload_bytes = message.payload.len();
        if !layout.fits(frame.len(), payload_bytes) {
            return None;
        }
        let header_bytes = layout.payload.start;
        let word_bits = bits_of(&(0..header_bytes)) & !bits_of(&layout.ignored);
        let is_word = header_bytes <= WORD_BYTES;
        // Each form of id has its own arm: for a known codec, the compiler then knows the common parts.
        let (is_header_short, id_bits, id_shift, first_id) = match layout.id {
            IdPosition::Nowhere => (is_word, 0, 0, 0),
            IdPosition::Word { at: WORD_BYTES } => (header_bytes == WORD_BYTES + ID_BYTES, 0, 0, 0),
            IdPosition::Word { at } => (is_word, u32::MAX, bits_before(at), 0),
            IdPosition::Byte { at, first } => (is_word, 0xFF, bits_before(at), first),
        };
        let is_id_behind = layout.id == IdPosition::Word { at: WORD_BYTES };
        let is_short = is_header_short && layout.payload.end == frame.len();
        let mask = word_bits & !u64::from(id_bits).unbounded_shl(id_shift);
        let parts = if is_short {
            Parts::NONE
        } else {
            Parts::of(frame, &layout)?
        };
        Some(Self {
            frame,
            message: *message,
            layout,
            payload_bytes,
            is_short,
            word: u64::from_le_bytes(*first) & mask,
            mask,
            is_id_behind,
            id_shift,
            id_bits,
            first_id,
            short_header_bytes: header_bytes.min(WORD_BYTES),
            parts,
        })
    }

    /// Makes a template like [`FrameTemplate::learn`], for [`FrameTemplate::read`]. Frames that do not contain their
    /// length have none.
    #[inline(always)]
    #[must_use]
    pub fn expect<C: Codec + ?Sized>(
        codec: &C,
        frame: &'a [u8],
        message: &Message<'a>,
    ) -> Option<Self> {
        if codec.format().fills_datagrams() {
            return None;
        }
        Self::learn(codec, frame, message)
    }

    /// The form of the templates of frames with this layout and length.
    #[inline(always)]
    #[must_use]
    pub fn form(layout: &FrameLayout, frame_bytes: usize) -> TemplateForm {
        let (start, is_plain) = (layout.payload.start, layout.ignored.is_empty());
        match layout.id {
            _ if layout.payload.end != frame_bytes => TemplateForm::Other,
            IdPosition::Nowhere if start == WORD_BYTES && is_plain => TemplateForm::Word,
            IdPosition::Word { at: WORD_BYTES } if start == WORD_BYTES + ID_BYTES && is_plain => {
                TemplateForm::WordAndId
            }
            _ if start <= WORD_BYTES => TemplateForm::InWord,
            _ => TemplateForm::Other,
        }
    }

    /// Whether the template has this form. Ask once before a loop over [`Self::read`]: the compiler then knows the form
    /// inside it.
    #[inline(always)]
    #[must_use]
    pub fn has_form(&self, form: TemplateForm) -> bool {
        let is_word = self.is_short && self.mask == u64::MAX;
        match form {
            TemplateForm::Word => {
                is_word
                    && !self.is_id_behind
                    && self.short_header_bytes == WORD_BYTES
                    && (self.id_bits, self.first_id) == (0, 0)
            }
            TemplateForm::WordAndId => is_word && self.is_id_behind,
            TemplateForm::InWord => self.is_short && !self.is_id_behind,
            TemplateForm::Other => true,
        }
    }

    /// Reads the message at the front of `input`, if its frame differs from this one only in id and payload, and is
    /// complete. Returns the message and the bytes after the frame. The result equals that of [`Codec::decode`], at
    /// less cost.
    #[inline(always)]
    #[must_use]
    pub fn read<'b>(&self, input: &'b [u8]) -> Option<(Message<'b>, &'b [u8])>
    where
        'a: 'b,
    {
        // All accesses below are within a frame of known length, so the compiler can drop most other checks.
        let (frame, behind) = input.split_at_checked(self.frame.len())?;
        let (id, payload) = if self.is_short {
            let (first, rest) = frame.split_first_chunk::<WORD_BYTES>()?;
            let word = u64::from_le_bytes(*first);
            if word & self.mask != self.word {
                return None;
            }
            if self.is_id_behind {
                let (id, payload) = rest.split_first_chunk()?;
                (u32::from_le_bytes(*id), payload)
            } else {
                let id = word.unbounded_shr(self.id_shift) as u32;
                (self.id_of(id), frame.get(self.short_header_bytes..)?)
            }
        } else {
            self.read_parts(frame)?
        };
        let message = Message {
            id,
            payload,
            ..self.message
        };
        Some((message, behind))
    }

    /// Reads id and payload of a frame that is not short.
    #[inline(always)]
    fn read_parts<'b>(&self, frame: &'b [u8]) -> Option<(u32, &'b [u8])> {
        let rest = strip(self.parts.head, frame)?;
        let (id, rest) = match self.parts.hole_bytes {
            ID_BYTES => {
                let (id, rest) = rest.split_first_chunk()?;
                (u32::from_le_bytes(*id), rest)
            }
            bytes => {
                let (hole, rest) = rest.split_at_checked(bytes)?;
                (hole.first().map_or(0, |id| u32::from(*id)), rest)
            }
        };
        let id = match self.layout.id {
            IdPosition::Nowhere => 0,
            IdPosition::Word { .. } => id,
            IdPosition::Byte { .. } => self.id_of(id),
        };
        let rest = strip(self.parts.middle, rest)?;
        let (payload, tail) = rest.split_at_checked(self.payload_bytes)?;
        strip(self.parts.tail, tail)?;
        Some((id, payload))
    }

    #[inline(always)]
    fn id_of(&self, bits: u32) -> u32 {
        let first = self.first_id;
        (bits.wrapping_sub(first) & self.id_bits).wrapping_add(first)
    }

    /// Appends the frame with this id and payload. Returns whether this is possible: the payload must have the
    /// template's length, and the frame must be able to express the id. The result equals that of [`Codec::encode`], at
    /// less cost.
    #[must_use]
    pub fn write(&self, id: u32, payload: &[u8], out: &mut Vec<u8>) -> bool {
        let (payload_range, id_range) = (self.layout.payload(), self.layout.id());
        let is_byte = id_range.len() == 1;
        if payload.len() != self.payload_bytes || is_byte && id.wrapping_sub(self.first_id) > 0xFF {
            return false;
        }
        let start = out.len();
        out.extend_from_slice(self.frame);
        let frame = &mut out[start..];
        let id_bytes = id_range.len();
        frame[id_range].copy_from_slice(&id.to_le_bytes()[..id_bytes]);
        frame[payload_range].copy_from_slice(payload);
        true
    }

    /// The frame that the template was made of.
    #[must_use]
    pub const fn frame(&self) -> &'a [u8] {
        self.frame
    }

    /// The message that the template was made of.
    #[must_use]
    pub const fn message(&self) -> &Message<'a> {
        &self.message
    }

    /// The positions of id and payload in the frame.
    #[must_use]
    pub const fn layout(&self) -> &FrameLayout {
        &self.layout
    }
}

#[inline(always)]
const fn bits_before(at: usize) -> u32 {
    (at as u32).saturating_mul(u8::BITS)
}

/// The bits of these bytes in the first word of a frame, as far as they are within it.
#[inline(always)]
fn bits_of(bytes: &Range<usize>) -> u64 {
    below(bytes.end) & !below(bytes.start)
}

/// The bits of the first `bytes` bytes of a word.
#[inline(always)]
const fn below(bytes: usize) -> u64 {
    match bytes {
        0..WORD_BYTES => (1 << (8 * bytes)) - 1,
        _ => u64::MAX,
    }
}

/// Returns the bytes after `part` at the front of `input`. Parts of 8 to 32 bytes are compared without a call, as two
/// ends that may overlap.
#[inline(always)]
fn strip<'a>(part: &[u8], input: &'a [u8]) -> Option<&'a [u8]> {
    let (front, rest) = input.split_at_checked(part.len())?;
    let is_same = match part.len() {
        // An empty part is common and needs no call.
        0 => true,
        8..=16 => has_ends_of::<8>(front, part),
        17..=32 => has_ends_of::<16>(front, part),
        _ => front == part,
    };
    is_same.then_some(rest)
}

/// Whether the first and the last `N` bytes of both are equal.
#[inline(always)]
fn has_ends_of<const N: usize>(one: &[u8], other: &[u8]) -> bool {
    one.first_chunk::<N>() == other.first_chunk() && one.last_chunk::<N>() == other.last_chunk()
}

/// The word of a single comparison.
const WORD_BYTES: usize = size_of::<u64>();
const ID_BYTES: usize = size_of::<u32>();

#[cfg(test)]
mod tests;
