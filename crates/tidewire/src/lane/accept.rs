//! Accepting connections, counting them in, and spreading them over the lanes.
//!
//! One lane watches the listeners and hands connections out in turn. Rejected: a listener per lane on the same port,
//! where the kernel spreads by hash, so that a handful of long-lived sessions may all end on one lane.

use std::sync::Arc;

use tidewire_io::socket::{AcceptError, Accepted};
use tidewire_proto::body::{GoAwayBody, GoAwayCode};
use tidewire_proto::codec::Codec;
use tidewire_proto::connection::Connection;
use tidewire_proto::message::{Kind, Message};

use super::Core;
use super::mailbox::Post;
use crate::address::Endpoint;
use crate::listen::{ListenerTerms, StreamListener};
use crate::transport::{Carrier, Transport};

/// A connection that was accepted, or came from within the process.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) stream: Carrier,
    pub(crate) peer: Option<Endpoint>,
    /// The terms of its listener, if that is a socket.
    pub(crate) listener: Option<Arc<ListenerTerms>>,
}

impl Core {
    /// Accepts what waits at a listener, up to a bound, and spreads it over the lanes.
    pub(crate) fn accept(&mut self, listener: usize, ready: &mut Vec<usize>) {
        for _ in 0..ACCEPTS_PER_EVENT {
            let Some(StreamListener { socket, terms }) = self.listeners.get(listener) else {
                return;
            };
            match socket.accept() {
                Ok(Accepted { stream, peer }) => {
                    let (stream, terms) = (terms.connection(stream), Arc::clone(terms));
                    let peer = peer.map(Endpoint::from);
                    self.place(
                        Arrival {
                            stream,
                            peer,
                            listener: Some(terms),
                        },
                        ready,
                    );
                }
                Err(AcceptError::WouldBlock) => return,
                Err(AcceptError::Aborted) => {}
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    // Ten attempts a second go on for as long as the cause does; the log needs one line of it.
                    if self.now_ns >= self.accept_error_quiet_until_ns {
                        self.accept_error_quiet_until_ns = self.now_ns + REFUSAL_QUIET_NS;
                        tracing::error!(%error, cause, "cannot accept; trying again every 100 ms");
                    }
                    // Counted last, so that whoever sees the number finds the line in the log.
                    self.counters.accept_errors.add(1);
                    self.pause_listener(listener);
                    return;
                }
            }
        }
    }

    /// Counts a connection in and gives it to the lane whose turn it is.
    pub(crate) fn place(&mut self, arrival: Arrival, ready: &mut Vec<usize>) {
        if !self.shared.gate.enter(arrival.peer.as_ref()) {
            self.note_refusal(arrival.peer.as_ref());
            let text = "a limit on the number of sessions is reached";
            return self.turn_away(arrival.stream, GoAwayCode::LimitReached, text);
        }
        let shared = Arc::clone(&self.shared);
        let lanes = shared.lanes.get().map_or(&[][..], Vec::as_slice);
        for _ in 0..lanes.len() {
            self.next_lane += 1;
            if self.next_lane >= lanes.len() {
                self.next_lane = 0;
            }
            if !lanes[self.next_lane].is_retired() {
                break;
            }
        }
        match lanes.get(self.next_lane) {
            Some(other) if self.next_lane != self.lane => {
                if let Err(Post::Adopt(arrival)) = other.post(Post::Adopt(arrival)) {
                    // That lane is drowning or has ended; this one has just shown that it is not.
                    self.adopt(arrival, ready);
                }
            }
            _ => self.adopt(arrival, ready),
        }
    }

    /// Counts a peer that the gate refused, and says so now and then: a flood of them must not become one of lines.
    pub(crate) fn note_refusal(&mut self, peer: Option<&Endpoint>) {
        self.counters.sessions_refused.add(1);
        if self.now_ns >= self.refusal_quiet_until_ns {
            self.refusal_quiet_until_ns = self.now_ns + REFUSAL_QUIET_NS;
            tracing::warn!(
                ?peer,
                "session limit reached, raise `sessions_max` or `sessions_per_address_max`; refusing peers, of whom the \
                 next are not logged for 10 s"
            );
        }
    }

    /// Takes up a connection that the gate has counted.
    pub(crate) fn adopt(&mut self, arrival: Arrival, ready: &mut Vec<usize>) {
        let Arrival {
            stream,
            peer,
            listener,
        } = arrival;
        if self.drain_deadline_ns.is_some() {
            // Another lane accepted it before it learnt of the end.
            self.shared.gate.leave(peer.as_ref());
            self.counters.sessions_refused.add(1);
            return self.turn_away(stream, GoAwayCode::Shutdown, "the server is shutting down");
        }
        let connection = Connection::accepted(&self.shared.rules, stream.delivery(), self.now_ns);
        let is_open = connection.is_open();
        match self.insert(stream, peer, connection) {
            Ok(slot) => {
                self.sessions[slot].listener = listener;
                if is_open {
                    ready.push(slot);
                }
            }
            Err(reason) => {
                // `insert` gave the place at the gate back.
                tracing::warn!(%reason, "an accepted connection could not be watched");
            }
        }
    }

    /// Tells a connection that is not taken up why. One attempt, never a wait.
    pub(super) fn turn_away(&self, mut stream: Carrier, code: GoAwayCode, text: &str) {
        let (mut body, mut frame) = (Vec::new(), Vec::new());
        GoAwayBody { code, text }.encode(&mut body);
        let message = Message::new(Kind::GoAway, 0, &body);
        // A codec that cannot say it, or a peer that is gone: the close alone must do.
        if self.shared.codec.encode(&message, &mut frame).is_ok() {
            let _ = stream.write(&frame);
            let _ = stream.shutdown_write();
        }
    }
}

/// Connections accepted in one go, so that a connection storm does not starve those already open.
const ACCEPTS_PER_EVENT: usize = 64;

/// How long the same failure to accept, or a further refusal, is not logged again.
pub(crate) const REFUSAL_QUIET_NS: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use tidewire_io::socket::Stream;

    use super::*;
    use crate::lane::lane;
    use crate::limits::Limits;
    use crate::server::Server;

    #[test]
    fn a_connection_adopted_during_a_drain_is_refused_told_and_counted() {
        let limits = Limits {
            sessions_max: 1,
            ..Limits::default()
        };
        let mut lane = lane(&Server::builder().limits(limits));
        let handle = lane.core.handle.clone();
        let (near, mut far) = Stream::pair().unwrap();
        // Another lane had accepted and counted it before the end came.
        assert!(lane.core.shared.gate.enter(None));
        let deadline_ns = u64::MAX;
        handle.post(Post::Drain { deadline_ns }).unwrap();
        let arrival = Arrival {
            stream: near.into(),
            peer: None,
            listener: None,
        };
        handle.post(Post::Adopt(arrival)).unwrap();
        lane.take_mail();

        assert_eq!(lane.core.counters.sessions_refused.read(), 1);
        assert_eq!(lane.core.counters.sessions_opened.read(), 0);
        assert!(lane.core.sessions.is_empty());
        assert!(lane.core.shared.gate.enter(None), "its place is free again");
        let mut told = [0; 256];
        let count = far.read(&mut told).unwrap();
        let text = String::from_utf8_lossy(&told[..count]);
        assert!(text.contains("shutting down"), "{text:?}");
        assert_eq!(far.read(&mut told).unwrap(), 0, "and then the end");
    }
}
