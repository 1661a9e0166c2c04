//! Sessions over UDP: sockets that many peers share, and what arrives at them.
//!
//! ```text
//!   socket ─▶ batch of datagrams ─▶ the session of each peer ─▶ decode each by itself ─▶ service
//!                                        │ none: `admit`
//!                                        ▼
//!                     a hello is answered by a challenge; only its answer makes a session
//! ```
//!
//! Every lane has a socket of its own on the port (`SO_REUSEPORT`), and the kernel gives each peer to one of them, until
//! a lane ends and it deals them anew. Rejected: one socket on the first lane that hands datagrams on, which would copy every
//! one of them and make that lane the limit of all. The price is that a handful of peers may all end on one lane.
//!
//! A datagram is decoded by itself. What is wrong with one says nothing of the next, which anybody may have sent in
//! the peer's name, so it is counted and the session goes on; only what a peer says in whole frames ends it. Nothing
//! makes a sender wait: what comes for a session that may not be read now is dropped and counted.
//!
//! `admit` decides whom to make a session for, `unvalidated` keeps the addresses that proved nothing within bounds, `loops`
//! ends servers' answers to each other, `receive` decodes, `send` packs and sends, `drops` counts what the kernel had no room
//! for.

mod admit;
mod drops;
mod loops;
mod receive;
mod send;
mod unvalidated;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use tidewire_io::datagram::{Datagram, DatagramConnectError, DatagramSocket};
use tidewire_io::poller::{Interest, RegisterError, Token};
use tidewire_proto::codec::{Codec, RequestIds};
use tidewire_proto::connection::{Inbound, PauseReason, Phase};
use tidewire_proto::correlate::Arrival;
use tidewire_proto::message::{Kind, Message};

pub(crate) use admit::Cookies;
pub(crate) use drops::{KernelDrops, PlannedDrops};
pub(crate) use loops::LoopWatch;
pub(crate) use unvalidated::{Standing, UnvalidatedSessions};

use super::Core;
use crate::metrics::DatagramDrop;
use crate::session::CloseReason;

/// A socket that the lane's sessions share.
#[derive(Debug)]
pub(crate) struct Port {
    socket: Arc<DatagramSocket>,
    peers: HashMap<SocketAddr, usize>,
    /// Sessions that wait for room in the socket.
    blocked: Vec<usize>,
    kernel_drops: KernelDrops,
}

impl Core {
    /// Watches a socket that the lane's sessions will share.
    pub(crate) fn add_port(&mut self, socket: DatagramSocket) -> Result<(), RegisterError> {
        let token = port_token(self.ports.len());
        self.poller
            .add(std::os::fd::AsFd::as_fd(&socket), token, Interest::READ)?;
        self.ports.push(Port {
            socket: Arc::new(socket),
            peers: HashMap::new(),
            blocked: Vec::new(),
            kernel_drops: KernelDrops::default(),
        });
        Ok(())
    }

    /// Counts a datagram, or the rest of one, that does not go where it was to go.
    #[cold]
    fn drop_datagram(&self, reason: DatagramDrop) {
        self.counters.datagrams_dropped[reason as usize].add(1);
    }

    /// Counts a frame that came before the session was open.
    pub(crate) fn count_early(&self) {
        self.drop_datagram(DatagramDrop::Early);
    }

    /// Whether the session takes a datagram now.
    fn may_take(&self, slot: usize, datagram: &Datagram<'_>) -> bool {
        let session = &self.sessions[slot];
        let connection = &session.connection;
        let reason = match connection.inbound() {
            _ if connection.is_closed() => DatagramDrop::Closing,
            Inbound::Ended => DatagramDrop::Closing,
            Inbound::Paused(_) if !datagram.bytes.is_empty() => DatagramDrop::Paused,
            Inbound::Paused(_) | Inbound::Reading => return true,
        };
        self.drop_datagram(reason);
        false
    }

    /// An address that has not proved itself may be sent as much as it sends.
    #[inline]
    fn allow(&mut self, slot: usize, bytes: usize) {
        if let Some(peer) = self.sessions[slot].stream.datagram_mut()
            && let Some(budget) = &mut peer.budget
        {
            *budget = budget.saturating_add(bytes as u64);
        }
    }

    /// Keeps whole frames of a datagram that may not be handled yet.
    fn keep_rest(&mut self, slot: usize, rest: &[u8]) {
        if rest.is_empty() || self.sessions[slot].connection.inbound() == Inbound::Ended {
            return;
        }
        let mut kept = self.buffers.take();
        kept.extend_from_slice(rest);
        self.sessions[slot].connection.partial.keep_frames(kept);
    }

    /// Reading of a session stops, unless sending its output is all it takes to go on.
    fn stop_datagrams(&mut self, slot: usize) {
        let connection = &mut self.sessions[slot].connection;
        if connection.is_closed() || connection.inbound() == Inbound::Ended {
            return;
        }
        if !connection.is_paused() {
            connection.pause(PauseReason::Output);
        }
        self.counters.reads_paused.add(1);
        self.update_interest(slot);
        self.flush(slot);
    }

    /// Takes note of the order of a peer's requests.
    #[inline(always)]
    pub(crate) fn note_arrival<C: Codec + ?Sized>(
        &mut self,
        slot: usize,
        codec: &C,
        message: &Message<'_>,
    ) {
        let is_asked = matches!(
            message.kind,
            Kind::Request | Kind::Subscribe | Kind::Unsubscribe | Kind::Join | Kind::Leave
        );
        if is_asked {
            self.note_request(slot, codec.ids(), message.id);
        }
    }

    #[inline(never)]
    fn note_request(&mut self, slot: usize, ids: RequestIds, id: u32) {
        let session = &mut self.sessions[slot];
        if session.connection.is_outgoing() {
            return;
        }
        let Some(peer) = session.stream.datagram_mut() else {
            return;
        };
        match peer.arrivals.note(ids, id) {
            Arrival::InTurn | Arrival::Again => {}
            Arrival::After { missing } => self.counters.requests_missing.add(u64::from(missing)),
            Arrival::Late => self.counters.requests_late.add(1),
        }
    }

    /// The server at the other end of a client's socket is not there, or no more.
    fn handle_unreachable(&mut self, slot: usize, error: std::io::Error) {
        let session = &self.sessions[slot];
        let (id, phase) = (session.id, session.connection.phase());
        let Some(peer) = session.stream.datagram() else {
            return;
        };
        let reason = match error.kind() {
            ErrorKind::ConnectionRefused => CloseReason::PeerReset,
            other => CloseReason::Io(other),
        };
        if matches!(phase, Phase::Connecting | Phase::AwaitWelcome) {
            let failure = DatagramConnectError::new(peer.address, error);
            self.connect_failures.push((id, failure.into()));
        }
        self.close(slot, reason);
    }

    /// A session over UDP is taken apart.
    pub(crate) fn forget_peer(&mut self, slot: usize) {
        self.set_standing(slot, Standing::Validated);
        let Some(peer) = self.sessions[slot].stream.datagram() else {
            return;
        };
        match peer.port {
            Some(port) => {
                let address = peer.address;
                self.ports[port].peers.remove(&address);
            }
            None => self.count_own_drops(slot),
        }
    }

    /// The shared socket of the port with this token, if it is one.
    pub(crate) fn port_of(&self, token: Token) -> Option<usize> {
        let port = (usize::MAX - 1 - PORT_FIRST).checked_sub(token.0)?;
        (port < self.ports.len()).then_some(port)
    }
}

/// The poller token of a shared socket: below those of the listeners, above every session's.
fn port_token(port: usize) -> Token {
    Token(usize::MAX - 1 - PORT_FIRST - port)
}

/// How many listeners there may be before the ports in the numbering of tokens.
const PORT_FIRST: usize = 512;
