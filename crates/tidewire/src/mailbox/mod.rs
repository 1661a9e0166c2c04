//! How lanes and other threads hand a lane work: a bounded queue and a doorbell that wakes only a sleeper.
//!
//! Lanes do not send each other single messages: what a turn produced for another lane is collected in one
//! buffer and posted once. A batch that finds the queue full stays with its sender and grows; when it is too
//! large the sender reads no more from its own sessions until it is gone, so that nothing is dropped.

mod batch;
mod exchange;
mod hand_over;
mod letter;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_queue::{ArrayQueue, SegQueue};
use crossbeam_utils::CachePadded;
use tidewire_io::doorbell::Doorbell;
use tidewire_io::ring::RingStream;

pub(crate) use batch::{BatchEntry, SpareBatches};
pub(crate) use exchange::{Exchange, Lanes};
pub use hand_over::HandOverError;
pub(crate) use letter::Letter;

use crate::observe::LaneCounters;
use crate::transport::inproc::Party;
use crate::transport::{Arrival, Carrier, StreamListener};

/// Work for a lane.
#[derive(Debug)]
pub(crate) enum Post {
    /// A connection accepted by another lane; it is counted by the gate already.
    Adopt(Arrival),
    /// A connection from within the process, to be counted and placed by the lane that accepts.
    Arrive { stream: Carrier },
    /// A listener of a lane that ended while its server goes on.
    Listen(Box<StreamListener>),
    /// A server has taken the connection that waited under this number.
    Placed { ticket: u64 },
    /// Entries of [`BatchEntry`], encoded.
    Batch(Vec<u8>),
    /// Stop accepting, tell the peers, and stop when they are gone or at this time.
    Drain { deadline_ns: u64 },
    /// Stop at once.
    Stop,
}

impl Post {
    fn batch_bytes(&self) -> usize {
        if let Self::Batch(batch) = self {
            batch.len()
        } else {
            0
        }
    }
}

/// What other threads hold of a lane.
#[derive(Clone, Debug)]
pub(crate) struct LaneHandle {
    queue: Arc<ArrayQueue<Post>>,
    /// What is for sessions of the lane. Each letter has its place before it is written: a deferred answer that of its
    /// request, a message that of its bytes, see [`crate::sessions`].
    letters: Arc<SegQueue<Letter>>,
    pub(crate) doorbell: Arc<Doorbell>,
    /// Bytes of the batches in the queue: posts alone would bound it at a thousand times any batch.
    batch_bytes: Arc<AtomicUsize>,
    /// The lane has ended; nobody will take what is posted.
    retired: Arc<AtomicBool>,
    counters: Arc<CachePadded<LaneCounters>>,
}

impl LaneHandle {
    pub(crate) fn new(counters: Arc<CachePadded<LaneCounters>>) -> std::io::Result<Self> {
        Ok(Self {
            queue: Arc::new(ArrayQueue::new(POSTS_MAX)),
            letters: Arc::default(),
            doorbell: Arc::new(Doorbell::new()?),
            batch_bytes: Arc::default(),
            retired: Arc::default(),
            counters,
        })
    }

    /// Leaves work and wakes the lane if it sleeps. Gives the work back if the queue is full or the lane has ended.
    pub(crate) fn post(&self, post: Post) -> Result<(), Post> {
        if self.is_retired() {
            return Err(post);
        }
        let bytes = post.batch_bytes();
        if bytes > 0 {
            let held = self.batch_bytes.fetch_add(bytes, Ordering::Relaxed);
            // A batch alone is always let in, or one that is too large would never arrive.
            if held > 0 && held + bytes > MAIL_BYTES_MAX {
                self.batch_bytes.fetch_sub(bytes, Ordering::Relaxed);
                return Err(post);
            }
        }
        if let Err(post) = self.queue.push(post) {
            self.batch_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(post);
        }
        self.doorbell.ring();
        if self.is_retired() {
            // It ended in between, and may have looked for the last time: a connection must not be left open here.
            while let Some(post) = self.queue.pop() {
                if let Post::Batch(batch) = post {
                    self.count_undelivered(&batch);
                }
            }
        }
        Ok(())
    }

    /// Leaves a letter and wakes the lane if it sleeps; never waits. Gives it back if the lane has ended.
    pub(crate) fn post_letter(&self, letter: Letter) -> Result<(), Letter> {
        if self.is_retired() {
            return Err(letter);
        }
        self.letters.push(letter);
        self.doorbell.ring();
        if self.is_retired() {
            // It ended in between, and may have looked for the last time.
            self.discard_letters();
        }
        Ok(())
    }

    /// Counts a letter that came back.
    pub(crate) fn count_lost(&self, letter: &Letter) {
        letter.count_lost(&self.counters);
    }

    /// Counts the messages of a batch that nobody will take. Any thread may, once a lane has ended.
    pub(crate) fn count_undelivered(&self, mut batch: &[u8]) {
        let mut messages = 0;
        while BatchEntry::decode(&mut batch).is_some() {
            messages += 1;
        }
        self.counters.mail_undelivered.add_shared(messages);
    }

    /// Counts and drops the letters that a lane that has ended will not take.
    pub(crate) fn discard_letters(&self) {
        while let Some(letter) = self.letters.pop() {
            letter.count_lost(&self.counters);
        }
    }

    /// Leaves work that must not be lost, waiting while the queue is full. Not for lanes. A lane that has ended needs
    /// it no more.
    pub(crate) fn post_waiting(&self, mut post: Post) {
        while let Err(back) = self.post(post) {
            if self.is_retired() {
                return;
            }
            post = back;
            self.doorbell.ring();
            std::thread::yield_now();
        }
    }

    /// Leaves work that must not be lost, from the lane's own thread: where the queue is full another thread waits, because
    /// this one would wait for itself.
    pub(crate) fn post_to_itself(&self, post: Post) {
        let Err(post) = self.post(post) else {
            return;
        };
        if self.is_retired() {
            return;
        }
        let lane = self.clone();
        let thread = std::thread::Builder::new().spawn(move || lane.post_waiting(post));
        if let Err(error) = thread {
            tracing::error!(%error, "a lane cannot be told to end; it goes on until the process ends");
        }
    }

    /// The lane, as in-process connections know it.
    pub(crate) fn party(&self) -> Arc<dyn Party> {
        Arc::new(self.clone())
    }

    /// From now on nothing is taken up any more. Others must not wait for a lane that has ended, nor collect work
    /// for it without end.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    pub(crate) fn take(&self) -> Option<Post> {
        let post = self.queue.pop()?;
        self.batch_bytes
            .fetch_sub(post.batch_bytes(), Ordering::Relaxed);
        Some(post)
    }

    pub(crate) fn take_letter(&self) -> Option<Letter> {
        self.letters.pop()
    }

    pub(crate) fn has_mail(&self) -> bool {
        !self.queue.is_empty() || !self.letters.is_empty()
    }
}

impl Party for LaneHandle {
    fn leave_arrival(&self, stream: RingStream) -> bool {
        let stream = stream.into();
        self.post(Post::Arrive { stream }).is_ok()
    }

    fn leave_placed(&self, ticket: u64) -> bool {
        self.post(Post::Placed { ticket }).is_ok()
    }

    fn is_retired(&self) -> bool {
        Self::is_retired(self)
    }

    fn key(&self) -> usize {
        Arc::as_ptr(&self.retired).addr()
    }
}

/// Posts a lane's queue holds. Each is a whole batch or a connection, so this is many turns' worth.
const POSTS_MAX: usize = 1024;

/// Bytes of batches a lane's queue holds. It and the batch that waits outside together stay below the default lag of
/// a subscriber, so that a lane that was busy for a moment does not find its members too slow at once.
const MAIL_BYTES_MAX: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_gives_the_work_back() {
        let handle = LaneHandle::new(Arc::default()).unwrap();
        for _ in 0..POSTS_MAX {
            assert!(handle.post(Post::Stop).is_ok());
        }
        assert!(matches!(
            handle.post(Post::Batch(vec![1])),
            Err(Post::Batch(_))
        ));
        assert!(handle.has_mail());
    }

    #[test]
    fn batches_are_bounded_in_bytes_too() {
        let handle = LaneHandle::new(Arc::default()).unwrap();
        let batch = || Post::Batch(vec![0; MAIL_BYTES_MAX / 2]);
        assert!(
            handle
                .post(Post::Batch(vec![0; 2 * MAIL_BYTES_MAX]))
                .is_ok(),
            "alone"
        );
        assert!(handle.post(batch()).is_err());
        assert!(handle.take().is_some());
        assert!(handle.post(batch()).is_ok() && handle.post(batch()).is_ok());
        assert!(handle.post(batch()).is_err());
        assert!(
            handle.post(Post::Stop).is_ok(),
            "what is no batch has its place"
        );
    }

    #[test]
    fn a_lane_with_a_full_queue_can_tell_itself_to_stop() {
        let handle = LaneHandle::new(Arc::default()).unwrap();
        for ticket in 0..POSTS_MAX as u64 {
            assert!(handle.post(Post::Placed { ticket }).is_ok());
        }
        handle.post_to_itself(Post::Stop);
        let mut placed = 0;
        loop {
            match handle.take() {
                Some(Post::Placed { .. }) => placed += 1,
                Some(Post::Stop) => break,
                Some(other) => panic!("{other:?}"),
                None => std::thread::yield_now(),
            }
        }
        assert_eq!(placed, POSTS_MAX);
    }

    #[test]
    fn a_lane_that_ended_keeps_nobody_waiting() {
        let handle = LaneHandle::new(Arc::default()).unwrap();
        while handle.post(Post::Stop).is_ok() {}
        handle.retire();
        assert!(matches!(handle.post(Post::Stop), Err(Post::Stop)));
        handle.post_waiting(Post::Stop);
        handle.post_to_itself(Post::Stop);
    }
}
