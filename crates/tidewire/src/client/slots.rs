//! Where the answers to a client's requests wait to be fetched: one slot for each request that was accepted.
//!
//! A slot belongs to the request's future and to the lane at once, and is free again when both have let go of it: the
//! lane by leaving an answer, the future by fetching it or by being dropped. So a slot's number is all that the two need
//! to name a request, and no reference is counted for it. A request brings memory for its reply along, that of
//! an earlier one ([`spare`](super::spare)).
//!
//! There is no lock here: the table lies behind the one that commands go through as well
//! ([`Exchange`](super::exchange::Exchange)).

use std::num::NonZeroU32;
use std::task::Waker;

use super::request::{Reply, RequestError};

/// The number of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(NonZeroU32);

/// What became of a request: its reply, or why there is none. The error is boxed, because every reply is moved as often as
/// the larger of the two.
pub(crate) type Outcome = Result<Reply, Box<RequestError>>;

/// All slots of a client.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    /// Slots that are abandoned.
    abandoned: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) enum Slot {
    Free,
    /// The lane owes the answer; perhaps somebody waits for it. With emptied memory for the reply, or none.
    Open(Option<Waker>, Vec<u8>),
    /// The lane owes the answer, and nobody wants it.
    Abandoned,
    Answered(Outcome),
}

impl Slots {
    /// A slot for a new request, with emptied memory for its reply, or none.
    pub(crate) fn open(&mut self, memory: Vec<u8>) -> SlotId {
        let slot = Slot::Open(None, memory);
        if let Some(id) = self.free.pop() {
            self.slots[id.index()] = slot;
            return id;
        }
        let id = SlotId::new(self.slots.len());
        self.slots.push(slot);
        id
    }

    /// Takes the outcome out, which frees the slot. If there is none yet, `waker` is woken when there is, if it is given. What
    /// comes back then is the one before it: letting go of a waker may run code of its executor, which must find the lock
    /// free.
    pub(crate) fn fetch(
        &mut self,
        id: SlotId,
        waker: Option<&Waker>,
    ) -> Result<Outcome, Option<Waker>> {
        let slot = &mut self.slots[id.index()];
        if let Slot::Open(known, _) = slot {
            return Err(match (&*known, waker) {
                (Some(known), Some(waker)) if known.will_wake(waker) => None,
                (_, Some(waker)) => known.replace(waker.clone()),
                (_, None) => None,
            });
        }
        let slot = std::mem::replace(slot, Slot::Free);
        self.free.push(id);
        let Slot::Answered(outcome) = slot else {
            // Only its one request asks for a slot, and not after it has had or given up its answer.
            return Ok(Err(Box::new(RequestError::Shutdown)));
        };
        Ok(outcome)
    }

    /// The request lets go of its slot. Returns whether the lane owes it an answer still, and what the slot held, which is to
    /// be dropped without the lock.
    pub(crate) fn abandon(&mut self, id: SlotId) -> (bool, Slot) {
        let slot = &mut self.slots[id.index()];
        let is_owed = matches!(slot, Slot::Open(..));
        let next = if is_owed { Slot::Abandoned } else { Slot::Free };
        let dropped = std::mem::replace(slot, next);
        if is_owed {
            self.abandoned += 1;
        } else {
            self.free.push(id);
        }
        (is_owed, dropped)
    }

    /// Whether nobody wants the answer any more.
    pub(crate) fn is_abandoned(&self, id: SlotId) -> bool {
        matches!(self.slots[id.index()], Slot::Abandoned)
    }

    /// How many slots are abandoned.
    pub(crate) fn abandoned(&self) -> usize {
        self.abandoned
    }

    /// The lane leaves a reply. Returns who waits for it.
    pub(crate) fn answer(&mut self, id: SlotId, channel: u16, payload: &[u8]) -> Option<Waker> {
        let memory = match &mut self.slots[id.index()] {
            Slot::Open(_, memory) => {
                memory.extend_from_slice(payload);
                std::mem::take(memory)
            }
            _ => Vec::new(),
        };
        self.settle(id, Ok(Reply::new(channel, memory)))
    }

    /// The lane leaves an outcome. Returns who waits for it.
    pub(crate) fn settle(&mut self, id: SlotId, outcome: Outcome) -> Option<Waker> {
        let slot = &mut self.slots[id.index()];
        match slot {
            Slot::Open(waker, _) => {
                let waker = waker.take();
                *slot = Slot::Answered(outcome);
                waker
            }
            Slot::Abandoned => {
                *slot = Slot::Free;
                self.free.push(id);
                self.abandoned -= 1;
                None
            }
            // The lane answers each request once.
            Slot::Free | Slot::Answered(_) => None,
        }
    }

    /// There is no lane any more to answer. Returns who waits for that.
    pub(crate) fn end(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for number in 0..self.slots.len() {
            let id = SlotId::new(number);
            if matches!(self.slots[number], Slot::Open(..) | Slot::Abandoned) {
                wakers.extend(self.settle(id, Err(Box::new(RequestError::Shutdown))));
            }
        }
        wakers
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn reply(bytes: &[u8]) -> Outcome {
        Ok(Reply::new(3, bytes.to_vec()))
    }

    #[test]
    fn an_outcome_is_fetched_once_and_frees_the_slot() {
        let mut slots = Slots::default();
        let id = slots.open(Vec::new());
        assert!(slots.fetch(id, Some(Waker::noop())).is_err());
        assert!(slots.answer(id, 3, b"a").is_some());
        assert_eq!(slots.fetch(id, None).unwrap(), reply(b"a"));
        assert_eq!(slots.open(Vec::new()), id);
        assert_ne!(slots.open(Vec::new()), id);
    }

    #[test]
    fn the_last_who_asked_is_woken() {
        let mut slots = Slots::default();
        let counts = [(); 2].map(|()| Arc::new(Count(AtomicUsize::new(0))));
        let [first, last] = counts.clone().map(Waker::from);
        let id = slots.open(Vec::new());
        for waker in [&first, &last, &last] {
            assert!(slots.fetch(id, Some(waker)).is_err());
        }
        slots.answer(id, 3, b"a").unwrap().wake();
        let woken = counts.map(|count| count.0.load(Ordering::SeqCst));
        assert_eq!(woken, [0, 1]);
    }

    #[test]
    fn a_slot_is_free_when_both_have_let_go() {
        let mut slots = Slots::default();
        let (one, other) = (slots.open(Vec::new()), slots.open(Vec::new()));
        let (is_owed, _) = slots.abandon(one);
        assert!(is_owed && slots.is_abandoned(one) && !slots.is_abandoned(other));
        assert_ne!(slots.open(Vec::new()), one, "the lane owes it an answer");
        assert!(slots.answer(one, 3, b"a").is_none());
        assert_eq!((slots.abandoned(), slots.open(Vec::new())), (0, one));

        assert!(slots.answer(other, 3, b"a").is_none());
        let (is_owed, _) = slots.abandon(other);
        assert!(!is_owed);
        assert_eq!(slots.open(Vec::new()), other);
    }

    #[test]
    fn the_end_answers_everybody() {
        let mut slots = Slots::default();
        let [answered, awaited, open, abandoned] = [(); 4].map(|()| slots.open(Vec::new()));
        slots.answer(answered, 3, b"a");
        assert!(slots.fetch(awaited, Some(Waker::noop())).is_err());
        drop(slots.abandon(abandoned));
        assert_eq!(slots.end().len(), 1);
        assert_eq!(slots.abandoned(), 0);
        let outcomes = [answered, awaited, open].map(|id| slots.fetch(id, None).unwrap());
        let ended = || Err(Box::new(RequestError::Shutdown));
        assert_eq!(outcomes, [reply(b"a"), ended(), ended()]);
    }

    #[test]
    fn a_reply_is_in_the_memory_that_its_request_brought() {
        let mut slots = Slots::default();
        let memory = Vec::with_capacity(100);
        let place = memory.as_ptr();
        let id = slots.open(memory);
        slots.answer(id, 3, b"a");
        let reply = slots.fetch(id, None).unwrap().unwrap();
        assert_eq!(
            (reply.payload(), reply.payload().as_ptr()),
            (&b"a"[..], place)
        );
    }
}
