//! What other threads have for sessions of a lane.

use std::sync::Arc;

use crate::observe::LaneCounters;
use crate::session::{Answer, SessionCard, SessionId, Share};

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
