//! What happens at a client without being asked for: messages, opening, closing, reconnecting.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tidewire_proto::message::{Kind, Message};

use crate::session::CloseReason;

/// Something that happened at a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The connection is open. After a reconnect, rooms must be joined again.
    Opened {
        /// What the server says of itself, if its codec can tell.
        agent: String,
    },
    /// A message that answers no request.
    Message(OwnedMessage),
    /// The connection ended.
    Closed {
        /// Why.
        reason: CloseReason,
    },
    /// The next attempt to connect follows after a pause.
    Reconnecting {
        /// How long the pause is.
        delay: Duration,
        /// What went wrong.
        cause: String,
    },
    /// The application did not take its events; this many were dropped here.
    Lost {
        /// How many.
        count: u64,
    },
    /// The client was shut down; nothing follows.
    Ended,
}

/// A message that owns its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedMessage {
    /// What the frame is for.
    pub kind: Kind,
    /// Bits whose meaning depends on the kind.
    pub flags: u8,
    /// Alias of a method, topic or room.
    pub channel: u16,
    /// Request id or origin.
    pub id: u32,
    /// The payload.
    pub payload: Vec<u8>,
}

impl From<Message<'_>> for OwnedMessage {
    fn from(message: Message<'_>) -> Self {
        Self {
            kind: message.kind,
            flags: message.flags,
            channel: message.channel,
            id: message.id,
            payload: message.payload.to_vec(),
        }
    }
}

/// What travels through an [`EventQueue`].
pub(crate) trait Queued {
    /// The application did not take its events; this many are missing.
    fn lost(count: u64) -> Self;

    /// Nothing follows.
    fn ended() -> Self;
}

/// Events between a client's lane and the application; bounded.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    state: Mutex<State<E>>,
    ready: Condvar,
}

#[derive(Debug)]
struct State<E> {
    events: VecDeque<E>,
    lost: u64,
    ended: bool,
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
    pub(crate) fn push(&self, event: E) {
        let is_end = event == E::ended();
        let (is_awaited, waker, others) = {
            let mut state = self.lock();
            state.ended |= is_end;
            if state.ended {
                // `take` tells it when everything else has been taken, however full the queue is. Nothing follows.
            } else if state.events.len() >= EVENTS_MAX {
                state.lost += 1;
            } else {
                if state.lost > 0 {
                    let count = std::mem::take(&mut state.lost);
                    state.events.push_back(E::lost(count));
                }
                state.events.push_back(event);
            }
            // The last one by itself, which is mostly the only one: so the list keeps its memory.
            let waker = state.wakers.pop();
            let others = match state.wakers.len() {
                0 => Vec::new(),
                _ => std::mem::take(&mut state.wakers),
            };
            (state.waiting > 0, waker, others)
        };
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

    /// Nobody will take events any more: those that are here go, and so does all that would follow.
    pub(crate) fn discard(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.lost = 0;
        let events = std::mem::take(&mut state.events);
        drop(state);
        drop(events);
    }

    /// The next event; `None` when the time is over.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Option<E> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.lock();
        loop {
            if let Some(event) = state.take() {
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

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Queued> State<E> {
    fn take(&mut self) -> Option<E> {
        let event = self.events.pop_front();
        if event.is_none() && self.lost > 0 {
            return Some(E::lost(std::mem::take(&mut self.lost)));
        }
        // Once ended, every further call learns it instead of waiting for ever.
        event.or_else(|| self.ended.then(E::ended))
    }
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
        if let Some(event) = state.take() {
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

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                events: VecDeque::new(),
                lost: 0,
                ended: false,
                waiting: 0,
                wakers: Vec::new(),
                next_number: 0,
            }),
            ready: Condvar::new(),
        }
    }
}

impl Queued for Event {
    fn lost(count: u64) -> Self {
        Self::Lost { count }
    }

    fn ended() -> Self {
        Self::Ended
    }
}

/// Events held for an application that does not take them.
const EVENTS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[test]
    fn a_full_queue_tells_how_many_it_lost() {
        let queue = EventQueue::default();
        for _ in 0..EVENTS_MAX + 3 {
            queue.push(Event::Opened {
                agent: String::new(),
            });
        }
        for _ in 0..EVENTS_MAX {
            assert!(matches!(queue.next(None), Some(Event::Opened { .. })));
        }
        assert_eq!(queue.next(None), Some(Event::Lost { count: 3 }));
        assert_eq!(queue.next(Some(Duration::ZERO)), None);
    }

    #[test]
    fn the_end_is_told_to_everyone_who_asks() {
        let queue = EventQueue::default();
        queue.push(Event::Ended);
        assert_eq!(queue.next(None), Some(Event::Ended));
        assert_eq!(queue.next(None), Some(Event::Ended));
    }

    /// They waited for nobody as long as anything kept the queue: up to 65,536 of them.
    #[test]
    fn nothing_is_held_that_nobody_will_take() {
        let queue = EventQueue::default();
        for _ in 0..=EVENTS_MAX {
            queue.push(Event::Lost { count: 1 });
        }
        queue.discard();
        assert_eq!(queue.lock().events.capacity(), 0);
        queue.push(Event::Lost { count: 2 });
        assert_eq!(queue.lock().events.capacity(), 0);
        assert_eq!(queue.next(None), Some(Event::Ended));
    }

    /// Only one of the threads that waited learnt of the end, and the others waited for ever.
    #[test]
    fn the_end_is_told_to_every_thread_that_waits() {
        const THREADS: usize = 3;
        let queue = Arc::new(EventQueue::default());
        let (told, heard) = std::sync::mpsc::channel();
        for _ in 0..THREADS {
            let (queue, told) = (Arc::clone(&queue), told.clone());
            std::thread::spawn(move || told.send(queue.next(None)));
        }
        while queue.lock().waiting < THREADS {
            std::thread::yield_now();
        }
        queue.push(Event::Ended);
        for _ in 0..THREADS {
            let event = heard.recv_timeout(Duration::from_secs(60));
            assert_eq!(event, Ok(Some(Event::Ended)), "one was not woken");
        }
    }

    /// The task that asked last took the place of those before it, which nobody woke any more.
    #[test]
    fn every_task_that_waits_is_woken() {
        struct Count(AtomicUsize);

        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }

        let queue = EventQueue::default();
        let counts = [(); 3].map(|()| Arc::new(Count(AtomicUsize::new(0))));
        let mut tasks = counts.clone().map(|count| {
            let waker = Waker::from(count);
            (waker, Box::pin(queue.next_async()))
        });
        for (waker, task) in &mut tasks {
            // A future that was let go takes its waker with it.
            let mut dropped = Box::pin(queue.next_async());
            let polled = dropped.as_mut().poll(&mut Context::from_waker(waker));
            assert_eq!(polled, Poll::Pending);
            drop(dropped);
            for _ in 0..2 {
                let polled = task.as_mut().poll(&mut Context::from_waker(waker));
                assert_eq!(polled, Poll::Pending);
            }
        }
        assert_eq!(queue.lock().wakers.len(), tasks.len());
        queue.push(Event::Ended);
        for (count, (waker, task)) in counts.iter().zip(&mut tasks) {
            assert_eq!(count.0.load(Ordering::SeqCst), 1, "once each");
            let polled = task.as_mut().poll(&mut Context::from_waker(waker));
            assert_eq!(polled, Poll::Ready(Event::Ended));
        }
    }

    #[test]
    fn the_end_is_no_lost_event() {
        let queue = EventQueue::default();
        for _ in 0..=EVENTS_MAX {
            queue.push(Event::Lost { count: 0 });
        }
        queue.push(Event::Ended);
        for _ in 0..EVENTS_MAX {
            assert_eq!(queue.next(None), Some(Event::Lost { count: 0 }));
        }
        assert_eq!(queue.next(None), Some(Event::Lost { count: 1 }));
        assert_eq!(queue.next(None), Some(Event::Ended));
    }
}
