//! Writing a session's output and room logs to the socket, in one gathered write.

use std::io::ErrorKind;

use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::connection::{Outbound, PauseReason, Phase, Written};

use super::deliveries::append_with_header;
use super::gather::Wrote;
use super::latest::tell_off_log;
use super::{CloseReason, LaneSessions, Membership, Outputs, SessionId};
use crate::config::Config;
use crate::observe::trace::Moving;
use crate::observe::{DropReason, LaneCounters};
use crate::transport::Transport;

/// The way from output to the transport of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Unchanged, gathered from output and logs.
    Plain,
    /// Log frames are copied after the header of the subscriber.
    WithHeaders,
    /// Everything is copied to the output and adapted to the connection.
    Adapted,
}

impl Way {
    pub(super) fn of(codec: &AnyCodec) -> Self {
        match (
            codec.format().keeps_state(),
            codec.format().delivery_header_bytes_max,
        ) {
            (true, _) => Self::Adapted,
            (false, 0) => Self::Plain,
            (false, _) => Self::WithHeaders,
        }
    }
}

impl LaneSessions {
    /// Flushes every session that got output in this turn.
    pub(crate) fn flush_dirty(&mut self) {
        let mut listed = self.outputs.begin_flush();
        for slot in listed.drain(..) {
            if let Some(session) = self.slab.get(slot) {
                self.outputs.of_mut(slot).unlist();
                if !session.connection.output().state().is_blocked() {
                    self.flush(slot);
                } else {
                    self.charge_buffers(slot);
                }
            }
        }
        self.outputs.end_flush(listed);
    }

    /// Writes a session's output in the middle of a turn, unless that would be its last write. Returns whether the session
    /// is still there.
    pub(crate) fn flush_step(&mut self, slot: usize) -> bool {
        let session = &self.slab[slot];
        if session.connection.output().may_write_early() && !self.outputs.of(slot).is_empty() {
            self.flush(slot);
        }
        !self.slab[slot].connection.is_closed()
    }

    /// Writes a session's answers before other sessions of the turn are handled, if there are enough bytes for a write. The
    /// peer can then work on them meanwhile. With few bytes, a write at the end of the turn is cheaper, because more may
    /// come for the session.
    #[inline]
    pub(crate) fn flush_early(&mut self, slot: usize) {
        let Some(session) = self.slab.get(slot) else {
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
        let session = &self.slab[slot];
        match (
            session.connection.phase(),
            session.connection.output().state(),
        ) {
            (Phase::Connecting | Phase::Securing | Phase::Closed(_), _) => return,
            // This side has ended, or the peer has closed: the output cannot be delivered.
            (_, Outbound::HalfClosed | Outbound::Ending(_) | Outbound::Failed) => {
                self.discard(slot);
                if self.slab[slot].stream.has_layers() {
                    self.flush_last(slot);
                }
                return;
            }
            _ if session.stream.preserves_boundaries() => {
                let sending = Moving::send(&self.slab[slot], &self.config.codec, &self.counters);
                self.flush_datagrams(slot);
                self.charge_buffers(slot);
                return sending.end(&self.counters);
            }
            _ => {}
        }
        let sending = Moving::send(&self.slab[slot], &self.config.codec, &self.counters);
        let flushed = match self.way {
            Way::Plain => self.write_all(slot),
            Way::Adapted => self.write_adapted(slot),
            Way::WithHeaders => self.write_with_headers(slot),
        };
        sending.end(&self.counters);
        match flushed {
            Ok(true) => {
                self.handle_flushed(slot);
                self.charge_kept_nothing(slot);
            }
            Ok(false) => {
                self.block(slot);
                self.charge_buffers(slot);
            }
            Err(kind) => {
                self.handle_write_failure(slot, kind);
                self.charge_buffers(slot);
            }
        }
    }

    /// Writes everything. Returns false if the socket is full.
    #[inline]
    fn write_all(&mut self, slot: usize) -> Result<bool, ErrorKind> {
        if self.slab[slot].memberships.is_empty() {
            return self.write_own(slot);
        }
        loop {
            let is_off_log = self.announce_gaps(slot);
            let (offer, wrote) = self.write_gathered(slot);
            if offer.bytes == 0 {
                return self.flush_layers(slot);
            }
            match wrote {
                Wrote::Bytes(count) | Wrote::Held(count) => {
                    self.account(slot, count);
                    if count < offer.bytes || matches!(wrote, Wrote::Held(_)) {
                        return Ok(false);
                    }
                    if !offer.has_more && !is_off_log {
                        return Ok(true);
                    }
                }
                Wrote::Blocked => return Ok(false),
                Wrote::Failed(kind) => return Err(kind),
            }
        }
    }

    /// Handles a peer that takes no more bytes. Bytes that it sent before may still be unread, and they are read to their
    /// end: a client may say good-bye and close at once.
    pub(super) fn handle_write_failure(&mut self, slot: usize, kind: ErrorKind) {
        let reset = matches!(
            kind,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted
        );
        if !reset {
            return self.close(slot, CloseReason::Io(kind));
        }
        self.change(slot, |connection, _| connection.handle_write_failed());
        self.discard(slot);
        self.update_interest(slot);
    }

    /// Resumes reading after the output that paused it has gone, unless there is another reason to pause.
    fn unpause(&mut self, slot: usize) {
        let connection = &mut self.slab[slot].connection;
        if connection.input_mut().resume(PauseReason::Output) {
            self.resumed.push(slot);
        }
    }

    /// Drops and counts everything that waits for a peer that takes no more bytes, so that no room log keeps it.
    fn discard(&mut self, slot: usize) {
        let Self {
            slab,
            outputs,
            logs,
            ..
        } = self;
        let session = &mut slab[slot];
        let mut dropped = outputs.of_mut(slot).take_room_messages();
        for membership in &mut session.memberships {
            let Some(log) = logs.get_mut(membership.room) else {
                continue;
            };
            let subscriber = &mut membership.subscriber;
            if subscriber.is_off_log() {
                dropped += subscriber.drop_all(log);
            }
            let behind = usize::try_from(subscriber.bytes_behind(log)).unwrap_or(usize::MAX);
            dropped += subscriber.advance(log, behind, &mut Vec::new()).messages;
        }
        outputs.clear(slot);
        let shared = session.profile.shared.as_deref();
        outputs.of_mut(slot).release_outside(shared);
        self.count_undelivered(dropped);
        self.charge_buffers(slot);
        self.charge_rooms_of(slot);
        self.unpause(slot);
    }

    /// Appends notices of lost messages before the messages that follow, and the messages of subscribers that
    /// do not get them from the log. Returns whether there are such subscribers, who may get more once the output is empty.
    pub(super) fn announce_gaps(&mut self, slot: usize) -> bool {
        let Self {
            slab,
            outputs,
            logs,
            config,
            counters,
            resumed,
            ..
        } = self;
        let session = &mut slab[slot];
        let mut has_off_log = false;
        for membership in &mut session.memberships {
            if membership.subscriber.is_off_log() {
                has_off_log = true;
                if tell_off_log(membership, slot, outputs, logs, config, counters) {
                    resumed.push(slot);
                }
                continue;
            }
            announce_gap(membership, session.id, outputs, config, counters);
        }
        has_off_log
    }

    /// Waits until the full socket is writable.
    pub(super) fn block(&mut self, slot: usize) {
        self.slab[slot].connection.output_mut().handle_blocked();
        self.update_interest(slot);
    }

    /// Handles an empty output: gives the buffer back, resumes reading, and performs a pending end.
    pub(super) fn handle_flushed(&mut self, slot: usize) {
        self.pass_own(slot);
        self.outputs.clear(slot);
        let session = &self.slab[slot];
        let has_pending = session.unanswered_count() > 0;
        let has_layers = session.stream.has_layers();
        self.unpause(slot);
        let now_ns = self.timers.now_ns();
        let written = self.change(slot, |connection, rules| {
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
                let session = &mut self.slab[slot];
                if let Some(shared) = &session.profile.shared {
                    shared.set_closed();
                }
                let why = session.connection.output().end_reason().ending();
                // If this fails, the peer has gone, and the next read reports it.
                let _ = session.stream.end_output(why);
                if session.stream.pending_bytes() == 0 {
                    self.change(slot, |connection, _| connection.handle_ended());
                }
                // The timeout for the peer's end may have changed.
                self.arm_timer(slot);
            }
        }
        self.update_interest(slot);
    }

    /// Skips the session's own messages, so that they do not hold the log.
    fn pass_own(&mut self, slot: usize) {
        let Self { slab, logs, .. } = self;
        for membership in &mut slab[slot].memberships {
            let subscriber = &mut membership.subscriber;
            if subscriber.has_own_behind()
                && let Some(log) = logs.get_mut(membership.room)
            {
                subscriber.advance(log, 0, &mut Vec::new());
            }
        }
    }

    /// Sends the peer the reason of the session's end, if that is possible. It makes one attempt and never waits.
    pub(crate) fn last_words(&mut self, slot: usize, reason: CloseReason) {
        let session = &mut self.slab[slot];
        let keeps_order = session.must_keep_order();
        let is_told = session
            .connection
            .tell_reason(&self.config.rules, reason, keeps_order);
        if is_told {
            self.transmit(slot);
        } else if !session.stream.has_layers() {
            return;
        }
        let session = &mut self.slab[slot];
        if session.stream.preserves_boundaries() {
            // Such a transport always sends an explicit end, after the queued output.
            return;
        }
        if self.way == Way::Adapted {
            self.adapt_output(slot);
        }
        let session = &mut self.slab[slot];
        // A failed write means that the peer has gone already.
        if is_told {
            let _ = session.stream.write(self.outputs.of(slot).unsent());
        }
        // Layers need an explicit end for every reason. Without it the peer must treat the end as a truncation.
        let _ = session.stream.end_output(reason.ending());
    }

    /// Counts the room messages in the output of a closing session, which will not get them.
    pub(crate) fn drop_room_messages(&mut self, slot: usize) {
        let messages = self.outputs.of_mut(slot).take_room_messages();
        self.count_undelivered(messages);
    }

    fn count_undelivered(&self, messages: u64) {
        self.counters.room_dropped[DropReason::Closed as usize].add(messages);
    }
}

/// Appends the notice of lost messages to a member's output, if some were lost since the last notice.
#[inline]
pub(super) fn announce_gap(
    membership: &mut Membership,
    id: SessionId,
    outputs: &mut Outputs,
    config: &Config,
    counters: &LaneCounters,
) {
    let lost = membership.subscriber.take_gap();
    if lost == 0 {
        return;
    }
    let (alias, subscription) = (membership.room, membership.subscription());
    let output = outputs.with_buffer(id.slot());
    let encoded = output.append(&config.codec, |codec, out| {
        append_with_header(codec, subscription, out, |out| {
            codec.encode_gap(alias, lost, out)
        })
    });
    match encoded {
        Ok(()) => counters.gaps_announced.add(1),
        Err(error) => tracing::trace!(session = %id, lost, %error, "gap not announced"),
    }
}

/// Bytes of answers that are worth a write before the end of a turn.
const EARLY_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use tidewire_proto::codec::Decoded;
    use tidewire_proto::message::{Kind, Message};

    use super::super::gather::{SLICES_MAX, SLICES_USUAL};
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

    /// Two members take turns, so each one's own messages split the other's into many slices. The test covers few slices,
    /// many slices, and more than one write takes.
    #[test]
    fn what_own_messages_cut_up_is_written_whole_and_in_order() {
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
                    let decoded = core.config.codec.decode(rest, usize::MAX).unwrap();
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
