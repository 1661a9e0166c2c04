//! Many descriptors: numbers beyond 1,024, more ready ones than a batch holds, fairness.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};

use tidewire_io::descriptors::raise_descriptor_limit;
use tidewire_io::poller::{Events, Interest, PollerKind, Token};
use tidewire_io::socket::Stream;

use crate::{NOW, drain, for_every_poller, nothing, poller, ready_now};

for_every_poller!(
    a_full_batch_starves_no_descriptor,
    a_descriptor_that_is_always_ready_starves_no_other,
    entries_left_by_a_full_batch_are_dropped_when_they_change,
);

/// One test covers all four backends, so that it fits a hard limit of 4,096 descriptors.
#[test]
fn thousands_of_descriptors_with_numbers_beyond_1024() {
    raise_descriptor_limit().unwrap();
    for kind in PollerKind::ALL {
        thousands(kind);
    }
}

fn thousands(kind: PollerKind) {
    const COPIES: usize = 1_100;
    let mut poller = poller(kind);
    let (mut quiet, _quiet_far) = Stream::pair().unwrap();
    let (loud, mut loud_far) = Stream::pair().unwrap();
    loud_far.write(b"x").unwrap();
    let copy = |stream: &Stream| rustix::io::fcntl_dupfd_cloexec(stream.as_fd(), 0).unwrap();
    // Even tokens are copies of a ready descriptor, odd ones of a descriptor that is not ready.
    let copies: Vec<_> = (0..COPIES)
        .flat_map(|_| [copy(&loud), copy(&quiet)])
        .collect();
    assert!(copies.iter().any(|copy| copy.as_raw_fd() > 1_024));
    for (token, copy) in copies.iter().enumerate() {
        poller
            .add(copy.as_fd(), Token(token), Interest::READ)
            .unwrap();
    }

    // The batch is far smaller than the number of ready descriptors, which must not matter to registration.
    let mut events = Events::with_capacity(64);
    let mut seen = BTreeSet::new();
    for _ in 0..COPIES.div_ceil(64) {
        poller.wait(&mut events, NOW).unwrap();
        seen.extend(events.iter().map(|event| event.token.0));
    }
    assert!(
        seen.iter().copied().eq((0..2 * COPIES).step_by(2)),
        "{kind}"
    );

    // Removal from the front, the back and the middle leaves exactly the others.
    let leaves = |token: usize| !(100..=2_000).contains(&token) || token.is_multiple_of(3);
    for (token, copy) in copies.iter().enumerate() {
        if leaves(token) {
            poller.remove(copy.as_fd()).unwrap();
        }
    }
    let expected = (0..2 * COPIES).step_by(2).filter(|&token| !leaves(token));
    assert!(ready_now(&mut *poller).into_keys().eq(expected), "{kind}");
    let mut loud = loud;
    assert!(!drain(&mut loud));
    assert!(!drain(&mut quiet));
    assert_eq!(ready_now(&mut *poller), nothing(), "{kind}");
}

fn a_full_batch_starves_no_descriptor(kind: PollerKind) {
    const PAIRS: usize = 70;
    for capacity in [1, 4, 64] {
        let mut poller = poller(kind);
        let pairs: Vec<_> = (0..PAIRS).map(|_| Stream::pair().unwrap()).collect();
        for (token, (near, _)) in pairs.iter().enumerate() {
            poller
                .add(near.as_fd(), Token(token), Interest::WRITE)
                .unwrap();
        }
        let mut events = Events::with_capacity(capacity);
        for _round in 0..3 {
            let mut turns = vec![0; PAIRS];
            // Every descriptor has one turn before any has a second one.
            for _ in 0..PAIRS / capacity {
                poller.wait(&mut events, NOW).unwrap();
                // The last batch of one kernel answer may be smaller.
                assert!(!events.is_empty() && events.len() <= capacity);
                assert_eq!(events.capacity(), capacity);
                for event in &events {
                    turns[event.token.0] += 1;
                }
            }
            assert!(turns.iter().all(|&turns| turns <= 1), "{capacity}");
        }
    }
}

/// A descriptor that is always ready must not keep one that becomes ready later from being seen.
fn a_descriptor_that_is_always_ready_starves_no_other(kind: PollerKind) {
    let mut poller = poller(kind);
    let pairs: Vec<_> = (0..3).map(|_| Stream::pair().unwrap()).collect();
    for (token, (near, _)) in pairs.iter().enumerate() {
        let interest = if token == 1 {
            Interest::READ
        } else {
            Interest::READ_WRITE
        };
        poller.add(near.as_fd(), Token(token), interest).unwrap();
    }
    let mut events = Events::with_capacity(1);
    poller.wait(&mut events, NOW).unwrap();
    let mut pairs = pairs;
    pairs[1].1.write(b"x").unwrap();
    let seen: BTreeSet<_> = (0..4)
        .map(|_| {
            poller.wait(&mut events, NOW).unwrap();
            events[0].token.0
        })
        .collect();
    assert_eq!(seen, BTreeSet::from([0, 1, 2]));
}

fn entries_left_by_a_full_batch_are_dropped_when_they_change(kind: PollerKind) {
    let mut poller = poller(kind);
    let pairs: Vec<_> = (0..5).map(|_| Stream::pair().unwrap()).collect();
    for (token, (near, _)) in pairs.iter().enumerate() {
        poller
            .add(near.as_fd(), Token(token), Interest::WRITE)
            .unwrap();
    }
    let mut events = Events::with_capacity(1);
    poller.wait(&mut events, NOW).unwrap();
    let first = events[0].token.0;
    let left: Vec<_> = (0..5).filter(|&token| token != first).collect();
    poller.remove(pairs[left[0]].0.as_fd()).unwrap();
    for (token, interest) in [(left[1], Interest::NONE), (left[2], Interest::READ)] {
        poller
            .modify(pairs[token].0.as_fd(), Token(token), interest)
            .unwrap();
    }
    let renamed = pairs[left[3]].0.as_fd();
    poller
        .modify(renamed, Token(9), Interest::READ_WRITE)
        .unwrap();
    let seen: BTreeSet<_> = (0..4)
        .map(|_| {
            poller.wait(&mut events, NOW).unwrap();
            assert!(events[0].writable && !events[0].readable);
            events[0].token.0
        })
        .collect();
    assert_eq!(seen, BTreeSet::from([first, 9]), "{kind}");
}
