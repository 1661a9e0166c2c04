//! Completions of requests that a client's lane collects before it publishes a block of them.
//!
//! Telling of each reply by itself costs the lane a lock and a wake for each, and the one who is woken takes the next reply
//! from it one by one. A block costs one lock, and whoever waits for several of its replies finds all of them when it is
//! woken, once.

use std::task::Waker;

use super::effect::Undo;
use super::error::RequestError;
use super::reply::{Pile, Reply};
use super::slots::SlotId;

/// The outcome of a request: its reply, or why there is none. The error is boxed, because every reply is moved as often as
/// the larger of the two.
pub(super) type Outcome = Result<Reply, Box<RequestError>>;

/// Completions of the lane that those who wait were not told of. The lists keep their memory.
#[derive(Debug, Default)]
pub(super) struct Completions {
    /// Slots that have their short replies.
    pub(super) replied: Vec<SlotId>,
    /// All others. Replies to requests with an effect are among them, with what takes it back.
    pub(super) outcomes: Vec<(SlotId, Outcome, Option<Undo>)>,
    /// Effects of requests that were given up before their replies were there.
    pub(super) undos: Vec<Undo>,
    /// Memory for replies that do not fit their slots.
    pub(super) memory: Pile,
    /// Those who are to be told.
    pub(super) wakers: Vec<Waker>,
}

impl Completions {
    /// There will be no reply to this request, if anybody waits for it.
    pub(super) fn fail(&mut self, slot: Option<SlotId>, error: RequestError) {
        if let Some(slot) = slot {
            self.outcomes.push((slot, Err(Box::new(error)), None));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replied.is_empty() && self.outcomes.is_empty()
    }

    /// Whether so many wait that they should not wait for others.
    #[inline]
    pub(super) fn is_block(&self) -> bool {
        self.replied.len() >= BLOCK || self.outcomes.len() >= BLOCK
    }

    /// Whether somebody is to be woken.
    pub(super) fn has_wakers(&self) -> bool {
        !self.wakers.is_empty()
    }

    /// Wakes those who waited for what was completed, each once: many futures of one task have the same waker, mostly in
    /// a row. Call it without a lock: they may have the next request, and dropping a waker may run code as well.
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

/// Completions that are told of at once: enough that what a block costs is nothing to each, and few enough that the
/// application has something to do while the lane reads on.
const BLOCK: usize = 256;
