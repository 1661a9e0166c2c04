//! Services that share a server, with their hooks, and chat functions beyond sending messages.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod chat;
mod history;
mod order;
mod parts;
mod recovery;
mod stalled;

use tidewire::{Client, ErrorCode, Event, Kind, OwnedMessage};
use tidewire_testkit::DEADLINE;

/// Returns the channel and the code of the next refusal.
fn refusal(client: &Client) -> (u16, ErrorCode) {
    loop {
        match client.next_event().wait_for(DEADLINE) {
            Some(Event::Refused { channel, code, .. }) => return (channel, code),
            Some(_) => {}
            None => panic!("no refusal came"),
        }
    }
}

/// Returns the next message of this kind.
fn message(client: &Client, kind: Kind) -> OwnedMessage {
    loop {
        match client.next_event().wait_for(DEADLINE) {
            Some(Event::Message(message)) if message.kind == kind => return message,
            Some(_) => {}
            None => panic!("no {kind:?} came"),
        }
    }
}
