//! Frames that the lane answers itself: the handshake, heartbeats and go-away.

use std::fmt::Display;

use tidewire_proto::body::{ErrorBody, ErrorCode, GoAwayBody, GoAwayCode};
use tidewire_proto::codec::Codec;
use tidewire_proto::error::DecodeError;
use tidewire_proto::handshake::{self, HandshakeError, Hello, Offer, Welcome};
use tidewire_proto::message::{Kind, Message};

use super::phase::is_new_work;
use super::{Core, Lane};
use crate::context::{Context, Current, SendError};
use crate::limits::nanoseconds;
use crate::service::{ConnectFailure, HandlerError, Service};
use crate::session::{CloseReason, NewWork, State};
use crate::transport::Transport;

/// What became of a control frame.
pub(crate) enum Handled {
    Done,
    /// The handshake is complete; the service may be told.
    Opened,
    Close(CloseReason),
}

/// Handles a frame that came before the session was open, or is of a kind that is the lane's.
#[cold]
#[inline(never)]
pub(crate) fn handle(cx: &mut Context<'_>, slot: usize, message: &Message<'_>) -> Handled {
    let state = cx.core.sessions[slot].state;
    if is_new_work(message.kind) && cx.core.sessions[slot].refuses_new_work() {
        refuse_new_work(cx, slot, message);
        return Handled::Done;
    }
    if cx.core.sessions[slot].stream.datagram().is_some()
        && let Some(handled) = handle_datagram(cx, slot, message)
    {
        return handled;
    }
    let result = match (state, message.kind) {
        (_, Kind::GoAway | Kind::Ping | Kind::Pong)
            if !awaits_handshake(state) && !within_budget(cx, slot) =>
        {
            return Handled::Close(CloseReason::ControlFlood);
        }
        (_, Kind::GoAway) => return go_away(cx, slot, message),
        (State::AwaitHello, Kind::Hello) => accept_hello(cx, slot, message),
        (State::AwaitHello, kind) => Err(HandshakeError::ExpectedHello { kind }),
        (State::AwaitWelcome, Kind::Welcome) => accept_welcome(cx, slot, message),
        (State::AwaitWelcome, Kind::Error) => return hello_refused(cx, message),
        (State::AwaitWelcome, kind) => Err(HandshakeError::ExpectedWelcome { kind }),
        (_, Kind::Ping) => return ping(cx, message),
        (_, Kind::Pong) => return Handled::Done,
        (_, Kind::Cancel) => {
            cx.core.cancel_request(slot, message.id);
            return Handled::Done;
        }
        (_, kind) => {
            // A second hello or welcome.
            return Handled::Close(CloseReason::Decode(DecodeError::MalformedPayload { kind }));
        }
    };
    match result {
        Ok(()) => {
            let session = &mut cx.core.sessions[slot];
            session.state = State::Open;
            session.announced = true;
            session.connecting.end();
            cx.core.enter(slot);
            // The timer was set for the handshake, which may be allowed far more time than silence.
            cx.core.arm_timer(slot);
            Handled::Opened
        }
        Err(error) => Handled::Close(CloseReason::Handshake(error)),
    }
}

/// What is a mistake over a stream is ordinary where datagrams are lost, repeated and overtake each other.
fn handle_datagram(cx: &mut Context<'_>, slot: usize, message: &Message<'_>) -> Option<Handled> {
    match (cx.core.sessions[slot].state, message.kind) {
        // The server wants to see that we receive at our address before it keeps anything of us.
        (State::AwaitWelcome, Kind::Ping) => {
            let handled = ping(cx, message);
            if let Err(error) = cx.send_hello() {
                tracing::error!(%error, "cannot encode the hello");
            }
            Some(handled)
        }
        (State::AwaitWelcome, Kind::Welcome | Kind::GoAway) => None,
        (State::AwaitWelcome, Kind::Error) if message.id == 0 => None,
        // It overtook the welcome, and is as good as lost; or it is our own answer to the challenge coming first.
        (State::AwaitWelcome, _) => {
            cx.core.count_early();
            Some(Handled::Done)
        }
        (State::AwaitHello, Kind::Pong) => Some(Handled::Done),
        // The welcome was lost, or the hello was sent again before it came.
        (State::Open, Kind::Hello) if !cx.core.sessions[slot].outgoing => {
            if !within_budget(cx, slot) {
                return Some(Handled::Close(CloseReason::ControlFlood));
            }
            Some(match accept_hello(cx, slot, message) {
                Ok(()) => Handled::Done,
                Err(error) => Handled::Close(CloseReason::Handshake(error)),
            })
        }
        (State::Open | State::Draining, Kind::Welcome) => Some(Handled::Done),
        _ => None,
    }
}

/// Refuses what the service is not asked any more, because the session ends. Nothing of it has been done.
fn refuse_new_work(cx: &mut Context<'_>, slot: usize, message: &Message<'_>) {
    if cx.core.sessions[slot].new_work == NewWork::Ignored {
        return cx.core.counters.refused.add(1);
    }
    cx.current = Current::of(message);
    let text = "the server is shutting down";
    cx.refuse(HandlerError::new(ErrorCode::Draining, text));
}

fn awaits_handshake(state: State) -> bool {
    matches!(state, State::AwaitHello | State::AwaitWelcome)
}

fn accept_hello(
    cx: &mut Context<'_>,
    slot: usize,
    message: &Message<'_>,
) -> Result<(), HandshakeError> {
    let hello = Hello::decode(message.payload)?;
    let limits = &cx.core.shared.limits;
    let offer = Offer {
        features: 0,
        frame_bytes_max: u32::try_from(limits.frame_bytes_max).unwrap_or(u32::MAX),
        heartbeat_ms: u32::try_from(limits.heartbeat.as_millis()).unwrap_or(u32::MAX),
    };
    let agreed = handshake::accept(&hello, &offer)?;
    let shared = std::sync::Arc::clone(&cx.core.shared);
    let welcome = Welcome {
        version: agreed.version,
        features: agreed.features,
        frame_bytes_max: agreed.frame_bytes_max,
        heartbeat_ms: offer.heartbeat_ms,
        session: cx.core.sessions[slot].id.number(),
        agent: &shared.agent,
    };
    tracing::debug!(session = %cx.id, agent = hello.agent, "hello accepted");
    let sent = cx.send_framed(|_, out| welcome.encode_frame(out));
    cx.set_frame_bytes_max(agreed.frame_bytes_max as usize);
    cx.core.sessions[slot].frame_bytes_max = cx.frame_bytes_max;
    sent.map_err(|_| HandshakeError::Malformed)
}

fn accept_welcome(
    cx: &mut Context<'_>,
    slot: usize,
    message: &Message<'_>,
) -> Result<(), HandshakeError> {
    let welcome = Welcome::decode(message.payload)?;
    cx.set_frame_bytes_max(cx.frame_bytes_max.min(welcome.frame_bytes_max as usize));
    let session = &mut cx.core.sessions[slot];
    session.frame_bytes_max = cx.frame_bytes_max;
    session.agent = Some(welcome.agent.into());
    Ok(())
}

fn go_away(cx: &mut Context<'_>, slot: usize, message: &Message<'_>) -> Handled {
    let Ok(body) = GoAwayBody::decode(message.payload) else {
        return Handled::Close(CloseReason::Decode(DecodeError::MalformedPayload {
            kind: Kind::GoAway,
        }));
    };
    tracing::debug!(session = %cx.id, code = %body.code, text = body.text, "the peer goes away");
    let session = &mut cx.core.sessions[slot];
    if session.state != State::Open {
        let reason = CloseReason::GoAway(body.code);
        if session.state == State::AwaitWelcome {
            note_refusal(cx, reason, body.text, &body.code);
        }
        return Handled::Close(reason);
    }
    session.peer_going = Some(body.code);
    if session.outgoing {
        // Everything sent so far is written, then our side ends; the server answers what it read until then.
        session.half_close = true;
        cx.core.mark_dirty(slot);
    }
    Handled::Done
}

/// The server answered the hello with an error.
fn hello_refused(cx: &mut Context<'_>, message: &Message<'_>) -> Handled {
    let Ok(body) = ErrorBody::decode(message.payload) else {
        let kind = message.kind;
        return Handled::Close(CloseReason::Decode(DecodeError::MalformedPayload { kind }));
    };
    let reason = CloseReason::Handshake(HandshakeError::Refused { code: body.code });
    note_refusal(cx, reason, body.text, &body.code);
    Handled::Close(reason)
}

/// Keeps what the server said for whoever waits for the connection.
fn note_refusal(cx: &mut Context<'_>, reason: CloseReason, text: &str, code: &dyn Display) {
    let text = match text {
        "" => code.to_string(),
        text => text.to_owned(),
    };
    let refusal = ConnectFailure::Refused { reason, text };
    cx.core.connect_failures.push((cx.id, refusal));
}

fn ping(cx: &mut Context<'_>, message: &Message<'_>) -> Handled {
    if message.payload.len() > PING_BYTES_MAX {
        return Handled::Close(CloseReason::ControlFlood);
    }
    match cx.send(&Message::new(Kind::Pong, message.channel, message.payload)) {
        Ok(()) => Handled::Done,
        Err(_) => Handled::Close(CloseReason::ControlFlood),
    }
}

/// Counts a control frame. Returns whether it is still within the session's budget.
fn within_budget(cx: &mut Context<'_>, slot: usize) -> bool {
    let now_ns = cx.core.now_ns;
    let limit = cx.core.shared.limits.control_frames_per_second_max;
    let session = &mut cx.core.sessions[slot];
    if now_ns.saturating_sub(session.control_window_ns) >= 1_000_000_000 {
        session.control_window_ns = now_ns;
        session.control_frames = 0;
    }
    session.control_frames += 1;
    session.control_frames <= limit
}

impl<S: Service> Lane<S> {
    /// A server has taken the other end of a connection that waited for it.
    pub(crate) fn finish_waiting(&mut self, ticket: u64) {
        let sessions = &mut self.core.sessions;
        let found = sessions
            .iter_mut()
            .find(|(_, session)| session.stream.ticket() == Some(ticket));
        // It may have been given up meanwhile.
        if let Some((slot, session)) = found
            && session.state == State::Connecting
        {
            session.stream.set_placed();
            self.finish_connect(slot);
        }
    }

    /// The kernel reported on a connection being made.
    pub(crate) fn finish_connect(&mut self, slot: usize) {
        let core = &mut self.core;
        let session = &mut core.sessions[slot];
        match session.stream.finish_connect() {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                let id = session.id;
                core.connect_failures.push((id, error.into()));
                return core.close(slot, CloseReason::PeerReset);
            }
        }
        if core.shared.codec.has_handshake() {
            core.sessions[slot].state = State::AwaitWelcome;
            core.hello(slot);
        } else {
            core.sessions[slot].state = State::Open;
            self.announce(slot);
        }
        self.core.update_interest(slot);
        self.core.mark_dirty(slot);
    }
}

impl Context<'_> {
    /// Queues the first frame of a client.
    fn send_hello(&mut self) -> Result<(), SendError> {
        let shared = std::sync::Arc::clone(&self.core.shared);
        let hello = Hello {
            version: handshake::PROTOCOL_VERSION,
            features: 0,
            frame_bytes_max: u32::try_from(self.frame_bytes_max).unwrap_or(u32::MAX),
            credentials: &[],
            agent: &shared.agent,
        };
        self.send_framed(|_, out| hello.encode_frame(out))
    }
}

impl Core {
    /// Says hello, over UDP not for the last time if nothing comes back.
    pub(crate) fn hello(&mut self, slot: usize) {
        let deadline_ns = self
            .now_ns
            .saturating_add(nanoseconds(self.shared.limits.handshake_timeout));
        if let Some(peer) = self.sessions[slot].stream.datagram_mut() {
            peer.hello_deadline_ns = deadline_ns;
            self.arm_timer(slot);
        }
        self.repeat_hello(slot);
    }

    pub(crate) fn repeat_hello(&mut self, slot: usize) {
        let id = self.sessions[slot].id;
        if let Err(error) = self.context(id).send_hello() {
            tracing::error!(%error, "cannot encode the hello");
        }
    }

    /// Tells a peer why its session ends, if it can still be told. One attempt, never a wait.
    pub(crate) fn last_words(&mut self, slot: usize, reason: CloseReason) {
        let Some(code) = reason.go_away_code() else {
            return;
        };
        let session = &self.sessions[slot];
        if session.blocked || session.going_told || session.output.is_lent() {
            return;
        }
        // Without a frame of its own a farewell looks like a reply, and would be matched with the next one owed; from
        // a client it would be a request.
        let looks_like_another = !self.shared.codec.has_handshake() && session.outgoing;
        if looks_like_another || session.must_keep_order() {
            return;
        }
        self.tell_going(slot, code, &reason.to_string());
        let session = &mut self.sessions[slot];
        if session.stream.datagram().is_some() {
            // Its end is said to it whatever the reason is, and what is queued goes before that.
            return;
        }
        // A failed write means the peer is gone, which is what we are about to make true.
        let _ = session.stream.write(session.output.unsent());
        let _ = session.stream.shutdown_write();
    }

    /// Queues a go-away.
    pub(crate) fn tell_going(&mut self, slot: usize, code: GoAwayCode, text: &str) {
        if self.sessions[slot].going_told {
            return;
        }
        self.sessions[slot].going_told = true;
        let mut body = Vec::new();
        GoAwayBody { code, text }.encode(&mut body);
        let mut output = std::mem::take(&mut self.sessions[slot].output);
        let message = Message::new(Kind::GoAway, 0, &body);
        if let Err(error) = self.encode_to(&mut output, |codec, out| codec.encode(&message, out)) {
            tracing::debug!(%error, "cannot encode a go-away");
        }
        self.sessions[slot].output = output;
    }
}

/// Largest payload of a ping that is sent back.
const PING_BYTES_MAX: usize = 64;
