//! A chat server that commits faults on purpose and counts each.
//!
//! A load instrument without a reported loss proves nothing until it has detected a real loss. This server speaks TW1
//! like the real one, commits the faults of its [`FaultPlan`], and keeps a [`FaultLedger`] for comparison with the
//! instrument's figures.
//!
//! Rooms are its main purpose. Requests and one-way messages outside of rooms are sent back to their sender.
//!
//! It shares only the framing with the code under test. It has two threads per connection over blocking sockets, one
//! lock around all rooms, and a queue for each receiver: slow, but so simple that its counts can be trusted. Rejected:
//! building it from lanes and room logs, because a bug common to server and client would then cancel out. Rejected: a
//! proxy in front of the real server, because it would have to guess the receivers of each message.
//!
//! ```text
//! reader (one a connection) ──▶ rooms: receivers and faults ──▶ queue ──▶ writer ──▶ socket
//!                                └──────────── ledger ◀──────────────────────┘
//! ```

mod connection;
mod ledger;
mod plan;
mod rooms;
mod shared;
mod token_clock;
mod writer;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

pub use ledger::FaultLedger;
pub use plan::{Disconnect, Every, FaultPlan, SlowReceiver, Stall};
pub use token_clock::TokenClock;

use shared::Shared;

/// A running server on a free TCP port of this machine. Dropping it ends it.
#[derive(Debug)]
pub struct FaultServer {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<Vec<JoinHandle<()>>>>,
}

impl FaultServer {
    /// Starts a server that commits the faults of `plan`.
    ///
    /// # Errors
    /// `InvalidInput` when the plan both swaps and substitutes, because both would apply to the same message. Otherwise
    /// the error of binding a loopback port or starting a thread.
    pub fn start(plan: FaultPlan) -> io::Result<Self> {
        if plan.swap.is_some() && plan.substitute.is_some() {
            let text = "a plan cannot both swap and substitute; run them one after the other";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let shared = Arc::new(Shared::new(plan, listener.local_addr()?));
        let acceptor = thread::Builder::new()
            .name("fault-accept".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || accept(&listener, &shared)
            })?;
        Ok(Self {
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// The address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.shared.address()
    }

    /// The ledger so far. While messages are on their way the figures change.
    #[must_use]
    pub fn ledger(&self) -> FaultLedger {
        *self.shared.ledger()
    }

    /// Stops now, as [`FaultPlan::die_after_messages`] would.
    pub fn kill(&self) {
        self.shared.stop();
    }

    /// Ends the server and returns its final ledger, in which nothing is queued any more. Unwritten deliveries count as
    /// undeliverable, so let the clients finish first.
    #[must_use]
    pub fn finish(mut self) -> FaultLedger {
        self.end();
        *self.shared.ledger()
    }

    fn end(&mut self) {
        self.shared.stop();
        let Some(acceptor) = self.acceptor.take() else {
            return;
        };
        let connections = acceptor.join().unwrap_or_default();
        // A member that was cut off keeps its queue open through its room, so the rooms are cleared here.
        self.shared.rooms().clear();
        for connection in connections {
            if connection.join().is_err() {
                self.shared.note_panic();
            }
        }
        assert!(
            !self.shared.panicked() || thread::panicking(),
            "a thread of the fault server panicked; its counts cannot be believed"
        );
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Accepts until the server stops. A connection from the server itself announces the stop.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) -> Vec<JoinHandle<()>> {
    let mut connections = Vec::new();
    for stream in listener.incoming() {
        if shared.is_stopped() {
            break;
        }
        // A connection that failed before it was accepted is the client's to notice.
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        let spawned = thread::Builder::new()
            .name("fault-reader".to_owned())
            .spawn(move || connection::serve(stream, &shared));
        if let Ok(connection) = spawned {
            connections.push(connection);
        }
    }
    connections
}

#[cfg(test)]
mod tests;
