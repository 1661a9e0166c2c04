//! The drain of a lane when its server ends.

use tidewire_proto::connection::Drain;

use super::Core;

/// Whether the lane ends, and how.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    pub(crate) drain_deadline_ns: Option<u64>,
    pub(crate) stop: bool,
    /// The lane ends because its server does.
    pub(crate) server_ends: bool,
}

impl Ending {
    /// Whether the lane ends with its server. Presence frames are then no longer needed.
    pub(crate) fn is_with_server(&self) -> bool {
        self.stop && self.server_ends
    }
}

impl Core {
    /// Begins the drain: the lane accepts no new connections, sends every peer a go-away, and closes sessions that
    /// are finished.
    pub(crate) fn drain(&mut self, deadline_ns: u64) {
        if self.ending.drain_deadline_ns.is_some() {
            return;
        }
        self.ending.drain_deadline_ns = Some(deadline_ns);
        self.ending.server_ends = true;
        for listener in std::mem::take(&mut self.acceptor.listeners) {
            if let Err(error) = self
                .sessions
                .poller
                .remove(std::os::fd::AsFd::as_fd(&listener.socket))
            {
                tracing::error!(%error, "cannot stop watching a listener");
            }
        }
        self.end_proxied();
        let slots: Vec<usize> = self.sessions.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.sessions.change(slot, |connection, rules| {
                connection.drain(rules, Drain::Shutdown);
            });
            self.sessions.transmit(slot);
            self.sessions.update_interest(slot);
            if self.sessions[slot].connection.may_read() {
                self.sessions.resumed.push(slot);
            }
        }
    }
}
