//! Writes a message as a line.

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::body::{
    ErrorBody, ErrorCode, GapBody, GoAwayCode, JoinBody, JoinedBody, MovedBody, PlacementBody,
    PositionBody, PresenceBody, Roster, SubscribeBody,
};
use crate::error::EncodeError;
use crate::handshake::{Hello, Welcome};
use crate::json::{JsonField as F, JsonKind};
use crate::message::{FLAG_PRIVATE, Kind, Message, Position, PresenceEvent};
use crate::room::Policy;
use crate::text::escape_json;

/// Appends the line of a message, or nothing.
pub(super) fn message(message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = out.len();
    let mut line = Line::begin(JsonKind::of(message.kind), out);
    match fields(message, &mut line) {
        Some(()) => line.end(),
        None => {
            out.truncate(start);
            return Err(EncodeError::InvalidBody { kind: message.kind });
        }
    }
    Ok(())
}

/// Writes the fields of a message. `None` if its payload is not a body of its kind, or if it has a channel that its
/// kind cannot have.
fn fields(message: &Message<'_>, line: &mut Line<'_>) -> Option<()> {
    let kind = line.kind;
    if message.channel != 0 && !kind.fields().contains(&F::Channel) {
        return None;
    }
    if message.kind.has_id() && message.kind != Kind::Deliver {
        line.number(F::Id, u64::from(message.id));
    }
    line.number(F::Channel, u64::from(message.channel));
    let payload = message.payload;
    match message.kind {
        Kind::Hello => hello(&Hello::decode(payload).ok()?, line)?,
        Kind::Welcome => welcome(&Welcome::decode(payload).ok()?, line),
        Kind::Request | Kind::OneWay => {
            line.text(F::Method, message.name);
            line.payload(payload);
        }
        Kind::Publish => {
            line.text(F::Topic, message.name);
            line.payload(payload);
        }
        Kind::Reply | Kind::Say | Kind::Ping | Kind::Pong => line.payload(payload),
        Kind::Cancel | Kind::Unsubscribe | Kind::Leave => payload.is_empty().then_some(())?,
        Kind::Error => {
            let ErrorBody { code, text } = ErrorBody::decode(payload).ok()?;
            line.reason(error_word(code), code.to_wire(), text);
        }
        Kind::GoAway => {
            let MovedBody {
                code,
                address,
                text,
            } = MovedBody::of(message).ok()?;
            line.text(F::Address, address);
            line.reason(go_away_word(code), code.to_wire(), text);
        }
        Kind::Subscribe => {
            let SubscribeBody {
                policy,
                pattern,
                group,
            } = SubscribeBody::decode(payload).ok()?;
            line.text(F::Pattern, pattern);
            // An empty group would be none here.
            (group != Some("")).then_some(())?;
            line.text(F::Group, group.unwrap_or_default());
            line.text(F::Policy, policy.map_or("", Policy::name));
        }
        Kind::Deliver => deliver(message, line),
        Kind::Join => {
            let JoinBody { room, name } = JoinBody::decode(payload).ok()?;
            line.text(F::Room, room);
            line.text(F::Name, name);
        }
        Kind::Presence => presence(&PresenceBody::decode(payload).ok()?, line),
        Kind::Placement => placement(&PlacementBody::decode(payload).ok()?, line)?,
        Kind::Gap => line.number(F::Lost, GapBody::decode(payload).ok()?.lost),
        Kind::Position => {
            let Position { epoch, offset } = PositionBody::decode(payload).ok()?.position;
            line.number(F::Epoch, epoch);
            line.number(F::Offset, offset);
        }
    }
    Some(())
}

/// Writes a placement. An empty name of a room or pattern has no spelling.
fn placement(placement: &PlacementBody<'_>, line: &mut Line<'_>) -> Option<()> {
    match *placement {
        PlacementBody::Joined {
            member,
            members,
            room,
            name,
        } if !room.is_empty() => {
            line.text(F::Room, room);
            line.text(F::Name, name);
            line.number(F::Member, u64::from(member.0));
            line.number(F::Count, u64::from(members));
        }
        PlacementBody::Subscribed { pattern } if !pattern.is_empty() => {
            line.text(F::Pattern, pattern);
        }
        PlacementBody::Out => {}
        _ => return None,
    }
    Some(())
}

fn hello(hello: &Hello<'_>, line: &mut Line<'_>) -> Option<()> {
    line.text(F::Token, str::from_utf8(hello.credentials).ok()?);
    line.text(F::Agent, hello.agent);
    // A reader takes other values than 0 for these two if they are left out.
    line.value(F::Version, &hello.version);
    line.number(F::Features, u64::from(hello.features));
    line.value(F::FrameBytesMax, &hello.frame_bytes_max);
    Some(())
}

fn welcome(welcome: &Welcome<'_>, line: &mut Line<'_>) {
    line.number(F::Version, u64::from(welcome.version));
    line.number(F::Features, u64::from(welcome.features));
    line.number(F::FrameBytesMax, u64::from(welcome.frame_bytes_max));
    line.number(F::HeartbeatMs, u64::from(welcome.heartbeat_ms));
    line.number(F::Session, welcome.session);
    line.text(F::Agent, welcome.agent);
    line.number(F::ExpiresInMs, welcome.expires_in_ms);
}

fn deliver(message: &Message<'_>, line: &mut Line<'_>) {
    // The name in a topic is the topic's, and that in a room is the author's.
    if message.id == 0 {
        line.text(F::Topic, message.name);
    } else {
        line.number(F::Member, u64::from(message.id));
        line.text(F::Name, message.name);
    }
    if message.flags & FLAG_PRIVATE != 0 {
        line.value(F::Private, &true);
    }
    line.payload(message.payload);
}

pub(super) fn presence(body: &PresenceBody<'_>, line: &mut Line<'_>) {
    line.text(F::Event, event_word(body.event));
    line.number(F::Member, u64::from(body.member.0));
    line.text(F::Name, body.name);
}

/// Appends the reply to a join.
pub(super) fn joined(reply: &Message<'_>, joined: &JoinedBody, out: &mut Vec<u8>) {
    let mut line = Line::begin(JsonKind::Joined, out);
    line.number(F::Id, u64::from(reply.id));
    line.number(F::Channel, u64::from(reply.channel));
    line.number(F::Member, u64::from(joined.member.0));
    line.number(F::Count, u64::from(joined.members));
    line.end();
}

/// Appends the reply to a list.
pub(super) fn members(reply: &Message<'_>, roster: Roster<'_>, out: &mut Vec<u8>) {
    let mut line = Line::begin(JsonKind::Members, out);
    line.number(F::Id, u64::from(reply.id));
    line.number(F::Channel, u64::from(reply.channel));
    line.key(F::Members);
    line.out.push(b'[');
    for (index, (member, name)) in roster.entries().enumerate() {
        if index > 0 {
            line.out.push(b',');
        }
        line.out.extend_from_slice(b"{\"member\":");
        push(&member.0, line.out);
        line.out.extend_from_slice(b",\"name\":");
        push(name, line.out);
        line.out.push(b'}');
    }
    line.out.push(b']');
    line.end();
}

/// A line that is being written. Fields that are 0 or empty are left out.
pub(super) struct Line<'a> {
    kind: JsonKind,
    out: &'a mut Vec<u8>,
}

impl<'a> Line<'a> {
    pub(super) fn begin(kind: JsonKind, out: &'a mut Vec<u8>) -> Self {
        out.extend_from_slice(b"{\"kind\":\"");
        out.extend_from_slice(kind.name().as_bytes());
        out.push(b'"');
        Self { kind, out }
    }

    pub(super) fn end(self) {
        self.out.extend_from_slice(b"}\n");
    }

    fn key(&mut self, field: F) {
        self.out.extend_from_slice(b",\"");
        self.out.extend_from_slice(field.name().as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn value<T: Serialize + ?Sized>(&mut self, field: F, value: &T) {
        self.key(field);
        push(value, self.out);
    }

    pub(super) fn number(&mut self, field: F, number: u64) {
        if number > 0 {
            self.value(field, &number);
        }
    }

    fn text(&mut self, field: F, text: &str) {
        if !text.is_empty() {
            self.value(field, text);
        }
    }

    fn payload(&mut self, payload: &[u8]) {
        if let Ok(text) = str::from_utf8(payload) {
            return self.text(F::Data, text);
        }
        self.key(F::Data64);
        self.out.push(b'"');
        let start = self.out.len();
        // A vector is no longer than half of the address space, so the length does not overflow.
        self.out.resize(start + payload.len().div_ceil(3) * 4, 0);
        let written = STANDARD.encode_slice(payload, &mut self.out[start..]);
        self.out.truncate(start + written.unwrap_or(0));
        self.out.push(b'"');
    }

    fn reason(&mut self, word: &str, number: u16, text: &str) {
        self.text(F::Code, word);
        self.number(F::Number, u64::from(number));
        self.text(F::Text, text);
    }
}

fn push<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    // Writing numbers and texts to a vector cannot fail.
    let _ = value.serialize(&mut Serializer::with_formatter(out, Visible));
}

/// Escapes also the characters that could command a terminal or change the order of a text, because people read these
/// lines there.
struct Visible;

impl Formatter for Visible {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let is_plain = fragment.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        match is_plain {
            true => out.write_all(fragment.as_bytes()),
            false => out.write_all(escape_json(fragment).as_bytes()),
        }
    }
}

/// The word of an error's code; empty for a code of a newer version.
pub(super) fn error_word(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Unsupported => "unsupported",
        ErrorCode::NotFound => "not-found",
        ErrorCode::NameEmpty => "name-empty",
        ErrorCode::NameTaken => "name-taken",
        ErrorCode::NameInvalid => "name-invalid",
        ErrorCode::NotJoined => "not-joined",
        ErrorCode::AlreadyJoined => "already-joined",
        ErrorCode::LimitReached => "limit-reached",
        ErrorCode::MalformedBody => "malformed",
        ErrorCode::Draining => "draining",
        ErrorCode::Internal => "internal",
        ErrorCode::Forbidden => "forbidden",
        ErrorCode::MethodNotFound => "method-not-found",
        ErrorCode::Other(_) => "",
    }
}

/// The word of a go-away's code; empty for a code of a newer version or of an application.
pub(super) fn go_away_word(code: GoAwayCode) -> &'static str {
    match code {
        GoAwayCode::Shutdown => "shutdown",
        GoAwayCode::IdleTimeout => "idle-timeout",
        GoAwayCode::HandshakeTimeout => "handshake-timeout",
        GoAwayCode::ProtocolError => "protocol-error",
        GoAwayCode::LimitReached => "limit-reached",
        GoAwayCode::SlowSubscriber => "slow-subscriber",
        GoAwayCode::Removed => "removed",
        GoAwayCode::Unauthenticated => "unauthenticated",
        GoAwayCode::Other(_) => "",
    }
}

pub(super) const fn event_word(event: PresenceEvent) -> &'static str {
    match event {
        PresenceEvent::Here => "here",
        PresenceEvent::Joined => "joined",
        PresenceEvent::Left => "left",
    }
}
