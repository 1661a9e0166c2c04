//! Where the answers to a client's requests wait to be fetched: one slot for each request that was accepted.
//!
//! A slot belongs to the request's future and to the lane at once, and is free again when both have let go of it: the
//! lane by leaving an answer, the future by fetching it or by being dropped. So a slot's number is all that the two need
//! to name a request, and no reference is counted for it. The memory of replies goes round: from the lane with an
//! answer, back from the application when it drops the reply.
//!
//! There is no lock here: the table lies behind the one that commands go through as well
//! ([`Exchange`](super::exchange::Exchange)).

use std::task::Waker;

use super::request::RequestError;

/// The number of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(u32);

/// What became of a request: the channel that the reply came on and its payload, or why there is none.
pub(crate) type Outcome = Result<(u16, Vec<u8>), RequestError>;

/// All slots of a client.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Emptied memory of replies, to be filled again.
    spare: Vec<Vec<u8>>,
    /// Slots that are abandoned.
    abandoned: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) enum Slot {
    Free,
    /// The lane owes the answer; perhaps somebody waits for it.
    Open(Option<Waker>),
    /// The lane owes the answer, and nobody wants it.
    Abandoned,
    Answered(Outcome),
}

impl Slots {
    /// A slot for a new request.
    pub(crate) fn open(&mut self) -> SlotId {
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = Slot::Open(None);
            return SlotId(number);
        }
        self.slots.push(Slot::Open(None));
        // More than 2^32 slots of 40 bytes do not fit any memory that a client has.
        SlotId((self.slots.len() - 1) as u32)
    }

    /// Takes the outcome out, which frees the slot. If there is none yet, `waker` is woken when there is.
    pub(crate) fn fetch(&mut self, id: SlotId, waker: &Waker) -> Option<Outcome> {
        let slot = &mut self.slots[id.0 as usize];
        match slot {
            Slot::Open(Some(known)) if known.will_wake(waker) => None,
            Slot::Open(known) => {
                *known = Some(waker.clone());
                None
            }
            _ => {
                let slot = std::mem::replace(slot, Slot::Free);
                self.free.push(id.0);
                let Slot::Answered(outcome) = slot else {
                    // Only its one request asks for a slot, and not after it has had or given up its answer.
                    return Some(Err(RequestError::Shutdown));
                };
                Some(outcome)
            }
        }
    }

    /// The request lets go of its slot. Returns whether the lane owes it an answer still, and what the slot held: letting go
    /// of a waker may run code of its executor, which must find the lock free.
    pub(crate) fn abandon(&mut self, id: SlotId) -> (bool, Slot) {
        let slot = &mut self.slots[id.0 as usize];
        let is_owed = matches!(slot, Slot::Open(_));
        let next = if is_owed { Slot::Abandoned } else { Slot::Free };
        let dropped = std::mem::replace(slot, next);
        if is_owed {
            self.abandoned += 1;
        } else {
            self.free.push(id.0);
        }
        (is_owed, dropped)
    }

    /// Whether nobody wants the answer any more.
    pub(crate) fn is_abandoned(&self, id: SlotId) -> bool {
        matches!(self.slots[id.0 as usize], Slot::Abandoned)
    }

    /// How many slots are abandoned.
    pub(crate) fn abandoned(&self) -> usize {
        self.abandoned
    }

    /// The lane leaves an answer. Returns who waits for it.
    pub(crate) fn answer(&mut self, id: SlotId, outcome: Outcome) -> Option<Waker> {
        let slot = &mut self.slots[id.0 as usize];
        match slot {
            Slot::Open(waker) => {
                let waker = waker.take();
                *slot = Slot::Answered(outcome);
                waker
            }
            Slot::Abandoned => {
                *slot = Slot::Free;
                self.free.push(id.0);
                self.abandoned -= 1;
                if let Ok((_, payload)) = outcome {
                    self.give_back(payload);
                }
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
            let id = SlotId(number as u32);
            if matches!(self.slots[number], Slot::Open(_) | Slot::Abandoned) {
                wakers.extend(self.answer(id, Err(RequestError::Shutdown)));
            }
        }
        wakers
    }

    /// Memory of a reply, emptied, or none.
    pub(crate) fn take_spare(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Gives all spare memory for the empty list `spare`.
    pub(crate) fn swap_spare(&mut self, spare: &mut Vec<Vec<u8>>) {
        std::mem::swap(&mut self.spare, spare);
    }

    /// Takes memory back that is not needed any more.
    pub(crate) fn give_back(&mut self, mut payload: Vec<u8>) {
        let is_kept = (1..=SPARE_BYTES_MAX).contains(&payload.capacity());
        if is_kept && self.spare.len() < SPARES_MAX {
            payload.clear();
            self.spare.push(payload);
        }
    }
}

/// Memory of replies kept to be used again: for as many as may be on their way.
const SPARES_MAX: usize = 4096;

/// Largest memory that is kept for a reply, in bytes: of larger ones 4,096 would be too much to hold.
const SPARE_BYTES_MAX: usize = 4096;

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
        Ok((3, bytes.to_vec()))
    }

    #[test]
    fn an_outcome_is_fetched_once_and_frees_the_slot() {
        let mut slots = Slots::default();
        let id = slots.open();
        assert_eq!(slots.fetch(id, Waker::noop()), None);
        assert!(slots.answer(id, reply(b"a")).is_some());
        assert_eq!(slots.fetch(id, Waker::noop()), Some(reply(b"a")));
        assert_eq!(slots.open(), id);
        assert_ne!(slots.open(), id);
    }

    #[test]
    fn the_last_who_asked_is_woken() {
        let mut slots = Slots::default();
        let counts = [(); 2].map(|()| Arc::new(Count(AtomicUsize::new(0))));
        let [first, last] = counts.clone().map(Waker::from);
        let id = slots.open();
        for waker in [&first, &last, &last] {
            assert_eq!(slots.fetch(id, waker), None);
        }
        slots.answer(id, reply(b"a")).unwrap().wake();
        let woken = counts.map(|count| count.0.load(Ordering::SeqCst));
        assert_eq!(woken, [0, 1]);
    }

    #[test]
    fn a_slot_is_free_when_both_have_let_go() {
        let mut slots = Slots::default();
        let (one, other) = (slots.open(), slots.open());
        let (is_owed, _) = slots.abandon(one);
        assert!(is_owed && slots.is_abandoned(one) && !slots.is_abandoned(other));
        assert_ne!(slots.open(), one, "the lane owes it an answer");
        assert!(slots.answer(one, reply(b"a")).is_none());
        assert_eq!((slots.abandoned(), slots.open()), (0, one));

        assert!(slots.answer(other, reply(b"a")).is_none());
        let (is_owed, _) = slots.abandon(other);
        assert!(!is_owed);
        assert_eq!(slots.open(), other);
    }

    #[test]
    fn the_end_answers_everybody() {
        let mut slots = Slots::default();
        let [answered, awaited, open, abandoned] = [(); 4].map(|()| slots.open());
        slots.answer(answered, reply(b"a"));
        assert_eq!(slots.fetch(awaited, Waker::noop()), None);
        drop(slots.abandon(abandoned));
        assert_eq!(slots.end().len(), 1);
        assert_eq!(slots.abandoned(), 0);
        let outcomes = [answered, awaited, open].map(|id| slots.fetch(id, Waker::noop()));
        let ended = || Some(Err(RequestError::Shutdown));
        assert_eq!(outcomes, [Some(reply(b"a")), ended(), ended()]);
    }

    #[test]
    fn memory_goes_round_unless_it_is_large() {
        let mut slots = Slots::default();
        slots.give_back(vec![1, 2]);
        slots.give_back(vec![0; SPARE_BYTES_MAX + 1]);
        slots.give_back(Vec::new());
        let spare = slots.take_spare();
        assert!(spare.is_empty() && spare.capacity() >= 2);
        assert_eq!(slots.take_spare().capacity(), 0);
        slots.give_back(spare);
        let mut taken = Vec::new();
        slots.swap_spare(&mut taken);
        assert_eq!((taken.len(), slots.take_spare().capacity()), (1, 0));
    }
}
