//! A few bytes stored inline, so that a codec's configuration is copied without an allocation.

use std::fmt;

/// At most 16 bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct InlineBytes {
    bytes: [u8; INLINE_BYTES_MAX],
    count: u8,
}

impl InlineBytes {
    /// Copies `bytes`. Returns `None` if there are too many.
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        let mut copy = Self::default();
        copy.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        copy.count = bytes.len() as u8;
        Some(copy)
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.count)]
    }
}

impl PartialEq for InlineBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for InlineBytes {}

impl fmt::Debug for InlineBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:02X?}", self.as_slice())
    }
}

/// All known delimiters and constant headers fit, in a cache line with the rest of the codec.
pub(super) const INLINE_BYTES_MAX: usize = 16;
