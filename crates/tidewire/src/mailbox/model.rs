//! The mailbox and its waker under a model checker, which tries every interleaving of its threads.

use std::os::fd::AsFd;
use std::time::Duration;

use tidewire_io::poller::{Events, Interest, PollerChoice, PollerKind, Token, open};

use super::*;

fn mailbox() -> Arc<Mailbox> {
    Mailbox::new(Arc::default()).unwrap()
}

/// Whether the lane's poller would return at once.
fn is_woken(mailbox: &Mailbox) -> bool {
    let mut poller = open(PollerChoice::Only(PollerKind::Poll)).unwrap();
    let mut events = Events::with_capacity(1);
    let descriptor = mailbox.waker.as_fd();
    poller.add(descriptor, Token(0), Interest::READ).unwrap();
    poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
    !events.is_empty()
}

fn tickets(taken: &mut MessageQueue) -> Vec<u64> {
    std::iter::from_fn(|| taken.pop())
        .map(|message| match message {
            LaneMessage::Placed { ticket } => ticket,
            other => panic!("posted by nobody: {other:?}"),
        })
        .collect()
}

/// Runs two threads that post while the lane takes all messages and falls asleep. Without `looks_again`, the lane
/// sleeps without a look after its announcement.
fn a_message_wakes_the_lane(looks_again: bool) {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(3);
    checker.check(move || {
        let mailbox = mailbox();
        let threads = [0, 1].map(|ticket| {
            let mailbox = Arc::clone(&mailbox);
            loom::thread::spawn(move || mailbox.post(LaneMessage::Placed { ticket }).is_ok())
        });
        let mut taken = MessageQueue::default();
        mailbox.take_all(&mut taken);
        mailbox.waker.before_sleep();
        let is_awake = looks_again && !mailbox.is_empty();
        for thread in threads {
            assert!(thread.join().unwrap());
        }
        let mut got = tickets(&mut taken);
        assert!(
            is_awake || got.len() == 2 || is_woken(&mailbox),
            "the lane sleeps on {} messages",
            2 - got.len()
        );
        mailbox.waker.after_sleep();
        assert!(!is_woken(&mailbox), "the lane spins");
        mailbox.take_all(&mut taken);
        got.extend(tickets(&mut taken));
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
    });
}

#[test]
fn no_interleaving_leaves_a_message_with_a_lane_that_sleeps() {
    a_message_wakes_the_lane(true);
}

#[test]
#[should_panic(expected = "the lane sleeps on")]
fn negative_control_a_lane_that_does_not_look_again_sleeps_on_a_message() {
    a_message_wakes_the_lane(false);
}

#[test]
fn a_message_that_races_with_the_end_of_a_lane_is_taken_by_it_or_given_back() {
    loom::model(|| {
        let mailbox = mailbox();
        let poster = loom::thread::spawn({
            let mailbox = Arc::clone(&mailbox);
            move || {
                let post = |ticket| mailbox.post(LaneMessage::Placed { ticket }).is_ok();
                [0, 1]
                    .map(post)
                    .into_iter()
                    .filter(|is_taken| *is_taken)
                    .count()
            }
        });
        let mut taken = MessageQueue::default();
        mailbox.take_all(&mut taken);
        mailbox.retire();
        mailbox.take_all(&mut taken);
        let posted = poster.join().unwrap();
        assert_eq!(tickets(&mut taken).len(), posted);
        assert!(mailbox.is_empty(), "nothing comes after the end");
    });
}
