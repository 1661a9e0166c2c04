//! Where the answers to a client's requests wait to be fetched: one slot for each request that was accepted.
//!
//! A slot belongs to the request's future and to the lane at once, and is free again when both have let go of it: the
//! lane by leaving an answer, the future by fetching it or by being dropped. So a slot's number is all that the two need
//! to name a request, and no reference is counted for it.
//!
//! ```text
//! Free ── open ──▶ Open ── answer ──▶ Replied or Settled ── fetch ──▶ Free
//!                    └── abandon ──▶ Abandoned ── answer ──▶ Free
//! ```
//!
//! A short reply lies in its slot, in [atomic words](tidewire_io::words): the lane writes them before it changes the state,
//! and whoever sees the state reads them with plain loads. So a reply that is there is fetched without a lock: taking one
//! and giving it back was a third of what a request cost the application, more than anything it did under it. Everything
//! else is rare, or once in a block, and lies behind the lock of the commands ([`Exchange`](super::exchange::Exchange)) as
//! [`Waiters`]: who waits, answers that are no short replies, and which slots may be free.
//!
//! Rejected: a list of free slots, for which those who fetch would need the lock. The lane lists the slots that it has
//! answered instead, and who opens one looks whether the oldest of them were fetched meanwhile.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use tidewire_io::words::SharedBytes;

use super::request::{Reply, RequestError};
use super::spare::{self, Pile};

/// The number of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(NonZeroU32);

/// What became of a request: its reply, or why there is none. The error is boxed, because every reply is moved as often as
/// the larger of the two.
pub(crate) type Outcome = Result<Reply, Box<RequestError>>;

/// All slots of a client.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Each twice as many as the one before, so that they stay where they are when there are more.
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
}

/// What is known of slots behind the lock.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// By the indices of the slots; as many as there are slots.
    rests: Vec<Rest>,
    /// Slots that were found to be free when all were looked at.
    free: Vec<SlotId>,
    /// Slots that the lane has answered, the oldest first: to be fetched, or free by now.
    answered: VecDeque<SlotId>,
    /// Those of them that were to be fetched still when they were looked at.
    left: Vec<SlotId>,
    /// How many of those there are when they are looked at again.
    look_again_at: usize,
    /// Slots that are abandoned.
    abandoned: usize,
    /// For replies that do not fit their slots, from those who fetched others.
    spare: Pile,
}

/// See the module. States change under the lock, except that who fetches an answer frees its slot.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    /// One of the constants below; with [`REPLIED`] also the channel and the length of the payload.
    state: AtomicU64,
    payload: SharedBytes<WORDS>,
}

/// What of a slot is behind the lock.
#[derive(Debug, Default)]
struct Rest {
    waker: Option<Waker>,
    /// In a slot that is [`SETTLED`].
    outcome: Option<Outcome>,
}

impl Slots {
    /// A slot for a new request.
    #[inline]
    pub(crate) fn open(&self, waiters: &mut Waiters) -> SlotId {
        let id = match waiters.answered.pop_front() {
            Some(id) if self.is_free(id) => id,
            oldest => self.look_further(waiters, oldest),
        };
        // The lane hears of it by way of the lock.
        self.slot(id).state.store(OPEN, Ordering::Relaxed);
        id
    }

    /// A free slot, where the oldest of those that were answered is none: another one of them, or a new one.
    #[inline(never)]
    fn look_further(&self, waiters: &mut Waiters, oldest: Option<SlotId>) -> SlotId {
        waiters.left.extend(oldest);
        while let Some(id) = waiters.answered.pop_front() {
            if self.is_free(id) {
                return id;
            }
            waiters.left.push(id);
        }
        // Each look at all of them is paid for by half as many that were left since the last one.
        if waiters.left.len() >= waiters.look_again_at.max(LOOK_AGAIN_MIN) {
            let free = waiters.left.extract_if(.., |id| self.is_free(*id));
            waiters.free.extend(free);
            waiters.look_again_at = waiters.left.len() * 2;
        }
        waiters.free.pop().unwrap_or_else(|| {
            waiters.rests.push(Rest::default());
            SlotId::new(waiters.rests.len() - 1)
        })
    }

    /// Whether whoever fetched the answer has read it.
    #[inline]
    fn is_free(&self, id: SlotId) -> bool {
        self.slot(id).state.load(Ordering::Acquire) == FREE
    }

    /// Takes a short reply out, if it is there, which frees the slot. Only the slot's one request calls it.
    #[inline(always)]
    pub(crate) fn fetch(&self, id: SlotId) -> Option<Reply> {
        let slot = self.slot(id);
        let state = slot.state.load(Ordering::Acquire);
        if state & TAG_MASK != REPLIED {
            return None;
        }
        let payload = slot
            .payload
            .load((state >> LENGTH_SHIFT) as usize, spare::take());
        slot.state.store(FREE, Ordering::Release);
        Some(Reply::new((state >> CHANNEL_SHIFT) as u16, payload))
    }

    /// Whether the lane has answered, or the request has let go of its slot.
    pub(crate) fn is_settled(&self, id: SlotId) -> bool {
        self.slot(id).state.load(Ordering::Relaxed) != OPEN
    }

    /// Takes any outcome out, which frees the slot. If there is none yet, `waker` is woken when there is, if it is given. What
    /// comes back then is the one before it: letting go of a waker may run code of its executor, which must find the lock
    /// free. `memory` is for a later reply, unless there is enough for those.
    pub(crate) fn fetch_or_wait(
        &self,
        waiters: &mut Waiters,
        id: SlotId,
        memory: &mut Vec<u8>,
        waker: Option<&Waker>,
    ) -> Result<Outcome, Option<Waker>> {
        if let Some(reply) = self.fetch(id) {
            return Ok(Ok(reply));
        }
        let state = &self.slot(id).state;
        let rest = &mut waiters.rests[id.index()];
        match state.load(Ordering::Acquire) {
            OPEN => Err(rest.wait(waker)),
            SETTLED => {
                let outcome = rest.outcome.take();
                let refused = waiters.spare.push(std::mem::take(memory));
                *memory = refused.unwrap_or_default();
                state.store(FREE, Ordering::Release);
                Ok(outcome.unwrap_or_else(ended))
            }
            // Only its one request asks for a slot, and not after it has had or given up its answer.
            _ => Ok(ended()),
        }
    }

    /// The request lets go of its slot. Returns whether the lane owes it an answer still, and what the slot held, which is to
    /// be dropped without the lock.
    pub(crate) fn abandon(&self, waiters: &mut Waiters, id: SlotId) -> (bool, impl Sized + use<>) {
        let state = &self.slot(id).state;
        let is_owed = state.load(Ordering::Acquire) == OPEN;
        if is_owed {
            waiters.abandoned += 1;
        }
        state.store(if is_owed { ABANDONED } else { FREE }, Ordering::Release);
        let rest = &mut waiters.rests[id.index()];
        (is_owed, (rest.waker.take(), rest.outcome.take()))
    }

    /// Whether nobody wants the answer any more.
    #[inline]
    pub(crate) fn is_abandoned(&self, id: SlotId) -> bool {
        self.slot(id).state.load(Ordering::Relaxed) == ABANDONED
    }

    /// The lane has a reply of at most [`SHORT_BYTES_MAX`], which it will leave with [`Self::answer_short`]. Nobody reads it
    /// before that.
    #[inline]
    pub(crate) fn write(&self, id: SlotId, payload: &[u8]) {
        self.slot(id).payload.store(payload);
    }

    /// The lane leaves a reply that was [written](Self::write). Returns who waits for it.
    #[inline]
    pub(crate) fn answer_short(
        &self,
        waiters: &mut Waiters,
        id: SlotId,
        channel: u16,
        payload_bytes: usize,
    ) -> Option<Waker> {
        let reply = u64::from(channel) << CHANNEL_SHIFT | (payload_bytes as u64) << LENGTH_SHIFT;
        self.change(waiters, id, REPLIED | reply)?.waker.take()
    }

    /// The lane leaves a reply that is copied into memory which waits for it. Returns who waits for it.
    pub(crate) fn answer(
        &self,
        waiters: &mut Waiters,
        id: SlotId,
        channel: u16,
        payload: &[u8],
    ) -> Option<Waker> {
        self.change(waiters, id, SETTLED)?;
        let mut memory = waiters.spare.pop().unwrap_or_default();
        // No more than needed, or it would grow beyond what is kept.
        memory.reserve_exact(payload.len());
        memory.extend_from_slice(payload);
        let rest = &mut waiters.rests[id.index()];
        rest.outcome = Some(Ok(Reply::new(channel, memory)));
        rest.waker.take()
    }

    /// The lane leaves an outcome. Returns who waits for it.
    pub(crate) fn settle(
        &self,
        waiters: &mut Waiters,
        id: SlotId,
        outcome: Outcome,
    ) -> Option<Waker> {
        let rest = self.change(waiters, id, SETTLED)?;
        rest.outcome = Some(outcome);
        rest.waker.take()
    }

    /// There is no lane any more to answer. Returns who waits for that.
    pub(crate) fn end(&self, waiters: &mut Waiters) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for number in 0..waiters.rests.len() {
            // Most slots are nobody's, and an error for each would be allocated for nothing.
            if let Some(rest) = self.change(waiters, SlotId::new(number), SETTLED) {
                rest.outcome = Some(ended());
                wakers.extend(rest.waker.take());
            }
        }
        wakers
    }

    /// The lane owes this slot nothing any more. Returns its rest if somebody wants the answer.
    #[inline]
    fn change<'a>(
        &self,
        waiters: &'a mut Waiters,
        id: SlotId,
        answered: u64,
    ) -> Option<&'a mut Rest> {
        let state = &self.slot(id).state;
        match state.load(Ordering::Relaxed) {
            OPEN => {
                waiters.answered.push_back(id);
                // With what was written before.
                state.store(answered, Ordering::Release);
                waiters.rests.get_mut(id.index())
            }
            ABANDONED => {
                waiters.answered.push_back(id);
                waiters.abandoned -= 1;
                state.store(FREE, Ordering::Release);
                None
            }
            // The lane answers each request once.
            _ => None,
        }
    }

    #[inline(always)]
    fn slot(&self, id: SlotId) -> &Slot {
        let place = id.index() + FIRST_CHUNK;
        let chunk = (place.ilog2() - FIRST_CHUNK.ilog2()) as usize;
        let slots = self.chunks[chunk].get_or_init(|| new_chunk(chunk));
        &slots[place - (FIRST_CHUNK << chunk)]
    }
}

impl Waiters {
    /// How many slots are abandoned.
    pub(crate) fn abandoned(&self) -> usize {
        self.abandoned
    }
}

impl Rest {
    /// Has the waker woken, if it is given. Returns the one before it.
    fn wait(&mut self, waker: Option<&Waker>) -> Option<Waker> {
        match (&self.waker, waker) {
            (Some(known), Some(waker)) if known.will_wake(waker) => None,
            (_, Some(waker)) => self.waker.replace(waker.clone()),
            (_, None) => None,
        }
    }
}

impl SlotId {
    fn new(index: usize) -> Self {
        // 2^32 slots do not fit any memory that a client has.
        Self(NonZeroU32::MIN.saturating_add(index as u32))
    }

    /// The slot of this number.
    pub(super) fn of_number(number: u32) -> Self {
        Self(NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN))
    }

    /// Its number, which is never 0.
    pub(super) fn number(self) -> u32 {
        self.0.get()
    }

    /// Its place among all of them, counted from 0.
    #[inline]
    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[cold]
fn new_chunk(chunk: usize) -> Box<[Slot]> {
    let slots = std::iter::repeat_with(Slot::default);
    slots.take(FIRST_CHUNK << chunk).collect()
}

/// What those are told whom no lane will answer any more.
fn ended() -> Outcome {
    Err(Box::new(RequestError::Shutdown))
}

/// Largest payload that a slot has room for, in bytes: with it and its state a slot is two cache lines.
pub(super) const SHORT_BYTES_MAX: usize = SharedBytes::<WORDS>::BYTES_MAX;
const WORDS: usize = 15;

/// Slots of the first chunk.
const FIRST_CHUNK: usize = 64;

/// As many as `u32` can count, with the first one.
const CHUNKS: usize = 27;

/// Slots whose answers were left that are not looked at again before there are so many.
const LOOK_AGAIN_MIN: usize = 64;

/// Nobody's.
const FREE: u64 = 0;

/// The lane owes the answer; perhaps somebody waits for it.
const OPEN: u64 = 1;

/// The lane owes the answer, and nobody wants it.
const ABANDONED: u64 = 2;

/// A short reply is in the slot.
const REPLIED: u64 = 3;

/// The outcome is behind the lock.
const SETTLED: u64 = 4;

const TAG_MASK: u64 = 0xff;
const CHANNEL_SHIFT: u32 = 16;
const LENGTH_SHIFT: u32 = 32;

#[cfg(test)]
mod tests;
