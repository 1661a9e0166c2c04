//! Random histories against an oracle, and a poller against threads.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidewire_io::poller::{Events, Interest, Poller, PollerKind, Token};
use tidewire_io::socket::Stream;

use crate::{Directions, Report, drain, fill, for_every_poller, poller, ready_now};

for_every_poller!(
    random_histories_agree_with_the_oracle,
    no_readiness_is_lost_between_threads,
);

/// A connection and the expected state of the poller for it.
struct Connection {
    near: Stream,
    far: Option<Stream>,
    registered: Option<(usize, Interest)>,
}

impl Connection {
    fn new() -> Self {
        let (near, far) = Stream::pair().unwrap();
        Self {
            near,
            far: Some(far),
            registered: None,
        }
    }

    /// Polls this one descriptor alone and applies the contract to the answer.
    fn expected(&self) -> Option<(usize, Directions)> {
        let (token, interest) = self.registered?;
        let mut asked = [PollFd::new(&self.near, PollFlags::IN | PollFlags::OUT)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut asked, Some(&at_once)).unwrap();
        let seen = asked[0].revents();
        let is_broken = seen.intersects(PollFlags::HUP | PollFlags::ERR);
        let directions = Directions {
            readable: interest.is_readable() && (is_broken || seen.contains(PollFlags::IN)),
            writable: interest.is_writable() && (is_broken || seen.contains(PollFlags::OUT)),
        };
        (directions.readable || directions.writable).then_some((token, directions))
    }

    fn register(&mut self, poller: &mut dyn Poller, token: usize, interest: Interest) {
        let descriptor = self.near.as_fd();
        match self.registered {
            None => poller.add(descriptor, Token(token), interest),
            Some(_) => poller.modify(descriptor, Token(token), interest),
        }
        .unwrap();
        self.registered = Some((token, interest));
    }

    fn unregister(&mut self, poller: &mut dyn Poller) {
        if self.registered.take().is_some() {
            poller.remove(self.near.as_fd()).unwrap();
        }
    }
}

fn step(
    poller: &mut dyn Poller,
    connections: &mut [Connection],
    random: &mut fastrand::Rng,
    token: usize,
) {
    let interests = [
        Interest::NONE,
        Interest::READ,
        Interest::WRITE,
        Interest::READ_WRITE,
    ];
    let index = random.usize(..connections.len());
    let connection = &mut connections[index];
    match random.u32(0..20) {
        0..=5 => connection.register(poller, token, interests[random.usize(..4)]),
        6 => connection.unregister(poller),
        7..=9 => {
            if let Some(far) = &mut connection.far {
                // A full buffer serves as well as a write.
                let _ = far.write(&[1; 10]);
            }
        }
        10..=11 => {
            drain(&mut connection.near);
        }
        12 => {
            // The read takes a part, so that readiness outlives it.
            let _ = connection.near.read(&mut [0; 3]);
        }
        13..=14 => fill(&mut connection.near),
        15..=16 => {
            if let Some(far) = &mut connection.far {
                drain(far);
            }
        }
        17 => {
            if let Some(far) = &connection.far {
                let _ = far.shutdown_write();
            }
        }
        18 => connection.far = None,
        _ => {
            // The number is free then, and one of the next connections takes it over.
            connection.unregister(poller);
            *connection = Connection::new();
        }
    }
}

fn agrees(kind: PollerKind, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut poller = poller(kind);
    let mut connections: Vec<_> = (0..24).map(|_| Connection::new()).collect();
    for token in 0..1_500 {
        step(&mut *poller, &mut connections, &mut random, token);
        if random.u32(0..3) == 0 {
            let expected: Report = connections
                .iter()
                .filter_map(Connection::expected)
                .collect();
            assert_eq!(
                ready_now(&mut *poller),
                expected,
                "{kind}, seed {seed}, step {token}"
            );
        }
    }
}

fn random_histories_agree_with_the_oracle(kind: PollerKind) {
    for seed in 0..12 {
        agrees(kind, seed);
    }
}

/// Threads write while the poller blocks without a timeout and reads one piece for each event. A lost readiness leaves
/// bytes unread, and the test blocks for ever.
fn no_readiness_is_lost_between_threads(kind: PollerKind) {
    const PAIRS: usize = 16;
    const BYTES: usize = 20_000;
    let mut poller = poller(kind);
    let (mut readers, writers): (Vec<_>, Vec<_>) =
        (0..PAIRS).map(|_| Stream::pair().unwrap()).unzip();
    for (token, reader) in readers.iter().enumerate() {
        poller
            .add(reader.as_fd(), Token(token), Interest::READ)
            .unwrap();
    }
    let seed = 42;
    let threads: Vec<_> = writers
        .into_iter()
        .enumerate()
        .map(|(index, mut writer)| {
            let mut random = fastrand::Rng::with_seed(seed + index as u64);
            std::thread::spawn(move || {
                let mut left = BYTES;
                while left > 0 {
                    let piece = random.usize(1..400).min(left);
                    match writer.write(&[0; 400][..piece]) {
                        Ok(written) => left -= written,
                        // There is no room: give the reader the processor.
                        Err(_) => std::thread::yield_now(),
                    }
                    if random.u32(0..4) == 0 {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();

    let mut received = [0; PAIRS];
    let mut is_open = [true; PAIRS];
    let mut events = Events::with_capacity(5);
    let mut buffer = [0; 64];
    while is_open.contains(&true) {
        poller.wait(&mut events, None).unwrap();
        for event in &events {
            let token = event.token.0;
            match readers[token].read(&mut buffer) {
                Ok(0) => {
                    is_open[token] = false;
                    poller.remove(readers[token].as_fd()).unwrap();
                }
                Ok(length) => received[token] += length,
                Err(cause) => assert_eq!(cause.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
    }
    assert_eq!(received, [BYTES; PAIRS], "{kind}, seed {seed}");
    for thread in threads {
        thread.join().unwrap();
    }
}
