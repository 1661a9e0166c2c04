//! Makes the message of an object.
//!
//! Payloads that have a structure in TW1 get the same bytes here, so code above the codec sees no difference.

use std::borrow::Cow;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::object::Object;
use super::write::{error_word, event_word, go_away_word};
use crate::body::{
    ErrorBody, ErrorCode, GapBody, GoAwayBody, GoAwayCode, JoinBody, JoinedBody, MovedBody,
    PlacementBody, PositionBody, PresenceBody, RoomCall, Roster, SubscribeBody,
};
use crate::error::EncodeError;
use crate::handshake::{FEATURE_LONG_CREDENTIALS, Hello, PROTOCOL_VERSION, Welcome};
use crate::json::{JsonField as F, JsonKind, LineFault};
use crate::limits::{CREDENTIALS_BYTES_MAX, LONG_CREDENTIALS_BYTES_MAX, TEXT_BYTES_MAX};
use crate::message::{FLAG_MOVED, FLAG_PRIVATE, MemberId, Message, Position, PresenceEvent};
use crate::room::Policy;

/// Makes the message of a line. Text that the line contains only with escapes goes to `scratch`.
pub(super) fn message<'a>(
    line: &'a [u8],
    scratch: &'a mut Vec<u8>,
) -> Result<Message<'a>, LineFault> {
    scratch.clear();
    let mut object = Object::parse(line)?;
    let name = match object.kind() {
        JsonKind::Request | JsonKind::OneWay => short(&mut object, F::Method)?,
        JsonKind::Publish => short(&mut object, F::Topic)?,
        JsonKind::Deliver if object.has(F::Topic) && object.has(F::Name) => {
            return Err(LineFault::TwoNames);
        }
        JsonKind::Deliver if object.has(F::Topic) => short(&mut object, F::Topic)?,
        JsonKind::Deliver => short(&mut object, F::Name)?,
        _ => Cow::Borrowed(""),
    };
    let name = Part::of(name, scratch);
    let payload = payload(&mut object, scratch)?;
    let scratch: &'a [u8] = scratch;
    let kind = object.kind().message_kind();
    Ok(Message {
        kind,
        flags: match (object.number(F::Private), object.text(F::Address)) {
            (0, "") => 0,
            (0, _) => FLAG_MOVED,
            _ => FLAG_PRIVATE,
        },
        channel: object.u16(F::Channel),
        id: match object.kind() {
            JsonKind::Deliver => object.u32(F::Member),
            _ => object.u32(F::Id),
        },
        // The bytes are those of a text.
        name: str::from_utf8(name.of_scratch(scratch)).unwrap_or_default(),
        payload: payload.of_scratch(scratch),
    })
}

/// Bytes of the line, or of the scratch memory.
enum Part<'a> {
    Line(&'a [u8]),
    Scratch(Range<usize>),
}

impl<'a> Part<'a> {
    fn of(text: Cow<'a, str>, scratch: &mut Vec<u8>) -> Self {
        match text {
            Cow::Borrowed(text) => Self::Line(text.as_bytes()),
            Cow::Owned(text) => {
                let start = scratch.len();
                scratch.extend_from_slice(text.as_bytes());
                Self::Scratch(start..scratch.len())
            }
        }
    }

    fn of_scratch(self, scratch: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Line(bytes) => bytes,
            Self::Scratch(range) => &scratch[range],
        }
    }
}

/// Takes the name of a method, topic or author.
fn short<'a>(object: &mut Object<'a>, field: F) -> Result<Cow<'a, str>, LineFault> {
    let text = object.take_text(field);
    match u8::try_from(text.len()) {
        Ok(_) => Ok(text),
        Err(_) => Err(LineFault::BadValue { field }),
    }
}

/// Takes the payload: as it is, or the body that the fields describe.
fn payload<'a>(object: &mut Object<'a>, scratch: &mut Vec<u8>) -> Result<Part<'a>, LineFault> {
    let start = scratch.len();
    let body = match object.kind() {
        JsonKind::Hello => hello(object, scratch),
        JsonKind::Welcome => welcome(object).encode(scratch).map_err(|_| bad(F::Agent)),
        JsonKind::Error => error(object, scratch),
        JsonKind::GoAway => go_away(object, scratch),
        JsonKind::Subscribe => subscribe(object, scratch),
        JsonKind::Join => {
            let (room, name) = (object.text(F::Room), object.text(F::Name));
            let field = if room.len() > TEXT_BYTES_MAX {
                F::Room
            } else {
                F::Name
            };
            JoinBody { room, name }
                .encode(scratch)
                .map_err(|_| bad(field))
        }
        JsonKind::Presence => presence(object, scratch),
        JsonKind::Gap => {
            let lost = object.number(F::Lost);
            GapBody { lost }.encode(scratch);
            Ok(())
        }
        JsonKind::Position => {
            let position = Position {
                epoch: object.number(F::Epoch),
                offset: object.number(F::Offset),
            };
            PositionBody { position }.encode(scratch);
            Ok(())
        }
        JsonKind::Placement => placement(object).encode(scratch).map_err(|_| bad(F::Room)),
        JsonKind::Joined => {
            let joined = JoinedBody {
                member: MemberId(object.u32(F::Member)),
                members: object.u32(F::Count),
            };
            joined.encode(scratch);
            Ok(())
        }
        JsonKind::Members => members(object, scratch),
        JsonKind::List => RoomCall::List.encode(scratch).map_err(|_| bad(F::Channel)),
        JsonKind::Whisper => whisper(object, scratch),
        _ => return data(object, scratch),
    };
    body?;
    Ok(Part::Scratch(start..scratch.len()))
}

/// Takes a payload without structure.
fn data<'a>(object: &mut Object<'a>, scratch: &mut Vec<u8>) -> Result<Part<'a>, LineFault> {
    let spellings = [F::Data, F::Data64, F::Json];
    if spellings.iter().filter(|field| object.has(**field)).count() > 1 {
        return Err(LineFault::TwoPayloads);
    }
    if object.has(F::Data64) {
        let start = scratch.len();
        let decoded = STANDARD.decode_vec(object.text(F::Data64), scratch);
        decoded.map_err(|_| bad(F::Data64))?;
        return Ok(Part::Scratch(start..scratch.len()));
    }
    if object.has(F::Json) {
        let json = object.take_text(F::Json);
        // The parser has checked that this is JSON. Numbers and texts stay as they are written.
        if levels(&json) > LEVELS_MAX {
            return Err(bad(F::Json));
        }
        return Ok(Part::of(json, scratch));
    }
    Ok(Part::of(object.take_text(F::Data), scratch))
}

/// The placement that the fields describe: without a room and a pattern the client is out of the channel.
fn placement<'o>(object: &'o Object<'_>) -> PlacementBody<'o> {
    match (object.text(F::Room), object.text(F::Pattern)) {
        ("", "") => PlacementBody::Out,
        ("", pattern) => PlacementBody::Subscribed { pattern },
        (room, _) => PlacementBody::Joined {
            member: MemberId(object.u32(F::Member)),
            members: object.u32(F::Count),
            room,
            name: object.text(F::Name),
        },
    }
}

fn hello(object: &Object<'_>, scratch: &mut Vec<u8>) -> Result<(), LineFault> {
    let number = |field, default: u32| match object.has(field) {
        true => object.u32(field),
        false => default,
    };
    let credentials = object.text(F::Token).as_bytes();
    // A line has one spelling for tokens of all lengths. The connection decides whether it takes a long token.
    let long = match credentials.len() {
        0..=CREDENTIALS_BYTES_MAX => 0,
        _ => FEATURE_LONG_CREDENTIALS,
    };
    let hello = Hello {
        version: number(F::Version, u32::from(PROTOCOL_VERSION)) as u16,
        features: object.u32(F::Features) | long,
        frame_bytes_max: number(F::FrameBytesMax, u32::MAX),
        credentials,
        agent: object.text(F::Agent),
    };
    let field = match credentials.len() {
        0..=LONG_CREDENTIALS_BYTES_MAX => F::Agent,
        _ => F::Token,
    };
    hello.encode(scratch).map_err(|_| bad(field))
}

fn welcome<'o>(object: &'o Object<'_>) -> Welcome<'o> {
    Welcome {
        version: object.u16(F::Version),
        features: object.u32(F::Features),
        frame_bytes_max: object.u32(F::FrameBytesMax),
        heartbeat_ms: object.u32(F::HeartbeatMs),
        session: object.number(F::Session),
        agent: object.text(F::Agent),
        expires_in_ms: object.number(F::ExpiresInMs),
    }
}

fn error(object: &Object<'_>, scratch: &mut Vec<u8>) -> Result<(), LineFault> {
    let code = ErrorCode::from_wire(object.u16(F::Number));
    let text = reason(object, error_word(code))?;
    ErrorBody { code, text }.encode(scratch);
    Ok(())
}

fn go_away(object: &Object<'_>, scratch: &mut Vec<u8>) -> Result<(), LineFault> {
    let code = GoAwayCode::from_wire(object.u16(F::Number));
    let text = reason(object, go_away_word(code))?;
    let address = object.text(F::Address);
    if address.is_empty() {
        GoAwayBody { code, text }.encode(scratch);
        return Ok(());
    }
    MovedBody {
        code,
        address,
        text,
    }
    .encode(scratch)
    .map_err(|_| bad(F::Address))
}

/// Returns the text of a reason. The word is for readers, so it may be left out and must not contradict the number.
fn reason<'o>(object: &'o Object<'_>, word: &str) -> Result<&'o str, LineFault> {
    if object.has(F::Code) && object.text(F::Code) != word {
        return Err(bad(F::Code));
    }
    let text = object.text(F::Text);
    if text.len() > TEXT_BYTES_MAX {
        return Err(bad(F::Text));
    }
    Ok(text)
}

fn subscribe(object: &Object<'_>, scratch: &mut Vec<u8>) -> Result<(), LineFault> {
    let policy = match object.has(F::Policy) {
        true => {
            let policy: Result<Policy, _> = object.text(F::Policy).parse();
            Some(policy.map_err(|_| bad(F::Policy))?)
        }
        false => None,
    };
    let pattern = object.text(F::Pattern);
    let group = object.has(F::Group).then(|| object.text(F::Group));
    // The body has a space between both. With a space in the pattern, too, the server refuses what it takes for the
    // name of a group.
    let group = group.or(pattern.contains(' ').then_some(""));
    SubscribeBody {
        policy,
        pattern,
        group,
    }
    .encode(scratch);
    Ok(())
}

fn presence(object: &Object<'_>, scratch: &mut Vec<u8>) -> Result<(), LineFault> {
    use PresenceEvent::{Here, Joined, Left};
    let word = object.text(F::Event);
    let event = [Here, Joined, Left]
        .into_iter()
        .find(|event| event_word(*event) == word)
        .ok_or(bad(F::Event))?;
    let body = PresenceBody {
        event,
        member: MemberId(object.u32(F::Member)),
        name: object.text(F::Name),
    };
    body.encode(scratch).map_err(|_| bad(F::Name))
}

fn members(object: &Object<'_>, scratch: &mut Vec<u8>) -> Result<(), LineFault> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Entry<'a> {
        member: u32,
        #[serde(borrow)]
        name: Cow<'a, str>,
    }
    if !object.has(F::Members) {
        return Ok(());
    }
    let text = object.text(F::Members);
    let entries: Vec<Entry<'_>> = serde_json::from_str(text).map_err(|_| bad(F::Members))?;
    let mut push = |entry: &Entry<'_>| -> Result<(), EncodeError> {
        Roster::push_entry(MemberId(entry.member), &entry.name, scratch)
    };
    let pushed = entries.iter().try_for_each(&mut push);
    pushed.map_err(|_| bad(F::Members))
}

fn whisper<'a>(object: &mut Object<'a>, scratch: &mut Vec<u8>) -> Result<(), LineFault> {
    let mut text = Vec::new();
    let part = data(object, &mut text)?;
    let call = RoomCall::Whisper {
        to: object.text(F::To),
        text: part.of_scratch(&text),
    };
    call.encode(scratch).map_err(|_| bad(F::To))
}

const fn bad(field: F) -> LineFault {
    LineFault::BadValue { field }
}

/// Returns the deepest level of lists and objects in a text that is valid JSON.
fn levels(json: &str) -> usize {
    let (mut level, mut deepest, mut is_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_text = !is_text,
            b'[' | b'{' if !is_text => {
                level += 1;
                deepest = deepest.max(level);
            }
            b']' | b'}' if !is_text => level = level.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Levels of lists and objects in a payload of JSON. Most parsers recurse, and end a recursion that is deeper.
const LEVELS_MAX: usize = 127;
