//! One test for each sentence of the contract.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use tidewire_io::poller::{Events, Interest, PollerError, PollerKind, Token};
use tidewire_io::socket::{Listener, SocketAddress, SocketOptions, Stream};
use tidewire_io::waker::LaneWaker;

use crate::{
    BOTH, READABLE, WRITABLE, drain, fill, for_every_poller, nothing, only, poller, ready_now,
    report,
};

for_every_poller!(
    a_descriptor_is_readable_when_data_arrives,
    a_descriptor_is_writable_while_there_is_room,
    both_directions_make_one_event,
    a_descriptor_that_stays_ready_is_reported_again,
    a_partly_read_descriptor_is_reported_again,
    modify_replaces_token_and_interest,
    a_silent_registration_reports_nothing_and_can_speak_again,
    a_removed_descriptor_is_not_reported_though_ready,
    a_hang_up_sets_every_registered_direction,
    a_half_close_is_readable,
    a_reset_is_reported_in_the_registered_direction,
    closing_after_removal_ends_the_connection_without_a_wait,
    dropping_the_poller_lets_go_of_its_descriptors,
    a_number_may_be_registered_anew_after_close,
    a_number_may_be_reused_between_two_waits,
    registering_twice_and_changing_the_unknown_are_refused,
    a_listener_is_readable_and_a_connection_writable,
    a_timeout_of_zero_returns_and_a_short_one_is_not_cut,
    a_short_timeout_is_not_rounded_up,
    a_wait_without_timeout_is_ended_by_another_thread,
    a_poller_may_be_filled_on_one_thread_and_used_on_another,
);

fn a_descriptor_is_readable_when_data_arrives(kind: PollerKind) {
    let mut poller = poller(kind);
    let (near, mut far) = Stream::pair().unwrap();
    poller.add(near.as_fd(), Token(7), Interest::READ).unwrap();
    assert_eq!(ready_now(&mut *poller), nothing());
    far.write(b"x").unwrap();
    assert_eq!(ready_now(&mut *poller), only(7, READABLE));
}

fn a_descriptor_is_writable_while_there_is_room(kind: PollerKind) {
    let mut poller = poller(kind);
    let (mut near, mut far) = Stream::pair().unwrap();
    poller.add(near.as_fd(), Token(7), Interest::WRITE).unwrap();
    assert_eq!(ready_now(&mut *poller), only(7, WRITABLE));
    fill(&mut near);
    assert_eq!(ready_now(&mut *poller), nothing());
    assert!(!drain(&mut far));
    assert_eq!(ready_now(&mut *poller), only(7, WRITABLE));
}

fn both_directions_make_one_event(kind: PollerKind) {
    let mut poller = poller(kind);
    let (near, mut far) = Stream::pair().unwrap();
    poller
        .add(near.as_fd(), Token(7), Interest::READ_WRITE)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), only(7, WRITABLE));
    far.write(b"x").unwrap();
    assert_eq!(ready_now(&mut *poller), only(7, BOTH));
}

fn a_descriptor_that_stays_ready_is_reported_again(kind: PollerKind) {
    let mut poller = poller(kind);
    let (mut near, mut far) = Stream::pair().unwrap();
    poller.add(near.as_fd(), Token(7), Interest::READ).unwrap();
    far.write(b"x").unwrap();
    let mut events = Events::with_capacity(8);
    for _ in 0..5 {
        // An edge-triggered poller would block for ever here.
        poller.wait(&mut events, None).unwrap();
        assert_eq!(report(&events), only(7, READABLE));
    }
    assert!(!drain(&mut near));
    assert_eq!(ready_now(&mut *poller), nothing());
    far.write(b"y").unwrap();
    assert_eq!(ready_now(&mut *poller), only(7, READABLE));
}

fn a_partly_read_descriptor_is_reported_again(kind: PollerKind) {
    let mut poller = poller(kind);
    let (mut near, mut far) = Stream::pair().unwrap();
    poller.add(near.as_fd(), Token(7), Interest::READ).unwrap();
    far.write(b"abc").unwrap();
    for expected in b"abc" {
        assert_eq!(ready_now(&mut *poller), only(7, READABLE));
        let mut byte = [0];
        assert_eq!(near.read(&mut byte).unwrap(), 1);
        assert_eq!(byte[0], *expected);
    }
    assert_eq!(ready_now(&mut *poller), nothing());
}

fn modify_replaces_token_and_interest(kind: PollerKind) {
    let mut poller = poller(kind);
    let (near, mut far) = Stream::pair().unwrap();
    far.write(b"x").unwrap();
    poller.add(near.as_fd(), Token(1), Interest::READ).unwrap();
    assert_eq!(ready_now(&mut *poller), only(1, READABLE));
    poller
        .modify(near.as_fd(), Token(2), Interest::WRITE)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), only(2, WRITABLE));
    poller
        .modify(near.as_fd(), Token(3), Interest::READ_WRITE)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), only(3, BOTH));
    poller
        .modify(near.as_fd(), Token(usize::MAX), Interest::READ_WRITE)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), only(usize::MAX, BOTH));
    // The interest changes and changes back within one turn, like in a lane that queues and then flushes.
    poller
        .modify(near.as_fd(), Token(4), Interest::WRITE)
        .unwrap();
    poller
        .modify(near.as_fd(), Token(4), Interest::READ)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), only(4, READABLE));
}

fn a_silent_registration_reports_nothing_and_can_speak_again(kind: PollerKind) {
    let mut poller = poller(kind);
    let (near, mut far) = Stream::pair().unwrap();
    poller.add(near.as_fd(), Token(1), Interest::NONE).unwrap();
    far.write(b"x").unwrap();
    assert_eq!(ready_now(&mut *poller), nothing());
    poller
        .modify(near.as_fd(), Token(2), Interest::READ)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), only(2, READABLE));
    poller
        .modify(near.as_fd(), Token(3), Interest::NONE)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), nothing());
    drop(far);
    assert_eq!(ready_now(&mut *poller), nothing(), "not even the hang-up");
    poller
        .modify(near.as_fd(), Token(4), Interest::READ)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), only(4, READABLE));
    poller
        .modify(near.as_fd(), Token(5), Interest::NONE)
        .unwrap();
    poller.remove(near.as_fd()).unwrap();
}

fn a_removed_descriptor_is_not_reported_though_ready(kind: PollerKind) {
    let mut poller = poller(kind);
    let pairs: Vec<_> = (0..3).map(|_| Stream::pair().unwrap()).collect();
    for (token, (near, _)) in pairs.iter().enumerate() {
        poller
            .add(near.as_fd(), Token(token), Interest::WRITE)
            .unwrap();
    }
    assert_eq!(ready_now(&mut *poller).len(), 3);
    poller.remove(pairs[0].0.as_fd()).unwrap();
    let left: Vec<_> = ready_now(&mut *poller).into_keys().collect();
    assert_eq!(left, [1, 2]);
}

fn a_hang_up_sets_every_registered_direction(kind: PollerKind) {
    for (interest, expected) in [
        (Interest::READ, READABLE),
        (Interest::WRITE, WRITABLE),
        (Interest::READ_WRITE, BOTH),
    ] {
        let mut poller = poller(kind);
        let (mut near, far) = Stream::pair().unwrap();
        fill(&mut near);
        poller.add(near.as_fd(), Token(7), interest).unwrap();
        assert_eq!(ready_now(&mut *poller), nothing());
        drop(far);
        for _ in 0..3 {
            assert_eq!(ready_now(&mut *poller), only(7, expected));
        }
        assert!(drain(&mut near), "the read finds the end");
    }
}

fn a_half_close_is_readable(kind: PollerKind) {
    let mut poller = poller(kind);
    let (mut near, far) = Stream::pair().unwrap();
    fill(&mut near);
    poller.add(near.as_fd(), Token(7), Interest::WRITE).unwrap();
    far.shutdown_write().unwrap();
    assert_eq!(ready_now(&mut *poller), nothing(), "nobody asked for it");
    poller
        .modify(near.as_fd(), Token(7), Interest::READ_WRITE)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), only(7, READABLE));
    assert!(drain(&mut near));
}

fn a_reset_is_reported_in_the_registered_direction(kind: PollerKind) {
    let mut poller = poller(kind);
    let (mut near, far) = tcp_pair();
    fill(&mut near);
    poller.add(near.as_fd(), Token(7), Interest::WRITE).unwrap();
    far.reset_on_close().unwrap();
    drop(far);
    let mut events = Events::with_capacity(1);
    while events.is_empty() {
        poller.wait(&mut events, None).unwrap();
    }
    assert_eq!(report(&events), only(7, WRITABLE));
    let failed = near.write(b"x").unwrap_err();
    assert_eq!(failed.kind(), std::io::ErrorKind::ConnectionReset);
}

fn closing_after_removal_ends_the_connection_without_a_wait(kind: PollerKind) {
    let mut poller = poller(kind);
    let (near, mut far) = Stream::pair().unwrap();
    poller
        .add(near.as_fd(), Token(7), Interest::READ_WRITE)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), only(7, WRITABLE));
    poller.remove(near.as_fd()).unwrap();
    drop(near);
    assert!(
        drain(&mut far),
        "a poller that holds on keeps the peer waiting"
    );
}

fn dropping_the_poller_lets_go_of_its_descriptors(kind: PollerKind) {
    let mut poller = poller(kind);
    let (near, mut far) = Stream::pair().unwrap();
    poller.add(near.as_fd(), Token(7), Interest::READ).unwrap();
    assert_eq!(ready_now(&mut *poller), nothing());
    drop(poller);
    drop(near);
    assert!(drain(&mut far));
}

fn a_number_may_be_registered_anew_after_close(kind: PollerKind) {
    let mut poller = poller(kind);
    for round in 0..20 {
        let (near, mut far) = Stream::pair().unwrap();
        poller
            .add(near.as_fd(), Token(round), Interest::READ)
            .unwrap();
        assert_eq!(ready_now(&mut *poller), nothing(), "a new one is idle");
        far.write(b"x").unwrap();
        assert_eq!(ready_now(&mut *poller), only(round, READABLE));
        poller.remove(near.as_fd()).unwrap();
    }
}

fn a_number_may_be_reused_between_two_waits(kind: PollerKind) {
    let mut poller = poller(kind);
    let (near, mut far) = Stream::pair().unwrap();
    far.write(b"x").unwrap();
    poller.add(near.as_fd(), Token(1), Interest::READ).unwrap();
    assert_eq!(ready_now(&mut *poller), only(1, READABLE));
    far.write(b"y").unwrap();
    poller.remove(near.as_fd()).unwrap();
    let (next, mut next_far) = Stream::pair().unwrap();
    // The descriptor gets the same number, even if other tests open files.
    let mut reused: std::os::fd::OwnedFd = near.into();
    rustix::io::dup2(next.as_fd(), &mut reused).unwrap();
    poller
        .add(reused.as_fd(), Token(2), Interest::READ)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), nothing(), "not its predecessor's");
    next_far.write(b"z").unwrap();
    assert_eq!(ready_now(&mut *poller), only(2, READABLE));
}

fn registering_twice_and_changing_the_unknown_are_refused(kind: PollerKind) {
    let mut poller = poller(kind);
    let (near, far) = Stream::pair().unwrap();
    poller.add(near.as_fd(), Token(1), Interest::WRITE).unwrap();
    let again = poller.add(near.as_fd(), Token(2), Interest::READ);
    assert!(matches!(again, Err(PollerError::AlreadyRegistered { .. })));
    assert_eq!(ready_now(&mut *poller), only(1, WRITABLE));
    for unknown in [
        poller.modify(far.as_fd(), Token(2), Interest::READ),
        poller.remove(far.as_fd()),
    ] {
        assert!(matches!(unknown, Err(PollerError::NotRegistered { .. })));
    }
    poller.remove(near.as_fd()).unwrap();
    let twice = poller.remove(near.as_fd());
    assert!(matches!(twice, Err(PollerError::NotRegistered { .. })));
}

fn a_listener_is_readable_and_a_connection_writable(kind: PollerKind) {
    let mut poller = poller(kind);
    let listener = listener();
    poller
        .add(listener.as_fd(), Token(1), Interest::READ)
        .unwrap();
    assert_eq!(ready_now(&mut *poller), nothing());
    let client = Stream::connect(listener.local_address()).unwrap();
    poller
        .add(client.as_fd(), Token(2), Interest::WRITE)
        .unwrap();
    let mut events = Events::with_capacity(8);
    let (mut is_accepting, mut is_connected) = (false, false);
    while !(is_accepting && is_connected) {
        poller.wait(&mut events, None).unwrap();
        for event in &events {
            is_accepting |= event.token == Token(1) && event.readable;
            is_connected |= event.token == Token(2) && event.writable;
        }
    }
    client.finish_connect().unwrap();
    listener.accept().unwrap();
    assert_eq!(ready_now(&mut *poller), only(2, WRITABLE));
}

fn a_timeout_of_zero_returns_and_a_short_one_is_not_cut(kind: PollerKind) {
    let mut poller = poller(kind);
    let (near, _far) = Stream::pair().unwrap();
    poller.add(near.as_fd(), Token(1), Interest::READ).unwrap();
    assert_eq!(ready_now(&mut *poller), nothing());
    let mut events = Events::with_capacity(8);
    for timeout_us in [1, 300, 2_500] {
        let timeout = Duration::from_micros(timeout_us);
        let started = Instant::now();
        poller.wait(&mut events, Some(timeout)).unwrap();
        assert!(events.is_empty());
        assert!(started.elapsed() >= timeout);
    }
}

fn a_short_timeout_is_not_rounded_up(kind: PollerKind) {
    let mut poller = poller(kind);
    let mut events = Events::with_capacity(8);
    // The test takes the shortest of many waits, because a busy machine only makes waits longer. It compares with
    // another wait on the same machine, not with the clock. Rounded up to a millisecond the ratio would be 3.
    let mut least = |timeout_us| {
        (0..20)
            .map(|_| {
                let started = Instant::now();
                let timeout = Duration::from_micros(timeout_us);
                poller.wait(&mut events, Some(timeout)).unwrap();
                started.elapsed()
            })
            .min()
            .unwrap()
    };
    assert!(least(50) * 4 < least(3_000));
}

fn a_wait_without_timeout_is_ended_by_another_thread(kind: PollerKind) {
    let mut poller = poller(kind);
    let waker = LaneWaker::new().unwrap();
    poller.add(waker.as_fd(), Token(9), Interest::READ).unwrap();
    for _ in 0..200 {
        waker.before_sleep();
        let ringer = {
            let waker = waker.clone();
            std::thread::spawn(move || waker.wake())
        };
        let mut events = Events::with_capacity(8);
        while events.is_empty() {
            poller.wait(&mut events, None).unwrap();
        }
        assert_eq!(report(&events), only(9, READABLE));
        ringer.join().unwrap();
        waker.after_sleep();
        assert_eq!(ready_now(&mut *poller), nothing());
    }
}

fn a_poller_may_be_filled_on_one_thread_and_used_on_another(kind: PollerKind) {
    let (near, mut far) = Stream::pair().unwrap();
    let (mut poller, near) = std::thread::spawn(move || {
        let mut poller = poller(kind);
        poller.add(near.as_fd(), Token(1), Interest::READ).unwrap();
        assert_eq!(ready_now(&mut *poller), nothing());
        (poller, near)
    })
    .join()
    .unwrap();
    far.write(b"x").unwrap();
    let mut events = Events::with_capacity(8);
    while events.is_empty() {
        poller.wait(&mut events, None).unwrap();
    }
    assert_eq!(report(&events), only(1, READABLE));
    poller.remove(near.as_fd()).unwrap();
}

fn listener() -> Listener {
    let any_port = SocketAddress::Tcp("127.0.0.1:0".parse().unwrap());
    Listener::bind(&any_port, &SocketOptions::default()).unwrap()
}

fn tcp_pair() -> (Stream, Stream) {
    let listener = listener();
    let client = Stream::connect(listener.local_address()).unwrap();
    // Over loopback the connection waits as soon as connect returned.
    let server = listener.accept().unwrap().stream;
    client.finish_connect().unwrap();
    (client, server)
}
