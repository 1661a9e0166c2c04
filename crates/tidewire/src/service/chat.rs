//! The ready chat service: rooms over the wire, for programs (native protocol) and for people (`lines`).
//!
//! Over the native protocol a client joins a room under a name, says things, lists members and whispers;
//! every refusal is a typed error with the request's id. Over `lines` the server asks for a name first, and
//! from then on every line is said in the lobby.

use tidewire_proto::body::{ErrorCode, JoinBody, JoinedBody, RoomCall, Roster, typed_name};
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message};
use tidewire_proto::room::Policy;

use crate::service::Context;
use crate::service::{HandlerError, HandlerResult, Service};

/// A chat server's service. Give every lane a clone.
#[derive(Clone, Debug)]
pub struct Chat {
    policy: Policy,
    lobby: String,
    scratch: Vec<u8>,
}

impl Default for Chat {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            lobby: DEFAULT_ROOM.to_owned(),
            scratch: Vec::new(),
        }
    }
}

impl Chat {
    /// A chat that disconnects subscribers who do not keep up.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What happens to subscribers who do not keep up.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// The room that people with a line client come into. Default `lobby`.
    #[must_use]
    pub fn lobby(mut self, room: impl Into<String>) -> Self {
        self.lobby = room.into();
        self
    }

    fn join(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> HandlerResult {
        let body = JoinBody::decode(message.payload)?;
        let joined = cx.join(body.room, body.name, Some(self.policy))?;
        let members = u32::try_from(joined.members).unwrap_or(u32::MAX);
        self.scratch.clear();
        JoinedBody {
            member: joined.member,
            members,
        }
        .encode(&mut self.scratch);
        let reply = Message::with_id(Kind::Reply, joined.room, message.id, &self.scratch);
        cx.send(&reply)?;
        if joined.presence {
            cx.push_roster(&joined);
        }
        Ok(())
    }

    fn call(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> HandlerResult {
        match RoomCall::decode(message.payload)? {
            RoomCall::List => {
                self.scratch.clear();
                let mut result = Ok(());
                cx.roster(message.channel, |member, name| {
                    if result.is_ok() {
                        result = Roster::push_entry(member, name, &mut self.scratch);
                    }
                })?;
                result?;
                if self.scratch.len() + ROSTER_MARGIN_BYTES > cx.frame_bytes_max() {
                    let text = "the list does not fit a frame; raise the frame limit";
                    return Err(HandlerError::new(ErrorCode::LimitReached, text));
                }
                cx.reply(&self.scratch)
            }
            RoomCall::Whisper { to, text } => {
                cx.whisper(message.channel, to, text)?;
                cx.reply(&[])
            }
            _ => Err(HandlerError::new(
                ErrorCode::Unsupported,
                "no such room call",
            )),
        }
    }

    /// A line: the name while there is none, then something to say.
    fn line(&mut self, cx: &mut Context<'_>, text: &[u8]) -> HandlerResult {
        if let Ok(room) = u16::try_from(cx.tag())
            && room != NO_ROOM
        {
            return Ok(cx.say(room, text)?);
        }
        let text = String::from_utf8_lossy(text);
        let name = typed_name(&text);
        match cx.join(&self.lobby, &name, Some(self.policy)) {
            Ok(joined) => {
                cx.set_tag(u64::from(joined.room));
                cx.await_login(false);
                let welcome = match joined.members {
                    1 => format!("Welcome, {name}! You are alone."),
                    count => format!("Welcome, {name}! {count} people are here."),
                };
                cx.send(&Message::new(Kind::OneWay, 0, welcome.as_bytes()))?;
                if joined.presence {
                    cx.push_roster(&joined);
                }
            }
            Err(error) => {
                let remedy = if error.is_about_name() {
                    "; try another name"
                } else {
                    ""
                };
                let refusal = format!("! {error}{remedy}");
                cx.send(&Message::new(Kind::OneWay, 0, refusal.as_bytes()))?;
                prompt(cx);
            }
        }
        Ok(())
    }
}

impl Service for Chat {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        if !cx.codec().has_room_frames() {
            prompt(cx);
            cx.await_login(true);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match message.kind {
            Kind::Say => Ok(cx.say(message.channel, message.payload)?),
            Kind::Join => self.join(cx, &message),
            Kind::Leave => {
                cx.leave(message.channel)?;
                cx.reply(&[])
            }
            Kind::Request => self.call(cx, &message),
            Kind::OneWay if !cx.codec().has_room_frames() => self.line(cx, message.payload),
            // A caller gave up on a reply; every reply here is immediate, so there is nothing to cancel.
            Kind::Cancel => Ok(()),
            _ => Err(HandlerError::new(
                ErrorCode::Unsupported,
                "a chat server has no such request",
            )),
        }
    }
}

fn prompt(cx: &mut Context<'_>) {
    if let Err(error) = cx.send(&Message::new(Kind::OneWay, 0, PROMPT)) {
        tracing::debug!(%error, "cannot prompt");
    }
}

/// The room of a chat that names none.
const DEFAULT_ROOM: &str = "lobby";

/// The line that a person with a line client sees first. It is a whole line, because programs wait for its end.
const PROMPT: &[u8] = b"Enter username: ";

/// No room has this alias, so a tag of 0 means that the session has no name yet.
const NO_ROOM: u16 = 0;

/// Header and slack of a frame that carries a roster.
const ROSTER_MARGIN_BYTES: usize = 16;
