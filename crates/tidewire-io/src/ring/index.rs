//! The progress of both sides of a ring, and the bytes that each side may therefore touch.
//!
//! Two counters of bytes since the start, one written by each side. They wrap around together with the
//! word, which is harmless because only differences are used and a capacity is at most a quarter of it.
//!
//! ```text
//!   consumed ──▶ [ readable: written - consumed ] ──▶ written ──▶ [ free: the rest of the capacity ]
//!   the consumer's store                              the producer's store
//! ```
//!
//! Each side publishes its own counter with a release store after it is done with the bytes. It reads the other counter
//! with an acquire load before it touches any bytes, so the other side has finished with them. Each counter has a cache
//! line of its own, and each side remembers the last value that it saw of the other counter, so small steps do not load
//! the other core's line. The tests run the protocol under a model checker, and again with either release missing.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The two counters, shared by both sides. Their types differ only when a test makes one of them faulty.
#[derive(Debug)]
pub(super) struct Indices<W, C = W> {
    written: CacheLine<W>,
    consumed: CacheLine<C>,
}

impl<W: Index, C: Index> Indices<W, C> {
    /// Creates the counters of an empty ring that has already moved `start` bytes. `start` is 0 except in tests.
    pub(super) fn new(start: usize) -> Self {
        Self {
            written: CacheLine(W::new(start)),
            consumed: CacheLine(C::new(start)),
        }
    }
}

/// The producer's view of the ring.
#[derive(Debug)]
pub(super) struct WriteCursor {
    written: usize,
    /// The last value seen; the true value is this or further.
    consumed: usize,
    capacity: usize,
}

impl WriteCursor {
    pub(super) fn new(start: usize, capacity: usize) -> Self {
        Self {
            written: start,
            consumed: start,
            capacity,
        }
    }

    /// The position of the next byte to write.
    #[inline]
    pub(super) fn position(&self) -> usize {
        self.written
    }

    /// Returns the bytes known to be free. It reads the other side's counter only when they are fewer than `enough`.
    #[inline]
    pub(super) fn free<W: Index, C: Index>(
        &mut self,
        indices: &Indices<W, C>,
        enough: usize,
    ) -> usize {
        if self.known_free() < enough {
            self.consumed = indices.consumed.0.load_acquire();
        }
        self.known_free()
    }

    /// Returns the bytes free right now, without remembering the value.
    #[inline]
    pub(super) fn free_now<W: Index, C: Index>(&self, indices: &Indices<W, C>) -> usize {
        self.capacity - self.written.wrapping_sub(indices.consumed.0.load_acquire())
    }

    /// Passes `count` bytes to the consumer.
    ///
    /// # Panics
    ///
    /// When fewer bytes are known to be free: bytes that were not consumed would be overwritten.
    #[inline]
    pub(super) fn commit<W: Index, C: Index>(&mut self, indices: &Indices<W, C>, count: usize) {
        assert!(count <= self.known_free(), "more committed than was free");
        self.written = self.written.wrapping_add(count);
        indices.written.0.store_release(self.written);
    }

    #[inline]
    fn known_free(&self) -> usize {
        self.capacity - self.written.wrapping_sub(self.consumed)
    }
}

/// The consumer's view of the ring.
#[derive(Debug)]
pub(super) struct ReadCursor {
    consumed: usize,
    /// The last value seen; the true value is this or further.
    written: usize,
    capacity: usize,
}

impl ReadCursor {
    pub(super) fn new(start: usize, capacity: usize) -> Self {
        Self {
            consumed: start,
            written: start,
            capacity,
        }
    }

    /// The position of the next byte to read.
    #[inline]
    pub(super) fn position(&self) -> usize {
        self.consumed
    }

    /// Returns the bytes known to be readable. It reads the other side's counter only when they are fewer than
    /// `enough`.
    #[inline]
    pub(super) fn readable<W: Index, C: Index>(
        &mut self,
        indices: &Indices<W, C>,
        enough: usize,
    ) -> usize {
        if self.known_readable() < enough {
            self.written = indices.written.0.load_acquire();
        }
        self.known_readable()
    }

    /// Returns the bytes readable right now, without remembering the value.
    #[inline]
    pub(super) fn readable_now<W: Index, C: Index>(&self, indices: &Indices<W, C>) -> usize {
        indices.written.0.load_acquire().wrapping_sub(self.consumed)
    }

    /// Returns an upper bound of the producer's free bytes: the producer may have written more since the last load.
    #[inline]
    pub(super) fn free_at_most(&self) -> usize {
        self.capacity - self.known_readable()
    }

    /// Gives `count` bytes back to the producer.
    ///
    /// # Panics
    ///
    /// When fewer bytes are known to be readable.
    #[inline]
    pub(super) fn consume<W: Index, C: Index>(&mut self, indices: &Indices<W, C>, count: usize) {
        assert!(
            count <= self.known_readable(),
            "more consumed than was readable"
        );
        self.consumed = self.consumed.wrapping_add(count);
        indices.consumed.0.store_release(self.consumed);
    }

    #[inline]
    fn known_readable(&self) -> usize {
        self.written.wrapping_sub(self.consumed)
    }
}

/// A counter that one side stores and the other loads.
pub(super) trait Index {
    fn new(value: usize) -> Self;
    fn load_acquire(&self) -> usize;
    fn store_release(&self, value: usize);
}

impl Index for AtomicUsize {
    fn new(value: usize) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load_acquire(&self) -> usize {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn store_release(&self, value: usize) {
        self.store(value, Ordering::Release);
    }
}

/// Keeps its content away from everything else: two cache lines, because processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CacheLine<T>(pub(super) T);

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// An index of the model checker. With `RELEASE` false its stores publish nothing.
    struct Modelled<const RELEASE: bool>(loom::sync::atomic::AtomicUsize);

    impl<const RELEASE: bool> Index for Modelled<RELEASE> {
        fn new(value: usize) -> Self {
            Self(loom::sync::atomic::AtomicUsize::new(value))
        }

        fn load_acquire(&self) -> usize {
            self.0.load(Ordering::Acquire)
        }

        fn store_release(&self, value: usize) {
            let ordering = if RELEASE {
                Ordering::Release
            } else {
                Ordering::Relaxed
            };
            self.0.store(value, ordering);
        }
    }

    struct Model<W, C> {
        indices: Indices<W, C>,
        bytes: [UnsafeCell<u8>; CAPACITY],
    }

    const CAPACITY: usize = 2;
    /// More bytes than the capacity, so that a cell is used again.
    const BYTES: u8 = 3;

    /// Runs every interleaving of a producer and a consumer over a ring of two bytes whose counters wrap around. The
    /// checker fails when both sides touch a byte and neither access happens before the other.
    #[expect(unsafe_code, reason = "the checker's cells are read through pointers")]
    fn bytes_arrive_whole_and_in_order<W, C>()
    where
        W: Index + Send + Sync + 'static,
        C: Index + Send + Sync + 'static,
    {
        let start = usize::MAX;
        loom::model(move || {
            let model = Arc::new(Model {
                indices: Indices::<W, C>::new(start),
                bytes: [UnsafeCell::new(0), UnsafeCell::new(0)],
            });
            let far = model.clone();
            let producer = loom::thread::spawn(move || {
                let indices = &far.indices;
                let mut cursor = WriteCursor::new(start, CAPACITY);
                for byte in 1..=BYTES {
                    while cursor.free(indices, 1) == 0 {
                        loom::thread::yield_now();
                    }
                    far.bytes[cursor.position() % CAPACITY].with_mut(|cell| {
                        // SAFETY: the model is to prove this; the checker reports it when it does not hold.
                        unsafe { *cell = byte }
                    });
                    cursor.commit(indices, 1);
                }
            });
            let indices = &model.indices;
            let mut cursor = ReadCursor::new(start, CAPACITY);
            for expected in 1..=BYTES {
                while cursor.readable(indices, 1) == 0 {
                    loom::thread::yield_now();
                }
                let byte = model.bytes[cursor.position() % CAPACITY].with(|cell| {
                    // SAFETY: as above.
                    unsafe { *cell }
                });
                assert_eq!(byte, expected);
                cursor.consume(indices, 1);
            }
            producer.join().unwrap();
            assert_eq!(cursor.readable_now(indices), 0);
        });
    }

    #[test]
    fn no_interleaving_touches_a_byte_from_both_sides() {
        bytes_arrive_whole_and_in_order::<Modelled<true>, Modelled<true>>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn negative_control_a_commit_without_release_is_a_race() {
        bytes_arrive_whole_and_in_order::<Modelled<false>, Modelled<true>>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn negative_control_a_consume_without_release_is_a_race() {
        bytes_arrive_whole_and_in_order::<Modelled<true>, Modelled<false>>();
    }

    #[test]
    fn counters_wrap_with_the_word() {
        let start = usize::MAX - 2;
        let indices = Indices::<AtomicUsize, AtomicUsize>::new(start);
        let mut write = WriteCursor::new(start, 8);
        let mut read = ReadCursor::new(start, 8);
        for _ in 0..10 {
            assert_eq!(write.free(&indices, 8), 8);
            write.commit(&indices, 5);
            assert_eq!(write.free_now(&indices), 3);
            assert_eq!(read.readable_now(&indices), 5);
            assert_eq!(read.readable(&indices, 1), 5);
            assert_eq!(read.free_at_most(), 3);
            read.consume(&indices, 5);
            assert_eq!(read.free_at_most(), 8);
        }
    }

    #[test]
    fn the_other_counter_is_loaded_only_when_the_known_value_is_too_small() {
        let indices = Indices::<AtomicUsize, AtomicUsize>::new(0);
        let mut write = WriteCursor::new(0, 8);
        let mut read = ReadCursor::new(0, 8);
        write.commit(&indices, 4);
        assert_eq!(read.readable(&indices, 4), 4);
        write.commit(&indices, 2);
        assert_eq!(read.readable(&indices, 4), 4, "what is known is enough");
        assert_eq!(read.readable(&indices, 5), 6);
        read.consume(&indices, 6);
        assert_eq!(write.free(&indices, 2), 2);
        assert_eq!(write.free(&indices, 3), 8);
    }

    #[test]
    #[should_panic(expected = "more committed than was free")]
    fn committing_more_than_the_free_bytes_panics() {
        WriteCursor::new(0, 8).commit(&Indices::<AtomicUsize, AtomicUsize>::new(0), 9);
    }

    #[test]
    #[should_panic(expected = "more consumed than was readable")]
    fn consuming_more_than_the_readable_bytes_panics() {
        ReadCursor::new(0, 8).consume(&Indices::<AtomicUsize, AtomicUsize>::new(0), 1);
    }
}
