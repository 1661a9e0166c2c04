//! A connection from its first byte to its close, without input and output.
//!
//! Problem: handshake, heartbeats, idle timeouts, pausing, draining and half-closing depend on each other. A lane that
//! keeps a flag for each can represent invalid combinations. Approach: one state machine for both sides. Its owner
//! passes it frames, time and commands, and reads from it what to do. It owns no socket, no clock and no thread, so a
//! test replays any order of events.
//!
//! ```text
//!  connecting side                                      accepting side
//!
//!  Connecting ── handle_connected ──▶ AwaitWelcome      AwaitHello ◀── handle_connected ── Securing
//!      │   └─ secure ─▶ Securing ──┘       │ welcome        │ hello └─▶ Authenticating, see `authentication`
//!      │ codec without hello               ▼                ▼                 │ admit
//!      └───────────────────────────────▶ Open ◀──── codec without hello ◀─────┘
//!                                          │
//!           any phase ── close, error, timeout ──▶ Closed(reason)
//!
//!  inbound   Reading ⇄ Paused(reasons)            any ── end of input, finish ──▶ Ended
//!
//!  outbound  Writing { is_blocked, then: GoOn ──▶ HalfClose ──▶ Close(reason) }
//!                │ write fails        │ all is written     │ all is written
//!                ▼                    ▼                    ▼
//!             Failed             HalfClosed             Closed(reason)  or  Ending(reason) ── handle_ended ──▶ Closed(reason)
//! ```
//!
//! # How an owner drives it
//!
//! 1. Decode each frame under [`Connection::filter`]. Serve the kinds that the filter lets through, and pass every
//!    other frame to [`Connection::handle_frame`].
//! 2. After `handle_frame`, `handle_connected`, `handle_timeout`, `drain` and `retire`, call [`Connection::poll_transmit`]: it
//!    appends the frames that the connection itself has to send.
//! 3. Write output, and report the result by [`Connection::handle_written`], [`Connection::handle_blocked`] or
//!    [`Connection::handle_write_failed`]. [`Connection::wants`] says which events to wait for.
//! 4. When [`Connection::poll_timeout`] is reached, call [`Connection::handle_timeout`], then `poll_timeout` again.
//!    Input only moves a timeout to later, so the owner need not call it after each read.
//! 5. If the transport has layers with handshakes of their own, call [`Connection::secure`] when it is connected or
//!    accepted, and [`Connection::handle_connected`] when the layers are ready.
//! 6. In the phase `Authenticating`, and after [`Handled::Authenticate`], find out who the peer is, and call
//!    [`Connection::admit`] or [`Connection::refuse`], now or later.
//! 7. When [`Connection::close_reason`] gives a reason, remove the connection. There is only one reason.
//!
//! The handler of a message may change the connection that the message came from. A loop over frames therefore holds no
//! borrow of the connection: it copies the [`FrameFilter`], which changes only when `handle_frame` opens the connection.

mod authentication;
mod control;
mod ending;
mod farewell;
mod filter;
mod introduction;
mod partial;
mod reason;
mod state;
mod timeouts;

pub use authentication::AuthFailure;
pub use control::Handled;
pub use farewell::Farewell;
use farewell::LastWords;
pub use filter::FrameFilter;
pub use introduction::Introduction;
pub use partial::PartialFrame;
pub use reason::CloseReason;
pub use state::{Inbound, NewWork, Outbound, PauseReason, PauseReasons, Phase, Then};
pub use timeouts::Overdue;

use authentication::Authentication;
use control::{ControlBudget, Pending};
use state::{Drain, Features};

use crate::codec::Format;
use timeouts::Timing;

/// Settings of all connections of a server or client. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The format of the codec: the frames that open the connection, pings, and the go-away.
    pub format: &'static Format,
    /// Whether the owner must [admit](Connection::admit) peers before a connection that they made is open.
    pub authenticates: bool,
    /// Largest whole frame that this side accepts, in bytes.
    pub frame_bytes_max: usize,
    /// Maximum duration of the handshake.
    pub handshake_timeout_ns: u64,
    /// Maximum time from the begin of an accepted connection, layers excluded, until its peer is known.
    pub first_frame_timeout_ns: u64,
    /// Silence that ends an open connection whose sides answer pings.
    pub idle_timeout_ns: u64,
    /// Silence that ends an open connection whose sides answer no pings.
    pub idle_timeout_without_pings_ns: u64,
    /// Time without an answer to a ping, and without any other sign of life, that ends an open connection over a reliable transport.
    pub ping_timeout_ns: u64,
    /// Silence that ends an open connection even if the peer takes output: only input counts. 0 for never.
    pub receive_timeout_ns: u64,
    /// Silence after which a ping is sent; 0 for never.
    pub heartbeat_ns: u64,
    /// Silence that ends a connection of an unvalidated address.
    pub unvalidated_timeout_ns: u64,
    /// Maximum time from the first byte of a frame to its last, with a second more for every
    /// `frame_bytes_per_second_min` bytes that came.
    pub frame_timeout_ns: u64,
    /// The minimum rate of a long frame.
    pub frame_bytes_per_second_min: usize,
    /// Maximum number of control frames of a peer in a second.
    pub control_frames_per_second_max: u32,
}

/// The side that began the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This side began the connection.
    Connecting,
    /// The peer began the connection.
    Accepting,
}

/// The guarantee of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Bytes arrive in order, or the connection ends.
    Reliable,
    /// Whole frames may be lost, repeated, or overtake each other.
    Lossy,
}

/// The events to wait for at the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// Input to read.
    pub read: bool,
    /// Room to write, or the end of connecting.
    pub write: bool,
}

/// The next step when all output was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Written {
    /// No step is necessary.
    GoOn,
    /// Call [`Connection::poll_transmit`] and write what it appends: the service's farewell.
    Transmit,
    /// End this side of the transport. If [`Connection::is_ending`] then, call [`Connection::handle_ended`] when the transport
    /// has written its last bytes.
    ShutdownWrite,
    /// The connection has closed.
    Closed,
}

/// The connection boxes this once more: most connections are made by peers, and those have no agent.
#[derive(Debug)]
struct PeerAgent(Box<str>);

/// One connection. The [module](self) describes how to drive it.
#[derive(Debug)]
pub struct Connection {
    side: Side,
    delivery: Delivery,
    phase: Phase,
    inbound: Inbound,
    outbound: Outbound,
    /// Frames that this connection has to send.
    pending: Pending,
    timing: Timing,
    new_work: NewWork,
    control_budget: ControlBudget,
    /// Largest whole frame that both sides accept, in bytes.
    frame_bytes_max: usize,
    /// The farewells of both sides. There is none for most of the connection's life, so it is boxed.
    last_words: Option<Box<LastWords>>,
    /// Whether the peer was sent a go-away.
    is_going_told: bool,
    /// Whether the layers beneath the codec have pings that the peer answers.
    has_layer_pings: bool,
    features: Features,
    /// The reason why this side asked the peer to end the connection, once it did.
    drain: Drain,
    /// The server's name and version, from its welcome.
    peer_agent: Option<Box<PeerAgent>>,
    /// `None` for connections without credentials.
    authentication: Option<Box<Authentication>>,
    /// A partial frame, and whole frames that must not be handled yet.
    pub partial: PartialFrame,
}

impl Connection {
    /// Creates a connection that this side makes. Call [`Self::handle_connected`] when the transport is connected.
    #[must_use]
    pub fn connecting(rules: &Rules, delivery: Delivery, now_ns: u64) -> Self {
        Self::new(rules, Side::Connecting, delivery, Phase::Connecting, now_ns)
    }

    /// Creates a connection that a peer made. Without a hello it is open at once, unless the owner authenticates peers.
    #[must_use]
    pub fn accepted(rules: &Rules, delivery: Delivery, now_ns: u64) -> Self {
        let phase = if rules.format.begins_with_hello() {
            Phase::AwaitHello
        } else {
            Phase::Open
        };
        let mut connection = Self::new(rules, Side::Accepting, delivery, phase, now_ns);
        connection.begin_without_hello(rules);
        connection
    }

    /// Asks the owner about a peer whose codec has no hello, if the owner authenticates peers.
    fn begin_without_hello(&mut self, rules: &Rules) {
        if rules.authenticates && self.side == Side::Accepting && self.is_open() {
            self.phase = Phase::Authenticating;
            self.ask_owner(None);
        }
    }

    fn new(rules: &Rules, side: Side, delivery: Delivery, phase: Phase, now_ns: u64) -> Self {
        Self {
            side,
            delivery,
            phase,
            inbound: Inbound::Reading,
            outbound: Outbound::WRITING,
            pending: Pending::default(),
            timing: Timing::new(now_ns),
            new_work: NewWork::Served,
            control_budget: ControlBudget::default(),
            frame_bytes_max: rules.frame_bytes_max,
            last_words: None,
            is_going_told: false,
            has_layer_pings: false,
            features: Features::default(),
            drain: Drain::No,
            peer_agent: None,
            authentication: None,
            partial: PartialFrame::default(),
        }
    }

    /// The phase of its life.
    #[inline]
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// The state of the input.
    #[inline]
    #[must_use]
    pub const fn inbound(&self) -> Inbound {
        self.inbound
    }

    /// The state of the output.
    #[inline]
    #[must_use]
    pub const fn outbound(&self) -> Outbound {
        self.outbound
    }

    /// The reason of the close, once it has closed.
    #[inline]
    #[must_use]
    pub const fn close_reason(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Closed(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether it has closed.
    #[inline]
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed(_))
    }

    /// Whether the peer may send messages: from the end of the handshake to the close.
    #[inline]
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether messages may be sent: it is open, and this side has not ended.
    #[inline]
    #[must_use]
    pub const fn may_send(&self) -> bool {
        self.is_open() && !matches!(self.outbound, Outbound::HalfClosed | Outbound::Ending(_))
    }

    /// Whether output can still reach the peer.
    #[inline]
    #[must_use]
    pub const fn reaches_peer(&self) -> bool {
        self.is_open() && matches!(self.outbound, Outbound::Writing { .. })
    }

    /// Whether both sides know positions of messages, which deliveries of rooms and topics with a history carry.
    #[inline]
    #[must_use]
    pub const fn knows_positions(&self) -> bool {
        self.has_feature(crate::handshake::FEATURE_POSITIONS)
    }

    /// Whether the client learns by [`Kind::Placement`](crate::message::Kind::Placement) of rooms and subscriptions that a handler
    /// of the server puts it into.
    #[inline]
    #[must_use]
    pub const fn knows_placements(&self) -> bool {
        self.has_feature(crate::handshake::FEATURE_PLACEMENT)
    }

    const fn has_feature(&self, feature: u32) -> bool {
        self.features.has(feature)
    }

    /// Whether this side made the connection.
    #[inline]
    #[must_use]
    pub const fn is_outgoing(&self) -> bool {
        matches!(self.side, Side::Connecting)
    }

    /// Whether output may be written before the end of a turn: no farewell or end follows it.
    #[inline]
    #[must_use]
    pub const fn may_write_early(&self) -> bool {
        matches!(self.outbound, Outbound::WRITING)
    }

    /// Whether the connection closes when its output is written.
    #[inline]
    #[must_use]
    pub const fn is_finishing(&self) -> bool {
        matches!(
            self.outbound,
            Outbound::Writing {
                then: Then::Close(_),
                ..
            }
        )
    }

    /// Whether this side has ended, and the connection closes when the transport has written its last bytes.
    #[inline]
    #[must_use]
    pub const fn is_ending(&self) -> bool {
        matches!(self.outbound, Outbound::Ending(_))
    }

    /// Whether input may be handled now.
    #[inline]
    #[must_use]
    pub const fn may_read(&self) -> bool {
        matches!(self.inbound, Inbound::Reading) && !self.is_closed()
    }

    /// Whether reading pauses for some reason.
    #[inline]
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        matches!(self.inbound, Inbound::Paused(_))
    }

    /// Largest whole frame that both sides accept, in bytes.
    #[inline]
    #[must_use]
    pub const fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Lowers the largest frame to the transport's limit.
    pub fn limit_frames(&mut self, bytes_max: usize) {
        self.frame_bytes_max = self.frame_bytes_max.min(bytes_max);
    }

    /// Notes that a layer of the transport encrypts, so that credentials may be long. Call it before [`Self::handle_connected`].
    pub fn note_encrypted(&mut self) {
        self.features.note_encrypted();
    }

    /// The server's name and version, on the connecting side.
    #[must_use]
    pub fn peer_agent(&self) -> Option<&str> {
        self.peer_agent.as_ref().map(|agent| &*agent.0)
    }

    /// The events to wait for at the transport. They change with every call that takes `&mut self`.
    #[inline]
    #[must_use]
    pub const fn wants(&self) -> Wants {
        let is_connecting = matches!(self.phase, Phase::Connecting);
        Wants {
            read: self.may_read() && !is_connecting,
            write: is_connecting || (self.outbound.is_blocked() && !self.is_closed()),
        }
    }

    /// Stops reading for a reason. Returns whether it was reading.
    pub fn pause(&mut self, reason: PauseReason) -> bool {
        match self.inbound {
            Inbound::Reading => {
                self.inbound = Inbound::Paused(PauseReasons::NONE.with(reason));
                true
            }
            Inbound::Paused(reasons) => {
                self.inbound = Inbound::Paused(reasons.with(reason));
                false
            }
            Inbound::Ended => false,
        }
    }

    /// Removes a reason not to read. Returns whether it was the last one, so that reading goes on.
    pub fn resume(&mut self, reason: PauseReason) -> bool {
        let Inbound::Paused(reasons) = self.inbound else {
            return false;
        };
        let reasons = reasons.without(reason);
        self.inbound = if reasons.is_empty() {
            // While the connection did not read, the rest of a frame could not come.
            self.partial.restart_clock();
            Inbound::Reading
        } else {
            Inbound::Paused(reasons)
        };
        reasons.is_empty()
    }

    /// Whether reading pauses for this reason.
    #[inline]
    #[must_use]
    pub const fn is_paused_by(&self, reason: PauseReason) -> bool {
        match self.inbound {
            Inbound::Paused(reasons) => reasons.contains(reason),
            _ => false,
        }
    }
}
