//! What happens at a client without being asked for: messages, opening, closing, reconnecting.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
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
    waker: Option<Waker>,
}

impl<E: Queued + PartialEq> EventQueue<E> {
    pub(crate) fn push(&self, event: E) {
        let (is_awaited, waker) = {
            let mut state = self.lock();
            let is_end = event == E::ended();
            state.ended |= is_end;
            if is_end {
                // `take` tells it when everything else has been taken, however full the queue is.
            } else if state.events.len() >= EVENTS_MAX {
                state.lost += 1;
            } else {
                if state.lost > 0 {
                    let count = std::mem::take(&mut state.lost);
                    state.events.push_back(E::lost(count));
                }
                state.events.push_back(event);
            }
            (state.waiting > 0, state.waker.take())
        };
        if is_awaited {
            self.ready.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
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
        poll_fn(|cx| {
            let mut state = self.lock();
            if let Some(event) = state.take() {
                return Poll::Ready(event);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
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

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                events: VecDeque::new(),
                lost: 0,
                ended: false,
                waiting: 0,
                waker: None,
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
