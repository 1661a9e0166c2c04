//! Commands one way and answers the other, by one thread or several.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use super::*;
use crate::client::queue::COMMANDS_MAX;
use crate::client::slots::SHORT_BYTES_MAX;

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn frame(exchange: &Exchange, bytes: &[u8]) -> Result<MustRing, HandOverError> {
    exchange.push_frame(|out| {
        out.extend_from_slice(bytes);
        Ok(())
    })
}

fn call(exchange: &Exchange, deadline_ns: u64) -> (SlotId, MustRing) {
    let pushed = exchange.push_call(Ticket::due_at(deadline_ns), "", b"payload");
    pushed.unwrap()
}

#[test]
fn the_lane_is_rung_for_the_first_command_only() {
    let exchange = Exchange::new(1_000, false);
    assert_eq!(call(&exchange, 1).1, MustRing(true));
    assert_eq!(call(&exchange, 1).1, MustRing(false));
    assert_eq!(frame(&exchange, b"x"), Ok(MustRing(false)));
    let mut batch = Batch::default();
    exchange.take(&mut batch);
    assert!(matches!(batch.next(), Some(Command::Calls { count: 2 })));
    for _ in 0..2 {
        assert!(batch.call().is_some());
        batch.pass_call();
    }
    assert!(matches!(
        batch.next(),
        Some(Command::Frames { messages: 1, .. })
    ));
    assert!(batch.next().is_none());
    assert!(!exchange.is_occupied());
    // A lane that has seen what it cannot take is rung for what comes then.
    assert_eq!(call(&exchange, 5).1, MustRing(true));
    assert_eq!(exchange.expire(0, &mut Answers::default()), Some(5));
    assert!(exchange.is_occupied() && !exchange.has_news());
    assert_eq!(exchange.push(Command::Close).unwrap(), MustRing(true));
    assert!(exchange.has_news());
}

#[test]
fn it_is_bounded_and_refuses_after_its_end() {
    let exchange = Exchange::new(1_000, false);
    for _ in 0..COMMANDS_MAX {
        exchange.push(Command::Close).map(drop).unwrap();
    }
    let refused = exchange.push(Command::Close).unwrap_err();
    assert_eq!(refused.error, HandOverError::QueueFull);
    assert_eq!(frame(&exchange, b"x"), Err(HandOverError::QueueFull));
    assert_eq!(exchange.end(), 0);
    let refused = exchange.push(Command::Close).unwrap_err();
    assert_eq!(refused.error, HandOverError::Ended);

    let exchange = Exchange::new(1_000, false);
    frame(&exchange, &[0; 1_000]).map(drop).unwrap();
    assert_eq!(frame(&exchange, b"x"), Err(HandOverError::QueueFull));
    assert_eq!(exchange.end(), 1, "it is lost");
    assert_eq!(frame(&exchange, b"x"), Err(HandOverError::Ended));
}

/// They were bounded in number only: 4,096 of 1 MiB each are 4 GiB.
#[test]
fn requests_are_bounded_in_bytes_too() {
    let exchange = Exchange::new(1_000, false);
    let ask = |payload: &[u8]| {
        let pushed = exchange.push_call(Ticket::due_at(1), "name", payload);
        pushed.map(drop)
    };
    // A message takes none of their room, and they none of its.
    frame(&exchange, &[0; 1_000]).map(drop).unwrap();
    ask(&[0; 995]).unwrap();
    ask(&[0; 10]).unwrap();
    assert_eq!(ask(b""), Err(HandOverError::QueueFull));
    // What falls due behind a full output is in memory as long as the lane takes nothing.
    let mut answers = Answers::default();
    assert_eq!(exchange.expire(1, &mut answers), None);
    assert!(!answers.is_empty());
    assert_eq!(ask(b""), Err(HandOverError::QueueFull));
    let mut batch = Batch::default();
    exchange.take(&mut batch);
    ask(&[0; 1_000]).unwrap();
    assert_eq!(ask(b""), Err(HandOverError::QueueFull));
    frame(&exchange, b"x").map(drop).unwrap();
}

#[test]
fn a_message_that_cannot_be_encoded_is_no_news() {
    let exchange = Exchange::new(1_000, false);
    let error = EncodeError::PayloadTooLarge { bytes: 9, limit: 8 };
    let refused = exchange.push_frame(|_| Err(error));
    assert_eq!(refused, Err(HandOverError::Encode(error)));
    assert!(!exchange.is_occupied());
}

#[test]
fn a_task_that_waits_for_many_answers_is_woken_once() {
    let exchange = Exchange::new(1_000, false);
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let slots = [(); 100].map(|()| call(&exchange, 1).0);
    let mut answers = Answers::default();
    for (number, slot) in slots.iter().enumerate() {
        assert_eq!(exchange.fetch_or_wait(*slot, Some(&waker)), None);
        answers.reply(exchange.slots(), Some(*slot), number as u16, b"reply");
    }
    answers.fail(None, RequestError::TimedOut);
    exchange.leave(&mut answers);
    assert!(answers.is_empty() && answers.has_wakers());
    answers.wake();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    for (number, slot) in slots.iter().enumerate() {
        let outcome = exchange.fetch_or_wait(*slot, None);
        let reply = outcome.unwrap().unwrap();
        assert_eq!(
            (reply.channel(), reply.payload()),
            (number as u16, &b"reply"[..])
        );
    }
}

#[test]
fn a_request_let_go_of_is_told_to_the_lane_once() {
    let exchange = Exchange::new(1_000, false);
    let (answered, open) = (call(&exchange, 1).0, call(&exchange, 1).0);
    let mut answers = Answers::default();
    answers.reply(exchange.slots(), Some(answered), 0, b"");
    exchange.leave(&mut answers);
    assert!(!exchange.is_abandoned(Some(open)));
    for slot in [answered, open] {
        let _ = exchange.abandon(slot);
    }
    assert!(exchange.is_abandoned(Some(open)) && !exchange.is_abandoned(Some(answered)));
    let mut batch = Batch::default();
    exchange.take(&mut batch);
    assert!(matches!(batch.next(), Some(Command::Calls { count: 2 })));
    for _ in 0..2 {
        batch.pass_call();
    }
    assert!(matches!(batch.next(), Some(Command::Abandon(slot)) if slot == open));
    assert!(batch.next().is_none());
    answers.fail(Some(open), RequestError::Shutdown);
    exchange.leave(&mut answers);
    assert!(!exchange.is_abandoned(Some(open)));
}

/// A task's last reference may be its waker, and its requests go with it: they need the lock that the waker was under.
#[test]
fn a_task_may_end_with_its_waker() {
    struct Task(Arc<Exchange>, SlotId);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Task {
        fn drop(&mut self) {
            let _ = self.0.abandon(self.1);
        }
    }

    let exchange = Arc::new(Exchange::new(1_000, false));
    let (awaited, held) = (call(&exchange, 1).0, call(&exchange, 1).0);
    let other = call(&exchange, 1).0;
    let waker = Waker::from(Arc::new(Task(Arc::clone(&exchange), held)));
    assert_eq!(exchange.fetch_or_wait(awaited, Some(&waker)), None);
    drop(waker);
    // Another task waits in its place.
    assert_eq!(exchange.fetch_or_wait(awaited, Some(Waker::noop())), None);
    assert!(exchange.is_abandoned(Some(held)));

    let waker = Waker::from(Arc::new(Task(Arc::clone(&exchange), other)));
    assert_eq!(exchange.fetch_or_wait(awaited, Some(&waker)), None);
    drop(waker);
    let mut answers = Answers::default();
    answers.reply(exchange.slots(), Some(awaited), 0, b"");
    exchange.leave(&mut answers);
    answers.wake();
    assert!(exchange.is_abandoned(Some(other)));
}

/// Threads ask and fetch without the lock, and let go of every tenth request, while a lane answers: each gets its own
/// answers, and every word of them.
#[test]
fn answers_find_their_requests_from_many_threads() {
    const ROUNDS: usize = 100;
    const REQUESTS: usize = 100;
    let exchange = Exchange::new(1 << 20, false);
    let fetched_at_once = AtomicUsize::new(0);
    // Up to all that a slot holds; each of its words says whose it is.
    let payload = |thread: u16, round: usize, number: usize| {
        let word = (number | round << 8 | usize::from(thread) << 16) as u32;
        let words = std::iter::repeat_n([word, !word], SHORT_BYTES_MAX / 8);
        let bytes = words.flatten().flat_map(u32::to_le_bytes);
        let count = 1 + (number * 7 + round * 13) % SHORT_BYTES_MAX;
        bytes.take(count).collect::<Vec<u8>>()
    };
    let ask = |thread: u16, round: usize| {
        let asked = (0..REQUESTS).map(|number| {
            let mut ticket = Ticket::due_at(1);
            ticket.channel = thread;
            let pushed = exchange.push_call(ticket, "", &payload(thread, round, number));
            (number, pushed.unwrap().0)
        });
        for (number, slot) in asked.collect::<Vec<_>>() {
            if number % 10 == 0 {
                let _ = exchange.abandon(slot);
                continue;
            }
            let reply = loop {
                if let Some(reply) = exchange.fetch(slot) {
                    fetched_at_once.fetch_add(1, Ordering::Relaxed);
                    break reply;
                }
                match exchange.fetch_or_wait(slot, None) {
                    Some(outcome) => break outcome.unwrap(),
                    None => std::thread::yield_now(),
                }
            };
            let expected = payload(thread, round, number);
            assert_eq!((reply.channel(), reply.payload()), (thread, &expected[..]));
        }
    };
    std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3].map(|thread| {
            let ask = &ask;
            scope.spawn(move || (0..ROUNDS).for_each(|round| ask(thread, round)))
        });
        let (mut batch, mut answers, mut taken) = (Batch::default(), Answers::default(), 0);
        // One that finds what is not its own ends, too.
        while !threads.iter().all(|thread| thread.is_finished()) {
            exchange.take(&mut batch);
            while batch.next().is_some() {
                while let Some((ticket, _, payload)) = batch.call() {
                    answers.reply(exchange.slots(), ticket.slot, ticket.channel, payload);
                    batch.pass_call();
                    taken += 1;
                }
            }
            exchange.leave(&mut answers);
            answers.wake();
            std::thread::yield_now();
        }
        assert_eq!(taken, threads.len() * ROUNDS * REQUESTS);
    });
    assert_eq!(exchange.lock().waiters.abandoned(), 0);
    assert!(fetched_at_once.into_inner() > 0, "all took the lock");
}

/// Commands were taken as long as there were any, so that a sender that never paused kept the lane from its socket and its
/// deadlines, and whoever was refused from the answer.
#[test]
fn a_sender_that_never_pauses_ends_no_turn_late() {
    const REQUESTS: usize = 10_000;
    // With small requests their number is what ends a turn, with large ones their bytes.
    for (payload_bytes, turn_max) in [(0, 256), (10_000, 7)] {
        let exchange = Exchange::new(1_000_000, false);
        let payload = vec![7; payload_bytes];
        let mut offered = 0;
        let mut offer = || {
            if offered < REQUESTS {
                offered += 1;
                let pushed = exchange.push_call(Ticket::due_at(1), "", &payload);
                pushed.map(drop).unwrap();
            }
        };
        offer();
        let (mut batch, mut run, mut turns) = (Batch::default(), 0, 0);
        while exchange.is_occupied() {
            let (mut taken, mut in_turn) = (TakenBytes::default(), 0);
            while exchange.next(&mut batch, &mut taken).is_some() {
                assert!(batch.call().is_some());
                batch.pass_call();
                in_turn += 1;
                // Another one comes for each, before the lane looks again.
                offer();
            }
            assert!(in_turn <= turn_max, "{in_turn} commands in a turn");
            assert!(batch.next().is_none(), "nothing is left behind");
            run += in_turn;
            turns += 1;
        }
        assert_eq!(run, REQUESTS);
        assert_eq!(turns, REQUESTS.div_ceil(turn_max));
    }
}

/// What was taken before, and could not be run, comes first; and a list is run to its end, however long it is.
#[test]
fn a_turn_begins_with_what_the_last_one_left() {
    let exchange = Exchange::new(1_000, false);
    let mut batch = Batch::default();
    for _ in 0..3 {
        let _ = call(&exchange, 1);
    }
    let first = exchange.next(&mut batch, &mut TakenBytes::default());
    assert!(matches!(first, Some(Command::Calls { count: 3 })));
    batch.pass_call();
    for _ in 0..COMMANDS_MAX {
        exchange.push(Command::Close).map(drop).unwrap();
    }
    let mut taken = TakenBytes::default();
    for left in [2, 1] {
        let next = exchange.next(&mut batch, &mut taken);
        assert!(matches!(next, Some(Command::Calls { count }) if count == left));
        batch.pass_call();
    }
    let mut next = || exchange.next(&mut batch, &mut taken);
    for _ in 0..COMMANDS_MAX {
        assert!(matches!(next(), Some(Command::Close)));
    }
    let _ = call(&exchange, 1);
    assert!(next().is_none() && exchange.is_occupied());
}
