//! Timeouts of silent sessions: handshakes, partial frames, idle sessions.
//!
//! A session has one timer, which does not move when bytes come. When it fires, it checks how long the session has been
//! silent, and waits for the rest of the time. So timeouts cost nothing per message.

use tidewire_proto::codec::{Codec, Decoded};
use tidewire_proto::connection::Overdue;

use super::TimerKey;
use super::{LaneSessions, Session, SessionId, close_reason};
use crate::transport::ConnectError;
use crate::transport::Transport;

impl LaneSessions {
    /// Sets the timer to the earliest time at which the session can reach one of its limits.
    pub(crate) fn arm_timer(&mut self, slot: usize) {
        let is_unvalidated = self.slab[slot].is_unvalidated_and_idle();
        let session = &mut self.slab[slot];
        let deadline_ns = session.connection.poll_timeout(
            &self.config.rules,
            self.timers.now_ns(),
            is_unvalidated,
        );
        let age_ns = self.age_deadline_ns(slot).unwrap_or(u64::MAX);
        let session = &mut self.slab[slot];
        let timer = deadline_ns.map(|deadline_ns| deadline_ns.min(age_ns));
        let timer =
            timer.map(|deadline_ns| self.timers.set(deadline_ns, TimerKey::Session(session.id)));
        if let Some(former) = std::mem::replace(&mut session.timer, timer) {
            self.timers.cancel(former);
        }
    }

    pub(crate) fn check_session(&mut self, id: SessionId) {
        let Some(slot) = self.slot_of(id) else { return };
        self.slab[slot].timer = None;
        self.check_age(slot);
        let now_ns = self.timers.now_ns();
        let is_unvalidated = self.slab[slot].is_unvalidated_and_idle();
        let overdue = self.change(slot, |connection, rules| {
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
                if let Some(name) = self.slab[slot].stream.awaited() {
                    let name = name.clone();
                    let failure = ConnectError::WaitedInVain { name };
                    self.connect_failures.push((id, failure));
                }
            }
        }
        self.arm_timer(slot);
    }

    /// Sends a ping of the session's layers.
    pub(crate) fn ping_layer(&mut self, slot: usize) {
        match self.slab[slot].stream.ping() {
            Ok(()) => self.outputs.list(slot),
            Err(error) => self.close(slot, close_reason(&error)),
        }
    }

    /// Counts the sessions that have work left: output, pending replies, messages of rooms, or unhandled frames. It inspects
    /// every session, which is acceptable only at the end of a drain.
    pub(crate) fn count_unfinished(&self) -> u64 {
        let mut unfinished = 0;
        for (slot, session) in &self.slab {
            let is_unfinished = session.connection.output().state().is_blocked()
                || !self.outputs.of(slot).is_empty()
                || session.stream.pending_bytes() > 0
                || session.unanswered_count() > 0
                || self.logs.have_messages_for(session)
                || self.holds_frames(session);
            unfinished += u64::from(is_unfinished);
        }
        unfinished
    }

    /// Whether a whole frame was read from it but not handled, because reading is paused.
    fn holds_frames(&self, session: &Session) -> bool {
        let connection = &session.connection;
        let reaches_peer = connection.is_open() && connection.output().is_writing();
        reaches_peer && connection.input().has_frames() && {
            let codec = self.input_codec(session.id.slot());
            let bytes = connection.input().bytes();
            let first = codec.decode(bytes, self.config.limits.connections.frame_bytes_max());
            matches!(first, Ok(Decoded::Frame { .. }))
        }
    }
}
