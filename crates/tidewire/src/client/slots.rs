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

/// What a request lets go of with its slot.
#[derive(Debug)]
#[expect(dead_code, reason = "it is kept until it may be dropped")]
pub(crate) struct Held {
    waker: Option<Waker>,
    payload: Vec<u8>,
}

/// See the module. Its fields stay where they are while its state changes: as an enum with all of them in its variants it was
/// moved as a whole, and torn down, at every step.
#[derive(Debug)]
pub(crate) struct Slot {
    state: State,
    /// The channel of the reply.
    channel: u16,
    /// Whoever waits for the answer.
    waker: Option<Waker>,
    /// Emptied memory for the reply, or none; then its payload.
    payload: Vec<u8>,
    error: Option<Box<RequestError>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// The lane owes the answer; perhaps somebody waits for it.
    Open,
    /// The lane owes the answer, and nobody wants it.
    Abandoned,
    Replied,
    Failed,
}

impl Slots {
    /// A slot for a new request, with emptied memory for its reply, or none.
    #[inline]
    pub(crate) fn open(&mut self, memory: Vec<u8>) -> SlotId {
        let Some(id) = self.free.pop() else {
            return self.add(memory);
        };
        let slot = &mut self.slots[id.index()];
        slot.state = State::Open;
        slot.payload = memory;
        id
    }

    #[cold]
    fn add(&mut self, memory: Vec<u8>) -> SlotId {
        let id = SlotId::new(self.slots.len());
        self.slots.push(Slot {
            state: State::Open,
            channel: 0,
            waker: None,
            payload: memory,
            error: None,
        });
        id
    }

    /// Takes the outcome out, which frees the slot. If there is none yet, `waker` is woken when there is, if it is given. What
    /// comes back then is the one before it: letting go of a waker may run code of its executor, which must find the lock
    /// free.
    #[inline]
    pub(crate) fn fetch(
        &mut self,
        id: SlotId,
        waker: Option<&Waker>,
    ) -> Result<Outcome, Option<Waker>> {
        let slot = &mut self.slots[id.index()];
        let outcome = match slot.state {
            State::Replied => Ok(Reply::new(slot.channel, std::mem::take(&mut slot.payload))),
            State::Open => return Err(slot.wait(waker)),
            // Only its one request asks for a slot, and not after it has had or given up its answer.
            State::Free | State::Abandoned => return Ok(Err(Box::new(RequestError::Shutdown))),
            State::Failed => Err(slot.take_error()),
        };
        slot.state = State::Free;
        self.free.push(id);
        Ok(outcome)
    }

    /// The request lets go of its slot. Returns whether the lane owes it an answer still, and what the slot held, which is to
    /// be dropped without the lock.
    pub(crate) fn abandon(&mut self, id: SlotId) -> (bool, Held) {
        let slot = &mut self.slots[id.index()];
        let is_owed = slot.state == State::Open;
        let held = Held {
            waker: slot.waker.take(),
            payload: std::mem::take(&mut slot.payload),
        };
        slot.error = None;
        if is_owed {
            slot.state = State::Abandoned;
            self.abandoned += 1;
        } else {
            slot.state = State::Free;
            self.free.push(id);
        }
        (is_owed, held)
    }

    /// Whether nobody wants the answer any more.
    pub(crate) fn is_abandoned(&self, id: SlotId) -> bool {
        self.slots[id.index()].state == State::Abandoned
    }

    /// How many slots are abandoned.
    pub(crate) fn abandoned(&self) -> usize {
        self.abandoned
    }

    /// The lane leaves a reply. Returns who waits for it.
    #[inline]
    pub(crate) fn answer(&mut self, id: SlotId, channel: u16, payload: &[u8]) -> Option<Waker> {
        let slot = &mut self.slots[id.index()];
        if slot.state != State::Open {
            return self.settle_unwanted(id);
        }
        slot.payload.extend_from_slice(payload);
        slot.channel = channel;
        slot.state = State::Replied;
        slot.waker.take()
    }

    /// The lane leaves an outcome. Returns who waits for it.
    pub(crate) fn settle(&mut self, id: SlotId, outcome: Outcome) -> Option<Waker> {
        let slot = &mut self.slots[id.index()];
        if slot.state != State::Open {
            return self.settle_unwanted(id);
        }
        match outcome {
            Ok(reply) => {
                slot.channel = reply.channel();
                slot.payload = reply.into_payload();
                slot.state = State::Replied;
            }
            Err(error) => {
                slot.error = Some(error);
                slot.state = State::Failed;
            }
        }
        slot.waker.take()
    }

    /// The lane has answered a request that nobody waits for.
    #[cold]
    fn settle_unwanted(&mut self, id: SlotId) -> Option<Waker> {
        let slot = &mut self.slots[id.index()];
        // The lane answers each request once, so that no other state has anything to be told.
        if slot.state == State::Abandoned {
            slot.state = State::Free;
            self.free.push(id);
            self.abandoned -= 1;
        }
        None
    }

    /// There is no lane any more to answer. Returns who waits for that.
    pub(crate) fn end(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for number in 0..self.slots.len() {
            let id = SlotId::new(number);
            if matches!(self.slots[number].state, State::Open | State::Abandoned) {
                wakers.extend(self.settle(id, Err(Box::new(RequestError::Shutdown))));
            }
        }
        wakers
    }
}

impl Slot {
    /// Has the waker woken, if it is given. Returns the one before it.
    fn wait(&mut self, waker: Option<&Waker>) -> Option<Waker> {
        match (&self.waker, waker) {
            (Some(known), Some(waker)) if known.will_wake(waker) => None,
            (_, Some(waker)) => self.waker.replace(waker.clone()),
            (_, None) => None,
        }
    }

    #[cold]
    fn take_error(&mut self) -> Box<RequestError> {
        let error = self.error.take();
        error.unwrap_or_else(|| Box::new(RequestError::Shutdown))
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
