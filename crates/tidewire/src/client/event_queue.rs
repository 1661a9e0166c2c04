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
use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_io::process::Process;

use super::sync::WakeLane;
use super::waiting::{ClientLane, Waiting};
use crate::limits::nanoseconds;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
pub(crate) use state::EventBounds;
pub use state::WhenEventsFull;
use state::{State, Woken};

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
    lane: ClientLane,
}

/// The registration of a future or a thread with a queue. End the registration with [`EventQueue::forget`], so that
/// there are never more wakers than futures and threads.
#[derive(Debug, Default)]
pub(super) struct Waiter(Option<u64>);

impl<E: Queued> EventQueue<E> {
    pub(crate) fn new(bounds: EventBounds, reading: Arc<Reading>) -> Self {
        if bounds.when_full == WhenEventsFull::PauseReading {
            reading.note_pausing();
        }
        Self {
            state: Mutex::default(),
            bounds,
            reading,
        }
    }

    pub(crate) fn push(&self, event: E) {
        let is_end = event == E::ended();
        let (woken, at_end) = {
            let mut state = self.lock();
            state.ended |= is_end;
            // `take` reports the end after all other events, however full the queue is. No event follows the end.
            if !state.ended {
                let dropped = state.admit(event, &self.bounds);
                self.reading.count_dropped(dropped);
                self.note_level(&mut state);
            }
            let at_end = match is_end {
                true => std::mem::take(&mut state.at_end),
                false => Vec::new(),
            };
            (state.take_waiting(), at_end)
        };
        woken.wake();
        for (_, waiting) in at_end {
            waiting.waker.wake();
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
        let until_ns = timeout.and_then(|it| now_ns().checked_add(nanoseconds(it)));
        let mut event = self.take(&mut self.lock());
        if event.is_some() || timeout.is_some_and(|it| it.is_zero()) {
            return event;
        }
        let mut waiter = Waiter::default();
        self.reading.lane.wait(until_ns, &mut |waker| {
            event = match waker {
                None => self.take(&mut self.lock()),
                Some(waker) => self.take_or_wait(&mut waiter, waker),
            };
            event.is_some()
        });
        self.forget(&mut waiter);
        event
    }

    /// Polls the next event. Without an event, the task is woken when one may have come.
    pub(super) fn poll_next(&self, waiter: &mut Waiter, cx: &mut Context<'_>) -> Poll<E> {
        if !self.reading.process.is_this() {
            return Poll::Ready(E::ended());
        }
        match self.take_or_wait(waiter, cx.waker()) {
            Some(event) => Poll::Ready(event),
            None => {
                self.reading.lane.wake_for_task();
                Poll::Pending
            }
        }
    }

    /// Takes the next event, or registers this waker.
    fn take_or_wait(&self, waiter: &mut Waiter, waker: &Waker) -> Option<E> {
        let mut state = self.lock();
        let event = self.take(&mut state);
        if event.is_none() {
            let number = *waiter.0.get_or_insert_with(|| state.new_number());
            let replaced = note(&mut state.waiting, number, waker, &self.reading.lane);
            // Unlock first: dropping a waker may run code of its executor, which may take this lock.
            drop(state);
            drop(replaced);
        }
        event
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
        let replaced = note(&mut state.at_end, number, cx.waker(), &self.reading.lane);
        drop(state);
        drop(replaced);
        self.reading.lane.wake_for_task();
        Poll::Pending
    }

    pub(super) fn forget(&self, waiter: &mut Waiter) {
        if let Some(number) = waiter.0.take()
            && self.reading.process.is_this()
        {
            let mut state = self.lock();
            let State {
                waiting, at_end, ..
            } = &mut *state;
            let mut own = None;
            for list in [waiting, at_end] {
                if let Some(index) = list.iter().position(|(known, _)| *known == number) {
                    own = Some(list.swap_remove(index));
                }
            }
            // This thread may have been woken for an event that it did not take. Then another one must have it.
            let woken = match own.is_none() && !state.is_empty() {
                true => state.take_waiting(),
                false => Woken::default(),
            };
            drop(state);
            drop(own);
            woken.wake();
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
    pub(super) fn new(lane: ClientLane) -> Self {
        Self {
            lane,
            ..Self::default()
        }
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
            self.lane.wake();
        }
    }
}

/// Stores the waker of the task or thread with this number. Returns what it replaces.
fn note(
    list: &mut Vec<(u64, Waiting)>,
    number: u64,
    waker: &Waker,
    lane: &ClientLane,
) -> Option<Waiting> {
    let known = list.iter_mut().find(|(known, _)| *known == number);
    match known {
        Some((_, waiting)) if waiting.waker.will_wake(waker) => None,
        Some((_, waiting)) => Some(std::mem::replace(waiting, lane.note_waiting(waker))),
        None => {
            list.push((number, lane.note_waiting(waker)));
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
