//! A pool of buffers. A session has one while it holds output or a partial frame.
//!
//! An idle session has no buffer, so its memory is its table entry. A busy session gets a buffer that is in the cache
//! and large enough, so the steady state allocates nothing.

/// A stack of empty buffers, bounded in number and bytes.
#[derive(Debug)]
pub(crate) struct BufferPool {
    spare: Vec<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
}

impl Default for BufferPool {
    fn default() -> Self {
        Self {
            spare: Vec::new(),
            bytes: 0,
            bytes_max: BYTES_MAX,
        }
    }
}

impl BufferPool {
    /// Takes an empty buffer, one that is in the cache if possible.
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        match self.spare.pop() {
            Some(buffer) => {
                self.bytes -= buffer.capacity();
                buffer
            }
            None => Vec::new(),
        }
    }

    /// Puts a buffer back. Frees it when enough are kept.
    #[inline]
    pub(crate) fn put(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity == 0
            || self.spare.len() == BUFFERS_MAX
            || self.bytes + capacity > self.bytes_max
        {
            return;
        }
        buffer.clear();
        self.bytes += capacity;
        self.spare.push(buffer);
    }

    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Sets whether buffers are kept. If not, the buffers in the pool are freed now.
    pub(crate) fn keep_spare(&mut self, keep: bool) {
        self.bytes_max = if keep { BYTES_MAX } else { 0 };
        if !keep {
            (self.spare, self.bytes) = (Vec::new(), 0);
        }
    }
}

/// Largest number of buffers in the pool: more sessions than this seldom hold output at the same moment of a turn.
const BUFFERS_MAX: usize = 256;

/// Largest number of bytes in the pool of a lane.
const BYTES_MAX: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_warm() {
        let mut pool = BufferPool::default();
        pool.put(b"something".to_vec());
        let buffer = pool.take();
        assert!(buffer.is_empty() && buffer.capacity() >= 9);
        assert_eq!(pool.take().capacity(), 0);
    }

    #[test]
    fn nothing_is_kept_while_memory_is_short() {
        let mut pool = BufferPool::default();
        pool.put(vec![0; 100]);
        pool.keep_spare(false);
        assert_eq!(pool.held_bytes(), 0);
        pool.put(vec![0; 100]);
        assert_eq!(pool.take().capacity(), 0);
        pool.keep_spare(true);
        pool.put(vec![0; 100]);
        assert_eq!(pool.held_bytes(), 100);
    }

    #[test]
    fn the_bytes_of_spare_buffers_are_bounded() {
        let mut pool = BufferPool::default();
        for _ in 0..100 {
            pool.put(Vec::with_capacity(1 << 20));
        }
        assert!(pool.bytes <= BYTES_MAX);
    }
}
