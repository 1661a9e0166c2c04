//! The states of requests, one slot for each, which the application's threads and the lane change without a lock.
//!
//! Each side writes a word of its own, so that no operation has to read, change and write at once:
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
//! The words of the payload are written before the answer is stored with `Release`, and read after it is loaded with
//! `Acquire`. They are read before the interest is stored with `Release`, and whoever opens the slot again loads that with
//! `Acquire`. A slot is opened, abandoned, and cleaned up after an abandoned request with the lock of the
//! [table](super::table) only.
//!
//! Rejected: one word for both sides, which needs a lock or a read-modify-write for each reply; and a list of free slots, for
//! which whoever fetches a reply needs the lock. A [`Cursor`] goes round all slots instead.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::reply::Reply;
use super::sync::{Payload, Primitives, Word};

/// The index of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(NonZeroU32);

/// The slots of a client.
#[derive(Debug)]
pub(super) struct Slots<P: Primitives> {
    /// Each twice as many as the one before, so that they stay where they are when there are more.
    chunks: [OnceLock<Box<[Slot<P>]>>; CHUNKS],
}

/// Looks for free slots, one after another, round after round.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    next: usize,
    /// How many slots there are.
    len: usize,
    /// How many of them were free in this round.
    found: usize,
}

/// The lane's word about the request of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing yet.
    Pending,
    /// A short reply is in the slot.
    Short,
    /// The outcome is behind the lock.
    Long,
}

/// See the module.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<P: Primitives> {
    /// [`PENDING`], [`LONG`] or [`SHORT`], this one with channel and length.
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
    /// A slot for a new request.
    ///
    /// A round in which less than half of the slots were free doubles their number. So there are hardly more than four times
    /// as many as requests were held at once, and finding one takes two looks on the average.
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
                // The lane hears of it by way of the lock.
                slot.answer.store(PENDING, Ordering::Relaxed);
                slot.interest.store(WANTED, Ordering::Relaxed);
                return id;
            }
        }
    }

    /// Takes a short reply out, if it is there, which frees the slot. Only the slot's one request calls it.
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

    /// The lane's word. With anything but `Pending` the lane is done with the request.
    #[inline]
    pub(super) fn answer(&self, id: SlotId) -> Answer {
        match self.slot(id).answer.load(Ordering::Acquire) & TAG_MASK {
            PENDING => Answer::Pending,
            SHORT => Answer::Short,
            _ => Answer::Long,
        }
    }

    /// The lane replies. Returns false if the payload does not fit.
    #[inline]
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

    /// The lane has left the outcome behind the lock.
    pub(super) fn note_long(&self, id: SlotId) {
        self.slot(id).answer.store(LONG, Ordering::Release);
    }

    /// The application has its outcome, or wants none any more and the lane is done with it.
    pub(super) fn note_done(&self, id: SlotId) {
        self.slot(id).interest.store(DONE, Ordering::Release);
    }

    /// The application wants no outcome any more, and the lane is not done with it.
    pub(super) fn note_abandoned(&self, id: SlotId) {
        self.slot(id).interest.store(ABANDONED, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_abandoned(&self, id: SlotId) -> bool {
        self.slot(id).interest.load(Ordering::Relaxed) == ABANDONED
    }

    #[inline(always)]
    fn slot(&self, id: SlotId) -> &Slot<P> {
        let place = id.index() + P::SLOTS_MIN;
        let chunk = (place.ilog2() - P::SLOTS_MIN.ilog2()) as usize;
        let slots = self.chunks[chunk].get_or_init(|| new_chunk(chunk));
        &slots[place - (P::SLOTS_MIN << chunk)]
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
    /// How many slots there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Goes on with the first slot, or with new ones if most are in use.
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

impl SlotId {
    pub(super) fn new(index: usize) -> Self {
        // 2^32 slots do not fit any memory that a client has.
        Self(NonZeroU32::MIN.saturating_add(index as u32))
    }

    /// Its index among all of them, counted from 0.
    #[inline]
    pub(super) fn index(self) -> usize {
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

/// Chunks for as many slots as 32 bits can count.
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
mod tests;
