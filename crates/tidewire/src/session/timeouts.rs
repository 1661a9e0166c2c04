//! Timeouts of silent sessions: handshakes, partial frames, idle sessions.
//!
//! A session has one timer, which does not move when bytes come. When it fires, it checks how long the session has been
//! silent, and waits for the rest of the time. So timeouts cost nothing per message.

use tidewire_proto::codec::{Codec, Decoded};
use tidewire_proto::connection::{Drain, Overdue};

use super::{CloseReason, LaneSessions, Session, SessionId, close_reason};
use crate::config::Config;
use crate::transport::{ConnectError, Transport};

impl LaneSessions {
    /// Sets the timer to the earliest time at which the session can reach one of its limits.
    pub(crate) fn arm_timer(&mut self, slot: usize) {
        self.timers.arm(&mut self.table[slot], &self.config);
    }

    pub(crate) fn check_session(&mut self, id: SessionId) {
        let Some(slot) = self.table.slot_of(id) else {
            return;
        };
        let (config, now_ns) = (&*self.config, self.timers.now_ns());
        let session = &self.table[slot];
        let age_ns = config.age.and_then(|age| session.age_deadline_ns(age));
        if age_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.retire(slot);
        }
        let is_unvalidated = self.table[slot].is_unvalidated_and_idle();
        let rules = self.config.codecs.rules(self.table[slot].codec_number());
        let overdue = self.table.change(slot, |connection| {
            connection.handle_timeout(rules, now_ns, is_unvalidated)
        });
        match overdue {
            Overdue::Nothing => {}
            Overdue::Ping => self.transmit(slot),
            Overdue::LayerPing => self.ping_layer(slot),
            Overdue::Hello => {
                self.counters.hellos_repeated.add(1);
                self.transmit(slot);
            }
            Overdue::Closed(_) => {
                if let Some(end) = self.table[slot].stream.waiting() {
                    let name = end.name().clone();
                    self.connect_failures
                        .note(id, ConnectError::WaitedInVain { name });
                }
            }
        }
        self.arm_timer(slot);
    }

    /// Asks a session that has reached its maximum age to end. Closes it if its grace period is over, too.
    fn retire(&mut self, slot: usize) {
        if self.table[slot].connection.output().drain() == Some(Drain::Age) {
            return self.table.close(slot, CloseReason::ConnectionAge);
        }
        self.counters.connections_retired.add(1);
        self.drain(slot, Drain::Age);
    }

    /// Asks the peer of a session to end it, and handles what has come from the peer before.
    pub(crate) fn drain(&mut self, slot: usize, why: Drain) {
        let rules = self.config.codecs.rules(self.table[slot].codec_number());
        self.table
            .change(slot, |connection| connection.drain(rules, why));
        self.transmit(slot);
        self.update_interest(slot);
        if self.table[slot].connection.may_read() {
            self.table.list_resumed(slot);
        }
    }

    /// Sends a ping of the session's layers.
    pub(crate) fn ping_layer(&mut self, slot: usize) {
        match self.table[slot].stream.ping() {
            Ok(()) => self.outputs.list(slot),
            Err(error) => self.table.close(slot, close_reason(&error)),
        }
    }

    /// Counts the sessions that have work left: output, pending replies, messages of rooms, or unhandled frames. It
    /// inspects every session, which is acceptable only at the end of a drain.
    pub(crate) fn count_unfinished(&self) -> u64 {
        let is_unfinished = |(slot, session): &(usize, &Session)| {
            session.connection.output().state().is_blocked()
                || !self.outputs.of(*slot).is_empty()
                || session.stream.pending_bytes() > 0
                || session.unanswered_count() > 0
                || self.logs.have_messages_for(session)
                || session.holds_frames(&self.config)
        };
        self.table.into_iter().filter(is_unfinished).count() as u64
    }
}

impl Session {
    /// Whether a whole frame was read from it but not handled, because reading is paused.
    fn holds_frames(&self, config: &Config) -> bool {
        let connection = &self.connection;
        let reaches_peer = connection.is_open() && connection.output().is_writing();
        reaches_peer && connection.input().has_frames() && {
            let bytes = connection.input().bytes();
            let codec = config.codecs.get(self.codec_number());
            let first = codec.decode(bytes, config.limits.connections.frame_bytes_max());
            matches!(first, Ok(Decoded::Frame { .. }))
        }
    }
}
