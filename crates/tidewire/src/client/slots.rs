//! The states of requests, one slot for each. The application's threads and the lane change them without a lock.
//! [`Waits`] has the state that needs the lock of the [table](super::table).
//!
//! Each side writes its own word, so no operation needs an atomic read-modify-write:
//!
//! ```text
//!                     application: interest      lane: answer
//!   free              Done                       not Pending
//!   submitted         Wanted                     Pending
//!   completed         Wanted                     Short (channel, length) or Long
//!   fetched           Done                       Short or Long         = free
//!   abandoned         Abandoned                  Pending
//!   completed then    Done, by the lane          Short or Long         = free
//! ```
//!
//! The lane writes the words of the payload before it stores the answer with `Release`; the application reads them
//! after it loads the answer with `Acquire`. The application reads them before it stores the interest with `Release`;
//! the thread that opens the slot again loads the interest with `Acquire`. Only a thread that holds the lock of the
//! [table](super::table) may open a slot, abandon it, or clean it up after an abandoned request.
//!
//! Rejected: one word for both sides, which needs a lock or a read-modify-write for each reply. Rejected too: a list of
//! free slots, which needs the lock whenever a reply is fetched. A [`Cursor`] goes round all slots instead.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::effect::Undo;
use super::reply::{Outcome, Reply};
use super::sync::{Payload, Primitives, Word};
use super::waiting::Waiting;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(NonZeroU32);

#[derive(Debug)]
pub(super) struct Slots<P: Primitives> {
    /// Each chunk is twice as large as the chunk before. Slots never move when the table grows.
    chunks: [OnceLock<Box<[Slot<P>]>>; CHUNKS],
}

/// A search for free slots, one after another, round after round.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    next: usize,
    len: usize,
    /// Number of slots that were free in this round.
    found: usize,
}

/// The lane's state of a slot's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// No outcome yet.
    Pending,
    /// A short reply, stored in the slot.
    Short,
    /// Another outcome, stored under the table's lock.
    Long,
}

/// The parts of requests that the table's lock protects: wakers, and outcomes other than short replies.
#[derive(Debug, Default)]
pub(super) struct Waits {
    list: BySlot<Wait>,
    /// Number of entries that have a waker.
    wakers: usize,
}

#[derive(Debug, Default)]
pub(super) struct Wait {
    waiting: Option<Waiting>,
    /// The outcome, if the slot's answer is `Long`.
    pub(super) outcome: Option<Outcome>,
    /// The request that undoes the effect of the outcome.
    pub(super) undo: Option<Undo>,
}

/// A value for each slot. The list grows with the slots.
#[derive(Debug, Default)]
pub(super) struct BySlot<T>(Vec<T>);

/// One request's state. See the module.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<P: Primitives> {
    /// [`PENDING`], [`LONG`] or [`SHORT`]. [`SHORT`] includes channel and length.
    answer: P::Word,
    /// [`WANTED`], [`ABANDONED`] or [`DONE`].
    interest: P::Word,
    payload: P::Payload,
}

impl<P: Primitives> Default for Slots<P> {
    fn default() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }
}

impl<P: Primitives> Slots<P> {
    /// Opens a slot for a new request.
    ///
    /// If less than half of the slots were free in a round, their number doubles. So the number of slots is at most
    /// about four times the largest number of open requests, and finding a free slot takes two checks on average.
    #[inline]
    pub(super) fn open(&self, cursor: &mut Cursor) -> SlotId {
        loop {
            if cursor.next == cursor.len {
                cursor.begin_round(P::SLOTS_MIN);
            }
            let id = SlotId::new(cursor.next);
            cursor.next += 1;
            let slot = self.slot(id);
            if slot.is_free() {
                cursor.found += 1;
                // Relaxed is enough: the lane reads this only after it has taken the lock.
                slot.answer.store(PENDING, Ordering::Relaxed);
                slot.interest.store(WANTED, Ordering::Relaxed);
                return id;
            }
        }
    }

    /// Takes a short reply, if any, which frees the slot. Only the request that owns the slot calls it.
    #[inline(always)]
    pub(super) fn fetch(&self, id: SlotId, memory: impl FnOnce() -> Vec<u8>) -> Option<Reply> {
        let slot = self.slot(id);
        let answer = slot.answer.load(Ordering::Acquire);
        if answer & TAG_MASK != SHORT {
            return None;
        }
        let length = answer >> LENGTH_SHIFT & LENGTH_MASK;
        let payload = slot.payload.load(length as usize, memory());
        slot.interest.store(DONE, Ordering::Release);
        Some(Reply::new((answer >> CHANNEL_SHIFT) as u16, payload))
    }

    /// Returns the lane's state of the slot. Unless it is `Pending`, the lane is done with the request.
    #[inline]
    pub(super) fn answer(&self, id: SlotId) -> Answer {
        match self.slot(id).answer.load(Ordering::Acquire) & TAG_MASK {
            PENDING => Answer::Pending,
            SHORT => Answer::Short,
            _ => Answer::Long,
        }
    }

    /// Stores a reply, called by the lane. Returns false if the payload does not fit.
    #[inline(always)]
    pub(super) fn reply(&self, id: SlotId, channel: u16, payload: &[u8]) -> bool {
        if payload.len() > P::Payload::BYTES_MAX {
            return false;
        }
        let slot = self.slot(id);
        slot.payload.store(payload);
        let length = (payload.len() as u32) << LENGTH_SHIFT;
        let channel = u32::from(channel) << CHANNEL_SHIFT;
        slot.answer
            .store(SHORT | length | channel, Ordering::Release);
        true
    }

    /// Records that the lane has stored the outcome under the lock.
    pub(super) fn note_long(&self, id: SlotId) {
        self.slot(id).answer.store(LONG, Ordering::Release);
    }

    /// Records that both sides are done with the request: the application has the outcome, or does not want it and the
    /// lane has finished.
    pub(super) fn note_done(&self, id: SlotId) {
        self.slot(id).interest.store(DONE, Ordering::Release);
    }

    /// Records that the application does not want the outcome while the request is still pending.
    pub(super) fn note_abandoned(&self, id: SlotId) {
        self.slot(id).interest.store(ABANDONED, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_abandoned(&self, id: SlotId) -> bool {
        self.slot(id).interest.load(Ordering::Relaxed) == ABANDONED
    }

    #[inline(always)]
    fn slot(&self, id: SlotId) -> &Slot<P> {
        // Chunk k has `SLOTS_MIN << k` slots, and `SLOTS_MIN` is a power of two. So the highest bit of the position
        // says the chunk, and the other bits say the place in it.
        let position = id.index() + P::SLOTS_MIN;
        let highest = position.ilog2();
        let chunk = (highest - P::SLOTS_MIN.ilog2()) as usize;
        let slots = self.chunks[chunk].get_or_init(|| new_chunk(chunk));
        &slots[position ^ (1 << highest)]
    }
}

impl<P: Primitives> Slot<P> {
    #[inline(always)]
    fn is_free(&self) -> bool {
        self.interest.load(Ordering::Acquire) == DONE
            && self.answer.load(Ordering::Acquire) != PENDING
    }
}

impl Cursor {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Starts the next round at the first slot, or at new slots if most are in use.
    #[cold]
    fn begin_round(&mut self, slots_min: usize) {
        if self.found * 2 < self.len || self.len == 0 {
            self.len = self.len * 2 + slots_min;
        } else {
            self.next = 0;
        }
        self.found = 0;
    }
}

impl Waits {
    pub(super) fn has_wakers(&self) -> bool {
        self.wakers > 0
    }

    /// Whether this waker waits for the slot's completion.
    pub(super) fn is_registered(&mut self, slot: SlotId, waker: &Waker) -> bool {
        let known = &self.list.get_mut(slot).waiting;
        known.as_ref().is_some_and(|it| it.waker.will_wake(waker))
    }

    /// Stores who waits for this slot's completion. Returns who did before.
    pub(super) fn register(&mut self, slot: SlotId, waiting: Waiting) -> Option<Waiting> {
        let replaced = self.list.get_mut(slot).waiting.replace(waiting);
        self.wakers += usize::from(replaced.is_none());
        replaced
    }

    pub(super) fn take_waker(&mut self, slot: SlotId) -> Option<Waker> {
        let waiting = self.list.get_mut(slot).waiting.take();
        self.wakers -= usize::from(waiting.is_some());
        waiting.map(|it| it.waker)
    }

    pub(super) fn set_outcome(&mut self, slot: SlotId, outcome: Outcome, undo: Option<Undo>) {
        let wait = self.list.get_mut(slot);
        (wait.outcome, wait.undo) = (Some(outcome), undo);
    }

    /// Takes all that is stored for this slot.
    pub(super) fn take(&mut self, slot: SlotId) -> Wait {
        let wait = std::mem::take(self.list.get_mut(slot));
        self.wakers -= usize::from(wait.waiting.is_some());
        wait
    }
}

impl<T: Default> BySlot<T> {
    #[inline]
    pub(super) fn get(&self, slot: SlotId) -> Option<&T> {
        self.0.get(slot.index())
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: SlotId) -> &mut T {
        let index = slot.index();
        if index >= self.0.len() {
            self.0.resize_with(index + 1, T::default);
        }
        &mut self.0[index]
    }
}

impl SlotId {
    pub(super) fn new(index: usize) -> Self {
        // A client never has 2^32 slots: they need more memory than it can have.
        Self(NonZeroU32::MIN.saturating_add(index as u32))
    }

    /// Returns the slot's index, from 0.
    #[inline]
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[cold]
fn new_chunk<P: Primitives>(chunk: usize) -> Box<[Slot<P>]> {
    let slots = std::iter::repeat_with(|| Slot {
        answer: P::Word::new(LONG),
        interest: P::Word::new(DONE),
        payload: P::Payload::default(),
    });
    slots.take(P::SLOTS_MIN << chunk).collect()
}

/// Number of chunks: enough for all slots that 32 bits can count.
const CHUNKS: usize = 32;

const PENDING: u32 = 0;
const SHORT: u32 = 1;
const LONG: u32 = 2;
const TAG_MASK: u32 = 3;
const LENGTH_SHIFT: u32 = 8;
const LENGTH_MASK: u32 = 0xff;
const CHANNEL_SHIFT: u32 = 16;

const DONE: u32 = 0;
const WANTED: u32 = 1;
const ABANDONED: u32 = 2;

#[cfg(test)]
impl Waits {
    pub(super) fn outcomes(&self) -> usize {
        let outcomes = self.list.0.iter().filter(|wait| wait.outcome.is_some());
        outcomes.count()
    }
}

#[cfg(test)]
mod tests;
