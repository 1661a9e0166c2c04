//! The order between a session's own output and the messages of its rooms and topics.
//!
//! Problem: a reply goes to the session's output, and a published message to the log of its pattern. A write takes the
//! output first. So a reply overtakes what the same handler published before. Approach: before a frame goes to the
//! output of a session that has unwritten messages in logs, these messages are copied to the output. A session without
//! rooms and subscriptions pays one check, and replies do not even check until something was published.
//!
//! Rejected: to write the session at that moment, because a handler that publishes and replies many times would make a
//! system call for each reply. Rejected: to hold the reply back until the sweep, because a reply would wait for the
//! room's interval.
//!
//! A slow subscriber whose messages do not fit its output keeps them in the log, where its policy applies. Its replies
//! overtake them.

use super::Writer;
use crate::session::{Logs, Outputs, Session};

impl Writer {
    /// Copies to a session's output what its rooms and topics have for it, so that the next frame of the output comes
    /// after that.
    #[inline]
    pub(in crate::session) fn bring_forward(
        &self,
        session: &mut Session,
        outputs: &mut Outputs,
        logs: &mut Logs,
    ) {
        if !session.memberships.is_empty() {
            self.bring_all_forward(session, outputs, logs);
        }
    }

    #[cold]
    #[inline(never)]
    fn bring_all_forward(&self, session: &mut Session, outputs: &mut Outputs, logs: &mut Logs) {
        if !logs.have_deliveries_for(session) {
            return;
        }
        let bytes_max = self.config.limits.connections.queue_bytes_max();
        let id = session.id;
        for membership in &mut session.memberships {
            // Its messages in place of the log come when the output is empty.
            if membership.subscriber.is_off_log() {
                continue;
            }
            self.announce_gap(membership, id, outputs);
            self.pull_from(membership, id, outputs, logs, bytes_max);
        }
    }
}
