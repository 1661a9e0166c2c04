//! Sending the history of a room or topic to sessions that join, and to sessions that come back with their position.
//!
//! A history that fits is sent at once, after the reply. A larger one is sent in pieces: the subscriber leaves the log
//! of its lane, and gets the next piece whenever its output is empty. Messages that are sent meanwhile are in the
//! history, too, so the log keeps nothing for the subscriber. When the subscriber has what its lane has, it goes on
//! with the log. So a replay holds one piece for each session, and all replays of a lane together send a bounded number
//! of bytes in a turn, between live messages.
//!
//! Rejected: a cursor in the log at the place of the join. The live messages would wait there, and a slow network would
//! exceed the limit of a slow subscriber again and again.

use tidewire_proto::body::{RecoveryBody, Since};
use tidewire_proto::codec::{AnyCodec, Codec, Subscription};

use super::LaneHistories;
use crate::broker::Position;
use crate::history::{encode_position, encode_record};
use crate::session::{LaneSessions, SessionId, append_with_header};

impl LaneHistories<'_> {
    /// Plans what a session gets of the history of a room or topic that it has just entered.
    pub(super) fn plan_replay(
        &mut self,
        id: SessionId,
        alias: u16,
        since: Option<Since>,
    ) -> Option<RecoveryBody> {
        let history = self.open.history(alias)?;
        let now_ns = self.sessions.timers.now_ns();
        let mut records = history.lock();
        let last = records.last();
        // The client may have messages that this lane does not have yet. They must not come by its log.
        self.catch_up(&history, &mut records, alias, last.offset);
        let (next, recovery) = history.plan(&mut records, since, now_ns);
        drop(records);
        let slot = self.sessions.table.slot_of(id)?;
        let first = (next <= last.offset).then_some(next);
        let LaneSessions { table, logs, .. } = &mut *self.sessions;
        logs.begin_replay(&mut table[slot], alias, first)?;
        let offset = next - 1;
        Some(RecoveryBody {
            position: Position { offset, ..last },
            recovery,
        })
    }

    /// Sends a session that has just entered a room or topic the first piece of its history. The roster comes before
    /// this piece if the piece is the only one, else after the last piece.
    pub(crate) fn begin_replay(&mut self, id: SessionId, alias: u16) {
        let Some((slot, next)) = self.next_of_history(id, alias) else {
            return self.deliveries().push_small_roster(id, alias);
        };
        let bytes_max = match self.sessions.relief.is_short() {
            false => FIRST_PIECE_BYTES,
            true => PIECE_BYTES_MIN,
        };
        let fits = self.open.history(alias).is_some_and(|history| {
            let records = history.lock();
            records.fits(next, records.end_for(self.exchange.lane()), bytes_max)
        });
        if fits {
            self.deliveries().push_small_roster(id, alias);
        }
        self.replay_piece(slot, alias, bytes_max, !fits);
    }

    /// Returns the size of the next pieces for this many sessions at most.
    fn piece_bytes(&self, sessions: usize) -> usize {
        match self.sessions.relief.is_short() {
            false => (TURN_BYTES / sessions.max(1)).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX),
            true => PIECE_BYTES_MIN,
        }
    }

    /// Reads sessions whose output has drained again, and sends them the next pieces of their histories.
    pub(in crate::room) fn resume_drained(&mut self, ready: &mut Vec<usize>) {
        // A replay lists its session again while the next piece is wanted.
        let mut resumed = self.sessions.table.take_resumed();
        let (mut replayed_bytes, piece_bytes) = (0, self.piece_bytes(resumed.len()));
        for slot in resumed.drain(..) {
            let session = self.sessions.table.get(slot);
            let Some(session) = session.filter(|session| !session.connection.is_closed()) else {
                continue;
            };
            // A session that is listed several times has the next piece already. It is listed again when its output is
            // empty.
            if session.is_replayed() && self.sessions.outputs.of(slot).is_empty() {
                match replayed_bytes < TURN_BYTES {
                    true => replayed_bytes += self.replay(slot, piece_bytes),
                    false => self.sessions.table.list_resumed(slot),
                }
            }
            self.sessions.update_interest(slot);
            ready.push(slot);
        }
        self.sessions.table.return_resumed(resumed);
    }

    /// Sends a session the next piece of its histories. Histories that end in the piece share it. Returns its bytes.
    fn replay(&mut self, slot: usize, bytes_max: usize) -> usize {
        let memberships = self.sessions[slot].memberships.iter();
        let replayed = memberships.filter(|it| it.subscriber.next_of_history().is_some());
        let aliases: Vec<u16> = replayed.map(|it| it.room()).collect();
        let mut bytes = 0;
        for alias in aliases {
            if bytes >= bytes_max {
                break;
            }
            bytes += self.replay_piece(slot, alias, bytes_max - bytes, true);
        }
        bytes
    }

    fn next_of_history(&self, id: SessionId, alias: u16) -> Option<(usize, u64)> {
        let slot = self.sessions.table.slot_of(id)?;
        let session = &self.sessions[slot];
        let membership = &session.memberships[session.membership(alias)?];
        Some((slot, membership.subscriber.next_of_history()?))
    }

    /// Sends a session the next piece of a history. Returns its bytes.
    fn replay_piece(
        &mut self,
        slot: usize,
        alias: u16,
        bytes_max: usize,
        roster_follows: bool,
    ) -> usize {
        let id = self.sessions[slot].id;
        let (Some((_, from)), Some(history)) =
            (self.next_of_history(id, alias), self.open.history(alias))
        else {
            return 0;
        };
        let session = &self.sessions[slot];
        let Some(index) = session.membership(alias) else {
            return 0;
        };
        let membership = &session.memberships[index];
        let (is_topic, subscription) = (membership.is_topic(), membership.subscription());
        // A member does not get its own messages, unless it sent them on another connection.
        let own = session.profile.member.as_ref().filter(|_| !is_topic);
        let own = own.map(|member| member.id());
        let records = history.lock();
        let end = records.end_for(self.exchange.lane());
        let epoch = records.last().epoch;
        let at = |offset| Position { epoch, offset };
        let (mut next, mut bytes, mut count) = (from, 0, 0);
        let appended = self.sessions.append_to(id, |_, codec, out| {
            let (start, mut scratch) = (out.len(), Vec::new());
            // An epoch that begins lower ends before the next message of the former epoch.
            if next <= records.epoch_start() || next > end + 1 {
                // The number of missing messages of the former epoch is unknown.
                next = records.epoch_start() + 1;
                if codec.format().has_positions {
                    encode_position(codec, alias, at(next - 1), out)?;
                }
            }
            let first = records.first().min(end + 1);
            let mut gap = first.saturating_sub(next);
            next = next.max(first);
            while next <= end && out.len() - start < bytes_max {
                let offset = next;
                next += 1;
                let Some(message) = records.get(offset, &mut scratch) else {
                    gap += 1;
                    continue;
                };
                if own == Some(message.author()) {
                    continue;
                }
                push_gap(codec, subscription, at(offset), &mut gap, out);
                let frame_at = out.len();
                let appended = append_with_header(codec, subscription, out, |out| {
                    encode_record(codec, alias, is_topic, offset, &message, out)
                });
                count += u64::from(appended.is_ok());
                if appended.is_err() {
                    // The codec cannot express the message.
                    out.truncate(frame_at);
                    gap += 1;
                }
            }
            push_gap(codec, subscription, at(next), &mut gap, out);
            bytes = out.len() - start;
            Ok(())
        });
        drop(records);
        if let Err(error) = appended {
            // A full output is sent the rest when it is empty.
            tracing::debug!(session = %id, %error, "a piece of the history was not sent now");
        }
        self.sessions.counters.history_replayed.add(count);
        self.go_on_from(id, alias, next, end, roster_follows);
        bytes
    }

    /// Notes how far a session was replayed to. A session that has what its lane has goes on with the log.
    fn go_on_from(&mut self, id: SessionId, alias: u16, next: u64, end: u64, roster_follows: bool) {
        let Some(slot) = self.sessions.table.slot_of(id) else {
            return;
        };
        let Some(index) = self.sessions[slot].membership(alias) else {
            return;
        };
        let membership = &mut self.sessions[slot].memberships[index];
        if next <= end {
            return membership.subscriber.replay(next);
        }
        let is_topic = membership.is_topic();
        let LaneSessions { table, logs, .. } = &mut *self.sessions;
        logs.end_replay(&mut table[slot], index);
        if roster_follows && !is_topic {
            self.deliveries().push_small_roster(id, alias);
        }
    }
}

/// Appends the notice that this many messages of the history are missing in front of a position, and that position.
fn push_gap(
    codec: &AnyCodec,
    subscription: Subscription,
    next: Position,
    gap: &mut u64,
    out: &mut Vec<u8>,
) {
    let (lost, alias) = (std::mem::take(gap), subscription.channel);
    if lost == 0 {
        return;
    }
    // A codec without such notices only counts.
    let _ = append_with_header(codec, subscription, out, |out| {
        codec.encode_gap(alias, lost, out)
    });
    if codec.format().has_positions {
        let offset = next.offset - 1;
        let _ = encode_position(codec, alias, Position { offset, ..next }, out);
    }
}

/// Bytes of a history that are sent with the reply. Ten thousand clients that come back at once, and do not read, hold
/// 160 MiB.
const FIRST_PIECE_BYTES: usize = 16 * 1024;

/// Most bytes of a further piece: as many as most sockets accept in one write.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a piece while memory is short, or while many sessions want a piece.
const PIECE_BYTES_MIN: usize = 4 * 1024;

/// Bytes of histories that a lane sends in a turn before it goes on with live messages.
const TURN_BYTES: usize = 1024 * 1024;
