//! The handshake of a connection: hello and welcome, the features that both sides have, and renewed credentials.

use super::authentication::Authentication;
use super::state::Features;
use super::{AuthFailure, CloseReason, Delivery, Handled, Introduction, Phase, Rules, Side};
use crate::body::ErrorBody;
use crate::error::DecodeError;
use crate::handshake::{
    self, Agreed, FEATURE_LONG_CREDENTIALS, FEATURE_MOVED, FEATURE_PLACEMENT, FEATURE_POSITIONS,
    FEATURE_RENEWAL, HandshakeError, Hello, Offer, Welcome,
};
use crate::limits::{HELLO_BYTES_MAX, LONG_HELLO_BYTES_MAX};
use crate::message::{Kind, Message};

/// The agreement of both sides: the phase of the connection, and the results of its handshake.
#[derive(Debug)]
pub struct Handshake {
    side: Side,
    delivery: Delivery,
    phase: Phase,
    features: Features,
    sends_hello: bool,
    welcome: Option<Agreed>,
    control_budget: ControlBudget,
    /// Largest whole frame that both sides accept, in bytes.
    frame_bytes_max: usize,
    /// The server's name and version, from its welcome.
    peer_agent: Option<Box<PeerAgent>>,
    /// `None` for connections without credentials.
    authentication: Option<Box<Authentication>>,
}

/// The handshake boxes this again, because most connections are made by peers and have no agent.
#[derive(Debug)]
struct PeerAgent(Box<str>);

/// A frame that does not go to the service.
pub(super) enum ControlFrame {
    /// The frame was for the handshake, or wrong.
    Handled(Handled),
    /// The frame is a ping.
    Ping,
    /// The frame is the peer's go-away.
    GoAway,
}

/// The number of control frames in the second that began at `window_ns`.
#[derive(Debug, Default)]
struct ControlBudget {
    window_ns: u64,
    frames: u32,
}

impl ControlBudget {
    /// Counts a frame. Returns whether it is within the limit.
    fn take(&mut self, rules: &Rules, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.window_ns) >= SECOND_NS {
            *self = Self {
                window_ns: now_ns,
                frames: 0,
            };
        }
        self.frames += 1;
        self.frames <= rules.control_frames_per_second_max
    }
}

impl Handshake {
    pub(super) fn new(rules: &Rules, side: Side, delivery: Delivery, phase: Phase) -> Self {
        Self {
            side,
            delivery,
            phase,
            features: Features::default(),
            sends_hello: false,
            welcome: None,
            control_budget: ControlBudget::default(),
            frame_bytes_max: rules.frame_bytes_max,
            peer_agent: None,
            authentication: None,
        }
    }

    /// The phase of the connection's life.
    #[inline]
    pub(super) const fn phase(&self) -> Phase {
        self.phase
    }

    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    #[inline]
    pub(super) const fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed(_))
    }

    pub(super) const fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Whether this side made the connection.
    #[inline]
    #[must_use]
    pub const fn is_outgoing(&self) -> bool {
        matches!(self.side, Side::Connecting)
    }

    /// Whether both sides know positions of messages, which deliveries of rooms and topics with a history carry.
    #[inline]
    #[must_use]
    pub const fn knows_positions(&self) -> bool {
        self.features.has(FEATURE_POSITIONS)
    }

    /// Whether the client understands [`Kind::Placement`], for rooms and subscriptions that a handler of the server
    /// sets.
    #[inline]
    #[must_use]
    pub const fn knows_placements(&self) -> bool {
        self.features.has(FEATURE_PLACEMENT)
    }

    /// Whether the client connects to the address of another server that a go-away has.
    pub(super) const fn knows_moves(&self) -> bool {
        self.features.has(FEATURE_MOVED)
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

    /// Notes that a layer of the transport encrypts, so that credentials may be long. Call it before
    /// [`handle_connected`](super::Connection::handle_connected).
    pub fn note_encrypted(&mut self) {
        self.features.note_encrypted();
    }

    /// Largest first frame.
    pub(super) const fn hello_bytes_max(&self) -> usize {
        match self.features.is_encrypted() {
            true => LONG_HELLO_BYTES_MAX,
            false => HELLO_BYTES_MAX,
        }
    }

    /// The server's name and version, on the connecting side.
    #[must_use]
    pub fn peer_agent(&self) -> Option<&str> {
        self.peer_agent.as_ref().map(|agent| &*agent.0)
    }

    pub(super) const fn authentication(&self) -> Option<&Authentication> {
        match &self.authentication {
            Some(authentication) => Some(authentication),
            None => None,
        }
    }

    /// Whether the owner must still identify the peer.
    #[must_use]
    pub fn awaits_owner(&self) -> bool {
        self.authentication().is_some_and(Authentication::is_asked) && !self.is_closed()
    }

    /// When the credentials of this connection expire, on either side.
    #[must_use]
    pub fn credentials_expire_ns(&self) -> Option<u64> {
        self.authentication()?.expires_ns()
    }

    /// Whether both sides know that a hello may come again, because the server authenticates its clients.
    #[must_use]
    pub fn may_renew(&self) -> bool {
        self.authentication().is_some_and(Authentication::may_renew)
    }

    /// Lets the peer in, or confirms its newer credentials. They expire at `expires_ns`. Returns false if the owner was
    /// not asked, or the connection has closed. Then call [`poll_transmit`](super::Connection::poll_transmit)
    /// and [`poll_timeout`](super::Connection::poll_timeout).
    pub fn admit(&mut self, expires_ns: Option<u64>) -> bool {
        let is_closed = self.is_closed();
        let Some(state) = self.authentication.as_deref_mut().filter(|_| !is_closed) else {
            return false;
        };
        let Some(welcome) = state.admit(expires_ns) else {
            return false;
        };
        self.welcome = welcome;
        self.phase = Phase::Open;
        true
    }

    /// Refuses the peer at this time, or now if that is past. Call [`poll_timeout`](super::Connection::poll_timeout)
    /// again. Returns false if the owner was not asked, or the connection has closed.
    pub fn refuse(&mut self, failure: AuthFailure, at_ns: u64) -> bool {
        let is_closed = self.is_closed();
        let state = self.authentication.as_deref_mut();
        state.is_some_and(|state| !is_closed && state.refuse(failure, at_ns))
    }

    /// Lets the credentials of an open connection expire at another time. The peer gets another welcome, if it knows
    /// renewal. Call [`poll_transmit`](super::Connection::poll_transmit) and
    /// [`poll_timeout`](super::Connection::poll_timeout) then.
    pub fn change_expiry(&mut self, expires_ns: Option<u64>) {
        let is_told = self.is_open() && self.may_renew();
        if let Some(state) = self.authentication.as_deref_mut() {
            let agreed = state.change_expiry(expires_ns);
            self.welcome = self.welcome.or(agreed.filter(|_| is_told));
        }
    }

    /// See [`Connection::renew`](super::Connection::renew).
    pub(super) fn renew(&mut self) -> bool {
        let may_renew = self.is_outgoing() && self.may_renew();
        self.sends_hello |= may_renew;
        may_renew
    }

    /// Asks the owner to identify a peer without a hello, if the owner authenticates peers.
    pub(super) fn begin_without_hello(&mut self, rules: &Rules) {
        if rules.authenticates && !self.is_outgoing() && self.is_open() {
            self.phase = Phase::Authenticating;
            self.ask_owner(None);
        }
    }

    /// Asks the owner to identify the peer. Further frames wait.
    fn ask_owner(&mut self, agreed: Option<Agreed>) {
        self.authentication.get_or_insert_default().ask(agreed);
        if !self.is_open() {
            self.phase = Phase::Authenticating;
        }
    }

    /// Begins the handshakes of layers.
    pub(super) fn secure(&mut self) {
        // The owner is asked when the layers are ready, because they may know the peer.
        self.authentication = None;
        self.phase = Phase::Securing;
    }

    /// Begins the handshake when the transport is ready.
    pub(super) fn begin(&mut self, rules: &Rules) {
        self.phase = match self.side {
            _ if !rules.format.begins_with_hello() => Phase::Open,
            Side::Connecting => {
                self.sends_hello = true;
                Phase::AwaitWelcome
            }
            Side::Accepting => Phase::AwaitHello,
        };
        self.begin_without_hello(rules);
    }

    pub(super) fn close(&mut self, reason: CloseReason) {
        self.phase = Phase::Closed(reason);
    }

    /// Sends the hello again, which may have been lost.
    pub(super) fn repeat_hello(&mut self) {
        self.sends_hello = true;
    }

    /// Opens a connection whose client sent another frame instead of a hello, if its codec allows that.
    pub(super) fn handle_missing_hello(&mut self, rules: &Rules, kind: Kind) -> Option<Handled> {
        let is_missing = self.phase == Phase::AwaitHello
            && !matches!(kind, Kind::Hello | Kind::GoAway)
            && rules.format.hello_is_optional();
        is_missing.then(|| {
            if rules.authenticates {
                self.ask_owner(None);
                Handled::Authenticate
            } else {
                self.phase = Phase::Open;
                Handled::Opened
            }
        })
    }

    /// Handles a frame that does not go to the service.
    pub(super) fn handle(
        &mut self,
        rules: &Rules,
        message: &Message<'_>,
        now_ns: u64,
    ) -> ControlFrame {
        let handled = match self.delivery {
            Delivery::Reliable => None,
            Delivery::Lossy => self.handle_lossy(rules, message, now_ns),
        };
        handled.unwrap_or_else(|| self.handle_in_order(rules, message, now_ns))
    }

    fn handle_in_order(
        &mut self,
        rules: &Rules,
        message: &Message<'_>,
        now_ns: u64,
    ) -> ControlFrame {
        ControlFrame::Handled(match (self.phase, message.kind) {
            (Phase::Open, Kind::GoAway | Kind::Ping | Kind::Pong)
                if !self.control_budget.take(rules, now_ns) =>
            {
                Handled::Closed(CloseReason::ControlFlood)
            }
            (_, Kind::GoAway) => return ControlFrame::GoAway,
            (Phase::AwaitHello, Kind::Hello) => {
                let accepted = self.accept_hello(rules, message).map(Some);
                self.opened(rules, accepted)
            }
            (Phase::AwaitHello, kind) => refused(HandshakeError::ExpectedHello { kind }),
            (Phase::AwaitWelcome, Kind::Welcome) => {
                let accepted = self.accept_welcome(message, now_ns).map(|()| None);
                self.opened(rules, accepted)
            }
            (Phase::AwaitWelcome, Kind::Error) => hello_refused(message),
            (Phase::AwaitWelcome, kind) => refused(HandshakeError::ExpectedWelcome { kind }),
            (Phase::Authenticating, _) => Handled::Early,
            (Phase::Open, Kind::Hello | Kind::Welcome) if self.may_renew() => {
                self.handle_renewal(rules, message, now_ns)
            }
            (_, Kind::Ping) => return ControlFrame::Ping,
            (_, Kind::Pong) => Handled::Done,
            // A second hello or welcome is an error.
            (_, kind) => malformed(kind),
        })
    }

    /// Handles a frame that may be lost, repeated or out of order; `None` if the frame is handled as in order.
    fn handle_lossy(
        &mut self,
        rules: &Rules,
        message: &Message<'_>,
        now_ns: u64,
    ) -> Option<ControlFrame> {
        Some(ControlFrame::Handled(match (self.phase, message.kind) {
            // The server validates the address of this side before it keeps any state.
            (Phase::AwaitWelcome, Kind::Ping) => {
                self.sends_hello = true;
                return Some(ControlFrame::Ping);
            }
            (Phase::AwaitWelcome, Kind::Welcome | Kind::GoAway) => return None,
            (Phase::AwaitWelcome, Kind::Error) if message.id == 0 => return None,
            // The frame overtook the welcome.
            (Phase::AwaitWelcome, _) => Handled::Early,
            // The hello was sent again before the owner has answered.
            (Phase::Authenticating, Kind::Hello) => Handled::Done,
            // The answer to the challenge came before the hello.
            (Phase::AwaitHello, Kind::Pong) => Handled::Done,
            // The welcome was lost, or the hello was sent again before it came.
            (Phase::Open, Kind::Hello) if rules.authenticates && !self.is_outgoing() => {
                self.handle_renewal(rules, message, now_ns)
            }
            (Phase::Open, Kind::Hello) if !self.is_outgoing() => {
                if !self.control_budget.take(rules, now_ns) {
                    Handled::Closed(CloseReason::ControlFlood)
                } else {
                    match self.accept_hello(rules, message) {
                        Ok(agreed) => {
                            self.agree(agreed);
                            Handled::Done
                        }
                        Err(error) => refused(error),
                    }
                }
            }
            (Phase::Open, Kind::Welcome) if !self.may_renew() => Handled::Done,
            _ => return None,
        }))
    }

    fn accept_hello(
        &mut self,
        rules: &Rules,
        message: &Message<'_>,
    ) -> Result<Agreed, HandshakeError> {
        let hello = Hello::decode(message.payload)?;
        let offer = Offer {
            features: FEATURE_MOVED
                | FEATURE_POSITIONS
                | FEATURE_PLACEMENT
                | feature(rules.authenticates, FEATURE_RENEWAL)
                | feature(self.features.is_encrypted(), FEATURE_LONG_CREDENTIALS),
            frame_bytes_max: u32::try_from(self.frame_bytes_max).unwrap_or(u32::MAX),
            heartbeat_ms: heartbeat_ms(rules, self.delivery),
        };
        let agreed = handshake::accept(&hello, &offer)?;
        self.features.agree(agreed.features);
        Ok(agreed)
    }

    /// Handles a hello or welcome of an open connection whose credentials may be renewed.
    fn handle_renewal(&mut self, rules: &Rules, message: &Message<'_>, now_ns: u64) -> Handled {
        if !self.control_budget.take(rules, now_ns) {
            return Handled::Closed(CloseReason::ControlFlood);
        }
        let is_owner_asked = self
            .authentication()
            .is_some_and(Authentication::is_undecided);
        match (self.side, message.kind) {
            (Side::Accepting, Kind::Hello) if is_owner_asked => Handled::Done,
            (Side::Accepting, Kind::Hello) => match self.accept_hello(rules, message) {
                Ok(agreed) => {
                    self.ask_owner(Some(agreed));
                    Handled::Authenticate
                }
                Err(error) => refused(error),
            },
            (Side::Connecting, Kind::Welcome) => match self.accept_welcome(message, now_ns) {
                Ok(()) => Handled::Done,
                Err(error) => refused(error),
            },
            (_, kind) => malformed(kind),
        }
    }

    fn accept_welcome(&mut self, message: &Message<'_>, now_ns: u64) -> Result<(), HandshakeError> {
        let welcome = Welcome::decode(message.payload)?;
        let agreed = Agreed {
            version: welcome.version,
            features: welcome.features,
            frame_bytes_max: welcome.frame_bytes_max,
        };
        self.features.agree(agreed.features);
        if agreed.features & FEATURE_RENEWAL != 0 {
            let expires_in_ns = welcome.expires_in_ms.saturating_mul(MILLISECOND_NS);
            let expires_ns = (expires_in_ns > 0).then(|| now_ns.saturating_add(expires_in_ns));
            let state = self.authentication.get_or_insert_default();
            state.note_welcome(agreed, expires_ns);
        }
        self.limit_frames(welcome.frame_bytes_max as usize);
        self.peer_agent = Some(Box::new(PeerAgent(welcome.agent.into())));
        Ok(())
    }

    /// Opens the connection if its first frame was accepted, or asks the owner.
    fn opened(
        &mut self,
        rules: &Rules,
        accepted: Result<Option<Agreed>, HandshakeError>,
    ) -> Handled {
        match accepted {
            Ok(Some(agreed)) if rules.authenticates => {
                self.limit_frames(agreed.frame_bytes_max as usize);
                self.ask_owner(Some(agreed));
                Handled::Authenticate
            }
            Ok(agreed) => {
                self.phase = Phase::Open;
                if let Some(agreed) = agreed {
                    self.agree(agreed);
                }
                Handled::Opened
            }
            Err(error) => refused(error),
        }
    }

    /// Notes the agreed limits, and schedules the welcome.
    fn agree(&mut self, agreed: Agreed) {
        self.limit_frames(agreed.frame_bytes_max as usize);
        self.welcome = Some(agreed);
    }

    /// Whether there is a hello or a welcome to send.
    pub(super) const fn has_transmit(&self) -> bool {
        self.sends_hello || self.welcome.is_some()
    }

    pub(super) fn take_hello<'a>(
        &mut self,
        rules: &Rules,
        own: &Introduction<'a>,
    ) -> Option<Hello<'a>> {
        std::mem::take(&mut self.sends_hello).then(|| Hello {
            version: handshake::PROTOCOL_VERSION,
            features: FEATURE_PLACEMENT
                | feature(rules.format.has_positions, FEATURE_POSITIONS)
                | feature(!own.credentials.is_empty(), FEATURE_RENEWAL)
                | feature(own.follows_moves, FEATURE_MOVED)
                | feature(self.features.is_encrypted(), FEATURE_LONG_CREDENTIALS),
            frame_bytes_max: u32::try_from(self.frame_bytes_max).unwrap_or(u32::MAX),
            credentials: own.credentials,
            agent: own.agent,
        })
    }

    pub(super) fn take_welcome<'a>(
        &mut self,
        rules: &Rules,
        own: &Introduction<'a>,
    ) -> Option<Welcome<'a>> {
        let agreed = self.welcome.take()?;
        let expires_in_ms = self.credentials_expire_ns().map_or(0, |expires_ns| {
            (expires_ns.saturating_sub(own.now_ns) / MILLISECOND_NS).max(1)
        });
        Some(Welcome {
            version: agreed.version,
            features: agreed.features,
            frame_bytes_max: agreed.frame_bytes_max,
            heartbeat_ms: heartbeat_ms(rules, self.delivery),
            session: own.session,
            agent: own.agent,
            expires_in_ms,
        })
    }
}

const fn feature(has: bool, feature: u32) -> u32 {
    if has { feature } else { 0 }
}

/// Handles a server's error in answer to the hello.
fn hello_refused(message: &Message<'_>) -> Handled {
    match ErrorBody::decode(message.payload) {
        Ok(body) => refused(HandshakeError::Refused { code: body.code }),
        Err(error) => Handled::Closed(CloseReason::Decode(error)),
    }
}

fn refused(error: HandshakeError) -> Handled {
    Handled::Closed(CloseReason::Handshake(error))
}

pub(super) fn malformed(kind: Kind) -> Handled {
    Handled::Closed(CloseReason::Decode(DecodeError::MalformedPayload { kind }))
}

fn heartbeat_ms(rules: &Rules, delivery: Delivery) -> u32 {
    u32::try_from(rules.ping_after_ns(delivery) / MILLISECOND_NS).unwrap_or(u32::MAX)
}

const SECOND_NS: u64 = 1_000_000_000;
const MILLISECOND_NS: u64 = 1_000_000;
