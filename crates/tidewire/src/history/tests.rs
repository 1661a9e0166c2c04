use std::time::Duration;

use tidewire_proto::body::{Recovery, Since};
use tidewire_proto::message::MemberId;

use super::named::NamedHistories;
use super::*;
use crate::broker::Position;

fn say(history: &MessageHistory, payload: &[u8]) -> u64 {
    say_at(history, payload, 0)
}

fn say_at(history: &MessageHistory, payload: &[u8], now_ns: u64) -> u64 {
    let mut records = history.lock();
    let message = Record::by(MemberId(1), "ada", payload);
    history.record(&mut records, &message, now_ns);
    records.last().offset
}

fn messages(history: &MessageHistory) -> Vec<Vec<u8>> {
    let (records, mut scratch) = (history.lock(), Vec::new());
    (records.first()..=records.last().offset)
        .filter_map(|offset| Some(records.get(offset, &mut scratch)?.payload.to_vec()))
        .collect()
}

fn plan(history: &MessageHistory, since: Option<Since>) -> (u64, Recovery) {
    history.plan(&mut history.lock(), since, 0)
}

#[test]
fn the_newest_messages_within_both_limits_are_kept() {
    let limits = History {
        messages_max: 3,
        bytes_max: 240,
        ..History::default()
    };
    let history = NamedHistories::default().open("lobby", limits, || None);
    for payload in [b"1", b"2", b"3", b"4"] {
        say(&history, payload);
    }
    assert_eq!(messages(&history), [b"2", b"3", b"4"]);
    say(&history, &[b'x'; 200]);
    assert_eq!(messages(&history), [b"4".to_vec(), vec![b'x'; 200]]);
    say(&history, b"5");
    assert_eq!(messages(&history), [vec![b'x'; 200], b"5".to_vec()]);
}

#[test]
fn messages_beyond_the_age_are_removed() {
    const SECOND_NS: u64 = 1_000_000_000;
    let limits = History {
        age_max: Some(Duration::from_secs(10)),
        ..History::default()
    };
    let history = NamedHistories::default().open("lobby", limits, || None);
    for (payload, seconds) in [(b"1", 0), (b"2", 5), (b"3", 12)] {
        say_at(&history, payload, seconds * SECOND_NS);
    }
    assert_eq!(messages(&history), [b"2", b"3"]);
    let (next, _) = history.plan(&mut history.lock(), None, 17 * SECOND_NS);
    assert_eq!(next, 3);
}

/// Regression: a message that was too large displaced every message of a former run, so the history began empty.
#[test]
fn a_message_of_a_former_run_that_is_too_large_leaves_the_others() {
    let limits = History {
        bytes_max: 400,
        ..History::default()
    };
    let history = NamedHistories::default().open("lobby", limits, || None);
    let past = [&b"1"[..], &[b'x'; 400], b"2"];
    let past = past.map(|payload| ("ada".to_owned(), payload.to_vec()));
    history.begin_with(&past, 0);
    assert_eq!(messages(&history), [b"1", b"2"]);
}

#[test]
fn a_message_stays_until_all_lanes_have_it() {
    let limits = History {
        messages_max: 1,
        bytes_max: 100,
        ..History::default()
    };
    let history = NamedHistories::default().open("lobby", limits, || None);
    let arrive = |lane, offset| {
        let mut records = history.lock();
        history.note_arrival(&mut records, lane, offset);
        history.evict(&mut records, 0);
    };
    arrive(0, 0);
    arrive(1, 0);
    for payload in [&b"1"[..], &[b'x'; 100], b"3"] {
        let offset = say(&history, payload);
        arrive(0, offset);
    }
    assert_eq!(messages(&history).len(), 3, "lane 1 has none of them");
    arrive(1, 1);
    assert_eq!(messages(&history), [&[b'x'; 100][..], b"3"]);
    arrive(1, 2);
    assert_eq!(messages(&history), [b"3"]);
    say(&history, b"4");
    assert_eq!(messages(&history).len(), 2);
    history.leave(1, 0);
    history.leave(0, 0);
    assert_eq!(messages(&history), [b"4"]);
}

#[test]
fn a_position_says_what_is_missing_before_what_follows() {
    let limits = History {
        messages_max: 4,
        bytes_max: 200,
        ..History::default()
    };
    let history = NamedHistories::default().open("lobby", limits, || None);
    for payload in [&b"1"[..], b"2", b"3", &[b'x'; 200], b"5", b"6"] {
        say(&history, payload);
    }
    let end = history.lock().last();
    let at = |offset| Some(Since::Position(Position { offset, ..end }));
    let expected = [
        (0, 3, Recovery::Missing(Some(2))),
        (1, 3, Recovery::Missing(Some(1))),
        (2, 3, Recovery::Recovered),
        // Message 4 is too large to keep, and its gap follows.
        (3, 4, Recovery::Recovered),
        (4, 5, Recovery::Recovered),
        (6, 7, Recovery::Recovered),
        // No message has this offset, so the position is of another history.
        (7, 3, Recovery::Missing(None)),
    ];
    for (offset, next, recovery) in expected {
        let expected = (next, recovery);
        assert_eq!(plan(&history, at(offset)), expected, "since {offset}");
    }
    let epoch = end.epoch + 1;
    let other = Since::Position(Position { epoch, offset: 5 });
    assert_eq!(plan(&history, Some(other)).1, Recovery::Missing(None));
    assert_eq!(plan(&history, Some(Since::Last(2))).0, 5);
    assert_eq!(plan(&history, Some(Since::Last(100))).0, 3);
    assert_eq!(plan(&history, None).1, Recovery::NotAsked);
}

#[test]
fn a_further_room_takes_the_place_of_the_empty_one_that_was_silent_for_longest() {
    let limits = History {
        names_max: 2,
        ..History::default()
    };
    let histories = NamedHistories::default();
    say(&histories.open("old", limits, || None), b"x");
    let young = histories.open("young", limits, || None);
    say(&young, b"x");
    let kept = |room| messages(&histories.open(room, limits, || None)).len();
    histories.open("old", limits, || None).touch();
    assert_eq!(kept("new"), 0);
    assert_eq!(kept("young"), 1, "it has members");
    let new = histories.open("new", limits, || None);
    let other = histories.open("other", limits, || None);
    say(&other, b"x");
    assert_eq!(
        messages(&other).len(),
        0,
        "its memory would exceed the limit"
    );
    assert_eq!(kept("other"), 0, "all have members: it is not kept");
    drop(new);
}

/// Regression: whoever subscribed to many topics, and published nothing, displaced the latest values of all others.
#[test]
fn a_history_without_a_message_gives_way_first() {
    let limits = History {
        names_max: 3,
        ..History::default()
    };
    let histories = NamedHistories::default();
    for topic in ["one", "two"] {
        let history = histories.open_within(topic, limits, || None).unwrap();
        say(&history, b"value");
        history.touch();
    }
    for topic in 0..100 {
        assert!(
            histories
                .open_within(&topic.to_string(), limits, || None)
                .is_some()
        );
    }
    for topic in ["one", "two"] {
        assert_eq!(
            messages(&histories.open(topic, limits, || None)),
            [b"value"]
        );
    }
}
