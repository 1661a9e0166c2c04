//! Tests of subscriptions in every state, without a lane.

use super::*;
use crate::client::event_queue::EventBounds;
use crate::session::CloseReason;

fn new_queue() -> Arc<TopicQueue> {
    Arc::new(TopicQueue::new(EventBounds::default(), Arc::default()))
}

fn deliver(channel: u16) -> Message<'static> {
    Message::new(Kind::Deliver, channel, b"x")
}

fn agreed(listening: &mut Listening, alias: u16) -> (usize, Arc<TopicQueue>) {
    let queue = new_queue();
    let key = listening.add("a.b".into(), None, Arc::clone(&queue));
    listening.note_asked(key);
    listening
        .handle_answer(key, Kind::Subscribe, Ok(alias))
        .unwrap();
    (key, queue)
}

#[test]
fn a_dropped_subscription_is_deaf_until_the_server_knows() {
    let mut listening = Listening::default();
    let (key, queue) = agreed(&mut listening, 5);
    listening.give_up(&queue);
    let step = listening.next_step();
    assert!(matches!(step, Some((k, Step::Unsubscribe { alias: 5 })) if k == key));
    listening.note_asked(key);
    assert!(
        listening.handle_message(&deliver(5)),
        "the alias is still this entry's"
    );
    assert_eq!(queue.next(Some(Duration::ZERO)), None);
    listening
        .handle_answer(key, Kind::Unsubscribe, Ok(5))
        .unwrap();
    assert!(!listening.handle_message(&deliver(5)));
    assert!(listening.entries.is_empty());
}

#[test]
fn one_dropped_before_the_server_agreed_is_given_up_then() {
    let mut listening = Listening::default();
    let queue = new_queue();
    let key = listening.add("a.b".into(), None, Arc::clone(&queue));
    listening.note_asked(key);
    listening.give_up(&queue);
    assert!(listening.next_step().is_none());
    listening
        .handle_answer(key, Kind::Subscribe, Ok(5))
        .unwrap();
    let step = listening.next_step();
    assert!(matches!(step, Some((_, Step::Unsubscribe { alias: 5 }))));
}

#[test]
fn a_new_connection_asks_again_and_a_refusal_ends_it() {
    let mut listening = Listening::default();
    let (key, queue) = agreed(&mut listening, 5);
    let reason = CloseReason::PeerReset;
    listening.handle_close(&reason.into());
    assert!(!listening.handle_message(&deliver(5)));
    listening.handle_open();
    assert!(matches!(
        listening.next_step(),
        Some((_, Step::Subscribe { .. }))
    ));
    listening.note_asked(key);
    let refusal = RequestError::TimedOut;
    let told = listening.handle_answer(key, Kind::Subscribe, Err(refusal.clone()));
    assert_eq!(told, Err(refusal.clone()));
    for expected in [
        TopicEvent::Interrupted {
            reason,
            text: "".into(),
        },
        TopicEvent::Refused(refusal),
        TopicEvent::Ended,
        TopicEvent::Ended,
    ] {
        assert_eq!(queue.next(None), Some(expected));
    }
    assert!(listening.entries.is_empty());
}

/// Regression: the server agreed after the client had stopped waiting, and the client never unsubscribed.
#[test]
fn one_that_the_server_agrees_to_too_late_is_unsubscribed_from() {
    let mut listening = Listening::default();
    let queue = new_queue();
    let first = listening.add("a.b".into(), None, queue);
    let (again, resumed) = agreed(&mut listening, 5);
    listening.handle_close(&CloseReason::PeerReset.into());
    let first_again = listening.add("a.b".into(), None, new_queue());
    assert_ne!(
        first, again,
        "the first one ended with its connection, the second one did not"
    );
    for key in [again, first_again] {
        listening.note_asked(key);
        listening.handle_timeout(key);
    }
    let events = [
        TopicEvent::Interrupted {
            reason: CloseReason::PeerReset,
            text: "".into(),
        },
        TopicEvent::Refused(RequestError::TimedOut),
        TopicEvent::Ended,
    ];
    for expected in events {
        assert_eq!(resumed.next(None), Some(expected));
    }
    assert!(listening.next_step().is_none(), "both are asked for");
    for (key, alias) in [(again, 6), (first_again, 7)] {
        let answer = listening.handle_answer(key, Kind::Subscribe, Ok(alias));
        assert_eq!(answer, Ok(alias));
        assert!(listening.handle_message(&deliver(alias)), "it is nobody's");
        let step = listening.next_step();
        assert!(
            matches!(step, Some((k, Step::Unsubscribe { alias: a })) if (k, a) == (key, alias))
        );
        listening.note_asked(key);
        listening
            .handle_answer(key, Kind::Unsubscribe, Ok(0))
            .unwrap();
    }
    assert!(listening.entries.is_empty() && listening.by_alias.is_empty());
}

/// Regression: the server refused the second subscription, because it had agreed to the first, which was given up.
#[test]
fn a_repeated_subscription_takes_over_the_accepted_one() {
    let refusal = || RequestError::Refused {
        code: ErrorCode::AlreadyJoined,
        number: 0,
        text: String::new(),
    };
    let mut listening = Listening::default();
    let queue = new_queue();
    let [given_up, other, again] = [
        (None, new_queue()),
        (Some(Policy::DropOldest), new_queue()),
        (None, Arc::clone(&queue)),
    ]
    .map(|(policy, queue)| listening.add("a.b".into(), policy, queue));
    for key in [given_up, other, again] {
        listening.note_asked(key);
    }
    listening.handle_timeout(given_up);
    listening
        .handle_answer(given_up, Kind::Subscribe, Ok(5))
        .unwrap();
    assert!(
        listening.next_step().is_none(),
        "the entry is kept for its successor"
    );
    let told = listening.handle_answer(other, Kind::Subscribe, Err(refusal()));
    assert_eq!(told, Err(refusal()), "it has another policy");
    let told = listening.handle_answer(again, Kind::Subscribe, Err(refusal()));
    assert_eq!(told, Ok(5));
    assert!(listening.handle_message(&deliver(5)));
    assert!(matches!(queue.next(None), Some(TopicEvent::Message(_))));
    listening.give_up(&queue);
    let step = listening.next_step();
    assert!(matches!(step, Some((k, Step::Unsubscribe { alias: 5 })) if k == again));
}

/// Over UDP the answer may be lost.
#[test]
fn a_subscription_without_an_answer_is_dropped_or_requested_again() {
    let mut listening = Listening::default();
    let never_agreed = listening.add("a.b".into(), None, new_queue());
    listening.note_asked(never_agreed);
    listening.handle_timeout(never_agreed);
    assert!(listening.next_step().is_none());
    listening.handle_no_answer(never_agreed);
    assert!(listening.next_step().is_none());
    assert!(listening.entries.is_empty());

    let (key, queue) = agreed(&mut listening, 5);
    listening.give_up(&queue);
    for _ in 0..3 {
        let step = listening.next_step();
        assert!(matches!(step, Some((k, Step::Unsubscribe { alias: 5 })) if k == key));
        listening.note_asked(key);
        listening.handle_timeout(key);
        assert!(listening.next_step().is_none());
        listening.handle_no_answer(key);
    }
}

/// Over UDP the server's reply to the next subscription may come before its answer to the unsubscription.
#[test]
fn an_answer_to_an_unsubscription_leaves_the_next_subscription_its_channel() {
    let mut listening = Listening::default();
    let (former, queue) = agreed(&mut listening, 5);
    listening.give_up(&queue);
    assert!(listening.next_step().is_some());
    listening.note_asked(former);
    let (_, queue) = agreed(&mut listening, 5);
    listening
        .handle_answer(former, Kind::Unsubscribe, Ok(0))
        .unwrap();
    assert!(listening.handle_message(&deliver(5)));
    assert!(matches!(queue.next(None), Some(TopicEvent::Message(_))));
}
