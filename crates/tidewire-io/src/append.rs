//! Appends many small frames that differ only in id and payload, each in two dozen instructions.
//!
//! Problem: appending a header and a payload of some twenty bytes to a vector costs two capacity checks and a call of
//! the C library's copy function. These are most of the cost of sending the message. Approach: header, length and
//! required room are the same for all frames of a pattern and are computed once. One comparison then checks the
//! capacity, and small payloads are copied inline. The first bytes of a payload are often a number that was just
//! written, so they are copied by themselves. A wider load would wait until that write has left the processor, which
//! takes longer than the rest of the work. Rejected: safe code. It checks the capacity again for every piece, and the
//! compiler merges neighbouring loads.
#![expect(
    unsafe_code,
    reason = "writes into the spare room of a vector, piece by piece, after one check"
)]

use std::ops::Range;

/// A frame without its id and its payload of one length, ready to be appended with any id and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePattern {
    header: Header,
    /// The payload length of any frame, or a length that no slice has.
    payload_bytes: usize,
    /// The payload length if the frame is a short header and the payload; otherwise a length that no slice has.
    short_payload_bytes: usize,
    /// The payload length if the frame is a short header and a small payload; otherwise a length that no slice has.
    small_payload_bytes: usize,
    /// Free capacity that appending a frame requires.
    room_bytes: usize,
    /// The bytes around the payload in all other frames.
    around: Around,
}

impl FramePattern {
    /// A pattern that matches no payload.
    pub const NONE: Self = Self {
        header: Header::NONE,
        payload_bytes: NO_PAYLOAD_BYTES,
        short_payload_bytes: NO_PAYLOAD_BYTES,
        small_payload_bytes: NO_PAYLOAD_BYTES,
        room_bytes: usize::MAX,
        around: Around::NONE,
    };

    /// Learns `frame` without the bytes of `payload` and `id`. The id is little-endian, lies in front of the payload,
    /// and has no, one or four bytes. An id of one byte is the lowest byte of the 256 ids from `first_id` on, and no
    /// other ids can be appended. Returns `None` for headers of more than 32 bytes, for more than 16 bytes after the
    /// payload, and for ranges outside the frame.
    #[must_use]
    pub fn of(
        frame: &[u8],
        id: &Range<usize>,
        first_id: u32,
        payload: &Range<usize>,
    ) -> Option<Self> {
        let (before, rest) = frame.split_at_checked(payload.start)?;
        let (_, tail) = rest.split_at_checked(payload.len())?;
        let (id_bits, other_id_bits) = match before.get(id.clone())?.len() {
            0 => (0, 0),
            1 => (0xFF, !0xFF),
            ID_BYTES => (u32::MAX, 0),
            _ => return None,
        };
        let id_is_behind = id.start == WORD_BYTES && id_bits == u32::MAX;
        let is_short = tail.is_empty()
            && if id_is_behind {
                before.len() == HEADER_BYTES_MAX
            } else {
                before.len() <= WORD_BYTES
            };
        let mut header = Header {
            first_id,
            other_id_bits,
            ..Header::NONE
        };
        let (mut around, mut short_payload_bytes) = (Around::NONE, NO_PAYLOAD_BYTES);
        if is_short {
            let mut word = [0; WORD_BYTES];
            let count = before.len().min(WORD_BYTES);
            word[..count].copy_from_slice(&before[..count]);
            header.bytes = before.len();
            header.word = u64::from_le_bytes(word);
            if !id_is_behind && id_bits != 0 {
                header.id_bits = id_bits;
                header.id_unit = 1 << (8 * id.start);
                header.word &= !(u64::from(id_bits) << (8 * id.start));
            }
            short_payload_bytes = payload.len();
        } else {
            around = Around::of(before, tail, id.start, id_bits)?;
        }
        let is_small = is_small(short_payload_bytes);
        let header_room = if is_short {
            HEADER_BYTES_MAX
        } else {
            AROUND_BYTES_MAX
        };
        Some(Self {
            header,
            payload_bytes: payload.len(),
            short_payload_bytes,
            small_payload_bytes: if is_small {
                short_payload_bytes
            } else {
                NO_PAYLOAD_BYTES
            },
            room_bytes: header_room + payload.len(),
            around,
        })
    }

    /// Appends the frame with this id and payload, if the pattern has such a frame and the vector has the capacity.
    /// Returns whether it was appended.
    #[inline(always)]
    #[must_use]
    pub fn append(&self, id: u32, payload: &[u8], out: &mut Vec<u8>) -> bool {
        if payload.len() != self.payload_bytes
            || out.capacity() - out.len() < self.room_bytes
            || !self.header.takes(id)
        {
            return false;
        }
        // SAFETY: the vector has room for a header of this form, the payload, and the longest end after it.
        unsafe {
            if payload.len() == self.short_payload_bytes {
                self.header.append_within(id, payload, out);
            } else {
                self.around.append_within(id, payload, out);
            }
        }
        true
    }

    /// As [`FramePattern::append`], for frames with a header of at most twelve bytes and a payload of 16 to 32.
    #[inline(always)]
    #[must_use]
    pub fn append_small(&self, id: u32, payload: &[u8], out: &mut Vec<u8>) -> bool {
        if payload.len() != self.small_payload_bytes
            || out.capacity() - out.len() < HEADER_BYTES_MAX + SMALL_BYTES_MAX
            || !self.header.takes(id)
        {
            return false;
        }
        // SAFETY: the vector has room for `HEADER_BYTES_MAX` bytes and the longest small payload. This payload is
        // small, because `of` saw that its length is.
        unsafe {
            std::hint::assert_unchecked(is_small(payload.len()));
            self.header.append_within(id, payload, out);
        }
        true
    }
}

/// A vector for frames of one pattern with headers of at most twelve bytes.
#[derive(Debug)]
pub struct Appender {
    bytes: Vec<u8>,
    /// The header of the pattern. Without such frames, the length below stays one that no slice has.
    header: Header,
    has_header: bool,
    /// The caller's number for messages with frames of the pattern, and the length of their payloads.
    key: u32,
    payload_bytes: usize,
    /// The payload length while the vector has room; otherwise a length that no slice has.
    armed_payload_bytes: usize,
    /// The bits of an id that matter, and their required value. An id of one byte must equal the last one, because most
    /// messages have the same id, and a range check takes longer.
    id_mask: u32,
    id: u32,
    /// The longest vector to which a frame is appended. After that length the capacity has room for
    /// [`HEADER_BYTES_MAX`] bytes and the payload.
    length_max: usize,
}

impl Appender {
    /// Appends to these bytes; nothing is appended before a pattern is set.
    #[must_use]
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            header: Header::NONE,
            has_header: false,
            key: 0,
            payload_bytes: NO_PAYLOAD_BYTES,
            armed_payload_bytes: NO_PAYLOAD_BYTES,
            id_mask: 0,
            id: 0,
            length_max: 0,
        }
    }

    /// Takes the whole appender and leaves an empty one.
    #[inline(always)]
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new(Vec::new()))
    }

    /// Takes the vector with all appended frames. The pattern stays, without room for its frames.
    #[inline(always)]
    #[must_use]
    pub fn take_bytes(&mut self) -> Vec<u8> {
        self.armed_payload_bytes = NO_PAYLOAD_BYTES;
        std::mem::take(&mut self.bytes)
    }

    /// Appends frames of the present pattern to these bytes from now on. Nothing is appended to more than `length_max`
    /// bytes. An id of one byte must equal `id`.
    #[inline]
    pub fn resume(&mut self, bytes: Vec<u8>, id: u32, length_max: usize) {
        self.armed_payload_bytes = NO_PAYLOAD_BYTES;
        self.bytes = bytes;
        self.id = id & self.id_mask;
        let _ = self.set_length_max(length_max);
    }

    /// Sets the pattern for messages with this key and payloads of this length. Frames are appended once there are
    /// [bytes](Appender::resume) to append to.
    pub fn set_pattern(&mut self, pattern: Option<&FramePattern>, key: u32, payload_bytes: usize) {
        self.armed_payload_bytes = NO_PAYLOAD_BYTES;
        let pattern = pattern.filter(|pattern| pattern.short_payload_bytes == payload_bytes);
        self.has_header = pattern.is_some();
        self.header = pattern.map_or(Header::NONE, |pattern| pattern.header);
        self.id_mask = if self.header.other_id_bits == 0 {
            0
        } else {
            u32::MAX
        };
        (self.key, self.payload_bytes) = (key, payload_bytes);
    }

    /// Limits the vector: nothing is appended when it has more than `length_max` bytes. Returns whether there is a
    /// pattern, and room for its frames.
    #[inline]
    #[must_use]
    pub fn set_length_max(&mut self, length_max: usize) -> bool {
        let room = HEADER_BYTES_MAX.saturating_add(self.payload_bytes);
        match self.bytes.capacity().checked_sub(room) {
            Some(length) if self.has_header => {
                self.length_max = length_max.min(length);
                self.armed_payload_bytes = self.payload_bytes;
                true
            }
            _ => false,
        }
    }

    /// The bytes so far, with the appended frames.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the last pattern that was set is for messages with this key and payloads of this length.
    #[must_use]
    pub fn is_for(&self, key: u32, payload_bytes: usize) -> bool {
        self.key == key && self.payload_bytes == payload_bytes
    }

    /// Appends the frame with this id and payload for a message with this key, if the pattern matches. Returns whether
    /// it was appended.
    #[inline(always)]
    #[must_use]
    pub fn append(&mut self, key: u32, id: u32, payload: &[u8]) -> bool {
        if key != self.key
            || payload.len() != self.armed_payload_bytes
            || self.bytes.len() > self.length_max
            || id & self.id_mask != self.id
        {
            return false;
        }
        // SAFETY: `set_length_max` saw that after the first `length_max` bytes there is room for `HEADER_BYTES_MAX`
        // bytes and such a payload. Every change of the vector's capacity or of the pattern sets a length that no
        // payload has.
        unsafe { self.header.append_within(id, payload, &mut self.bytes) };
        true
    }
}

impl Appender {
    /// Appends a frame of another pattern with any header. Returns whether the vector had the capacity.
    #[inline(always)]
    #[must_use]
    pub fn append_other(&mut self, pattern: &FramePattern, id: u32, payload: &[u8]) -> bool {
        pattern.append(id, payload, &mut self.bytes)
    }
}

/// The bytes in front of payloads, if they are at most a word, or a word and an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    /// The first eight bytes, little-endian.
    word: u64,
    /// The bits of an id that the word holds, and the factor that shifts them to their position.
    id_bits: u32,
    id_unit: u64,
    /// The smallest id, and the bits that must be 0 in the difference of any id to it.
    first_id: u32,
    other_id_bits: u32,
    /// At most [`HEADER_BYTES_MAX`].
    bytes: usize,
}

impl Header {
    const NONE: Self = Self {
        word: 0,
        id_bits: 0,
        id_unit: 0,
        first_id: 0,
        other_id_bits: 0,
        bytes: 0,
    };

    /// Whether the frame can express this id.
    #[inline(always)]
    const fn takes(&self, id: u32) -> bool {
        id.wrapping_sub(self.first_id) & self.other_id_bits == 0
    }

    /// Appends the header with this id, in the word or as its bytes 8 to 11, and a payload.
    ///
    /// # Safety
    /// Behind the vector's bytes there is room for [`HEADER_BYTES_MAX`] more and the payload.
    #[inline(always)]
    unsafe fn append_within(self, id: u32, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        // SAFETY: the caller promises the room. The first two writes take `HEADER_BYTES_MAX` bytes, and the payload
        // goes after `self.bytes`, which `of` saw to be no more. `payload` is borrowed, so it does not overlap the
        // vector. All bytes up to the new length are written.
        unsafe {
            let at = out.as_mut_ptr().add(start);
            let word = self.word | (u64::from(id & self.id_bits) * self.id_unit);
            at.cast::<u64>().write_unaligned(word.to_le());
            at.add(WORD_BYTES).cast::<u32>().write_unaligned(id.to_le());
            copy(payload, at.add(self.bytes));
            out.set_len(start + self.bytes + payload.len());
        }
    }
}

/// The bytes around payloads, without an id in front of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Around {
    head: [u8; AROUND_HEAD_BYTES_MAX],
    /// At most [`AROUND_HEAD_BYTES_MAX`].
    head_bytes: usize,
    /// At most [`AROUND_HEAD_BYTES_MAX`].
    id_at: usize,
    /// The four bytes at `id_at`, little-endian, without the id, and the mask of the id's bits in them.
    id_word: u32,
    id_bits: u32,
    tail: [u8; AROUND_TAIL_BYTES_MAX],
    /// At most [`AROUND_TAIL_BYTES_MAX`].
    tail_bytes: usize,
}

impl Around {
    const NONE: Self = Self {
        head: [0; AROUND_HEAD_BYTES_MAX],
        head_bytes: 0,
        id_at: 0,
        id_word: 0,
        id_bits: 0,
        tail: [0; AROUND_TAIL_BYTES_MAX],
        tail_bytes: 0,
    };

    /// Copies the bytes before and after a payload. The id is the bits `id_bits` of the four bytes from `id_at` on.
    fn of(before: &[u8], behind: &[u8], id_at: usize, id_bits: u32) -> Option<Self> {
        let mut around = Self {
            head_bytes: before.len(),
            id_at,
            id_bits,
            tail_bytes: behind.len(),
            ..Self::NONE
        };
        around.head.get_mut(..before.len())?.copy_from_slice(before);
        around.tail.get_mut(..behind.len())?.copy_from_slice(behind);
        let mut word = [0; ID_BYTES];
        for (to, from) in word.iter_mut().zip(before.get(id_at..)?) {
            *to = *from;
        }
        around.id_word = u32::from_le_bytes(word) & !id_bits;
        Some(around)
    }

    /// Appends the frame of this payload with this id.
    ///
    /// # Safety
    /// Behind the vector's bytes there is room for [`AROUND_BYTES_MAX`] more and the payload.
    #[inline(always)]
    unsafe fn append_within(&self, id: u32, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let id = self.id_word | id & self.id_bits;
        // SAFETY: there is room for all of both arrays and the payload. `of` saw that the head fits the first array and
        // the tail the second, so each piece begins where the one before ends, or earlier. The id begins within the
        // head. Its bytes after the head are within the room, and later writes replace them or the new length leaves
        // them out. `payload` is borrowed, so it does not overlap the vector. All bytes up to the new length are
        // written.
        unsafe {
            let at = out.as_mut_ptr().add(start);
            at.cast::<[u8; AROUND_HEAD_BYTES_MAX]>().write(self.head);
            at.add(self.id_at).cast::<u32>().write_unaligned(id.to_le());
            let behind = at.add(self.head_bytes);
            copy(payload, behind);
            let behind = behind.add(payload.len());
            behind
                .cast::<[u8; AROUND_TAIL_BYTES_MAX]>()
                .write(self.tail);
            out.set_len(start + self.head_bytes + payload.len() + self.tail_bytes);
        }
    }
}

/// Copies `from` to `to`.
///
/// # Safety
/// There is room for as many bytes at `to`, and `from` does not overlap them.
#[inline(always)]
unsafe fn copy(from: &[u8], to: *mut u8) {
    let (count, from) = (from.len(), from.as_ptr());
    if !is_small(count) {
        // SAFETY: the caller promises it.
        return unsafe { from.copy_to_nonoverlapping(to, count) };
    }
    let last_at = count - SMALL_BYTES_MIN;
    // SAFETY: `from` has at least 16 bytes. The first two pieces are its first 16, and the last piece is its last 16.
    // `to` has room for as many.
    unsafe {
        let first = from.cast::<u64>().read_unaligned();
        let second = from.add(8).cast::<u64>().read_unaligned();
        let last = from.add(last_at).cast::<u128>().read_unaligned();
        to.cast::<u64>().write_unaligned(kept_apart(first));
        to.add(8).cast::<u64>().write_unaligned(second);
        to.add(last_at).cast::<u128>().write_unaligned(last);
    }
}

#[inline(always)]
const fn is_small(count: usize) -> bool {
    count.wrapping_sub(SMALL_BYTES_MIN) <= SMALL_BYTES_MAX - SMALL_BYTES_MIN
}

/// Returns the same word and keeps the compiler from loading it together with its neighbour.
#[cfg(target_pointer_width = "64")]
#[inline(always)]
fn kept_apart(mut word: u64) -> u64 {
    // SAFETY: the block contains no instruction.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) word, options(pure, nomem, nostack, preserves_flags));
    }
    word
}

/// Returns the same word. The word does not fit a register on this processor, so the compiler may merge the loads.
#[cfg(not(target_pointer_width = "64"))]
#[inline(always)]
fn kept_apart(word: u64) -> u64 {
    word
}

const HEADER_BYTES_MAX: usize = WORD_BYTES + ID_BYTES;
const WORD_BYTES: usize = size_of::<u64>();
const ID_BYTES: usize = size_of::<u32>();

/// Maximum bytes before a payload; [`AROUND_TAIL_BYTES_MAX`] is for those after. UVRPC's replies have 28 and 15, and
/// whole registers are copied.
const AROUND_HEAD_BYTES_MAX: usize = 32;
const AROUND_TAIL_BYTES_MAX: usize = 16;
const AROUND_BYTES_MAX: usize = AROUND_HEAD_BYTES_MAX + AROUND_TAIL_BYTES_MAX;

/// A length that no slice has.
const NO_PAYLOAD_BYTES: usize = usize::MAX;

/// Payloads from this length up to twice this length are copied inline, in two pieces of 16 bytes that may overlap.
const SMALL_BYTES_MIN: usize = 16;
const SMALL_BYTES_MAX: usize = 2 * SMALL_BYTES_MIN;

#[cfg(test)]
mod tests;
