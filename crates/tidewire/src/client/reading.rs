//! Whether a client's lane may read on, decided by the application that takes the events.
//!
//! A queue of events that is full under [`WhenEventsFull::PauseReading`](super::WhenEventsFull::PauseReading) counts
//! itself in here, and out again when half of it has been taken. The lane reads while the count is 0. It looks at it
//! after each event, so it stops after the one that filled a queue; the thread that takes the last full queue's count
//! back wakes the lane.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::sync::{OnceWaker, WakeLane};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    full_queues: AtomicUsize,
    /// There was a queue that may count itself in.
    may_be_held: AtomicBool,
    /// Events that queues dropped because the application did not take them.
    dropped: AtomicU64,
    waker: OnceWaker,
}

impl Reading {
    pub(super) fn waker(&self) -> &OnceWaker {
        &self.waker
    }

    /// Whether a queue is full. The waker orders memory: the lane is woken after the count has changed.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.full_queues.load(Ordering::Relaxed) > 0
    }

    /// A queue that holds reading when it is full exists from now on.
    pub(super) fn note_pausing(&self) {
        self.may_be_held.store(true, Ordering::Relaxed);
    }

    /// Whether reading may be held, so that an answer may wait unread for any time.
    pub(super) fn may_be_held(&self) -> bool {
        self.may_be_held.load(Ordering::Relaxed)
    }

    pub(super) fn count_dropped(&self, events: u64) {
        if events > 0 {
            self.dropped.fetch_add(events, Ordering::Relaxed);
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts a queue that became full.
    pub(super) fn hold(&self) {
        self.full_queues.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts out a queue that has room again.
    pub(super) fn release(&self) {
        if self.full_queues.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.waker.wake();
        }
    }
}
