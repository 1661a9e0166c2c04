//! The frames that a connection sends and handles itself: hello, welcome, ping, pong and go-away.

use super::farewell::encode_go_away;
use super::filter::is_new_work;
use super::{
    CloseReason, Connection, Delivery, Farewell, Introduction, Outbound, PauseReason, PeerAgent,
    Phase, Rules, Side,
};
use crate::body::{ErrorBody, GoAwayCode, MovedBody};
use crate::codec::Codec;
use crate::error::{DecodeError, EncodeError};
use crate::handshake::{
    self, Agreed, FEATURE_LONG_CREDENTIALS, FEATURE_MOVED, FEATURE_PLACEMENT, FEATURE_POSITIONS,
    FEATURE_RENEWAL, HandshakeError, Hello, Offer, Welcome,
};
use crate::message::{Kind, Message};

/// The outcome of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Handled {
    /// The frame was handled. There may be frames to transmit.
    Done,
    /// The frame came before the one that opens the connection, as datagrams may. It counts as lost.
    Early,
    /// The frame requests new work, which is refused because this side will close. Nothing of it was done.
    /// [`Connection::new_work`] says whether the sender can get an answer.
    Refused,
    /// The handshake is over: messages may be exchanged. Call [`Connection::poll_timeout`] again.
    Opened,
    /// The hello is acceptable. Find out who the peer is, from the credentials in the hello, and call
    /// [`Connection::admit`] or [`Connection::refuse`]. Until then no further frame may be handled, unless the connection
    /// was open already.
    Authenticate,
    /// The connection has closed.
    Closed(CloseReason),
}

/// The frames that a connection has to send. There is at most one of each, so a peer cannot make them many.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) hello: bool,
    pub(super) welcome: Option<Agreed>,
    pub(super) ping: bool,
    pong: Option<Pong>,
    go_away: Option<(GoAwayCode, Words)>,
}

/// The answer to the newest ping.
#[derive(Debug)]
struct Pong {
    channel: u16,
    payload: Box<[u8]>,
}

/// The text of a go-away.
#[derive(Clone, Copy, Debug)]
enum Words {
    ShuttingDown,
    Reason(CloseReason),
    /// The text of the service's farewell, which is in `last_words`.
    Own,
}

/// The number of control frames in the second that began at `window_ns`.
#[derive(Debug, Default)]
pub(super) struct ControlBudget {
    window_ns: u64,
    frames: u32,
}

impl ControlBudget {
    /// Counts a frame. Returns whether it is within the limit.
    fn take(&mut self, now_ns: u64, frames_max: u32) -> bool {
        if now_ns.saturating_sub(self.window_ns) >= SECOND_NS {
            *self = Self {
                window_ns: now_ns,
                frames: 0,
            };
        }
        self.frames += 1;
        self.frames <= frames_max
    }
}

impl Connection {
    /// Starts the phase in which the layers of the transport have handshakes of their own. These may take as long as
    /// the handshake of the protocol, which follows them. Call [`Self::handle_connected`] when they are over.
    pub fn secure(&mut self, now_ns: u64) {
        self.timing.begin_handshake(now_ns);
        // The owner is asked when the layers are ready, because they may know the peer.
        self.authentication = None;
        self.resume(PauseReason::Authentication);
        self.phase = Phase::Securing;
    }

    /// Handles a connected transport whose layers, if there are any, are ready. Returns whether the connection is open
    /// at once; otherwise a hello comes first.
    pub fn handle_connected(&mut self, rules: &Rules, now_ns: u64) -> bool {
        self.note_input(now_ns);
        self.timing.begin_handshake(now_ns);
        self.phase = match self.side {
            _ if !rules.format.begins_with_hello() => Phase::Open,
            Side::Connecting => {
                self.pending.hello = true;
                Phase::AwaitWelcome
            }
            Side::Accepting => Phase::AwaitHello,
        };
        self.begin_without_hello(rules);
        self.is_open()
    }

    /// Handles a frame that is not for the service: it came before the connection was open, or is a control frame. Once
    /// the connection is open, cancels are for the owner of the requests.
    pub fn handle_frame(&mut self, rules: &Rules, message: &Message<'_>, now_ns: u64) -> Handled {
        if is_new_work(message.kind) && self.is_open() && self.new_work.is_refused() {
            return Handled::Refused;
        }
        let handled = match self.delivery {
            Delivery::Reliable => None,
            Delivery::Lossy => self.handle_lossy(rules, message, now_ns),
        };
        let handled = handled.unwrap_or_else(|| self.handle_in_order(rules, message, now_ns));
        if let Handled::Closed(reason) = handled {
            self.close(reason);
        }
        handled
    }

    fn handle_in_order(&mut self, rules: &Rules, message: &Message<'_>, now_ns: u64) -> Handled {
        match (self.phase, message.kind) {
            (Phase::Open, Kind::GoAway | Kind::Ping | Kind::Pong)
                if !self.is_within_budget(rules, now_ns) =>
            {
                Handled::Closed(CloseReason::ControlFlood)
            }
            (_, Kind::GoAway) => self.handle_go_away(message),
            (Phase::AwaitHello, Kind::Hello) => {
                let accepted = self.accept_hello(rules, message);
                self.opened(rules, accepted)
            }
            (Phase::AwaitHello, kind) => refused(HandshakeError::ExpectedHello { kind }),
            (Phase::AwaitWelcome, Kind::Welcome) => {
                let accepted = self.accept_welcome(message, now_ns);
                self.opened(rules, accepted)
            }
            (Phase::AwaitWelcome, Kind::Error) => hello_refused(message),
            (Phase::AwaitWelcome, kind) => refused(HandshakeError::ExpectedWelcome { kind }),
            (Phase::Authenticating, _) => Handled::Early,
            (Phase::Open, Kind::Hello | Kind::Welcome) if self.may_renew() => {
                self.handle_renewal(rules, message, now_ns)
            }
            (_, Kind::Ping) => self.handle_ping(message),
            (_, Kind::Pong) => Handled::Done,
            // A second hello or welcome is an error.
            (_, kind) => {
                Handled::Closed(CloseReason::Decode(DecodeError::MalformedPayload { kind }))
            }
        }
    }

    /// Handles frames that are an error over a stream and normal over a transport that loses, repeats and reorders
    /// them.
    fn handle_lossy(
        &mut self,
        rules: &Rules,
        message: &Message<'_>,
        now_ns: u64,
    ) -> Option<Handled> {
        match (self.phase, message.kind) {
            // The server validates the address of this side before it keeps any state.
            (Phase::AwaitWelcome, Kind::Ping) => {
                self.pending.hello = true;
                Some(self.handle_ping(message))
            }
            (Phase::AwaitWelcome, Kind::Welcome | Kind::GoAway) => None,
            (Phase::AwaitWelcome, Kind::Error) if message.id == 0 => None,
            // The frame overtook the welcome.
            (Phase::AwaitWelcome, _) => Some(Handled::Early),
            // The hello was sent again before the owner has answered.
            (Phase::Authenticating, Kind::Hello) => Some(Handled::Done),
            // The answer to the challenge came before the hello.
            (Phase::AwaitHello, Kind::Pong) => Some(Handled::Done),
            // The welcome was lost, or the hello was sent again before it came.
            (Phase::Open, Kind::Hello) if rules.authenticates && self.side == Side::Accepting => {
                Some(self.handle_renewal(rules, message, now_ns))
            }
            (Phase::Open, Kind::Hello) if self.side == Side::Accepting => {
                if !self.is_within_budget(rules, now_ns) {
                    return Some(Handled::Closed(CloseReason::ControlFlood));
                }
                Some(match self.accept_hello(rules, message) {
                    Ok(agreed) => {
                        self.agree(agreed);
                        Handled::Done
                    }
                    Err(error) => refused(error),
                })
            }
            (Phase::Open, Kind::Welcome) if !self.may_renew() => Some(Handled::Done),
            _ => None,
        }
    }

    fn is_within_budget(&mut self, rules: &Rules, now_ns: u64) -> bool {
        self.control_budget
            .take(now_ns, rules.control_frames_per_second_max)
    }

    fn accept_hello(
        &mut self,
        rules: &Rules,
        message: &Message<'_>,
    ) -> Result<Option<Agreed>, HandshakeError> {
        let hello = Hello::decode(message.payload)?;
        let renewal = if rules.authenticates {
            FEATURE_RENEWAL
        } else {
            0
        };
        let offer = Offer {
            features: FEATURE_MOVED
                | FEATURE_POSITIONS
                | FEATURE_PLACEMENT
                | renewal
                | self.long_credentials(),
            frame_bytes_max: u32::try_from(self.frame_bytes_max).unwrap_or(u32::MAX),
            heartbeat_ms: heartbeat_ms(self.heartbeat_ns(rules)),
        };
        let agreed = handshake::accept(&hello, &offer)?;
        self.features.agree(agreed.features);
        Ok(Some(agreed))
    }

    /// The feature of long credentials, if this connection has it.
    const fn long_credentials(&self) -> u32 {
        match self.features.is_encrypted() {
            true => FEATURE_LONG_CREDENTIALS,
            false => 0,
        }
    }

    /// Handles a hello or welcome on an open connection whose client may renew its credentials.
    fn handle_renewal(&mut self, rules: &Rules, message: &Message<'_>, now_ns: u64) -> Handled {
        if !self.is_within_budget(rules, now_ns) {
            return Handled::Closed(CloseReason::ControlFlood);
        }
        let accepted = match (self.side, message.kind) {
            (Side::Accepting, Kind::Hello) if self.is_owner_asked() => return Handled::Done,
            (Side::Accepting, Kind::Hello) => self.accept_hello(rules, message),
            (Side::Connecting, Kind::Welcome) => self.accept_welcome(message, now_ns),
            (_, kind) => {
                return Handled::Closed(CloseReason::Decode(DecodeError::MalformedPayload {
                    kind,
                }));
            }
        };
        match accepted {
            Ok(Some(agreed)) => {
                self.ask_owner(Some(agreed));
                Handled::Authenticate
            }
            Ok(None) => Handled::Done,
            Err(error) => refused(error),
        }
    }

    fn accept_welcome(
        &mut self,
        message: &Message<'_>,
        now_ns: u64,
    ) -> Result<Option<Agreed>, HandshakeError> {
        let welcome = Welcome::decode(message.payload)?;
        let agreed = Agreed {
            version: welcome.version,
            features: welcome.features,
            frame_bytes_max: welcome.frame_bytes_max,
        };
        let expires_in_ns = welcome.expires_in_ms.saturating_mul(MILLISECOND_NS);
        let expires_ns = (expires_in_ns > 0).then(|| now_ns.saturating_add(expires_in_ns));
        self.features.agree(agreed.features);
        self.note_welcome(agreed, expires_ns);
        self.limit_frames(welcome.frame_bytes_max as usize);
        self.peer_agent = Some(Box::new(PeerAgent(welcome.agent.into())));
        Ok(None)
    }

    /// Ends the handshake. `accepted` holds the agreed values if a welcome has to carry them.
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
                self.agree(agreed);
                Handled::Opened
            }
            Err(error) => refused(error),
        }
    }

    fn agree(&mut self, agreed: Option<Agreed>) {
        if let Some(agreed) = agreed {
            self.limit_frames(agreed.frame_bytes_max as usize);
            self.pending.welcome = Some(agreed);
        }
    }

    fn handle_go_away(&mut self, message: &Message<'_>) -> Handled {
        let Ok(body) = MovedBody::of(message) else {
            return Handled::Closed(CloseReason::Decode(DecodeError::MalformedPayload {
                kind: Kind::GoAway,
            }));
        };
        self.note_peer_farewell(Farewell::new(body.code, body.text), body.address);
        if !self.is_open() || matches!(self.outbound, Outbound::HalfClosed) {
            return Handled::Closed(CloseReason::GoAway(body.code));
        }
        if self.side == Side::Connecting {
            // All output so far is written, then this side ends. The server answers the requests that it has read until
            // then.
            self.half_close();
        }
        Handled::Done
    }

    fn handle_ping(&mut self, message: &Message<'_>) -> Handled {
        if message.payload.len() > PING_BYTES_MAX {
            return Handled::Closed(CloseReason::ControlFlood);
        }
        self.pending.pong = Some(Pong {
            channel: message.channel,
            payload: message.payload.into(),
        });
        Handled::Done
    }

    /// Schedules the go-away of a drain for the peer. It is sent once.
    pub(super) fn tell_going(&mut self, reason: CloseReason) {
        let words = match reason {
            CloseReason::Shutdown => Words::ShuttingDown,
            reason => Words::Reason(reason),
        };
        self.tell(GoAwayCode::Shutdown, words);
    }

    /// Schedules the reason of the close for the peer, if this side may still send it, and the reason has a code.
    /// `keeps_order` means that replies are matched by their order and that one is pending.
    ///
    /// Returns whether there is a frame to send. The owner makes one attempt to write it, and never waits.
    pub fn tell_reason(&mut self, rules: &Rules, reason: CloseReason, keeps_order: bool) -> bool {
        let Some(code) = reason.go_away_code() else {
            return false;
        };
        // A farewell of a codec without go-away frames looks like a reply, and the next request would match it. A
        // client's farewell would look like a request.
        let is_mistaken =
            keeps_order || (!rules.format.has_go_away && self.side == Side::Connecting);
        let may_be_written = matches!(
            self.outbound,
            Outbound::Writing {
                is_blocked: false,
                ..
            }
        );
        if is_mistaken || !may_be_written || self.is_going_told {
            return false;
        }
        self.tell(code, Words::Reason(reason));
        true
    }

    /// Schedules the service's farewell for the peer. It overrides a go-away that was sent before. Returns whether
    /// there is one that was not sent yet.
    pub(super) fn tell_farewell(&mut self) -> bool {
        let Some(code) = self.take_untold_code() else {
            return false;
        };
        self.is_going_told = true;
        self.pending.go_away = Some((code, Words::Own));
        true
    }

    fn tell(&mut self, code: GoAwayCode, words: Words) {
        if !std::mem::replace(&mut self.is_going_told, true) {
            self.pending.go_away = Some((code, words));
        }
    }

    /// Whether [`Self::poll_transmit`] has a frame to append.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        let Pending {
            hello,
            welcome,
            ping,
            pong,
            go_away,
        } = &self.pending;
        *hello || *ping || welcome.is_some() || pong.is_some() || go_away.is_some()
    }

    /// Appends the next frame that the connection has to send. Call it until it returns `None`.
    ///
    /// An error is that of a codec without such a frame; `out` is then unchanged.
    pub fn poll_transmit<C: Codec + ?Sized>(
        &mut self,
        rules: &Rules,
        own: &Introduction<'_>,
        codec: &C,
        out: &mut Vec<u8>,
    ) -> Option<Result<(), EncodeError>> {
        // The answer to a challenge precedes the hello that is repeated with it.
        if let Some(Pong { channel, payload }) = self.pending.pong.take() {
            return Some(codec.encode(&Message::new(Kind::Pong, channel, &payload), out));
        }
        if std::mem::take(&mut self.pending.hello) {
            let hello = Hello {
                version: handshake::PROTOCOL_VERSION,
                features: [
                    (codec.format().has_positions, FEATURE_POSITIONS),
                    (true, FEATURE_PLACEMENT),
                    (!own.credentials.is_empty(), FEATURE_RENEWAL),
                    (own.follows_moves, FEATURE_MOVED),
                    (self.features.is_encrypted(), FEATURE_LONG_CREDENTIALS),
                ]
                .into_iter()
                .map(|(has, feature)| if has { feature } else { 0 })
                .sum(),
                frame_bytes_max: u32::try_from(self.frame_bytes_max).unwrap_or(u32::MAX),
                credentials: own.credentials,
                agent: own.agent,
            };
            return Some(encode_with(Kind::Hello, codec, out, |body| {
                hello.encode(body)
            }));
        }
        if let Some(agreed) = self.pending.welcome.take() {
            let welcome = Welcome {
                version: agreed.version,
                features: agreed.features,
                frame_bytes_max: agreed.frame_bytes_max,
                heartbeat_ms: heartbeat_ms(self.heartbeat_ns(rules)),
                session: own.session,
                agent: own.agent,
                expires_in_ms: self.credentials_expire_in_ms(own.now_ns),
            };
            return Some(encode_with(Kind::Welcome, codec, out, |body| {
                welcome.encode(body)
            }));
        }
        if std::mem::take(&mut self.pending.ping) {
            return Some(codec.encode(&Message::new(Kind::Ping, 0, &[]), out));
        }
        let (code, words) = self.pending.go_away.take()?;
        let text = match words {
            Words::ShuttingDown => "the server is shutting down".into(),
            Words::Reason(reason) => reason.to_string().into(),
            Words::Own => self.own_text(),
        };
        let address = match words {
            Words::ShuttingDown if self.has_feature(FEATURE_MOVED) => own.moved_to,
            _ => "",
        };
        Some(encode_go_away(code, address, &text, codec, out))
    }
}

/// Appends a frame whose payload is a body.
fn encode_with<C: Codec + ?Sized>(
    kind: Kind,
    codec: &C,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let mut body = Vec::new();
    write(&mut body)?;
    codec.encode(&Message::new(kind, 0, &body), out)
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

fn heartbeat_ms(heartbeat_ns: u64) -> u32 {
    u32::try_from(heartbeat_ns / MILLISECOND_NS).unwrap_or(u32::MAX)
}

/// Largest payload of a ping that is answered.
const PING_BYTES_MAX: usize = 64;

const MILLISECOND_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;
