//! Behaviour that only in-process connections have: names, connecting before there is a server, and dropped ends. The
//! conformance suite covers the common behaviour with sockets.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod caller;
mod ends;
mod names;
mod visits;
mod waiting;

use tidewire::address::Address;
use tidewire::metrics::Metrics;
use tidewire::{Client, ConnectError, Endpoint, Server};
use tidewire_testkit::fixtures::{codec, echo};
use tidewire_testkit::{DEADLINE, assert_conserved};

pub(crate) fn endpoint(text: &str) -> Endpoint {
    text.parse::<Address>().unwrap().resolve().unwrap()
}

pub(crate) fn stop(server: Server) -> Metrics {
    let stopped = server.shutdown(DEADLINE);
    assert_conserved(&stopped);
    stopped.metrics
}

pub(crate) fn connect_failure(outcome: Result<Client, ConnectError>) -> ConnectError {
    match outcome {
        Err(error) => error,
        other => panic!("not an in-process failure: {other:?}"),
    }
}
