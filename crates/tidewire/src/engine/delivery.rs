//! Delivers the messages of other threads for sessions and rooms.

use super::Core;
use crate::mailbox::{BatchEntry, LaneMessage};
use crate::session::SessionShared;

impl Core {
    /// Delivers every message of a batch to its sessions.
    pub(crate) fn deliver_batch(&mut self, batch: Vec<u8>) {
        let mut rest = &batch[..];
        while let Some(entry) = BatchEntry::decode(&mut rest) {
            self.rooms().deliver_entry(&entry);
        }
        self.exchange.lanes.spare_batches().put(batch);
    }

    pub(crate) fn deliver_send(&mut self, session: &SessionShared, frame: Vec<u8>) {
        let slot = self.sessions.table.slot_of(session.id);
        let Some(slot) = slot.filter(|slot| self.sessions[*slot].connection.may_send()) else {
            self.counters.sends_undelivered.add(1);
            self.sessions.spare_answers.put_frame(frame);
            return;
        };
        self.counters.sends_taken.add(1);
        session.release(LaneMessage::OVERHEAD_BYTES);
        self.sessions.outputs.add_outside(slot, frame.len());
        self.sessions.append_frame(slot, frame);
    }
}
