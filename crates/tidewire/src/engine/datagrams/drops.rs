//! Counts datagrams that the kernel dropped because a socket was full.
//!
//! Reading the kernel's counter is a system call. So a lane reads it [`DROPS_PAUSE_NS`] after a datagram has come,
//! not after every batch, and a last time when the socket is closed. The count is late, but complete. Rejected: the
//! count that the kernel can attach to every datagram (`SO_RXQ_OVFL`), because it misses the drops after the last
//! datagram that came.

use std::mem;

use super::Core;
use crate::session::SessionId;

/// The sockets that received datagrams since their drops were last counted.
#[derive(Debug, Default)]
pub(crate) struct PlannedDrops {
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
    /// Returns when the lane must wake to count drops.
    #[inline]
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        (!self.sockets.is_empty()).then_some(self.at_ns)
    }

    fn plan(&mut self, socket: Socket, now_ns: u64) {
        if self.sockets.is_empty() {
            self.at_ns = now_ns.saturating_add(DROPS_PAUSE_NS);
        }
        self.sockets.push(socket);
    }
}

impl Core {
    /// Plans the count of drops of a shared socket that has received a datagram.
    pub(crate) fn plan_port_drops(&mut self, port: usize) {
        let drops = &mut self.ports.all[port].kernel_drops;
        if !mem::replace(&mut drops.is_planned, true) {
            self.ports
                .planned_drops
                .plan(Socket::Port(port), self.sessions.now_ns());
        }
    }

    /// Plans the count of drops of a session's own socket.
    pub(crate) fn plan_own_drops(&mut self, slot: usize) {
        let session = &mut self.sessions[slot];
        let Some(peer) = session.stream.datagram_mut() else {
            return;
        };
        if !mem::replace(&mut peer.kernel_drops.is_planned, true) {
            let socket = Socket::Session(session.id);
            self.ports
                .planned_drops
                .plan(socket, self.sessions.now_ns());
        }
    }

    /// Counts the drops that are due. Called once a turn.
    #[inline]
    pub(crate) fn count_planned_drops(&mut self) {
        if self
            .ports
            .planned_drops
            .wake_ns()
            .is_some_and(|at| at <= self.sessions.now_ns())
        {
            self.count_drops();
        }
    }

    /// Counts the drops of all planned sockets. A lane also calls it when it ends.
    pub(crate) fn count_drops(&mut self) {
        let mut sockets = mem::take(&mut self.ports.planned_drops.sockets);
        for socket in sockets.drain(..) {
            match socket {
                Socket::Port(port) => self.count_port_drops(port),
                Socket::Session(id) => {
                    if let Some(slot) = self.sessions.slot_of(id) {
                        self.count_own_drops(slot);
                    }
                }
            }
        }
        self.ports.planned_drops.sockets = sockets;
    }

    fn count_port_drops(&mut self, port: usize) {
        let port = &mut self.ports.all[port];
        let more = port.kernel_drops.take(&port.socket);
        self.counters.kernel_drops.add(more);
    }

    pub(crate) fn count_own_drops(&mut self, slot: usize) {
        if let Some(peer) = self.sessions[slot].stream.datagram_mut() {
            let more = peer.kernel_drops.take(&peer.socket);
            self.counters.kernel_drops.add(more);
        }
    }
}

/// Delay of the count after a datagram, so that there are at most a hundred counts a second.
const DROPS_PAUSE_NS: u64 = 10_000_000;
