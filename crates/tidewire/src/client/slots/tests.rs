//! Slots through all their states, and used again.

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

/// The slots of a client with what is behind its lock.
#[derive(Default)]
struct Both(Slots, Waiters);

impl Both {
    fn open(&mut self) -> SlotId {
        self.0.open(&mut self.1)
    }

    fn fetch(&mut self, id: SlotId, waker: Option<&Waker>) -> Result<Outcome, Option<Waker>> {
        self.0
            .fetch_or_wait(&mut self.1, id, &mut Vec::new(), waker)
    }

    fn answer(&mut self, id: SlotId, payload: &[u8]) -> Option<Waker> {
        self.0.write(id, payload);
        self.0.answer_short(&mut self.1, id, 3, payload.len())
    }

    fn abandon(&mut self, id: SlotId) -> bool {
        self.0.abandon(&mut self.1, id).0
    }
}

fn reply(bytes: &[u8]) -> Outcome {
    Ok(Reply::new(3, bytes.to_vec()))
}

#[test]
fn an_outcome_is_fetched_once_and_frees_the_slot() {
    let mut slots = Both::default();
    let id = slots.open();
    assert!(slots.fetch(id, Some(Waker::noop())).is_err());
    assert!(slots.answer(id, b"a").is_some());
    assert_eq!(slots.fetch(id, None).unwrap(), reply(b"a"));
    assert_eq!(slots.open(), id);
    assert_ne!(slots.open(), id);
}

#[test]
fn the_last_who_asked_is_woken() {
    let mut slots = Both::default();
    let counts = [(); 2].map(|()| Arc::new(Count(AtomicUsize::new(0))));
    let [first, last] = counts.clone().map(Waker::from);
    let id = slots.open();
    for waker in [&first, &last, &last] {
        assert!(slots.fetch(id, Some(waker)).is_err());
    }
    slots.answer(id, b"a").unwrap().wake();
    let woken = counts.map(|count| count.0.load(Ordering::SeqCst));
    assert_eq!(woken, [0, 1]);
}

#[test]
fn a_slot_is_free_when_both_have_let_go() {
    let mut slots = Both::default();
    let (one, other) = (slots.open(), slots.open());
    let is_owed = slots.abandon(one);
    assert!(is_owed && slots.0.is_abandoned(one) && !slots.0.is_abandoned(other));
    assert_ne!(slots.open(), one, "the lane owes it an answer");
    assert!(slots.answer(one, b"a").is_none());
    assert_eq!((slots.1.abandoned(), slots.open()), (0, one));

    assert!(slots.answer(other, b"a").is_none());
    let is_owed = slots.abandon(other);
    assert!(!is_owed);
    assert_eq!(slots.open(), other);
}

#[test]
fn the_end_answers_everybody() {
    let mut slots = Both::default();
    let [answered, awaited, open, abandoned] = [(); 4].map(|()| slots.open());
    slots.answer(answered, b"a");
    assert!(slots.fetch(awaited, Some(Waker::noop())).is_err());
    slots.abandon(abandoned);
    assert_eq!(slots.0.end(&mut slots.1).len(), 1);
    assert_eq!(slots.1.abandoned(), 0);
    let left = slots.1.rests.iter().filter(|rest| rest.outcome.is_some());
    assert_eq!(left.count(), 2, "nobody else wants one");
    let outcomes = [answered, awaited, open].map(|id| slots.fetch(id, None).unwrap());
    let ended = || Err(Box::new(RequestError::Shutdown));
    assert_eq!(outcomes, [reply(b"a"), ended(), ended()]);
}

#[test]
fn replies_of_all_lengths_come_out_as_they_went_in() {
    let mut slots = Both::default();
    let bytes: Vec<u8> = (1..=SHORT_BYTES_MAX as u8).collect();
    // The longest first, so that a shorter one has to hide what is left of it.
    for count in (0..=SHORT_BYTES_MAX).rev() {
        let id = slots.open();
        slots.answer(id, &bytes[..count]);
        assert_eq!(slots.0.fetch(id), reply(&bytes[..count]).ok());
        assert_eq!(slots.0.fetch(id), None);
    }
    assert_eq!(slots.1.rests.len(), 1);
}

#[test]
fn a_reply_that_does_not_fit_is_in_the_memory_of_one_before_it() {
    let mut slots = Both::default();
    let mut memory = Vec::with_capacity(1_000);
    let place = memory.as_ptr();
    let mut lent = Vec::new();
    for round in 0..3 {
        let id = slots.open();
        slots.0.answer(&mut slots.1, id, 3, &[7; 500]);
        assert_eq!(slots.0.fetch(id), None);
        let fetched = slots.0.fetch_or_wait(&mut slots.1, id, &mut memory, None);
        let reply = fetched.unwrap().unwrap();
        assert_eq!((reply.channel(), reply.payload()), (3, &[7; 500][..]));
        lent.push(reply.payload().as_ptr() == place);
        if round == 1 {
            memory = reply.into_payload();
            memory.clear();
        }
    }
    assert_eq!(lent, [false, true, false]);
}

/// Each slot kept a piece of its own for good, and there are as many slots as requests were ever held at once.
#[test]
fn memory_for_longer_replies_is_bounded_however_many_were_held() {
    const HELD: usize = 3 * spare::PIECES_MAX;
    let mut slots = Both::default();
    let ids: Vec<SlotId> = (0..HELD).map(|_| slots.open()).collect();
    for id in &ids {
        slots.0.answer(&mut slots.1, *id, 3, &[7; 2_000]);
    }
    let mut kept = 0;
    for id in ids {
        let mut memory = Vec::with_capacity(2_000);
        let (slots, waiters) = (&slots.0, &mut slots.1);
        let fetched = slots.fetch_or_wait(waiters, id, &mut memory, None);
        assert_eq!(fetched.unwrap().unwrap().payload(), [7; 2_000]);
        kept += usize::from(memory.capacity() == 0);
    }
    assert_eq!(kept, spare::PIECES_MAX);
    let pieces = std::iter::from_fn(|| slots.1.spare.pop());
    assert_eq!(pieces.count(), kept);
}

/// Answers that are left for long keep their slots, and cost those who open others a few looks and some memory.
#[test]
fn slots_whose_answers_are_left_are_passed_over() {
    let mut slots = Both::default();
    let left = [(); 100].map(|()| slots.open());
    for id in left {
        slots.answer(id, b"left");
    }
    for _ in 0..10_000 {
        let id = slots.open();
        assert!(!left.contains(&id));
        slots.answer(id, b"a");
        assert_eq!(slots.0.fetch(id), reply(b"a").ok());
    }
    assert!(slots.1.rests.len() <= 200, "{}", slots.1.rests.len());
    for id in left {
        assert_eq!(slots.0.fetch(id), reply(b"left").ok());
    }
    // Those are used again, too.
    for _ in 0..1_000 {
        let ids = [(); 200].map(|()| slots.open());
        for id in ids {
            slots.answer(id, b"a");
            assert_eq!(slots.0.fetch(id), reply(b"a").ok());
        }
    }
    assert!(slots.1.rests.len() <= 400, "{}", slots.1.rests.len());
}
