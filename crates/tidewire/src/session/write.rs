//! Flushes: what a session's output and room messages lead to when they are written.

use std::io::ErrorKind;

use tidewire_io::socket::SocketError;
use tidewire_proto::connection::{Connection, Outbound, PauseReason, Phase, Written};

use super::output::SendOutcome;
use super::{CloseReason, LaneSessions, Membership};
use crate::observe::DatagramDrop;
use crate::observe::trace::Moving;
use crate::transport::Transport;
use crate::transport::datagram::DatagramPeer;

impl LaneSessions {
    /// Flushes every session that got output in this turn.
    pub(crate) fn flush_dirty(&mut self) {
        let mut listed = self.outputs.begin_flush();
        for slot in listed.drain(..) {
            if let Some(session) = self.table.get(slot) {
                self.outputs.of_mut(slot).unlist();
                if !session.connection.output().state().is_blocked() {
                    self.flush(slot);
                } else {
                    self.relief.charge_buffers(session, &self.outputs);
                }
            }
        }
        self.outputs.end_flush(listed);
    }

    /// Writes a session's output in the middle of a turn, unless that would be its last write. Returns whether the
    /// session is still there.
    pub(crate) fn flush_step(&mut self, slot: usize) -> bool {
        let output = self.table[slot].connection.output();
        if output.may_write_early() && !self.outputs.of(slot).is_empty() {
            self.flush(slot);
        }
        !self.table[slot].connection.is_closed()
    }

    /// Writes a session's answers before other sessions of the turn are handled, if there are enough bytes for a write.
    /// The peer can then work on them meanwhile. With few bytes, a write at the end of the turn is cheaper, because
    /// more may come for the session.
    #[inline]
    pub(crate) fn flush_early(&mut self, slot: usize) {
        let Some(session) = self.table.get(slot) else {
            return;
        };
        if self.outputs.of(slot).len() >= EARLY_BYTES
            && session.connection.output().may_write_early()
        {
            self.flush(slot);
        }
    }

    /// Writes a session's output and room messages until all are written or the socket is full.
    pub(crate) fn flush(&mut self, slot: usize) {
        let session = &mut self.table[slot];
        match (
            session.connection.phase(),
            session.connection.output().state(),
        ) {
            (Phase::Connecting | Phase::Securing | Phase::Closed(_), _) => return,
            // This side has ended, or the peer has closed: the output cannot be delivered.
            (_, Outbound::HalfClosed | Outbound::Ending(_) | Outbound::Failed) => {
                self.discard(slot);
                if self.table[slot].stream.has_layers() {
                    self.flush_last(slot);
                }
                return;
            }
            _ if session.stream.preserves_boundaries() => return self.flush_datagrams(slot),
            _ => {}
        }
        let codec = || self.config.codecs.get(session.codec_number()).name();
        let sending = Moving::send(session, codec, &self.counters);
        let flushed = self
            .writer
            .write(session, &mut self.outputs, &mut self.logs);
        sending.end(&self.counters);
        match flushed {
            Ok(true) => {
                self.handle_flushed(slot);
                self.relief
                    .charge_kept_nothing(slot, &self.table, &self.outputs);
                return;
            }
            Ok(false) => {
                session.connection.output_mut().handle_blocked();
                self.update_interest(slot);
            }
            Err(kind) => self.handle_write_failure(slot, kind),
        }
        self.relief.charge_buffers(&self.table[slot], &self.outputs);
    }

    /// Sends a session's output and room messages as datagrams until all are sent or the socket is full.
    fn flush_datagrams(&mut self, slot: usize) {
        let session = &mut self.table[slot];
        let codec = || self.config.codecs.get(session.codec_number()).name();
        let sending = Moving::send(session, codec, &self.counters);
        let sent = self
            .writer
            .send_datagrams(session, &mut self.outputs, &mut self.logs);
        sending.end(&self.counters);
        let peer = session.stream.datagram();
        let port = peer.and_then(DatagramPeer::port);
        match sent {
            SendOutcome::All => self.handle_flushed(slot),
            SendOutcome::Blocked => {
                session.connection.output_mut().handle_blocked();
                self.update_interest(slot);
                if let Some(port) = port {
                    self.outputs.await_port(port, slot);
                }
            }
            SendOutcome::Failed(error) => {
                self.counters.drop_datagram(DatagramDrop::Unsendable);
                tracing::debug!(session = %session.id, %error, "a datagram cannot be sent");
                match port {
                    None => self.handle_unreachable(slot, error),
                    Some(_) => self.table.close(slot, CloseReason::Io(error.kind())),
                }
            }
        }
        self.relief.charge_buffers(&self.table[slot], &self.outputs);
    }

    /// Ends a session over UDP because its server is unreachable.
    pub(crate) fn handle_unreachable(&mut self, slot: usize, error: std::io::Error) {
        let session = &self.table[slot];
        let Some(peer) = session.stream.datagram() else {
            return;
        };
        let reason = match error.kind() {
            ErrorKind::ConnectionRefused => CloseReason::PeerReset,
            other => CloseReason::Io(other),
        };
        if matches!(
            session.connection.phase(),
            Phase::Connecting | Phase::AwaitWelcome
        ) {
            let failure = SocketError::exchanging(peer.address(), error);
            self.connect_failures.note(session.id, failure);
        }
        self.table.close(slot, reason);
    }

    /// Handles a peer that takes no more bytes. Bytes that it sent before may still be unread, and they are read to
    /// their end: a client may say good-bye and close at once.
    fn handle_write_failure(&mut self, slot: usize, kind: ErrorKind) {
        let reset = matches!(
            kind,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted
        );
        if !reset {
            return self.table.close(slot, CloseReason::Io(kind));
        }
        self.table.change(slot, Connection::handle_write_failed);
        self.discard(slot);
        self.update_interest(slot);
    }

    /// Drops and counts everything that waits for a peer that takes no more bytes.
    fn discard(&mut self, slot: usize) {
        let session = &mut self.table[slot];
        self.writer
            .discard(session, &mut self.outputs, &mut self.logs);
        self.relief.charge_buffers(session, &self.outputs);
        self.relief.charge_logs_of(session, &mut self.logs);
        if session.memberships.iter().any(Membership::is_in_group) {
            self.table.list_unwritable(slot);
        }
        self.table.resume(slot, PauseReason::Output);
    }

    /// Writes the last bytes of the layers after this side has ended, and closes a session that only waits for that.
    fn flush_last(&mut self, slot: usize) {
        match self.table[slot].flush_layers() {
            Ok(true) => self.table.change(slot, Connection::handle_ended),
            Ok(false) => {}
            Err(kind) => return self.handle_write_failure(slot, kind),
        }
        self.update_interest(slot);
    }

    /// Handles an empty output: gives the buffer back, resumes reading, and performs a pending end.
    fn handle_flushed(&mut self, slot: usize) {
        let session = &mut self.table[slot];
        let rules = self.config.codecs.rules(session.codec_number());
        let wants_history = self.logs.pass_own(session);
        self.outputs.clear(slot);
        let has_pending = session.unanswered_count() > 0;
        let has_layers = session.stream.has_layers();
        if wants_history {
            self.table.list_resumed(slot);
        }
        self.table.resume(slot, PauseReason::Output);
        let now_ns = self.timers.now_ns();
        let written = self.table.change(slot, |connection| {
            connection.handle_written(rules, has_pending, has_layers, now_ns)
        });
        match written {
            Written::GoOn => {}
            Written::Closed => return,
            Written::Transmit => {
                self.append_control(slot);
                // Only these control frames are left, so the recursion ends after one step.
                return self.flush(slot);
            }
            Written::ShutdownWrite => {
                let session = &mut self.table[slot];
                if let Some(shared) = &session.profile.shared {
                    shared.set_closed();
                }
                let why = session.connection.output().end_reason().ending();
                // If this fails, the peer has gone, and the next read reports it.
                let _ = session.stream.end_output(why);
                if session.stream.pending_bytes() == 0 {
                    self.table.change(slot, Connection::handle_ended);
                }
                // The timeout for the peer's end may have changed.
                self.arm_timer(slot);
            }
        }
        self.update_interest(slot);
    }

    /// Sends the peer the reason of the session's end, if that is possible. It makes one attempt and never waits.
    pub(crate) fn say_end(&mut self, slot: usize, reason: CloseReason) {
        let session = &mut self.table[slot];
        let keeps_order = session.must_keep_order();
        let rules = self.config.codecs.rules(session.codec_number());
        let connection = &mut session.connection;
        let is_told = connection.tell_reason(rules, reason, keeps_order);
        if is_told {
            self.transmit(slot);
        }
        let session = &mut self.table[slot];
        if !session.stream.preserves_boundaries() {
            return self
                .writer
                .write_end(session, &mut self.outputs, is_told, reason);
        }
        let is_gone = matches!(reason, CloseReason::PeerReset | CloseReason::Io(_));
        // An unvalidated address either sent no request, or continues without noticing.
        let is_untold = matches!(reason, CloseReason::Unvalidated | CloseReason::Evicted);
        let is_blocked = session.connection.output().state().is_blocked();
        if !is_blocked
            && !is_gone
            && !is_untold
            && let SendOutcome::All = self.writer.send_output(session, &mut self.outputs)
        {
            // An empty datagram is the end. If this fails, the peer ends the session after a silence.
            let _ = session.stream.shutdown_write();
        }
    }
}

/// Bytes of answers that are worth a write before the end of a turn.
const EARLY_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use tidewire_proto::codec::{Codec, Decoded};
    use tidewire_proto::message::{Kind, Message};

    use super::super::writer::{SLICES_MAX, SLICES_USUAL};
    use super::*;
    use crate::lane::lane;
    use crate::server::Server;
    use crate::session::SendError;

    /// Regression: the deliveries that a message brought forward filled the output, and the message itself was refused.
    #[test]
    fn a_message_is_taken_although_the_deliveries_before_it_fill_the_output() {
        let mut lane = lane(&Server::builder());
        let ((writer, _near), (reader, _far)) = (lane.open_session(), lane.open_session());
        let core = &mut lane.core;
        let [writer, reader] = [writer, reader].map(|slot| core.sessions[slot].id);
        let joined = core.context(writer).rooms().join("room", "writer").unwrap();
        core.context(reader).rooms().join("room", "reader").unwrap();
        core.sessions.flush_dirty();
        let connection = &mut core.sessions[reader.slot()].connection;
        connection.output_mut().handle_blocked();
        let bytes_max = core.config.limits.connections.queue_bytes_max();
        for _ in 0..2 * bytes_max / 10_000 {
            let room = joined.room.0;
            core.rooms().say(writer, room, &[7; 10_000]).unwrap();
        }
        let message = Message::new(Kind::OneWay, 0, b"after them");
        assert_eq!(core.context(writer).send_to(reader, &message), Ok(()));
        assert!(core.sessions.outputs.is_full(reader.slot()));
        let refused = core.context(writer).send_to(reader, &message);
        assert_eq!(refused, Err(SendError::QueueFull));
    }

    #[test]
    fn answers_worth_a_write_go_before_the_turn_ends_and_less_does_not() {
        let mut lane = lane(&Server::builder());
        let (slot, mut far) = lane.open_session();
        let mut bytes = vec![0; 4 * EARLY_BYTES];
        for (length, is_early) in [(EARLY_BYTES - 1, false), (EARLY_BYTES, true)] {
            let sessions = &mut lane.core.sessions;
            sessions.outputs.append_frames(slot, &vec![7; length]);
            sessions.outputs.list(slot);
            sessions.flush_early(slot);
            assert_eq!(far.read(&mut bytes).is_ok(), is_early);
            sessions.flush_dirty();
            assert_eq!(far.read(&mut bytes).is_ok(), !is_early);
            assert!(sessions.outputs.of(slot).is_empty());
        }
    }

    /// Two members take turns, so each one's own messages split the other's into many slices. The test covers few
    /// slices, many slices, and more than one write takes.
    #[test]
    fn messages_between_own_messages_are_written_whole_and_in_order() {
        let mut lane = lane(&Server::builder());
        let (slots, mut peers): (Vec<_>, Vec<_>) =
            [(); 2].map(|()| lane.open_session()).into_iter().unzip();
        let core = &mut lane.core;
        let ids = [slots[0], slots[1]].map(|slot| core.sessions[slot].id);
        let rooms = ["a", "b"].map(|name| {
            let mut cx = core.context(ids[usize::from(name == "b")]);
            cx.rooms().join("room", name).unwrap().room.0
        });
        assert_eq!(rooms[0], rooms[1]);
        // Reads the presence message of the other member.
        core.sessions.flush(slots[0]);
        assert!(peers[0].read(&mut [0; 100]).unwrap() > 0);
        let before = core.counters.room_delivered.read();
        let mut sent = 0_u64;
        for pieces in [1, SLICES_USUAL, SLICES_USUAL + 1, SLICES_MAX, 100] {
            let first = sent;
            for _ in 0..pieces {
                for id in ids {
                    core.rooms().say(id, rooms[0], &sent.to_le_bytes()).unwrap();
                    sent += 1;
                }
            }
            for (number, peer) in peers.iter_mut().enumerate() {
                let before = core.counters.writes.read();
                core.sessions.flush(slots[number]);
                let writes = core.counters.writes.read() - before;
                assert_eq!(writes, pieces.div_ceil(SLICES_MAX) as u64);
                // The messages of the other member.
                let others = (first..sent).filter(|&it| it % 2 != number as u64);
                let mut bytes = vec![0; 1 << 16];
                let count = peer.read(&mut bytes).unwrap();
                let mut rest = &bytes[..count];
                for other in others {
                    let decoded = core.config.codecs.main().decode(rest, usize::MAX).unwrap();
                    let Decoded::Frame { message, consumed } = decoded else {
                        panic!("torn");
                    };
                    assert_eq!(message.kind, Kind::Deliver);
                    assert!(message.payload.ends_with(&other.to_le_bytes()));
                    rest = &rest[consumed..];
                }
                assert!(rest.is_empty(), "nothing of its own");
            }
        }
        assert_eq!(core.counters.room_delivered.read() - before, sent);
    }
}
