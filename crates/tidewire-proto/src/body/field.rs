//! Bounded reading and writing of the fields of bodies.
//!
//! A reader returns `None` at the first missing field, and the caller makes an error that names the frame. No code
//! indexes a peer's bytes, so they cannot cause a panic.

use crate::error::EncodeError;
use crate::limits::TEXT_BYTES_MAX;

/// Reads fields off the front of a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(payload: &'a [u8]) -> Self {
        Self { left: payload }
    }

    /// Returns whether everything was read.
    pub(crate) const fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a fixed number of bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, left) = self.left.split_first_chunk()?;
        self.left = left;
        Some(*array)
    }

    /// Reads the next `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, left) = self.left.split_at_checked(count)?;
        self.left = left;
        Some(bytes)
    }

    /// Reads a text after a one-byte length.
    pub(crate) fn short_text(&mut self) -> Option<&'a str> {
        let count = self.u8()?;
        str::from_utf8(self.bytes(usize::from(count))?).ok()
    }

    /// Returns the unread bytes.
    pub(crate) const fn rest(self) -> &'a [u8] {
        self.left
    }
}

/// Appends a text after a one-byte length. On an error `out` is unchanged.
pub(crate) fn push_short_text(text: &str, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match u8::try_from(text.len()) {
        Ok(count) => {
            out.push(count);
            out.extend_from_slice(text.as_bytes());
            Ok(())
        }
        Err(_) => Err(EncodeError::TextTooLong {
            bytes: text.len(),
            limit: usize::from(u8::MAX),
        }),
    }
}

/// Returns the longest prefix of `text` that fits a reason field.
pub(crate) fn clip_text(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
