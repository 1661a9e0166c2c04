//! The two ends of one ring.
#![expect(
    unsafe_code,
    reason = "slices of memory that two threads share, each its own part"
)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::index::{CacheLine, Indices, ReadCursor, WriteCursor};
use super::mirror::Mirror;

/// Creates a ring of `capacity` bytes between two threads, or within one.
///
/// # Errors
///
/// `InvalidInput` when the capacity is no power of two of at least a page. Otherwise the kernel refuses, usually
/// because memory, mappings (`vm.max_map_count`) or descriptors are used up.
pub fn ring(capacity: usize) -> io::Result<(Producer, Consumer)> {
    starting_at(capacity, 0)
}

fn starting_at(capacity: usize, start: usize) -> io::Result<(Producer, Consumer)> {
    let shared = Arc::new(RingShared {
        mirror: Mirror::new(capacity)?,
        indices: Indices::new(start),
        is_producer_closed: CacheLine(AtomicBool::new(false)),
        is_consumer_closed: CacheLine(AtomicBool::new(false)),
    });
    let producer = Producer {
        cursor: WriteCursor::new(start, capacity),
        shared: Arc::clone(&shared),
    };
    let consumer = Consumer {
        cursor: ReadCursor::new(start, capacity),
        shared,
    };
    Ok((producer, consumer))
}

/// The end of a ring that bytes are written to. Dropping it closes the ring; committed bytes can still be read.
#[derive(Debug)]
pub struct Producer {
    cursor: WriteCursor,
    shared: Arc<RingShared>,
}

impl Producer {
    /// Returns all free bytes as one contiguous span, which still holds the content of earlier rounds. The consumer
    /// sees none of these bytes before [`commit`](Self::commit).
    ///
    /// While at least half of the ring is known to be free, the call does not read the consumer's progress. The span
    /// may then be shorter than possible, but is never wrongly empty.
    #[inline]
    pub fn writable(&mut self) -> &mut [u8] {
        let enough = self.capacity() / 2;
        self.span(enough)
    }

    /// Passes the first `count` bytes of the last span to the consumer.
    ///
    /// # Panics
    ///
    /// When the span was shorter.
    #[inline]
    pub fn commit(&mut self, count: usize) {
        self.cursor.commit(&self.shared.indices, count);
    }

    /// Copies as many bytes as there is room for, passes them to the consumer, and returns their number.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let count = self.fill(0, bytes);
        self.commit(count);
        count
    }

    /// Copies as many bytes as there is room for after the first `filled` uncommitted bytes, and returns their number.
    #[inline]
    pub(super) fn fill(&mut self, filled: usize, bytes: &[u8]) -> usize {
        let span = self.span(filled + bytes.len());
        let room = &mut span[filled..];
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        count
    }

    #[inline]
    fn span(&mut self, enough: usize) -> &mut [u8] {
        let free = self.cursor.free(&self.shared.indices, enough);
        // SAFETY: the free bytes after the written ones belong to the producer until a commit passes them to the
        // consumer. There is one producer, and the slice borrows it.
        unsafe { self.shared.mirror.span_mut(self.cursor.position(), free) }
    }

    /// The bytes free right now.
    #[inline]
    #[must_use]
    pub fn free(&self) -> usize {
        self.cursor.free_now(&self.shared.indices)
    }

    /// Tells the consumer that nothing more comes. Dropping the producer does the same.
    pub fn close(&self) {
        self.shared
            .is_producer_closed
            .0
            .store(true, Ordering::Release);
    }

    /// Whether the consumer was dropped, so that writing is of no use.
    #[inline]
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_consumer_closed.0.load(Ordering::Acquire)
    }

    /// Whether this end was closed with [`close`](Self::close).
    #[inline]
    pub(super) fn has_closed(&self) -> bool {
        self.shared.is_producer_closed.0.load(Ordering::Relaxed)
    }

    /// The size of the ring in bytes.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.mirror.capacity()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.close();
    }
}

/// The end of a ring that bytes are read from. Dropping it closes the ring.
#[derive(Debug)]
pub struct Consumer {
    cursor: ReadCursor,
    shared: Arc<RingShared>,
}

impl Consumer {
    /// Returns all bytes that wait to be read, as one contiguous span. They stay until [`consume`](Self::consume).
    ///
    /// An empty span does not mean the end. [`is_closed`](Self::is_closed) returns whether no more bytes come. Call it
    /// *before* the last look, or bytes committed in between are missed.
    #[inline]
    pub fn readable(&mut self) -> &[u8] {
        let everything = usize::MAX;
        self.span(everything)
    }

    /// Gives the first `count` bytes of the last span back to the producer.
    ///
    /// # Panics
    ///
    /// When the span was shorter.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.cursor.consume(&self.shared.indices, count);
    }

    /// Copies as many bytes as fit, gives them back to the producer, and returns their number.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        let span = self.span(buffer.len());
        let count = span.len().min(buffer.len());
        buffer[..count].copy_from_slice(&span[..count]);
        self.consume(count);
        count
    }

    #[inline]
    fn span(&mut self, enough: usize) -> &[u8] {
        let readable = self.cursor.readable(&self.shared.indices, enough);
        // SAFETY: committed bytes belong to the consumer until a consume gives them back. There is one consumer, and
        // the slice borrows it.
        unsafe { self.shared.mirror.span(self.cursor.position(), readable) }
    }

    /// The bytes that wait to be read right now.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.cursor.readable_now(&self.shared.indices)
    }

    /// Whether no byte waits to be read right now.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an upper bound of the bytes that the producer finds free.
    #[inline]
    pub(super) fn free_at_most(&self) -> usize {
        self.cursor.free_at_most()
    }

    /// Whether the producer is gone or closed its end. Bytes committed before can still be read.
    #[inline]
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_producer_closed.0.load(Ordering::Acquire)
    }

    /// Tells the producer that nothing more is read. Dropping the consumer does the same.
    pub fn close(&self) {
        self.shared
            .is_consumer_closed
            .0
            .store(true, Ordering::Release);
    }

    /// The size of the ring in bytes.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.mirror.capacity()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Debug)]
struct RingShared {
    mirror: Mirror,
    indices: Indices<AtomicUsize>,
    is_producer_closed: CacheLine<AtomicBool>,
    is_consumer_closed: CacheLine<AtomicBool>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::param::page_size;

    /// The byte at a position of the stream, so that any loss, duplicate or reordering shows.
    fn byte_at(position: usize) -> u8 {
        (position.wrapping_mul(0x9E37_79B9) >> 13) as u8
    }

    #[test]
    fn spans_are_contiguous_at_every_offset() {
        let capacity = page_size();
        let (mut producer, mut consumer) = starting_at(capacity, usize::MAX - 17).unwrap();
        let mut position = 0;
        // A step that has no divisor in common with the capacity visits every offset.
        for _ in 0..capacity {
            let span = producer.span(capacity);
            assert_eq!(span.len(), capacity, "an empty ring is all free");
            for (distance, byte) in span.iter_mut().enumerate() {
                *byte = byte_at(position + distance);
            }
            producer.commit(capacity);
            assert!(producer.writable().is_empty());
            assert_eq!(producer.write(b"no room"), 0);

            let span = consumer.readable();
            assert_eq!(span.len(), capacity);
            let is_intact = span
                .iter()
                .enumerate()
                .all(|(distance, &byte)| byte == byte_at(position + distance));
            assert!(is_intact, "position {position}");
            consumer.consume(1_021);
            position += 1_021;
            consumer.consume(capacity - 1_021);
            position += capacity - 1_021;
            // This moves on by the odd step.
            assert_eq!(producer.write(&[0; 1_021]), 1_021);
            consumer.readable();
            consumer.consume(1_021);
        }
    }

    #[test]
    fn nothing_is_seen_before_it_is_committed() {
        let (mut producer, mut consumer) = ring(page_size()).unwrap();
        producer.writable()[..5].copy_from_slice(b"hello");
        assert!(consumer.readable().is_empty());
        producer.commit(2);
        assert_eq!(consumer.readable(), b"he");
        assert_eq!(
            (consumer.len(), producer.free()),
            (2, producer.capacity() - 2)
        );
        producer.commit(3);
        assert_eq!(consumer.readable(), b"hello");
        consumer.consume(5);
        assert!(consumer.is_empty());
    }

    #[test]
    fn a_dropped_producer_closes_the_ring_after_its_committed_bytes() {
        let (mut producer, mut consumer) = ring(page_size()).unwrap();
        assert_eq!(producer.write(b"whole"), 5);
        producer.writable()[..4].copy_from_slice(b"half");
        assert!(!consumer.is_closed());
        drop(producer);
        assert!(consumer.is_closed());
        let mut buffer = [0; 64];
        assert_eq!(consumer.read(&mut buffer), 5);
        assert_eq!(&buffer[..5], b"whole");
        assert_eq!(consumer.read(&mut buffer), 0);
    }

    #[test]
    fn a_consumer_that_is_gone_is_seen_by_the_producer() {
        let (producer, consumer) = ring(page_size()).unwrap();
        assert!(!producer.is_closed());
        drop(consumer);
        assert!(producer.is_closed());
        assert_eq!(producer.capacity(), page_size());
    }

    #[test]
    #[should_panic(expected = "more committed than was free")]
    fn committing_beyond_the_span_is_refused_before_it_does_harm() {
        let (mut producer, _consumer) = ring(page_size()).unwrap();
        let length = producer.writable().len();
        producer.commit(length + 1);
    }

    /// Two threads with steps of random sizes; every byte is checked.
    fn stress(seed: u64, bytes_total: usize) {
        let (mut producer, mut consumer) = starting_at(page_size(), usize::MAX - 1_000).unwrap();
        let writer = std::thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut piece = [0; 700];
            let mut position = 0;
            while position < bytes_total {
                let most = random.usize(1..=700).min(bytes_total - position);
                let written = if random.bool() {
                    for (distance, byte) in piece[..most].iter_mut().enumerate() {
                        *byte = byte_at(position + distance);
                    }
                    producer.write(&piece[..most])
                } else {
                    let span = producer.writable();
                    let count = span.len().min(most);
                    for (distance, byte) in span[..count].iter_mut().enumerate() {
                        *byte = byte_at(position + distance);
                    }
                    producer.commit(count);
                    count
                };
                position += written;
                if written == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut random = fastrand::Rng::with_seed(!seed);
        let mut buffer = [0; 900];
        let mut position = 0;
        loop {
            let was_closed = consumer.is_closed();
            let most = random.usize(1..=900);
            let seen = if random.bool() {
                let count = consumer.read(&mut buffer[..most]);
                &buffer[..count]
            } else {
                let span = consumer.readable();
                let count = span.len().min(most);
                buffer[..count].copy_from_slice(&span[..count]);
                consumer.consume(count);
                &buffer[..count]
            };
            for (distance, &byte) in seen.iter().enumerate() {
                assert_eq!(byte, byte_at(position + distance), "seed {seed}");
            }
            position += seen.len();
            if seen.is_empty() {
                if was_closed {
                    break;
                }
                std::thread::yield_now();
            }
        }
        writer.join().unwrap();
        assert_eq!(
            position, bytes_total,
            "seed {seed}: delivered equals offered"
        );
    }

    #[test]
    fn every_byte_arrives_once_and_in_order_between_threads() {
        for seed in 1..=8 {
            stress(seed, 1 << 20);
        }
    }
}
