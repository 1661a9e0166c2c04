//! One connection: its identity, its buffers, and why it ended.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tidewire_io::poller::Interest;
use tidewire_io::timer::TimerId;
use tidewire_proto::body::GoAwayCode;
use tidewire_proto::error::DecodeError;
use tidewire_proto::handshake::HandshakeError;
use tidewire_proto::message::MemberId;
use tidewire_proto::room::Subscriber;

use crate::address::Endpoint;
use crate::lane::{Standing, Unanswered, counted_address};
use crate::limits::Limits;
use crate::listen::ListenerTerms;
use crate::output::Output;
use crate::sessions::SessionCard;
use crate::trace::Connecting;
use crate::transport::Connection;

/// The number of a session, never reused while the server runs.
///
/// It names the lane and the place there, so that a message to it finds its way without a table.
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

/// Why a session ended. Counted by [`CloseReason::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed in order, over UDP by an empty datagram.
    PeerClosed,
    /// The peer vanished: reset or broken pipe.
    PeerReset,
    /// The service closed it.
    Service,
    /// The server drained and stopped.
    Shutdown,
    /// The peer announced that it would close.
    GoAway(GoAwayCode),
    /// Nothing came for the idle timeout.
    IdleTimeout,
    /// A frame began and did not end in time.
    FrameTimeout,
    /// No accepted hello in time, or no answer to a service that asked who the peer is.
    HandshakeTimeout,
    /// The hello or welcome was not acceptable.
    Handshake(HandshakeError),
    /// The bytes were not frames of the codec.
    Decode(DecodeError),
    /// Fell behind in a room whose policy disconnects.
    SlowSubscriber,
    /// More control frames than allowed.
    ControlFlood,
    /// Sent a request with the id of another one that it still waits for, so that their replies could not be told apart.
    RequestIdReused,
    /// What waited for it got lost: a [`SessionSender`](crate::SessionSender) was forgotten instead of dropped, or its codec
    /// panicked. Its stream may end within a frame.
    OutputLost,
    /// The lane failed: its service panicked or its poller did.
    LaneFailed,
    /// Fell silent over UDP before its address was established; see
    /// [`Limits::unvalidated_timeout`](crate::Limits::unvalidated_timeout). It was not told.
    Unvalidated,
    /// Made room for another address over UDP, as the oldest that was not established; see
    /// [`Limits::unvalidated_max`](crate::Limits::unvalidated_max). It was not told.
    Evicted,
    /// The socket failed in another way.
    Io(io::ErrorKind),
}

impl CloseReason {
    /// Names of all reasons, in the order of their counters.
    pub const NAMES: [&'static str; 18] = [
        "peer_closed",
        "peer_reset",
        "service",
        "shutdown",
        "go_away",
        "idle_timeout",
        "frame_timeout",
        "handshake_timeout",
        "handshake",
        "decode",
        "slow_subscriber",
        "control_flood",
        "request_id_reused",
        "lane_failed",
        "output_lost",
        "unvalidated",
        "evicted",
        "io",
    ];

    /// The place of this reason among [`CloseReason::NAMES`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::PeerClosed => 0,
            Self::PeerReset => 1,
            Self::Service => 2,
            Self::Shutdown => 3,
            Self::GoAway(_) => 4,
            Self::IdleTimeout => 5,
            Self::FrameTimeout => 6,
            Self::HandshakeTimeout => 7,
            Self::Handshake(_) => 8,
            Self::Decode(_) => 9,
            Self::SlowSubscriber => 10,
            Self::ControlFlood => 11,
            Self::RequestIdReused => 12,
            Self::LaneFailed => 13,
            Self::OutputLost => 14,
            Self::Unvalidated => 15,
            Self::Evicted => 16,
            Self::Io(_) => 17,
        }
    }

    /// The name of this reason's counter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// What to tell the peer before closing, if its codec can carry it and the peer may still listen.
    pub(crate) fn go_away_code(self) -> Option<GoAwayCode> {
        match self {
            Self::Handshake(HandshakeError::Refused { .. }) => None,
            Self::Shutdown | Self::LaneFailed => Some(GoAwayCode::Shutdown),
            Self::IdleTimeout | Self::FrameTimeout => Some(GoAwayCode::IdleTimeout),
            Self::HandshakeTimeout => Some(GoAwayCode::HandshakeTimeout),
            Self::Handshake(_) | Self::Decode(_) | Self::RequestIdReused => {
                Some(GoAwayCode::ProtocolError)
            }
            Self::SlowSubscriber => Some(GoAwayCode::SlowSubscriber),
            Self::ControlFlood => Some(GoAwayCode::LimitReached),
            // Within a frame nobody would understand it, and an unvalidated address did not ask.
            Self::OutputLost | Self::Unvalidated | Self::Evicted => None,
            Self::PeerClosed | Self::PeerReset | Self::Service | Self::GoAway(_) | Self::Io(_) => {
                None
            }
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerClosed => formatter.write_str("the peer closed the connection"),
            Self::PeerReset => formatter.write_str("the peer reset the connection"),
            Self::Service => formatter.write_str("closed by the service"),
            Self::Shutdown => formatter.write_str("the server shut down"),
            Self::GoAway(code) => write!(formatter, "the peer went away: {code}"),
            Self::IdleTimeout => formatter.write_str("nothing came within the idle timeout"),
            Self::FrameTimeout => formatter.write_str("a frame began and did not end in time"),
            Self::HandshakeTimeout => {
                formatter.write_str("no hello, or no name, came within the time for it")
            }
            Self::Handshake(error) => write!(formatter, "handshake failed: {error}"),
            Self::Decode(error) => write!(formatter, "not a frame of this codec: {error}"),
            Self::SlowSubscriber => formatter.write_str("fell too far behind in a room"),
            Self::ControlFlood => formatter.write_str("too many control frames"),
            Self::RequestIdReused => {
                formatter.write_str("a request has the id of one that is still being worked on")
            }
            Self::LaneFailed => formatter.write_str("the lane failed"),
            Self::OutputLost => formatter.write_str("a sender took its output along"),
            Self::Unvalidated => {
                formatter.write_str("fell silent before its address was established")
            }
            Self::Evicted => formatter.write_str("made room for another address"),
            Self::Io(kind) => write!(formatter, "i/o error: {kind}"),
        }
    }
}

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// An outgoing connection that the kernel has not confirmed.
    Connecting,
    /// Accepted; the first frame must be a hello.
    AwaitHello,
    /// Connected and said hello; the first frame must be a welcome.
    AwaitWelcome,
    /// In use.
    Open,
    /// Write side closed after the last byte; waiting for the peer's end.
    Draining,
    /// Will be removed at the end of the turn.
    Closed(CloseReason),
}

/// What becomes of new work of the peer: requests, and messages that nobody answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewWork {
    /// The service handles it.
    Served,
    /// The peer was told that the session ends. What was read before that is handled, and then it is refused.
    ServedToBacklog,
    /// It is refused, because the peer was told that the session ends.
    Refused,
    /// It is counted as refused. Our side has ended, so nothing can be answered.
    Ignored,
}

/// A place in a room, or a subscription.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) room: u16,
    /// Whether it is a subscription.
    pub(crate) is_topic: bool,
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

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) stream: Connection,
    pub(crate) id: SessionId,
    pub(crate) state: State,
    /// Whether the service has seen `on_open`, and so must see `on_close`.
    pub(crate) announced: bool,
    /// Whether we made the connection.
    pub(crate) outgoing: bool,
    pub(crate) peer: Option<Box<Endpoint>>,
    /// What it has in common with other sessions of its listener, if a socket's listener accepted it.
    pub(crate) listener: Option<Arc<ListenerTerms>>,
    pub(crate) tag: u64,
    /// What other threads know of it; there is none before it opens.
    pub(crate) card: Option<Arc<SessionCard>>,
    /// Bytes of `output` that came from other threads, or a little more; they took room for them on the card.
    pub(crate) outside_bytes: usize,
    /// Largest frame that both sides take, in bytes.
    pub(crate) frame_bytes_max: usize,
    pub(crate) output: Output,
    /// Room messages inside `output`, torn or spilled; they count as delivered once it is empty.
    pub(crate) messages_in_output: u64,
    /// The unfinished frame at the end of what was read.
    pub(crate) tail: Vec<u8>,
    /// When the frame in `tail` began to arrive, or reading it went on; 0 while there is none.
    pub(crate) frame_began_ns: u64,
    /// When the session ends unless its service has been told who the peer is.
    pub(crate) login_deadline_ns: Option<u64>,
    pub(crate) memberships: Vec<Membership>,
    pub(crate) member: Option<Box<Member>>,
    pub(crate) timer: Option<TimerId>,
    pub(crate) last_input_ns: u64,
    pub(crate) control_window_ns: u64,
    pub(crate) control_frames: u32,
    pub(crate) interest: Interest,
    /// The socket took less than was offered.
    pub(crate) blocked: bool,
    /// The peer takes nothing any more; only what it sent is still read.
    pub(crate) write_failed: bool,
    /// Reading stopped: the session's own output is full, or for one of the reasons below.
    pub(crate) paused: bool,
    /// Held by a room that blocks its publishers.
    pub(crate) held: bool,
    /// The service paused reading, and has not resumed it.
    pub(crate) paused_by_service: bool,
    /// Reading stopped until one of the unanswered requests is answered.
    pub(crate) awaits_answers: bool,
    /// Requests whose answers are deferred; none until the first one.
    pub(crate) unanswered: Option<Box<Unanswered>>,
    /// `tail` may hold whole frames, left there when reading paused.
    pub(crate) backlog: bool,
    /// The session ends with this reason once its output is written; nothing more is read.
    pub(crate) finish: Option<CloseReason>,
    /// Our side ends once the output is written; the peer's input is read to its end.
    pub(crate) half_close: bool,
    /// The peer has been told that the session ends.
    pub(crate) going_told: bool,
    pub(crate) new_work: NewWork,
    /// What the server said of itself in its welcome.
    pub(crate) agent: Option<Box<str>>,
    /// Listed for the flush at the end of the turn.
    pub(crate) dirty: bool,
    /// The peer announced that it would close.
    pub(crate) peer_going: Option<GoAwayCode>,
    /// The span from its beginning until it is open for messages.
    pub(crate) connecting: Connecting,
}

impl Session {
    pub(crate) fn new(
        stream: Connection,
        id: SessionId,
        state: State,
        outgoing: bool,
        now_ns: u64,
    ) -> Self {
        Self {
            stream,
            id,
            state,
            announced: false,
            outgoing,
            peer: None,
            listener: None,
            tag: 0,
            card: None,
            outside_bytes: 0,
            frame_bytes_max: 0,
            output: Output::default(),
            messages_in_output: 0,
            tail: Vec::new(),
            frame_began_ns: 0,
            login_deadline_ns: None,
            memberships: Vec::new(),
            member: None,
            timer: None,
            last_input_ns: now_ns,
            control_window_ns: 0,
            control_frames: 0,
            interest: Interest::NONE,
            blocked: false,
            write_failed: false,
            paused: false,
            held: false,
            paused_by_service: false,
            awaits_answers: false,
            unanswered: None,
            backlog: false,
            finish: None,
            half_close: false,
            going_told: false,
            new_work: NewWork::Served,
            agent: None,
            dirty: false,
            peer_going: None,
            connecting: Connecting::none(),
        }
    }

    pub(crate) fn wanted_interest(&self) -> Interest {
        let read = !self.paused && self.finish.is_none() && self.state != State::Connecting;
        let write = self.blocked || self.state == State::Connecting;
        match (read, write) {
            (true, true) => Interest::READ_WRITE,
            (true, false) => Interest::READ,
            (false, true) => Interest::WRITE,
            (false, false) => Interest::NONE,
        }
    }

    /// Whether frames are handed to the service: from the end of the handshake to the end of the input.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open | State::Draining)
    }

    /// The address that what it opens counts for. What the server connected itself counts for none.
    pub(crate) fn owner(&self) -> Option<IpAddr> {
        match self.outgoing {
            true => None,
            false => self.peer.as_deref().and_then(counted_address),
        }
    }

    /// Whether its address may be sent no more than it sent.
    pub(crate) fn is_unproven(&self) -> bool {
        let peer = self.stream.datagram();
        peer.is_some_and(|peer| peer.budget.is_some())
    }

    /// When the frame that has begun must have ended. None while none has, or while it is not being read.
    pub(crate) fn frame_deadline_ns(&self, limits: &Limits) -> Option<u64> {
        let is_read = self.frame_began_ns != 0 && !self.tail.is_empty() && !self.paused;
        let time_ns = limits.frame_ns(self.tail.len());
        is_read.then(|| self.frame_began_ns.saturating_add(time_ns))
    }

    /// Whether nothing is known of its UDP address yet.
    pub(crate) fn is_unvalidated(&self) -> bool {
        let peer = self.stream.datagram();
        peer.is_some_and(|peer| matches!(peer.standing, Standing::Unvalidated { .. }))
    }

    /// Whether whole frames were left over and may be handled now.
    #[inline]
    pub(crate) fn may_read_on(&self) -> bool {
        self.backlog && !self.paused && self.finish.is_none() && !self.is_closed()
    }

    #[inline(always)]
    pub(crate) fn refuses_new_work(&self) -> bool {
        matches!(self.new_work, NewWork::Refused | NewWork::Ignored)
    }

    /// New work is refused from now on, but not what was read before and waits.
    pub(crate) fn refuse_new_work(&mut self) {
        self.new_work = if self.backlog {
            NewWork::ServedToBacklog
        } else {
            NewWork::Refused
        };
    }

    /// What was read before has been handled.
    pub(crate) fn end_backlog(&mut self) {
        if self.new_work == NewWork::ServedToBacklog && !self.backlog {
            self.new_work = NewWork::Refused;
        }
    }

    /// Whether nothing but its output stopped the reading.
    pub(crate) fn may_unpause(&self) -> bool {
        self.paused && !self.held && !self.awaits_answers && !self.paused_by_service
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// Gives other threads room for as much as has left the output.
    #[inline]
    pub(crate) fn release_outside(&mut self) {
        let waiting = self.outside_bytes.min(self.output.len());
        if waiting < self.outside_bytes {
            if let Some(card) = &self.card {
                card.release(self.outside_bytes - waiting);
            }
            self.outside_bytes = waiting;
        }
    }
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

    #[test]
    fn every_reason_has_a_counter_of_its_own() {
        let names: std::collections::HashSet<_> = CloseReason::NAMES.iter().collect();
        assert_eq!(names.len(), CloseReason::NAMES.len());
        assert_eq!(
            CloseReason::Io(io::ErrorKind::Other).index(),
            CloseReason::NAMES.len() - 1
        );
    }
}
