//! A few bytes that one thread passes to another in shared memory.
//!
//! Problem: short pieces of bytes pass between threads many million times a second, and a lock for each costs more than
//! the copy.
//!
//! Approach: the bytes lie in atomic words, which are stored and loaded like any others. The two threads agree by other
//! means, such as a flag that is stored with `Release` and loaded with `Acquire`, when the words may be read. A thread
//! that breaks this agreement reads a mix of two writes, and nothing worse. The tests run the module with such a flag
//! under a model checker, and again without the release.
//!
//! Rejected: an `UnsafeCell` beside such a flag, because its users would have to prove what this module guarantees.
//! Rejected: reading into a vector in safe code. The code checks the capacity at every word and keeps the vector in
//! memory, where wide loads wait for narrow stores.
#![expect(
    unsafe_code,
    reason = "writes words into the room of a vector after one check"
)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Up to eight times `WORDS` bytes. The reader must know the number of bytes.
#[derive(Debug)]
pub struct SharedBytes<const WORDS: usize>(Words<AtomicU64, WORDS>);

impl<const WORDS: usize> SharedBytes<WORDS> {
    /// The capacity in bytes.
    pub const BYTES_MAX: usize = WORDS * 8;

    /// Stores these bytes. Bytes beyond the capacity are left out.
    #[inline]
    pub fn store(&self, bytes: &[u8]) {
        self.0.store(bytes);
    }

    /// Replaces the content of this vector by the first `count` bytes, at most the capacity. Unless `count` is 0, the
    /// vector then has capacity for [`Self::BYTES_MAX`] bytes, so it can serve for any later call.
    #[inline(always)]
    #[must_use]
    pub fn load(&self, count: usize, memory: Vec<u8>) -> Vec<u8> {
        self.0.load(count, memory)
    }
}

impl<const WORDS: usize> Default for SharedBytes<WORDS> {
    fn default() -> Self {
        Self(Words(std::array::from_fn(|_| AtomicU64::new(0))))
    }
}

#[derive(Debug)]
struct Words<W, const WORDS: usize>([W; WORDS]);

impl<W: Word, const WORDS: usize> Words<W, WORDS> {
    #[inline(always)]
    fn store(&self, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<8>();
        for (word, bytes) in self.0.iter().zip(whole) {
            word.store_relaxed(u64::from_le_bytes(*bytes));
        }
        if let Some(word) = self.0.get(whole.len())
            && !rest.is_empty()
        {
            let last = match bytes.last_chunk::<8>() {
                // The last eight bytes, without those of the previous word.
                Some(end) => u64::from_le_bytes(*end) >> (64 - 8 * rest.len()),
                None => {
                    let bytes = rest.iter().rev();
                    bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
                }
            };
            word.store_relaxed(last);
        }
    }

    #[inline(always)]
    fn load(&self, count: usize, mut memory: Vec<u8>) -> Vec<u8> {
        if count == 0 {
            memory.clear();
            return memory;
        }
        let room = WORDS * 8;
        let count = count.min(room);
        let mut memory = if memory.capacity() < room {
            fresh(room)
        } else {
            memory
        };
        let to = memory.as_mut_ptr().cast::<u64>();
        for (index, word) in self.0[..count.div_ceil(8)].iter().enumerate() {
            let word = word.load_relaxed().to_le();
            // SAFETY: `index` is less than `WORDS`, and the vector has room for as many words.
            unsafe { to.add(index).write_unaligned(word) };
        }
        // SAFETY: the vector has room for `count` bytes, and at least as many bytes were written.
        unsafe { memory.set_len(count) };
        memory
    }
}

/// A word that two threads share: a trait, because the model checker has its own words.
trait Word {
    fn store_relaxed(&self, value: u64);
    fn load_relaxed(&self) -> u64;
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn store_relaxed(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn load_relaxed(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
}

#[cold]
fn fresh(bytes: usize) -> Vec<u8> {
    Vec::with_capacity(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_lengths_come_out_as_they_went_in() {
        let shared = SharedBytes::<5>::default();
        let bytes: Vec<u8> = (1..=50).collect();
        // The longest comes first, so a shorter one leaves its end in the words.
        for count in (0..=bytes.len()).rev() {
            shared.store(&bytes[..count]);
            let kept = &bytes[..count.min(40)];
            assert_eq!(shared.load(count, Vec::new()), kept);
            assert_eq!(shared.load(count, vec![7; 3]), kept);
            let memory = vec![7; 60];
            let address = memory.as_ptr();
            let loaded = shared.load(count, memory);
            assert_eq!((loaded.as_slice(), loaded.as_ptr()), (kept, address));
        }
    }

    /// The vector gets memory for the whole capacity.
    #[test]
    fn no_bytes_need_no_memory() {
        let shared = SharedBytes::<5>::default();
        assert_eq!(shared.load(0, Vec::new()).capacity(), 0);
        let memory = vec![7; 3];
        let address = memory.as_ptr();
        let loaded = shared.load(0, memory);
        assert!(loaded.is_empty() && loaded.as_ptr() == address);
        assert!(shared.load(1, loaded).capacity() >= 40);
    }

    impl Word for loom::sync::atomic::AtomicU64 {
        fn store_relaxed(&self, value: u64) {
            self.store(value, Ordering::Relaxed);
        }

        fn load_relaxed(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }
    }

    /// Runs every interleaving of a thread that stores bytes twice, and a thread that loads them when the flag is set.
    fn bytes_arrive_whole(leave: Ordering) {
        const FIRST: &[u8] = b"one and more";
        const SECOND: &[u8] = b"other";
        loom::model(move || {
            let new = loom::sync::atomic::AtomicU64::new;
            let words = loom::sync::Arc::new((Words([new(0), new(0)]), new(0)));
            let far = words.clone();
            let writer = loom::thread::spawn(move || {
                let (words, length) = &*far;
                words.store(FIRST);
                length.store(FIRST.len() as u64, leave);
                if length.load(Ordering::Acquire) == 0 {
                    words.store(SECOND);
                    length.store(SECOND.len() as u64, leave);
                }
            });
            let (words, length) = &*words;
            for bytes in [FIRST, SECOND] {
                let count = length.load(Ordering::Acquire);
                if count == 0 {
                    break;
                }
                assert_eq!(words.load(count as usize, Vec::new()), bytes);
                length.store(0, Ordering::Release);
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn no_interleaving_tears_bytes_behind_a_flag() {
        bytes_arrive_whole(Ordering::Release);
    }

    #[test]
    #[should_panic(expected = "assertion `left == right` failed")]
    fn negative_control_a_flag_without_release_announces_too_early() {
        bytes_arrive_whole(Ordering::Relaxed);
    }
}
