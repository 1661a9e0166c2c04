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
//! 2. After `handle_frame`, `handle_connected`, `handle_timeout` and `drain`, call [`Connection::poll_transmit`]: it
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
mod farewell;
mod filter;
mod partial;
mod reason;
mod state;
mod timeouts;

pub use authentication::AuthFailure;
pub use control::{Handled, Introduction};
pub use farewell::Farewell;
use farewell::LastWords;
pub use filter::FrameFilter;
pub use partial::PartialFrame;
pub use reason::CloseReason;
pub use state::{Inbound, NewWork, Outbound, PauseReason, PauseReasons, Phase, Then};
pub use timeouts::Overdue;

use authentication::Authentication;
use control::{ControlBudget, Pending};
use timeouts::Timing;

use crate::body::GoAwayCode;

/// Settings of all connections of a server or client. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether connections begin with a hello and a welcome; see [`Codec::begins_with_hello`](crate::codec::Codec::begins_with_hello).
    pub begins_with_hello: bool,
    /// Whether the owner must [admit](Connection::admit) peers before a connection that they made is open.
    pub authenticates: bool,
    /// Whether both sides answer pings; see [`Codec::has_pings`](crate::codec::Codec::has_pings).
    pub has_pings: bool,
    /// Whether peers can tell a go-away from an answer; see [`Codec::has_go_away`](crate::codec::Codec::has_go_away).
    pub has_go_away: bool,
    /// Largest whole frame that this side accepts, in bytes.
    pub frame_bytes_max: usize,
    /// Maximum duration of the handshake.
    pub handshake_timeout_ns: u64,
    /// Silence that ends an open connection.
    pub idle_timeout_ns: u64,
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
    /// The server of this connection is shutting down.
    is_draining: bool,
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
        let phase = if rules.begins_with_hello {
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
            is_draining: false,
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

    /// Closes the connection now. Unwritten output is lost. The first reason stays, also for a connection that only
    /// waits for the last bytes of its transport. A reset after a peer's farewell counts as that farewell: the peer did
    /// not read the output that crossed it.
    pub fn close(&mut self, reason: CloseReason) {
        if !self.is_closed() {
            self.phase = Phase::Closed(match (self.outbound, reason, self.peer_farewell()) {
                (Outbound::Ending(first), ..) => first,
                (_, CloseReason::PeerReset, Some(farewell)) => CloseReason::GoAway(farewell.code),
                _ => reason,
            });
        }
    }

    /// Closes the connection when all output is written. No more input is read. If no output can be written, it closes
    /// now.
    pub fn finish(&mut self, reason: CloseReason) {
        match &mut self.outbound {
            Outbound::Writing { then, .. }
                if !matches!(self.phase, Phase::Connecting | Phase::Securing) =>
            {
                if !matches!(then, Then::Close(_)) {
                    *then = Then::Close(reason);
                }
                self.inbound = Inbound::Ended;
            }
            // The first reason stays, and the last bytes are written.
            Outbound::Ending(_) => {}
            _ => self.close(reason),
        }
    }

    /// Ends this side when all output is written. The peer's input is read to its end.
    pub fn half_close(&mut self) {
        if let Outbound::Writing {
            then: then @ Then::GoOn,
            ..
        } = &mut self.outbound
        {
            *then = Then::HalfClose;
        }
    }

    /// Begins the shutdown of the server: the peer gets a go-away, or this side ends after its pending replies.
    pub fn drain(&mut self, rules: &Rules) {
        self.is_draining = true;
        match self.outbound {
            // The connection is about to close, for its own reason.
            Outbound::Ending(_) => return,
            Outbound::HalfClosed => return self.close(CloseReason::Shutdown),
            _ if !self.is_open() => return self.close(CloseReason::Shutdown),
            _ => {}
        }
        match self.side {
            // A server that this side connected to needs no go-away: the end of the stream is enough.
            Side::Accepting if rules.has_go_away => {
                self.tell_going(GoAwayCode::Shutdown);
                self.new_work = if self.partial.has_frames() {
                    NewWork::ServedToBacklog
                } else {
                    NewWork::Refused
                };
            }
            _ if self.delivery == Delivery::Lossy && !rules.has_go_away => {
                // The peer may not know that it should answer this side's end with its own.
                self.is_going_told = true;
                self.finish(CloseReason::Shutdown);
            }
            // All input that has arrived is read and answered before this side ends.
            _ => self.half_close(),
        }
    }

    /// Handles the end of the peer's side: this side's output is written first.
    pub fn handle_input_end(&mut self) {
        let reason = self.end_reason();
        match self.outbound {
            Outbound::Failed => self.close(CloseReason::PeerReset),
            Outbound::Writing { .. } if self.is_open() => self.finish(reason),
            _ => self.close(reason),
        }
    }

    /// Notes that the transport took less output than was offered.
    pub fn handle_blocked(&mut self) {
        if let Outbound::Writing { is_blocked, .. } = &mut self.outbound {
            *is_blocked = true;
        }
    }

    /// Notes that the transport takes output again. A peer that takes output is not idle.
    pub fn handle_writable(&mut self, now_ns: u64) {
        if let Outbound::Writing { is_blocked, .. } = &mut self.outbound
            && std::mem::take(is_blocked)
            && self.is_open()
        {
            self.timing.note_taken(now_ns);
        }
    }

    /// Handles the moment when all output is written. `has_pending_replies` says whether requests that were read wait
    /// for their replies, and `has_layers` whether the transport has bytes of its own to write at the end.
    pub fn handle_written(
        &mut self,
        rules: &Rules,
        has_pending_replies: bool,
        has_layers: bool,
        now_ns: u64,
    ) -> Written {
        if !rules.has_pings && self.delivery == Delivery::Reliable && self.is_open() {
            // A listener that never sends is not idle while it takes output.
            self.timing.note_taken(now_ns);
        }
        let Outbound::Writing { then, .. } = self.outbound else {
            return Written::GoOn;
        };
        self.outbound = Outbound::Writing {
            is_blocked: false,
            then,
        };
        match then {
            Then::Close(reason) if !(has_pending_replies && reason.waits_for_answers()) => {
                if self.tell_farewell() {
                    return Written::Transmit;
                }
                if has_layers {
                    self.outbound = Outbound::Ending(reason);
                    return Written::ShutdownWrite;
                }
                self.close(reason);
                Written::Closed
            }
            // Whole frames that wait to be handled were accepted: they are answered before this side ends.
            Then::HalfClose
                if self.is_open() && !has_pending_replies && !self.partial.has_frames() =>
            {
                self.outbound = Outbound::HalfClosed;
                if self.side == Side::Accepting {
                    self.new_work = NewWork::Dropped;
                }
                Written::ShutdownWrite
            }
            _ => Written::GoOn,
        }
    }

    /// Closes a connection that is ending: the transport has written its last bytes.
    pub fn handle_ended(&mut self) {
        if let Outbound::Ending(reason) = self.outbound {
            self.close(reason);
        }
    }

    /// Handles a peer that takes no more output. Its earlier input is still read to its end: the messages of a client
    /// that sends and closes at once must arrive.
    pub fn handle_write_failed(&mut self) {
        match self.outbound {
            Outbound::Writing {
                then: Then::Close(reason),
                ..
            }
            | Outbound::Ending(reason) => self.close(reason),
            _ => self.outbound = Outbound::Failed,
        }
    }

    /// Whether the connection waits for pending replies before it ends.
    #[must_use]
    pub const fn waits_for_answers(&self) -> bool {
        match self.outbound {
            Outbound::Writing {
                then: Then::Close(reason),
                ..
            } => reason.waits_for_answers(),
            Outbound::Writing {
                then: Then::HalfClose,
                ..
            } => true,
            _ => false,
        }
    }

    /// Notes that the frames that were left when reading paused have been handled.
    pub fn handle_backlog_served(&mut self) {
        if self.new_work == NewWork::ServedToBacklog && !self.partial.has_frames() {
            self.new_work = NewWork::Refused;
        }
    }

    /// Whether new work of the peer is served or refused.
    #[must_use]
    pub const fn new_work(&self) -> NewWork {
        self.new_work
    }

    /// Whether the peer has announced that it will close.
    #[must_use]
    pub const fn is_peer_going(&self) -> bool {
        matches!(&self.last_words, Some(words) if words.peer.is_some())
    }

    /// The reason of the close when the peer's input has ended.
    #[must_use]
    pub fn end_reason(&self) -> CloseReason {
        match self.peer_farewell() {
            Some(farewell) => CloseReason::GoAway(farewell.code),
            None if self.is_draining => CloseReason::Shutdown,
            None => CloseReason::PeerClosed,
        }
    }
}
