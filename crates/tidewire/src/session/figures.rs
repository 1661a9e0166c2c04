//! The figures of sessions and lanes that other threads ask for.
//!
//! A lane copies what it knows anyway when it is asked. Nothing is counted for this while messages move.

use std::sync::Arc;
use std::time::Duration;

use tidewire_io::clock::Moment;
use tidewire_proto::room::Policy;

use super::relief::SESSION_BYTES;
use super::{LaneSessions, Logs, Membership, Session, SessionId};
use crate::address::Endpoint;
use crate::auth::Identity;
use crate::transport::{Transport, TransportKind};

/// An open session at one moment. [`Inspector::sessions`](crate::metrics::Inspector::sessions) has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionFigures {
    /// Its number.
    pub id: SessionId,
    /// The index of its lane.
    pub lane: usize,
    /// The peer's address. Clients of a Unix socket and of the same process have none.
    pub peer: Option<Endpoint>,
    /// The kind of transport.
    pub transport: TransportKind,
    /// Whether a lane of this server opened the connection, and not the peer.
    pub is_outgoing: bool,
    /// The time when it opened.
    pub opened: Moment,
    /// The identity of its peer, on servers that ask.
    pub identity: Option<Arc<Identity>>,
    /// Its name in rooms. The peer chose it.
    pub name: Option<Arc<str>>,
    /// Bytes that the server's [memory limit](crate::limits::MemoryLimits::bytes_max) counts for the session itself,
    /// without rooms.
    pub memory_bytes: usize,
    /// Bytes of its output that the peer has not taken. Messages of rooms and topics are not among them.
    pub queued_bytes: usize,
    /// Requests whose answers are deferred.
    pub unanswered: usize,
    /// Whether the session is not read at the moment: it does not take its output, exceeds its rate, or a room is slow.
    pub is_paused: bool,
    /// Rooms that it is in.
    pub rooms: usize,
    /// Topics and patterns that it is subscribed to.
    pub topics: usize,
    /// The membership that is furthest behind. `None` if the session has received everything.
    pub lag: Option<Lag>,
}

/// Messages of a room or topic that a subscriber has not received.
/// [`Inspector::sessions`](crate::metrics::Inspector::sessions) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// The number of the room or topic; see [`RoomFigures::alias`](crate::metrics::RoomFigures::alias).
    pub alias: u16,
    /// Messages that wait for the subscriber.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The reaction of the server when they become too many.
    pub policy: Policy,
}

/// A lane at one moment. [`Inspector::lanes`](crate::metrics::Inspector::lanes) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneFigures {
    /// The time from the question until the lane answered it: the rest of a turn, or waking the lane.
    pub answered_after: Duration,
    /// Processor time of the lane's thread since it began.
    pub cpu: Duration,
    /// Sessions, including those that have not finished their handshakes.
    pub sessions: usize,
    /// Bytes that the server's memory limit counts for the lane.
    pub memory_bytes: usize,
    /// Of these, the fixed cost of sessions.
    pub session_bytes: usize,
    /// Of these, output, partial frames and queued answers that sessions keep.
    pub kept_bytes: usize,
    /// Of these, spare buffers, and messages from and to other threads. The rest belongs to rooms and topics.
    pub common_bytes: usize,
}

impl SessionFigures {
    /// Adds the figures of up to `count_max` slots, beginning with slot `from`. Returns the next slot, if there may be
    /// more.
    pub(crate) fn add_to(
        figures: &mut Vec<Self>,
        sessions: &LaneSessions,
        from: usize,
        count_max: usize,
    ) -> Option<usize> {
        // Free slots count, because each is looked at.
        let slots_end = sessions.table.slots_end();
        let end = slots_end.min(from.saturating_add(count_max));
        for slot in from..end {
            let session = sessions.table.get(slot);
            if let Some(session) = session.filter(|session| session.announced) {
                figures.push(Self::of(session, sessions));
            }
        }
        (end < slots_end).then_some(end)
    }

    fn of(session: &Session, sessions: &LaneSessions) -> Self {
        let (slot, profile) = (session.id.slot(), &session.profile);
        let topics = session.memberships.iter().filter(|it| it.is_topic).count();
        Self {
            id: session.id,
            lane: session.id.lane(),
            peer: profile.peer.as_deref().cloned(),
            transport: session.stream.kind(),
            is_outgoing: session.connection.handshake().is_outgoing(),
            opened: Moment::from_ns(profile.shared.as_ref().map_or(0, |it| it.opened_ns)),
            identity: profile
                .admitted
                .as_ref()
                .map(|it| Arc::clone(it.identity())),
            name: profile.member.as_ref().map(|it| Arc::clone(&it.name)),
            memory_bytes: SESSION_BYTES + sessions.relief.kept_bytes(slot),
            queued_bytes: sessions.outputs.of(slot).len() + session.stream.pending_bytes(),
            unanswered: session.unanswered_count(),
            is_paused: session.connection.input().is_paused(),
            rooms: session.memberships.len() - topics,
            topics,
            lag: Lag::of(session, &sessions.logs),
        }
    }
}

impl Lag {
    fn of(session: &Session, logs: &Logs) -> Option<Self> {
        // Few sessions are in many rooms. The rest of a long list would hold the lane.
        let memberships = session.memberships.iter().take(MEMBERSHIPS_LOOKED_AT);
        let lag_of = |membership: &Membership| {
            let log = logs.get(membership.log())?;
            let subscriber = &membership.subscriber;
            Some(Self {
                alias: membership.room,
                messages: subscriber.messages_behind(log),
                bytes: subscriber.bytes_behind(log),
                policy: subscriber.policy(),
            })
        };
        let lags = memberships.filter_map(lag_of);
        lags.filter(|lag| lag.messages > 0)
            .max_by_key(|lag| lag.bytes)
    }
}

impl LaneFigures {
    /// The lane's figures, but for those of its thread.
    pub(crate) fn of(sessions: &LaneSessions) -> Self {
        let (count, relief) = (sessions.table.len(), &sessions.relief);
        Self {
            sessions: count,
            memory_bytes: relief.held_bytes(),
            session_bytes: count * SESSION_BYTES,
            kept_bytes: relief.kept_bytes_total(),
            common_bytes: relief.common_bytes(),
            ..Self::default()
        }
    }
}

/// Memberships of a session that are searched for the one that is furthest behind.
const MEMBERSHIPS_LOOKED_AT: usize = 64;
