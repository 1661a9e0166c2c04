//! The order between a session's own output and the messages of its rooms and topics.
//!
//! Problem: a reply goes to the session's output, and a published message to the log of its pattern. A write takes the output first.
//! So a reply overtakes what the same handler published before. Approach: before a frame goes to the output of a session that has
//! unwritten messages in logs, these messages are copied to the output. A session without rooms and subscriptions pays one check,
//! and replies do not even check until something was published.
//!
//! Rejected: to write the session at that moment, because a handler that publishes and replies many times would make a system
//! call for each reply. Rejected: to hold the reply back until the sweep, because a reply would wait for the room's interval.
//!
//! A slow subscriber whose messages do not fit its output keeps them in the log, where its policy applies. Its replies overtake
//! them.

use super::datagrams::pull_from;
use super::write::announce_gap;
use super::{LaneSessions, Logs, Outputs, Session};
use crate::config::Config;
use crate::observe::LaneCounters;

impl LaneSessions {
    /// Copies to a session's output what its rooms and topics have for it, so that the next frame of the output comes after that.
    #[inline]
    pub(crate) fn bring_forward(&mut self, slot: usize) {
        let session = self.slab.get(slot);
        if session.is_some_and(|session| !session.memberships.is_empty()) {
            let Self {
                slab,
                outputs,
                logs,
                config,
                counters,
                ..
            } = self;
            bring_forward(&mut slab[slot], outputs, logs, config, counters);
        }
    }
}

/// See [`LaneSessions::bring_forward`].
#[cold]
#[inline(never)]
pub(super) fn bring_forward(
    session: &mut Session,
    outputs: &mut Outputs,
    logs: &mut Logs,
    config: &Config,
    counters: &LaneCounters,
) {
    if !logs.have_deliveries_for(session) {
        return;
    }
    let bytes_max = config.limits.connections.queue_bytes_max();
    let id = session.id;
    for membership in &mut session.memberships {
        // Its messages in place of the log come when the output is empty.
        if membership.subscriber.is_off_log() {
            continue;
        }
        announce_gap(membership, id, outputs, config, counters);
        pull_from(membership, id.slot(), outputs, logs, config, bytes_max);
    }
}
