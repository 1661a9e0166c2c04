//! Bytes that are appended at the end and taken from the front.

/// A buffer that gives its memory back when it is empty.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The memory that it holds, used or not.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The vector to append to.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Gives its memory back if it is empty, however little it is.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Removes the first `count` bytes.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.is_empty() {
            self.start = 0;
            self.bytes.clear();
            // An idle connection keeps at most this, and a connection with small messages never allocates.
            if self.bytes.capacity() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        } else if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

/// Bytes of memory that an empty buffer keeps: enough for a record with a small message, not for a handshake.
const KEPT_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_at_rest_gives_back_the_memory_of_a_handshake() {
        let mut buffer = Buffer::default();
        buffer.end().extend_from_slice(&[1; 54]);
        buffer.consume(54);
        let small = buffer.memory_bytes();
        assert!((54..=KEPT_BYTES).contains(&small));
        buffer.end().extend_from_slice(&[1; 1_200]);
        buffer.consume(1_199);
        assert_eq!(buffer.bytes(), [1]);
        buffer.consume(1);
        assert_eq!((buffer.memory_bytes(), buffer.len()), (0, 0));
    }
}
