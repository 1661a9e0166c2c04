//! Fan-out: from the log of a room or topic to its subscribers on this lane, and on to the other lanes.

use std::cmp::Reverse;

use tidewire_proto::error::EncodeError;

use super::rooms::LaneRooms;
use crate::mailbox::BatchEntry;
use crate::observe::DropReason;
use crate::session::Outbox;

impl LaneRooms<'_> {
    /// An entry of a batch from another lane.
    pub(crate) fn deliver_entry(&mut self, entry: &BatchEntry<'_>) {
        match *entry {
            BatchEntry::Session { id, frame } => {
                // A session that is gone or full is counted in `sends_refused` by `send_to` itself.
                let result = self.exchange.send_to(self.sessions, id, |_, out| {
                    out.extend_from_slice(frame);
                    Ok(())
                });
                if let Err(error) = result {
                    tracing::trace!(session = %id, %error, "a message from another lane was refused");
                }
            }
            BatchEntry::Recorded {
                alias,
                number,
                frame,
            } => {
                self.note_arrival(alias, number);
                self.deliver_entry(&BatchEntry::Room { alias, frame });
            }
            BatchEntry::Remove { id, alias } => self.remove(id, alias),
            BatchEntry::Room { alias, frame } => {
                if self.sessions.is_short_of_memory() && !self.may_deliver(alias, frame.len()) {
                    return self.drop_for_memory(alias);
                }
                let Some(log) = self.sessions.outbox.logs.get_mut(alias) else {
                    return;
                };
                let appended = log.append_with::<EncodeError>(frame.len(), |out| {
                    out.extend_from_slice(frame);
                    Ok(())
                });
                if let Ok((position, bytes)) = appended {
                    self.count_and_plan(alias, position, bytes, 0);
                }
            }
        }
    }

    /// Whether a message from another lane may be appended to the log of a room.
    #[cold]
    fn may_deliver(&mut self, alias: u16, bytes: usize) -> bool {
        let log = self.sessions.outbox.logs.get(alias);
        log.is_none_or(|log| !log.must_grow_for(bytes)) || self.sessions.may_grow()
    }

    /// Counts a message from another lane that the log of a room may not grow for.
    #[cold]
    fn drop_for_memory(&self, alias: u16) {
        let members = self.table.get(alias).map_or(0, |room| room.members.len());
        let counters = &self.sessions.counters;
        counters.room_offered.add(members as u64);
        counters.room_dropped[DropReason::Memory as usize].add(members as u64);
    }

    /// Runs every sweep that is planned, because no later one will be.
    pub(crate) fn sweep_all(&mut self) {
        while let Some(Reverse((_, alias))) = self.table.due.pop() {
            self.sweep(alias);
        }
    }

    /// Runs every sweep that is due.
    pub(crate) fn sweep_due(&mut self) {
        while let Some(Reverse((at, alias))) = self.table.due.peek().copied() {
            if at > self.sessions.reactor.now_ns {
                return;
            }
            self.table.due.pop();
            self.sweep(alias);
        }
    }

    /// Writes a room's news to all its subscribers.
    fn sweep(&mut self, alias: u16) {
        let started_ns = self.sessions.reactor.clock.now_ns();
        let mut index = 0;
        loop {
            let Some(Some(room)) = self.table.rooms.get(usize::from(alias)) else {
                return;
            };
            let Some(slot) = room.members.get(index).copied() else {
                break;
            };
            index += 1;
            if self.sessions[slot].connection.outbound().is_blocked() {
                self.enforce(slot, alias);
            } else {
                self.sessions.flush(slot);
                if self.sessions[slot].connection.outbound().is_blocked() {
                    self.enforce(slot, alias);
                }
            }
        }
        self.sessions.counters.sweeps.add(1);
        let Some(Some(room)) = self.table.rooms.get_mut(usize::from(alias)) else {
            return;
        };
        room.coalescer
            .handle_sweep(started_ns, self.sessions.reactor.clock.now_ns());
        self.sessions.charge_log(alias);
    }

    /// The newest frame of a room's log goes to the lanes that have members, and a sweep is planned here.
    /// `own` is 1 if its author is a subscriber of this lane's log, else 0.
    #[inline]
    pub(super) fn handle_appended(&mut self, alias: u16, position: u64, bytes: usize, own: u64) {
        let others = self.count_and_plan(alias, position, bytes, own);
        if others != 0 {
            self.pass_on(alias, bytes, others);
        }
    }

    /// Sends the newest frame of a room's log to the lanes whose bits are set.
    #[inline(never)]
    fn pass_on(&mut self, alias: u16, bytes: usize, others: u64) {
        let Outbox { logs, buffers, .. } = &mut self.sessions.outbox;
        let Some(log) = logs.get(alias) else {
            return;
        };
        let mut frame = buffers.take();
        frame.extend_from_slice(log.newest(bytes));
        self.send_said(others, alias, &frame);
        self.sessions.outbox.buffers.put(frame);
    }

    /// Hands a frame for all members of a room to the lanes whose bits are set.
    pub(super) fn send_to_lanes(&mut self, lanes: u64, alias: u16, frame: &[u8]) {
        self.send_entry(lanes, &BatchEntry::Room { alias, frame });
    }

    /// Hands an entry to the lanes whose bits are set.
    pub(super) fn send_entry(&mut self, mut lanes: u64, entry: &BatchEntry<'_>) {
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as usize;
            lanes &= lanes - 1;
            self.exchange.batch(lane, entry);
        }
        // One message may go to many logs, so this must not wait for the end of the turn.
        self.sessions.charge_common(self.exchange.held_bytes());
    }

    /// Counts a message for the members on this lane, and plans a sweep. Returns the other lanes with members, as bits.
    #[inline(always)]
    pub(super) fn count_and_plan(
        &mut self,
        alias: u16,
        position: u64,
        bytes: usize,
        own: u64,
    ) -> u64 {
        let Some(Some(room)) = self.table.rooms.get_mut(usize::from(alias)) else {
            return 0;
        };
        self.sessions
            .counters
            .room_offered
            .add(room.members.len() as u64 - own);
        let mut must_charge = (position ^ (position + bytes as u64)) >= CHARGE_STEP_BYTES;
        if let Some(due_ns) = room.coalescer.handle_append(self.sessions.reactor.now_ns) {
            self.table.due.push(Reverse((due_ns, alias)));
            must_charge = true;
        }
        if must_charge {
            self.sessions.charge_log(alias);
        }
        room.shared.other_lanes(self.exchange.lane)
    }
}

/// A log is charged once in so many bytes, a power of two, and whenever a sweep is planned or done.
const CHARGE_STEP_BYTES: u64 = 16 * 1024;
