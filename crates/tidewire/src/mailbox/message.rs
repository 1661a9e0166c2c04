//! The type of all messages of other threads for a lane.

use std::sync::Arc;

use tidewire_proto::connection::Farewell;

use super::Inspection;
use crate::auth::{Attempt, AuthOutcome};
use crate::broker::{NodeAnswer, RemoteCall};
use crate::dial::LookupResult;
use crate::observe::LaneCounters;
use crate::session::{Answer, SessionId, SessionShared, Share};
use crate::transport::{AnyTransport, Arrival, StreamListener};

/// The late answer of an authenticator about a session.
#[derive(Debug)]
pub(crate) struct LateOutcome {
    pub(crate) id: SessionId,
    /// The number of the answer. The session waits for one of them.
    pub(crate) question: u64,
    pub(crate) outcome: AuthOutcome,
    pub(crate) attempt: Option<Arc<Attempt>>,
}

/// The turn of an attempt to log in.
#[derive(Debug)]
pub(crate) struct AttemptTurn {
    pub(crate) id: SessionId,
    pub(crate) attempt: Attempt,
}

/// A message in the mailbox of a lane. Rare and large variants are boxed, so that an entry of the queue is as small as
/// an answer.
#[derive(Debug)]
pub(crate) enum LaneMessage {
    /// The answer to a request that was deferred.
    Answer(Answer),
    /// A frame for one session. The sender has reserved room in the session's queue.
    Send {
        session: Arc<SessionShared>,
        frame: Vec<u8>,
    },
    /// The end of one session.
    Close {
        id: SessionId,
        /// The farewell for its peer.
        farewell: Option<Box<Farewell>>,
    },
    /// The reading of one session is paused or resumed. Its [`SessionShared`] says which.
    Reading { id: SessionId },
    /// A frame for all sessions that its predicate chooses.
    Broadcast(Share),
    /// Encoded [entries](super::BatchEntry) for sessions and rooms of this lane, from one turn of another lane.
    Batch(Vec<u8>),
    /// A connection that another lane accepted. The session limiter has counted it already.
    Adopt(Box<Arrival>),
    /// A connection from within the process. The lane that accepts counts it and chooses its lane.
    Arrive { stream: AnyTransport },
    /// A listener of a lane that ended while its server goes on.
    Listen(Box<StreamListener>),
    /// A server has taken the connection with this ticket.
    Placed { ticket: u64 },
    /// The late answer of an authenticator.
    Authenticated(Box<LateOutcome>),
    /// The results of a lookup for a connection to the upstream of this number.
    UpstreamFound(Box<(u64, LookupResult)>),
    /// The turn of an attempt to log in that waited in the queue of its address.
    AttemptTurn(Box<AttemptTurn>),
    /// A place among the sessions of its identity may be free for this session.
    PlaceFree { id: SessionId },
    /// This session gives way to another one of its identity, or to one that wants its name, if its peer is gone.
    GiveWay {
        id: SessionId,
        replaces_oldest: bool,
        /// The session that wants the place or the name.
        asker: SessionId,
    },
    /// A session that was asked to give way to this one is still in use.
    StillThere { id: SessionId },
    /// A request of another node.
    RemoteCall(Box<RemoteCall>),
    /// The answer of another node to a request of this lane.
    NodeAnswer(Box<NodeAnswer>),
    /// A question about the lane.
    Inspect(Box<Inspection>),
    /// The users have changed: ask about all sessions again.
    Reauthenticate,
    /// Stop accepting, tell the peers, and stop when all sessions have ended, or at this time.
    Drain { deadline_ns: u64 },
    /// Stop at once.
    Stop,
}

impl LaneMessage {
    /// Memory that a message takes beside its frame. Without it, a million frames of one byte would count as one
    /// mebibyte.
    pub(crate) const OVERHEAD_BYTES: usize = 64;

    /// Whether its sender reserved a place before, so that the mailbox always admits it. An answer has the place of its
    /// request. A frame and a broadcast have reserved their bytes. A session is closed once, has one message about
    /// reading at a time, one late answer about its peer, and one turn; it waits for one place, and few sessions of an
    /// identity wait at once. An upstream has one lookup at a time, and a lane one question about itself. The node
    /// bounds the requests that it has taken, and a lane those that it has sent.
    pub(super) fn is_reserved(&self) -> bool {
        match self {
            Self::Answer(_)
            | Self::Send { .. }
            | Self::Close { .. }
            | Self::Reading { .. }
            | Self::Broadcast(_)
            | Self::Authenticated(_)
            | Self::UpstreamFound(_)
            | Self::AttemptTurn(_)
            | Self::PlaceFree { .. }
            | Self::RemoteCall(_)
            | Self::NodeAnswer(_)
            | Self::Inspect(_) => true,
            Self::Batch(_)
            | Self::Adopt(_)
            | Self::Arrive { .. }
            | Self::Listen(_)
            | Self::Placed { .. }
            | Self::GiveWay { .. }
            | Self::StillThere { .. }
            | Self::Reauthenticate
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
            Self::RemoteCall(call) => call.payload.capacity(),
            Self::NodeAnswer(answer) => answer.outcome.as_ref().map_or(0, Vec::capacity),
            _ => 0,
        }
    }

    /// Counts a message that its lane did not take before its end.
    pub(super) fn count_undelivered(&self, counters: &LaneCounters) {
        match self {
            Self::Answer(_) => counters.deferred_undelivered.add_shared(1),
            Self::Send { .. } => counters.sends_undelivered.add_shared(1),
            Self::Batch(batch) => super::batch::count_undelivered(batch, counters),
            // Not counted: a closed session has ended, a broadcast reports itself, a request of another node is
            // answered when it is dropped, and the others concern no session.
            Self::Close { .. }
            | Self::Reading { .. }
            | Self::Broadcast(_)
            | Self::Adopt(_)
            | Self::Arrive { .. }
            | Self::Listen(_)
            | Self::Placed { .. }
            | Self::Authenticated(_)
            | Self::UpstreamFound(_)
            | Self::AttemptTurn(_)
            | Self::PlaceFree { .. }
            | Self::GiveWay { .. }
            | Self::StillThere { .. }
            | Self::RemoteCall(_)
            | Self::NodeAnswer(_)
            | Self::Inspect(_)
            | Self::Reauthenticate
            | Self::Drain { .. }
            | Self::Stop => {}
        }
    }
}
