//! In-process streams under real pollers and between real threads.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

use std::io::{ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::time::Duration;

use tidewire_io::poller::{Events, Interest, Poller, PollerChoice, PollerKind, Token, open};
use tidewire_io::ring::{Readiness, RingStream};

const KINDS: [PollerKind; 4] = [
    PollerKind::Epoll,
    PollerKind::Poll,
    PollerKind::Select,
    PollerKind::Uring,
];

/// A stream with a poller of its own, like a lane with a single stream.
struct Lane {
    stream: RingStream,
    poller: Box<dyn Poller>,
    events: Events,
    wakes: u64,
}

impl Lane {
    fn new(stream: RingStream, kind: PollerKind) -> Self {
        let mut poller = open(PollerChoice::Only(kind)).unwrap();
        poller
            .add(stream.as_fd(), Token(5), Interest::READ)
            .unwrap();
        Self {
            stream,
            poller,
            events: Events::with_capacity(4),
            wakes: 0,
        }
    }

    /// Returns the directions that are ready now.
    fn ready_now(&mut self) -> Readiness {
        self.poller
            .wait(&mut self.events, Some(Duration::ZERO))
            .unwrap();
        if self.events.is_empty() {
            return Readiness::default();
        }
        assert_eq!(self.events[0].token, Token(5));
        self.stream.poll_ready()
    }

    /// Sleeps until a direction is ready. A lost wake blocks here for ever.
    fn sleep(&mut self) -> Readiness {
        loop {
            self.poller.wait(&mut self.events, None).unwrap();
            self.wakes += 1;
            let ready = self.stream.poll_ready();
            if ready.readable || ready.writable {
                return ready;
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> Option<usize> {
        match self.stream.read(buffer) {
            Ok(count) => Some(count),
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => None,
            Err(cause) => panic!("{cause}"),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        match self.stream.write(bytes) {
            Ok(count) => count,
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => 0,
            Err(cause) => panic!("{cause}"),
        }
    }

    fn close(mut self) {
        self.poller.remove(self.stream.as_fd()).unwrap();
    }
}

const READABLE: Readiness = Readiness {
    readable: true,
    writable: false,
};
const WRITABLE: Readiness = Readiness {
    readable: false,
    writable: true,
};
const NOTHING: Readiness = Readiness {
    readable: false,
    writable: false,
};

fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9E37_79B9) >> 13) as u8
}

#[test]
fn readiness_is_level_triggered_under_every_poller() {
    for kind in KINDS {
        let (near, mut far) = RingStream::pair(4_096).unwrap();
        let mut lane = Lane::new(near, kind);
        assert_eq!(lane.ready_now(), NOTHING, "{kind}");
        far.write(b"12345678").unwrap();
        for _ in 0..3 {
            assert_eq!(lane.ready_now(), READABLE, "{kind}: until it is read");
        }
        assert_eq!(lane.read(&mut [0; 4]), Some(4));
        assert_eq!(lane.ready_now(), READABLE, "{kind}: half is left");
        assert_eq!(lane.read(&mut [0; 64]), Some(4));
        assert_eq!(lane.read(&mut [0; 64]), None);
        assert_eq!(lane.ready_now(), NOTHING, "{kind}");

        lane.stream.set_interest(Interest::READ_WRITE);
        assert_eq!(lane.ready_now(), WRITABLE, "{kind}");
        while lane.write(&[0; 1_000]) > 0 {}
        assert_eq!(lane.ready_now(), NOTHING, "{kind}: no room");
        far.consume_all();
        assert_eq!(lane.ready_now(), WRITABLE, "{kind}");
        lane.stream.set_interest(Interest::NONE);
        drop(far);
        assert_eq!(lane.ready_now(), NOTHING, "{kind}: back-pressure");
        lane.stream.set_interest(Interest::READ);
        assert_eq!(lane.ready_now(), READABLE, "{kind}: the end");
        assert_eq!(lane.read(&mut [0; 64]), Some(0));
        lane.close();
    }
}

trait ConsumeAll {
    fn consume_all(&mut self);
}

impl ConsumeAll for RingStream {
    fn consume_all(&mut self) {
        let count = self.readable().unwrap().len();
        self.consume(count);
    }
}

/// One end sends `bytes_total` in pieces of random size, the other reads with turns of random size. Both sleep whenever
/// they cannot go on.
fn stream_between_threads(kind: PollerKind, seed: u64, bytes_total: u64) {
    let (near, far) = RingStream::pair(4_096).unwrap();
    let sender = std::thread::spawn(move || {
        let mut lane = Lane::new(near, kind);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut piece = [0; 3_000];
        let mut position = 0;
        while position < bytes_total {
            let length = random.u64(1..=3_000).min(bytes_total - position);
            let bytes = &mut piece[..length as usize];
            for (byte, at) in bytes.iter_mut().zip(position..) {
                *byte = byte_at(at);
            }
            let (head, tail) = bytes.split_at(bytes.len() / 2);
            match lane
                .stream
                .write_vectored(&[IoSlice::new(head), IoSlice::new(tail)])
            {
                Ok(count) => position += count as u64,
                Err(cause) => {
                    assert_eq!(cause.kind(), ErrorKind::WouldBlock, "seed {seed}");
                    lane.stream.set_interest(Interest::READ_WRITE);
                    assert!(lane.sleep().writable, "seed {seed}");
                    lane.stream.set_interest(Interest::READ);
                }
            }
            if random.u8(..) == 0 {
                std::thread::yield_now();
            }
        }
        lane.close();
    });
    let mut lane = Lane::new(far, kind);
    let mut random = fastrand::Rng::with_seed(!seed);
    let mut buffer = [0; 2_000];
    let mut position = 0;
    'all: loop {
        assert!(lane.sleep().readable, "seed {seed}");
        // A turn may end early, with bytes left that are reported again.
        for _ in 0..random.u8(1..=6) {
            let most = random.usize(1..=2_000);
            match lane.read(&mut buffer[..most]) {
                None => break,
                Some(0) => break 'all,
                Some(count) => {
                    for &byte in &buffer[..count] {
                        assert_eq!(byte, byte_at(position), "seed {seed} at {position}");
                        position += 1;
                    }
                }
            }
        }
    }
    sender.join().unwrap();
    assert_eq!(
        position, bytes_total,
        "seed {seed}: delivered equals offered"
    );
    lane.close();
}

#[test]
fn every_byte_arrives_between_lanes_that_sleep() {
    for (number, kind) in KINDS.into_iter().enumerate() {
        for seed in 1..=3 {
            stream_between_threads(kind, seed + 10 * number as u64, 400_000);
        }
    }
}

/// One request at a time: both ends sleep for every message, which is the worst case for a lost wake.
#[test]
fn no_wake_is_lost_in_ping_pong() {
    const ROUNDS: u32 = 3_000;
    for kind in KINDS {
        let (near, far) = RingStream::pair(4_096).unwrap();
        let answerer = std::thread::spawn(move || {
            let mut lane = Lane::new(far, kind);
            let mut buffer = [0; 64];
            loop {
                match lane.read(&mut buffer) {
                    None => assert!(lane.sleep().readable),
                    Some(0) => return lane.close(),
                    Some(count) => assert_eq!(lane.write(&buffer[..count]), count),
                }
            }
        });
        let mut lane = Lane::new(near, kind);
        let mut buffer = [0; 64];
        for round in 0..ROUNDS {
            assert_eq!(lane.write(&round.to_le_bytes()), 4);
            loop {
                match lane.read(&mut buffer) {
                    None => assert!(lane.sleep().readable),
                    Some(count) => break assert_eq!(&buffer[..count], round.to_le_bytes()),
                }
            }
        }
        assert!(
            lane.wakes <= 2 * u64::from(ROUNDS),
            "{kind}: rung too often"
        );
        lane.close();
        answerer.join().unwrap();
    }
}

#[test]
fn a_stream_moves_between_lanes_with_its_bytes() {
    let (near, mut far) = RingStream::pair(4_096).unwrap();
    let lane = Lane::new(near, PollerKind::Epoll);
    far.write(b"before").unwrap();
    let Lane {
        stream, mut poller, ..
    } = lane;
    poller.remove(stream.as_fd()).unwrap();
    std::thread::spawn(move || {
        let mut lane = Lane::new(stream, PollerKind::Poll);
        assert_eq!(lane.sleep(), READABLE);
        assert_eq!(lane.read(&mut [0; 64]), Some(6));
        lane.close();
    })
    .join()
    .unwrap();
    assert!(far.is_closed());
}
