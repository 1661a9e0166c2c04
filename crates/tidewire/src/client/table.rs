//! The request table: where the application's threads and their client's lane meet. It is all that the two share of a request.
//!
//! ```text
//!   application's threads                                             lane
//!   ─────────────────────                                             ────
//!   submit ──▶ opens a slot, copies the bytes ─┐
//!   send, control ─────────────────────────────┼─▶ submissions ─────▶ next: the whole list, once a turn
//!   abandon ── marks the slot ─────────────────┘   (lock)                │
//!                                                                        ▼ encodes, writes, reads, matches
//!   poll  ◀── short reply ──────── slots (no lock) ◀────────────────── Completions::reply
//!         ◀── anything else ────── outcomes (lock) ◀──┐
//!         ──▶ a waker, if there is none (lock) ───────┴─────────────── complete: once for a block, gives the wakers
//!                                                                     end: fails all that is pending
//! ```
//!
//! The lane takes the lock for lists, not for what is in them: it takes all submissions by swapping their list for an empty
//! one, and completes all replies of a turn as one block. A thread takes the lock when it submits and when it has to wait; a
//! short reply that is there already it fetches without.
//!
//! Three rules make that right. `table/model.rs` runs this code under a model checker and again with each rule broken.
//! - A payload is written before its slot is stored with `Release`, and read after the slot is loaded with `Acquire`.
//! - A thread registers its waker with the lock, and only if the slot is pending then. `complete` takes the lock after the
//!   slots were stored. So either the thread sees the reply or the lane the waker.
//! - The lane is woken by the thread that makes its news new. That wake begins with a fence, as the lane's sleep does.
//!
//! A lock-free queue of submissions was measured first. It moves a cache line between two processors for every message,
//! where this moves one for every list; and a lock that nobody holds costs no more than its compare-and-swap. A lock for each
//! reply was replaced by this one: a thread that was woken by the first of them took the lane's processor before the second.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use tidewire_proto::error::EncodeError;

use super::completions::{Completions, Outcome};
use super::effect::Undo;
use super::error::{RequestError, too_large};
use super::reply::{Pile, Reply, give_back, take_memory};
use super::slots::{Answer, Cursor, SlotId, Slots};
use super::submissions::{Control, RequestHead, Submission, Submissions};
use super::sync::{Lock, Native, Primitives, WakeLane, Word};
use crate::mailbox::EnqueueError;

/// See the module.
#[derive(Debug)]
pub(super) struct RequestTable<C: Control, P: Primitives = Native> {
    /// Bytes of one-way messages that may wait, beyond which none is added, and as many of requests. They count apart, because
    /// a sender that has no more room for messages waits for it by a request.
    queue_bytes_max: usize,
    /// Every message is handed on by itself, because nothing but that says where it ends.
    is_single: bool,
    /// Largest frame that both sides of the connection take.
    frame_bytes_max: AtomicUsize,
    shared: P::Lock<Shared<C>>,
    slots: Slots<P>,
    /// Whether submissions wait: one of the constants below. So that a lane about to sleep need not take the lock. It changes
    /// under the lock only.
    news: P::Word,
    /// Requests that were abandoned and not yet completed, so that the lane need not look for them where there are none. It
    /// changes under the lock only.
    abandoned: P::Word,
    waker: P::Waker,
}

/// The state behind the lock.
#[derive(Debug)]
struct Shared<C> {
    submissions: Submissions<C>,
    cursor: Cursor,
    /// By the indices of slots.
    waits: Vec<Wait>,
    /// How many of them have a waker.
    waiting: usize,
    /// For replies that do not fit their slots, from those who fetched others.
    memory: Pile,
}

/// The part of a request that is behind the lock.
#[derive(Debug, Default)]
struct Wait {
    waker: Option<Waker>,
    /// If the slot's answer is long.
    outcome: Option<Outcome>,
    /// What takes the effect of that back.
    undo: Option<Undo>,
}

/// How much a turn has taken, in [weight](Submissions::weight_bytes).
#[derive(Debug, Default)]
pub(super) struct TakenBytes(usize);

impl<C: Control, P: Primitives> RequestTable<C, P> {
    pub(super) fn new(queue_bytes_max: usize, is_single: bool) -> Self {
        Self {
            queue_bytes_max,
            is_single,
            frame_bytes_max: AtomicUsize::new(usize::MAX),
            shared: P::Lock::default(),
            slots: Slots::default(),
            news: P::Word::new(NOTHING),
            abandoned: P::Word::new(0),
            waker: P::Waker::default(),
        }
    }

    /// Submits a request and wakes the lane if it sleeps. Returns where the reply will be. A request that fits no frame is
    /// refused before it is copied.
    #[inline]
    pub(super) fn submit(
        &self,
        mut head: RequestHead,
        name: &str,
        payload: &[u8],
    ) -> Result<SlotId, EnqueueError> {
        let limit = self.frame_bytes_max();
        if name.len().max(payload.len()) > limit {
            return Err(too_large(name, payload, limit).into());
        }
        self.add(|shared| {
            let submissions = &mut shared.submissions;
            if submissions.is_full() || submissions.request_bytes() >= self.queue_bytes_max {
                return Err(EnqueueError::QueueFull);
            }
            let slot = self.slots.open(&mut shared.cursor);
            head.slot = Some(slot);
            submissions.push_request(head, name, payload);
            Ok(slot)
        })
    }

    /// Submits what is no request and has a slot for its outcome, which `make` is told. Wakes the lane if it sleeps.
    pub(super) fn submit_control(
        &self,
        make: impl FnOnce(SlotId) -> C,
    ) -> Result<SlotId, EnqueueError> {
        self.add(|shared| {
            if shared.submissions.is_full() {
                return Err(EnqueueError::QueueFull);
            }
            let slot = self.slots.open(&mut shared.cursor);
            shared.submissions.push(Submission::Control(make(slot)));
            Ok(slot)
        })
    }

    /// Tells the lane something that always has a place: it is bounded by what was accepted before, as the end of a
    /// subscription is by its beginning. Wakes the lane if it sleeps.
    pub(super) fn control(&self, control: C) -> Result<(), EnqueueError> {
        self.add(|shared| {
            shared.submissions.push(Submission::Control(control));
            Ok(())
        })
    }

    /// Sends the one-way message that `encode` appends, and wakes the lane if it sleeps.
    pub(super) fn send(
        &self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EnqueueError> {
        self.add(|shared| {
            let submissions = &mut shared.submissions;
            if submissions.is_full() || submissions.message_bytes() >= self.queue_bytes_max {
                return Err(EnqueueError::QueueFull);
            }
            submissions.push_message(self.is_single, encode)?;
            Ok(())
        })
    }

    /// Adds a submission as `push` says, unless the lane has ended, and wakes the lane if it sleeps.
    #[inline(always)]
    fn add<T>(
        &self,
        push: impl FnOnce(&mut Shared<C>) -> Result<T, EnqueueError>,
    ) -> Result<T, EnqueueError> {
        let mut shared = self.shared.lock();
        if self.has_ended() {
            return Err(EnqueueError::Ended);
        }
        let added = push(&mut shared)?;
        let is_new = self.note_news();
        drop(shared);
        if is_new {
            self.waker.wake();
        }
        Ok(added)
    }

    /// Takes a short reply, if it is there.
    #[inline(always)]
    pub(super) fn poll_reply(&self, slot: SlotId) -> Option<Reply> {
        self.slots.fetch(slot, take_memory)
    }

    /// Takes the outcome of a request. If there is none yet, `waker` is woken when there is, if it is given.
    pub(super) fn poll(&self, slot: SlotId, waker: Option<&Waker>) -> Option<Outcome> {
        if let Some(reply) = self.poll_reply(slot) {
            return Some(Ok(reply));
        }
        if waker.is_none() && self.slots.answer(slot) == Answer::Pending {
            return None;
        }
        let mut shared = self.shared.lock();
        match self.slots.answer(slot) {
            Answer::Pending => {
                let replaced = waker.and_then(|waker| shared.wait(slot, waker));
                // Dropping a waker may run code of its executor, which must find the lock free.
                drop(shared);
                drop(replaced);
                None
            }
            Answer::Short => {
                drop(shared);
                self.poll_reply(slot).map(Ok)
            }
            Answer::Long => {
                let wait = shared.wait_of(slot);
                let outcome = wait.outcome.take();
                wait.undo = None;
                self.slots.note_done(slot);
                let refused = if matches!(outcome, Some(Ok(_))) {
                    shared.memory.push(take_memory())
                } else {
                    None
                };
                drop(shared);
                if let Some(memory) = refused {
                    give_back(memory);
                }
                // Only its one request asks for a slot, and not after it has had or given up its outcome.
                Some(outcome.unwrap_or_else(ended))
            }
        }
    }

    /// Gives up a request whose outcome was not taken. The lane is told, if it has not completed it.
    pub(super) fn abandon(&self, slot: SlotId) {
        let mut shared = self.shared.lock();
        let is_pending = self.slots.answer(slot) == Answer::Pending;
        let wait = shared.wait_of(slot);
        let held = std::mem::take(wait);
        shared.waiting -= usize::from(held.waker.is_some());
        let mut is_new = false;
        if is_pending {
            self.slots.note_abandoned(slot);
            self.count_abandoned(1);
            // If the queue is full, the request's deadline will give it up.
            if !self.has_ended() && !shared.submissions.is_full() {
                shared.submissions.push(Submission::Abandon(slot));
                is_new = self.note_news();
            }
        } else {
            self.slots.note_done(slot);
            if let Some(undo) = held.undo
                && !self.has_ended()
            {
                shared.submissions.push(Submission::Undo(undo));
                is_new = self.note_news();
            }
        }
        drop(shared);
        drop(held);
        if is_new {
            self.waker.wake();
        }
    }

    /// Whether the request was abandoned. A lane that does not see it yet sends a request that it might have spared itself.
    #[inline]
    pub(super) fn is_abandoned(&self, slot: Option<SlotId>) -> bool {
        self.abandoned.load(Ordering::Relaxed) > 0
            && slot.is_some_and(|slot| self.slots.is_abandoned(slot))
    }

    /// Whether something waits for [`next`](Self::next).
    #[inline]
    pub(super) fn is_occupied(&self) -> bool {
        matches!(self.news.load(Ordering::Acquire), SEEN | NEW)
    }

    /// Whether something waits that needs a connection.
    pub(super) fn wants_connection(&self) -> bool {
        self.is_occupied() && self.shared.lock().submissions.wants_connection()
    }

    /// Whether one-way messages wait.
    pub(super) fn has_messages(&self) -> bool {
        self.is_occupied() && self.shared.lock().submissions.messages() > 0
    }

    /// Whether something came since the last [`next`](Self::next) or [`expire`](Self::expire).
    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire) == NEW
    }

    /// The next submission of this list, or of what waits, until the turn has `taken` enough: a sender that never pauses must
    /// not keep the lane from its socket and its deadlines, nor those it refuses from their answers. What waits then is
    /// [occupying](Self::is_occupied) still, so that the next turn comes at once.
    #[inline]
    pub(super) fn next(
        &self,
        list: &mut Submissions<C>,
        taken: &mut TakenBytes,
    ) -> Option<Submission<C>> {
        list.next().or_else(|| self.next_waiting(list, taken))
    }

    /// The first submission of what waits, unless the turn has taken enough.
    fn next_waiting(
        &self,
        list: &mut Submissions<C>,
        taken: &mut TakenBytes,
    ) -> Option<Submission<C>> {
        if taken.0 >= TURN_BYTES_MAX {
            self.clear(list);
            return None;
        }
        self.take(list);
        taken.0 += list.weight_bytes();
        list.next()
    }

    /// Gives what waits for the list, which is done with.
    pub(super) fn take(&self, list: &mut Submissions<C>) {
        self.clear(list);
        if self.is_occupied() {
            let mut shared = self.shared.lock();
            self.news.store(NOTHING, Ordering::Relaxed);
            std::mem::swap(&mut shared.submissions, list);
        }
    }

    /// Takes out what waits in vain, and tells when to do so again. For a lane that cannot take anything now.
    pub(super) fn expire(&self, now_ns: u64, completions: &mut Completions) -> Option<u64> {
        if !self.is_occupied() {
            return None;
        }
        let mut expired = Vec::new();
        let mut shared = self.shared.lock();
        self.news.store(SEEN, Ordering::Relaxed);
        let next = shared.submissions.expire(now_ns, &mut expired);
        drop(shared);
        for slot in expired {
            completions.fail(Some(slot), RequestError::TimedOut);
        }
        next
    }

    /// The lane's reply to a request, if anybody waits for it.
    #[inline]
    pub(super) fn reply(
        &self,
        completions: &mut Completions,
        slot: Option<SlotId>,
        channel: u16,
        payload: &[u8],
    ) {
        let Some(slot) = slot else {
            return;
        };
        if self.slots.reply(slot, channel, payload) {
            completions.replied.push(slot);
        } else {
            self.reply_long(completions, slot, channel, payload, None);
        }
    }

    /// A reply that does not fit its slot, or whose effect is to be taken back if nobody takes it.
    #[inline(never)]
    pub(super) fn reply_long(
        &self,
        completions: &mut Completions,
        slot: SlotId,
        channel: u16,
        payload: &[u8],
        undo: Option<Undo>,
    ) {
        let pile = &mut completions.memory;
        if pile.is_empty() {
            pile.swap(&mut self.shared.lock().memory);
        }
        let mut memory = pile.pop().unwrap_or_default();
        // No more than needed, or it would grow beyond what is kept.
        memory.reserve_exact(payload.len());
        memory.extend_from_slice(payload);
        let reply = Reply::new(channel, memory);
        completions.outcomes.push((slot, Ok(reply), undo));
    }

    /// Completes a block of requests. Those who wait for them are then to be [woken](Completions::wake).
    pub(super) fn complete(&self, completions: &mut Completions) {
        let mut shared = self.shared.lock();
        for slot in &completions.replied {
            // Mostly one thread waits, and for the oldest request.
            if shared.waiting == 0 && self.abandoned.load(Ordering::Relaxed) == 0 {
                break;
            }
            self.conclude(&mut shared, *slot, &mut completions.wakers);
        }
        completions.replied.clear();
        let mut unwanted = Vec::new();
        for (slot, outcome, undo) in completions.outcomes.drain(..) {
            if self.slots.is_abandoned(slot) {
                unwanted.push(outcome);
                completions.undos.extend(undo);
            } else {
                let wait = shared.wait_of(slot);
                wait.outcome = Some(outcome);
                wait.undo = undo;
            }
            self.slots.note_long(slot);
            self.conclude(&mut shared, slot, &mut completions.wakers);
        }
        drop(shared);
        drop(unwanted);
    }

    /// Takes nothing more, and fails all that is pending by this error. Returns the one-way messages that wait, which are lost.
    pub(super) fn end(&self, error: &RequestError) -> u64 {
        let mut shared = self.shared.lock();
        self.news.store(ENDED, Ordering::Relaxed);
        let submissions = std::mem::take(&mut shared.submissions);
        let mut wakers = Vec::new();
        for index in 0..shared.cursor.len() {
            let slot = SlotId::new(index);
            if self.slots.answer(slot) == Answer::Pending {
                if !self.slots.is_abandoned(slot) {
                    shared.wait_of(slot).outcome = Some(Err(Box::new(error.clone())));
                }
                self.slots.note_long(slot);
                self.conclude(&mut shared, slot, &mut wakers);
            }
        }
        drop(shared);
        for waker in wakers {
            waker.wake();
        }
        submissions.messages()
    }

    /// Whether the lane has taken its last submission. Who does not hold the lock may hear of it a little later.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.news.load(Ordering::Relaxed) == ENDED
    }

    pub(super) fn set_frame_bytes_max(&self, bytes: usize) {
        self.frame_bytes_max.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max.load(Ordering::Relaxed)
    }

    pub(super) fn waker(&self) -> &P::Waker {
        &self.waker
    }

    /// The lane is done with this slot: takes its waker, and frees it if the request was abandoned. Call it with the lock.
    fn conclude(&self, shared: &mut Shared<C>, slot: SlotId, wakers: &mut Vec<Waker>) {
        // The reply may have been fetched meanwhile, and the slot be another request's.
        if self.slots.answer(slot) == Answer::Pending {
            return;
        }
        if self.slots.is_abandoned(slot) {
            self.slots.note_done(slot);
            self.count_abandoned(-1);
        }
        if let Some(wait) = shared.waits.get_mut(slot.index())
            && let Some(waker) = wait.waker.take()
        {
            shared.waiting -= 1;
            wakers.push(waker);
        }
    }

    /// There is a new submission. Returns whether the lane must be woken for it. Call it with the lock.
    ///
    /// While `news` says `NEW` already, the thread that said so has woken the lane or is about to; and a lane that takes the
    /// submissions before that takes this one with them, because taking them needs the lock that the caller holds. `Relaxed`
    /// is enough: the list itself is behind the lock, and the wake begins with the fence that makes either the lane see the
    /// news or the caller the sleeper.
    #[inline]
    fn note_news(&self) -> bool {
        let is_new = self.news.load(Ordering::Relaxed) != NEW;
        if is_new {
            self.news.store(NEW, Ordering::Relaxed);
        }
        is_new
    }

    /// Counts a request that was abandoned, or one less. Call it with the lock.
    fn count_abandoned(&self, change: i32) {
        let abandoned = self.abandoned.load(Ordering::Relaxed);
        let changed = abandoned.saturating_add_signed(change);
        self.abandoned.store(changed, Ordering::Relaxed);
    }

    /// Empties a list that is done with.
    fn clear(&self, list: &mut Submissions<C>) {
        list.clear(self.queue_bytes_max.max(KEPT_BYTES_MIN));
    }
}

impl<C> Default for Shared<C> {
    fn default() -> Self {
        Self {
            submissions: Submissions::default(),
            cursor: Cursor::default(),
            waits: Vec::new(),
            waiting: 0,
            memory: Pile::default(),
        }
    }
}

impl<C> Shared<C> {
    /// Has a waker woken when the slot is completed. Returns the one before it.
    fn wait(&mut self, slot: SlotId, waker: &Waker) -> Option<Waker> {
        let wait = self.wait_of(slot);
        if wait
            .waker
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            return None;
        }
        let replaced = wait.waker.replace(waker.clone());
        self.waiting += usize::from(replaced.is_none());
        replaced
    }

    fn wait_of(&mut self, slot: SlotId) -> &mut Wait {
        if self.waits.len() <= slot.index() {
            self.waits.resize_with(self.cursor.len(), Wait::default);
        }
        &mut self.waits[slot.index()]
    }
}

/// The error given to who asks a second time for an outcome.
fn ended() -> Outcome {
    Err(Box::new(RequestError::Shutdown))
}

/// Memory for submissions that is always kept, in bytes.
const KEPT_BYTES_MIN: usize = 64 * 1024;

/// The amount that a turn takes before it leaves the rest to the next one, in [weight](Submissions::weight_bytes); the last list it takes
/// may go beyond. More than one list at all, because those of one turn share their write, and a thread that is still sending
/// has only a few submissions there at a time. No more than this, because an output of 64 KiB is written anyway.
const TURN_BYTES_MAX: usize = 64 << 10;

/// Nothing waits.
const NOTHING: u32 = 0;

/// The lane has seen what waits, and could not take it.
const SEEN: u32 = 1;

/// Something waits that the lane does not know of.
const NEW: u32 = 2;

/// The lane has taken its last submission.
const ENDED: u32 = 3;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
