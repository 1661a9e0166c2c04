//! Decides whether a client's lane may read, by how full the event queues are.
//!
//! An event queue that is full under [`WhenEventsFull::PauseReading`](super::WhenEventsFull::PauseReading) adds 1 to a count
//! here, and subtracts it when half of its events have been taken. The lane reads while the count is 0. It checks the count
//! after each event, so it stops right after the event that filled a queue. The thread that brings the count back to 0 wakes
//! the lane.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::sync::{OnceWaker, WakeLane};

/// The count of full event queues. See the module.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    full_queues: AtomicUsize,
    /// Whether a queue that can pause reading was created.
    may_be_held: AtomicBool,
    /// Events that queues dropped because the application did not take them.
    dropped: AtomicU64,
    waker: OnceWaker,
}

impl Reading {
    pub(super) fn waker(&self) -> &OnceWaker {
        &self.waker
    }

    /// Whether a queue is full. Relaxed is enough: the count changes before the lane is woken, and the waker orders memory.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.full_queues.load(Ordering::Relaxed) > 0
    }

    /// Records that a queue exists that can pause reading.
    pub(super) fn note_pausing(&self) {
        self.may_be_held.store(true, Ordering::Relaxed);
    }

    /// Whether reading may be paused at some time, so that a reply may stay unread without a time limit.
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

    /// Adds a queue that became full.
    pub(super) fn hold(&self) {
        self.full_queues.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a queue that has room again, and wakes the lane if it was the last full one.
    pub(super) fn release(&self) {
        if self.full_queues.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.waker.wake();
        }
    }
}
