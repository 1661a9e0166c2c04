//! The events from a client's lane to the application, bounded in number and bytes.
//!
//! Problem: an application that stops taking events must not cost unbounded memory. Its other traffic must not stop
//! either, unless the application chooses so. Approach: one pair of bounds, and a policy at these bounds.
//! [`State::admit`] applies the policy, and [`Reading`] decides whether the lane reads. An event reports the number of
//! dropped events.
//!
//! Rejected: one bound for all queues of a client. One unread queue, often the queue of the client's own events, would
//! use up the room of all queues.

use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tidewire_io::process::Process;

use super::sync::{OnceWaker, WakeLane};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use state::EventBounds;
use state::State;
pub use state::WhenEventsFull;

mod state;

/// An event of an [`EventQueue`]. The trait is public because it seals [`ClientEvent`](super::ClientEvent), but it
/// cannot be named outside this crate.
pub trait Queued: PartialEq {
    /// The event that reports this many dropped events.
    fn lost(count: u64) -> Self;

    /// The event that ends the queue.
    fn ended() -> Self;

    /// Number of events that this event reports as missing.
    fn missing(&self) -> u64;

    fn heap_bytes(&self) -> usize;

    /// The topic, if a newer message of the same topic may replace this event.
    fn topic(&self) -> Option<&Arc<str>>;
}

/// A bounded queue of events from a client's lane to the application.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    state: Mutex<State<E>>,
    ready: Condvar,
    bounds: EventBounds,
    reading: Arc<Reading>,
}

/// Decides whether the lane may read, by how full the event queues are.
///
/// A queue that is full under [`PauseReading`](WhenEventsFull::PauseReading) adds 1 to a count here, and subtracts it
/// when half of its events have been taken. The lane reads while the count is 0. The lane checks the count after each
/// event, so it stops right after the event that filled a queue. The thread that brings the count back to 0 wakes the
/// lane.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    full_queues: AtomicUsize,
    /// Whether a queue that can pause reading was created.
    may_be_held: AtomicBool,
    dropped: AtomicU64,
    /// The process with the lane. In a child by `fork` all queues have ended.
    process: Process,
    waker: OnceWaker,
}

/// A future's registration with a queue. End the registration with [`EventQueue::forget`], so that there are never more
/// wakers than futures.
#[derive(Debug, Default)]
pub(super) struct Waiter(Option<u64>);

impl<E: Queued> EventQueue<E> {
    pub(crate) fn new(bounds: EventBounds, reading: Arc<Reading>) -> Self {
        if bounds.when_full == WhenEventsFull::PauseReading {
            reading.note_pausing();
        }
        Self {
            state: Mutex::default(),
            ready: Condvar::new(),
            bounds,
            reading,
        }
    }

    pub(crate) fn push(&self, event: E) {
        let is_end = event == E::ended();
        let (is_awaited, waker, others, at_end) = {
            let mut state = self.lock();
            state.ended |= is_end;
            // `take` reports the end after all other events, however full the queue is. No event follows the end.
            if !state.ended {
                let dropped = state.admit(event, &self.bounds);
                self.reading.count_dropped(dropped);
                self.note_level(&mut state);
            }
            // The last waker is taken alone. Usually it is the only one, and then the list keeps its memory.
            let waker = state.wakers.pop();
            let others = match state.wakers.len() {
                0 => Vec::new(),
                _ => std::mem::take(&mut state.wakers),
            };
            let at_end = match is_end {
                true => std::mem::take(&mut state.at_end),
                false => Vec::new(),
            };
            (state.waiting > 0, waker, others, at_end)
        };
        if is_awaited && is_end {
            // Every thread gets the end, and no later event would wake the others.
            self.ready.notify_all();
        } else if is_awaited {
            self.ready.notify_one();
        }
        // Wake all tasks, because one task may have stopped polling. Tasks that find no event register again.
        for (_, waker) in waker.into_iter().chain(others).chain(at_end) {
            waker.wake();
        }
    }

    /// Drops all events, also later events, because the application will not take them.
    pub(crate) fn discard(&self) {
        if !self.reading.process.is_this() {
            return;
        }
        let mut state = self.lock();
        let events = state.discard();
        self.note_level(&mut state);
        drop(state);
        drop(events);
    }

    /// Blocks until there is an event. Returns `None` at the timeout.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Option<E> {
        if !self.reading.process.is_this() {
            return Some(E::ended());
        }
        // A timeout beyond the range of the clock is no timeout.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock();
        loop {
            if let Some(event) = self.take(&mut state) {
                return Some(event);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            state.waiting += 1;
            state = match left {
                None => self
                    .ready
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let woken = self.ready.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.waiting -= 1;
        }
    }

    /// Polls the next event. Without an event, the task is woken when one may have come.
    pub(super) fn poll_next(&self, waiter: &mut Waiter, cx: &mut Context<'_>) -> Poll<E> {
        if !self.reading.process.is_this() {
            return Poll::Ready(E::ended());
        }
        let mut state = self.lock();
        if let Some(event) = self.take(&mut state) {
            return Poll::Ready(event);
        }
        let number = *waiter.0.get_or_insert_with(|| state.new_number());
        let replaced = note(&mut state.wakers, number, cx.waker());
        // Unlock first: dropping a waker may run code of its executor, which may take this lock.
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// Ready when no more events are pushed. Events in the queue stay.
    pub(super) fn poll_end(&self, waiter: &mut Waiter, cx: &mut Context<'_>) -> Poll<()> {
        if !self.reading.process.is_this() {
            return Poll::Ready(());
        }
        let mut state = self.lock();
        if state.ended {
            return Poll::Ready(());
        }
        let number = *waiter.0.get_or_insert_with(|| state.new_number());
        let replaced = note(&mut state.at_end, number, cx.waker());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    pub(super) fn forget(&self, waiter: &mut Waiter) {
        if let Some(number) = waiter.0.take()
            && self.reading.process.is_this()
        {
            let mut state = self.lock();
            let State { wakers, at_end, .. } = &mut *state;
            let mut own = None;
            for list in [wakers, at_end] {
                if let Some(index) = list.iter().position(|(known, _)| *known == number) {
                    own = Some(list.swap_remove(index));
                }
            }
            drop(state);
            drop(own);
        }
    }

    fn take(&self, state: &mut State<E>) -> Option<E> {
        let event = state.take(self.bounds.when_full);
        self.note_level(state);
        event
    }

    /// Makes the lane stop reading when the queue is full, and resume when half of the events have been taken. The gap
    /// keeps lane and application from waking each other for every event.
    fn note_level(&self, state: &mut State<E>) {
        if self.bounds.when_full != WhenEventsFull::PauseReading {
            return;
        }
        let part = if state.holds_reading { 2 } else { 1 };
        let is_full =
            state.is_at_bound(self.bounds.events_max / part, self.bounds.bytes_max / part);
        if is_full == state.holds_reading {
            return;
        }
        state.holds_reading = is_full;
        if is_full {
            self.reading.hold();
        } else {
            self.reading.release();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    pub(super) fn waker(&self) -> &OnceWaker {
        &self.waker
    }

    /// Whether a queue is full. Relaxed is enough: the count changes before the lane is woken, and the waker orders
    /// memory.
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

    /// Removes a queue that has room again, and wakes the lane if no other queue is full.
    pub(super) fn release(&self) {
        if self.full_queues.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.waker.wake();
        }
    }
}

/// Stores the waker of the task with this number. Returns its previous waker.
fn note(wakers: &mut Vec<(u64, Waker)>, number: u64, task: &Waker) -> Option<Waker> {
    match wakers.iter_mut().find(|(known, _)| *known == number) {
        Some((_, waker)) if waker.will_wake(task) => None,
        Some((_, waker)) => Some(std::mem::replace(waker, task.clone())),
        None => {
            wakers.push((number, task.clone()));
            None
        }
    }
}

impl<E> Drop for EventQueue<E> {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if state.unwrap_or_else(PoisonError::into_inner).holds_reading {
            self.reading.release();
        }
    }
}

const EVENTS_MAX: usize = 65_536;

/// Default bytes that a queue holds. The default equals the server's bound for a slow subscriber, so an application
/// that is fast enough for one bound is fast enough for both. It is also the size of `EVENTS_MAX` events without
/// payload.
const EVENT_BYTES_MAX: usize = 8 << 20;

/// Bytes that each event counts beside its payload: its element in a list that doubles when it grows, and an
/// allocation's header.
const EVENT_OVERHEAD_BYTES: usize = 128;

#[cfg(all(test, tidewire_model))]
mod model;
#[cfg(test)]
mod tests;
