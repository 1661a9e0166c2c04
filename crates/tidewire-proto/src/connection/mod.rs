//! A connection from its first byte to its close, without input and output.
//!
//! Problem: handshake, heartbeats, idle timeouts, pausing, draining and half-closing depend on each other. Separate
//! flags can represent invalid combinations. Approach: one state machine for both sides. Its owner passes it frames,
//! time and commands, and reads from it what to do. It owns no socket, no clock and no thread, so a test replays any
//! order of events.
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
//!             Failed             HalfClosed             Closed(reason), or
//!                                                       Ending(reason) ── handle_ended ──▶ Closed(reason)
//! ```
//!
//! # How an owner drives it
//!
//! 1. Decode each frame under [`Connection::filter`]. Serve the kinds that the filter lets through, and pass every
//!    other frame to [`Connection::handle_frame`].
//! 2. After `handle_frame`, `handle_connected`, `handle_timeout` and `drain`, call [`Connection::poll_transmit`]: it
//!    appends the frames that the connection itself has to send.
//! 3. Write output, and report the result by [`Connection::handle_written`], [`OutputSide::handle_blocked`] or
//!    [`Connection::handle_write_failed`]. [`Connection::wants`] says which events to wait for.
//! 4. When [`Connection::poll_timeout`] is reached, call [`Connection::handle_timeout`], then `poll_timeout` again.
//!    Input only moves a timeout to later, so the owner need not call it after each read.
//! 5. If the transport has layers with handshakes of their own, call [`Connection::secure`] when it is connected or
//!    accepted, and [`Connection::handle_connected`] when the layers are ready.
//! 6. In the phase `Authenticating`, and after [`Handled::Authenticate`], identify the peer, and call
//!    [`Handshake::admit`] or [`Handshake::refuse`], now or later.
//! 7. When the [phase](Connection::phase) is `Closed`, remove the connection. Only one reason is kept.
//!
//! The handler of a message may change the connection that the message came from. A loop over frames therefore holds no
//! borrow of the connection: it copies the [`FrameFilter`], which changes only when `handle_frame` opens the
//! connection.

mod authentication;
mod control;
mod ending;
mod filter;
mod handshake;
mod input;
mod output;
mod reason;
mod state;
mod timeouts;

pub use authentication::AuthFailure;
pub use control::Handled;
pub use filter::FrameFilter;
pub use handshake::Handshake;
pub use input::InputSide;
pub use output::OutputSide;
pub use reason::{CloseReason, Farewell};
pub use state::{Drain, Inbound, NewWork, Outbound, PauseReason, PauseReasons, Phase, Then};
pub use timeouts::{Overdue, Timing};

use std::fmt;

use control::Pong;
use timeouts::Facts;

use crate::codec::Format;

/// Settings of all connections of a server or client. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The format of the codec: the frames that open the connection, pings, and the go-away.
    pub format: &'static Format,
    /// Whether the owner must [admit](Handshake::admit) peers before a connection that they made is open.
    pub authenticates: bool,
    /// Largest whole frame that this side accepts, in bytes.
    pub frame_bytes_max: usize,
    /// Maximum duration of the handshake.
    pub handshake_timeout_ns: u64,
    /// Maximum time from the begin of an accepted connection, layers excluded, until its peer is known.
    pub first_frame_timeout_ns: u64,
    /// The silence that ends an open connection with pings.
    pub idle_timeout_ns: u64,
    /// The silence that ends an open connection without pings.
    pub idle_timeout_without_pings_ns: u64,
    /// Time without an answer to a ping, and without any other sign of life, that ends an open connection over a
    /// reliable transport.
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
enum Side {
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
    /// End this side of the transport. If [`OutputSide::is_ending`] then, call [`Connection::handle_ended`] when the
    /// transport has written its last bytes.
    ShutdownWrite,
    /// The connection has closed.
    Closed,
}

/// One connection. The [module](self) describes how to drive it.
///
/// Its parts own their state: [`Handshake`] the agreement of both sides, [`InputSide`] and [`OutputSide`] the two
/// directions, [`Timing`] the signs of life. Only the connection changes several of them at once.
#[derive(Debug)]
pub struct Connection {
    handshake: Handshake,
    input: InputSide,
    output: OutputSide,
    timing: Timing,
    /// The pong to send. There is at most one, so a peer cannot make many.
    pong: Option<Pong>,
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
        connection.handshake.begin_without_hello(rules);
        connection.input.hold_in(connection.handshake.phase());
        connection
    }

    fn new(rules: &Rules, side: Side, delivery: Delivery, phase: Phase, now_ns: u64) -> Self {
        Self {
            handshake: Handshake::new(rules, side, delivery, phase),
            input: InputSide::new(),
            output: OutputSide::new(),
            timing: Timing::new(now_ns),
            pong: None,
        }
    }

    /// The agreement of both sides.
    #[inline]
    #[must_use]
    pub const fn handshake(&self) -> &Handshake {
        &self.handshake
    }

    /// Limits, credentials, and the owner's answer about the peer.
    #[inline]
    pub const fn handshake_mut(&mut self) -> &mut Handshake {
        &mut self.handshake
    }

    /// The input: whether it is read, and the bytes that were read and not handled.
    #[inline]
    #[must_use]
    pub const fn input(&self) -> &InputSide {
        &self.input
    }

    /// Pauses of reading, and the unhandled bytes.
    #[inline]
    pub const fn input_mut(&mut self) -> &mut InputSide {
        &mut self.input
    }

    /// The output: whether it is written, and the farewells of both sides.
    #[inline]
    #[must_use]
    pub const fn output(&self) -> &OutputSide {
        &self.output
    }

    /// Reports of the transport.
    #[inline]
    pub const fn output_mut(&mut self) -> &mut OutputSide {
        &mut self.output
    }

    /// Signs of life, and deadlines of the owner.
    #[inline]
    pub const fn timing_mut(&mut self) -> &mut Timing {
        &mut self.timing
    }

    /// The phase of its life.
    #[inline]
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.handshake.phase()
    }

    /// Whether it has closed.
    #[inline]
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.handshake.is_closed()
    }

    /// Whether the peer may send messages: from the end of the handshake to the close.
    #[inline]
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.handshake.is_open()
    }

    /// Whether messages may be sent: it is open, and this side has not ended.
    #[inline]
    #[must_use]
    pub const fn may_send(&self) -> bool {
        self.is_open() && !self.output.has_ended()
    }

    /// Sends a hello with newer credentials, if the server allows that on this connection. Returns whether it does.
    /// Call [`Self::poll_transmit`] then.
    pub fn renew(&mut self) -> bool {
        self.may_send() && self.handshake.renew()
    }

    /// Whether input may be handled now.
    #[inline]
    #[must_use]
    pub const fn may_read(&self) -> bool {
        self.input.is_reading() && !self.is_closed()
    }

    /// The events to wait for at the transport. They change with every call that takes `&mut self`.
    #[inline]
    #[must_use]
    pub const fn wants(&self) -> Wants {
        let is_connecting = matches!(self.phase(), Phase::Connecting);
        Wants {
            read: self.may_read() && !is_connecting,
            write: is_connecting || (self.output.state().is_blocked() && !self.is_closed()),
        }
    }

    /// The latest time for the next call of [`Self::handle_timeout`]. Call it again after each `handle_timeout`, and
    /// when the phase has changed.
    ///
    /// `is_unvalidated` means that the peer's address is not validated yet, and that no reply is pending for it.
    #[must_use]
    pub fn poll_timeout(
        &mut self,
        rules: &Rules,
        now_ns: u64,
        is_unvalidated: bool,
    ) -> Option<u64> {
        let facts = self.facts(rules, now_ns, is_unvalidated);
        (!self.is_closed()).then(|| self.timing.next_check_ns(&facts))
    }

    /// Handles the time of [`Self::poll_timeout`], or a call at any other time. Transmit the pending frames then.
    pub fn handle_timeout(&mut self, rules: &Rules, now_ns: u64, is_unvalidated: bool) -> Overdue {
        if self.is_closed() {
            return Overdue::Nothing;
        }
        let facts = self.facts(rules, now_ns, is_unvalidated);
        let overdue = self.timing.check(&facts);
        match overdue {
            Overdue::Hello => self.handshake.repeat_hello(),
            Overdue::Closed(reason) => self.close(reason),
            _ => {}
        }
        self.phase().close_reason().map_or(overdue, Overdue::Closed)
    }

    fn facts<'a>(&self, rules: &'a Rules, now_ns: u64, is_unvalidated: bool) -> Facts<'a> {
        let parts = (&self.handshake, &self.input, &self.output);
        Facts::new(rules, now_ns, is_unvalidated, parts)
    }

    /// Sends a ping now, to check whether a peer is still there. Do what the call returns, and check
    /// [`Self::is_unheard_for`] later. [`Overdue::Nothing`] says that the peer would not answer a ping.
    pub fn ask_now(&mut self, rules: &Rules) -> Overdue {
        if !self.may_send() {
            return Overdue::Nothing;
        }
        match self.timing.ask_now(rules) {
            Overdue::LayerPing if !self.timing.has_layer_pings() => Overdue::Nothing,
            asked => asked,
        }
    }

    /// Whether nothing came from the peer for this long, although this side reads. A ping may wait behind other output,
    /// so a peer that takes some output counts as alive, too.
    #[must_use]
    pub fn is_unheard_for(&self, now_ns: u64, for_ns: u64) -> bool {
        let since_ns = match self.output.state().is_blocked() {
            true => self.timing.silence_ns(now_ns),
            false => self.timing.unheard_ns(now_ns),
        };
        self.is_open() && self.may_read() && since_ns >= for_ns
    }
}

/// The facts that this side tells its peer about itself.
#[derive(Clone, Copy)]
pub struct Introduction<'a> {
    /// Name and version of the software.
    pub agent: &'a str,
    /// Number of the session, for logs on both sides. Only the accepting side sends it.
    pub session: u64,
    /// Data by which the server identifies this side. Only the connecting side sends it; may be empty.
    pub credentials: &'a [u8],
    /// Whether this side connects to the server that a go-away names. Only the connecting side sends this.
    pub follows_moves: bool,
    /// The address at which a draining server wants its clients to connect, in at most
    /// [`MOVED_ADDRESS_BYTES_MAX`](crate::limits::MOVED_ADDRESS_BYTES_MAX) bytes; may be empty. Clients that follow
    /// moves receive it.
    pub moved_to: &'a str,
    /// The time now. A welcome says how long credentials are valid from now on.
    pub now_ns: u64,
}

impl fmt::Debug for Introduction<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Introduction")
            .field("agent", &self.agent)
            .field("session", &self.session)
            .field("credentials_bytes", &self.credentials.len())
            .finish_non_exhaustive()
    }
}
