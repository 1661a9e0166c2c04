//! What other threads have for sessions of this lane: deferred answers, messages, closes and broadcasts.
//!
//! One queue for all of them, so that what a thread answers, sends and closes happens in that order. A turn takes a
//! bounded number, because senders that are faster than the lane would otherwise keep it from its sockets.

use crate::mailbox::BatchEntry;
use crate::mailbox::Letter;

use super::Core;
use crate::session::CloseReason;
use crate::session::SessionCard;

impl Core {
    /// Takes what other threads left.
    pub(crate) fn take_letters(&mut self) {
        let mut work = 0;
        while work < LETTERS_PER_TURN {
            work += 1;
            match self.exchange.handle.take_letter() {
                None => return,
                Some(Letter::Answer(answer)) => self.sessions.deliver_answer(answer),
                Some(Letter::Send { card, frame }) => self.deliver_send(&card, frame),
                Some(Letter::Close { id }) => {
                    if let Some(slot) = self.sessions.slot_of(id) {
                        self.sessions.finish(slot, CloseReason::Service);
                    }
                }
                Some(Letter::Broadcast(share)) => {
                    // It looks at every session, which takes a fraction of what a letter does.
                    work += self.sessions.len() / SESSIONS_PER_LETTER;
                    self.sessions.deliver_broadcast(share);
                }
            }
        }
    }

    /// Gives every message of a batch to the sessions it is for.
    pub(crate) fn deliver_batch(&mut self, batch: Vec<u8>) {
        let mut rest = &batch[..];
        while let Some(entry) = BatchEntry::decode(&mut rest) {
            self.rooms().deliver_entry(&entry);
        }
        self.exchange.lanes.spare_batches.put(batch);
    }

    fn deliver_send(&mut self, card: &SessionCard, frame: Vec<u8>) {
        let slot = self.sessions.slot_of(card.id);
        let Some(slot) = slot.filter(|slot| self.sessions[*slot].connection.may_send()) else {
            self.counters.sends_undelivered.add(1);
            self.sessions.outbox.spare_frames.put(frame);
            return;
        };
        self.counters.sends_taken.add(1);
        card.release(Letter::OVERHEAD_BYTES);
        self.sessions[slot].output.outside_bytes += frame.len();
        self.sessions.append(slot, frame);
    }
}

/// Letters taken in one turn: enough that the rest of the turn costs little beside them, few enough that sockets wait
/// for less than a millisecond.
const LETTERS_PER_TURN: usize = 4096;

/// Sessions that a broadcast looks at in the time of a letter.
const SESSIONS_PER_LETTER: usize = 8;
