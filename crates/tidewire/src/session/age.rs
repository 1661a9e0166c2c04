//! The maximum age of accepted connections, so that clients spread over servers again behind a load balancer.
//!
//! A connection that reaches it gets a go-away, as at a shutdown, and has a grace period to end. Its client connects
//! again, maybe to another server. The age shares the one timer of the session, and needs no state of its own: the time
//! of the opening is in what other threads see of the session, and the jitter is a hash of the session's number.

use tidewire_proto::connection::Drain;

use super::Session;
use crate::config::ConnectionAge;

impl Session {
    /// When the session must be asked to end, or be closed because it was asked and did not.
    pub(super) fn age_deadline_ns(&self, age: ConnectionAge) -> Option<u64> {
        let shared = self.profile.shared.as_ref()?;
        if shared.outgoing || !self.connection.is_open() {
            return None;
        }
        let end_ns = age.end_ns(shared.opened_ns, self.id.number());
        match self.connection.output().drain() {
            None => Some(end_ns),
            Some(Drain::Age) => Some(age.close_ns(end_ns)),
            Some(Drain::Shutdown) => None,
        }
    }
}
