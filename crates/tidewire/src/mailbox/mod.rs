//! The one way into a lane for other threads: a queue of messages, and a waker that only acts if the lane sleeps.
//!
//! ```text
//!   other lanes ── batches, connections ──┐
//!   any thread ─── answers, sends, closes ├─▶ Mailbox::post ─▶ queue ─▶ Lane::take_messages, whole, once a turn
//!   the server ─── drain, stop ───────────┘        └─ waker, if the lane sleeps
//! ```
//!
//! Messages of one thread are taken in the order in which it posted them. The queue has no size of its own. It is
//! bounded because every message has reserved its place before it is posted, or needs one of a fixed number of places:
//! see [`LaneMessage::is_reserved`]. A message without a place goes back to its sender.
//!
//! The queue is a list under a lock. A sender holds the lock to append one message. The lane holds it once a turn to
//! exchange the whole list for an empty one. So nothing is allocated, and a message costs less than in a lock-free
//! queue. The end of the lane is noted under the same lock. So the lane's last exchange gets all messages that were
//! posted before the end, and no message comes later. See `docs/decisions/0004-one-mailbox.md`.
//!
//! Lanes do not send each other single messages: a lane collects a turn's messages for another lane in one
//! buffer and posts it once. A batch that finds the mailbox full stays with its sender and grows. When it is too
//! large, the sender does not read from its own sessions until the batch is posted, so that nothing is dropped.

mod batch;
mod exchange;
mod inspection;
mod lane_set;
mod load;
mod message;
mod queue;

use std::sync::{Arc, OnceLock, PoisonError};

use crossbeam_utils::CachePadded;
use tidewire_io::process::Process;
use tidewire_io::ring::{Attendant, RingStream};
use tidewire_io::waker::LaneWaker;

pub(crate) use batch::{BatchEntry, SpareBatches, messages_of};
pub(crate) use exchange::{Exchange, Lanes};
pub use inspection::RoomFigures;
pub(crate) use inspection::{Inspection, LaneAnswer, LanesAsked, Question};
pub(crate) use lane_set::{LANES_MAX, LaneSet, RECEIVERS_MAX, Receiver, SharedLaneSet};
pub(crate) use load::{BusyTime, LaneLoad};
pub(crate) use message::{AttemptTurn, LaneMessage, LateOutcome};
pub(crate) use queue::MessageQueue;

use crate::observe::LaneCounters;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::transport::inproc::{Doors, Party};

/// The way into a lane for other threads. See the module.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: CachePadded<Mutex<MessageQueue>>,
    /// Whether the queue has messages. It is written under the lock, and the lane reads it without the lock.
    has_messages: AtomicBool,
    /// Memory of the frames in the queue, for the lane's account. Written under the lock.
    held_bytes: AtomicUsize,
    /// The lane has ended and takes no more messages. Written under the lock.
    retired: AtomicBool,
    pub(crate) waker: Arc<LaneWaker>,
    /// Makes the attendants of the in-process sessions, if other lanes may visit this lane.
    doors: OnceLock<Box<dyn Doors>>,
    /// How much the lane has to do.
    pub(crate) load: LaneLoad,
    counters: Arc<CachePadded<LaneCounters>>,
    /// The process with the lane. In a child by `fork` the lane counts as ended.
    process: Process,
}

impl Mailbox {
    pub(crate) fn new(counters: Arc<CachePadded<LaneCounters>>) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            queue: CachePadded::default(),
            has_messages: AtomicBool::new(false),
            held_bytes: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
            waker: Arc::new(LaneWaker::new()?),
            doors: OnceLock::new(),
            load: LaneLoad::default(),
            counters,
            process: Process::this(),
        }))
    }

    /// Lets other lanes run this lane while it sleeps.
    pub(crate) fn set_doors(&self, doors: Box<dyn Doors>) {
        // A lane begins once.
        let _ = self.doors.set(doors);
    }

    /// The attendant of the in-process session in this slot.
    pub(crate) fn door(&self, slot: usize) -> Option<Arc<dyn Attendant>> {
        self.doors.get().map(|it| it.door(slot))
    }

    /// Posts a message and wakes the lane if it sleeps. Gives the message back if the lane has ended, or if the message
    /// has reserved no place and there is none.
    pub(crate) fn post(&self, message: LaneMessage) -> Result<(), LaneMessage> {
        // Asked first, because nobody unlocks in a child what another thread had locked.
        if !self.process.is_this() {
            return Err(message);
        }
        let mut queue = self.lock();
        if self.is_retired() || !queue.admits(&message) {
            return Err(message);
        }
        if let LaneMessage::Adopt(_) = message {
            self.load.add();
        }
        if queue.is_empty() {
            self.has_messages.store(true, Ordering::Relaxed);
        }
        queue.push(message);
        self.held_bytes.store(queue.held_bytes(), Ordering::Relaxed);
        drop(queue);
        self.waker.wake();
        Ok(())
    }

    /// Moves all messages to the end of `taken`. Only the lane calls it.
    pub(crate) fn take_all(&self, taken: &mut MessageQueue) {
        if self.is_empty() {
            return;
        }
        taken.shrink();
        let mut queue = self.lock();
        taken.append(&mut queue);
        self.has_messages.store(false, Ordering::Relaxed);
        self.held_bytes.store(0, Ordering::Relaxed);
    }

    /// Whether the queue is empty. The waker orders this check against a message that comes while the lane falls
    /// asleep.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_messages.load(Ordering::Relaxed)
    }

    /// Memory of the frames that the lane has not taken.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, MessageQueue> {
        // No code under the lock panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a message of a lane that has ended as undelivered. Any thread may call it.
    pub(crate) fn count_undelivered(&self, message: &LaneMessage) {
        message.count_undelivered(&self.counters);
    }

    /// Counts the messages of a batch that will never be posted.
    pub(crate) fn count_batch_undelivered(&self, batch: &[u8]) {
        batch::count_undelivered(batch, &self.counters);
    }

    /// Posts a message that must not be lost, and waits while the mailbox is full. A lane must not call it. If the lane
    /// has ended, the message is dropped.
    pub(crate) fn post_waiting(&self, mut message: LaneMessage) {
        while let Err(back) = self.post(message) {
            if self.is_retired() {
                return;
            }
            message = back;
            self.waker.wake();
            std::thread::yield_now();
        }
    }

    /// Posts a message that must not be lost from the lane's own thread. If the mailbox is full, another thread
    /// waits, because the lane would wait for itself.
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

    /// Returns this mailbox as the registry of in-process names uses it.
    pub(crate) fn party(self: &Arc<Self>) -> Arc<dyn Party> {
        Arc::clone(self) as Arc<dyn Party>
    }

    /// Refuses all later messages. Messages that were posted before can still be taken. From now on other threads
    /// neither wait for this lane nor collect work for it.
    pub(crate) fn retire(&self) {
        let _queue = self.lock();
        self.retired.store(true, Ordering::SeqCst);
    }

    /// Whether the lane is in this process. It is not in a child by `fork`.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst) || !self.process.is_this()
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

#[cfg(all(test, tidewire_model))]
mod model;
#[cfg(test)]
mod tests {
    use std::thread;

    use super::queue::{BATCH_BYTES_MAX, UNRESERVED_MAX};
    use super::*;
    use crate::session::SessionId;

    fn mailbox() -> Arc<Mailbox> {
        Mailbox::new(Arc::default()).unwrap()
    }

    fn take_all(mailbox: &Mailbox) -> Vec<LaneMessage> {
        let mut taken = MessageQueue::default();
        mailbox.take_all(&mut taken);
        std::iter::from_fn(|| taken.pop()).collect()
    }

    #[test]
    fn a_full_mailbox_gives_the_message_back() {
        let mailbox = mailbox();
        for _ in 0..UNRESERVED_MAX {
            assert!(mailbox.post(LaneMessage::Stop).is_ok());
        }
        let refused = mailbox.post(LaneMessage::Batch(vec![1]));
        assert!(matches!(refused, Err(LaneMessage::Batch(batch)) if batch == [1]));
        assert_eq!(take_all(&mailbox).len(), UNRESERVED_MAX);
        assert!(mailbox.post(LaneMessage::Batch(vec![1])).is_ok());
    }

    #[test]
    fn a_message_with_a_reserved_place_finds_it_in_a_full_mailbox() {
        let mailbox = mailbox();
        while mailbox.post(LaneMessage::Stop).is_ok() {}
        let id = SessionId::NONE;
        assert!(
            mailbox
                .post(LaneMessage::Close { id, farewell: None })
                .is_ok()
        );
        let taken = take_all(&mailbox);
        assert_eq!(taken.len(), UNRESERVED_MAX + 1);
        assert!(matches!(taken.last(), Some(LaneMessage::Close { .. })));
        assert!(mailbox.is_empty());
    }

    #[test]
    fn batches_are_bounded_in_bytes_too() {
        let mailbox = mailbox();
        let post = |bytes| mailbox.post(LaneMessage::Batch(vec![0; bytes]));
        assert!(post(2 * BATCH_BYTES_MAX).is_ok(), "alone");
        assert!(post(BATCH_BYTES_MAX / 2).is_err());
        assert_eq!(take_all(&mailbox).len(), 1);
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
        assert_eq!(take_all(&mailbox).len(), UNRESERVED_MAX);
        while mailbox.is_empty() {
            thread::yield_now();
        }
        assert!(matches!(take_all(&mailbox)[..], [LaneMessage::Stop]));
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

    /// Regression: a message posted while the lane ended was dropped, and a connection stayed counted.
    #[test]
    fn a_message_posted_while_a_lane_ends_is_taken_or_given_back() {
        const EACH: usize = 1000;
        let mailbox = mailbox();
        let post_all = || {
            let message = || LaneMessage::Close {
                id: SessionId::NONE,
                farewell: None,
            };
            (0..EACH)
                .filter(|_| mailbox.post(message()).is_err())
                .count()
        };
        let (given_back, taken) = thread::scope(|scope| {
            let posters = [scope.spawn(post_all), scope.spawn(post_all)];
            let mut taken = 0;
            while taken < EACH / 2 {
                taken += take_all(&mailbox).len();
            }
            mailbox.retire();
            taken += take_all(&mailbox).len();
            let given_back = posters.map(|poster| poster.join().unwrap());
            (given_back.iter().sum::<usize>(), taken)
        });
        assert_eq!(given_back + taken, 2 * EACH);
        assert!(take_all(&mailbox).is_empty());
    }

    #[test]
    fn a_queue_keeps_its_memory_but_not_that_of_a_flood() {
        let mailbox = mailbox();
        let mut taken = MessageQueue::default();
        for (messages, most) in [(100, 256), (100_000, 1 << 17), (1, 8192), (1, 8192)] {
            for _ in 0..messages {
                let id = SessionId::NONE;
                assert!(
                    mailbox
                        .post(LaneMessage::Close { id, farewell: None })
                        .is_ok()
                );
            }
            mailbox.take_all(&mut taken);
            let count = std::iter::from_fn(|| taken.pop()).count();
            assert_eq!(count, messages);
            assert!(taken.capacity() <= most);
        }
    }

    #[test]
    fn a_place_in_the_queue_is_as_small_as_an_answer() {
        let answer = size_of::<crate::session::Answer>();
        assert_eq!((size_of::<LaneMessage>(), answer), (48, 48));
    }
}
