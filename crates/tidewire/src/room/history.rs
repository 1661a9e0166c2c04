//! The earlier messages of rooms and topics, for new members and for those who come back.
//!
//! A history belongs to a name and to the whole server. It remains after the room's last member has left. It gives each
//! message an offset, under its lock, and so decides the order of the messages on all lanes. It knows up to which offset
//! each lane with members has them.
//!
//! ```text
//!   lane 0: say ── lock ── offset 7, "hi" ── append to own log, send to lane 1 ── lane 0 has 7 ── unlock
//!   lane 1: say ── lock ── offset 8, "ho" ── take 7 from the history, append 7 and 8 to own log, send 8 to lane 0 ── unlock
//!   lane 1: 7 arrives: lane 1 has it, so it is ignored
//!   lane 0: 8 arrives: it follows 7, so it is appended
//! ```
//!
//! So each log has the messages in the order of their offsets, whichever lane they come from, and nothing waits for
//! another lane. A member that joins gets the messages of the history up to the offset that its lane has; the others come
//! by the log of its lane. A message stays in the history, beyond its limits, until all lanes with members have it. These
//! are the messages that are on their way between lanes, and the mailboxes bound them.
//!
//! Rejected: a history for each lane, because all lanes would need all messages of all rooms. Rejected: a log for each
//! lane in which messages arrive in any order. Then the position of a client would be a list of messages, not a number.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidewire_proto::body::{Recovery, Since};
use tidewire_proto::message::MemberId;

use super::feed::Wanted;
use super::history_table::HistoryTable;
use super::ring::{Kept, Ring, Tick};
use crate::broker::Position;
use crate::limits::nanoseconds;

/// Limits of the messages that a room or a topic keeps; see [`Chat::history`](crate::Chat::history) and
/// [`PubSub::history`](crate::PubSub::history).
///
/// A room keeps the newest messages within all limits. The memory of all histories is at most `rooms_max × bytes_max` and an
/// eighth more, and does not count towards [`Limits::memory_bytes_max`](crate::Limits::memory_bytes_max).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// Messages of one room. Default 50, which fills a screen.
    pub messages_max: usize,
    /// Bytes of these messages, including the names of their authors and 13 bytes for each message. Default 64 KiB. A
    /// single message that exceeds it is delivered but not kept. The earlier messages stay, and
    /// [`Metrics::history_skipped`](crate::metrics::Metrics::history_skipped) counts the message. At most 1 GiB.
    pub bytes_max: usize,
    /// The age of these messages. Older ones are removed. Default `None`: they stay however old they are.
    pub age_max: Option<Duration>,
    /// Rooms of the server with a history, including those without members. Default 1,024. A further room replaces
    /// the history of a room without members that has been silent for the longest time: first one that was brought by an
    /// address with more than a quarter of all, then one of the address that brings the further room, and only then one of
    /// others. If all have members, the further room keeps no messages, and its messages are counted as skipped.
    pub rooms_max: usize,
}

impl History {
    /// Returns limits for the last messages of each room, in this number. With 1 a topic keeps its latest value.
    #[must_use]
    pub fn last(messages: usize) -> Self {
        Self {
            messages_max: messages,
            ..Self::default()
        }
    }
}

impl Default for History {
    fn default() -> Self {
        Self {
            messages_max: 50,
            bytes_max: 64 * 1024,
            age_max: None,
            rooms_max: 1_024,
        }
    }
}

/// A message of a former run of the program: the name of its author and the payload.
pub(crate) type PastMessage = (String, Vec<u8>);

/// The histories of a server, by the names of their rooms or topics.
#[derive(Debug)]
pub(super) struct Histories {
    table: Mutex<HistoryTable>,
    /// The epoch of the first history. Further ones count on from it. It is random, so that the positions of a former run
    /// of the program are in other epochs.
    epoch_first: u64,
    /// Counts messages, and so shows which room was silent for the longest time.
    clock: Arc<AtomicU64>,
    /// Histories that lanes wait for until the node has them; see [`feed`](super::feed).
    pub(super) wanted: Mutex<HashMap<Box<str>, Wanted>>,
    /// Counts the answers of the node that joins wait for. Those of the rooms count the answers about topics, too.
    pub(super) answers: AtomicU64,
}

#[derive(Debug)]
pub(super) struct RoomHistory {
    limits: History,
    /// The node gives the offsets, in the order of a stream that all nodes share; see [`feed`](super::feed).
    pub(super) is_fed: bool,
    /// Sessions that are about to join or subscribe, and need the history of a node.
    pub(super) holds: AtomicUsize,
    records: Mutex<Records>,
    /// The clock when the newest message was recorded; 0 before the first.
    touched: AtomicU64,
    pub(super) clock: Arc<AtomicU64>,
}

/// The messages of a history.
#[derive(Debug)]
pub(super) struct Records {
    ring: Ring,
    /// The position of the newest message.
    pub(super) last: Position,
    /// The offset that the present epoch follows; 0 if there was none before.
    pub(super) epoch_start: u64,
    /// The lanes with members, and the position up to which each has the messages.
    lanes: Vec<(usize, Position)>,
    /// Messages that are too large to keep, until all lanes have them.
    passing: VecDeque<(u64, Box<[u8]>)>,
}

impl Default for Histories {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            epoch_first: RandomState::new().hash_one(0),
            clock: Arc::default(),
            wanted: Mutex::default(),
            answers: AtomicU64::new(0),
        }
    }
}

impl Histories {
    pub(super) fn table(&self) -> MutexGuard<'_, HistoryTable> {
        // No code under the lock panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the history of this room, and creates it if there is none. If there are too many, it keeps nothing, because
    /// its memory would exceed the limit. `owner` returns the address that brings a new name.
    pub(super) fn open(
        &self,
        room: &str,
        limits: History,
        owner: impl FnOnce() -> Option<IpAddr>,
    ) -> Arc<RoomHistory> {
        let kept = self.open_kept(room, limits, owner);
        kept.unwrap_or_else(|| {
            self.begin(History {
                messages_max: 0,
                ..limits
            })
        })
    }

    /// As [`Self::open`], but returns `None` if there are too many.
    pub(super) fn open_kept(
        &self,
        room: &str,
        limits: History,
        owner: impl FnOnce() -> Option<IpAddr>,
    ) -> Option<Arc<RoomHistory>> {
        let mut table = self.table();
        if let Some(history) = table.get(room) {
            return Some(Arc::clone(history));
        }
        let owner = owner();
        if table.len() >= limits.rooms_max && !table.make_room(owner, limits.rooms_max) {
            return None;
        }
        let history = self.begin(limits);
        table.insert(room, Arc::clone(&history), owner);
        Some(history)
    }

    fn begin(&self, limits: History) -> Arc<RoomHistory> {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        let last = Position {
            // The largest epoch has a meaning of its own.
            epoch: self.epoch_first.wrapping_add(now) & (u64::MAX >> 1),
            offset: 0,
        };
        self.begin_at(limits, last, false)
    }

    /// Makes an empty history whose newest message has this position.
    pub(super) fn begin_at(
        &self,
        limits: History,
        last: Position,
        is_fed: bool,
    ) -> Arc<RoomHistory> {
        Arc::new(RoomHistory {
            limits,
            is_fed,
            holds: AtomicUsize::new(0),
            records: Mutex::new(Records {
                ring: Ring::default(),
                last,
                epoch_start: 0,
                lanes: Vec::new(),
                passing: VecDeque::new(),
            }),
            // A history that never had a message is removed first. Else subscriptions of many empty topics would displace the
            // values of others.
            touched: AtomicU64::new(0),
            clock: Arc::clone(&self.clock),
        })
    }
}

impl RoomHistory {
    pub(super) fn lock(&self) -> MutexGuard<'_, Records> {
        // After a panic while a message is recorded, the message is missing and the others are intact.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock when the newest message was recorded; 0 before the first.
    pub(super) fn touched(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    /// Notes that a message was sent.
    pub(super) fn touch(&self) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        self.touched.store(now, Ordering::Relaxed);
    }

    /// Records messages of a former run, if the history is still empty.
    pub(super) fn begin_with(&self, past: &[PastMessage], now_ns: u64) {
        let mut records = self.lock();
        if records.last.offset > 0 {
            return;
        }
        for (name, payload) in past {
            let message = Kept {
                member: MemberId(0),
                name,
                payload,
            };
            if self.has_room_for(&message) {
                self.record(&mut records, &message, now_ns);
                self.touch();
            }
        }
    }

    /// Whether the limits allow the message at all.
    pub(super) fn has_room_for(&self, message: &Kept<'_>) -> bool {
        let bytes_max = self.limits.bytes_max.min(BYTES_MAX);
        self.limits.messages_max > 0 && message.held_bytes() <= bytes_max
    }

    /// Records a message that was just sent. One that the limits do not allow is kept only until all lanes have it.
    pub(super) fn record(&self, records: &mut Records, message: &Kept<'_>, now_ns: u64) {
        let now = Tick::of(now_ns);
        records.last.offset += 1;
        if self.has_room_for(message) {
            records.ring.push(message, now);
        } else {
            records.ring.push_hole(now);
            let mut record = Vec::with_capacity(message.record_bytes());
            message.write(|part| record.extend_from_slice(part));
            let offset = records.last.offset;
            records.passing.push_back((offset, record.into()));
        }
        self.evict(records, now_ns);
    }

    /// Records a message without content.
    pub(super) fn record_hole(&self, records: &mut Records, now_ns: u64) {
        records.last.offset += 1;
        records.ring.push_hole(Tick::of(now_ns));
        self.evict(records, now_ns);
    }

    /// Notes that a lane has the messages up to this offset.
    pub(super) fn note_arrival(&self, records: &mut Records, lane: usize, offset: u64) {
        let position = Position {
            offset,
            ..records.last
        };
        match records.lanes.iter_mut().find(|(of, _)| *of == lane) {
            Some((_, has)) => *has = position,
            None => records.lanes.push((lane, position)),
        }
    }

    /// Notes that a lane has no members any more.
    pub(super) fn leave(&self, lane: usize, now_ns: u64) {
        let mut records = self.lock();
        records.lanes.retain(|(of, _)| *of != lane);
        self.evict(&mut records, now_ns);
    }

    /// Removes the messages beyond the limits, except those that a lane does not have yet.
    pub(super) fn evict(&self, records: &mut Records, now_ns: u64) {
        let (limits, now) = (&self.limits, Tick::of(now_ns));
        let had = records
            .lanes
            .iter()
            .map(|(_, has)| records.offset_of(*has))
            .min();
        let had = had.unwrap_or(records.last.offset);
        while let Some((offset, _)) = records.passing.front()
            && (*offset <= had || self.is_fed && records.passing.len() > PASSING_MAX)
        {
            records.passing.pop_front();
        }
        let age_max_ns = limits.age_max.map_or(u64::MAX, nanoseconds);
        let bytes_max = limits.bytes_max.min(BYTES_MAX);
        let ring = &records.ring;
        let mut first = records.last.offset + 1 - ring.len() as u64;
        let may_go = |first, ring: &Ring| {
            first <= had || self.is_fed && ring.bytes() > bytes_max + BEHIND_BYTES_MAX
        };
        while may_go(first, &records.ring)
            && (records.ring.len() > limits.messages_max
                || records.ring.bytes() > bytes_max
                || records.ring.is_oldest_beyond(age_max_ns, now))
        {
            records.ring.pop();
            first += 1;
        }
    }

    /// Removes the messages beyond the age, and gives the memory of an empty history back.
    pub(super) fn expire(&self, now_ns: u64) {
        let mut records = self.lock();
        if self.limits.age_max.is_some() && records.ring.len() > 0 {
            self.evict(&mut records, now_ns);
            records.ring.release_unused();
        }
    }

    /// Returns the offset of the first message for a member that asks for those behind `since`, and how much of what it asks
    /// for there is.
    pub(super) fn plan(
        &self,
        records: &mut Records,
        since: Option<Since>,
        now_ns: u64,
    ) -> (u64, Recovery) {
        self.evict(records, now_ns);
        let (first, last) = (records.first(), records.last);
        match since {
            None => (first, Recovery::NotAsked),
            Some(Since::Last(count)) => {
                let newest = (last.offset + 1).saturating_sub(count);
                (newest.max(first), Recovery::NotAsked)
            }
            Some(Since::Position(since))
                if since.epoch == last.epoch && since.offset <= last.offset =>
            {
                let next = (since.offset + 1).max(first);
                // Messages that were too large to keep are told as gaps where they would stand.
                match next - (since.offset + 1) {
                    0 => (next, Recovery::Recovered),
                    count => (next, Recovery::Missing(Some(count))),
                }
            }
            Some(Since::Position(_)) => (first, Recovery::Missing(None)),
        }
    }
}

impl Records {
    /// The offset of the oldest message; of the next one if there is none.
    pub(super) fn first(&self) -> u64 {
        self.last.offset + 1 - self.ring.len() as u64
    }

    /// The offset up to which a lane with members has the messages.
    pub(super) fn has(&self, lane: usize) -> Option<u64> {
        Some(self.offset_of(self.position_of(lane)?))
    }

    /// Whether a lane with members does not know yet that another epoch has begun.
    pub(super) fn is_in_former_epoch(&self, lane: usize) -> bool {
        let has = self.position_of(lane);
        has.is_some_and(|has| has.epoch != self.last.epoch)
    }

    fn position_of(&self, lane: usize) -> Option<Position> {
        let found = self.lanes.iter().find(|(of, _)| *of == lane);
        found.map(|(_, has)| *has)
    }

    /// The offset of a position. One of a former epoch has nothing of this one.
    fn offset_of(&self, has: Position) -> u64 {
        match has.epoch == self.last.epoch {
            true => has.offset,
            false => self.epoch_start,
        }
    }

    /// The offset of the last message for a subscriber of this lane; the later ones come by the log of the lane.
    pub(super) fn end_for(&self, lane: usize) -> u64 {
        self.has(lane).unwrap_or(self.last.offset)
    }

    /// Returns the message with this offset, or `None` if it is not kept.
    pub(super) fn get<'a>(&'a self, offset: u64, scratch: &'a mut Vec<u8>) -> Option<Kept<'a>> {
        let index = usize::try_from(offset.checked_sub(self.first())?).ok()?;
        if let Some((_, record)) = self.passing.iter().find(|(of, _)| *of == offset) {
            return Kept::read(record);
        }
        self.ring.get(index, scratch)
    }

    /// Whether the messages from `next` to `end` have at most `bytes_max`, with what frames add to them.
    pub(super) fn fits(&self, next: u64, end: u64, bytes_max: usize) -> bool {
        let count = (end + 1).saturating_sub(next);
        self.ring.bytes() as u64 + count * FRAME_BYTES <= bytes_max as u64
    }

    /// Continues at another position. The messages before it are not here.
    pub(super) fn continue_behind(&mut self, last: Position) {
        if last.epoch != self.last.epoch {
            self.epoch_start = last.offset;
        }
        self.clear();
        self.last = last;
    }

    /// Memory of the messages.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.ring.held_bytes()
    }

    /// Forgets all messages.
    pub(super) fn clear(&mut self) {
        self.ring = Ring::default();
        self.passing.clear();
    }
}

/// Bytes that a frame adds to a kept message, at most.
const FRAME_BYTES: u64 = 24;

/// Bytes beyond its limit that the history of a node keeps for lanes that are behind. Nothing stops the other nodes meanwhile.
const BEHIND_BYTES_MAX: usize = 1 << 20;

/// Messages of a node that are too large to keep and wait for lanes that are behind.
const PASSING_MAX: usize = 16;

/// The largest history, so that the index of its ring counts bytes in 32 bits.
const BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
