//! JSON: one object a line, for people and programs with a WebSocket or a socket and no library.
//!
//! Problem: a program in any language can write JSON, but the native protocol needs code. Approach: the vocabulary of
//! TW1 with words. A line is a frame, and [`Codec::translate`] makes the message of it, with the same bytes in its
//! payload that TW1 has there. So services, rooms and clients see no difference. `docs/protocol.md` has the
//! specification.
//!
//! Rejected: a decoder that borrows only from the line, because escapes and base64 cannot be undone there. Rejected:
//! changing the line in place, because a refused line is read again for its error. Rejected: an own parser of JSON.

mod object;
mod read;
mod write;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::scan::find_line;
use super::spec::BuiltIn;
use super::{
    ChatMessage, Codec, ConnectionState, Decoded, Decoding, Format, Opening, Presence, RequestIds,
    Text,
};
use crate::body::{JoinedBody, PresenceBody, Roster};
use crate::error::{DecodeError, EncodeError};
use crate::json::{JsonField, JsonKind};
use crate::message::{FLAG_PRIVATE, Kind, Message};

/// The codec of JSON lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json;

impl BuiltIn for Json {
    const FORMAT: Format = FORMAT;
}

impl Codec for Json {
    #[inline(always)]
    fn format(&self) -> &'static Format {
        &FORMAT
    }

    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        self.decode_next(&mut ConnectionState::default(), input, 0, frame_bytes_max)
    }

    fn decode_next<'a>(
        &self,
        _: &mut ConnectionState,
        input: &'a [u8],
        searched: usize,
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        Ok(match find_line(input, searched, frame_bytes_max)? {
            None => Decoded::Incomplete { frame_bytes: 0 },
            Some(end) => Decoded::Frame {
                message: Message::new(Kind::OneWay, 0, &input[..end]),
                consumed: end + 1,
            },
        })
    }

    fn translate<'a>(
        &self,
        frame: Message<'a>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Message<'a>, DecodeError> {
        read::message(frame.payload, scratch).map_err(|fault| DecodeError::Json(fault.into()))
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        write::message(message, out)
    }

    fn encode_chat_message(
        &self,
        chat: &ChatMessage<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let message = Message {
            flags: if chat.private { FLAG_PRIVATE } else { 0 },
            ..Message::with_id(Kind::Deliver, chat.channel, chat.member.0, chat.payload)
        };
        // The room itself has no name, and a name without a number would be a topic.
        let name = if chat.member.0 == 0 { "" } else { chat.name };
        write::message(&message.with_name(name), out)
    }

    fn encode_presence(
        &self,
        presence: &Presence<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let mut line = write::Line::begin(JsonKind::Presence, out);
        line.number(JsonField::Channel, u64::from(presence.channel));
        let body = PresenceBody {
            event: presence.event,
            member: presence.member,
            name: presence.name,
        };
        write::presence(&body, &mut line);
        line.end();
        Ok(())
    }

    fn encode_gap(&self, channel: u16, lost: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut line = write::Line::begin(JsonKind::Gap, out);
        line.number(JsonField::Channel, u64::from(channel));
        line.number(JsonField::Lost, lost);
        line.end();
        Ok(())
    }

    fn encode_room_reply(
        &self,
        request: Kind,
        reply: &Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let malformed = |_| EncodeError::InvalidBody { kind: reply.kind };
        match request {
            Kind::Join => {
                let joined = JoinedBody::decode(reply.payload).map_err(malformed)?;
                write::joined(reply, &joined, out);
            }
            _ => {
                let roster = Roster::decode(reply.payload).map_err(malformed)?;
                write::members(reply, roster, out);
            }
        }
        Ok(())
    }

    /// The topic as it is written, with its escapes. No two topics have the same.
    fn delivery_topic<'a>(&self, shared: &'a [u8]) -> &'a str {
        #[derive(Deserialize)]
        struct Delivery<'a> {
            #[serde(borrow, default)]
            topic: Option<&'a RawValue>,
        }
        let delivery: Option<Delivery<'_>> = serde_json::from_slice(shared).ok();
        let topic = delivery.and_then(|delivery| delivery.topic);
        topic.map_or("", |topic| topic.get().trim_matches('"'))
    }
}

const FORMAT: Format = Format {
    opening: Opening::OptionalHello,
    ids: RequestIds::Bits32,
    text: Text::Lines,
    decoding: Decoding::Translated,
    repeats_names: false,
    // A person does not answer pings.
    has_pings: false,
    has_go_away: true,
    has_room_frames: true,
    // A control character is written as `\u001b`.
    payload_growth_max: 6,
    ..Format::new("json")
};

#[cfg(test)]
mod tests;
