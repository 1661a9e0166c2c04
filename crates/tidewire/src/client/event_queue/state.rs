//! The events of one queue, and what happens to them at its bounds.
//!
//! The policies differ in [`State::admit`] only: which event goes when there is no room. [`Conflation`] is the state of the
//! one that knows topics: it exists from when the queue was full until it is empty, so that the others, and a queue that
//! keeps up, pay nothing for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use super::{EVENT_BYTES_MAX, EVENT_OVERHEAD_BYTES, EVENTS_MAX, Queued};

/// The policy of a client whose application does not take its events, when a queue of them is
/// [full](crate::ClientBuilder::event_bytes_max). A [subscription](crate::Subscribe::when_events_full) may have one of its own.
/// [`Client::subscribe`](crate::Client::subscribe) has an example.
///
/// Whatever is dropped is counted in [`Metrics::events_dropped`](crate::Metrics::events_dropped), and
/// [`Event::Lost`](crate::Event::Lost) or [`TopicEvent::Lost`](crate::TopicEvent::Lost) says how many are missing, at the
/// place where they are.
///
/// | an application that | takes |
/// |---|---|
/// | wants news, and replies whatever happens | [`DropOldest`](Self::DropOldest) |
/// | shows the state of many topics | [`ConflateByTopic`](Self::ConflateByTopic) |
/// | leaves the choice to the server's policy, or to `block` | [`PauseReading`](Self::PauseReading) |
/// | keeps a record from a known beginning | [`DropNewest`](Self::DropNewest) |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenEventsFull {
    /// The oldest event is dropped for each new one. The default: replies are read whatever happens to events, so a
    /// thread may wait for one while nobody takes events.
    #[default]
    DropOldest,
    /// New events are dropped until there is room.
    DropNewest,
    /// A new message takes the place of the one of the same topic that waits; each counts as lost that was replaced. So a
    /// reader that fell behind finds the latest value of every topic, in the order in which the topics came. If more topics
    /// wait than the queue holds, the oldest event is dropped. The queue does so from when it is full until it is empty.
    ///
    /// For subscriptions with wildcards. The client's own events have no topics: there it is [`DropOldest`](Self::DropOldest).
    ConflateByTopic,
    /// The client reads nothing from its connection until half of the queue has been taken. So nothing is dropped here,
    /// and the server's policy for slow subscribers decides: its gaps say what it dropped.
    ///
    /// Replies are not read either. A thread that waits for one while no thread takes events waits until the
    /// [timeout](crate::ClientBuilder::request_timeout). Take the events of every queue that has this policy on threads or tasks
    /// that do not wait for replies.
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

#[derive(Debug)]
pub(super) struct State<E> {
    pub(super) events: VecDeque<E>,
    /// As [`EventBounds::bytes_max`] counts them.
    pub(super) bytes: usize,
    /// Dropped and not told yet: before the first event, or behind the last one if new ones are dropped.
    lost: u64,
    /// Where the topics are, from when the queue was full until it is empty.
    conflation: Option<Box<Conflation>>,
    pub(super) ended: bool,
    /// It counts as full in [`Reading`](super::Reading).
    pub(super) holds_reading: bool,
    /// Threads blocked in [`EventQueue::next`](super::EventQueue::next): waking where nobody waits would be a system call per
    /// event.
    pub(super) waiting: usize,
    /// Of the futures that wait for an event, each under its number.
    pub(super) wakers: Vec<(u64, Waker)>,
    /// Of the futures that wait for the end.
    pub(super) at_end: Vec<(u64, Waker)>,
    /// The number of the next future.
    next_number: u64,
}

/// Where the messages of topics are in a queue, so that a newer one takes the place of each.
#[derive(Debug, Default)]
struct Conflation {
    /// The position of each topic's message, counted from the first event that was there.
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
            waiting: 0,
            wakers: Vec::new(),
            at_end: Vec::new(),
            next_number: 0,
        }
    }
}

impl<E: Queued> State<E> {
    /// Adds an event, and drops what the policy says if there is no room: an empty queue takes any. Returns how many were
    /// dropped.
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
            // A server that conflates, too, sends a gap before most messages: they would take the room of topics.
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
            // The connection ended, or is there again: what comes after that must not stand before it.
            None => conflation.positions.clear(),
        }
        if let Some(place) = replaced {
            let old = std::mem::replace(place, event);
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

    /// Notes where the topics are, and drops all messages but the latest of each. Returns how many those are.
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
                Some(place) => {
                    let bytes = bytes_of(&event);
                    let old = std::mem::replace(place, event);
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

    /// Whether so many more events with so many bytes in all would exceed a bound. An empty queue has room for any.
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

    /// Notes an event that is dropped. What it said to be missing stays missing. Returns how many more are so now.
    fn note_lost(&mut self, event: &E) -> u64 {
        let missing = event.missing();
        self.lost += missing.max(1);
        u64::from(missing == 0)
    }

    pub(super) fn take(&mut self, when_full: WhenEventsFull) -> Option<E> {
        if self.lost > 0 && (self.events.is_empty() || when_full != WhenEventsFull::DropNewest) {
            return Some(E::lost(std::mem::take(&mut self.lost)));
        }
        // Once ended, every further call learns it instead of waiting for ever.
        self.pop().or_else(|| self.ended.then(E::ended))
    }

    /// Ends the queue and takes out what is in it.
    pub(super) fn discard(&mut self) -> VecDeque<E> {
        self.ended = true;
        self.lost = 0;
        self.bytes = 0;
        self.conflation = None;
        std::mem::take(&mut self.events)
    }
}

impl<E> State<E> {
    /// The number of a future that begins to wait.
    pub(super) fn new_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

/// The room of a queue that an event takes.
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
