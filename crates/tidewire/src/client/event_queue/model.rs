//! The queue under a model checker, which tries every interleaving of the lane and the application.

use std::sync::atomic::{AtomicUsize as Plain, Ordering::SeqCst};
use std::task::Wake;

use super::*;
use crate::client::Event;

#[derive(Default)]
struct Woken(Plain);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn queue(events_max: usize, when_full: WhenEventsFull) -> Arc<EventQueue<Event>> {
    let bounds = EventBounds {
        events_max,
        bytes_max: 1 << 20,
        when_full,
    };
    Arc::new(EventQueue::new(bounds, Arc::default()))
}

#[test]
fn a_task_that_finds_no_event_is_woken_by_the_next() {
    loom::model(|| {
        let queue = queue(8, WhenEventsFull::DropOldest);
        let lane = loom::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.push(Event::lost(1))
        });
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut waiter = Waiter::default();
        let found = queue.poll_next(&mut waiter, &mut Context::from_waker(&waker));
        lane.join().unwrap();
        assert!(found.is_ready() || woken.0.load(SeqCst) == 1);
        queue.forget(&mut waiter);
    });
}

#[test]
fn a_thread_that_waits_gets_the_event_and_the_end() {
    loom::model(|| {
        let queue = queue(8, WhenEventsFull::DropOldest);
        let lane = loom::thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                queue.push(Event::lost(1));
                queue.push(Event::ended());
            }
        });
        assert_eq!(queue.next(None), Some(Event::lost(1)));
        assert_eq!(queue.next(None), Some(Event::ended()));
        lane.join().unwrap();
    });
}

#[test]
fn reading_goes_on_when_the_application_has_taken_all() {
    loom::model(|| {
        let queue = queue(1, WhenEventsFull::PauseReading);
        let lane = loom::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.push(Event::lost(1))
        });
        assert_eq!(queue.next(None), Some(Event::lost(1)));
        lane.join().unwrap();
        assert!(!queue.reading.is_held());
    });
}
