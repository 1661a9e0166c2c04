//! One thread drives both ends, so that every state of the signal is seen. `tests/ring_stream.rs` tests sleeping
//! threads.

use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::param::page_size;
use std::io::ErrorKind;

fn is_set(stream: &RingStream) -> bool {
    let mut asked = [PollFd::new(stream, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut asked, Some(&at_once)).unwrap() == 1
}

fn pair() -> (RingStream, RingStream) {
    RingStream::pair(page_size()).unwrap()
}

fn fill(stream: &mut RingStream) -> usize {
    let mut total = 0;
    loop {
        match stream.write(&[7; 1_000]) {
            Ok(count) => total += count,
            Err(cause) => {
                assert_eq!(cause.kind(), ErrorKind::WouldBlock);
                return total;
            }
        }
    }
}

fn would_block<T: std::fmt::Debug>(outcome: io::Result<T>) {
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::WouldBlock);
}

const NOTHING: Readiness = Readiness {
    readable: false,
    writable: false,
};

#[test]
fn bytes_travel_both_ways_and_the_end_comes_after_them() {
    let (mut near, mut far) = pair();
    let pieces = [b"gather".as_slice(), b"", b"ed write"].map(IoSlice::new);
    assert_eq!(near.write_vectored(&pieces).unwrap(), 14);
    near.shutdown_write().unwrap();
    assert_eq!(near.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(far.readable().unwrap(), b"gathered write");
    far.consume(8);
    let mut buffer = [0; 64];
    assert_eq!(far.read(&mut buffer).unwrap(), 6);
    assert_eq!(&buffer[..6], b" write");
    assert_eq!(far.read(&mut buffer).unwrap(), 0);
    assert_eq!(far.readable().unwrap(), b"");
    assert!(far.is_closed());

    far.writable().unwrap()[..6].copy_from_slice(b"answer");
    far.commit(6);
    drop(far);
    assert_eq!(near.read(&mut buffer).unwrap(), 6);
    assert_eq!(near.read(&mut buffer).unwrap(), 0);
    assert_eq!(near.writable().unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn empty_reads_and_writes_are_nothing() {
    let (mut near, mut far) = pair();
    assert_eq!(near.write(b"").unwrap(), 0);
    assert_eq!(near.write_vectored(&[]).unwrap(), 0);
    assert_eq!(far.read(&mut []).unwrap(), 0);
    would_block(far.read(&mut [0; 8]));
    fill(&mut near);
    assert_eq!(near.write(b"").unwrap(), 0, "also where there is no room");
}

#[test]
fn only_a_sleeper_is_rung() {
    let (mut near, far) = pair();
    assert!(!is_set(&far));
    near.write(b"one").unwrap();
    assert!(is_set(&far), "a new end sleeps");
    let rung = far.own.signal().counter();
    for _ in 0..10 {
        near.write(b"more").unwrap();
    }
    let mut count = [0; 8];
    rustix::io::read(rung, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1, "one ring for eleven writes");
}

#[test]
fn a_lane_that_stops_in_the_middle_is_told_again() {
    let (mut near, mut far) = pair();
    near.write(b"four bytes at a time").unwrap();
    for _ in 0..5 {
        assert!(is_set(&far));
        assert!(far.poll_ready().readable);
        assert_eq!(far.read(&mut [0; 4]).unwrap(), 4);
    }
    assert!(is_set(&far), "not settled yet");
    would_block(far.read(&mut [0; 4]));
    assert!(!is_set(&far));
    near.write(b"again").unwrap();
    assert!(is_set(&far));
}

#[test]
fn a_writer_without_room_is_told_when_there_is_enough() {
    let (mut near, mut far) = pair();
    assert_eq!(fill(&mut near), page_size());
    assert!(!is_set(&near), "not interested in writing");
    near.set_interest(Interest::READ_WRITE);
    assert!(!is_set(&near));
    let quarter = page_size() / 4;
    let mut buffer = vec![0; page_size()];
    far.read(&mut buffer[..quarter - 1]).unwrap();
    assert!(!is_set(&near), "not worth a wake");
    far.read(&mut buffer[..1]).unwrap();
    assert!(is_set(&near));
    let ready = near.poll_ready();
    assert!(ready.writable && !ready.readable);
    assert_eq!(fill(&mut near), quarter);
    assert!(!is_set(&near));
    // The interest is satisfied: room alone causes no report any more.
    near.set_interest(Interest::READ);
    far.read(&mut buffer).unwrap();
    assert!(!is_set(&near));
    assert_eq!(near.interest(), Interest::READ);
}

#[test]
fn only_directions_of_interest_are_reported() {
    let (mut near, mut far) = pair();
    near.set_interest(Interest::NONE);
    far.write(b"bytes").unwrap();
    assert!(!is_set(&near), "back-pressure");
    near.set_interest(Interest::WRITE);
    assert!(is_set(&near), "there is room");
    let ready = near.poll_ready();
    assert!(ready.writable && !ready.readable);
    near.set_interest(Interest::READ);
    assert!(is_set(&near), "told of what came before");
    assert!(near.poll_ready().readable);
    near.set_interest(Interest::NONE);
    assert!(!is_set(&near));
    drop(far);
    assert!(!is_set(&near), "not even of a close");
    near.set_interest(Interest::READ);
    assert!(is_set(&near));
}

#[test]
fn a_report_for_nothing_is_silenced() {
    let (mut near, mut far) = pair();
    near.write(b"read before it is reported").unwrap();
    far.read(&mut [0; 64]).unwrap();
    assert!(is_set(&far));
    assert_eq!(far.poll_ready(), NOTHING);
    assert!(!is_set(&far));
}

#[test]
fn a_peer_that_is_dropped_is_reported_in_every_direction() {
    let (mut near, far) = pair();
    fill(&mut near);
    near.set_interest(Interest::READ_WRITE);
    assert!(!is_set(&near));
    drop(far);
    assert!(is_set(&near));
    let ready = near.poll_ready();
    assert!(ready.readable && ready.writable);
    assert_eq!(near.read(&mut [0; 8]).unwrap(), 0);
    assert_eq!(near.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert!(is_set(&near), "like a socket, until it is closed");
}

#[test]
fn a_dropped_peer_ends_the_stream_after_its_committed_bytes() {
    let (mut near, mut far) = pair();
    near.write(b"whole").unwrap();
    near.writable().unwrap()[..4].copy_from_slice(b"half");
    let dies = std::thread::spawn(move || {
        let _dropped_by_the_panic = near;
        panic!("on purpose");
    });
    assert!(dies.join().is_err());
    assert!(is_set(&far));
    assert_eq!(far.readable().unwrap(), b"whole");
    far.consume(5);
    assert_eq!(far.readable().unwrap(), b"");
}

#[test]
fn a_spinning_end_costs_neither_side_a_system_call() {
    let (mut near, mut far) = pair();
    far.set_interest(Interest::NONE);
    for _ in 0..100 {
        would_block(far.read(&mut [0; 8]));
        near.write(b"ping").unwrap();
        assert_eq!(far.read(&mut [0; 8]).unwrap(), 4);
    }
    assert!(!is_set(&far), "no signal came");
    near.write(b"ping").unwrap();
    far.set_interest(Interest::READ);
    assert!(is_set(&far), "going to sleep finds what is there");
}
