//! Sessions whose transport has layers: the handshakes before the hello, and reads through the layers. Sessions without
//! layers do not use this module.

use super::Lane;
use crate::engine::CostlyStep;
use crate::service::Service;
use crate::session::close_reason;
use crate::transport::Transport;

impl<S: Service> Lane<S> {
    /// Continues the handshakes of a session's layers, now or in its turn. The session begins when they are over.
    pub(crate) fn secure(&mut self, slot: usize) {
        let session = &self.core.sessions[slot];
        if session.stream.awaits_costly_bytes() && !session.connection.handshake().is_outgoing() {
            return self
                .core
                .handshakes
                .queue_step(&mut self.core.sessions, slot);
        }
        self.secure_now(slot);
    }

    /// Does costly steps of handshakes until the share of this turn is used up. The answers of the turn are written
    /// before.
    pub(super) fn do_costly_steps(&mut self) {
        self.core.sessions.flush_dirty();
        while let Some(step) = self.core.handshakes.next_step(&mut self.core.sessions) {
            match step {
                CostlyStep::Secure(slot) => {
                    self.secure_now(slot);
                    if !self.core.sessions[slot].stream.awaits_costly_bytes() {
                        self.core.counters.handshakes_answered.add(1);
                    }
                }
                CostlyStep::Authenticate(slot, token) => {
                    if self.core.guard().ask_about(slot, &token) {
                        self.open(slot);
                    }
                }
            }
        }
    }

    fn secure_now(&mut self, slot: usize) {
        let core = &mut self.core;
        let began_ns = core.sessions.timers.measured_ns();
        let secured = core.sessions[slot].stream.secure();
        core.handshakes.spend_since(began_ns, &core.sessions);
        match secured {
            Ok(true) => {
                let sessions = &mut core.sessions;
                let session = &mut sessions.table[slot];
                let now_ns = sessions.timers.now_ns();
                if let Some(codec) = session.follow_choice(&sessions.config.codecs, now_ns) {
                    sessions.outputs.open(slot, codec, None);
                }
                sessions.relief.charge_buffers(session, &sessions.outputs);
                if session.stream.has_pings() {
                    session.connection.timing_mut().note_layer_pings();
                }
                if !core.admission.hold_handshake(&mut core.sessions, slot) {
                    return;
                }
                self.begin(slot);
                // Plaintext may have come with the last record of the handshake, and no event announces it.
                if !self.core.sessions[slot].connection.is_closed() {
                    self.read_session(slot);
                }
            }
            Ok(false) => {
                core.sessions.charge_kept(slot);
                core.sessions.update_interest(slot);
                core.admission.hold_handshake(&mut core.sessions, slot);
            }
            Err(error) => core.sessions.table.close(slot, close_reason(&error)),
        }
    }

    /// Notes plaintext and answers that are left in a session's layers after a read.
    #[cold]
    pub(super) fn note_layers_read(&mut self, slot: usize) {
        let stream = &mut self.core.sessions[slot].stream;
        let wakes = stream.wake();
        if stream.pending_bytes() > 0 {
            // An answer of a layer is output like any other.
            self.core.sessions.outputs.list(slot);
        }
        if wakes {
            let (table, ready) = (&mut self.core.sessions.table, &mut self.ready);
            table.note_awake(slot, ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use tidewire_io::poller::{Event, Token};

    use super::*;
    use crate::lane::lane;
    use crate::server::Server;
    use crate::session::CloseReason;

    /// The last record is small, but a socket that has just taken all of the output may be full.
    #[test]
    fn a_session_waits_until_a_full_socket_has_taken_its_last_record() {
        let mut waited = 0;
        for pieces in 0..20 {
            let mut lane = lane(&Server::builder());
            let (slot, mut far) = lane.open_layered_session();
            let sessions = &mut lane.core.sessions;
            for _ in 0..pieces {
                sessions.append_bytes(slot, &[7; 500]);
                sessions.flush(slot);
            }
            sessions.finish(slot, CloseReason::Service, None);
            sessions.flush(slot);
            waited += u32::from(sessions[slot].connection.output().is_ending());
            let (mut received, mut buffer) = (0, [0; 4_096]);
            loop {
                lane.turn();
                match far.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => received += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                let event = Event {
                    token: Token(slot),
                    readable: false,
                    writable: true,
                };
                lane.handle_session_event(slot, event);
            }
            assert_eq!(received, pieces * 500);
            lane.turn();
            let closed = lane.core.counters.closed[CloseReason::Service.index()].read();
            assert_eq!(closed, 1);
        }
        assert!(waited > 0, "the test was to fill the socket");
    }
}
