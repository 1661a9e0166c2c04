//! One receive buffer for each lane.
//!
//! All sessions of a lane read into the same memory, one after the other, and frames are decoded in place. A session
//! keeps only its partial frame. Idle sessions then cost no buffer, and the buffer stays in the cache. Rejected: a
//! buffer for each session, for both reasons.

/// Memory of a fixed size to read into.
pub struct ReceiveBuffer {
    bytes: Box<[u8]>,
}

impl ReceiveBuffer {
    /// Creates a zeroed buffer of this many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes].into_boxed_slice(),
        }
    }

    /// The whole buffer. It still holds what earlier reads left.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The size in bytes.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }
}

impl std::fmt::Debug for ReceiveBuffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The content is left out, because it is messages of users.
        formatter
            .debug_struct("ReceiveBuffer")
            .field("capacity", &self.bytes.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_fixed_and_the_content_kept_and_not_shown() {
        let mut buffer = ReceiveBuffer::new(4_096);
        assert!(buffer.as_mut_slice().iter().all(|&byte| byte == 0));
        buffer.as_mut_slice()[..5].copy_from_slice(b"hello");
        assert_eq!(&buffer.as_mut_slice()[..6], b"hello\0");
        assert_eq!(buffer.capacity(), 4_096);
        assert_eq!(format!("{buffer:?}"), "ReceiveBuffer { capacity: 4096 }");
    }
}
