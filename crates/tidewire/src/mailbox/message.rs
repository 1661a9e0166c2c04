//! The one type of everything that other threads have for a lane.

use std::sync::Arc;

use tidewire_proto::connection::Farewell;

use crate::observe::LaneCounters;
use crate::session::{Answer, SessionCard, SessionId, Share};
use crate::transport::{Arrival, Carrier, StreamListener};

/// A message in the mailbox of a lane. What is rare and large is boxed, so that every place in the queue is as small as
/// an answer.
#[derive(Debug)]
pub(crate) enum LaneMessage {
    /// The answer to a request that was deferred.
    Answer(Answer),
    /// A frame for one session, which has taken room for it.
    Send {
        card: Arc<SessionCard>,
        frame: Vec<u8>,
    },
    /// The end of one session.
    Close {
        id: SessionId,
        /// What its peer is told.
        farewell: Option<Box<Farewell>>,
    },
    /// One session is to be read, or not, as its [`SessionCard`] says.
    Reading { id: SessionId },
    /// A frame for all sessions that its predicate chooses.
    Broadcast(Share),
    /// Encoded [entries](super::BatchEntry): what a turn of another lane has for sessions and rooms of this one.
    Batch(Vec<u8>),
    /// A connection accepted by another lane; the session limiter has counted it already.
    Adopt(Box<Arrival>),
    /// A connection from within the process, to be counted and placed by the lane that accepts.
    Arrive { stream: Carrier },
    /// A listener of a lane that ended while its server goes on.
    Listen(Box<StreamListener>),
    /// A server has taken the connection that waited under this number.
    Placed { ticket: u64 },
    /// Stop accepting, tell the peers, and stop when they are gone or at this time.
    Drain { deadline_ns: u64 },
    /// Stop at once.
    Stop,
}

impl LaneMessage {
    /// Memory that a message takes beside its frame until the lane takes it: without it, a million frames of one byte
    /// would count as one mebibyte.
    pub(crate) const OVERHEAD_BYTES: usize = 64;

    /// Whether its sender took room for it before, so that it always finds a place: an answer has that of its request, a
    /// frame the bytes of its session, a broadcast its bytes, a session is closed once, and one message is under way for it
    /// that tells whether to read it.
    pub(super) fn is_reserved(&self) -> bool {
        match self {
            Self::Answer(_)
            | Self::Send { .. }
            | Self::Close { .. }
            | Self::Reading { .. }
            | Self::Broadcast(_) => true,
            Self::Batch(_)
            | Self::Adopt(_)
            | Self::Arrive { .. }
            | Self::Listen(_)
            | Self::Placed { .. }
            | Self::Drain { .. }
            | Self::Stop => false,
        }
    }

    pub(super) fn batch_bytes(&self) -> usize {
        if let Self::Batch(batch) = self {
            batch.len()
        } else {
            0
        }
    }

    /// Memory of the frames that a message carries.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::Send { frame, .. } | Self::Batch(frame) => frame.capacity(),
            Self::Answer(answer) => answer.held_bytes(),
            _ => 0,
        }
    }

    /// Counts a message that its lane, which has ended, did not take.
    pub(super) fn count_undelivered(&self, counters: &LaneCounters) {
        match self {
            Self::Answer(_) => counters.deferred_undelivered.add_shared(1),
            Self::Send { .. } => counters.sends_undelivered.add_shared(1),
            Self::Batch(batch) => super::batch::count_undelivered(batch, counters),
            // The session has ended as it should, a broadcast reports it itself, and the rest is no message of a session.
            Self::Close { .. }
            | Self::Reading { .. }
            | Self::Broadcast(_)
            | Self::Adopt(_)
            | Self::Arrive { .. }
            | Self::Listen(_)
            | Self::Placed { .. }
            | Self::Drain { .. }
            | Self::Stop => {}
        }
    }
}
