//! Handles frames that the lane answers itself, with the state of the connection.

use tidewire_proto::body::{ErrorBody, ErrorCode, MovedBody};
use tidewire_proto::connection::{Handled, NewWork, Phase};
use tidewire_proto::handshake::Hello;
use tidewire_proto::message::{Kind, Message};

use super::Lane;
use crate::observe::DatagramDrop;
use crate::service::Context;
use crate::service::{HandlerError, Service};
use crate::session::CloseReason;
use crate::transport::ConnectError;
use crate::transport::Transport;

/// Handles a frame that came before the session was open, or is of a kind that the lane answers.
#[cold]
#[inline(never)]
pub(crate) fn handle(cx: &mut Context<'_>, slot: usize, message: &Message<'_>) -> Handled {
    let core = &mut *cx.core;
    let phase = core.sessions[slot].connection.phase();
    if message.kind == Kind::Cancel && phase == Phase::Open {
        core.sessions[slot].cancel_request(message.id);
        core.counters.requests_cancelled.add(1);
        return Handled::Done;
    }
    let now_ns = core.sessions.timers.now_ns();
    let rules = core.config.codecs.rules(core.sessions[slot].codec_number());
    let handled = core.sessions.table.change(slot, |connection| {
        connection.handle_frame(rules, message, now_ns)
    });
    let handled = match handled {
        Handled::Authenticate => {
            let hello = Hello::decode(message.payload);
            authenticate(cx, slot, hello.map_or(&[][..], |hello| hello.credentials))
        }
        handled => handled,
    };
    match handled {
        Handled::Done | Handled::Authenticate => {}
        Handled::Early => cx.core.counters.drop_datagram(DatagramDrop::Early),
        Handled::Refused => refuse_new_work(cx, slot, message),
        Handled::Opened => open(cx, slot),
        Handled::Closed(reason) => {
            if phase == Phase::AwaitWelcome {
                note_refusal(cx, reason, message);
            }
            return handled;
        }
    }
    tracing::debug!(session = %cx.call.id(), kind = ?message.kind, ?handled, "control frame");
    cx.core.sessions.transmit(slot);
    let frame_bytes_max = cx.core.sessions[slot]
        .connection
        .handshake()
        .frame_bytes_max();
    let sessions = &cx.core.sessions;
    cx.call.set_frame_bytes_max(sessions, frame_bytes_max);
    handled
}

/// Opens the session of a client that sent another frame instead of a hello. Returns `None` if a hello must come first.
/// Otherwise handle the frame again, if the context has not stopped.
#[cold]
#[inline(never)]
pub(crate) fn handle_missing_hello(
    cx: &mut Context<'_>,
    slot: usize,
    kind: Kind,
) -> Option<Handled> {
    let core = &mut *cx.core;
    let rules = core.config.codecs.rules(core.sessions[slot].codec_number());
    let handled = core.sessions.table.change(slot, |connection| {
        connection.handle_missing_hello(rules, kind)
    })?;
    let handled = match handled {
        Handled::Authenticate => authenticate(cx, slot, &[]),
        handled => handled,
    };
    if matches!(handled, Handled::Opened) {
        open(cx, slot);
    }
    cx.core.sessions.transmit(slot);
    Some(handled)
}

/// Lets a session into the lane once its handshake is over.
fn open(cx: &mut Context<'_>, slot: usize) {
    let core = &mut *cx.core;
    core.enter(slot);
    core.sessions.arm_timer(slot);
}

/// Authenticates a peer by its token. Returns whether the session is open now.
fn authenticate(cx: &mut Context<'_>, slot: usize, token: &[u8]) -> Handled {
    if cx.core.guard().authenticate(slot, token) {
        return Handled::Opened;
    }
    let connection = &cx.core.sessions[slot].connection;
    // The frames after the hello wait, or are dropped with the session.
    if !connection.may_read() {
        cx.call.stop();
    }
    Handled::Done
}

/// Refuses a message because its session ends. The service does not see it.
fn refuse_new_work(cx: &mut Context<'_>, slot: usize, message: &Message<'_>) {
    if cx.core.sessions[slot].connection.output().new_work() == NewWork::Dropped {
        return cx.core.counters.refused.add(1);
    }
    cx.call.begin(message);
    let text = "the server is shutting down";
    cx.call
        .refuse(cx.core, HandlerError::new(ErrorCode::Draining, text));
}

/// Keeps the error text of a server that refused the hello, for the caller that waits for the connection.
fn note_refusal(cx: &mut Context<'_>, reason: CloseReason, message: &Message<'_>) {
    let (text, code) = match message.kind {
        Kind::GoAway => match MovedBody::of(message) {
            Ok(body) => (body.text, body.code.to_string()),
            Err(_) => return,
        },
        Kind::Error => match ErrorBody::decode(message.payload) {
            Ok(body) => (body.text, body.code.to_string()),
            Err(_) => return,
        },
        _ => return,
    };
    let text = if text.is_empty() {
        code
    } else {
        text.to_owned()
    };
    let refusal = ConnectError::Refused { reason, text };
    cx.core
        .sessions
        .connect_failures
        .note(cx.call.id(), refusal);
}

impl<S: Service> Lane<S> {
    /// Finishes an in-process connection after a server has taken its other end.
    pub(crate) fn finish_waiting(&mut self, ticket: u64) {
        let mut all = self.core.sessions.table.into_iter();
        let found = all.find(|(_, session)| {
            session
                .stream
                .waiting()
                .is_some_and(|end| end.ticket() == ticket)
        });
        // The session may have ended meanwhile.
        if let Some((slot, session)) = found
            && session.connection.phase() == Phase::Connecting
        {
            self.core.sessions[slot].stream.set_placed();
            self.finish_connect(slot);
        }
    }

    /// Handles the outcome of a connection attempt.
    pub(crate) fn finish_connect(&mut self, slot: usize) {
        let core = &mut self.core;
        let now_ns = core.sessions.timers.now_ns();
        let session = &mut core.sessions[slot];
        match session.stream.finish_connect() {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                let id = session.id;
                core.sessions.connect_failures.note(id, error);
                return core.sessions.table.close(slot, CloseReason::PeerReset);
            }
        }
        if !session.stream.is_secured() {
            session.connection.secure(now_ns);
            core.sessions.arm_timer(slot);
            return self.secure(slot);
        }
        self.begin(slot);
    }

    /// Begins a session whose transport is ready for frames.
    pub(super) fn begin(&mut self, slot: usize) {
        let core = &mut self.core;
        if !core.admission.follow_forwarded(&mut core.sessions, slot) {
            return;
        }
        let now_ns = core.sessions.timers.now_ns();
        let is_encrypted = core.sessions[slot].stream.encryption().is_some();
        let rules = core.config.codecs.rules(core.sessions[slot].codec_number());
        let is_open = core.sessions.table.change(slot, |connection| {
            if is_encrypted {
                connection.handshake_mut().note_encrypted();
            }
            connection.handle_connected(rules, now_ns)
        });
        core.sessions.transmit(slot);
        core.sessions.arm_timer(slot);
        if is_open {
            self.service.announce(&mut self.core, slot);
        } else if self.core.sessions[slot].connection.phase() == Phase::Authenticating {
            self.authenticate(slot);
        }
        self.core.sessions.update_interest(slot);
        self.core.sessions.outputs.list(slot);
    }
}
