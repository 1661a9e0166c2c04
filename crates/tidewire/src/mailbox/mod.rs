//! The one way into a lane for other threads: a queue of messages, and a doorbell that wakes only a sleeper.
//!
//! ```text
//!   other lanes ── batches, connections ──┐
//!   any thread ─── answers, sends, closes ├─▶ Mailbox::post ─▶ queue ─▶ Lane::take_messages, once a turn
//!   the server ─── drain, stop ───────────┘        └─ doorbell, if the lane sleeps
//! ```
//!
//! Messages of one thread are taken in the order in which it posted them. The queue has no size of its own. It is bounded
//! because every message has its place before it is posted, or finds one of a fixed number of places: see
//! [`LaneMessage::is_reserved`]. A message that finds none goes back to its sender.
//!
//! Lanes do not send each other single messages: what a turn produced for another lane is collected in one
//! buffer and posted once. A batch that finds the mailbox full stays with its sender and grows; when it is too
//! large the sender reads no more from its own sessions until it is gone, so that nothing is dropped.

mod batch;
mod exchange;
mod hand_over;
mod message;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use tidewire_io::doorbell::Doorbell;
use tidewire_io::ring::RingStream;

pub(crate) use batch::{BatchEntry, SpareBatches};
pub(crate) use exchange::{Exchange, Lanes};
pub use hand_over::HandOverError;
pub(crate) use message::LaneMessage;

use crate::observe::LaneCounters;
use crate::transport::inproc::Party;

/// What other threads hold of a lane.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: SegQueue<LaneMessage>,
    unreserved: CachePadded<Unreserved>,
    pub(crate) doorbell: Arc<Doorbell>,
    /// The lane has ended; nobody will take what is posted.
    retired: AtomicBool,
    counters: Arc<CachePadded<LaneCounters>>,
}

/// The messages in the queue that have not [reserved](LaneMessage::is_reserved) their place. Touched once per batch or
/// connection.
#[derive(Debug, Default)]
struct Unreserved {
    count: AtomicUsize,
    /// Bytes of the batches: their number alone would bound them at a thousand times any batch.
    batch_bytes: AtomicUsize,
}

impl Unreserved {
    /// Takes a place for a message, if there is one.
    fn enter(&self, message: &LaneMessage) -> bool {
        if self.count.fetch_add(1, Ordering::Relaxed) >= UNRESERVED_MAX {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        let bytes = message.batch_bytes();
        if bytes == 0 {
            return true;
        }
        let held = self.batch_bytes.fetch_add(bytes, Ordering::Relaxed);
        // A batch alone is always let in, or one that is too large would never arrive.
        let has_room = held == 0 || held + bytes <= BATCH_BYTES_MAX;
        if !has_room {
            self.leave(message);
        }
        has_room
    }

    fn leave(&self, message: &LaneMessage) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let bytes = message.batch_bytes();
        if bytes > 0 {
            self.batch_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Mailbox {
    pub(crate) fn new(counters: Arc<CachePadded<LaneCounters>>) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            queue: SegQueue::new(),
            unreserved: CachePadded::default(),
            doorbell: Arc::new(Doorbell::new()?),
            retired: AtomicBool::new(false),
            counters,
        }))
    }

    /// Leaves a message and wakes the lane if it sleeps; never waits. Gives the message back if the lane has ended, or if
    /// the message has reserved no place and finds none.
    pub(crate) fn post(&self, message: LaneMessage) -> Result<(), LaneMessage> {
        if self.is_retired() || !(message.is_reserved() || self.unreserved.enter(&message)) {
            return Err(message);
        }
        self.queue.push(message);
        self.doorbell.ring();
        if self.is_retired() {
            // It ended in between, and may have looked for the last time: a connection must not be left open here.
            while let Some(message) = self.take() {
                self.count_undelivered(&message);
            }
        }
        Ok(())
    }

    /// Takes the next message out. Only for the lane, and for any thread once it has ended.
    #[inline]
    pub(crate) fn take(&self) -> Option<LaneMessage> {
        let message = self.queue.pop()?;
        if !message.is_reserved() {
            self.unreserved.leave(&message);
        }
        Some(message)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether there is a message that reserved no place: of another lane, or for the lane itself.
    pub(crate) fn has_unreserved(&self) -> bool {
        self.unreserved.count.load(Ordering::Relaxed) > 0
    }

    /// Counts a message that nobody will take. Any thread may, once a lane has ended.
    pub(crate) fn count_undelivered(&self, message: &LaneMessage) {
        message.count_undelivered(&self.counters);
    }

    /// Counts the messages of a batch that was not posted and never will be.
    pub(crate) fn count_batch_undelivered(&self, batch: &[u8]) {
        batch::count_undelivered(batch, &self.counters);
    }

    /// Leaves a message that must not be lost, waiting while the mailbox is full. Not for lanes. A lane that has ended
    /// needs it no more.
    pub(crate) fn post_waiting(&self, mut message: LaneMessage) {
        while let Err(back) = self.post(message) {
            if self.is_retired() {
                return;
            }
            message = back;
            self.doorbell.ring();
            std::thread::yield_now();
        }
    }

    /// Leaves a message that must not be lost, from the lane's own thread: where the mailbox is full another thread
    /// waits, because this one would wait for itself.
    pub(crate) fn post_to_itself(self: &Arc<Self>, message: LaneMessage) {
        let Err(message) = self.post(message) else {
            return;
        };
        if self.is_retired() {
            return;
        }
        let mailbox = Arc::clone(self);
        let thread = std::thread::Builder::new().spawn(move || mailbox.post_waiting(message));
        if let Err(error) = thread {
            tracing::error!(%error, "a lane cannot be told to end; it goes on until the process ends");
        }
    }

    /// The lane, as in-process connections know it.
    pub(crate) fn party(self: &Arc<Self>) -> Arc<dyn Party> {
        Arc::clone(self) as Arc<dyn Party>
    }

    /// From now on nothing is taken up any more. Others must not wait for a lane that has ended, nor collect work
    /// for it without end.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }
}

impl Party for Mailbox {
    fn leave_arrival(&self, stream: RingStream) -> bool {
        let stream = stream.into();
        self.post(LaneMessage::Arrive { stream }).is_ok()
    }

    fn leave_placed(&self, ticket: u64) -> bool {
        self.post(LaneMessage::Placed { ticket }).is_ok()
    }

    fn is_retired(&self) -> bool {
        Self::is_retired(self)
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Messages without a reserved place that a mailbox holds. Each is a whole batch or a connection, so this is many turns'
/// worth.
const UNRESERVED_MAX: usize = 1024;

/// Bytes of batches that a mailbox holds. It and the batch that waits outside together stay below the default lag of
/// a subscriber, so that a lane that was busy for a moment does not find its members too slow at once.
const BATCH_BYTES_MAX: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::SessionId;

    fn mailbox() -> Arc<Mailbox> {
        Mailbox::new(Arc::default()).unwrap()
    }

    #[test]
    fn a_full_mailbox_gives_the_message_back() {
        let mailbox = mailbox();
        for _ in 0..UNRESERVED_MAX {
            assert!(mailbox.post(LaneMessage::Stop).is_ok());
        }
        let refused = mailbox.post(LaneMessage::Batch(vec![1]));
        assert!(matches!(refused, Err(LaneMessage::Batch(batch)) if batch == [1]));
        assert!(mailbox.take().is_some());
        assert!(mailbox.post(LaneMessage::Batch(vec![1])).is_ok());
        assert!(mailbox.post(LaneMessage::Stop).is_err());
    }

    #[test]
    fn a_message_with_a_reserved_place_finds_it_in_a_full_mailbox() {
        let mailbox = mailbox();
        while mailbox.post(LaneMessage::Stop).is_ok() {}
        let id = SessionId::NONE;
        assert!(mailbox.post(LaneMessage::Close { id }).is_ok());
        let taken: Vec<LaneMessage> = std::iter::from_fn(|| mailbox.take()).collect();
        assert_eq!(taken.len(), UNRESERVED_MAX + 1);
        assert!(matches!(taken.last(), Some(LaneMessage::Close { .. })));
        assert!(mailbox.is_empty() && !mailbox.has_unreserved());
    }

    #[test]
    fn batches_are_bounded_in_bytes_too() {
        let mailbox = mailbox();
        let post = |bytes| mailbox.post(LaneMessage::Batch(vec![0; bytes]));
        assert!(post(2 * BATCH_BYTES_MAX).is_ok(), "alone");
        assert!(post(BATCH_BYTES_MAX / 2).is_err());
        assert!(mailbox.take().is_some());
        assert!(post(BATCH_BYTES_MAX / 2).is_ok() && post(BATCH_BYTES_MAX / 2).is_ok());
        assert!(post(BATCH_BYTES_MAX / 2).is_err());
        assert!(
            mailbox.post(LaneMessage::Stop).is_ok(),
            "what is no batch has its place"
        );
    }

    #[test]
    fn a_lane_with_a_full_mailbox_can_tell_itself_to_stop() {
        let mailbox = mailbox();
        for ticket in 0..UNRESERVED_MAX as u64 {
            assert!(mailbox.post(LaneMessage::Placed { ticket }).is_ok());
        }
        mailbox.post_to_itself(LaneMessage::Stop);
        let mut placed = 0;
        loop {
            match mailbox.take() {
                Some(LaneMessage::Placed { .. }) => placed += 1,
                Some(LaneMessage::Stop) => break,
                Some(other) => panic!("{other:?}"),
                None => std::thread::yield_now(),
            }
        }
        assert_eq!(placed, UNRESERVED_MAX);
    }

    #[test]
    fn a_lane_that_ended_keeps_nobody_waiting() {
        let mailbox = mailbox();
        while mailbox.post(LaneMessage::Stop).is_ok() {}
        mailbox.retire();
        let refused = mailbox.post(LaneMessage::Stop);
        assert!(matches!(refused, Err(LaneMessage::Stop)));
        mailbox.post_waiting(LaneMessage::Stop);
        mailbox.post_to_itself(LaneMessage::Stop);
    }

    #[test]
    fn a_place_in_the_queue_is_as_small_as_an_answer() {
        let answer = size_of::<crate::session::Answer>();
        assert_eq!((size_of::<LaneMessage>(), answer), (48, 48));
    }
}
