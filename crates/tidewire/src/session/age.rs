//! The maximum age of accepted connections, so that clients spread over servers again behind a load balancer.
//!
//! A connection that reaches it gets a go-away, as at a shutdown, and has a grace period to end. Its client connects again, maybe to
//! another server. The age shares the one timer of the session, and needs no state of its own: the time of the opening is in
//! what other threads see of the session, and the jitter is a hash of the session's number.

use tidewire_proto::connection::Drain;

use super::{CloseReason, LaneSessions};

impl LaneSessions {
    /// When the session must be asked to end, or be closed because it was asked and did not.
    pub(super) fn age_deadline_ns(&self, slot: usize) -> Option<u64> {
        let age = self.config.age?;
        let session = &self.slab[slot];
        let shared = session.profile.shared.as_ref()?;
        let connection = &session.connection;
        if shared.outgoing || !connection.is_open() {
            return None;
        }
        let end_ns = age.end_ns(shared.opened_ns, session.id.number());
        match connection.output().drain() {
            None => Some(end_ns),
            Some(Drain::Age) => Some(end_ns.saturating_add(age.grace_ns)),
            Some(Drain::Shutdown) => None,
        }
    }

    /// Asks a session that has reached its maximum age to end. Closes it if its grace period is over, too.
    pub(super) fn check_age(&mut self, slot: usize) {
        let deadline_ns = self.age_deadline_ns(slot);
        if deadline_ns.is_none_or(|at| self.timers.now_ns() < at) {
            return;
        }
        if self.slab[slot].connection.output().drain() == Some(Drain::Age) {
            return self.close(slot, CloseReason::ConnectionAge);
        }
        self.change(slot, |connection, rules| {
            connection.drain(rules, Drain::Age);
        });
        self.counters.connections_retired.add(1);
        self.transmit(slot);
        self.update_interest(slot);
        if self.slab[slot].connection.may_read() {
            self.resumed.push(slot);
        }
    }
}
