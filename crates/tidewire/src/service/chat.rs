//! The ready chat service: rooms over the wire, for programs (native protocol) and for people (`lines`).
//!
//! Over the native protocol a client joins a room under a name, sends chat messages, lists members and whispers.
//! Every refusal is a typed error with the request's id. Over `lines` the server first asks for a name. After that
//! every line is a chat message in the lobby.

mod hooks;
mod past;

use std::fmt;

use tidewire_io::clock::Moment;
use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::body::{
    ErrorCode, JoinBody, JoinedBody, RecoveryBody, RoomCall, Roster, Since, typed_name,
};
use tidewire_proto::codec::Codec;
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{FLAG_POSITION, Kind, Message, RoomId};
use tidewire_proto::room::Policy;

pub use hooks::ChatMessage;
use hooks::{JoinHook, LeaveHook, MessageHook};
use past::Past;

use super::call::is_flush;
use crate::auth::Action;
use crate::history::{History, HistoryPattern};
use crate::room::{Joined, RoomError};
use crate::service::{ActionKind, Context, HandlerError, HandlerResult, Part, Service};
use crate::session::{CloseReason, SendError};

/// The service of a chat server. Give every lane a clone.
///
/// It can have hooks for [joins](Chat::on_join), [messages](Chat::on_say) and [leaves](Chat::on_leave), and a
/// [history](Chat::history). Handlers can send an [announcement](crate::RoomActions::announce) as the room,
/// [remove](crate::RoomActions::remove_member) a member, and [close](crate::RoomActions::close_member) a member's
/// session. With [`Router::with`](crate::Router::with) it shares a server with methods and topics.
#[derive(Clone)]
pub struct Chat {
    policy: Option<Policy>,
    lobby: String,
    /// The rooms that keep a history, by patterns of their names. The first that matches counts.
    history_patterns: Vec<HistoryPattern>,
    past: Past,
    hooks: Hooks,
    scratch: Vec<u8>,
}

impl Default for Chat {
    fn default() -> Self {
        Self {
            policy: None,
            lobby: DEFAULT_ROOM.to_owned(),
            history_patterns: Vec::new(),
            past: Past::default(),
            hooks: Hooks::default(),
            scratch: Vec::new(),
        }
    }
}

/// The hooks of a chat. A hook that is not set costs nothing.
#[derive(Clone, Default)]
struct Hooks {
    join: Option<JoinHook>,
    message: Option<MessageHook>,
    leave: Option<LeaveHook>,
}

impl Chat {
    /// Makes a chat whose lobby is `lobby`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the policy for slow members. Default: that of [the server](crate::ServerBuilder::slow_subscribers).
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Sets the room that line clients join. Default `lobby`.
    #[must_use]
    pub fn lobby(mut self, room: impl Into<String>) -> Self {
        self.lobby = room.into();
        self
    }

    fn join(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> HandlerResult {
        let (since, payload) = Since::split(message)?;
        let body = JoinBody::decode(payload)?;
        let history = self.limits_of(body.room);
        if history.is_some() {
            cx.rooms().check_positions()?;
        }
        // A join that waited was accepted before. One that is refused makes no work for the node.
        if let Some(hook) = &self.hooks.join
            && !cx.core.rooms.is_repeating()
        {
            // A session that has a name already need not send it again.
            let name = cx.rooms().name().filter(|_| body.name.is_empty());
            hook(cx, body.room, name.as_deref().unwrap_or(body.name))?;
        }
        cx.core
            .rooms()
            .check_join(cx.call.id(), body.room, self.policy)?;
        if cx
            .core
            .rooms()
            .joins()
            .await_name(cx.call.id(), body.name, message)
        {
            cx.call.stop();
            return Ok(());
        }
        // A history stays open until the session is in the room.
        let Some(_open) =
            cx.rooms()
                .await_entrance((SequenceKind::Room, body.room), history, message)?
        else {
            return Ok(());
        };
        let joined = cx
            .rooms()
            .join_as_asked(body.room, body.name, self.policy)?;
        let members = u32::try_from(joined.members).unwrap_or(u32::MAX);
        let member = joined.member;
        let recovery = self.open_history(cx, &joined, history, since);
        let mut body = JoinedBody { member, members }.to_bytes().to_vec();
        let mut flags = 0;
        if let Some(told) = recovery.filter(|_| cx.codec().format().has_positions) {
            told.encode(&mut body);
            flags = FLAG_POSITION;
        }
        let reply = Message::new(Kind::Reply, joined.room.0, &body);
        let sessions = &mut cx.core.sessions;
        let reply = Message { flags, ..reply };
        cx.call.send_room_reply(sessions, Kind::Join, &reply)?;
        Self::welcome(cx, &joined, recovery.is_some());
        Ok(())
    }

    /// Returns the limits of the history of this room, if it keeps one.
    fn limits_of(&self, room: &str) -> Option<History> {
        HistoryPattern::limits_of(&self.history_patterns, room)
    }

    fn open_history(
        &self,
        cx: &mut Context<'_>,
        joined: &Joined,
        history: Option<History>,
        since: Option<Since>,
    ) -> Option<RecoveryBody> {
        cx.rooms()
            .open_history(joined, history?, since, |room| self.past.take(room))
    }

    /// Sends a new member the roster and the history.
    fn welcome(cx: &mut Context<'_>, joined: &Joined, has_history: bool) {
        match has_history {
            true => cx.rooms().push_history(joined.room.0),
            false if joined.presence => cx.rooms().push_members(joined),
            false => {}
        }
    }

    /// Sends a chat message that the hook has accepted.
    fn say(&self, cx: &mut Context<'_>, room: RoomId, payload: &[u8]) -> HandlerResult {
        let is_recorded = !self.history_patterns.is_empty();
        self.with_message(cx, room, None, payload, |cx, payload| {
            match is_recorded {
                true => cx.rooms().say_recorded(room, payload)?,
                false => cx.rooms().say(room, payload)?,
            }
            Ok(())
        })
    }

    fn call(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> HandlerResult {
        match RoomCall::decode(message.payload)? {
            RoomCall::List => {
                self.scratch.clear();
                let mut result = Ok(());
                cx.rooms().members(message.room(), |member, name| {
                    if result.is_ok() {
                        result = Roster::push_entry(member, name, &mut self.scratch);
                    }
                })?;
                result?;
                let reply = Message::new(Kind::Reply, message.channel, &self.scratch);
                let sessions = &mut cx.core.sessions;
                let sent = cx.call.send_room_reply(sessions, Kind::Request, &reply);
                sent.map_err(|error| match error {
                    SendError::Encode(EncodeError::PayloadTooLarge { .. }) => {
                        let text = "the list does not fit a frame; raise the frame limit";
                        HandlerError::new(ErrorCode::LimitReached, text)
                    }
                    error => error.into(),
                })
            }
            RoomCall::Whisper { to, text } => {
                let room = message.room();
                self.with_message(cx, room, Some(to), text, |cx, text| {
                    Ok(cx.rooms().whisper(room, to, text)?)
                })?;
                cx.reply(&[])
            }
            _ => Err(HandlerError::new(
                ErrorCode::Unsupported,
                "no such room call",
            )),
        }
    }

    /// Handles a line: the name if the session has none, otherwise a chat message.
    fn line(&mut self, cx: &mut Context<'_>, text: &[u8]) -> HandlerResult {
        if let Some(room) = cx.rooms().first_room() {
            return self.say(cx, RoomId(room), text);
        }
        if cx.rooms().name().is_some() {
            return Err(RoomError::NotJoined.into());
        }
        let text = String::from_utf8_lossy(text);
        let name = typed_name(&text);
        if let Err(refusal) = cx.check_permission(Action::Join(&self.lobby)) {
            prompt_again(cx, refusal.text())?;
            return Ok(());
        }
        if let Some(hook) = &self.hooks.join
            && !cx.core.rooms.is_repeating()
            && let Err(refusal) = hook(cx, &self.lobby, &name)
        {
            prompt_again(cx, refusal.text())?;
            return Ok(());
        }
        let history = self.limits_of(&self.lobby);
        let line = Message::new(Kind::OneWay, 0, text.as_bytes());
        let _open =
            match cx
                .rooms()
                .await_entrance((SequenceKind::Room, &self.lobby), history, &line)
            {
                Ok(Some(open)) => open,
                Ok(None) => return Ok(()),
                Err(refusal) => return prompt_again(cx, refusal.text()),
            };
        match cx.rooms().join_as_asked(&self.lobby, &name, self.policy) {
            Ok(joined) => {
                cx.await_login(false);
                let welcome = match joined.members {
                    1 => format!("Welcome, {name}! You are alone."),
                    count => format!("Welcome, {name}! {count} people are here."),
                };
                cx.send(Message::new(Kind::OneWay, 0, welcome.as_bytes()))?;
                let recovery = self.open_history(cx, &joined, history, None);
                Self::welcome(cx, &joined, recovery.is_some());
            }
            Err(error) => {
                let remedy = if error.is_about_name() {
                    "; try another name"
                } else {
                    ""
                };
                prompt_again(cx, &format!("{error}{remedy}"))?;
            }
        }
        Ok(())
    }
}

impl Service for Chat {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        if !cx.codec().format().has_room_frames {
            prompt(cx);
            cx.await_login(true);
        }
    }

    fn action(&self, cx: &Context<'_>, message: &Message<'_>) -> ActionKind {
        match message.kind {
            // A list needs no permission, because its reader is in the room.
            Kind::Request => match RoomCall::decode(message.payload) {
                Ok(RoomCall::Whisper { .. }) => ActionKind::Say,
                _ => ActionKind::Free,
            },
            // If a session has no room yet, its line is a name. `line` checks whether it may join.
            Kind::OneWay if !cx.codec().format().has_room_frames => match cx.session().has_room() {
                true => ActionKind::Say,
                false => ActionKind::Free,
            },
            kind => ActionKind::of(kind),
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self.tell_departures(cx);
        match message.kind {
            Kind::Say => self.say(cx, message.room(), message.payload),
            Kind::Join => self.join(cx, &message),
            Kind::Leave => {
                self.note_leave(cx, message.room());
                cx.rooms().leave_as_asked(message.channel)?;
                cx.reply(&[])
            }
            Kind::Request if is_flush(&message) => cx.call.reply_when_stored(cx.core),
            Kind::Request if message.name.is_empty() => self.call(cx, &message),
            Kind::OneWay if !cx.codec().format().has_room_frames => self.line(cx, message.payload),
            // The caller cancelled a request. Every reply here is immediate, so there is nothing to cancel.
            Kind::Cancel => Ok(()),
            _ => Err(HandlerError::new(
                ErrorCode::Unsupported,
                "a chat server has no such request",
            )),
        }
    }

    fn on_close(&mut self, cx: &mut Context<'_>, _: CloseReason) {
        if self.hooks.leave.is_some() {
            self.tell_departures(cx);
            for room in cx.rooms().all() {
                self.note_leave(cx, RoomId(room));
            }
        }
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        self.tell_departures(cx);
        None
    }
}

impl Part for Chat {
    fn takes(&self, cx: &Context<'_>, message: &Message<'_>) -> bool {
        match message.kind {
            Kind::Say | Kind::Join | Kind::Leave => true,
            Kind::Request => {
                is_flush(message) || message.name.is_empty() && cx.session().is_in(message.room())
            }
            Kind::OneWay => cx.codec().format().is_typed(),
            _ => false,
        }
    }
}

impl fmt::Debug for Chat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Chat")
            .field("policy", &self.policy)
            .field("lobby", &self.lobby)
            .field("history_patterns", &self.history_patterns)
            .finish_non_exhaustive()
    }
}

/// Sends the reason why a name was refused, and asks for another one.
fn prompt_again(cx: &mut Context<'_>, refusal: &str) -> HandlerResult {
    let refusal = format!("! {refusal}");
    cx.send(Message::new(Kind::OneWay, 0, refusal.as_bytes()))?;
    prompt(cx);
    Ok(())
}

fn prompt(cx: &mut Context<'_>) {
    if let Err(error) = cx.send(Message::new(Kind::OneWay, 0, PROMPT)) {
        tracing::debug!(%error, "cannot prompt");
    }
}

/// The lobby's default name.
const DEFAULT_ROOM: &str = "lobby";

/// The line that the user of a line client sees first. It is a whole line, because programs wait for a line's end.
const PROMPT: &[u8] = b"Enter username: ";
