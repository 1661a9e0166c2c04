//! Completions of requests, which a client's lane collects and publishes in blocks.
//!
//! Publishing each reply alone would cost a lock and a wake for each, and the woken thread would take the replies one by
//! one. A block costs one lock. A thread that waits for several replies is woken once and finds all of them.

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

/// Completions in a block. It is large enough that the cost of a block is small for each, and small enough that the
/// application can work while the lane goes on reading.
const BLOCK: usize = 256;
