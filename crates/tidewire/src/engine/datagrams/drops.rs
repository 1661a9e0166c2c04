//! Counts datagrams that the kernel dropped because a socket was full.
//!
//! Reading the kernel's counter is a system call. So a lane reads it [`DROPS_PAUSE_NS`] after a datagram has come,
//! not after every batch, and a last time when the socket is closed. The count is late, but complete. Rejected: the
//! count that the kernel can attach to every datagram (`SO_RXQ_OVFL`), because it misses the drops after the last
//! datagram that came.

use super::Ports;
use crate::session::{LaneSessions, SessionId};

/// The sockets that received datagrams since their drops were last counted.
#[derive(Debug, Default)]
pub(super) struct PlannedDrops {
    sockets: Vec<Socket>,
    /// The time at which they are counted.
    at_ns: u64,
}

/// A socket: the lane's or a session's.
#[derive(Clone, Copy, Debug)]
enum Socket {
    Port(usize),
    Session(SessionId),
}

impl PlannedDrops {
    fn plan(&mut self, socket: Socket, now_ns: u64) {
        if self.sockets.is_empty() {
            self.at_ns = now_ns.saturating_add(DROPS_PAUSE_NS);
        }
        self.sockets.push(socket);
    }
}

impl Ports {
    /// Returns when the lane must wake to count drops.
    #[inline]
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        let planned = &self.planned_drops;
        (!planned.sockets.is_empty()).then_some(planned.at_ns)
    }

    /// Plans the count of drops of a shared socket that has received a datagram.
    pub(crate) fn plan_port_drops(&mut self, port: usize, now_ns: u64) {
        if self.all[port].kernel_drops.plan() {
            self.planned_drops.plan(Socket::Port(port), now_ns);
        }
    }

    /// Plans the count of drops of a session's own socket.
    pub(crate) fn plan_own_drops(&mut self, sessions: &mut LaneSessions, slot: usize) {
        let now_ns = sessions.timers.now_ns();
        let session = &mut sessions[slot];
        let Some(peer) = session.stream.datagram_mut() else {
            return;
        };
        if peer.plan_drops() {
            self.planned_drops.plan(Socket::Session(session.id), now_ns);
        }
    }

    /// Counts the drops that are due. Called once a turn.
    #[inline]
    pub(crate) fn count_planned_drops(&mut self, sessions: &mut LaneSessions) {
        if self
            .wake_ns()
            .is_some_and(|at| at <= sessions.timers.now_ns())
        {
            self.count_drops(sessions);
        }
    }

    /// Counts the drops of all planned sockets. A lane also calls it when it ends.
    pub(crate) fn count_drops(&mut self, sessions: &mut LaneSessions) {
        for socket in self.planned_drops.sockets.drain(..) {
            let more = match socket {
                Socket::Port(port) => {
                    let port = &mut self.all[port];
                    port.kernel_drops.take(&port.socket)
                }
                Socket::Session(id) => {
                    let session = sessions.table.find_mut(id);
                    match session.and_then(|session| session.stream.datagram_mut()) {
                        Some(peer) => peer.take_drops(),
                        None => continue,
                    }
                }
            };
            sessions.counters.kernel_drops.add(more);
        }
    }
}

/// Delay of the count after a datagram, so that there are at most a hundred counts a second.
const DROPS_PAUSE_NS: u64 = 10_000_000;
