//! Events on their way from a client's lane to the application, bounded in number and bytes.
//!
//! Problem: an application that stops taking its events must cost neither unbounded memory nor, unless it wants that,
//! its other business with the server. Approach: one bound, and a policy for what happens at it. A policy decides in
//! [`State::admit`] which event is dropped, and in [`State::is_at_bound`] whether the lane is to [stop
//! reading](super::reading); everything else is common. What is dropped is counted, and told in band where it is missing.
//!
//! Rejected: a bound for all queues of a client together. One queue that nobody looks at, often that of the client's
//! own events, would take the room of all others.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::reading::Reading;
pub(crate) use state::EventBounds;
use state::State;
pub use state::WhenEventsFull;

mod state;

/// An event that travels through an [`EventQueue`]. Public, because it seals [`ClientEvent`](super::ClientEvent), and without a
/// name outside of this crate.
pub trait Queued: PartialEq {
    /// The application did not take its events; this many are missing.
    fn lost(count: u64) -> Self;

    /// Nothing follows.
    fn ended() -> Self;

    /// How many events this one says are missing.
    fn missing(&self) -> u64;

    /// Bytes that it holds beside itself.
    fn heap_bytes(&self) -> usize;

    /// The topic, if a newer message of it may take its place.
    fn topic(&self) -> Option<&Arc<str>>;
}

/// Events between a client's lane and the application; bounded.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    state: Mutex<State<E>>,
    ready: Condvar,
    bounds: EventBounds,
    reading: Arc<Reading>,
}

/// A future's place among those that wait for a queue. Give it back with [`EventQueue::forget`], so that there are never more
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
            // `take` tells the end when everything else has been taken, however full the queue is. Nothing follows.
            if !state.ended {
                let dropped = state.admit(event, &self.bounds);
                self.reading.count_dropped(dropped);
                self.note_level(&mut state);
            }
            // The last one by itself, which is mostly the only one: so the list keeps its memory.
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
            // The end is everybody's, and nothing follows that would wake the others.
            self.ready.notify_all();
        } else if is_awaited {
            self.ready.notify_one();
        }
        // All tasks, because one that is woken may have stopped asking; those that find nothing wait again.
        for (_, waker) in waker.into_iter().chain(others).chain(at_end) {
            waker.wake();
        }
    }

    /// Drops the events that are here and all that would follow: the application will not take them.
    pub(crate) fn discard(&self) {
        let mut state = self.lock();
        let events = state.discard();
        self.note_level(&mut state);
        drop(state);
        drop(events);
    }

    /// The next event; `None` when the time is over.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Option<E> {
        // A time that no clock reaches is none.
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

    /// The next event, or its task is woken when there may be one.
    pub(super) fn poll_next(&self, waiter: &mut Waiter, cx: &mut Context<'_>) -> Poll<E> {
        let mut state = self.lock();
        if let Some(event) = self.take(&mut state) {
            return Poll::Ready(event);
        }
        let number = *waiter.0.get_or_insert_with(|| state.new_number());
        let replaced = note(&mut state.wakers, number, cx.waker());
        // Dropping a waker may run code of its executor, which must find the lock free.
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// Ready when nothing more is pushed. The events that are here stay.
    pub(super) fn poll_end(&self, waiter: &mut Waiter, cx: &mut Context<'_>) -> Poll<()> {
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

    /// A future does not wait any more.
    pub(super) fn forget(&self, waiter: &mut Waiter) {
        if let Some(number) = waiter.0.take() {
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

    /// Has the lane stop reading when the queue is full, and go on when half of it has been taken: in between nothing
    /// changes, so that the two do not wake each other for every event.
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

/// Takes note of the task that waits under this number. Returns its waker before that.
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

/// Events of a queue that nobody takes.
const EVENTS_MAX: usize = 65_536;

/// Bytes of a queue that nobody takes: as many as a server holds for a slow subscriber, so that whoever keeps up with one
/// bound keeps up with the other. It is also what `EVENTS_MAX` events without payload count as.
const EVENT_BYTES_MAX: usize = 8 << 20;

/// Bytes that an event counts beside its payload: its place in a list that doubles when it grows, and an allocation's header.
const EVENT_OVERHEAD_BYTES: usize = 128;

#[cfg(test)]
mod tests;
