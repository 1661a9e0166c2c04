//! Where the application's threads and their client's lane meet: commands one way, answers the other.
//!
//! Both lie behind one lock, which nobody holds for longer than a copy. The lane takes it for lists, not for what is in
//! them: it takes all commands by swapping their list for an empty one, and leaves all answers as one block, each once a
//! turn unless there are few commands or very many answers. A thread takes it when it sends and when it waits for an answer;
//! one that is there already it fetches [without](super::slots).
//!
//! A lock-free queue was measured first. It moves a cache line between two processors for every message, where this
//! moves one for every list; and a lock that nobody holds costs no more than its compare-and-swap. A lock for each answer
//! was replaced by this one: it cost the lane a lock and a wake for every reply, and a thread that was woken by the
//! first of them, on the same processor, took the lane's place before it had left the second.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tidewire_proto::error::EncodeError;

use super::HandOverError;
use super::answers::Answers;
use super::queue::{Batch, Command, Subscribe, Ticket};
use super::request::{Reply, RequestError};
use super::slots::{Outcome, SlotId, Slots, Waiters};
use super::spare;

/// The commands of a client, bounded in number and bytes, and the answers to them.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Bytes of one-way messages that may wait, beyond which none is added, and as many of requests. They count apart, because
    /// a sender that has no more room for messages waits for it by a request.
    queue_bytes_max: usize,
    /// Every message is handed on by itself, because nothing but that says where it ends.
    is_single: bool,
    shared: Mutex<Shared>,
    /// Where the answers are left.
    slots: Slots,
    /// Whether commands wait: one of the constants below. So that a lane about to sleep need not take the lock. It changes
    /// under the lock only.
    news: AtomicU8,
    /// Requests that were abandoned and not yet answered, so that the lane need not look for them where there are none. It
    /// changes under the lock only.
    abandoned: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shared {
    commands: Batch,
    waiters: Waiters,
}

/// A command that was not taken, and why.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) command: Command,
    pub(crate) error: HandOverError,
}

/// Whether the lane must be rung, because it may not know that there are commands.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MustRing(pub(crate) bool);

/// How much a turn has taken, in [weight](Batch::weight_bytes).
#[derive(Debug, Default)]
pub(super) struct TakenBytes(usize);

impl Exchange {
    pub(crate) fn new(queue_bytes_max: usize, is_single: bool) -> Self {
        Self {
            queue_bytes_max,
            is_single,
            shared: Mutex::default(),
            slots: Slots::default(),
            news: AtomicU8::new(NOTHING),
            abandoned: AtomicUsize::new(0),
        }
    }

    /// Leaves a command for the lane.
    pub(crate) fn push(&self, command: Command) -> Result<MustRing, Box<Refused>> {
        let mut shared = self.lock();
        if let Err(error) = self.admit(&shared) {
            return Err(Box::new(Refused { command, error }));
        }
        shared.commands.push(command);
        Ok(self.note_news())
    }

    /// Leaves a request for the lane. Returns where its answer will be.
    #[inline]
    pub(crate) fn push_call(
        &self,
        mut ticket: Ticket,
        name: &str,
        payload: &[u8],
    ) -> Result<(SlotId, MustRing), HandOverError> {
        let mut shared = self.lock();
        self.admit(&shared)?;
        if shared.commands.asked() >= self.queue_bytes_max {
            return Err(HandOverError::QueueFull);
        }
        let slot = self.slots.open(&mut shared.waiters);
        ticket.slot = Some(slot);
        shared.commands.push_call(ticket, name, payload);
        Ok((slot, self.note_news()))
    }

    /// Leaves a subscription for the lane, which `subscribe` makes. Returns where its outcome will be.
    pub(crate) fn push_subscribe(
        &self,
        subscribe: impl FnOnce(SlotId) -> Subscribe,
    ) -> Result<(SlotId, MustRing), HandOverError> {
        let mut shared = self.lock();
        self.admit(&shared)?;
        let slot = self.slots.open(&mut shared.waiters);
        let command = Command::Subscribe(Box::new(subscribe(slot)));
        shared.commands.push(command);
        Ok((slot, self.note_news()))
    }

    /// Leaves the one message that `encode` appends.
    pub(crate) fn push_frame(
        &self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<MustRing, HandOverError> {
        let mut shared = self.lock();
        self.admit(&shared)?;
        if shared.commands.framed() >= self.queue_bytes_max {
            return Err(HandOverError::QueueFull);
        }
        shared.commands.push_frame(self.is_single, encode)?;
        Ok(self.note_news())
    }

    /// Takes a reply that can be had without the lock.
    #[inline(always)]
    pub(crate) fn fetch(&self, slot: SlotId) -> Option<Reply> {
        self.slots.fetch(slot)
    }

    /// Takes the outcome of a request, or has `waker` woken when there is one, if it is given.
    pub(crate) fn fetch_or_wait(&self, slot: SlotId, waker: Option<&Waker>) -> Option<Outcome> {
        if waker.is_none() && !self.slots.is_settled(slot) {
            return None;
        }
        let mut memory = spare::take();
        let mut shared = self.lock();
        let waiters = &mut shared.waiters;
        let fetched = self.slots.fetch_or_wait(waiters, slot, &mut memory, waker);
        drop(shared);
        spare::give_back(memory);
        // The waker from before is dropped here, without the lock.
        fetched.ok()
    }

    /// Lets go of a request whose outcome was not fetched. The lane is told, if it has not answered it.
    pub(crate) fn abandon(&self, slot: SlotId) -> MustRing {
        let mut shared = self.lock();
        let (is_owed, held) = self.slots.abandon(&mut shared.waiters, slot);
        self.note_abandoned(&shared);
        // If the queue is full, the request's deadline will give it up.
        let must_ring = if is_owed && self.admit(&shared).is_ok() {
            shared.commands.push(Command::Abandon(slot));
            self.note_news()
        } else {
            MustRing(false)
        };
        drop(shared);
        drop(held);
        must_ring
    }

    /// Whether nobody waits for the answer any more.
    pub(super) fn is_abandoned(&self, slot: Option<SlotId>) -> bool {
        self.abandoned.load(Ordering::Relaxed) > 0
            && slot.is_some_and(|slot| self.slots.is_abandoned(slot))
    }

    /// Whether something waits for [`take`](Self::take).
    #[inline]
    pub(super) fn is_occupied(&self) -> bool {
        matches!(self.news.load(Ordering::Acquire), SEEN | NEW)
    }

    /// Whether something came since the last [`take`](Self::take) or [`expire`](Self::expire).
    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire) == NEW
    }

    /// Takes out what waits in vain, and tells when to do so again. For a lane that cannot take anything now.
    pub(super) fn expire(&self, now_ns: u64, answers: &mut Answers) -> Option<u64> {
        if !self.is_occupied() {
            return None;
        }
        let mut expired = Vec::new();
        let mut shared = self.lock();
        self.news.store(SEEN, Ordering::Relaxed);
        let next = shared.commands.expire(now_ns, &mut expired);
        drop(shared);
        for slot in expired {
            answers.fail(Some(slot), RequestError::TimedOut);
        }
        next
    }

    /// The next command of the batch, or of what waits, until the turn has `taken` enough: a sender that never pauses must
    /// not keep the lane from its socket and its deadlines, nor those it refuses from their answers. What waits then is
    /// [occupying](Self::is_occupied) still, so that the next turn comes at once.
    #[inline]
    pub(super) fn next(&self, batch: &mut Batch, taken: &mut TakenBytes) -> Option<Command> {
        batch.next().or_else(|| self.next_waiting(batch, taken))
    }

    /// The first command of what waits, unless the turn has taken enough.
    fn next_waiting(&self, batch: &mut Batch, taken: &mut TakenBytes) -> Option<Command> {
        if taken.0 >= TURN_BYTES_MAX {
            self.clear(batch);
            return None;
        }
        self.take(batch);
        taken.0 += batch.weight_bytes();
        batch.next()
    }

    /// Gives what waits for the batch, which is done with.
    pub(super) fn take(&self, batch: &mut Batch) {
        self.clear(batch);
        if self.is_occupied() {
            let mut shared = self.lock();
            self.news.store(NOTHING, Ordering::Relaxed);
            std::mem::swap(&mut shared.commands, batch);
        }
    }

    /// Empties a batch that is done with.
    fn clear(&self, batch: &mut Batch) {
        batch.clear(self.queue_bytes_max.max(KEPT_BYTES_MIN));
    }

    /// Where the lane writes short replies before it leaves them.
    #[inline]
    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Leaves all answers. Those who wait for them are then to be [woken](Answers::wake).
    pub(super) fn leave(&self, answers: &mut Answers) {
        let mut shared = self.lock();
        answers.hand_over(&self.slots, &mut shared.waiters);
        self.note_abandoned(&shared);
    }

    /// Takes nothing more, and fails all that was not answered. Returns the one-way messages that wait, which are lost.
    pub(super) fn end(&self) -> u64 {
        let mut shared = self.lock();
        self.news.store(ENDED, Ordering::Relaxed);
        let commands = std::mem::take(&mut shared.commands);
        let wakers = self.slots.end(&mut shared.waiters);
        self.note_abandoned(&shared);
        drop(shared);
        for waker in wakers {
            waker.wake();
        }
        commands.messages()
    }

    /// Whether the lane has taken its last command. Who does not hold the lock may hear of it a little later.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.news.load(Ordering::Relaxed) == ENDED
    }

    /// Whether a command may be added. Call it with the lock.
    fn admit(&self, shared: &Shared) -> Result<(), HandOverError> {
        if self.has_ended() {
            return Err(HandOverError::Ended);
        }
        if shared.commands.is_full() {
            return Err(HandOverError::QueueFull);
        }
        Ok(())
    }

    /// There is a new command. Call it with the lock.
    ///
    /// The lane need be rung only by the thread that tells it the news. While `news` says `NEW` already, that thread has
    /// rung or is about to; and a lane that takes the commands before it is rung takes this one with them, because taking
    /// them needs the lock that the caller holds. `Relaxed` is enough: the list itself is behind the lock, and the ring
    /// begins with the fence that makes either the lane see the news or the ringer the sleeper.
    fn note_news(&self) -> MustRing {
        let is_known = self.news.load(Ordering::Relaxed) == NEW;
        if !is_known {
            self.news.store(NEW, Ordering::Relaxed);
        }
        MustRing(!is_known)
    }

    /// Relaxed, because a lane that does not see it yet sends a request that it might have spared itself.
    fn note_abandoned(&self, shared: &Shared) {
        let abandoned = shared.waiters.abandoned();
        if self.abandoned.load(Ordering::Relaxed) != abandoned {
            self.abandoned.store(abandoned, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory for commands that is always kept, in bytes.
const KEPT_BYTES_MIN: usize = 64 * 1024;

/// What a turn takes before it leaves the rest to the next one, in [weight](Batch::weight_bytes); the last list it takes may
/// go beyond. More than one list at all, because those of one turn share their write, and a thread that is still sending
/// has only a few commands there at a time. No more than this, because an output of 64 KiB is written anyway.
const TURN_BYTES_MAX: usize = 64 << 10;

/// Nothing waits.
const NOTHING: u8 = 0;

/// What waits was looked at, and could not be taken.
const SEEN: u8 = 1;

/// Something waits that the lane does not know of.
const NEW: u8 = 2;

/// The lane has taken its last command.
const ENDED: u8 = 3;

#[cfg(test)]
mod tests;
