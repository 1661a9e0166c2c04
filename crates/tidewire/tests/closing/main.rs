//! Sessions that one side closes with a reason for the other.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod age;
mod client;
mod moves;
mod refused;
mod service;
mod stopper;

use std::time::Duration;

use tidewire::{Backoff, Client, Event};
use tidewire_testkit::{DEADLINE, TestServer};

const SOON: Backoff = Backoff {
    first: Duration::from_millis(1),
    max: Duration::from_millis(20),
};

/// A client that reconnects unless the server forbids it.
fn persistent(server: &TestServer) -> Client {
    let builder = Client::builder().reconnect(SOON);
    builder.connect(&server.url()).wait().unwrap()
}

/// Returns the next event that `find` accepts.
fn event<T>(client: &Client, find: impl Fn(Event) -> Option<T>) -> T {
    loop {
        let event = client.next_event().wait_for(DEADLINE);
        if let Some(found) = find(event.unwrap_or_else(|| panic!("no such event came"))) {
            return found;
        }
    }
}
