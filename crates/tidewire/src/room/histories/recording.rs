//! Sending messages of rooms and topics that keep a history.
//!
//! A message gets its offset while the history is locked. The log of this lane gets the messages of other lanes that
//! precede it, and then the message. The other lanes get its frame with the offset; see [`history`](crate::history).

use std::sync::MutexGuard;

use super::LaneHistories;
use crate::broker::Position;
use crate::history::{MessageHistory, Record, Records, encode_record};
use crate::room::FRAME_OVERHEAD_BYTES_MAX;
use crate::session::{LaneSessions, LogKey, SessionId};

/// The place of the next message in a history. The history is locked, so no other message gets the place. Dropping it
/// records nothing, for a message that was not sent.
pub(in crate::room) struct Recording<'h> {
    history: &'h MessageHistory,
    records: MutexGuard<'h, Records>,
    /// This lane, if it has members.
    receiver: Option<usize>,
}

impl Recording<'_> {
    pub(in crate::room) fn offset(&self) -> u64 {
        self.records.last().offset + 1
    }

    /// Records the message, which was sent.
    pub(in crate::room) fn end(mut self, message: &Record<'_>, sessions: &LaneSessions) {
        let (history, offset) = (self.history, self.offset());
        if let Some(lane) = self.receiver {
            history.note_arrival(&mut self.records, lane, offset);
        }
        history.record(&mut self.records, message, sessions.timers.now_ns());
        history.touch();
        if !history.has_room_for(message) {
            sessions.counters.history_skipped.add(1);
        }
    }
}

impl LaneHistories<'_> {
    /// Locks a history for the next message of a room or topic. The log of this lane gets the earlier messages first.
    pub(in crate::room) fn begin_record<'h>(
        &mut self,
        history: &'h MessageHistory,
        alias: u16,
    ) -> Recording<'h> {
        let mut records = history.lock();
        let receiver = self.open.has(alias).then_some(self.exchange.lane());
        if receiver.is_some() {
            let last = records.last().offset;
            self.catch_up(history, &mut records, alias, last);
        }
        Recording {
            history,
            records,
            receiver,
        }
    }

    /// Appends the messages of a history up to an offset that this lane does not have to its log. A lane whose members
    /// joined without the history begins with the history here.
    pub(super) fn catch_up(
        &mut self,
        history: &MessageHistory,
        records: &mut Records,
        alias: u16,
        to: u64,
    ) {
        let lane = self.exchange.lane();
        let Some(has) = records.has(lane) else {
            return history.note_arrival(records, lane, to);
        };
        if records.is_in_former_epoch(lane) {
            // The number of missing messages of the former epoch is unknown.
            let position = Position {
                offset: has,
                ..records.last()
            };
            self.deliveries().append_position(alias, position);
            history.note_arrival(records, lane, has);
        }
        if has >= to {
            return;
        }
        let is_topic = (self.open.shared(alias)).is_some_and(|shared| shared.is_topic());
        let mut scratch = Vec::new();
        // A history waits for its lanes, but that of a node only up to a limit.
        let first = records.first().clamp(has + 1, to + 1);
        let mut lost = first - (has + 1);
        // The node has counted the holes that follow. It counts in the same number, from its own thread.
        self.sessions.counters.backplane_dropped.add_shared(lost);
        let returns_own = history.returns_own();
        let mut deliveries = self.deliveries();
        for offset in first..=to {
            let Some(message) = records.get(offset, &mut scratch) else {
                lost += 1;
                continue;
            };
            deliveries.append_gap(alias, &mut lost);
            let author = returns_own.then(|| deliveries.session_of_member(alias, message.author()));
            let expected = message.payload().len() + FRAME_OVERHEAD_BYTES_MAX;
            let is_open = deliveries.append_of(alias, author.flatten(), expected, &|codec, out| {
                encode_record(codec, alias, is_topic, offset, &message, out)
            });
            if !is_open {
                return;
            }
        }
        deliveries.append_gap(alias, &mut lost);
        history.note_arrival(records, lane, to);
    }

    /// Handles a message with an offset from another lane.
    pub(in crate::room) fn deliver(
        &mut self,
        alias: u16,
        (offset, author): (u64, SessionId),
        frame: &[u8],
    ) {
        if !self.open.has(alias) {
            // All members of this lane have left. Those that come get the message from the history.
            return;
        }
        let Some(history) = self.open.history(alias) else {
            // The topic keeps a history only since its subscribers came.
            return self.deliveries().deliver(LogKey::main(alias), frame);
        };
        let (lane, now_ns) = (self.exchange.lane(), self.sessions.timers.now_ns());
        let mut records = history.lock();
        let is_former = records.is_in_former_epoch(lane);
        if records.has(lane).is_some_and(|has| offset <= has) && !is_former {
            return;
        }
        // A frame of a former epoch has no position any more. Its offset may be above those of this epoch. Members with
        // other codecs need other frames.
        let last = records.last().offset;
        let has_other_codecs = self.sessions.logs.other_keys(alias).next().is_some();
        let frame = match has_other_codecs || offset <= records.epoch_start() || offset > last {
            true => &[],
            false => frame,
        };
        let offset = offset.min(last);
        if records.has(lane).is_none() {
            // The members joined before the history began. This is its first message for them.
            history.note_arrival(&mut records, lane, offset.saturating_sub(1));
        }
        // The frames of a message that comes from the history may have any length.
        let bytes = match frame {
            [] => usize::MAX / 2,
            frame => frame.len(),
        };
        if !self.deliveries().has_memory_for(alias, bytes) {
            // The history keeps the message meanwhile.
            return self.open.note_behind(alias);
        }
        if frame.is_empty() {
            self.catch_up(&history, &mut records, alias, offset);
            return history.evict(&mut records, now_ns);
        }
        self.catch_up(&history, &mut records, alias, offset - 1);
        let log = LogKey::main(alias);
        self.deliveries().append_frame(log, author, frame);
        history.note_arrival(&mut records, lane, offset);
        history.evict(&mut records, now_ns);
    }

    /// Appends messages that waited in their histories for memory.
    #[cold]
    pub(in crate::room) fn catch_up_all(&mut self) {
        let now_ns = self.sessions.timers.now_ns();
        for alias in self.open.take_behind() {
            let Some(history) = self.open.history(alias) else {
                continue;
            };
            if !self.deliveries().has_memory_for(alias, usize::MAX / 2) {
                self.open.note_behind(alias);
                continue;
            }
            let mut records = history.lock();
            let last = records.last().offset;
            self.catch_up(&history, &mut records, alias, last);
            history.evict(&mut records, now_ns);
        }
    }
}
