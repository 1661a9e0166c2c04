//! The request table connects the application's threads with their client's lane. It is all that the two share about a
//! request.
//!
//! ```text
//!   application's threads                                             lane
//!   ─────────────────────                                             ────
//!   submit ──▶ opens a slot, copies the bytes ─┐
//!   send, control ─────────────────────────────┼─▶ submissions ─────▶ refill: the whole list, once a turn
//!   abandon ── marks the slot ─────────────────┘   (lock)                │
//!                                                                        ▼ encodes, writes, reads, matches
//!   fetch ◀── short reply ──────── slots (no lock) ◀────────────────── reply
//!   poll  ◀── anything else ────── outcomes (lock) ◀──┐
//!         ──▶ a waker, if there is none (lock) ───────┴─────────────── complete: once for a block, gives the wakers
//!                                                                     end: fails all that is pending
//! ```
//!
//! The lane takes the lock once for a list, not for each entry. It takes all submissions by swapping their list for an
//! empty list, and completes all replies of a turn as one block. A thread takes the lock when it submits and when it
//! has to wait. It fetches a short reply without the lock.
//!
//! Three rules make this correct. `table/model.rs` runs this code under a model checker, and again with each rule
//! broken.
//! - A payload is written before its slot is stored with `Release`, and read after the slot is loaded with `Acquire`.
//! - A thread registers its waker under the lock, and only if the slot is pending then. `complete` takes the lock after
//!   the slots were stored. So the thread sees the reply, or the lane sees the waker.
//! - The thread that changes `news` to `NEW` wakes the lane. The thread that changes it to `ASKED` wakes a lane that
//!   sleeps, and not a lane that rests. Each wake begins with a fence, and so does the lane's sleep.
//!
//! The decision records 0002 and 0028 follow a request through these functions, and have what was rejected.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use tidewire_io::process::Process;
use tidewire_proto::error::EncodeError;

use super::effect::Undo;
use super::error::{RequestError, too_large};
use super::reply::{Outcome, Pile, Reply, give_back, take_memory};
use super::slots::{Answer, Cursor, SlotId, Slots, Waits};
use super::submissions::{Control, RequestHead, Submission, Submissions};
use super::sync::{Lock, Native, Primitives, WakeLane, Word};
use crate::session::SendError;

/// The shared state of requests. See the module.
#[derive(Debug)]
pub(super) struct RequestTable<C: Control, P: Primitives = Native> {
    /// Largest number of waiting bytes of one-way messages, and also of requests. Both are counted separately: a sender
    /// without room for messages sends a request, and the reply shows that there is room again.
    queue_bytes_max: usize,
    /// Whether each message is a separate submission, because its boundary would be lost in a run of bytes.
    is_single: bool,
    /// Largest frame that both sides of the connection accept.
    frame_bytes_max: AtomicUsize,
    process: Process,
    shared: P::Lock<TableShared<C>>,
    slots: Slots<P>,
    /// Whether submissions wait: one of the constants below. With it a lane that is about to sleep does not need the
    /// lock. It changes only under the lock.
    news: P::Word,
    /// Number of abandoned requests that are not completed yet. While it is 0, the lane need not check each request. It
    /// changes only under the lock.
    abandoned: P::Word,
    waker: P::Waker,
}

#[derive(Debug)]
struct TableShared<C> {
    submissions: Submissions<C>,
    cursor: Cursor,
    waits: Waits,
    /// Buffers for replies that do not fit their slots, left by threads that fetched such replies.
    memory: Pile,
}

/// Completions that the lane has not published. The lists keep their memory.
///
/// The lane publishes them in blocks, and a block costs one lock. Publishing each reply alone would cost a lock and a
/// wake for each, and the woken thread would take the replies one by one. A thread that waits for several replies is
/// woken once and finds all of them.
#[derive(Debug, Default)]
pub(super) struct Completions {
    /// Slots that hold short replies.
    replied: Vec<SlotId>,
    /// All other outcomes. Replies to requests with an effect are here too, with the request that undoes it.
    outcomes: Vec<(SlotId, Outcome, Option<Undo>)>,
    /// Effects to undo: their requests were given up before the replies came.
    undos: Vec<Undo>,
    /// Memory for replies that do not fit into a slot.
    memory: Pile,
    wakers: Vec<Waker>,
}

impl<C: Control, P: Primitives> RequestTable<C, P> {
    pub(super) fn new(queue_bytes_max: usize, is_single: bool) -> Self {
        Self {
            queue_bytes_max,
            is_single,
            frame_bytes_max: AtomicUsize::new(usize::MAX),
            process: Process::this(),
            shared: P::Lock::default(),
            slots: Slots::default(),
            news: P::Word::new(NOTHING),
            abandoned: P::Word::new(0),
            waker: P::Waker::default(),
        }
    }

    /// Submits a request and wakes the lane if it sleeps. Returns the slot of the reply. A request that fits no frame
    /// is refused before it is copied.
    ///
    /// A lane that rests is not called. The application waits for the reply soon, and then runs the lane itself, or is
    /// a task that calls the lane. So many requests of one thread are one turn, and wake no other thread. If it does
    /// not wait, the request leaves at the end of the lease, see `lane/seat.rs`.
    #[inline]
    pub(super) fn submit(
        &self,
        mut head: RequestHead,
        name: &str,
        payload: &[u8],
    ) -> Result<SlotId, SendError> {
        let limit = self.frame_bytes_max();
        if name.len().max(payload.len()) > limit {
            return Err(too_large(name, payload, limit).into());
        }
        let push = |shared: &mut TableShared<C>| {
            let submissions = &mut shared.submissions;
            if !submissions.takes_request(self.queue_bytes_max) {
                return Err(SendError::QueueFull);
            }
            let slot = self.slots.open(&mut shared.cursor);
            head.slot = Some(slot);
            submissions.push_request(head, name, payload);
            Ok(slot)
        };
        self.add_and(push, ASKED, P::Waker::wake_poller)
    }

    /// Submits a control with a slot for its outcome, which `make` gets. Wakes the lane if it sleeps.
    pub(super) fn submit_control(
        &self,
        make: impl FnOnce(SlotId) -> C,
    ) -> Result<SlotId, SendError> {
        self.add(|shared| {
            if shared.submissions.is_full() {
                return Err(SendError::QueueFull);
            }
            let slot = self.slots.open(&mut shared.cursor);
            shared.submissions.push(Submission::Control(make(slot)));
            Ok(slot)
        })
    }

    /// Submits a control that is never refused for lack of room. Such controls are bounded by earlier accepted calls: a
    /// subscription ends only once. Wakes the lane if it sleeps.
    pub(super) fn control(&self, control: C) -> Result<(), SendError> {
        self.add(|shared| {
            shared.submissions.push(Submission::Control(control));
            Ok(())
        })
    }

    /// Sends the one-way message that `encode` appends, and wakes the lane if it sleeps.
    pub(super) fn send(
        &self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), SendError> {
        self.add(|shared| {
            let submissions = &mut shared.submissions;
            if !submissions.takes_message(self.queue_bytes_max) {
                return Err(SendError::QueueFull);
            }
            submissions.push_message(self.is_single, encode)?;
            Ok(())
        })
    }

    /// Adds a submission by calling `push`, unless the lane has ended. Wakes the lane if it sleeps.
    fn add<T>(
        &self,
        push: impl FnOnce(&mut TableShared<C>) -> Result<T, SendError>,
    ) -> Result<T, SendError> {
        self.add_and(push, NEW, P::Waker::wake)
    }

    #[inline(always)]
    fn add_and<T>(
        &self,
        push: impl FnOnce(&mut TableShared<C>) -> Result<T, SendError>,
        news: u32,
        wake: impl FnOnce(&P::Waker),
    ) -> Result<T, SendError> {
        // Checked first, because in a child no thread unlocks the locks of other threads.
        if !self.process.is_this() {
            return Err(SendError::OtherProcess);
        }
        let mut shared = self.shared.lock();
        if self.has_ended() {
            return Err(SendError::Ended);
        }
        let added = push(&mut shared)?;
        let is_new = self.note_news(news);
        drop(shared);
        if is_new {
            wake(&self.waker);
        }
        Ok(added)
    }

    /// Takes a short reply without the lock, if any.
    #[inline(always)]
    pub(super) fn fetch(&self, slot: SlotId) -> Option<Reply> {
        self.slots.fetch(slot, take_memory)
    }

    /// Takes the outcome of a request, or stores `waker`, if given, to be woken when there is one.
    pub(super) fn poll(&self, slot: SlotId, waker: Option<&Waker>) -> Option<Outcome> {
        if !self.process.is_this() {
            return Some(Err(Box::new(RequestError::OtherProcess)));
        }
        if waker.is_none() && self.slots.answer(slot) == Answer::Pending {
            return None;
        }
        let mut shared = self.shared.lock();
        match self.slots.answer(slot) {
            Answer::Pending => {
                let unknown = waker.filter(|waker| !shared.waits.is_registered(slot, waker));
                let waiting = unknown.map(|waker| self.waker.note_waiting(waker));
                let is_new = waiting.is_some();
                let replaced = waiting.and_then(|it| shared.waits.register(slot, it));
                // Unlock first: dropping a waker may run code of its executor, which may take this lock.
                drop(shared);
                drop(replaced);
                if is_new {
                    self.waker.wake_for_task();
                }
                None
            }
            Answer::Short => {
                drop(shared);
                self.fetch(slot).map(Ok)
            }
            Answer::Long => {
                let wait = shared.waits.take(slot);
                self.slots.note_done(slot);
                let refused = if matches!(wait.outcome, Some(Ok(_))) {
                    shared.memory.push(take_memory())
                } else {
                    None
                };
                drop(shared);
                if let Some(memory) = refused {
                    give_back(memory);
                }
                // Only the slot's request polls, and only until it has its outcome. So the outcome is there.
                Some(wait.outcome.unwrap_or_else(ended))
            }
        }
    }

    /// Abandons a request whose outcome was not taken. Submits that to the lane if the request is still pending.
    pub(super) fn abandon(&self, slot: SlotId) {
        if !self.process.is_this() {
            return;
        }
        let mut shared = self.shared.lock();
        let is_pending = self.slots.answer(slot) == Answer::Pending;
        let held = shared.waits.take(slot);
        let submission = if is_pending {
            self.slots.note_abandoned(slot);
            self.count_abandoned(1);
            Some(Submission::Abandon(slot))
        } else {
            self.slots.note_done(slot);
            held.undo.map(Submission::Undo)
        };
        let is_new = match submission.filter(|_| !self.has_ended()) {
            Some(submission) => {
                shared.submissions.push(submission);
                self.note_news(NEW)
            }
            None => false,
        };
        drop(shared);
        drop(held);
        if is_new {
            self.waker.wake();
        }
    }

    /// Whether the request was abandoned. The read is relaxed: a lane that sees it late only sends a request for
    /// nothing.
    #[inline]
    pub(super) fn is_abandoned(&self, slot: Option<SlotId>) -> bool {
        slot.is_some_and(|slot| self.slots.is_abandoned(slot))
    }

    /// Whether any request was abandoned and is not completed.
    #[inline]
    pub(super) fn has_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed) > 0
    }

    /// Whether submissions wait for [`refill`](Self::refill).
    #[inline]
    pub(super) fn is_occupied(&self) -> bool {
        matches!(self.news.load(Ordering::Acquire), SEEN | ASKED | NEW)
    }

    /// Whether a submission waits that needs a connection.
    pub(super) fn wants_connection(&self) -> bool {
        self.is_occupied() && self.shared.lock().submissions.wants_connection()
    }

    pub(super) fn has_messages(&self) -> bool {
        self.is_occupied() && self.shared.lock().submissions.messages() > 0
    }

    /// Whether a submission came since the last [`refill`](Self::refill) or [`expire`](Self::expire).
    pub(super) fn has_news(&self) -> bool {
        matches!(self.news.load(Ordering::Acquire), ASKED | NEW)
    }

    /// Whether `list` has another submission. At its end the waiting submissions become the new list, until the turn
    /// has taken enough, which `turn_bytes` counts in [weight](Submissions::weight_bytes). The limit keeps a sender
    /// that never pauses from delaying the lane's socket, deadlines and completions. The table stays
    /// [occupied](Self::is_occupied), so the next turn comes at once.
    #[inline]
    pub(super) fn refill(&self, list: &mut Submissions<C>, turn_bytes: &mut usize) -> bool {
        if list.is_empty() {
            list.clear(self.queue_bytes_max.max(KEPT_BYTES_MIN));
            if *turn_bytes < TURN_BYTES_MAX && self.is_occupied() {
                let mut shared = self.shared.lock();
                self.news.store(NOTHING, Ordering::Relaxed);
                std::mem::swap(&mut shared.submissions, list);
                *turn_bytes += list.weight_bytes();
            }
        }
        !list.is_empty()
    }

    /// Fails waiting submissions whose deadlines have passed. Returns the next deadline. A lane that cannot take
    /// submissions now calls it.
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

    /// Stores the lane's reply to a request, unless the outcome is not wanted.
    #[inline(always)]
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

    /// Stores a reply that does not fit its slot, or whose effect must be undone if the application never takes it.
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
        // Exact size: `Vec`'s growth could exceed the size that is kept.
        memory.reserve_exact(payload.len());
        memory.extend_from_slice(payload);
        let reply = Reply::new(channel, memory);
        completions.outcomes.push((slot, Ok(reply), undo));
    }

    /// Completes a block of requests. Afterwards the caller must [wake](Completions::wake) the waiting tasks.
    pub(super) fn complete(&self, completions: &mut Completions) {
        let mut shared = self.shared.lock();
        for slot in &completions.replied {
            // Usually one thread waits, for the oldest request. Once its waker is taken, the other slots need no work.
            if !shared.waits.has_wakers() && !self.has_abandoned() {
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
                shared.waits.set_outcome(slot, outcome, undo);
            }
            self.slots.note_long(slot);
            self.conclude(&mut shared, slot, &mut completions.wakers);
        }
        drop(shared);
        drop(unwanted);
    }

    /// Ends the table: it takes no more submissions, and all pending requests fail with this error. Returns the number
    /// of waiting one-way messages, which are lost.
    pub(super) fn end(&self, error: &RequestError) -> u64 {
        let mut shared = self.shared.lock();
        self.news.store(ENDED, Ordering::Relaxed);
        let submissions = std::mem::take(&mut shared.submissions);
        let mut wakers = Vec::new();
        for index in 0..shared.cursor.len() {
            let slot = SlotId::new(index);
            if self.slots.answer(slot) == Answer::Pending {
                if !self.slots.is_abandoned(slot) {
                    let outcome = Err(Box::new(error.clone()));
                    shared.waits.set_outcome(slot, outcome, None);
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

    /// Whether the lane has taken its last submission. Without the lock a caller may see it a little late.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.news.load(Ordering::Relaxed) == ENDED
    }

    /// Whether the lane is in this process. It is not in a child by `fork`.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.process.is_this()
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

    /// Finishes a slot for the lane: takes its waker, and frees it if the request was abandoned. Call it with the lock.
    fn conclude(&self, shared: &mut TableShared<C>, slot: SlotId, wakers: &mut Vec<Waker>) {
        // The reply may have been fetched, and another request may have the slot.
        if self.slots.answer(slot) == Answer::Pending {
            return;
        }
        if self.slots.is_abandoned(slot) {
            self.slots.note_done(slot);
            self.count_abandoned(-1);
        }
        wakers.extend(shared.waits.take_waker(slot));
    }

    /// Records that there is a new submission. Returns whether the caller must wake the lane. Call it with the lock.
    ///
    /// `news` is `NEW`, or `ASKED` if a lane at rest need not be called. If the table has that already, the thread that
    /// stored it has woken the lane or is about to. A lane that takes the submissions before the wake also takes this
    /// one, because the lane needs the lock that the caller holds. `Relaxed` is enough: the lock protects the list, and
    /// the wake begins with a fence. The fence ensures that the lane sees the news or the caller sees that the lane
    /// sleeps.
    #[inline]
    fn note_news(&self, news: u32) -> bool {
        let known = self.news.load(Ordering::Relaxed);
        let is_new = known != NEW && known != news;
        if is_new {
            self.news.store(news, Ordering::Relaxed);
        }
        is_new
    }

    /// Changes the number of abandoned requests. Call it with the lock.
    fn count_abandoned(&self, change: i32) {
        let abandoned = self.abandoned.load(Ordering::Relaxed);
        let changed = abandoned.saturating_add_signed(change);
        self.abandoned.store(changed, Ordering::Relaxed);
    }
}

impl Completions {
    pub(super) fn fail(&mut self, slot: Option<SlotId>, error: RequestError) {
        if let Some(slot) = slot {
            self.outcomes.push((slot, Err(Box::new(error)), None));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replied.is_empty() && self.outcomes.is_empty()
    }

    /// Whether there are enough completions to publish them now.
    #[inline]
    pub(super) fn is_block(&self) -> bool {
        self.replied.len() >= BLOCK || self.outcomes.len() >= BLOCK
    }

    pub(super) fn has_wakers(&self) -> bool {
        !self.wakers.is_empty()
    }

    /// Wakes all waiting tasks of the published requests. It skips a waker that equals the previous waker: many futures
    /// of one task have the same waker, mostly in a row. Call it without a lock, because a woken task may submit at
    /// once and dropping a waker may run foreign code.
    pub(super) fn wake(&mut self) {
        let mut last: Option<Waker> = None;
        for waker in self.wakers.drain(..) {
            if last.as_ref().is_none_or(|last| !last.will_wake(&waker)) {
                waker.wake_by_ref();
                last = Some(waker);
            }
        }
    }

    /// Takes an effect to undo.
    pub(super) fn take_undo(&mut self) -> Option<Undo> {
        self.undos.pop()
    }

    #[cfg(test)]
    pub(super) fn outcomes(&self) -> impl Iterator<Item = SlotId> {
        self.outcomes.iter().map(|(slot, ..)| *slot)
    }
}

impl<C> Default for TableShared<C> {
    fn default() -> Self {
        Self {
            submissions: Submissions::default(),
            cursor: Cursor::default(),
            waits: Waits::default(),
            memory: Pile::default(),
        }
    }
}

/// The outcome for a caller that polls again after it took the outcome.
fn ended() -> Outcome {
    Err(Box::new(RequestError::Shutdown))
}

/// Completions in a block. The block is large enough that its cost is small for each completion, and small enough that
/// the application works while the lane reads.
const BLOCK: usize = 256;

/// Bytes of submission memory that a list may always keep.
const KEPT_BYTES_MIN: usize = 64 * 1024;

/// Largest amount that a turn takes, in [weight](Submissions::weight_bytes). The last list may go beyond. A turn takes
/// several lists, because their requests share one write. A list of a thread that is still sending has only a few
/// submissions. It takes no more than this, because an output of 64 KiB is written anyway.
const TURN_BYTES_MAX: usize = 64 << 10;

/// No submission waits.
const NOTHING: u32 = 0;

/// Submissions wait. The lane has seen them and could not take them.
const SEEN: u32 = 1;

/// Requests wait that the lane has not seen. A lane at rest was not called for them.
const ASKED: u32 = 2;

/// Submissions wait that the lane has not seen. It was called.
const NEW: u32 = 3;

/// The lane has taken its last submission.
const ENDED: u32 = 4;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
