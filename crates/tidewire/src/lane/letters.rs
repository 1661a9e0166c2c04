//! What other threads have for sessions of this lane: deferred answers, messages, closes and broadcasts.
//!
//! One queue for all of them, so that what a thread answers, sends and closes happens in that order. A turn takes a
//! bounded number, because senders that are faster than the lane would otherwise keep it from its sockets.

use std::sync::Arc;

use super::Core;
use crate::deferred::Answer;
use crate::metrics::LaneCounters;
use crate::session::{CloseReason, SessionId};
use crate::sessions::{SessionCard, Share};

/// Something for sessions of a lane.
#[derive(Debug)]
pub(crate) enum Letter {
    /// The answer to a request that was deferred.
    Answer(Answer),
    /// A frame for one session, which has taken room for it.
    Send {
        card: Arc<SessionCard>,
        frame: Vec<u8>,
    },
    /// The end of one session.
    Close { id: SessionId },
    /// A frame for all sessions that its predicate chooses.
    Broadcast(Share),
}

impl Letter {
    /// Memory of a letter beside its frame, as long as the lane has not taken it: without it, a million frames of one byte
    /// would count as one mebibyte.
    pub(crate) const OVERHEAD_BYTES: usize = 64;

    /// Counts a letter that its lane, which has ended, did not take.
    pub(super) fn count_lost(&self, counters: &LaneCounters) {
        match self {
            Self::Answer(_) => counters.deferred_undelivered.add_shared(1),
            Self::Send { .. } => counters.sends_undelivered.add_shared(1),
            // The session has ended as it should; a broadcast reports it itself.
            Self::Close { .. } | Self::Broadcast(_) => {}
        }
    }
}

impl Core {
    /// Takes what other threads left.
    pub(crate) fn take_letters(&mut self) {
        let mut work = 0;
        while work < LETTERS_PER_TURN {
            work += 1;
            match self.handle.take_letter() {
                None => return,
                Some(Letter::Answer(answer)) => self.deliver_answer(answer),
                Some(Letter::Send { card, frame }) => self.deliver_send(&card, frame),
                Some(Letter::Close { id }) => {
                    if let Some(slot) = self.slot_of(id) {
                        self.finish(slot, CloseReason::Service);
                    }
                }
                Some(Letter::Broadcast(share)) => {
                    // It looks at every session, which takes a fraction of what a letter does.
                    work += self.sessions.len() / SESSIONS_PER_LETTER;
                    self.deliver_broadcast(share);
                }
            }
        }
    }

    fn deliver_send(&mut self, card: &SessionCard, frame: Vec<u8>) {
        let slot = self.slot_of(card.id);
        let Some(slot) = slot.filter(|slot| self.sessions[*slot].connection.may_send()) else {
            self.counters.sends_undelivered.add(1);
            self.shared.spare_frames.put(frame);
            return;
        };
        self.counters.sends_taken.add(1);
        card.release(Letter::OVERHEAD_BYTES);
        self.sessions[slot].outside_bytes += frame.len();
        self.append(slot, frame);
    }
}

/// Letters taken in one turn: enough that the rest of the turn costs little beside them, few enough that sockets wait
/// for less than a millisecond.
const LETTERS_PER_TURN: usize = 4096;

/// Sessions that a broadcast looks at in the time of a letter.
const SESSIONS_PER_LETTER: usize = 8;
