//! Tests of rooms and subscriptions in every state, without a lane.

use std::time::Duration;

use tidewire_proto::body::SubscribeBody;
use tidewire_proto::room::Policy;

use super::*;
use crate::client::effect::HoldingKey;
use crate::client::event_queue::EventBounds;
use crate::client::table::RequestTable;
use crate::session::CloseReason;

fn no_holdings() -> Holdings {
    let table = RequestTable::new(1 << 20, false);
    Holdings::new(Arc::new(Link::new(table, EventBounds::default())))
}

fn new_queue() -> Arc<TopicQueue> {
    Arc::new(TopicQueue::new(EventBounds::default(), Arc::default()))
}

fn deliver(channel: u16) -> Message<'static> {
    Message::new(Kind::Deliver, channel, b"x")
}

fn add(
    holdings: &mut Holdings,
    kind: Kind,
    name: &str,
    body: Vec<u8>,
    queue: Option<Arc<TopicQueue>>,
) -> usize {
    holdings.entry_for(&Opening {
        kind,
        name: name.into(),
        body,
        queue,
        since: None,
        deadline_ns: u64::MAX,
        when_full: WhenWindowFull::Refuse,
        slot: SlotId::new(0),
    })
}

fn add_subscription(
    holdings: &mut Holdings,
    policy: Option<Policy>,
    queue: Arc<TopicQueue>,
) -> usize {
    let mut body = Vec::new();
    let pattern = "a.b";
    SubscribeBody {
        policy,
        pattern,
        group: None,
    }
    .encode(&mut body);
    add(holdings, Kind::Subscribe, pattern, body, Some(queue))
}

fn note_asked(holdings: &mut Holdings, key: usize) {
    holdings.entries[key].pending += 1;
}

/// The deadline of a request has passed: that of its caller, or the later one of a request that was given up.
fn time_out(holdings: &mut Holdings, key: usize, is_given_up: bool) {
    let key = HoldingKey::new(key);
    holdings.handle_timeout(&RequestHead {
        effect: Some(Effect::Holding { key }),
        is_given_up,
        ..RequestHead::due_at(0)
    });
}

fn unsubscribe(key: usize, channel: u16) -> Option<Step> {
    let kind = Kind::Unsubscribe;
    Some(Step { key, kind, channel })
}

fn agreed(holdings: &mut Holdings, alias: u16) -> (usize, Arc<TopicQueue>) {
    let queue = new_queue();
    let key = add_subscription(holdings, None, Arc::clone(&queue));
    note_asked(holdings, key);
    let told = holdings.handle_answer(key, Kind::Subscribe, Ok(alias), None);
    assert_eq!(told, Ok(alias));
    (key, queue)
}

#[test]
fn a_dropped_subscription_is_deaf_until_the_server_knows() {
    let mut holdings = no_holdings();
    let (key, queue) = agreed(&mut holdings, 5);
    holdings.give_up(&queue);
    let step = holdings.next_step();
    assert_eq!(step, unsubscribe(key, 5));
    note_asked(&mut holdings, key);
    assert!(
        holdings.handle_message(&deliver(5)),
        "the alias is still this entry's"
    );
    assert_eq!(queue.next(Some(Duration::ZERO)), None);
    holdings
        .handle_answer(key, Kind::Unsubscribe, Ok(5), None)
        .unwrap();
    assert!(!holdings.handle_message(&deliver(5)));
    assert!(holdings.entries.is_empty());
}

#[test]
fn one_dropped_before_the_server_agreed_is_given_up_then() {
    let mut holdings = no_holdings();
    let queue = new_queue();
    let key = add_subscription(&mut holdings, None, Arc::clone(&queue));
    note_asked(&mut holdings, key);
    holdings.give_up(&queue);
    assert!(holdings.next_step().is_none());
    holdings
        .handle_answer(key, Kind::Subscribe, Ok(5), None)
        .unwrap();
    let step = holdings.next_step();
    assert_eq!(step, unsubscribe(key, 5));
}

#[test]
fn a_new_connection_asks_again_and_a_refusal_ends_it() {
    let mut holdings = no_holdings();
    let (key, queue) = agreed(&mut holdings, 5);
    let reason = CloseReason::PeerReset;
    holdings.handle_close(&reason.into());
    assert!(!holdings.handle_message(&deliver(5)));
    holdings.handle_open();
    let again = Step {
        key,
        kind: Kind::Subscribe,
        channel: 0,
    };
    assert_eq!(holdings.next_step(), Some(again));
    note_asked(&mut holdings, key);
    let refusal = RequestError::TimedOut;
    let told = holdings.handle_answer(key, Kind::Subscribe, Err(refusal.clone()), None);
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
    assert!(holdings.entries.is_empty());
}

/// Regression: the server agreed after the client had stopped waiting, and the client never unsubscribed.
#[test]
fn one_that_the_server_agrees_to_too_late_is_unsubscribed_from() {
    let mut holdings = no_holdings();
    let queue = new_queue();
    let first = add_subscription(&mut holdings, None, queue);
    let (again, resumed) = agreed(&mut holdings, 5);
    holdings.handle_close(&CloseReason::PeerReset.into());
    let first_again = add_subscription(&mut holdings, None, new_queue());
    assert_ne!(
        first, again,
        "the first one ended with its connection, the second one did not"
    );
    for key in [again, first_again] {
        note_asked(&mut holdings, key);
        time_out(&mut holdings, key, false);
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
    assert!(holdings.next_step().is_none(), "both are asked for");
    for (key, alias) in [(again, 6), (first_again, 7)] {
        let answer = holdings.handle_answer(key, Kind::Subscribe, Ok(alias), None);
        assert_eq!(answer, Ok(alias));
        assert!(holdings.handle_message(&deliver(alias)), "it is nobody's");
        let step = holdings.next_step();
        assert_eq!(step, unsubscribe(key, alias));
        note_asked(&mut holdings, key);
        holdings
            .handle_answer(key, Kind::Unsubscribe, Ok(0), None)
            .unwrap();
    }
    assert!(holdings.entries.is_empty() && holdings.by_alias.is_empty());
}

/// Regression: the server refused the second subscription, because it had agreed to the first, which was given up.
#[test]
fn a_repeated_subscription_takes_over_the_accepted_one() {
    let refusal = || RequestError::Refused {
        code: ErrorCode::AlreadyJoined,
        number: 0,
        text: String::new(),
    };
    let mut holdings = no_holdings();
    let queue = new_queue();
    let [given_up, other, again] = [
        (None, new_queue()),
        (Some(Policy::DropOldest), new_queue()),
        (None, Arc::clone(&queue)),
    ]
    .map(|(policy, queue)| add_subscription(&mut holdings, policy, queue));
    for key in [given_up, other, again] {
        note_asked(&mut holdings, key);
    }
    time_out(&mut holdings, given_up, false);
    holdings
        .handle_answer(given_up, Kind::Subscribe, Ok(5), None)
        .unwrap();
    assert!(
        holdings.next_step().is_none(),
        "the entry is kept for its successor"
    );
    let told = holdings.handle_answer(other, Kind::Subscribe, Err(refusal()), None);
    assert_eq!(told, Err(refusal()), "it has another policy");
    let told = holdings.handle_answer(again, Kind::Subscribe, Err(refusal()), None);
    assert_eq!(told, Ok(5));
    assert!(holdings.handle_message(&deliver(5)));
    assert!(matches!(queue.next(None), Some(TopicEvent::Message(_))));
    holdings.give_up(&queue);
    let step = holdings.next_step();
    assert_eq!(step, unsubscribe(again, 5));
}

/// Over UDP the answer may be lost.
#[test]
fn a_subscription_without_an_answer_is_dropped_or_requested_again() {
    let mut holdings = no_holdings();
    let never_agreed = add_subscription(&mut holdings, None, new_queue());
    note_asked(&mut holdings, never_agreed);
    time_out(&mut holdings, never_agreed, false);
    assert!(holdings.next_step().is_none());
    time_out(&mut holdings, never_agreed, true);
    assert!(holdings.next_step().is_none());
    assert!(holdings.entries.is_empty());

    let (key, queue) = agreed(&mut holdings, 5);
    holdings.give_up(&queue);
    for _ in 0..3 {
        let step = holdings.next_step();
        assert_eq!(step, unsubscribe(key, 5));
        note_asked(&mut holdings, key);
        time_out(&mut holdings, key, false);
        assert!(holdings.next_step().is_none());
        time_out(&mut holdings, key, true);
    }
}

/// Over UDP the server's reply to the next subscription may come before its answer to the unsubscription.
#[test]
fn an_answer_to_an_unsubscription_leaves_the_next_subscription_its_channel() {
    let mut holdings = no_holdings();
    let (former, queue) = agreed(&mut holdings, 5);
    holdings.give_up(&queue);
    assert!(holdings.next_step().is_some());
    note_asked(&mut holdings, former);
    let (_, queue) = agreed(&mut holdings, 5);
    holdings
        .handle_answer(former, Kind::Unsubscribe, Ok(0), None)
        .unwrap();
    assert!(holdings.handle_message(&deliver(5)));
    assert!(matches!(queue.next(None), Some(TopicEvent::Message(_))));
}

/// Regression: a handler of the server ended a subscription whose unsubscription was under way. The next subscription
/// got the key of the entry, and the reply to the unsubscription ended it.
#[test]
fn a_late_reply_to_an_unsubscription_never_ends_another_subscription() {
    let mut holdings = no_holdings();
    let (former, queue) = agreed(&mut holdings, 5);
    holdings.give_up(&queue);
    assert_eq!(holdings.next_step(), unsubscribe(former, 5));
    note_asked(&mut holdings, former);
    assert!(holdings.handle_left(5));
    let (next, queue) = agreed(&mut holdings, 6);
    assert_ne!(next, former);
    holdings
        .handle_answer(former, Kind::Unsubscribe, Ok(5), None)
        .unwrap();
    assert_eq!(holdings.entries.len(), 1);
    assert!(holdings.handle_message(&deliver(6)));
    assert!(matches!(queue.next(None), Some(TopicEvent::Message(_))));
}

/// Regression: the sum of an offset and of the number of messages in a gap overflowed.
#[test]
fn a_gap_of_any_length_is_told() {
    let mut holdings = no_holdings();
    let queue = new_queue();
    let key = add_subscription(&mut holdings, None, Arc::clone(&queue));
    holdings
        .handle_answer(key, Kind::Subscribe, Ok(5), reply(7))
        .unwrap();
    let mut body = Vec::new();
    GapBody { lost: u64::MAX }.encode(&mut body);
    assert!(holdings.handle_message(&Message::new(Kind::Gap, 5, &body)));
    assert_eq!(queue.next(None), Some(TopicEvent::Gap { lost: u64::MAX }));
}

/// Requests to join a room. Returns the key of the room, and the offset that the request continues from.
fn join(holdings: &mut Holdings, room: &str) -> (usize, Option<u64>) {
    let key = add(holdings, Kind::Join, room, Vec::new(), None);
    note_asked(holdings, key);
    let offset = holdings.entries[key].since().map(|since| match since {
        Since::Position(position) => position.offset,
        Since::Last(_) => panic!("a join continues from a position"),
    });
    (key, offset)
}

fn joined(holdings: &mut Holdings, key: usize, alias: u16, recovery: Option<RecoveryBody>) {
    let told = holdings.handle_answer(key, Kind::Join, Ok(alias), recovery);
    assert_eq!(told, Ok(alias));
}

fn refuse(holdings: &mut Holdings, key: usize) {
    let refusal = Err(RequestError::NotConnected);
    let told = holdings.handle_answer(key, Kind::Join, refusal.clone(), None);
    assert_eq!(told, refusal);
}

fn reply(offset: u64) -> Option<RecoveryBody> {
    Some(RecoveryBody {
        position: Position { epoch: 7, offset },
        recovery: Recovery::NotAsked,
    })
}

/// Regression: a refused join freed its key while another join of the same room had no reply. The next room got the
/// key, and its position from that reply.
#[test]
fn a_late_reply_to_a_join_never_moves_another_room() {
    let mut holdings = no_holdings();
    let (first, _) = join(&mut holdings, "a");
    let (second, _) = join(&mut holdings, "a");
    refuse(&mut holdings, first);
    let (other, _) = join(&mut holdings, "b");
    assert_ne!(second, other);
    joined(&mut holdings, second, 5, reply(10));
    joined(&mut holdings, other, 6, reply(20));
    holdings.handle_close(&CloseReason::PeerReset.into());
    for (name, offset) in [("a", 10), ("b", 20)] {
        assert_eq!(join(&mut holdings, name).1, Some(offset), "{name}");
    }
}

/// Regression: a room that the client had left was kept for ever, and a later join continued from its position. A room
/// whose join was never answered was kept until the connection ended.
#[test]
fn rooms_that_were_left_or_refused_are_forgotten() {
    let mut holdings = no_holdings();
    for alias in 1..=1_000 {
        let (key, offset) = join(&mut holdings, &format!("room{alias}"));
        assert_eq!(offset, None);
        match alias % 4 {
            0 => refuse(&mut holdings, key),
            1 => joined(&mut holdings, key, alias, None),
            2 => joined(&mut holdings, key, alias, reply(1)),
            _ => [false, true]
                .into_iter()
                .for_each(|is_given_up| time_out(&mut holdings, key, is_given_up)),
        }
        holdings.handle_left(alias);
    }
    assert!(holdings.entries.is_empty() && holdings.by_alias.is_empty());
    let (key, _) = join(&mut holdings, "room2");
    joined(&mut holdings, key, 2, reply(1));
    holdings.handle_left(2);
    holdings.handle_close(&CloseReason::PeerReset.into());
    assert_eq!(join(&mut holdings, "room2").1, None);
}

/// A room is joined again by the application. A subscription is requested again by the client.
#[test]
fn a_new_connection_continues_both_and_joins_no_room_by_itself() {
    let mut holdings = no_holdings();
    let (room, _) = join(&mut holdings, "a");
    joined(&mut holdings, room, 5, reply(10));
    let (subscription, _) = agreed(&mut holdings, 6);
    assert_eq!(
        join(&mut holdings, "a").1,
        None,
        "within a connection nothing is missing"
    );
    refuse(&mut holdings, room);
    holdings.handle_close(&CloseReason::PeerReset.into());
    holdings.handle_open();
    let again = Step {
        key: subscription,
        kind: Kind::Subscribe,
        channel: 0,
    };
    assert_eq!(holdings.next_step(), Some(again));
    assert_eq!(holdings.next_step(), None);
    assert_eq!(join(&mut holdings, "a").1, Some(10));
}
