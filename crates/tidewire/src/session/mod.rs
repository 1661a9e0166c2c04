//! Sessions: the identity, buffers and end of each connection, and the tables of a lane's sessions.

mod address_shares;
mod age;
mod answer;
mod attached;
mod broadcast;
mod buffers;
mod connect_failures;
mod datagrams;
mod figures;
mod lane_sessions;
mod layers;
mod limiter;
mod logs;
mod memberships;
mod meter;
mod open_sessions;
mod output;
mod outputs;
mod pending;
mod reading;
mod relief;
mod repeated;
mod send;
mod table;
mod timeouts;
mod timers;
mod view;
mod write;
mod writer;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_io::poller::{self, Interest, Poller, PollerError};
use tidewire_io::timer::TimerId as WheelTimer;
use tidewire_proto::connection::{Connection, Wants};
use tidewire_proto::message::MemberId;
use tidewire_proto::room::Subscriber;

pub(crate) use tidewire_proto::connection::CloseReason;

pub(crate) use address_shares::{Shares, TableFull};
pub(crate) use answer::{Content, SpareAnswers, SpareFrames, Token};
pub(crate) use attached::Attached;
pub use broadcast::{Broadcast, BroadcastReport};
pub(crate) use broadcast::{Predicate, Share, prepare};
pub(crate) use connect_failures::ConnectFailures;
pub use figures::{Lag, LaneFigures, SessionFigures};
pub(crate) use layers::close_reason;
pub(crate) use limiter::{SessionLimiter, counted_address};
pub(crate) use logs::{LogKey, Logs};
pub(crate) use memberships::SlowSubscriber;
pub(crate) use open_sessions::{OpenSessions, SessionShared};
pub(crate) use output::{Output, OutputLoan};
pub(crate) use outputs::Outputs;
use pending::PendingRequests;
pub(crate) use pending::{Answer, NOWHERE, QueuedReply};
pub(crate) use reading::Read;
pub(crate) use relief::{MEMBERSHIP_BYTES, Relief};
pub(crate) use repeated::{RepeatedFrame, frame_pattern};
pub use send::SendError;
pub(crate) use send::encode_within;
pub(crate) use table::SessionTable;
pub use timers::TimerId;
pub(crate) use timers::{ServiceTimer, TimerKey, Timers};
pub use view::SessionView;
pub(crate) use writer::append_with_header;

use self::writer::{CodecAdapter, Writer};
use crate::address::Endpoint;
use crate::auth::Admitted;
use crate::config::{CodecNumber, Codecs, Config};
use crate::observe::LaneCounters;
use crate::observe::trace::{Connecting, Traced};
use crate::transport::{AnyTransport, ListenerTerms, Transport};

/// The number of a session, never reused while the server runs.
///
/// It contains the lane and the slot there, so a message finds its session without a table.
/// [`Context::id`](crate::Context::id) and [`Sessions`](crate::Sessions) give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(u64);

impl SessionId {
    /// The number that stands for no session. A context outside any session returns it.
    pub const NONE: Self = Self(u64::MAX);

    pub(crate) fn new(lane: usize, slot: usize, generation: u32) -> Self {
        let lane = lane as u64 & LANE_MASK;
        Self(u64::from(generation) << 32 | lane << SLOT_BITS | (slot as u64 & SLOT_MASK))
    }

    /// Returns the session with this number, as printed or sent earlier.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number, for logs and the wire.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns how many sessions of its lane are newer, if that lane has counted to `generation`.
    pub(crate) fn age(self, generation: u32) -> u32 {
        generation.wrapping_sub((self.0 >> 32) as u32)
    }

    /// When the session is pinged within the period of pings, in 2³² steps. The moments of consecutive sessions are
    /// spread evenly, because the step between them is the golden section of the period.
    pub(crate) fn ping_part(self) -> u32 {
        let generation = (self.0 >> 32) as u32;
        generation.wrapping_sub(1).wrapping_mul(GOLDEN_SECTION)
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

/// The membership of a session in a room, or its subscription.
#[derive(Debug)]
pub(crate) struct Membership {
    room: u16,
    /// The codec of the session.
    codec: CodecNumber,
    /// Bytes that the memory account holds for it.
    held_bytes: usize,
    is_topic: bool,
    /// Whether it is a subscription in a queue group.
    is_in_group: bool,
    /// The id of the message that requested it.
    number: u32,
    /// Index into the room's list of members.
    index: usize,
    pub(crate) subscriber: Subscriber,
}

/// The name and number that a session has in rooms.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    id: MemberId,
    name: Arc<str>,
}

impl Member {
    pub(crate) fn new(id: MemberId, name: Arc<str>) -> Self {
        Self { id, name }
    }

    #[inline]
    pub(crate) fn id(&self) -> MemberId {
        self.id
    }

    #[inline]
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }
}

/// The sessions of a lane, with everything that writing, timing and ending them needs. Its parts own their state; the
/// owner lets them act together.
#[derive(Debug)]
pub(crate) struct LaneSessions {
    pub(crate) config: Arc<Config>,
    pub(crate) counters: Arc<CachePadded<LaneCounters>>,
    pub(crate) poller: Box<dyn Poller>,
    pub(crate) table: SessionTable,
    pub(crate) timers: Timers,
    pub(crate) outputs: Outputs,
    pub(crate) logs: Logs,
    pub(crate) relief: Relief,
    pub(crate) spare_answers: SpareAnswers,
    pub(crate) connect_failures: ConnectFailures,
    writer: Writer,
}

/// A connection with its buffers and its state in other parts of the lane.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) stream: AnyTransport,
    pub(crate) id: SessionId,
    pub(crate) connection: Connection,
    /// The codec of all frames to its peer.
    codec: CodecNumber,
    /// The codec's state for the connection.
    adapter: CodecAdapter,
    pub(crate) profile: Profile,
    /// Whether the service has seen `on_open`, and so must see `on_close`.
    announced: bool,
    /// In the order of their `room`.
    pub(crate) memberships: Vec<Membership>,
    timer: Option<WheelTimer>,
    interest: Interest,
    /// Requests whose answers are deferred. `None` until the first one.
    unanswered: Option<Box<PendingRequests>>,
}

/// The identity of a session's peer, and the data by which other parts find the session.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    pub(crate) peer: Option<Arc<Endpoint>>,
    /// The terms of the listener that accepted it, if it has one.
    pub(crate) listener: Option<Arc<ListenerTerms>>,
    /// Data that few sessions have. `None` until the session has some.
    pub(crate) attached: Option<Box<Attached>>,
    /// The part of the session that other threads see. `None` before it opens.
    pub(crate) shared: Option<Arc<SessionShared>>,
    /// The identity of the peer. `None` on servers that do not ask, and before the session opens.
    pub(crate) admitted: Option<Box<Admitted>>,
    /// Its name in rooms, set by the first join.
    pub(crate) member: Option<Box<Member>>,
    /// The trace span from the session's beginning until it is open.
    pub(crate) connecting: Connecting,
}

impl Profile {
    pub(crate) fn attach(&mut self) -> &mut Attached {
        self.attached.get_or_insert_default()
    }

    /// Whether its proxy has not named its client yet, so that it does not count as a session.
    pub(crate) fn is_unnamed(&self) -> bool {
        let attached = self.attached.as_ref();
        attached.is_some_and(|it| it.forwarder().is_some())
    }

    /// The address that the log names: that of the proxy as long as the client is not known.
    pub(crate) fn source(&self) -> Option<&Endpoint> {
        let forwarder = || self.attached.as_ref()?.forwarder().map(|it| &**it);
        self.peer.as_deref().or_else(forwarder)
    }

    /// Whether the service sends requests to the peer, and accepts only answers from it.
    #[inline]
    pub(crate) fn is_upstream(&self) -> bool {
        let attached = self.attached.as_ref();
        attached.is_some_and(|attached| attached.is_upstream())
    }
}

impl Session {
    pub(crate) fn new(
        stream: AnyTransport,
        id: SessionId,
        codec: CodecNumber,
        connection: Connection,
    ) -> Self {
        Self {
            stream,
            id,
            connection,
            codec,
            adapter: CodecAdapter::default(),
            profile: Profile::default(),
            announced: false,
            memberships: Vec::new(),
            timer: None,
            interest: Interest::NONE,
            unanswered: None,
        }
    }

    /// Begins to watch the connection.
    pub(crate) fn watch(&mut self, poller: &mut dyn Poller) -> Result<(), PollerError> {
        self.interest = self.wanted_interest();
        self.stream
            .add(poller, poller::Token(self.id.slot()), self.interest)
    }

    /// Notes that the session is open, just before the service learns of it.
    pub(crate) fn begin(&mut self) {
        self.announced = true;
        self.profile.connecting.end();
        self.connection
            .timing_mut()
            .spread_pings(self.id.ping_part());
    }

    /// Whether the session was open.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.announced
    }

    #[inline]
    fn wanted_interest(&self) -> Interest {
        let Wants { read, write } = self.connection.wants();
        match (read, write || self.stream.pending_bytes() > 0) {
            (true, true) => Interest::READ_WRITE,
            (true, false) => Interest::READ,
            (false, true) => Interest::WRITE,
            (false, false) => Interest::NONE,
        }
    }

    /// Whether it gets the history of a room or topic in pieces.
    #[inline]
    pub(crate) fn is_replayed(&self) -> bool {
        let mut memberships = self.memberships.iter();
        memberships.any(|it| it.subscriber.next_of_history().is_some())
    }

    /// The address that the session's registrations count for. `None` for an outgoing connection.
    pub(crate) fn owner(&self) -> Option<IpAddr> {
        match self.connection.handshake().is_outgoing() {
            true => None,
            false => self.profile.peer.as_deref().and_then(counted_address),
        }
    }

    /// Whether its UDP address is unvalidated and no replies are pending. Such a session ends after a short silence.
    pub(crate) fn is_unvalidated_and_idle(&self) -> bool {
        self.stream.is_unvalidated() && self.unanswered_count() == 0
    }

    /// The number of the session's codec.
    #[inline]
    pub(crate) fn codec_number(&self) -> CodecNumber {
        self.codec
    }

    /// Takes the codec that the peer chose in the handshake of a layer, before the first frame. Returns it if it is not
    /// the one that the session has.
    pub(crate) fn follow_choice(&mut self, codecs: &Codecs, now_ns: u64) -> Option<CodecNumber> {
        let place = self.stream.chosen_protocol()?;
        let codec = self.profile.listener.as_ref()?.codec_at(place);
        if codec == self.codec {
            return None;
        }
        self.connection = Connection::accepted(codecs.rules(codec), self.stream.delivery(), now_ns);
        self.connection.secure(now_ns);
        self.codec = codec;
        let name = || codecs.get(codec).name();
        self.profile.connecting.note_codec(name);
        Some(codec)
    }

    /// Whether frames are left in the input and may be handled now.
    #[inline]
    pub(crate) fn may_read_on(&self) -> bool {
        self.connection.input().has_frames() && self.connection.may_read()
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
        self.connection.handshake().is_outgoing()
    }
}

/// An accepted connection that is open.
#[cfg(test)]
pub(crate) fn open_connection() -> Connection {
    use tidewire_proto::codec::AnyCodec;
    use tidewire_proto::connection::Delivery;

    let rules = crate::limits::Limits::default().rules(&AnyCodec::by_name("raw").unwrap());
    Connection::accepted(&rules, Delivery::Reliable, 0)
}

/// 2³² divided by the golden ratio.
const GOLDEN_SECTION: u32 = 0x9E37_79B9;

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
            "the same slot, reused"
        );
        assert_eq!(SessionId::from_number(id.number()), id);
    }
}
