//! What a client's lane has for those who wait for replies, until it hands it over in one block.
//!
//! Handing over each answer by itself costs the lane a lock and a wake for each, and the one who is woken takes the next
//! answer from it one by one. A block costs one lock, and whoever waits for several of its answers finds all of them
//! when it is woken, once.

use std::task::Waker;

use super::request::RequestError;
use super::slots::{Outcome, SlotId};

/// Answers that were not handed over yet. The lists keep their memory.
#[derive(Debug, Default)]
pub(super) struct Answers {
    waiting: Vec<(SlotId, Outcome)>,
    /// Emptied memory of replies that are done with.
    spare: Vec<Vec<u8>>,
    /// Who is to be told of those that were handed over.
    wakers: Vec<Waker>,
}

impl Answers {
    /// A reply came for this request, if anybody waits for it.
    pub(super) fn reply(&mut self, slot: Option<SlotId>, channel: u16, payload: &[u8]) {
        if let Some(slot) = slot {
            let mut memory = self.spare.pop().unwrap_or_default();
            memory.extend_from_slice(payload);
            self.waiting.push((slot, Ok((channel, memory))));
        }
    }

    /// There will be no reply to this request, if anybody waits for it.
    pub(super) fn fail(&mut self, slot: Option<SlotId>, error: RequestError) {
        if let Some(slot) = slot {
            self.waiting.push((slot, Err(error)));
        }
    }

    /// Whether there is nothing to hand over.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether so many wait that they should not wait for others.
    pub(super) fn is_block(&self) -> bool {
        self.waiting.len() >= BLOCK
    }

    /// Hands everything over: `answer` says who waits for each, and `take_spare` gives memory for the next ones.
    pub(super) fn hand_over(&mut self, slots: &mut super::slots::Slots) {
        for (slot, outcome) in self.waiting.drain(..) {
            // Many futures of one task have the same waker, mostly in a row.
            if let Some(waker) = slots.answer(slot, outcome)
                && self
                    .wakers
                    .last()
                    .is_none_or(|last| !last.will_wake(&waker))
            {
                self.wakers.push(waker);
            }
        }
        if self.spare.is_empty() {
            slots.swap_spare(&mut self.spare);
        }
    }

    /// Whether somebody is to be woken.
    pub(super) fn has_wakers(&self) -> bool {
        !self.wakers.is_empty()
    }

    /// Wakes those who waited for what was handed over. Call it without a lock: they may have the next request.
    pub(super) fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

/// Answers that are handed over at once: enough that what a block costs is nothing to each, and few enough that the
/// application has something to do while the lane reads on.
const BLOCK: usize = 256;
