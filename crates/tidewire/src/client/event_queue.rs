//! Events on their way from a client's lane to the application, bounded in number and bytes.
//!
//! Problem: an application that stops taking its events must cost neither unbounded memory nor, unless it wants that,
//! its other business with the server. Approach: one bound, and a policy for what happens at it. A policy decides in
//! [`State::admit`] which event is dropped, and in [`State::is_at_bound`] whether the lane is to [stop
//! reading](super::reading); everything else is common. What is dropped is counted, and told in band where it is missing.
//!
//! Rejected: a bound for all queues of a client together. One queue that nobody looks at, often that of the client's
//! own events, would take the room of all others.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::reading::Reading;

/// The policy of a client whose application does not take its events, when a queue of them is
/// [full](super::ClientBuilder::event_bytes_max).
///
/// Whatever is dropped is counted in [`Metrics::events_dropped`](crate::Metrics::events_dropped), and
/// [`Event::Lost`](super::Event::Lost) or [`TopicEvent::Lost`](super::TopicEvent::Lost) says how many are missing, at the
/// place where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenEventsFull {
    /// The oldest event is dropped for each new one. The default: replies are read whatever happens to events, so a
    /// thread may wait for one while nobody takes events.
    #[default]
    DropOldest,
    /// New events are dropped until there is room.
    DropNewest,
    /// The client reads nothing from its connection until half of the queue has been taken. So nothing is dropped here,
    /// and the server's policy for slow subscribers decides: its gaps say what it dropped.
    ///
    /// Replies are not read either. A thread that waits for one while no thread takes events waits until the
    /// [timeout](super::ClientBuilder::request_timeout). Take the events of every queue, those of the client and those of
    /// each subscription, on threads or tasks that do not wait for replies.
    ///
    /// Events of the client itself, and messages that a peer left behind, cannot be held back: they take as
    /// much room again, and then the oldest event is dropped. Over UDP the system drops what is not read, and nothing
    /// says how much was for this client, so another policy is better there.
    PauseReading,
}

/// The most that a queue holds, and what happens then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventBounds {
    pub(crate) events_max: usize,
    /// Payloads and texts, and [`EVENT_OVERHEAD_BYTES`] for each event.
    pub(crate) bytes_max: usize,
    pub(crate) when_full: WhenEventsFull,
}

/// An event that travels through an [`EventQueue`].
pub(crate) trait Queued {
    /// The application did not take its events; this many are missing.
    fn lost(count: u64) -> Self;

    /// Nothing follows.
    fn ended() -> Self;

    /// How many events this one says are missing.
    fn missing(&self) -> u64;

    /// Bytes that it holds beside itself.
    fn heap_bytes(&self) -> usize;
}

/// Events between a client's lane and the application; bounded.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    state: Mutex<State<E>>,
    ready: Condvar,
    /// Apart from `ready`, so that who waits for the end takes no wake from who waits for an event.
    at_end: Condvar,
    bounds: EventBounds,
    reading: Arc<Reading>,
}

#[derive(Debug)]
struct State<E> {
    events: VecDeque<E>,
    /// As [`EventBounds::bytes_max`] counts them.
    bytes: usize,
    /// Dropped and not told yet: before the first event, or behind the last one if new ones are dropped.
    lost: u64,
    ended: bool,
    /// It counts as full in [`Reading`].
    holds_reading: bool,
    /// Threads blocked in [`EventQueue::next`]: waking where nobody waits would be a system call per event.
    waiting: usize,
    /// Of the futures that wait, each under its number.
    wakers: Vec<(u64, Waker)>,
    /// The number of the next future.
    next_number: u64,
}

/// A wait for the next event. It takes its waker back when it is dropped, so that there are never more than futures.
struct Next<'a, E: Queued + PartialEq> {
    queue: &'a EventQueue<E>,
    /// Once it had to wait.
    number: Option<u64>,
}

impl<E: Queued + PartialEq> EventQueue<E> {
    pub(crate) fn new(bounds: EventBounds, reading: Arc<Reading>) -> Self {
        Self {
            state: Mutex::new(State {
                events: VecDeque::new(),
                bytes: 0,
                lost: 0,
                ended: false,
                holds_reading: false,
                waiting: 0,
                wakers: Vec::new(),
                next_number: 0,
            }),
            ready: Condvar::new(),
            at_end: Condvar::new(),
            bounds,
            reading,
        }
    }

    pub(crate) fn push(&self, event: E) {
        let is_end = event == E::ended();
        let (is_awaited, waker, others) = {
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
            (state.waiting > 0, waker, others)
        };
        if is_end {
            self.at_end.notify_all();
        }
        if is_awaited && is_end {
            // The end is everybody's, and nothing follows that would wake the others.
            self.ready.notify_all();
        } else if is_awaited {
            self.ready.notify_one();
        }
        // All tasks, because one that is woken may have stopped asking; those that find nothing wait again.
        for (_, waker) in waker.into_iter().chain(others) {
            waker.wake();
        }
    }

    /// Drops the events that are here and all that would follow: the application will not take them.
    pub(crate) fn discard(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.lost = 0;
        state.bytes = 0;
        let events = std::mem::take(&mut state.events);
        self.note_level(&mut state);
        drop(state);
        drop(events);
    }

    /// Blocks until nothing more is pushed. The events that are here stay.
    pub(crate) fn wait_for_end(&self) {
        let state = self.lock();
        let waited = self.at_end.wait_while(state, |state| !state.ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The next event; `None` when the time is over.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Option<E> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
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

    pub(crate) async fn next_async(&self) -> E {
        let (queue, number) = (self, None);
        Next { queue, number }.await
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

impl<E: Queued> State<E> {
    /// Adds an event, and drops what the policy says if there is no room: an empty queue takes any. Returns how many were
    /// dropped.
    fn admit(&mut self, event: E, bounds: &EventBounds) -> u64 {
        let EventBounds {
            events_max,
            bytes_max,
            when_full,
        } = *bounds;
        let mut dropped = 0;
        match when_full {
            WhenEventsFull::DropNewest => {
                let with_lost_bytes = bytes_of(&event) + EVENT_OVERHEAD_BYTES;
                if self.lost > 0 && !self.lacks_room(2, with_lost_bytes, bounds) {
                    let count = std::mem::take(&mut self.lost);
                    self.append(E::lost(count));
                }
                if self.lost > 0 || self.lacks_room(1, bytes_of(&event), bounds) {
                    return self.note_lost(&event);
                }
            }
            WhenEventsFull::DropOldest => {
                while self.lacks_room(1, bytes_of(&event), bounds)
                    && let Some(oldest) = self.pop()
                {
                    dropped += self.note_lost(&oldest);
                }
            }
            WhenEventsFull::PauseReading => {
                while self.is_at_bound(events_max.saturating_mul(2), bytes_max.saturating_mul(2))
                    && let Some(oldest) = self.pop()
                {
                    dropped += self.note_lost(&oldest);
                }
            }
        }
        self.append(event);
        dropped
    }

    /// Whether so many more events with so many bytes in all would exceed a bound. An empty queue has room for any.
    fn lacks_room(&self, events: usize, bytes: usize, bounds: &EventBounds) -> bool {
        !self.events.is_empty()
            && (self.events.len() + events > bounds.events_max
                || self.bytes + bytes > bounds.bytes_max)
    }

    fn is_at_bound(&self, events_max: usize, bytes_max: usize) -> bool {
        !self.events.is_empty() && (self.events.len() >= events_max || self.bytes >= bytes_max)
    }

    fn append(&mut self, event: E) {
        self.bytes += bytes_of(&event);
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<E> {
        let event = self.events.pop_front()?;
        self.bytes -= bytes_of(&event);
        Some(event)
    }

    /// Notes an event that is dropped. What it said to be missing stays missing. Returns how many more are so now.
    fn note_lost(&mut self, event: &E) -> u64 {
        let missing = event.missing();
        self.lost += missing.max(1);
        u64::from(missing == 0)
    }

    fn take(&mut self, when_full: WhenEventsFull) -> Option<E> {
        if self.lost > 0 && (self.events.is_empty() || when_full != WhenEventsFull::DropNewest) {
            return Some(E::lost(std::mem::take(&mut self.lost)));
        }
        // Once ended, every further call learns it instead of waiting for ever.
        self.pop().or_else(|| self.ended.then(E::ended))
    }
}

/// The room of a queue that an event takes.
fn bytes_of<E: Queued>(event: &E) -> usize {
    EVENT_OVERHEAD_BYTES + event.heap_bytes()
}

impl<E> State<E> {
    /// Takes note of a task that waits in the future of this number, or in a new one. Returns the number.
    fn note(&mut self, number: Option<u64>, task: &Waker) -> u64 {
        let number = number.unwrap_or_else(|| {
            self.next_number += 1;
            self.next_number
        });
        match self.wakers.iter_mut().find(|(known, _)| *known == number) {
            Some((_, waker)) => waker.clone_from(task),
            None => self.wakers.push((number, task.clone())),
        }
        number
    }
}

impl<E: Queued + PartialEq> Future for Next<'_, E> {
    type Output = E;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<E> {
        let mut state = self.queue.lock();
        if let Some(event) = self.queue.take(&mut state) {
            return Poll::Ready(event);
        }
        let number = state.note(self.number, cx.waker());
        drop(state);
        self.number = Some(number);
        Poll::Pending
    }
}

impl<E: Queued + PartialEq> Drop for Next<'_, E> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut state = self.queue.lock();
            let index = state.wakers.iter().position(|(known, _)| *known == number);
            let own = index.map(|index| state.wakers.swap_remove(index));
            // Letting go of a waker may run code of its executor, which must find the lock free.
            drop(state);
            drop(own);
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

impl Default for EventBounds {
    fn default() -> Self {
        Self {
            events_max: EVENTS_MAX,
            bytes_max: EVENT_BYTES_MAX,
            when_full: WhenEventsFull::default(),
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
