//! Tests of slots in all states, and reused.

use super::*;
use crate::client::reply::SHORT_BYTES_MAX;
use crate::client::sync::Native;

type All = Slots<Native>;

fn fetch(slots: &All, id: SlotId) -> Option<Reply> {
    slots.fetch(id, Vec::new)
}

fn reply(bytes: &[u8]) -> Option<Reply> {
    Some(Reply::new(3, bytes.to_vec()))
}

#[test]
fn a_reply_is_fetched_once_and_frees_the_slot() {
    let (slots, mut cursor) = (All::default(), Cursor::default());
    let id = slots.open(&mut cursor);
    assert_eq!(fetch(&slots, id), None);
    assert!(slots.reply(id, 3, b"a"));
    assert!(!slots.slot(id).is_free());
    assert_eq!(fetch(&slots, id), reply(b"a"));
    assert!(slots.slot(id).is_free());
    assert_ne!(slots.open(&mut cursor), id, "others have their turn first");
}

#[test]
fn replies_of_all_lengths_come_out_as_they_went_in() {
    let (slots, mut cursor) = (All::default(), Cursor::default());
    let bytes: Vec<u8> = (0..=SHORT_BYTES_MAX as u8).collect();
    let id = slots.open(&mut cursor);
    assert!(!slots.reply(id, 3, &bytes), "there is no room");
    assert_eq!(slots.answer(id), Answer::Pending);
    // The longest first: a shorter reply must hide the rest of the longer reply.
    for count in (0..=SHORT_BYTES_MAX).rev() {
        assert!(slots.reply(id, 3, &bytes[..count]));
        assert_eq!(fetch(&slots, id), reply(&bytes[..count]));
    }
}

/// Replies that are not fetched keep their slots. Opening other slots then takes a few more checks and some memory.
#[test]
fn slots_with_unfetched_replies_are_skipped() {
    let (slots, mut cursor) = (All::default(), Cursor::default());
    let left = [(); 100].map(|()| slots.open(&mut cursor));
    for id in left {
        assert!(slots.reply(id, 3, b"left"));
    }
    for _ in 0..10_000 {
        let id = slots.open(&mut cursor);
        assert!(!left.contains(&id));
        assert!(slots.reply(id, 3, b"a"));
        assert_eq!(fetch(&slots, id), reply(b"a"));
    }
    assert!(cursor.len() <= 4 * 100 + 64, "{}", cursor.len());
    for id in left {
        assert_eq!(fetch(&slots, id), reply(b"left"));
    }
    // The freed slots are used again, too.
    for _ in 0..1_000 {
        let ids = [(); 200].map(|()| slots.open(&mut cursor));
        for id in ids {
            assert!(slots.reply(id, 3, b"a"));
            assert_eq!(fetch(&slots, id), reply(b"a"));
        }
    }
    assert!(cursor.len() <= 4 * 200 + 64, "{}", cursor.len());
}

/// The number of slots stays within a small factor of the requests that are open at once.
#[test]
fn slots_do_not_grow_beyond_the_held_requests() {
    const HELD_MAX: usize = 1_000;
    let (slots, mut cursor) = (All::default(), Cursor::default());
    let mut random = fastrand::Rng::with_seed(7);
    let mut held = Vec::new();
    for _ in 0..200_000 {
        if held.len() < HELD_MAX && random.bool() {
            held.push(slots.open(&mut cursor));
        } else if !held.is_empty() {
            let id = held.swap_remove(random.usize(..held.len()));
            assert!(slots.reply(id, 3, b"a"));
            assert_eq!(fetch(&slots, id), reply(b"a"));
        }
    }
    assert!(cursor.len() <= 4 * HELD_MAX + 64, "{}", cursor.len());
}
