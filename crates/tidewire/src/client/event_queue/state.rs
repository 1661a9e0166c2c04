//! The events of one queue, and the policies at its bounds.
//!
//! The policies differ only in [`State::admit`], which drops an event when there is no room. [`Conflation`] is the
//! state of the policy that knows topics. It exists from when the queue is full until it is empty. So other policies,
//! and a queue that is not full, pay nothing for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::client::waiting::Waiting;

use super::{EVENT_BYTES_MAX, EVENT_OVERHEAD_BYTES, EVENTS_MAX, Queued};

/// The policy for a queue of events that is [full](crate::ClientBuilder::event_bytes_max), because the application does
/// not take them. A [subscription](crate::Subscribe::when_events_full) may have its own policy.
/// [`Client::subscribe`](crate::Client::subscribe) has an example.
///
/// Dropped events are counted in [`Metrics::events_dropped`](crate::metrics::Metrics::events_dropped). An
/// [`Event::Lost`](crate::Event::Lost) or [`TopicEvent::Lost`](crate::TopicEvent::Lost) at their position has their
/// number.
///
/// | application | policy |
/// |---|---|
/// | needs news, and replies in any case | [`DropOldest`](Self::DropOldest) |
/// | shows the state of many topics | [`ConflateByTopic`](Self::ConflateByTopic) |
/// | leaves the choice to the server's policy, or to `block` | [`PauseReading`](Self::PauseReading) |
/// | keeps a record from a known beginning | [`DropNewest`](Self::DropNewest) |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenEventsFull {
    /// The oldest event is dropped for each new one. This is the default: replies are always read, so a thread may wait
    /// for a reply even if no thread takes events.
    #[default]
    DropOldest,
    /// New events are dropped until there is room.
    DropNewest,
    /// A new message replaces the waiting message of the same topic, and the replaced message counts as lost. So a slow
    /// reader finds the latest value of every topic, in the order in which the topics came. If more topics wait than
    /// the queue holds, the oldest event is dropped. The queue conflates from when it is full until it is empty.
    ///
    /// It is meant for subscriptions with wildcards. The client's own events have no topics: for them it acts as
    /// [`DropOldest`](Self::DropOldest).
    ConflateByTopic,
    /// The client stops reading from its connection until half of the queue has been taken. So the client drops
    /// nothing. The server's policy for slow subscribers decides, and gaps report its drops.
    ///
    /// Replies are not read either. If a thread waits for a reply while no thread takes events, it waits until the
    /// [timeout](crate::ClientBuilder::request_timeout). So take the events of every queue with this policy on threads
    /// or tasks that do not wait for replies.
    ///
    /// Some events cannot be held back: events of the client itself, and messages that were read before. They may use
    /// as much room again, and then the oldest event is dropped. Over UDP the system drops datagrams that are not read,
    /// without a count for this client. So another policy is better there.
    PauseReading,
}

/// The bounds of a queue, and the policy at them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventBounds {
    pub(crate) events_max: usize,
    /// Counts payloads and texts, and [`EVENT_OVERHEAD_BYTES`] for each event.
    pub(crate) bytes_max: usize,
    pub(crate) when_full: WhenEventsFull,
}

/// Tasks and threads that an event wakes.
#[derive(Debug, Default)]
#[must_use = "they wait for ever unless they are woken"]
pub(super) struct Woken {
    last: Option<(u64, Waiting)>,
    others: Vec<(u64, Waiting)>,
}

impl Woken {
    /// Call it without a lock: a task that is woken may take the event at once.
    pub(super) fn wake(self) {
        for (_, waiting) in self.last.into_iter().chain(self.others) {
            waiting.waker.wake();
        }
    }
}

#[derive(Debug)]
pub(super) struct State<E> {
    pub(super) events: VecDeque<E>,
    /// Counted as for [`EventBounds::bytes_max`].
    pub(super) bytes: usize,
    /// Number of dropped events that no event has reported yet. They were before the first event, or after the last
    /// event if new events are dropped.
    lost: u64,
    /// Positions of topics, from when the queue is full until it is empty.
    conflation: Option<Box<Conflation>>,
    pub(super) ended: bool,
    /// Whether the queue counts as full in [`Reading`](super::Reading).
    pub(super) holds_reading: bool,
    /// The tasks and threads that wait for an event, each with its number.
    pub(super) waiting: Vec<(u64, Waiting)>,
    /// The tasks and threads that wait for the end.
    pub(super) at_end: Vec<(u64, Waiting)>,
    next_number: u64,
}

/// The positions of topics in a queue, so that a newer message can replace an older one of the same topic.
#[derive(Debug, Default)]
struct Conflation {
    /// The position of each topic's message, counted from the first event at the start of conflation.
    positions: HashMap<Arc<str>, u64>,
    /// Events that were taken from the front since then.
    taken: u64,
}

impl<E> Default for State<E> {
    fn default() -> Self {
        Self {
            events: VecDeque::new(),
            bytes: 0,
            lost: 0,
            conflation: None,
            ended: false,
            holds_reading: false,
            waiting: Vec::new(),
            at_end: Vec::new(),
            next_number: 0,
        }
    }
}

impl<E: Queued> State<E> {
    /// Adds an event. Drops events by the policy if there is no room, but an empty queue accepts any event. Returns the
    /// number of dropped events.
    pub(super) fn admit(&mut self, event: E, bounds: &EventBounds) -> u64 {
        let EventBounds {
            events_max,
            bytes_max,
            when_full,
        } = *bounds;
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
                self.append(event);
                0
            }
            WhenEventsFull::DropOldest => {
                let bytes = bytes_of(&event);
                let dropped = self.drop_oldest_while(|state| state.lacks_room(1, bytes, bounds));
                self.append(event);
                dropped
            }
            WhenEventsFull::ConflateByTopic => self.conflate(event, bounds),
            WhenEventsFull::PauseReading => {
                let (events_max, bytes_max) =
                    (events_max.saturating_mul(2), bytes_max.saturating_mul(2));
                let dropped =
                    self.drop_oldest_while(|state| state.is_at_bound(events_max, bytes_max));
                self.append(event);
                dropped
            }
        }
    }

    /// Adds an event to a queue that keeps the latest message of each topic once it is full.
    fn conflate(&mut self, event: E, bounds: &EventBounds) -> u64 {
        let bytes = bytes_of(&event);
        let mut dropped = 0;
        if self.conflation.is_none() && self.lacks_room(1, bytes, bounds) {
            dropped += self.begin_conflation();
        }
        let Some(conflation) = &mut self.conflation else {
            self.append(event);
            return dropped;
        };
        if event.missing() > 0 {
            // A server that conflates too sends a gap before most messages. Gaps would use up the room of topics, so
            // they are counted instead.
            return dropped + self.note_lost(&event);
        }
        let next = conflation.taken + self.events.len() as u64;
        let mut replaced = None;
        match event.topic() {
            Some(topic) => match conflation.positions.get(topic) {
                Some(position) => {
                    let index = (position - conflation.taken) as usize;
                    replaced = self.events.get_mut(index);
                }
                None => {
                    conflation.positions.insert(Arc::clone(topic), next);
                }
            },
            // The connection ended or came back. Later messages must not move before this event.
            None => conflation.positions.clear(),
        }
        if let Some(replaced) = replaced {
            let old = std::mem::replace(replaced, event);
            self.bytes = self.bytes + bytes - bytes_of(&old);
            dropped += self.note_lost(&old);
        } else {
            self.append(event);
        }
        // One event stays, however large it is.
        dropped
            + self.drop_oldest_while(|state| {
                state.events.len() > 1
                    && (state.events.len() > bounds.events_max || state.bytes > bounds.bytes_max)
            })
    }

    /// Records the positions of topics, and drops all messages but the latest of each. Returns the number of dropped
    /// messages.
    fn begin_conflation(&mut self) -> u64 {
        let mut conflation = Conflation::default();
        let mut dropped = 0;
        let events = std::mem::take(&mut self.events);
        self.bytes = 0;
        for event in events {
            let Some(topic) = event.topic() else {
                if event.missing() > 0 {
                    dropped += self.note_lost(&event);
                } else {
                    conflation.positions.clear();
                    self.append(event);
                }
                continue;
            };
            let position = conflation.positions.entry(Arc::clone(topic));
            let index = *position.or_insert(self.events.len() as u64) as usize;
            match self.events.get_mut(index) {
                Some(replaced) => {
                    let bytes = bytes_of(&event);
                    let old = std::mem::replace(replaced, event);
                    self.bytes = self.bytes + bytes - bytes_of(&old);
                    dropped += self.note_lost(&old);
                }
                None => self.append(event),
            }
        }
        self.conflation = Some(Box::new(conflation));
        dropped
    }

    fn drop_oldest_while(&mut self, is_wanted: impl Fn(&Self) -> bool) -> u64 {
        let mut dropped = 0;
        while is_wanted(self)
            && let Some(oldest) = self.pop()
        {
            dropped += self.note_lost(&oldest);
        }
        dropped
    }

    /// Whether this many more events, with this many bytes in all, would exceed a bound. An empty queue has room for
    /// any event.
    fn lacks_room(&self, events: usize, bytes: usize, bounds: &EventBounds) -> bool {
        !self.events.is_empty()
            && (self.events.len() + events > bounds.events_max
                || self.bytes + bytes > bounds.bytes_max)
    }

    pub(super) fn is_at_bound(&self, events_max: usize, bytes_max: usize) -> bool {
        !self.events.is_empty() && (self.events.len() >= events_max || self.bytes >= bytes_max)
    }

    fn append(&mut self, event: E) {
        self.bytes += bytes_of(&event);
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<E> {
        let event = self.events.pop_front()?;
        self.bytes -= bytes_of(&event);
        if let Some(conflation) = &mut self.conflation {
            if let Some(topic) = event.topic()
                && conflation.positions.get(topic) == Some(&conflation.taken)
            {
                conflation.positions.remove(topic);
            }
            conflation.taken += 1;
        }
        if self.events.is_empty() {
            self.conflation = None;
        }
        Some(event)
    }

    /// Counts a dropped event as lost, together with the events that it reports as missing. Returns 1 if it was a real
    /// event, else 0.
    fn note_lost(&mut self, event: &E) -> u64 {
        let missing = event.missing();
        self.lost += missing.max(1);
        u64::from(missing == 0)
    }

    pub(super) fn take(&mut self, when_full: WhenEventsFull) -> Option<E> {
        if self.lost > 0 && (self.events.is_empty() || when_full != WhenEventsFull::DropNewest) {
            return Some(E::lost(std::mem::take(&mut self.lost)));
        }
        // After the end every call returns the end, instead of blocking for ever.
        self.pop().or_else(|| self.ended.then(E::ended))
    }

    /// Ends the queue and returns its events.
    pub(super) fn discard(&mut self) -> VecDeque<E> {
        self.ended = true;
        self.lost = 0;
        self.bytes = 0;
        self.conflation = None;
        std::mem::take(&mut self.events)
    }
}

impl<E> State<E> {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.lost == 0 && !self.ended
    }

    /// Takes those who must be woken for an event: every task, because a task may have stopped polling, and one thread.
    /// At the end every thread is woken. Tasks and threads that find no event register again.
    pub(super) fn take_waiting(&mut self) -> Woken {
        // The last one is taken alone. Usually it is the only one, and then the list keeps its memory.
        let last = self.waiting.pop();
        let mut has_thread = last.as_ref().is_some_and(|(_, it)| it.is_thread());
        let ended = self.ended;
        let is_woken = |(_, waiting): &mut (u64, Waiting)| {
            let is_woken = !waiting.is_thread() || ended || !has_thread;
            has_thread |= waiting.is_thread();
            is_woken
        };
        let others = match self.waiting.is_empty() {
            true => Vec::new(),
            false => self.waiting.extract_if(.., is_woken).collect(),
        };
        Woken { last, others }
    }

    /// Returns a number for a future that begins to wait.
    pub(super) fn new_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

fn bytes_of<E: Queued>(event: &E) -> usize {
    EVENT_OVERHEAD_BYTES + event.heap_bytes()
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
