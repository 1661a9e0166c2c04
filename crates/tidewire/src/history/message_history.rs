//! The messages of one room or topic: their order, and up to where each lane has them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_proto::body::{Recovery, Since};
use tidewire_proto::message::MemberId;

use super::Record;
use super::ring::{Ring, Tick};
use super::{History, Numbering, PastMessage};
use crate::broker::Position;
use crate::limits::nanoseconds;

/// The messages of one room or topic.
#[derive(Debug)]
pub(crate) struct MessageHistory {
    limits: History,
    numbering: Numbering,
    /// Sessions that are about to join or subscribe, and need the history of a node.
    holds: AtomicUsize,
    records: Mutex<Records>,
    /// The clock when the newest message was recorded; 0 before the first.
    touched: AtomicU64,
    clock: Arc<AtomicU64>,
}

/// The messages of a history, while it is locked.
#[derive(Debug)]
pub(crate) struct Records {
    ring: Ring,
    last: Position,
    /// The offset that the present epoch follows; 0 if there was none before.
    epoch_start: u64,
    /// The lanes with members, and the position up to which each has the messages.
    lanes: Vec<(usize, Position)>,
    /// Messages that are too large to keep, until all lanes have them.
    passing: VecDeque<(u64, Box<[u8]>)>,
}

impl MessageHistory {
    /// Makes an empty history whose newest message has this position. The clock counts the messages of all histories of
    /// a kind.
    pub(super) fn begin(
        limits: History,
        last: Position,
        numbering: Numbering,
        clock: Arc<AtomicU64>,
    ) -> Arc<Self> {
        Arc::new(Self {
            limits,
            numbering,
            holds: AtomicUsize::new(0),
            records: Mutex::new(Records {
                ring: Ring::default(),
                last,
                epoch_start: 0,
                lanes: Vec::new(),
                passing: VecDeque::new(),
            }),
            // A history that never had a message is removed first. Else subscriptions of many empty topics would
            // displace the values of others.
            touched: AtomicU64::new(0),
            clock,
        })
    }

    /// The side that numbers the messages.
    #[inline]
    pub(crate) fn numbering(&self) -> Numbering {
        self.numbering
    }

    /// Whether a lane gets the messages of its own members back by the history, as the carrier numbers them.
    pub(crate) fn returns_own(&self) -> bool {
        self.numbering == Numbering::Carrier
    }

    /// The time of the clock.
    pub(super) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Keeps the history of a node open until `release` was called as often.
    pub(super) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn release(&self) {
        // The thread that sees the number sees the join of the session, too.
        self.holds.fetch_sub(1, Ordering::Release);
    }

    pub(super) fn is_held(&self) -> bool {
        // A lane that releases the history after this has a member or subscriber, which the caller looks for.
        self.holds.load(Ordering::Acquire) > 0
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Records> {
        // After a panic while a message is recorded, the message is missing and the others are intact.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock when the newest message was recorded; 0 before the first.
    pub(super) fn touched(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    /// Notes that a message was sent.
    pub(crate) fn touch(&self) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        self.touched.store(now, Ordering::Relaxed);
    }

    /// Records messages of a former run, if the history is still empty.
    pub(crate) fn begin_with(&self, past: &[PastMessage], now_ns: u64) {
        let mut records = self.lock();
        if records.last.offset > 0 {
            return;
        }
        for (name, payload) in past {
            let message = Record::by(MemberId(0), name, payload);
            if self.has_room_for(&message) {
                self.record(&mut records, &message, now_ns);
                self.touch();
            }
        }
    }

    /// Whether the limits allow the message at all.
    pub(crate) fn has_room_for(&self, message: &Record<'_>) -> bool {
        let bytes_max = self.limits.bytes_max.min(BYTES_MAX);
        self.limits.messages_max > 0 && message.held_bytes() <= bytes_max
    }

    /// Records a message that was just sent. One that the limits do not allow is kept only until all lanes have it.
    pub(crate) fn record(&self, records: &mut Records, message: &Record<'_>, now_ns: u64) {
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

    pub(crate) fn note_arrival(&self, records: &mut Records, lane: usize, offset: u64) {
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
    pub(crate) fn leave(&self, lane: usize, now_ns: u64) {
        let mut records = self.lock();
        records.lanes.retain(|(of, _)| *of != lane);
        self.evict(&mut records, now_ns);
    }

    /// Removes the messages beyond the limits, except those that a lane does not have yet.
    pub(crate) fn evict(&self, records: &mut Records, now_ns: u64) {
        let (limits, now) = (&self.limits, Tick::of(now_ns));
        let had = records
            .lanes
            .iter()
            .map(|(_, has)| records.offset_of(*has))
            .min();
        let had = had.unwrap_or(records.last.offset);
        while let Some((offset, _)) = records.passing.front()
            && (*offset <= had || self.returns_own() && records.passing.len() > PASSING_MAX)
        {
            records.passing.pop_front();
        }
        let age_max_ns = limits.age_max.map_or(u64::MAX, nanoseconds);
        let bytes_max = limits.bytes_max.min(BYTES_MAX);
        let ring = &records.ring;
        let mut first = records.last.offset + 1 - ring.len() as u64;
        let may_go = |first, ring: &Ring| {
            first <= had || self.returns_own() && ring.bytes() > bytes_max + BEHIND_BYTES_MAX
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
    pub(crate) fn expire(&self, now_ns: u64) {
        let mut records = self.lock();
        if self.limits.age_max.is_some() && records.ring.len() > 0 {
            self.evict(&mut records, now_ns);
            records.ring.release_unused();
        }
    }

    /// Returns the offset of the first message for a member that asks for the messages after `since`, and how much of
    /// what the member asks for there is.
    pub(crate) fn plan(
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
    pub(crate) fn last(&self) -> Position {
        self.last
    }

    /// The offset that the present epoch follows; 0 if there was none before.
    pub(crate) fn epoch_start(&self) -> u64 {
        self.epoch_start
    }

    /// The offset of the oldest message; of the next one if there is none.
    pub(crate) fn first(&self) -> u64 {
        self.last.offset + 1 - self.ring.len() as u64
    }

    /// The offset up to which a lane with members has the messages.
    pub(crate) fn has(&self, lane: usize) -> Option<u64> {
        Some(self.offset_of(self.position_of(lane)?))
    }

    /// Whether a lane with members does not know yet that another epoch has begun.
    pub(crate) fn is_in_former_epoch(&self, lane: usize) -> bool {
        let has = self.position_of(lane);
        has.is_some_and(|has| has.epoch != self.last.epoch)
    }

    fn position_of(&self, lane: usize) -> Option<Position> {
        let found = self.lanes.iter().find(|(of, _)| *of == lane);
        found.map(|(_, has)| *has)
    }

    /// The offset of a position. A position of a former epoch has nothing of this epoch.
    fn offset_of(&self, has: Position) -> u64 {
        match has.epoch == self.last.epoch {
            true => has.offset,
            false => self.epoch_start,
        }
    }

    /// The offset of the last message for a subscriber of this lane; the later ones come by the log of the lane.
    pub(crate) fn end_for(&self, lane: usize) -> u64 {
        self.has(lane).unwrap_or(self.last.offset)
    }

    /// Returns the message with this offset, or `None` if it is not kept.
    pub(crate) fn get<'a>(&'a self, offset: u64, scratch: &'a mut Vec<u8>) -> Option<Record<'a>> {
        let index = usize::try_from(offset.checked_sub(self.first())?).ok()?;
        if let Some((_, record)) = self.passing.iter().find(|(of, _)| *of == offset) {
            return Record::read(record);
        }
        self.ring.get(index, scratch)
    }

    /// Whether the messages from `next` to `end` have at most `bytes_max`, with what frames add to them.
    pub(crate) fn fits(&self, next: u64, end: u64, bytes_max: usize) -> bool {
        let count = (end + 1).saturating_sub(next);
        self.ring.bytes() as u64 + count * FRAME_BYTES <= bytes_max as u64
    }

    /// Continues at another position. The messages before it are not here.
    pub(super) fn continue_after(&mut self, last: Position) {
        if last.epoch != self.last.epoch {
            self.epoch_start = last.offset;
        }
        self.clear();
        self.last = last;
    }

    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.ring.held_bytes()
    }

    pub(super) fn clear(&mut self) {
        self.ring = Ring::default();
        self.passing.clear();
    }
}

/// Bytes that a frame adds to a kept message, at most.
const FRAME_BYTES: u64 = 24;

/// Bytes beyond its limit that the history of a node keeps for lanes that are late. The other nodes go on sending.
const BEHIND_BYTES_MAX: usize = 1 << 20;

/// Messages of a node that are too large to keep and wait for lanes that are late.
const PASSING_MAX: usize = 16;

/// The largest history, so that the index of its ring counts bytes in 32 bits.
const BYTES_MAX: usize = 1 << 30;
