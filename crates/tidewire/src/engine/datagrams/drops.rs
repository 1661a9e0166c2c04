//! What the kernel threw away for want of room in a socket: counted by the kernel, asked for by the lane.
//!
//! The question is a system call, so it is asked [`DROPS_PAUSE_NS`] after something came and not after every batch, and a
//! last time when the socket is given up; the count is then late, but complete. Rejected: the count that the kernel can
//! write beside every datagram (`SO_RXQ_OVFL`), which says nothing of what was dropped behind the last one that came.

use std::mem;

use super::Core;
use crate::session::SessionId;

/// The sockets at which something came since drops were last counted.
#[derive(Debug, Default)]
pub(crate) struct PlannedDrops {
    sockets: Vec<Place>,
    /// When they are due.
    at_ns: u64,
}

/// Whose socket it is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Port(usize),
    Session(SessionId),
}

impl PlannedDrops {
    /// When the lane must be awake for them.
    #[inline]
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        (!self.sockets.is_empty()).then_some(self.at_ns)
    }

    fn plan(&mut self, place: Place, now_ns: u64) {
        if self.sockets.is_empty() {
            self.at_ns = now_ns.saturating_add(DROPS_PAUSE_NS);
        }
        self.sockets.push(place);
    }
}

impl Core {
    /// Has the drops of a shared socket, at which something came, counted before long.
    pub(crate) fn plan_port_drops(&mut self, port: usize) {
        let drops = &mut self.ports.all[port].kernel_drops;
        if !mem::replace(&mut drops.is_planned, true) {
            self.ports
                .planned_drops
                .plan(Place::Port(port), self.sessions.reactor.now_ns);
        }
    }

    /// The same of a session's own socket.
    pub(crate) fn plan_own_drops(&mut self, slot: usize) {
        let session = &mut self.sessions[slot];
        let Some(peer) = session.stream.datagram_mut() else {
            return;
        };
        if !mem::replace(&mut peer.kernel_drops.is_planned, true) {
            let place = Place::Session(session.id);
            self.ports
                .planned_drops
                .plan(place, self.sessions.reactor.now_ns);
        }
    }

    /// Once a turn: counts what is due.
    #[inline]
    pub(crate) fn count_planned_drops(&mut self) {
        if self
            .ports
            .planned_drops
            .wake_ns()
            .is_some_and(|at| at <= self.sessions.reactor.now_ns)
        {
            self.count_drops();
        }
    }

    /// At sockets of which something came since they were last counted; also the lane's last act at its shared ones.
    pub(crate) fn count_drops(&mut self) {
        let mut sockets = mem::take(&mut self.ports.planned_drops.sockets);
        for place in sockets.drain(..) {
            match place {
                Place::Port(port) => self.count_port_drops(port),
                Place::Session(id) => {
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

/// How long after something came the kernel is asked: a hundred times a second at most.
const DROPS_PAUSE_NS: u64 = 10_000_000;
