//! Sessions over UDP: sockets that many peers share, and the datagrams that arrive at them.
//!
//! ```text
//!   socket ─▶ batch of datagrams ─▶ the session of each peer ─▶ decode each by itself ─▶ service
//!                                        │ none: `admit`
//!                                        ▼
//!                     a hello is answered by a challenge; only its answer makes a session
//! ```
//!
//! Every lane has its own socket on the port (`SO_REUSEPORT`). The kernel assigns each peer to one of them, and
//! assigns anew when a lane ends. Rejected: one socket on the first lane, which would copy every datagram to another
//! lane and limit the rate of all. The price is that a few peers may all be on one lane.
//!
//! Each datagram is decoded separately. Any host may forge a datagram with the peer's address. So an error in one is
//! counted and the session goes on; only valid frames of the peer end the session. UDP has no back pressure: a datagram
//! for a paused session is dropped and counted.
//!
//! `admit` decides which addresses get a session, `unvalidated` limits the addresses that are not validated, and
//! `drops` counts the datagrams that the kernel dropped. The lane decodes (`lane/datagrams`), sessions send
//! (`session/datagrams`), and the transport ends loops of answers between servers (`transport/datagram/loops`).

mod admit;
mod drops;
mod unvalidated;

use crate::transport::datagram::KernelDrops;
use crate::transport::datagram::Standing;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tidewire_io::datagram::{Datagram, DatagramSocket};
use tidewire_io::poller::{Interest, RegisterError, Token};
use tidewire_proto::codec::{Codec, RequestIds};
use tidewire_proto::connection::{Inbound, PauseReason};
use tidewire_proto::correlate::Arrival;
use tidewire_proto::message::{Kind, Message};

pub(crate) use admit::Cookies;
pub(crate) use drops::PlannedDrops;
pub(crate) use unvalidated::UnvalidatedSessions;

use super::Core;
use crate::observe::DatagramDrop;

/// A socket that the lane's sessions share.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) socket: Arc<DatagramSocket>,
    pub(crate) peers: HashMap<SocketAddr, usize>,
    /// Sessions that wait until the socket has room.
    blocked: Vec<usize>,
    kernel_drops: KernelDrops,
}

/// The UDP sockets that the lane's sessions share.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    pub(crate) all: Vec<Port>,
    pub(crate) planned_drops: PlannedDrops,
    /// UDP sessions whose addresses are not validated.
    pub(crate) unvalidated: UnvalidatedSessions,
}

impl Core {
    /// Watches the shared sockets that had no room for a session's output.
    #[inline]
    pub(crate) fn watch_port_waiters(&mut self) {
        while let Some((port, slot)) = self.sessions.port_waiters.pop() {
            self.ports.all[port].blocked.push(slot);
            self.watch_port(port, Interest::READ_WRITE);
        }
    }

    /// Flushes the sessions that waited for room in a shared socket.
    pub(crate) fn flush_blocked(&mut self, port: usize) {
        let mut blocked = std::mem::take(&mut self.ports.all[port].blocked);
        self.watch_port(port, Interest::READ);
        for slot in blocked.drain(..) {
            let waits = self.sessions.get(slot).is_some_and(|session| {
                session.connection.output().state().is_blocked()
                    && session
                        .stream
                        .datagram()
                        .is_some_and(|peer| peer.port == Some(port))
            });
            if waits {
                let now_ns = self.sessions.now_ns();
                self.sessions[slot].connection.handle_writable(now_ns);
                self.sessions.flush(slot);
            }
        }
        let again = std::mem::replace(&mut self.ports.all[port].blocked, blocked);
        self.ports.all[port].blocked.extend(again);
    }

    fn watch_port(&mut self, port: usize, interest: Interest) {
        let socket = std::os::fd::AsFd::as_fd(&*self.ports.all[port].socket);
        if let Err(error) = self
            .sessions
            .poller
            .modify(socket, port_token(port), interest)
        {
            tracing::error!(%error, "cannot change how a datagram socket is watched");
        }
    }

    /// Watches a socket that the lane's sessions will share.
    pub(crate) fn add_port(&mut self, socket: DatagramSocket) -> Result<(), RegisterError> {
        let token = port_token(self.ports.all.len());
        self.sessions
            .poller
            .add(std::os::fd::AsFd::as_fd(&socket), token, Interest::READ)?;
        self.ports.all.push(Port {
            socket: Arc::new(socket),
            peers: HashMap::new(),
            blocked: Vec::new(),
            kernel_drops: KernelDrops::default(),
        });
        Ok(())
    }

    /// Counts a frame that came before the session was open.
    pub(crate) fn count_early(&self) {
        self.sessions.drop_datagram(DatagramDrop::Early);
    }

    /// Whether the session accepts a datagram now. Counts the datagram as dropped if not.
    pub(crate) fn may_take(&self, slot: usize, datagram: &Datagram<'_>) -> bool {
        let session = &self.sessions[slot];
        let connection = &session.connection;
        let reason = match connection.input().state() {
            _ if connection.is_closed() => DatagramDrop::Closing,
            Inbound::Ended => DatagramDrop::Closing,
            Inbound::Paused(_) if !datagram.bytes.is_empty() => DatagramDrop::Paused,
            Inbound::Paused(_) | Inbound::Reading => return true,
        };
        self.sessions.drop_datagram(reason);
        false
    }

    /// Raises the budget of an unvalidated address: it may be sent as many bytes as it sends.
    #[inline]
    pub(crate) fn allow(&mut self, slot: usize, bytes: usize) {
        if let Some(peer) = self.sessions[slot].stream.datagram_mut()
            && let Some(budget) = &mut peer.budget
        {
            *budget = budget.saturating_add(bytes as u64);
        }
    }

    /// Keeps whole frames of a datagram that must not be handled yet.
    pub(crate) fn keep_rest(&mut self, slot: usize, rest: &[u8]) {
        if rest.is_empty() || self.sessions[slot].connection.input().state() == Inbound::Ended {
            return;
        }
        let mut kept = self.sessions.outputs.take_buffer();
        kept.extend_from_slice(rest);
        self.sessions[slot].connection.input_mut().keep_frames(kept);
    }

    /// Pauses the reading of a session until its output is sent.
    pub(crate) fn stop_datagrams(&mut self, slot: usize) {
        let connection = &mut self.sessions[slot].connection;
        if connection.is_closed() || connection.input().state() == Inbound::Ended {
            return;
        }
        if !connection.input().is_paused() {
            connection.input_mut().pause(PauseReason::Output);
        }
        self.counters.reads_paused.add(1);
        self.sessions.update_interest(slot);
        self.sessions.flush(slot);
    }

    /// Counts requests of a peer that are missing or late. Returns whether the message is a copy of a request, which the network
    /// made: then it is dropped.
    #[inline(always)]
    pub(crate) fn note_arrival<C: Codec + ?Sized>(
        &mut self,
        slot: usize,
        codec: &C,
        message: &Message<'_>,
    ) -> bool {
        let is_asked = matches!(
            message.kind,
            Kind::Request | Kind::Subscribe | Kind::Unsubscribe | Kind::Join | Kind::Leave
        );
        is_asked && self.note_request(slot, codec.format().ids, message.id)
    }

    #[inline(never)]
    fn note_request(&mut self, slot: usize, ids: RequestIds, id: u32) -> bool {
        let session = &mut self.sessions[slot];
        if session.connection.handshake().is_outgoing() {
            return false;
        }
        let unanswered = session.unanswered.as_deref();
        let is_pending = unanswered.is_some_and(|unanswered| unanswered.has(id));
        let Some(peer) = session.stream.datagram_mut() else {
            return false;
        };
        // A session that is never asked anything keeps no ids.
        let is_recent = ids == RequestIds::Bits32 && peer.recent.get_or_insert_default().note(id);
        if is_pending || is_recent {
            self.counters.requests_repeated.add(1);
            return true;
        }
        match peer.arrivals.note(ids, id) {
            Arrival::InTurn | Arrival::Again => {}
            Arrival::After { missing } => self.counters.requests_missing.add(u64::from(missing)),
            Arrival::Late => self.counters.requests_late.add(1),
        }
        false
    }

    /// Forgets the peer of a UDP session that is being removed.
    pub(crate) fn forget_peer(&mut self, slot: usize) {
        self.set_standing(slot, Standing::Validated);
        let Some(peer) = self.sessions[slot].stream.datagram() else {
            return;
        };
        match peer.port {
            Some(port) => {
                let address = peer.address;
                self.ports.all[port].peers.remove(&address);
            }
            None => self.count_own_drops(slot),
        }
    }

    /// Returns the shared socket with this token, if there is one.
    pub(crate) fn port_of(&self, token: Token) -> Option<usize> {
        let port = (usize::MAX - 1 - PORT_FIRST).checked_sub(token.0)?;
        (port < self.ports.all.len()).then_some(port)
    }
}

/// Returns the poller token of a shared socket. It is below those of the listeners and above every session's.
fn port_token(port: usize) -> Token {
    Token(usize::MAX - 1 - PORT_FIRST - port)
}

/// Number of tokens that are reserved for listeners above those of the ports.
const PORT_FIRST: usize = 512;
