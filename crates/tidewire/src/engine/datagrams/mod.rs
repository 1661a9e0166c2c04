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

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use tidewire_io::datagram::{Datagram, DatagramSocket, is_own_address};
use tidewire_io::poller::{Interest, PollerError, Token};
use tidewire_proto::codec::Codec;

pub(crate) use admit::Cookies;
use drops::PlannedDrops;
use unvalidated::UnvalidatedSessions;

use crate::config::CodecNumber;
use crate::mailbox::Lanes;
use crate::observe::QuietLog;
use crate::session::LaneSessions;
use crate::transport::datagram::{BoundPort, KernelDrops, Standing};

/// A socket that the lane's sessions share.
#[derive(Debug)]
struct Port {
    socket: Arc<DatagramSocket>,
    codec: CodecNumber,
    peers: HashMap<SocketAddr, usize>,
    /// Sessions that wait until the socket has room.
    blocked: Vec<usize>,
    kernel_drops: KernelDrops,
}

/// The UDP sockets that the lane's sessions share, and the peers of the sessions there.
#[derive(Debug)]
pub(crate) struct Ports {
    all: Vec<Port>,
    planned_drops: PlannedDrops,
    /// Sessions whose addresses are not validated.
    unvalidated: UnvalidatedSessions,
    /// The lanes that share the places of unvalidated addresses.
    lanes: Arc<Lanes>,
    /// Limits the log lines about failures to receive.
    log: QuietLog,
}

impl Ports {
    pub(super) fn new(lanes: Arc<Lanes>) -> Self {
        Self {
            all: Vec::new(),
            planned_drops: PlannedDrops::default(),
            unvalidated: UnvalidatedSessions::default(),
            lanes,
            log: QuietLog::default(),
        }
    }

    /// Watches a socket that the lane's sessions will share.
    pub(super) fn add(
        &mut self,
        sessions: &mut LaneSessions,
        port: BoundPort,
    ) -> Result<(), PollerError> {
        let (socket, codec) = port.into_parts();
        let token = port_token(self.all.len());
        sessions.poller.add(socket.as_fd(), token, Interest::READ)?;
        self.all.push(Port {
            socket: Arc::new(socket),
            codec,
            peers: HashMap::new(),
            blocked: Vec::new(),
            kernel_drops: KernelDrops::default(),
        });
        Ok(())
    }

    /// The number of sockets.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn socket(&self, port: usize) -> Option<Arc<DatagramSocket>> {
        self.all.get(port).map(|port| Arc::clone(&port.socket))
    }

    /// The codec of the peers of a socket.
    pub(crate) fn codec_number(&self, port: usize) -> CodecNumber {
        self.all.get(port).map_or(CodecNumber::MAIN, |it| it.codec)
    }

    /// The session of a peer.
    #[inline]
    pub(crate) fn slot_of(&self, port: usize, peer: SocketAddr) -> Option<usize> {
        self.all[port].peers.get(&peer).copied()
    }

    /// Returns the shared socket with this token, if there is one.
    pub(crate) fn of_token(&self, token: Token) -> Option<usize> {
        let port = (usize::MAX - 1 - PORT_FIRST).checked_sub(token.0)?;
        (port < self.all.len()).then_some(port)
    }

    /// Whether this server listens on the address.
    fn is_own(&self, peer: SocketAddr) -> bool {
        self.all.iter().any(|port| {
            let own = port.socket.local_address();
            own.port() == peer.port()
                && match own.ip().to_canonical() {
                    ip if ip.is_unspecified() => is_own_address(peer),
                    ip => ip == peer.ip().to_canonical(),
                }
        })
    }

    /// Watches the shared sockets that had no room for a session's output.
    #[inline]
    pub(crate) fn watch_waiters(&mut self, sessions: &mut LaneSessions) {
        while let Some((port, slot)) = sessions.outputs.take_port_waiter() {
            self.all[port].blocked.push(slot);
            self.watch(sessions, port, Interest::READ_WRITE);
        }
    }

    /// Flushes the sessions that waited for room in a shared socket.
    pub(crate) fn flush_blocked(&mut self, sessions: &mut LaneSessions, port: usize) {
        let mut blocked = std::mem::take(&mut self.all[port].blocked);
        self.watch(sessions, port, Interest::READ);
        for slot in blocked.drain(..) {
            let waits = sessions.table.get(slot).is_some_and(|session| {
                let peer = session.stream.datagram();
                session.connection.output().state().is_blocked()
                    && peer.is_some_and(|peer| peer.port() == Some(port))
            });
            if waits {
                let now_ns = sessions.timers.now_ns();
                sessions[slot].connection.handle_writable(now_ns);
                sessions.flush(slot);
            }
        }
        // The sessions that are blocked again are still among the waiters.
        self.all[port].blocked = blocked;
    }

    fn watch(&self, sessions: &mut LaneSessions, port: usize, interest: Interest) {
        let socket = self.all[port].socket.as_fd();
        let watched = sessions.poller.modify(socket, port_token(port), interest);
        if let Err(error) = watched {
            tracing::error!(%error, "cannot change how a datagram socket is watched");
        }
    }

    /// Checks a datagram of an unvalidated address for a loop. Returns whether to ignore it.
    #[inline]
    pub(crate) fn is_looping<C: Codec + ?Sized>(
        &mut self,
        sessions: &mut LaneSessions,
        slot: usize,
        datagram: &Datagram<'_>,
        codec: &C,
    ) -> bool {
        let Some(peer) = sessions[slot].stream.datagram_mut() else {
            return false;
        };
        if !peer.is_unproven() {
            return false;
        }
        let is_looping = peer.is_looping(datagram.bytes, codec);
        let standing = peer.standing();
        if unvalidated::may_be_established(sessions, standing) {
            self.unvalidated
                .establish(sessions, slot, self.lanes.count());
        }
        is_looping
    }

    /// Counts and logs that a shared socket cannot receive. No peer can make it fail. A lasting failure is met again at
    /// the next read.
    pub(crate) fn note_failure(&mut self, sessions: &LaneSessions, error: &io::Error) {
        if let Some(unlogged) = self.log.may_log(sessions.timers.now_ns()) {
            tracing::error!(%error, unlogged, "cannot receive datagrams");
        }
        sessions.counters.accept_errors.add(1);
    }

    /// Forgets the peer of a UDP session that is being removed.
    pub(super) fn forget_peer(&mut self, sessions: &mut LaneSessions, slot: usize) {
        self.unvalidated
            .set_standing(sessions, slot, Standing::Validated);
        let Some(peer) = sessions[slot].stream.datagram_mut() else {
            return;
        };
        match peer.port() {
            Some(port) => {
                self.all[port].peers.remove(&peer.address());
            }
            None => {
                let more = peer.take_drops();
                sessions.counters.kernel_drops.add(more);
            }
        }
    }
}

/// Returns the poller token of a shared socket. It is below those of the listeners and above every session's.
fn port_token(port: usize) -> Token {
    Token(usize::MAX - 1 - PORT_FIRST - port)
}

/// Number of tokens that are reserved for listeners above those of the ports.
const PORT_FIRST: usize = 512;
