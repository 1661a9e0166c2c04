//! Fan-out: sends messages from the log of a room or topic to its subscribers on this lane, and to the other lanes.

use std::cmp::Reverse;

use tidewire_proto::codec::AnyCodec;
use tidewire_proto::error::EncodeError;
use tidewire_proto::room::RoomLog;

use super::appending::{NewFrame, skip_own};
use super::codecs::{Frame, InEachCodec};
use super::{LaneDeliveries, LaneLogs, OpenRooms, Origin, Room};
use crate::mailbox::{BatchEntry, LaneSet};
use crate::observe::DropReason;
use crate::room::SharedRoom;
use crate::session::{LaneSessions, LogKey, SessionId};
use crate::transport::Transport;

impl OpenRooms {
    /// When the next sweep is due.
    pub(crate) fn sweep_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the next sweep that is due at a time.
    #[inline]
    fn take_due(&mut self, now_ns: u64) -> Option<u16> {
        while let Some(Reverse((at, alias))) = self.due.peek().copied() {
            if at > now_ns {
                return None;
            }
            self.due.pop();
            // The room may have been swept earlier.
            let room = self.get(alias);
            if room.and_then(|room| room.coalescer.due_ns()) == Some(at) {
                return Some(alias);
            }
        }
        None
    }

    /// Whether the log of a room grew by a step in this turn.
    #[inline]
    pub(crate) fn has_grown(&self) -> bool {
        !self.grown.is_empty()
    }
}

impl LaneDeliveries<'_> {
    /// Appends a frame of another lane to a log of a room, or drops it if memory is short. An empty frame stands for a
    /// message that the codec cannot express.
    pub(in crate::room) fn deliver(&mut self, log: LogKey, frame: &[u8]) {
        if frame.is_empty() {
            return self.drop_inexpressible(log, SessionId::NONE);
        }
        match self.has_memory_for(log.alias(), frame.len()) {
            true => self.append_frame(log, SessionId::NONE, frame),
            false => self.drop_for_memory(log),
        }
    }

    /// Appends a frame of another lane to a log of a room. The author may be a session of this lane.
    pub(in crate::room) fn append_frame(&mut self, log: LogKey, author: SessionId, frame: &[u8]) {
        let author = self.sessions.table.slot_of(author);
        let (logs, table) = LaneLogs::of(self.sessions, self.exchange);
        let copy = |_: &AnyCodec, out: &mut Vec<u8>| {
            out.extend_from_slice(frame);
            Ok(())
        };
        let skip = |of: &RoomLog, position, bytes| {
            let session = author.map(|slot| &mut table[slot]);
            skip_own(session, log, of, (position, bytes))
        };
        let _ = self.open.append(logs, log, frame.len(), copy, skip);
    }

    /// Whether the log of a room may grow for a message from another lane.
    #[inline]
    pub(in crate::room) fn has_memory_for(&mut self, alias: u16, bytes: usize) -> bool {
        !self.sessions.relief.is_short() || self.may_deliver(alias, bytes)
    }

    #[cold]
    fn may_deliver(&mut self, alias: u16, bytes: usize) -> bool {
        let logs = &self.sessions.logs;
        let must_grow = |key| logs.get(key).is_some_and(|log| log.must_grow_for(bytes));
        !logs.keys(alias).any(must_grow) || self.sessions.relief_pass().may_grow()
    }

    /// Counts a message from another lane that is dropped because the log of a room must not grow.
    #[cold]
    fn drop_for_memory(&mut self, log: LogKey) {
        let members = self.sessions.logs.members(log);
        let counters = &self.sessions.counters;
        counters.room_offered.add(members as u64);
        counters.room_dropped[DropReason::Memory as usize].add(members as u64);
        let shared = self.open.shared(log.alias());
        if shared.is_some_and(|shared| shared.is_in_group()) {
            // No sweep follows, which would correct the number.
            self.note_unsent(log.alias());
        }
    }

    /// Runs all planned sweeps, because the lane ends before they are due.
    pub(crate) fn sweep_all(&mut self) {
        while let Some(alias) = self.open.take_due(u64::MAX) {
            self.sweep(alias);
        }
    }

    #[inline(always)]
    pub(crate) fn sweep_due(&mut self) {
        if self.open.has_grown() {
            self.sweep_grown(EARLY_SWEEP_BYTES);
        }
        while let Some(alias) = self.open.take_due(self.sessions.timers.now_ns()) {
            self.sweep(alias);
        }
    }

    /// Sweeps logs that grew before their sweep is due: those in which [`EARLY_SWEEP_BYTES`] wait, and those in which
    /// `waiting_min` bytes wait if the sweep makes no system call.
    #[cold]
    pub(crate) fn sweep_grown(&mut self, waiting_min: u64) {
        while let Some(alias) = self.open.grown.pop() {
            let Some(room) = self.open.get(alias) else {
                continue;
            };
            let (_, end, _) = self.sessions.logs.totals(alias);
            let waiting = end.saturating_sub(room.swept);
            let is_worth_it = waiting >= EARLY_SWEEP_BYTES
                || (waiting >= waiting_min && self.is_in_process(room));
            if is_worth_it && room.coalescer.due_ns().is_some() {
                self.sweep(alias);
            }
        }
    }

    /// Returns whether a sweep of this room makes no system call. Members over sockets are mostly among the first
    /// members.
    fn is_in_process(&self, room: &Room) -> bool {
        let mut members = room.members.iter();
        members.all(|slot| self.sessions[*slot].stream.step_bytes() < usize::MAX)
    }

    /// Writes a room's new messages to all its subscribers.
    fn sweep(&mut self, alias: u16) {
        let started_ns = self.sessions.timers.measured_ns();
        let mut index = 0;
        loop {
            let Some(room) = self.open.get(alias) else {
                return;
            };
            let Some(slot) = room.members.get(index).copied() else {
                break;
            };
            index += 1;
            if self.sessions[slot].connection.output().state().is_blocked() {
                self.enforce(slot, alias);
            } else {
                self.sessions.flush(slot);
                if self.sessions[slot].connection.output().state().is_blocked() {
                    self.enforce(slot, alias);
                }
            }
        }
        self.sessions.counters.sweeps.add(1);
        let (_, end, held_bytes) = self.sessions.logs.totals(alias);
        let Some(room) = self.open.get_mut(alias) else {
            return;
        };
        room.swept = end;
        let is_in_group = room.shared.is_in_group();
        room.coalescer
            .handle_sweep(started_ns, self.sessions.timers.measured_ns());
        if held_bytes > QUIET_LOG_BYTES_MAX && room.watched.is_none() {
            self.watch_log(alias, end);
        }
        let LaneSessions { relief, logs, .. } = &mut *self.sessions;
        relief.charge_logs(logs, alias);
        if is_in_group {
            self.note_unsent(alias);
        }
    }

    /// Frames a message once for all subscribers of a room or topic, on this lane and the others. This lane need not
    /// have any.
    #[cold]
    pub(in crate::room) fn append_shared(
        &mut self,
        shared: &SharedRoom,
        bytes_expected: usize,
        offset: Option<u64>,
        origin: &Origin<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), EncodeError> {
        let alias = shared.alias();
        let message = match origin {
            Origin::Local if offset.is_none() => InEachCodec::notice(frame, bytes_expected),
            _ => InEachCodec::by_nobody(frame, bytes_expected),
        };
        let others = shared.others(self.exchange.lane());
        if others.has_other_codecs() {
            message.share(self, shared, offset, origin);
            return Ok(());
        }
        if self.open.has(alias) {
            let appended = message.append(self, alias)?;
            if let Some(appended) = appended.filter(NewFrame::is_for_others) {
                self.send_on(appended, offset, origin, message);
            }
            return Ok(());
        }
        let mut bytes = self.sessions.outputs.take_buffer();
        let encoded = frame(self.sessions.config.codecs.main(), &mut bytes);
        if encoded.is_ok() {
            if others.has_node() {
                self.send_to_nodes(shared, origin);
            }
            self.send_chat_message(others, alias, offset, &bytes);
        }
        self.sessions.outputs.put_buffer(bytes);
        encoded
    }

    /// Sends the frame of a message to other lanes, with the offset that the message has in its history.
    pub(in crate::room) fn send_chat_message(
        &mut self,
        lanes: LaneSet,
        alias: u16,
        offset: Option<u64>,
        frame: &[u8],
    ) {
        let author = SessionId::NONE;
        let entry = match offset {
            None => BatchEntry::Room {
                log: LogKey::main(alias),
                frame,
            },
            Some(number) => BatchEntry::Recorded {
                alias,
                number,
                author,
                frame,
            },
        };
        for lane in lanes.lanes() {
            self.exchange.batch(lane, &entry);
        }
        // One message may go to many logs, so the batches are charged at once and not at the end of the turn.
        let LaneSessions {
            relief, outputs, ..
        } = &mut *self.sessions;
        relief.charge_common(outputs, self.exchange.held_bytes());
    }
}

/// Bytes that the log of a quiet room may hold: a few small messages, so that a room with one message a minute
/// allocates nothing.
const QUIET_LOG_BYTES_MAX: usize = 4 * 1024;

/// Step of growth, a power of two, after which an early sweep may be worth its writes. Rings in memory are written in
/// steps of this size, without a system call.
pub(crate) const GROWTH_STEP_BYTES: u64 = 2 * 1024;

/// Bytes that must wait for each subscriber before a sweep runs early. A write of this size spends most of its time
/// on copying, so a later sweep would save little.
pub(crate) const EARLY_SWEEP_BYTES: u64 = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::lane;
    use crate::server::Server;

    #[test]
    fn a_sweep_worth_its_writes_runs_before_the_turn_ends_and_a_small_one_does_not() {
        let mut lane = lane(&Server::builder());
        let (writer, _near) = lane.open_session();
        let (reader, mut far) = lane.open_session();
        let core = &mut lane.core;
        let [writer, reader] = [writer, reader].map(|slot| core.sessions[slot].id);
        let alias = core.context(writer).rooms().join("room", "writer").unwrap();
        core.context(reader).rooms().join("room", "reader").unwrap();
        core.sessions.flush_dirty();
        core.rooms().deliveries().sweep_due();
        let mut bytes = vec![0; 256 * 1024];
        let payload = [7; 1000];
        for (messages, is_early) in [(3, false), (40, true), (3, false)] {
            let before = (
                core.counters.sweeps.read(),
                core.counters.room_offered.read(),
            );
            for _ in 0..messages {
                core.rooms().say(writer, alias.room.0, &payload).unwrap();
            }
            assert!(core.rooms.open().has_grown());
            core.sweep_early(EARLY_SWEEP_BYTES);
            assert!(!core.rooms.open().has_grown());
            assert_eq!(far.read(&mut bytes).is_ok(), is_early);
            // A sweep that ran early is not run again when the planned time comes.
            core.sessions.pass_time(1_000_000_000);
            core.rooms().deliveries().sweep_due();
            assert_eq!(far.read(&mut bytes).is_ok(), !is_early);
            assert_eq!(core.counters.sweeps.read() - before.0, 1);
            assert_eq!(core.counters.room_offered.read() - before.1, messages);
        }
        let delivered = core.counters.room_delivered.read();
        assert_eq!(delivered, core.counters.room_offered.read());
    }

    /// Regression: each message from a publisher within the process caused a system call for each member over a socket.
    #[test]
    fn a_sweep_worth_no_system_call_runs_early_only_where_it_makes_none() {
        for is_in_process in [false, true] {
            let mut lane = lane(&Server::builder());
            let (writer, _near) = lane.open_inproc_session();
            let (local, mut end) = lane.open_inproc_session();
            let remote = (!is_in_process).then(|| lane.open_session());
            let core = &mut lane.core;
            let ids = [
                Some(writer),
                Some(local),
                remote.as_ref().map(|(slot, _)| *slot),
            ];
            let mut alias = 0;
            for (id, name) in ids.into_iter().flatten().zip(["writer", "local", "remote"]) {
                let id = core.sessions[id].id;
                alias = core.context(id).rooms().join("room", name).unwrap().room.0;
            }
            core.sessions.flush_dirty();
            core.rooms().deliveries().sweep_all();
            let mut bytes = vec![0; 64 * 1024];
            while end.read(&mut bytes).is_ok() {}
            let writer = core.sessions[writer].id;
            for _ in 0..4 {
                core.rooms().say(writer, alias, &[7; 1000]).unwrap();
            }
            core.sweep_early(GROWTH_STEP_BYTES);
            assert_eq!(end.read(&mut bytes).is_ok(), is_in_process);
            for _ in 0..16 {
                core.rooms().say(writer, alias, &[7; 1000]).unwrap();
            }
            core.sweep_early(GROWTH_STEP_BYTES);
            assert!(end.read(&mut bytes).is_ok(), "it is worth its writes");
            let delivered = core.counters.room_delivered.read();
            assert_eq!(delivered, core.counters.room_offered.read());
        }
    }
}
