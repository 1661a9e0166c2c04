//! Appending many small messages of one shape, each in two dozen instructions.
//!
//! Problem: a header and a payload of some twenty bytes, appended to a vector one after the other, are two checks for room
//! and a call of the C library's copying, which is most of what it costs to send such a message. Approach: what is the
//! same in all of them, header, length and room, is settled once; then one comparison says whether there is room, and
//! small payloads are copied in place. Their first bytes, which are often a number that was just written, are copied by
//! themselves: a wider load would have to wait until that write has left the processor, which takes longer than all the
//! rest. Rejected: the same in safe code, where every piece is checked for room again, and where neighbouring loads become
//! one.
#![expect(
    unsafe_code,
    reason = "writes into the spare room of a vector, piece by piece, after one check"
)]

/// A vector that header and payload are appended to, as long as they have the shape that was set last.
#[derive(Debug)]
pub struct Appender {
    bytes: Vec<u8>,
    header: Header,
    payload_bytes: usize,
    /// Longest vector to which something is appended: its capacity has room for [`HEADER_BYTES_MAX`] bytes and the payload
    /// behind that.
    length_max: usize,
}

impl Appender {
    /// Appends to these bytes; nothing before a shape is set.
    #[must_use]
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            header: Header::new(0, 0),
            // No slice is so long.
            payload_bytes: usize::MAX,
            length_max: 0,
        }
    }

    /// What was appended to and what was appended.
    #[inline(always)]
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The same, which leaves nothing here.
    #[inline(always)]
    #[must_use]
    pub fn take_bytes(&mut self) -> Vec<u8> {
        self.take().bytes
    }

    /// All of it, which leaves nothing here.
    #[inline(always)]
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new(Vec::new()))
    }

    /// From now on this header stands in front of payloads; all of them have the same length, and nothing is appended when
    /// there are more than `length_max` bytes, or no room.
    #[must_use]
    pub fn with_shape(mut self, header: Header, payload_bytes: usize, length_max: usize) -> Self {
        (self.header, self.payload_bytes) = (header, payload_bytes);
        if self.set_length_max(length_max) {
            self
        } else {
            Self::new(self.bytes)
        }
    }

    /// With the same shape, nothing is appended from now on when there are more than `length_max` bytes. Returns whether there
    /// is a shape, and room for it.
    #[must_use]
    pub fn set_length_max(&mut self, length_max: usize) -> bool {
        let room = HEADER_BYTES_MAX.saturating_add(self.payload_bytes);
        match self.bytes.capacity().checked_sub(room) {
            Some(length) => {
                self.length_max = length_max.min(length);
                true
            }
            None => false,
        }
    }

    /// What was appended to and what was appended.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the shape is one of payloads of this length.
    #[must_use]
    pub fn is_for(&self, payload_bytes: usize) -> bool {
        self.payload_bytes == payload_bytes
    }

    /// Appends a header with `next` as its bytes 8 to 11 and this payload. Returns whether that could be done here.
    #[inline(always)]
    #[must_use]
    pub fn append(&mut self, next: u32, payload: &[u8]) -> bool {
        if payload.len() != self.payload_bytes || self.bytes.len() > self.length_max {
            return false;
        }
        // SAFETY: `set_length_max` saw that there is room for `HEADER_BYTES_MAX` bytes and such a payload behind the first
        // `length_max` bytes. Without it neither the vector's capacity nor the shape changes, but to one that no payload has.
        unsafe { self.header.append_within(next, payload, &mut self.bytes) };
        true
    }
}

/// What stands in front of many payloads, but for the last four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The first eight bytes, little-endian.
    word: u64,
    /// At most [`HEADER_BYTES_MAX`].
    bytes: usize,
    /// The bits of `word` that are the lowest ones of what is given with each payload, 8 bits further up.
    sequence_bits: u64,
}

impl Header {
    /// The first `bytes` of `word`, little-endian, and of the four bytes given with each payload.
    ///
    /// # Panics
    /// `bytes` is more than twelve.
    #[must_use]
    pub const fn new(word: u64, bytes: usize) -> Self {
        assert!(bytes <= HEADER_BYTES_MAX, "a header has at most 12 bytes");
        Self {
            word,
            bytes,
            sequence_bits: 0,
        }
    }

    /// The second byte, which must be 0 in the word, is from now on the lowest of the four given with each payload.
    #[must_use]
    pub const fn with_sequence(self) -> Self {
        Self {
            sequence_bits: 0xFF00,
            ..self
        }
    }

    /// Appends the header with `next` as its bytes 8 to 11 and a payload, if there is room without growing. Returns whether
    /// there was.
    #[inline(always)]
    #[must_use]
    pub fn append(self, next: u32, payload: &[u8], out: &mut Vec<u8>) -> bool {
        let room = out.capacity() - out.len();
        if room < HEADER_BYTES_MAX || room - HEADER_BYTES_MAX < payload.len() {
            return false;
        }
        // SAFETY: there is room for `HEADER_BYTES_MAX` bytes and the payload.
        unsafe { self.append_within(next, payload, out) };
        true
    }

    /// The same without a look at the room.
    ///
    /// # Safety
    /// Behind the vector's bytes there is room for [`HEADER_BYTES_MAX`] more and the payload.
    #[inline(always)]
    unsafe fn append_within(self, next: u32, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        // SAFETY: there is room, as the caller says. The first two writes take `HEADER_BYTES_MAX` bytes, and the payload
        // goes behind `self.bytes`, which `new` saw to be no more. `payload` is borrowed, so it does not overlap the
        // vector. All bytes up to the new length are written.
        unsafe {
            let at = out.as_mut_ptr().add(start);
            let word = self.word | u64::from(next) << 8 & self.sequence_bits;
            at.cast::<u64>().write_unaligned(word.to_le());
            at.add(8).cast::<u32>().write_unaligned(next.to_le());
            copy(payload, at.add(self.bytes));
            out.set_len(start + self.bytes + payload.len());
        }
    }
}

/// What stands in front of payloads of one length, which take no call to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallFrame {
    header: Header,
    /// Small, or longer than any slice.
    payload_bytes: usize,
}

impl SmallFrame {
    /// No payload has the length of this one.
    pub const NONE: Self = Self {
        header: Header::new(0, 0),
        payload_bytes: usize::MAX,
    };

    /// This header and payloads of so many bytes, if those are from 16 to 32.
    #[must_use]
    pub const fn new(header: Header, payload_bytes: usize) -> Option<Self> {
        if !is_small(payload_bytes) {
            return None;
        }
        Some(Self {
            header,
            payload_bytes,
        })
    }

    /// As [`Header::append`], if the payload has the length that was given.
    #[inline(always)]
    #[must_use]
    pub fn append(&self, next: u32, payload: &[u8], out: &mut Vec<u8>) -> bool {
        if payload.len() != self.payload_bytes
            || out.capacity() - out.len() < HEADER_BYTES_MAX + SMALL_BYTES_MAX
        {
            return false;
        }
        // SAFETY: there is room for `HEADER_BYTES_MAX` bytes and the longest of small payloads, which this one is: it has a
        // length that `new` saw to be small.
        unsafe {
            std::hint::assert_unchecked(is_small(payload.len()));
            self.header.append_within(next, payload, out);
        }
        true
    }
}

/// What stands around payloads of one length, but for an id of four bytes in front of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameAround {
    head: [u8; AROUND_HEAD_BYTES_MAX],
    /// At most [`AROUND_HEAD_BYTES_MAX`].
    head_bytes: usize,
    /// At most four less than that.
    id_at: usize,
    tail: [u8; AROUND_TAIL_BYTES_MAX],
    /// At most [`AROUND_TAIL_BYTES_MAX`].
    tail_bytes: usize,
    payload_bytes: usize,
}

impl FrameAround {
    /// What stands around the payload of `payload_bytes` that begins behind the first `head_bytes` of this frame; the id
    /// begins behind the first `id_at` of them. Heads of more than 32 bytes and tails of more than 16 are not kept, nor are
    /// places that are not there.
    #[must_use]
    pub fn of(frame: &[u8], id_at: usize, head_bytes: usize, payload_bytes: usize) -> Option<Self> {
        let (head_of, rest) = frame.split_at_checked(head_bytes)?;
        let (_, tail_of) = rest.split_at_checked(payload_bytes)?;
        head_of.get(id_at..)?.first_chunk::<ID_BYTES>()?;
        let mut head = [0; AROUND_HEAD_BYTES_MAX];
        let mut tail = [0; AROUND_TAIL_BYTES_MAX];
        head.get_mut(..head_bytes)?.copy_from_slice(head_of);
        tail.get_mut(..tail_of.len())?.copy_from_slice(tail_of);
        Some(Self {
            head,
            head_bytes,
            id_at,
            tail,
            tail_bytes: tail_of.len(),
            payload_bytes,
        })
    }

    /// Appends the frame of this payload with `id`, little-endian, if it has the length that was given and there is room
    /// without growing. Returns whether that could be done.
    #[inline(always)]
    #[must_use]
    pub fn append(&self, id: u32, payload: &[u8], out: &mut Vec<u8>) -> bool {
        const AROUND_BYTES_MAX: usize = AROUND_HEAD_BYTES_MAX + AROUND_TAIL_BYTES_MAX;
        let room = out.capacity() - out.len();
        if payload.len() != self.payload_bytes
            || room < AROUND_BYTES_MAX
            || room - AROUND_BYTES_MAX < payload.len()
        {
            return false;
        }
        let start = out.len();
        // SAFETY: there is room for all of both arrays and the payload. `of` saw that the head and the id in it are within
        // the first array and the tail within the second, so that each piece begins where the one before ends or earlier.
        // `payload` is borrowed, so it does not overlap the vector. All bytes up to the new length are written.
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
        true
    }
}

/// Copies `from` to `to`.
///
/// # Safety
/// There is room for as many bytes at `to`, which `from` does not overlap.
#[inline(always)]
unsafe fn copy(from: &[u8], to: *mut u8) {
    let (count, from) = (from.len(), from.as_ptr());
    if !is_small(count) {
        // SAFETY: as the caller says.
        return unsafe { from.copy_to_nonoverlapping(to, count) };
    }
    let last_at = count - SMALL_BYTES_MIN;
    // SAFETY: `from` has 16 bytes at least, of which the first two pieces are the first 16, and the last one is the last
    // 16; `to` has room for as many.
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

/// The same word, which the compiler does not load together with its neighbour.
#[cfg(target_pointer_width = "64")]
#[inline(always)]
fn kept_apart(mut word: u64) -> u64 {
    // SAFETY: there is no instruction in it.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) word, options(pure, nomem, nostack, preserves_flags));
    }
    word
}

/// The same word. It fits no register here, so that there is nothing to keep the compiler from.
#[cfg(not(target_pointer_width = "64"))]
#[inline(always)]
fn kept_apart(word: u64) -> u64 {
    word
}

/// Most bytes of a header.
const HEADER_BYTES_MAX: usize = 12;

/// Most bytes in front of a payload and behind it: UVRPC's replies have 28 and 15, and whole registers are copied.
const AROUND_HEAD_BYTES_MAX: usize = 32;
const AROUND_TAIL_BYTES_MAX: usize = 16;
const ID_BYTES: usize = 4;

/// Payloads of so many bytes, and up to twice as many, are copied in place: in two pieces of 16, which may overlap.
const SMALL_BYTES_MIN: usize = 16;
const SMALL_BYTES_MAX: usize = 2 * SMALL_BYTES_MIN;

#[cfg(test)]
#[path = "append_tests.rs"]
mod tests;
