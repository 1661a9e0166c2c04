//! Tests of submissions, from the threads to the lane.

use super::tests::{Batch, Table, message, request};
use super::*;
use crate::client::submissions::{Nothing, SUBMISSIONS_MAX};

#[test]
fn the_lane_takes_what_came_and_hears_of_what_comes_then() {
    let table = Table::new(1_000, false);
    assert!(!table.news.has_news());
    request(&table, 1);
    assert!(table.news.has_news());
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
    assert!(batch.is_empty() && !table.news.is_occupied());
    // A lane that has seen submissions it cannot take is woken for new ones.
    request(&table, 5);
    assert_eq!(table.expire(0, &mut Completions::default()), Some(5));
    assert!(table.news.is_occupied() && !table.news.has_news());
    table.control(Nothing).unwrap();
    assert!(table.news.has_news());
}

/// Requests wait for the end of a nap, unless a thread waits for a reply or something urgent comes.
#[test]
fn a_lane_that_naps_is_not_woken_for_each_request() {
    let (table, mut batch) = (Table::new(1_000, false), Batch::default());
    let requests_then = |and_then: &dyn Fn(SlotId)| {
        table.nap(true);
        let slot = request(&table, 1);
        assert!(table.news.is_occupied() && !table.news.wants_turn());
        assert_eq!(table.poll(slot, None), None);
        assert!(!table.news.wants_turn(), "the thread does not wait");
        and_then(slot);
        assert!(table.news.wants_turn());
    };
    requests_then(&|slot| assert_eq!(table.poll(slot, Some(Waker::noop())), None));
    assert!(table.refill(&mut batch, &mut 0));
    batch.pass();
    requests_then(&|_| message(&table, b"urgent").unwrap());
    assert!(table.refill(&mut batch, &mut 0));
    while batch.take().is_some() {}
    requests_then(&|slot| table.abandon(slot));
    assert!(table.refill(&mut batch, &mut 0));
    while batch.take().is_some() {}
    requests_then(&|_| table.nap(false));
    assert!(table.refill(&mut batch, &mut 0));
    batch.pass();
    requests_then(&|_| {
        for _ in 1..128 {
            request(&table, 1);
        }
    });
    assert!(table.refill(&mut batch, &mut 0));
    while batch.request().is_some() {
        batch.pass();
    }
    // A turn that has taken enough leaves the rest for the next one, which comes at once.
    requests_then(&|_| assert!(!table.refill(&mut Batch::default(), &mut usize::MAX.clone())));
}

#[test]
fn it_is_bounded_and_refuses_after_its_end() {
    let table = Table::new(1 << 20, false);
    for _ in 0..SUBMISSIONS_MAX {
        request(&table, 1);
    }
    let refused = table.submit(RequestHead::due_at(1), "", b"");
    assert_eq!(refused, Err(EnqueueError::QueueFull));
    assert_eq!(message(&table, b"x"), Err(EnqueueError::QueueFull));
    let refused = table.submit_control(|_| Nothing);
    assert_eq!(refused, Err(EnqueueError::QueueFull));
    // A control is never refused for lack of room.
    table.control(Nothing).unwrap();
    assert_eq!(table.end(&RequestError::Shutdown), 0);
    assert_eq!(table.control(Nothing), Err(EnqueueError::Ended));

    let table = Table::new(1_000, false);
    message(&table, &[0; 1_000]).unwrap();
    assert_eq!(message(&table, b"x"), Err(EnqueueError::QueueFull));
    assert_eq!(table.end(&RequestError::Shutdown), 1, "it is lost");
    assert_eq!(message(&table, b"x"), Err(EnqueueError::Ended));
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
    assert_eq!(ask(b""), Err(EnqueueError::QueueFull));
    // Requests that expire behind a full output still use memory, until the lane takes the list.
    let mut completions = Completions::default();
    assert_eq!(table.expire(1, &mut completions), None);
    assert!(!completions.is_empty());
    assert_eq!(ask(b""), Err(EnqueueError::QueueFull));
    table.refill(&mut Batch::default(), &mut 0);
    ask(&[0; 1_000]).unwrap();
    assert_eq!(ask(b""), Err(EnqueueError::QueueFull));
    message(&table, b"x").unwrap();
}

#[test]
fn a_message_that_cannot_be_encoded_is_no_news() {
    let table = Table::new(1_000, false);
    let error = EncodeError::PayloadTooLarge { bytes: 9, limit: 8 };
    let refused = table.send(|_| Err(error));
    assert_eq!(refused, Err(EnqueueError::Encode(error)));
    assert!(!table.news.is_occupied());
}

/// Regression: a turn took submissions as long as there were any. A sender that never paused kept the lane from its socket
/// and its deadlines, and kept refused requests from their errors.
#[test]
fn a_sender_that_never_pauses_ends_no_turn_late() {
    const REQUESTS: usize = 10_000;
    // The number of small requests ends a turn, and the bytes of large ones.
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
        while table.news.is_occupied() {
            let (mut turn_bytes, mut in_turn) = (0, 0);
            while table.refill(&mut batch, &mut turn_bytes) {
                assert!(batch.request().is_some());
                batch.pass();
                in_turn += 1;
                // A new request comes for each, before the lane looks again.
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

/// Submissions that were taken before and could not be processed come first. A list is processed to its end, however long it
/// is.
#[test]
fn a_turn_begins_with_what_the_last_one_left() {
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
    assert!(!table.refill(&mut batch, &mut turn_bytes) && table.news.is_occupied());
}
