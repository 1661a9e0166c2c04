//! One connection: its identity, its buffers, and why it ended.

mod adapt;
mod answer;
mod attached;
mod broadcast;
mod buffers;
mod clock;
mod datagrams;
mod deliveries;
mod lane_sessions;
mod latest;
mod layers;
mod limiter;
mod meter;
mod outbox;
mod output;
mod pending;
mod reactor;
mod reading;
mod relief;
mod repeated;
mod send;
mod service_timers;
mod shared;
mod timeouts;
mod write;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tidewire_io::poller::Interest;
use tidewire_io::timer::TimerId as WheelTimer;
use tidewire_proto::connection::{Connection, Wants};
use tidewire_proto::message::MemberId;
use tidewire_proto::room::Subscriber;

pub(crate) use tidewire_proto::connection::CloseReason;

pub(crate) use adapt::Adapting;
pub(crate) use answer::{Answer, Content, SpareFrames, Token};
pub(crate) use attached::Attached;
pub use broadcast::{Broadcast, BroadcastReport, SessionView};
pub(crate) use broadcast::{Predicate, Share, prepare};
pub(crate) use deliveries::{append_with_header, push_delivery};
pub(crate) use lane_sessions::LaneSessions;
pub(crate) use layers::close_reason;
pub(crate) use limiter::{SessionLimiter, Shares, TableFull, counted_address};
pub(crate) use outbox::Outbox;
pub(crate) use output::Output;
pub(crate) use pending::{NOWHERE, Place, Unanswered};
pub(crate) use reactor::TimerKey;
pub(crate) use relief::MEMBERSHIP_BYTES;
pub(crate) use repeated::{RepeatedFrame, frame_pattern};
pub use send::SendError;
pub(crate) use send::{Taken, encode_within};
pub(crate) use service_timers::{ServiceTimer, ServiceTimers};
pub use service_timers::{TimerError, TimerId};
pub(crate) use shared::{SessionShared, SessionTable};

use crate::address::Endpoint;
use crate::observe::trace::{Connecting, Traced};
use crate::transport::{Carrier, ListenerTerms, Transport};

/// The number of a session, never reused while the server runs.
///
/// It names the lane and the place there, so that a message to it finds its way without a table.
/// [`Context::session`](crate::Context::session) and [`Sessions`](crate::Sessions) give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(u64);

impl SessionId {
    /// No session: what a context outside any session answers.
    pub const NONE: Self = Self(u64::MAX);

    pub(crate) fn new(lane: usize, slot: usize, generation: u32) -> Self {
        let lane = lane as u64 & LANE_MASK;
        Self(u64::from(generation) << 32 | lane << SLOT_BITS | (slot as u64 & SLOT_MASK))
    }

    /// The session with this number, as printed or sent earlier.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The number, for logs and the wire.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// How many sessions of its lane are newer, if that has counted to `generation`.
    pub(crate) fn age(self, generation: u32) -> u32 {
        generation.wrapping_sub((self.0 >> 32) as u32)
    }

    pub(crate) fn lane(self) -> usize {
        (self.0 >> SLOT_BITS & LANE_MASK) as usize
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & SLOT_MASK) as usize
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:x}", self.0)
    }
}

/// A place in a room, or a subscription.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) room: u16,
    /// Memory it is charged for.
    pub(crate) held_bytes: usize,
    /// Whether it is a subscription.
    pub(crate) is_topic: bool,
    /// The id of the message that asked for it.
    pub(crate) number: u32,
    /// Index into the room's list of members.
    pub(crate) index: usize,
    pub(crate) subscriber: Subscriber,
}

/// Name and number of a session that joined a room.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: MemberId,
    pub(crate) name: Arc<str>,
}

/// A connection, with its buffers and what other parts of the lane know of it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) stream: Carrier,
    pub(crate) id: SessionId,
    pub(crate) connection: Connection,
    /// What its codec keeps of the connection.
    pub(crate) adapting: Adapting,
    pub(crate) profile: Profile,
    /// Whether the service has seen `on_open`, and so must see `on_close`.
    pub(crate) announced: bool,
    /// While a message of the session is handled, it is the lane's [`Outbox`](outbox::Outbox) that has it.
    pub(crate) output: Output,
    pub(crate) memberships: Vec<Membership>,
    pub(crate) timer: Option<WheelTimer>,
    pub(crate) interest: Interest,
    /// Requests whose answers are deferred; none until the first one.
    pub(crate) unanswered: Option<Box<Unanswered>>,
    /// Listed for the flush at the end of the turn.
    pub(crate) dirty: bool,
}

/// The identity of a session's peer, and how others find the session.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    pub(crate) peer: Option<Box<Endpoint>>,
    /// The terms of its listener, if a socket's listener accepted it.
    pub(crate) listener: Option<Arc<ListenerTerms>>,
    /// What few sessions have; none until one does.
    pub(crate) attached: Option<Box<Attached>>,
    /// The number that the service attached.
    pub(crate) tag: u64,
    /// The part of the session that other threads see; there is none before it opens.
    pub(crate) shared: Option<Arc<SessionShared>>,
    /// Its name in rooms, from the first one that it joined.
    pub(crate) member: Option<Box<Member>>,
    /// The span from its beginning until it is open for messages.
    pub(crate) connecting: Connecting,
}

impl Profile {
    pub(crate) fn attach(&mut self) -> &mut Attached {
        self.attached.get_or_insert_default()
    }

    /// Whether the service asks the peer, and gets nothing of it but answers.
    #[inline]
    pub(crate) fn is_upstream(&self) -> bool {
        let attached = self.attached.as_ref();
        attached.is_some_and(|attached| attached.is_upstream)
    }
}

impl Session {
    pub(crate) fn new(stream: Carrier, id: SessionId, connection: Connection) -> Self {
        Self {
            stream,
            id,
            connection,
            adapting: Adapting::default(),
            profile: Profile::default(),
            announced: false,
            output: Output::default(),
            memberships: Vec::new(),
            timer: None,
            interest: Interest::NONE,
            unanswered: None,
            dirty: false,
        }
    }

    pub(crate) fn wanted_interest(&self) -> Interest {
        let Wants { read, write } = self.connection.wants();
        match (read, write || self.stream.pending_bytes() > 0) {
            (true, true) => Interest::READ_WRITE,
            (true, false) => Interest::READ,
            (false, true) => Interest::WRITE,
            (false, false) => Interest::NONE,
        }
    }

    /// The address that what it opens counts for. What the server connected itself counts for none.
    pub(crate) fn owner(&self) -> Option<IpAddr> {
        match self.connection.is_outgoing() {
            true => None,
            false => self.profile.peer.as_deref().and_then(counted_address),
        }
    }

    /// Whether silence ends it soon: nothing is known of its UDP address, and nothing is owed to it.
    pub(crate) fn is_unvalidated_and_owed_nothing(&self) -> bool {
        self.stream.is_unvalidated() && self.unanswered_count() == 0
    }

    /// Whether whole frames were left over and may be handled now.
    #[inline]
    pub(crate) fn may_read_on(&self) -> bool {
        self.connection.partial.has_frames() && self.connection.may_read()
    }

    /// Gives other threads room for as much as has left the output.
    #[inline]
    pub(crate) fn release_outside(&mut self) {
        let outside_bytes = self.output.outside_bytes;
        let waiting = outside_bytes.min(self.output.len());
        if waiting < outside_bytes {
            if let Some(shared) = &self.profile.shared {
                shared.release(outside_bytes - waiting);
            }
            self.output.outside_bytes = waiting;
        }
    }
}

impl Traced for Session {
    fn id(&self) -> impl fmt::Display {
        self.id
    }

    fn peer(&self) -> Option<impl fmt::Display> {
        self.profile.peer.as_deref()
    }

    fn is_outgoing(&self) -> bool {
        self.connection.is_outgoing()
    }
}

/// An accepted connection whose handshake is over.
#[cfg(test)]
pub(crate) fn open_connection() -> Connection {
    use tidewire_proto::codec::{AnyCodec, Raw};
    use tidewire_proto::connection::Delivery;

    let rules = crate::limits::Limits::default().rules(&AnyCodec::Raw(Raw));
    Connection::accepted(&rules, Delivery::Reliable, 0)
}

const SLOT_BITS: u32 = 24;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const LANE_MASK: u64 = 0xFF;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_id_holds_lane_slot_and_generation() {
        let id = SessionId::new(63, 9_999_999, 77);
        assert_eq!((id.lane(), id.slot()), (63, 9_999_999));
        assert_ne!(
            id,
            SessionId::new(63, 9_999_999, 78),
            "the same place, used again"
        );
        assert_eq!(SessionId::from_number(id.number()), id);
    }
}
