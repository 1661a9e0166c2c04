//! Outcomes of requests, from the lane to the threads that wait for them.
//!
//! The lane collects completions and publishes them in blocks. Publishing each reply alone would cost a lock and a wake for
//! each, and the woken thread would take the replies one by one. A block costs one lock. A thread that waits for several
//! replies is woken once and finds all of them.

use std::task::Waker;

use super::effect::Undo;
use super::error::RequestError;
use super::reply::{Pile, Reply};
use super::slots::SlotId;

/// The outcome of a request: its reply, or an error. The error is boxed to keep the type small, because outcomes are moved
/// often.
pub(super) type Outcome = Result<Reply, Box<RequestError>>;

/// Completions that the lane has not published. The lists keep their memory.
#[derive(Debug, Default)]
pub(super) struct Completions {
    /// Slots that hold short replies.
    pub(super) replied: Vec<SlotId>,
    /// All other outcomes. Replies to requests with an effect are here too, with the request that undoes it.
    pub(super) outcomes: Vec<(SlotId, Outcome, Option<Undo>)>,
    /// Effects to undo: their requests were given up before the replies came.
    pub(super) undos: Vec<Undo>,
    /// Memory for replies that do not fit into a slot.
    pub(super) memory: Pile,
    /// Wakers of the published requests.
    pub(super) wakers: Vec<Waker>,
}

/// The parts of requests that the table's lock protects: wakers, and outcomes that are no short replies.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Indexed by slot.
    list: Vec<Wait>,
    /// Number of entries that have a waker.
    wakers: usize,
}

#[derive(Debug, Default)]
pub(super) struct Wait {
    waker: Option<Waker>,
    /// The outcome, if the slot's answer is `Long`.
    pub(super) outcome: Option<Outcome>,
    /// The request that undoes the effect of the outcome.
    pub(super) undo: Option<Undo>,
}

impl Completions {
    /// Adds a failure, if the request has a slot.
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

    /// Wakes all waiting tasks of the published requests. It skips a waker that equals the one before: many futures of one
    /// task have the same waker, mostly in a row. Call it without a lock, because a woken task may submit at once and
    /// dropping a waker may run foreign code.
    pub(super) fn wake(&mut self) {
        let mut last: Option<Waker> = None;
        for waker in self.wakers.drain(..) {
            if last.as_ref().is_none_or(|last| !last.will_wake(&waker)) {
                waker.wake_by_ref();
                last = Some(waker);
            }
        }
    }
}

impl Waits {
    /// Whether any task waits.
    pub(super) fn has_wakers(&self) -> bool {
        self.wakers > 0
    }

    /// Stores the waker for this slot's completion. Returns the previous waker.
    pub(super) fn register(&mut self, slot: SlotId, waker: &Waker) -> Option<Waker> {
        let known = &mut self.of(slot).waker;
        if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return None;
        }
        let replaced = known.replace(waker.clone());
        self.wakers += usize::from(replaced.is_none());
        replaced
    }

    pub(super) fn take_waker(&mut self, slot: SlotId) -> Option<Waker> {
        let waker = self.list.get_mut(slot.index())?.waker.take();
        self.wakers -= usize::from(waker.is_some());
        waker
    }

    pub(super) fn set_outcome(&mut self, slot: SlotId, outcome: Outcome, undo: Option<Undo>) {
        let wait = self.of(slot);
        (wait.outcome, wait.undo) = (Some(outcome), undo);
    }

    /// Takes all that is stored for this slot.
    pub(super) fn take(&mut self, slot: SlotId) -> Wait {
        let wait = std::mem::take(self.of(slot));
        self.wakers -= usize::from(wait.waker.is_some());
        wait
    }

    fn of(&mut self, slot: SlotId) -> &mut Wait {
        if self.list.len() <= slot.index() {
            self.list.resize_with(slot.index() + 1, Wait::default);
        }
        &mut self.list[slot.index()]
    }
}

/// Completions in a block. It is large enough that the cost of a block is small for each, and small enough that the
/// application can work while the lane goes on reading.
const BLOCK: usize = 256;

#[cfg(test)]
impl Waits {
    /// Number of outcomes that are stored.
    pub(super) fn outcomes(&self) -> usize {
        let outcomes = self.list.iter().filter(|wait| wait.outcome.is_some());
        outcomes.count()
    }
}
