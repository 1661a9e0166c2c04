//! Tests of submissions and completions, by one thread and by several.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use super::*;
use crate::client::reply::{PIECES_MAX, SHORT_BYTES_MAX};
use crate::client::submissions::{Nothing, SUBMISSIONS_MAX};

type Table = RequestTable<Nothing>;
type Batch = Submissions<Nothing>;

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn message(table: &Table, bytes: &[u8]) -> Result<(), SendError> {
    table.send(|out| {
        out.extend_from_slice(bytes);
        Ok(())
    })
}

fn request(table: &Table, deadline_ns: u64) -> SlotId {
    let submitted = table.submit(RequestHead::due_at(deadline_ns), "", b"payload");
    submitted.unwrap()
}

#[test]
fn the_lane_takes_waiting_messages_and_is_told_of_later_ones() {
    let table = Table::new(1_000, false);
    assert!(!table.has_news());
    request(&table, 1);
    assert!(table.has_news());
    request(&table, 1);
    message(&table, b"x").unwrap();
    let mut batch = Batch::default();
    assert!(table.refill(&mut batch, &mut 0));
    for _ in 0..2 {
        assert!(batch.request().is_some());
        batch.pass();
    }
    let messages = batch.take().map(|(submission, _)| submission);
    assert!(matches!(
        messages,
        Some(Submission::Messages { count: 1, .. })
    ));
    assert!(batch.is_empty() && !table.is_occupied());
    // A lane that has seen submissions it cannot take is woken for new submissions.
    request(&table, 5);
    assert_eq!(table.expire(0, &mut Completions::default()), Some(5));
    assert!(table.is_occupied() && !table.has_news());
    table.control(Nothing).unwrap();
    assert!(table.has_news());
}

#[test]
fn it_is_bounded_and_refuses_after_its_end() {
    let table = Table::new(1 << 20, false);
    for _ in 0..SUBMISSIONS_MAX {
        request(&table, 1);
    }
    let refused = table.submit(RequestHead::due_at(1), "", b"");
    assert_eq!(refused, Err(SendError::QueueFull));
    assert_eq!(message(&table, b"x"), Err(SendError::QueueFull));
    let refused = table.submit_control(|_| Nothing);
    assert_eq!(refused, Err(SendError::QueueFull));
    // A control is never refused for lack of room.
    table.control(Nothing).unwrap();
    assert_eq!(table.end(&RequestError::Shutdown), 0);
    assert_eq!(table.control(Nothing), Err(SendError::Ended));

    let table = Table::new(1_000, false);
    message(&table, &[0; 1_000]).unwrap();
    assert_eq!(message(&table, b"x"), Err(SendError::QueueFull));
    assert_eq!(table.end(&RequestError::Shutdown), 1, "it is lost");
    assert_eq!(message(&table, b"x"), Err(SendError::Ended));
}

/// Regression: only the number of requests was bounded, and 4,096 requests of 1 MiB are 4 GiB.
#[test]
fn requests_are_bounded_in_bytes_too() {
    let table = Table::new(1_000, false);
    let ask = |payload: &[u8]| {
        let submitted = table.submit(RequestHead::due_at(1), "name", payload);
        submitted.map(drop)
    };
    // Messages and requests have separate bounds.
    message(&table, &[0; 1_000]).unwrap();
    ask(&[0; 995]).unwrap();
    ask(&[0; 10]).unwrap();
    assert_eq!(ask(b""), Err(SendError::QueueFull));
    // Requests that expire while the output is full use memory until the lane takes the list.
    let mut completions = Completions::default();
    assert_eq!(table.expire(1, &mut completions), None);
    assert!(!completions.is_empty());
    assert_eq!(ask(b""), Err(SendError::QueueFull));
    table.refill(&mut Batch::default(), &mut 0);
    ask(&[0; 1_000]).unwrap();
    assert_eq!(ask(b""), Err(SendError::QueueFull));
    message(&table, b"x").unwrap();
}

/// Regression: such a request was copied, and then the lane refused it.
#[test]
fn a_request_that_fits_no_frame_is_refused_before_it_is_copied() {
    let table = Table::new(1 << 20, false);
    table.set_frame_bytes_max(100);
    let ask = |name: &str, payload_bytes: usize| {
        table.submit(RequestHead::due_at(1), name, &vec![7; payload_bytes])
    };
    let (bytes, limit) = (101, 100);
    let refused = EncodeError::PayloadTooLarge { bytes, limit };
    assert_eq!(ask("name", 101), Err(SendError::Encode(refused)));
    let (bytes, limit) = (101, 100);
    let refused = EncodeError::TextTooLong { bytes, limit };
    assert_eq!(ask(&"n".repeat(101), 100), Err(SendError::Encode(refused)));
    assert!(!table.is_occupied());
    // Only the lane knows the size of the frame's header.
    assert!(ask("name", 100).is_ok() && table.is_occupied());
}

#[test]
fn a_message_that_cannot_be_encoded_is_no_news() {
    let table = Table::new(1_000, false);
    let error = EncodeError::PayloadTooLarge { bytes: 9, limit: 8 };
    let refused = table.send(|_| Err(error));
    assert_eq!(refused, Err(SendError::Encode(error)));
    assert!(!table.is_occupied());
}

#[test]
fn a_task_that_waits_for_many_answers_is_woken_once() {
    let table = Table::new(1_000, false);
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let slots = [(); 100].map(|()| request(&table, 1));
    let mut completions = Completions::default();
    for (number, slot) in slots.iter().enumerate() {
        assert_eq!(table.poll(*slot, Some(&waker)), None);
        table.reply(&mut completions, Some(*slot), number as u16, b"reply");
    }
    completions.fail(None, RequestError::TimedOut);
    table.complete(&mut completions);
    assert!(completions.is_empty() && completions.has_wakers());
    completions.wake();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    for (number, slot) in slots.iter().enumerate() {
        let outcome = table.poll(*slot, None);
        let reply = outcome.unwrap().unwrap();
        assert_eq!(
            (reply.channel(), reply.payload()),
            (number as u16, &b"reply"[..])
        );
    }
}

#[test]
fn an_abandoned_request_is_told_to_the_lane_once() {
    let table = Table::new(1_000, false);
    let (answered, open) = (request(&table, 1), request(&table, 1));
    let mut completions = Completions::default();
    table.reply(&mut completions, Some(answered), 0, b"");
    table.complete(&mut completions);
    assert!(!table.is_abandoned(Some(open)));
    for slot in [answered, open] {
        table.abandon(slot);
    }
    assert!(table.is_abandoned(Some(open)) && !table.is_abandoned(Some(answered)));
    let mut batch = Batch::default();
    table.refill(&mut batch, &mut 0);
    for _ in 0..2 {
        assert!(batch.request().is_some());
        batch.pass();
    }
    let told = batch.take().map(|(submission, _)| submission);
    assert!(matches!(told, Some(Submission::Abandon(slot)) if slot == open));
    assert!(batch.is_empty());
    completions.fail(Some(open), RequestError::Shutdown);
    table.complete(&mut completions);
    assert!(!table.is_abandoned(Some(open)));
}

/// Dropping a waker may drop the last reference to its task. The task's requests are dropped with it and need the
/// table's lock.
#[test]
fn a_task_may_end_with_its_waker() {
    struct Task(Arc<Table>, SlotId);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Task {
        fn drop(&mut self) {
            self.0.abandon(self.1);
        }
    }

    let table = Arc::new(Table::new(1_000, false));
    let (awaited, held) = (request(&table, 1), request(&table, 1));
    let other = request(&table, 1);
    let waker = Waker::from(Arc::new(Task(Arc::clone(&table), held)));
    assert_eq!(table.poll(awaited, Some(&waker)), None);
    drop(waker);
    // Another task replaces the waker.
    assert_eq!(table.poll(awaited, Some(Waker::noop())), None);
    assert!(table.is_abandoned(Some(held)));

    let waker = Waker::from(Arc::new(Task(Arc::clone(&table), other)));
    assert_eq!(table.poll(awaited, Some(&waker)), None);
    drop(waker);
    let mut completions = Completions::default();
    table.reply(&mut completions, Some(awaited), 0, b"");
    table.complete(&mut completions);
    completions.wake();
    assert!(table.is_abandoned(Some(other)));
}

/// Threads submit, fetch without the lock, and abandon every tenth request, while a lane replies. Each thread gets its
/// own replies, complete.
#[test]
fn answers_find_their_requests_from_many_threads() {
    const ROUNDS: usize = 100;
    const REQUESTS: usize = 100;
    let table = Table::new(1 << 20, false);
    let fetched_at_once = AtomicUsize::new(0);
    // Payloads of up to a full slot. Each word names thread, round and request.
    let payload = |thread: u16, round: usize, number: usize| {
        let word = (number | round << 8 | usize::from(thread) << 16) as u32;
        let words = std::iter::repeat_n([word, !word], SHORT_BYTES_MAX / 8);
        let bytes = words.flatten().flat_map(u32::to_le_bytes);
        let count = 1 + (number * 7 + round * 13) % SHORT_BYTES_MAX;
        bytes.take(count).collect::<Vec<u8>>()
    };
    let ask = |thread: u16, round: usize| {
        let asked = (0..REQUESTS).map(|number| {
            let mut head = RequestHead::due_at(1);
            head.channel = thread;
            let submitted = table.submit(head, "", &payload(thread, round, number));
            (number, submitted.unwrap())
        });
        for (number, slot) in asked.collect::<Vec<_>>() {
            if number % 10 == 0 {
                table.abandon(slot);
                continue;
            }
            let reply = loop {
                if let Some(reply) = table.fetch(slot) {
                    fetched_at_once.fetch_add(1, Ordering::Relaxed);
                    break reply;
                }
                match table.poll(slot, None) {
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
        let (mut batch, mut completions, mut taken) = (Batch::default(), Completions::default(), 0);
        // A thread that finds a wrong reply also ends.
        while !threads.iter().all(|thread| thread.is_finished()) {
            table.refill(&mut batch, &mut 0);
            while !batch.is_empty() {
                if let Some((head, _, payload)) = batch.request() {
                    table.reply(&mut completions, head.slot, head.channel, payload);
                    taken += 1;
                }
                batch.pass();
            }
            table.complete(&mut completions);
            completions.wake();
            std::thread::yield_now();
        }
        assert_eq!(taken, threads.len() * ROUNDS * REQUESTS);
    });
    assert_eq!(table.abandoned.load(Ordering::Relaxed), 0);
    assert!(fetched_at_once.into_inner() > 0, "all took the lock");
}

/// Regression: a turn took submissions as long as there were any. A sender that never paused kept the lane from its
/// socket and its deadlines, and kept refused requests from their errors.
#[test]
fn a_sender_that_never_pauses_ends_no_turn_late() {
    const REQUESTS: usize = 10_000;
    // The number of small requests or the bytes of large requests end a turn.
    for (payload_bytes, turn_max) in [(0, 256), (10_000, 7)] {
        let table = Table::new(1_000_000, false);
        let payload = vec![7; payload_bytes];
        let mut offered = 0;
        let mut offer = || {
            if offered < REQUESTS {
                offered += 1;
                let submitted = table.submit(RequestHead::due_at(1), "", &payload);
                submitted.map(drop).unwrap();
            }
        };
        offer();
        let (mut batch, mut run, mut turns) = (Batch::default(), 0, 0);
        while table.is_occupied() {
            let (mut turn_bytes, mut in_turn) = (0, 0);
            while table.refill(&mut batch, &mut turn_bytes) {
                assert!(batch.request().is_some());
                batch.pass();
                in_turn += 1;
                // A new request comes for each, before the lane checks again.
                offer();
            }
            assert!(in_turn <= turn_max, "{in_turn} commands in a turn");
            assert!(batch.is_empty(), "nothing is left behind");
            run += in_turn;
            turns += 1;
        }
        assert_eq!(run, REQUESTS);
        assert_eq!(turns, REQUESTS.div_ceil(turn_max));
    }
}

/// Submissions that were taken before and could not be processed come first. A list is processed to its end, however
/// long it is.
#[test]
fn a_turn_begins_with_the_rest_of_the_last_turn() {
    let table = Table::new(1_000, false);
    let mut batch = Batch::default();
    for _ in 0..3 {
        request(&table, 1);
    }
    assert!(table.refill(&mut batch, &mut 0));
    batch.pass();
    for _ in 0..SUBMISSIONS_MAX {
        table.control(Nothing).unwrap();
    }
    let mut turn_bytes = 0;
    for _ in 0..2 {
        assert!(table.refill(&mut batch, &mut turn_bytes));
        assert!(batch.request().is_some());
        batch.pass();
    }
    for _ in 0..SUBMISSIONS_MAX {
        assert!(table.refill(&mut batch, &mut turn_bytes));
        let next = batch.take().map(|(submission, _)| submission);
        assert!(matches!(next, Some(Submission::Control(Nothing))));
    }
    request(&table, 1);
    assert!(!table.refill(&mut batch, &mut turn_bytes) && table.is_occupied());
}

#[test]
fn the_last_task_that_polled_is_woken() {
    let table = Table::new(1_000, false);
    let counts = [(); 2].map(|()| Arc::new(Count(AtomicUsize::new(0))));
    let [first, last] = counts.clone().map(Waker::from);
    let slot = request(&table, 1);
    for waker in [&first, &last, &last] {
        assert!(table.poll(slot, Some(waker)).is_none());
    }
    let mut completions = Completions::default();
    table.reply(&mut completions, Some(slot), 3, b"a");
    table.complete(&mut completions);
    completions.wake();
    let woken = counts.map(|count| count.0.load(Ordering::SeqCst));
    assert_eq!(woken, [0, 1]);
}

/// A short reply may be fetched before its block is complete, and another request may then have its slot.
#[test]
fn the_block_of_an_earlier_request_takes_no_waker_of_the_next_one() {
    let table = Table::new(1_000, false);
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let slot = request(&table, 1);
    let mut completions = Completions::default();
    table.reply(&mut completions, Some(slot), 3, b"first");
    assert_eq!(table.fetch(slot).unwrap().payload(), b"first");
    let next = loop {
        let next = request(&table, 1);
        if next == slot {
            break next;
        }
        table.reply(&mut completions, Some(next), 0, b"");
        assert!(table.fetch(next).is_some());
    };
    assert!(table.poll(next, Some(&waker)).is_none());
    table.complete(&mut completions);
    assert!(!completions.has_wakers());
    table.reply(&mut completions, Some(next), 3, b"next");
    table.complete(&mut completions);
    completions.wake();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert_eq!(table.poll(next, None).unwrap().unwrap().payload(), b"next");
}

#[test]
fn a_slot_is_free_when_both_sides_are_done_with_it() {
    let table = Table::new(1 << 20, false);
    let (one, other) = (request(&table, 1), request(&table, 1));
    table.abandon(one);
    assert!(table.is_abandoned(Some(one)) && !table.is_abandoned(Some(other)));
    let mut batch = Batch::default();
    let mut is_used_again = |slot| {
        let mut completions = Completions::default();
        let mut opened = (0..1_000).map(|_| {
            let id = request(&table, 1);
            table.refill(&mut batch, &mut 0);
            table.reply(&mut completions, Some(id), 0, b"a");
            table.complete(&mut completions);
            table.abandon(id);
            id
        });
        opened.any(|id| id == slot)
    };
    assert!(!is_used_again(one), "the lane has not completed it");
    let mut completions = Completions::default();
    table.reply(&mut completions, Some(one), 0, b"a");
    table.reply(&mut completions, Some(other), 0, b"a");
    table.complete(&mut completions);
    assert!(!completions.has_wakers());
    assert!(!table.is_abandoned(Some(one)));
    assert!(is_used_again(one));
    assert!(!is_used_again(other), "its reply is there");
    table.abandon(other);
    assert!(is_used_again(other));
}

#[test]
fn the_end_answers_all_callers() {
    let table = Table::new(1_000, false);
    let [replied, awaited, open, abandoned] = [(); 4].map(|()| request(&table, 1));
    let mut completions = Completions::default();
    table.reply(&mut completions, Some(replied), 3, b"a");
    table.complete(&mut completions);
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    assert!(table.poll(awaited, Some(&waker)).is_none());
    table.abandon(abandoned);
    assert_eq!(table.end(&RequestError::Shutdown), 0);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert_eq!(table.abandoned.load(Ordering::Relaxed), 0);
    let shared = table.shared.lock().unwrap();
    assert_eq!(shared.waits.outcomes(), 2, "nobody else wants one");
    drop(shared);
    let outcomes = [replied, awaited, open].map(|slot| table.poll(slot, None).unwrap());
    let reply = Ok(Reply::new(3, b"a".to_vec()));
    let ended = || Err(Box::new(RequestError::Shutdown));
    assert_eq!(outcomes, [reply, ended(), ended()]);
}

#[test]
fn completions_of_all_kinds_come_to_their_slots() {
    let table = Table::new(1 << 20, false);
    let mut completions = Completions::default();
    let slots = [(); 5].map(|()| request(&table, 1));
    let large = [7; 5_000];
    let mut reply = |slot, channel, payload: &[u8]| {
        table.reply(&mut completions, slot, channel, payload);
    };
    reply(Some(slots[0]), u16::MAX, b"one");
    reply(Some(slots[1]), 2, &large);
    reply(None, 3, b"nobody waits");
    reply(Some(slots[3]), 4, b"");
    reply(Some(slots[4]), 5, &large[..=SHORT_BYTES_MAX]);
    completions.fail(Some(slots[2]), RequestError::TimedOut);
    completions.fail(None, RequestError::TimedOut);
    table.complete(&mut completions);
    assert!(completions.is_empty() && !completions.has_wakers());
    let outcomes = slots.map(|slot| table.poll(slot, None).unwrap());
    let reply = |channel, payload: &[u8]| Ok(Reply::new(channel, payload.to_vec()));
    let expected = [
        reply(u16::MAX, b"one"),
        reply(2, &large),
        Err(Box::new(RequestError::TimedOut)),
        reply(4, b""),
        reply(5, &large[..=SHORT_BYTES_MAX]),
    ];
    assert_eq!(outcomes, expected);
}

#[test]
fn a_reply_that_does_not_fit_is_in_the_memory_of_one_before_it() {
    let table = Table::new(1 << 20, false);
    let mut completions = Completions::default();
    let memory = Vec::with_capacity(1_000);
    let address = memory.as_ptr();
    give_back(memory);
    let mut is_reused = Vec::new();
    for _ in 0..3 {
        let slot = request(&table, 1);
        table.reply(&mut completions, Some(slot), 3, &[7; 500]);
        assert_eq!(table.fetch(slot), None);
        table.complete(&mut completions);
        let reply = table.poll(slot, None).unwrap().unwrap();
        assert_eq!((reply.channel(), reply.payload()), (3, &[7; 500][..]));
        is_reused.push(reply.payload().as_ptr() == address);
    }
    assert_eq!(is_reused, [false, true, false]);
}

/// Regression: each slot kept a buffer for good, and there are as many slots as requests were ever open at once.
#[test]
fn memory_for_longer_replies_is_bounded_however_many_were_held() {
    const HELD: usize = 3 * PIECES_MAX;
    let table = Table::new(1 << 20, false);
    let mut completions = Completions::default();
    let slots: Vec<SlotId> = (0..HELD).map(|_| request(&table, 1)).collect();
    for slot in &slots {
        table.reply(&mut completions, Some(*slot), 3, &[7; 2_000]);
    }
    table.complete(&mut completions);
    for slot in slots {
        give_back(Vec::with_capacity(2_000));
        let reply = table.poll(slot, None).unwrap().unwrap();
        assert_eq!(reply.payload(), [7; 2_000]);
    }
    let shared = &mut *table.shared.lock().unwrap();
    let pieces = std::iter::from_fn(|| shared.memory.pop().or_else(|| completions.memory.pop()));
    assert_eq!(pieces.count(), PIECES_MAX);
}
