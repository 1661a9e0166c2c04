use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::client::{Event, NextEvent, OwnedMessage, TopicEvent, TopicMessage};
use crate::{Kind, Message};

const EVERY_POLICY: [WhenEventsFull; 4] = [
    WhenEventsFull::DropOldest,
    WhenEventsFull::DropNewest,
    WhenEventsFull::ConflateByTopic,
    WhenEventsFull::PauseReading,
];

fn queue(bounds: EventBounds) -> EventQueue<Event> {
    EventQueue::new(bounds, Arc::default())
}

fn bounded(events_max: usize, bytes_max: usize, when_full: WhenEventsFull) -> EventQueue<Event> {
    queue(EventBounds {
        events_max,
        bytes_max,
        when_full,
    })
}

fn message(number: u32, payload_bytes: usize) -> Event {
    let payload = vec![7; payload_bytes];
    Event::Message(OwnedMessage::from(Message::with_id(
        Kind::OneWay,
        0,
        number,
        &payload,
    )))
}

/// Takes all events. A message becomes its number, and a loss becomes the negative count of missing events.
fn taken(queue: &EventQueue<Event>) -> Vec<i64> {
    let next = || queue.next(Some(Duration::ZERO));
    std::iter::from_fn(next)
        .map(|event| match event {
            Event::Message(message) => i64::from(message.id),
            Event::Lost { count } => -(count as i64),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn drops_are_reported_at_their_place() {
    for (when_full, expected) in [
        (WhenEventsFull::DropOldest, vec![-3, 4, 5, 6]),
        (WhenEventsFull::DropNewest, vec![1, 2, 3, -3]),
        // A queue that pauses reading holds as much again.
        (WhenEventsFull::PauseReading, vec![1, 2, 3, 4, 5, 6]),
    ] {
        let queue = bounded(3, usize::MAX, when_full);
        (1..=6).for_each(|number| queue.push(message(number, 0)));
        assert_eq!(taken(&queue), expected, "{when_full:?}");
        let dropped = 3 * u64::from(when_full != WhenEventsFull::PauseReading);
        assert_eq!(queue.reading.dropped(), dropped);
    }
    let queue = bounded(3, usize::MAX, WhenEventsFull::DropNewest);
    (1..=4).for_each(|number| queue.push(message(number, 0)));
    for number in 1..=2 {
        assert_eq!(queue.next(None), Some(message(number, 0)));
    }
    queue.push(message(5, 0));
    assert_eq!(taken(&queue), [3, -1, 5]);
}

/// Regression: only the number of events was bounded, and 65,536 events of 12 KB took 820 MB.
#[test]
fn untaken_events_are_bounded_in_bytes() {
    const BYTES_MAX: usize = 100_000;
    const EVENTS: u32 = 1_000;
    for when_full in EVERY_POLICY {
        let bytes_max = match when_full {
            WhenEventsFull::PauseReading => BYTES_MAX / 2 - 5_000,
            _ => BYTES_MAX,
        };
        let queue = bounded(EVENTS_MAX, bytes_max, when_full);
        let mut most = 0;
        for number in 1..=EVENTS {
            queue.push(message(number, 4_000 + number as usize));
            most = most.max(queue.lock().bytes);
        }
        assert!(most <= BYTES_MAX, "{when_full:?}: {most} bytes");
        assert!(most > BYTES_MAX / 2, "{when_full:?}: {most} bytes");
        let (mut delivered, mut lost) = (0, 0);
        for found in taken(&queue) {
            match found {
                1.. => delivered += 1,
                missing => lost -= missing,
            }
        }
        assert_eq!(delivered + lost, i64::from(EVENTS), "{when_full:?}");
        assert_eq!(lost as u64, queue.reading.dropped());
        assert_eq!(queue.lock().bytes, 0);
    }
}

#[test]
fn an_empty_queue_takes_an_event_of_any_size() {
    for when_full in EVERY_POLICY {
        let queue = bounded(1, 1, when_full);
        queue.push(message(1, 10_000));
        assert_eq!(taken(&queue), [1], "{when_full:?}");
    }
}

/// Regression: dropping an event that reports missing events lost its count.
#[test]
fn the_count_of_a_dropped_loss_event_is_kept() {
    let queue = bounded(2, usize::MAX, WhenEventsFull::DropOldest);
    queue.push(Event::Lost { count: 10 });
    (1..=3).for_each(|number| queue.push(message(number, 0)));
    assert_eq!(
        queue.reading.dropped(),
        1,
        "only message 1: this queue did not drop the other ten"
    );
    assert_eq!(taken(&queue), [-11, 2, 3]);
}

#[test]
fn a_full_queue_holds_reading_until_half_of_it_was_taken() {
    let queue = bounded(4, usize::MAX, WhenEventsFull::PauseReading);
    let is_held = || queue.reading.is_held();
    for number in 1..=4 {
        assert!(!is_held());
        queue.push(message(number, 0));
    }
    assert!(is_held());
    for expected in [true, true, false] {
        assert!(queue.next(None).is_some());
        assert_eq!(is_held(), expected);
    }
    // A queue that is discarded or dropped no longer holds reading.
    for discards in [true, false] {
        let reading = Arc::clone(&queue.reading);
        let other = EventQueue::new(queue.bounds, Arc::clone(&reading));
        (1..=4).for_each(|number| other.push(message(number, 0)));
        assert!(reading.is_held());
        if discards {
            other.discard();
            assert!(!reading.is_held());
        }
        drop(other);
        assert!(!reading.is_held());
    }
}

#[test]
fn the_end_is_returned_to_all_callers() {
    let queue = queue(EventBounds::default());
    queue.push(Event::Ended);
    assert_eq!(queue.next(None), Some(Event::Ended));
    assert_eq!(queue.next(None), Some(Event::Ended));
}

/// Regression: up to 65,536 events stayed in a discarded queue as long as it had a reference.
#[test]
fn no_request_is_held_without_a_taker() {
    let queue = queue(EventBounds::default());
    for _ in 0..=EVENTS_MAX {
        queue.push(Event::Lost { count: 1 });
    }
    queue.discard();
    assert_eq!(queue.lock().events.capacity(), 0);
    queue.push(Event::Lost { count: 2 });
    assert_eq!(queue.lock().events.capacity(), 0);
    assert_eq!(queue.next(None), Some(Event::Ended));
}

/// Regression: only one waiting thread got the end, and the others waited for ever.
#[test]
fn the_end_is_told_to_every_thread_that_waits() {
    const THREADS: usize = 3;
    let queue = Arc::new(queue(EventBounds::default()));
    let (told, received) = std::sync::mpsc::channel();
    for _ in 0..THREADS {
        let (queue, told) = (Arc::clone(&queue), told.clone());
        std::thread::spawn(move || told.send(queue.next(None)));
    }
    while queue.lock().waiting.len() < THREADS {
        std::thread::yield_now();
    }
    queue.push(Event::Ended);
    for _ in 0..THREADS {
        let event = received.recv_timeout(Duration::from_secs(60));
        assert_eq!(event, Ok(Some(Event::Ended)), "one was not woken");
    }
}

/// Regression: the last task to poll replaced the wakers of the others, which were never woken.
#[test]
fn every_task_that_waits_is_woken() {
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    let queue = queue(EventBounds::default());
    let counts = [(); 3].map(|()| Arc::new(Count(AtomicUsize::new(0))));
    let mut tasks = counts.clone().map(|count| {
        let waker = Waker::from(count);
        (waker, Box::pin(NextEvent::new(&queue)))
    });
    for (waker, task) in &mut tasks {
        // Dropping a future removes its waker.
        let mut dropped = Box::pin(NextEvent::new(&queue));
        let polled = dropped.as_mut().poll(&mut Context::from_waker(waker));
        assert_eq!(polled, Poll::Pending);
        drop(dropped);
        for _ in 0..2 {
            let polled = task.as_mut().poll(&mut Context::from_waker(waker));
            assert_eq!(polled, Poll::Pending);
        }
    }
    assert_eq!(queue.lock().waiting.len(), tasks.len());
    queue.push(Event::Ended);
    for (count, (waker, task)) in counts.iter().zip(&mut tasks) {
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "once each");
        let polled = task.as_mut().poll(&mut Context::from_waker(waker));
        assert_eq!(polled, Poll::Ready(Event::Ended));
    }
}

#[test]
fn the_end_is_no_lost_event() {
    for when_full in EVERY_POLICY {
        let queue = bounded(1, usize::MAX, when_full);
        queue.push(message(1, 0));
        queue.push(Event::Ended);
        queue.push(message(2, 0));
        assert_eq!(queue.next(None), Some(message(1, 0)));
        assert_eq!(queue.next(None), Some(Event::Ended));
    }
}

/// For random events and bounds, each message is delivered or reported as lost exactly once, and the values of a topic
/// never go back.
#[test]
fn conflation_reports_every_loss() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let (events_max, bytes_max) = (random.usize(1..20), random.usize(200..5_000));
        let bounds = EventBounds {
            events_max,
            bytes_max,
            when_full: WhenEventsFull::ConflateByTopic,
        };
        let queue: EventQueue<TopicEvent> = EventQueue::new(bounds, Arc::default());
        let (mut pushed, mut told) = (0, 0);
        let mut latest = [0_u64; 8];
        let mut take = |told: &mut u64| match queue.next(Some(Duration::ZERO)) {
            Some(TopicEvent::Message(message)) => {
                *told += 1;
                let topic: usize = message.topic.parse().unwrap();
                let (number, _) = message.payload.split_first_chunk().unwrap();
                let number = u64::from_le_bytes(*number);
                assert!(number > latest[topic], "it goes back");
                latest[topic] = number;
                true
            }
            Some(TopicEvent::Gap { lost } | TopicEvent::Lost { count: lost }) => {
                *told += lost;
                true
            }
            Some(TopicEvent::Resumed) => {
                *told += 1;
                true
            }
            Some(other) => panic!("{other:?}"),
            None => false,
        };
        for number in 1..=500_u64 {
            match random.u8(..20) {
                0 => {
                    let lost = random.u64(1..5);
                    queue.push(TopicEvent::Gap { lost });
                    pushed += lost;
                }
                1 => {
                    queue.push(TopicEvent::Resumed);
                    pushed += 1;
                }
                _ => {
                    let topic = random.u8(..8).to_string().into();
                    let mut payload = number.to_le_bytes().to_vec();
                    payload.resize(8 + random.usize(..300), 0);
                    queue.push(TopicEvent::Message(TopicMessage {
                        topic,
                        payload,
                        position: None,
                    }));
                    pushed += 1;
                }
            }
            assert!(queue.lock().events.len() <= events_max);
            if random.u8(..4) == 0 {
                take(&mut told);
            }
        }
        while take(&mut told) {}
        assert_eq!(told, pushed, "delivered + told as lost");
        assert_eq!(queue.lock().bytes, 0);
    }
}

/// Regression: a value from after a reconnect replaced a value from before it.
#[test]
fn nothing_is_conflated_across_the_end_of_a_connection() {
    let bounds = EventBounds {
        events_max: 3,
        when_full: WhenEventsFull::ConflateByTopic,
        ..EventBounds::default()
    };
    let queue = EventQueue::new(bounds, Arc::default());
    let message = |payload: u8| {
        let (topic, payload) = ("a".into(), vec![payload]);
        TopicEvent::Message(TopicMessage {
            topic,
            payload,
            position: None,
        })
    };
    for number in 1..=4 {
        queue.push(message(number));
    }
    queue.push(TopicEvent::Resumed);
    for number in 5..=6 {
        queue.push(message(number));
    }
    let lost = TopicEvent::Lost { count: 4 };
    for expected in [lost, message(4), TopicEvent::Resumed, message(6)] {
        assert_eq!(queue.next(Some(Duration::ZERO)), Some(expected));
    }
}
