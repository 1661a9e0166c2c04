//! The drain of a lane when its server ends.

use tidewire_proto::connection::Drain;

use super::Core;

/// Whether the lane ends, and how.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    drain_deadline_ns: Option<u64>,
    stops: bool,
    /// The lane ends because its server does.
    is_of_server: bool,
}

impl Ending {
    /// Ends the lane after this turn.
    pub(crate) fn stop(&mut self) {
        self.stops = true;
    }

    /// Notes that the server of the lane ends.
    pub(crate) fn note_server_ends(&mut self) {
        self.is_of_server = true;
    }

    /// Whether the lane ends after this turn.
    #[inline]
    pub(crate) fn stops(&self) -> bool {
        self.stops
    }

    pub(crate) fn is_of_server(&self) -> bool {
        self.is_of_server
    }

    /// Whether the lane ends with its server. Presence frames are then no longer needed.
    pub(crate) fn is_with_server(&self) -> bool {
        self.stops && self.is_of_server
    }

    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.drain_deadline_ns.is_some()
    }

    #[inline]
    pub(crate) fn drain_deadline_ns(&self) -> Option<u64> {
        self.drain_deadline_ns
    }
}

impl Core {
    /// Begins the drain: the lane accepts no new connections, sends every peer a go-away, and closes sessions that
    /// are finished.
    pub(crate) fn drain(&mut self, deadline_ns: u64) {
        if self.ending.is_draining() {
            return;
        }
        self.ending.drain_deadline_ns = Some(deadline_ns);
        self.ending.note_server_ends();
        self.acceptor.end(&mut self.sessions, &self.admission);
        for slot in self.sessions.table.slots() {
            self.sessions.drain(slot, Drain::Shutdown);
        }
    }
}
