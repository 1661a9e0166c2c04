//! Every way of matching keeps the guarantee: an answer finds its request or nothing.

use std::collections::{HashMap, VecDeque};

use super::*;

const WAYS: [RequestIds; 3] = [RequestIds::Bits32, RequestIds::Bits8, RequestIds::None];

#[test]
fn replies_find_their_requests_in_any_order_and_only_once() {
    for ids in [RequestIds::Bits32, RequestIds::Bits8] {
        let mut correlator = Correlator::for_ids(ids, 100);
        let ids: Vec<u32> = (0..100)
            .map(|value| correlator.insert(value).unwrap())
            .collect();
        assert!(correlator.insert(100).is_err());
        for (value, id) in ids.iter().enumerate().rev() {
            assert_eq!(correlator.answer(*id), Some(value));
            assert_eq!(correlator.answer(*id), None);
        }
        assert!(correlator.is_empty());
    }
}

#[test]
fn without_ids_the_first_reply_belongs_to_the_first_request() {
    let mut correlator = Correlator::for_ids(RequestIds::None, 10);
    for value in ["first", "second", "third"] {
        assert!(correlator.insert(value).is_ok());
    }
    assert_eq!(correlator.answer(0), Some("first"));
    // The id of the answer does not matter.
    assert_eq!(correlator.answer(3), Some("second"));
    assert_eq!(correlator.answer(0), Some("third"));
    assert_eq!(correlator.answer(0), None);
}

#[test]
fn a_late_reply_does_not_match_the_next_request_in_the_same_slot() {
    let mut correlator = Correlator::new(10);
    let first = correlator.insert("first").unwrap();
    assert_eq!(correlator.give_up(first), Some("first"));
    let second = correlator.insert("second").unwrap();
    assert_ne!(first, second);
    assert_eq!(correlator.answer(first), None);
    assert_eq!(correlator.answer(0), None);
    assert_eq!(correlator.answer(second), Some("second"));
}

#[test]
fn without_ids_a_late_reply_does_not_shift_the_others() {
    let mut correlator = Correlator::for_ids(RequestIds::None, 10);
    let slow = correlator.insert("slow").unwrap();
    correlator.insert("quick").unwrap();
    assert_eq!(correlator.give_up(slow), Some("slow"));
    assert_eq!(correlator.give_up(slow), None);
    assert_eq!((correlator.len(), correlator.pending_replies()), (1, 2));
    assert_eq!(correlator.answer(0), None);
    assert_eq!(correlator.answer(0), Some("quick"));
    assert_eq!(correlator.pending_replies(), 0);
}

#[test]
fn without_ids_a_request_that_was_not_sent_has_no_pending_reply() {
    let mut correlator = Correlator::for_ids(RequestIds::None, 10);
    let ids: Vec<u32> = (0..4)
        .map(|value| correlator.insert(value).unwrap())
        .collect();
    assert_eq!(correlator.take(ids[1]), Some(1));
    assert_eq!(correlator.take(ids[3]), Some(3));
    assert_eq!((correlator.len(), correlator.pending_replies()), (2, 2));
    assert_eq!(correlator.answer(0), Some(0));
    assert_eq!(correlator.answer(0), Some(2));
    assert_eq!(correlator.answer(0), None);
    let last = correlator.insert(4).unwrap();
    assert_eq!(correlator.find_mut(last), Some(&mut 4));
}

#[test]
fn ids_never_are_zero_and_never_repeat_while_waiting() {
    for ids in WAYS {
        let mut correlator = Correlator::for_ids(ids, 3);
        let held = correlator.insert(0).unwrap();
        for value in 1..200_000 {
            let id = correlator.insert(value).unwrap();
            assert!(id != 0 && id != held, "{ids:?}");
            assert_eq!(correlator.take(id), Some(value));
        }
        assert_eq!(correlator.answer(held), Some(0));
    }
}

#[test]
fn at_most_255_requests_are_in_flight_with_8_bits() {
    let mut correlator = Correlator::for_ids(RequestIds::Bits8, 10_000);
    let mut ids: Vec<u32> = (0..255)
        .map(|value| correlator.insert(value).unwrap())
        .collect();
    let (full, value) = correlator.insert(255).unwrap_err();
    assert_eq!((full.pending_max, value), (255, 255));
    ids.sort_unstable();
    assert!(ids.into_iter().eq(1..=255));
    assert_eq!(correlator.answer(0), None);
    assert_eq!(correlator.answer(256), None);
    assert_eq!(correlator.answer(77), Some(76));
    assert_eq!(correlator.insert(255), Ok(77));
}

#[test]
fn a_sequence_given_up_is_not_used_before_its_reply_came() {
    let mut correlator = Correlator::for_ids(RequestIds::Bits8, 255);
    let given_up = correlator.insert(0).unwrap();
    assert_eq!(correlator.give_up(given_up), Some(0));
    for value in 1..1_000 {
        let id = correlator.insert(value).unwrap();
        assert_ne!(id, given_up);
        assert_eq!(correlator.answer(id), Some(value));
    }
    assert_eq!((correlator.len(), correlator.pending_replies()), (0, 1));
    assert_eq!(correlator.answer(given_up), None);
    assert_eq!(correlator.pending_replies(), 0);
    assert!((0..255).any(|value| correlator.insert(value) == Ok(given_up)));
}

#[test]
fn a_peer_that_never_answers_ends_in_a_full_window() {
    for ids in [RequestIds::Bits8, RequestIds::None] {
        let mut correlator = Correlator::for_ids(ids, 300);
        let mut sent = 0;
        while let Ok(id) = correlator.insert(sent) {
            assert_eq!(correlator.give_up(id), Some(sent));
            sent += 1;
        }
        assert_eq!(sent, if ids == RequestIds::None { 300 } else { 255 });
        assert_eq!((correlator.len(), correlator.pending_replies()), (0, sent));
        assert_eq!(correlator.drain().count(), 0);
        assert!(correlator.insert(0).is_ok());
    }
}

#[test]
fn all_waiting_requests_are_drained() {
    for ids in WAYS {
        let mut correlator = Correlator::for_ids(ids, 10);
        let numbers: Vec<u32> = (0..5)
            .map(|value| correlator.insert(value).unwrap())
            .collect();
        correlator.give_up(numbers[2]);
        let mut drained: Vec<i32> = correlator.drain().collect();
        drained.sort_unstable();
        assert_eq!(drained, [0, 1, 3, 4]);
        assert_eq!((correlator.len(), correlator.pending_replies()), (0, 0));
        assert_eq!(correlator.answer(numbers[0]), None);
    }
}

#[test]
fn all_waiting_requests_are_listed_by_their_ids() {
    for ids in WAYS {
        let mut correlator = Correlator::for_ids(ids, 10);
        let numbers: Vec<u32> = (0..6)
            .map(|value| correlator.insert(value).unwrap())
            .collect();
        correlator.give_up(numbers[2]);
        correlator.take(numbers[4]);
        assert!(correlator.answer(numbers[0]).is_some());
        let mut listed: Vec<_> = correlator.iter().map(|(id, value)| (*value, id)).collect();
        listed.sort_unstable();
        let expected = [1, 3, 5].map(|value| (value, numbers[value as usize]));
        assert_eq!(listed, expected, "{ids:?}");
    }
}

/// A peer that answers in any order (without ids in order), late or never, against a model.
#[test]
fn random_traffic_is_never_matched_wrongly() {
    for (ids, seed) in WAYS
        .into_iter()
        .flat_map(|ids| (0..20).map(move |seed| (ids, seed)))
    {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut correlator = Correlator::for_ids(ids, 40);
        // The unanswered requests at the peer, and the requests that the caller waits for.
        let mut unanswered = VecDeque::new();
        let mut waiting = HashMap::new();
        for value in 0..4_000_u32 {
            let inserted = correlator.insert(value);
            if let Ok(id) = inserted {
                assert!(waiting.insert(id, value).is_none(), "{ids:?}, seed {seed}");
                if random.u8(0..10) == 0 {
                    assert_eq!(correlator.take(id), waiting.remove(&id));
                } else {
                    unanswered.push_back((id, value));
                }
            }
            if random.bool()
                && let Some(id) = waiting.keys().copied().min()
                && random.u8(0..5) == 0
            {
                assert_eq!(correlator.give_up(id), waiting.remove(&id));
            }
            if inserted.is_err() || random.u8(0..3) > 0 {
                let at = match ids {
                    RequestIds::None => 0,
                    _ if unanswered.is_empty() => 0,
                    _ => random.usize(0..unanswered.len()),
                };
                if let Some((id, value)) = unanswered.remove(at) {
                    let expected = waiting.remove(&id).filter(|waited| *waited == value);
                    assert_eq!(correlator.answer(id), expected, "{ids:?}, seed {seed}");
                }
            }
            assert_eq!(correlator.len(), waiting.len(), "{ids:?}, seed {seed}");
        }
    }
}
