//! The poller contract, run over every backend.
//!
//! `contract` holds one test for each sentence of the contract, `crowd` the tests that need many descriptors, and
//! `model` random histories against an oracle and threads against each other. Each backend is a module of the same
//! tests, so that a failure names both.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

mod contract;
mod crowd;
mod model;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use tidewire_io::poller::{Events, Poller, PollerChoice, PollerKind, Token, open};
use tidewire_io::socket::Stream;

/// The report of a wait: the directions of each token.
type Report = BTreeMap<usize, Directions>;

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
struct Directions {
    readable: bool,
    writable: bool,
}

const READABLE: Directions = Directions {
    readable: true,
    writable: false,
};
const WRITABLE: Directions = Directions {
    readable: false,
    writable: true,
};
const BOTH: Directions = Directions {
    readable: true,
    writable: true,
};

const NOW: Option<Duration> = Some(Duration::ZERO);

fn poller(kind: PollerKind) -> Box<dyn Poller> {
    let poller = open(PollerChoice::Only(kind)).unwrap();
    assert_eq!(poller.kind(), kind, "an explicit choice is never replaced");
    poller
}

/// Returns the ready descriptors. It also checks what holds for every wait: no token twice, no event without direction.
fn ready_now(poller: &mut dyn Poller) -> Report {
    let mut events = Events::with_capacity(4_096);
    poller.wait(&mut events, NOW).unwrap();
    report(&events)
}

fn report(events: &Events) -> Report {
    let mut report = Report::new();
    for (index, event) in events.iter().enumerate() {
        assert_eq!(*event, events[index]);
        assert!(event.readable || event.writable);
        let Token(token) = event.token;
        let directions = Directions {
            readable: event.readable,
            writable: event.writable,
        };
        assert_eq!(report.insert(token, directions), None, "reported twice");
    }
    report
}

fn only(token: usize, directions: Directions) -> Report {
    Report::from([(token, directions)])
}

fn nothing() -> Report {
    Report::new()
}

/// Reads until no bytes are left. Returns whether the stream has ended.
fn drain(stream: &mut Stream) -> bool {
    let mut buffer = [0; 4_096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => return false,
            Err(cause) if cause.kind() == ErrorKind::ConnectionReset => return true,
            Err(cause) => panic!("{cause}"),
        }
    }
}

/// Writes until there is no room.
fn fill(stream: &mut Stream) {
    let bytes = [7; 4_096];
    loop {
        match stream.write(&bytes) {
            Ok(_) => {}
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => return,
            Err(cause) if cause.kind() == ErrorKind::BrokenPipe => return,
            Err(cause) if cause.kind() == ErrorKind::ConnectionReset => return,
            Err(cause) => panic!("{cause}"),
        }
    }
}

/// Instantiates tests of the form `fn name(kind: PollerKind)` for every backend.
macro_rules! for_every_poller {
    ($($test:ident),+ $(,)?) => {
        for_every_poller!(@ epoll Epoll $($test)+);
        for_every_poller!(@ poll Poll $($test)+);
        for_every_poller!(@ select Select $($test)+);
        for_every_poller!(@ uring Uring $($test)+);
    };
    (@ $module:ident $kind:ident $($test:ident)+) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    super::$test(tidewire_io::poller::PollerKind::$kind);
                }
            )+
        }
    };
}
use for_every_poller;
