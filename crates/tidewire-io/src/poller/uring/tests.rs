//! Tests of the inside of this backend: overflowing queues, generations, refusals.

use super::refusal::explain;
use super::*;
use crate::socket::Stream;
use std::collections::BTreeSet;
use std::os::fd::AsFd;

fn ready_now(poller: &mut UringPoller) -> BTreeSet<usize> {
    let mut events = Events::with_capacity(1_024);
    poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
    events.iter().map(|event| event.token.0).collect()
}

/// The queues are far smaller than the number of descriptors. Submissions overflow while registering, and completions
/// overflow when all descriptors become ready at once; the kernel then ends the multishot requests.
#[test]
fn overflowing_queues_lose_no_descriptor() {
    let mut poller = UringPoller::with_entries(4, 8).unwrap();
    let mut pairs: Vec<_> = (0..200).map(|_| Stream::pair().unwrap()).collect();
    for (token, (near, _)) in pairs.iter().enumerate() {
        poller
            .add(near.as_fd(), Token(token), Interest::READ)
            .unwrap();
    }
    assert_eq!(ready_now(&mut poller), BTreeSet::new());
    for round in 0..3 {
        for (_, far) in &mut pairs {
            far.write(b"x").unwrap();
        }
        let all = (0..pairs.len()).collect::<BTreeSet<_>>();
        assert_eq!(ready_now(&mut poller), all, "round {round}");
        for (near, _) in &mut pairs {
            assert_eq!(near.read(&mut [0; 8]).unwrap(), 1);
        }
        assert_eq!(ready_now(&mut poller), BTreeSet::new(), "round {round}");
    }
    for (near, _) in &pairs {
        poller.remove(near.as_fd()).unwrap();
    }
    assert_eq!(ready_now(&mut poller), BTreeSet::new());
}

/// The unsafe blocks rely on this: after a removal, no entry, no list and no completion leads back to the number.
#[test]
fn completions_of_a_removed_registration_are_dropped() {
    let mut poller = UringPoller::open().unwrap();
    let (near, mut far) = Stream::pair().unwrap();
    let mut events = Events::with_capacity(8);
    poller
        .add(near.as_fd(), Token(1), Interest::READ_WRITE)
        .unwrap();
    far.write(b"x").unwrap();
    // The first removal meets an unread completion, the second a listed descriptor.
    poller.submit().unwrap();
    poller.remove(near.as_fd()).unwrap();
    assert_eq!(ready_now(&mut poller), BTreeSet::new());
    poller
        .add(near.as_fd(), Token(2), Interest::READ_WRITE)
        .unwrap();
    assert_eq!(ready_now(&mut poller), BTreeSet::from([2]));
    assert_eq!(poller.listed.len(), 1);
    poller.remove(near.as_fd()).unwrap();
    poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
    assert!(events.is_empty());
    assert!(poller.listed.is_empty());
    assert!(poller.ring.submission().is_empty());
}

#[test]
fn generations_skip_zero_and_survive_the_way_through_the_kernel() {
    let mut poller = UringPoller::open().unwrap();
    poller.generation = u32::MAX - 1;
    let pairs: Vec<_> = (0..3).map(|_| Stream::pair().unwrap()).collect();
    for (token, (near, _)) in pairs.iter().enumerate() {
        poller
            .add(near.as_fd(), Token(token), Interest::WRITE)
            .unwrap();
    }
    assert_eq!(poller.generation, 2, "all ones, one, two");
    assert_eq!(ready_now(&mut poller), BTreeSet::from([0, 1, 2]));
    let request = RequestId {
        number: 7,
        generation: u32::MAX,
    };
    assert_eq!(RequestId::from_user_data(request.to_user_data()), request);
}

#[test]
fn a_descriptor_the_kernel_will_not_poll_is_reported_until_removed() {
    let mut poller = UringPoller::open().unwrap();
    let (near, _far) = Stream::pair().unwrap();
    let number = near.as_fd().as_raw_fd();
    poller.add(near.as_fd(), Token(1), Interest::READ).unwrap();
    assert_eq!(ready_now(&mut poller), BTreeSet::new());
    // The test sets the flag as the kernel would cause it; no portable descriptor provokes it.
    let registration = poller.registered.require(near.as_fd()).unwrap();
    registration.is_broken = true;
    let request = RequestId {
        number: number.cast_unsigned(),
        generation: registration.generation,
    };
    poller.note(request, -1, None);
    for _ in 0..2 {
        assert_eq!(ready_now(&mut poller), BTreeSet::from([1]));
    }
    poller.remove(near.as_fd()).unwrap();
    assert_eq!(ready_now(&mut poller), BTreeSet::new());
}

#[test]
fn every_refusal_names_a_cause_and_a_remedy() {
    let disabled = explain(Some(Errno::PERM), Some("2\n"));
    assert!(disabled.0.contains("kernel.io_uring_disabled = 2"));
    assert!(disabled.1.contains("sysctl"));
    let sandboxed = explain(Some(Errno::PERM), Some("0\n"));
    assert!(sandboxed.1.contains("seccomp"));
    let missing = explain(Some(Errno::NOSYS), None);
    assert!(missing.1.contains("5.13"));
    for errno in [Errno::NOMEM, Errno::MFILE, Errno::OPNOTSUPP, Errno::IO] {
        let (cause, remedy) = explain(Some(errno), None);
        assert_ne!(cause, remedy);
        assert!(!remedy.is_empty());
    }
}
