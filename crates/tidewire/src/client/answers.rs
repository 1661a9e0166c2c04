//! What a client's lane has for those who wait for replies, until it hands it over in one block.
//!
//! Handing over each answer by itself costs the lane a lock and a wake for each, and the one who is woken takes the next
//! answer from it one by one. A block costs one lock, and whoever waits for several of its answers finds all of them
//! when it is woken, once.

use std::task::Waker;

use super::request::{Reply, RequestError};
use super::slots::{SHORT_BYTES_MAX, SlotId, Slots, Waiters};

/// Answers that were not handed over yet. The lists keep their memory.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Replies whose payloads are in their slots, or, if they do not fit there, the next of `bytes`.
    replies: Vec<Brief>,
    bytes: Vec<u8>,
    /// Replies with larger payloads, which are not copied again.
    large: Vec<(SlotId, Reply)>,
    failures: Vec<(SlotId, RequestError)>,
    /// Who is to be told of those that were handed over.
    wakers: Vec<Waker>,
}

/// A short reply without its payload.
///
/// Two words that stay in registers until they are in the list. What is put together in memory first and read again at
/// once, field by field and then whole, makes the processor wait until it is written: longer than all else takes here.
#[derive(Clone, Copy, Debug)]
struct Brief(u64, usize);

impl Answers {
    /// A reply came for this request, if anybody waits for it.
    #[inline]
    pub(super) fn reply(
        &mut self,
        slots: &Slots,
        slot: Option<SlotId>,
        channel: u16,
        payload: &[u8],
    ) {
        let Some(slot) = slot else {
            return;
        };
        if payload.len() <= SHORT_BYTES_MAX {
            slots.write(slot, payload);
        } else if payload.len() <= BRIEF_BYTES_MAX {
            self.bytes.extend_from_slice(payload);
        } else {
            let reply = Reply::new(channel, payload.to_vec());
            return self.large.push((slot, reply));
        }
        self.replies.push(Brief::new(slot, channel, payload.len()));
    }

    /// There will be no reply to this request, if anybody waits for it.
    pub(super) fn fail(&mut self, slot: Option<SlotId>, error: RequestError) {
        if let Some(slot) = slot {
            self.failures.push((slot, error));
        }
    }

    /// Whether there is nothing to hand over.
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty() && self.large.is_empty() && self.failures.is_empty()
    }

    /// Whether so many wait that they should not wait for others.
    pub(super) fn is_block(&self) -> bool {
        self.replies.len() >= BLOCK || self.large.len() >= BLOCK
    }

    /// Hands everything over. Those who wait for it are then to be [woken](Self::wake).
    pub(super) fn hand_over(&mut self, slots: &Slots, waiters: &mut Waiters) {
        let mut bytes = self.bytes.as_slice();
        for brief in self.replies.drain(..) {
            let (slot, channel, count) = (brief.slot(), brief.channel(), brief.payload_bytes());
            let waker = if count <= SHORT_BYTES_MAX {
                slots.answer_short(waiters, slot, channel, count)
            } else {
                let (payload, rest) = bytes.split_at(count);
                bytes = rest;
                slots.answer(waiters, slot, channel, payload)
            };
            if let Some(waker) = waker {
                self.wakers.push(waker);
            }
        }
        for (slot, reply) in self.large.drain(..) {
            self.wakers.extend(slots.settle(waiters, slot, Ok(reply)));
        }
        for (slot, error) in self.failures.drain(..) {
            let failed = slots.settle(waiters, slot, Err(Box::new(error)));
            self.wakers.extend(failed);
        }
        self.bytes.clear();
    }

    /// Whether somebody is to be woken.
    pub(super) fn has_wakers(&self) -> bool {
        !self.wakers.is_empty()
    }

    /// Wakes those who waited for what was handed over, each once: many futures of one task have the same waker, mostly in
    /// a row. Call it without a lock: they may have the next request, and letting go of a waker may run code as well.
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

impl Brief {
    fn new(slot: SlotId, channel: u16, payload_bytes: usize) -> Self {
        let slot = u64::from(slot.number()) << 16;
        Self(slot | u64::from(channel), payload_bytes)
    }

    fn slot(self) -> SlotId {
        SlotId::of_number((self.0 >> 16) as u32)
    }

    fn channel(self) -> u16 {
        self.0 as u16
    }

    fn payload_bytes(self) -> usize {
        self.1
    }
}

/// Largest payload that is copied once more, under the lock, in bytes: a copy of this many takes a tenth of a microsecond.
const BRIEF_BYTES_MAX: usize = 4096;

/// Answers that are handed over at once: enough that what a block costs is nothing to each, and few enough that the
/// application has something to do while the lane reads on.
const BLOCK: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_all_kinds_come_to_their_slots() {
        let (slots, mut waiters) = (Slots::default(), Waiters::default());
        let mut answers = Answers::default();
        let ids = [(); 6].map(|()| slots.open(&mut waiters));
        let large = vec![7; BRIEF_BYTES_MAX + 1];
        let mut answer = |slot, channel, payload: &[u8]| {
            answers.reply(&slots, slot, channel, payload);
        };
        answer(Some(ids[0]), u16::MAX, b"one");
        answer(Some(ids[1]), 2, &large);
        answer(None, 3, b"nobody's");
        answer(Some(ids[3]), 4, b"");
        answer(Some(ids[4]), 5, &large[..BRIEF_BYTES_MAX]);
        answer(Some(ids[5]), 6, b"six");
        answers.fail(Some(ids[2]), RequestError::TimedOut);
        answers.hand_over(&slots, &mut waiters);
        assert!(answers.is_empty() && !answers.has_wakers());
        let mut fetch = |id| {
            let fetched = slots.fetch_or_wait(&mut waiters, id, &mut Vec::new(), None);
            fetched.unwrap()
        };
        let reply = |channel, payload: &[u8]| Ok(Reply::new(channel, payload.to_vec()));
        assert_eq!(fetch(ids[0]), reply(u16::MAX, b"one"));
        assert_eq!(fetch(ids[1]), reply(2, &large));
        assert_eq!(fetch(ids[2]), Err(Box::new(RequestError::TimedOut)));
        assert_eq!(fetch(ids[3]), reply(4, b""));
        assert_eq!(fetch(ids[4]), reply(5, &large[..BRIEF_BYTES_MAX]));
        assert_eq!(fetch(ids[5]), reply(6, b"six"));
    }
}
