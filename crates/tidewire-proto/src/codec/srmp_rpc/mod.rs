//! SRMP with remote calls in its payloads, as NewLife's `ApiServer` and `ApiClient` speak it.
//!
//! ```text
//!  +--------+---------+------------+-----------+------------
//!  | varint | action  | i32 code   | i32 bytes | value ...        little-endian
//!  +--------+---------+------------+-----------+------------
//!    length   UTF-8     only of an   both only if there is a value
//!    of the             error reply
//!    action
//! ```
//!
//! Problem: the method's name and the value lie in the payload of an SRMP frame. Approach: they become the name and the
//! payload of the message, so a service sees no difference to other codecs. Both stay at their position in the receive
//! buffer. The payload of an error reply is the part after the action, and [`Codec::decode_error`] reads it.
//!
//! The original repeats the action in replies, too, and its clients refuse a reply without one: answer with the name of
//! the request. Rejected: leaving this to every service (each would parse untrusted bytes).

use super::length_field::{push_varint, read_varint};
use super::spec::BuiltIn;
use super::srmp::{self, Srmp};
use super::{Codec, Decoded, Format, RequestIds};
use crate::body::{ErrorBody, ErrorCode, Reader};
use crate::error::{DecodeError, EncodeError};
use crate::message::{Kind, Message};

/// The codec of SRMP frames whose payloads are remote calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrmpRpc;

/// The payload of an SRMP frame: a remote call, its reply or its refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcPayload<'a> {
    /// Name of the method.
    pub action: &'a str,
    /// The reason of a refusal; only in error replies.
    pub code: Option<i32>,
    /// Arguments or result; empty if there is none.
    pub value: &'a [u8],
}

impl<'a> RpcPayload<'a> {
    /// Reads the payload of a frame of this kind.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(kind: Kind, payload: &'a [u8]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::MalformedPayload { kind };
        let (action, rest) = split_action(payload).ok_or(malformed)?;
        let (code, rest) = match kind {
            Kind::Error => split_code(rest)
                .map(|(code, rest)| (Some(code), rest))
                .ok_or(malformed)?,
            _ => (None, rest),
        };
        let value = read_value(rest).ok_or(malformed)?;
        Ok(Self {
            action,
            code,
            value,
        })
    }

    /// Appends the payload to `out`.
    ///
    /// # Errors
    /// [`EncodeError::PayloadTooLarge`] if a part has more than 2^31-1 bytes; `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        srmp::check_payload(self.encoded_bytes())?;
        self.push(out);
        Ok(())
    }

    fn encoded_bytes(&self) -> usize {
        let action_bytes = self.action.len();
        let length_bytes = match action_bytes {
            0..0x80 => 1,
            0x80..0x4000 => 2,
            0x4000..0x20_0000 => 3,
            0x20_0000..0x1000_0000 => 4,
            _ => 5,
        };
        let code_bytes = if self.code.is_some() { 4 } else { 0 };
        let value_bytes = match self.value.len() {
            0 => 0,
            bytes => 4 + bytes,
        };
        length_bytes + action_bytes + code_bytes + value_bytes
    }

    /// Appends the payload after a check of its size.
    fn push(&self, out: &mut Vec<u8>) {
        push_varint(self.action.len() as u32, out);
        out.extend_from_slice(self.action.as_bytes());
        if let Some(code) = self.code {
            out.extend_from_slice(&code.to_le_bytes());
        }
        if !self.value.is_empty() {
            out.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
            out.extend_from_slice(self.value);
        }
    }
}

impl SrmpRpc {
    fn push_frame(
        message: &Message<'_>,
        body: &RpcPayload<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let start = srmp::start_of(message, NAME)?;
        let payload_bytes = srmp::check_payload(body.encoded_bytes())?;
        out.reserve(srmp::LONG_HEADER_BYTES + payload_bytes as usize);
        srmp::head_with(start, payload_bytes).push(out);
        body.push(out);
        Ok(())
    }
}

impl BuiltIn for SrmpRpc {
    const FORMAT: Format = FORMAT;
}

impl Codec for SrmpRpc {
    #[inline(always)]
    fn format(&self) -> &'static Format {
        &FORMAT
    }

    #[inline]
    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        let mut decoded = Srmp.decode(input, frame_bytes_max)?;
        if let Decoded::Frame { message, .. } = &mut decoded {
            let malformed = DecodeError::MalformedPayload { kind: message.kind };
            let (action, rest) = split_action(message.payload).ok_or(malformed)?;
            message.name = action;
            message.payload = if message.kind == Kind::Error {
                read_refusal(rest).ok_or(malformed)?
            } else {
                read_value(rest).ok_or(malformed)?
            };
        }
        Ok(decoded)
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut body = RpcPayload {
            action: message.name,
            code: None,
            value: message.payload,
        };
        if message.kind == Kind::Error {
            let invalid = EncodeError::InvalidBody { kind: message.kind };
            let (code, rest) = split_code(message.payload).ok_or(invalid)?;
            body.code = Some(code);
            body.value = read_value(rest).ok_or(invalid)?;
        }
        Self::push_frame(message, &body, out)
    }

    fn encode_error(
        &self,
        request: &Message<'_>,
        error: &ErrorBody<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let answer = Message {
            kind: Kind::Error,
            ..*request
        };
        let body = RpcPayload {
            action: request.name,
            code: Some(wire_code(error.code)),
            value: error.text.as_bytes(),
        };
        Self::push_frame(&answer, &body, out)
    }

    fn decode_error<'a>(&self, message: &Message<'a>) -> Result<ErrorBody<'a>, DecodeError> {
        let body = split_code(message.payload).and_then(|(code, rest)| {
            let text = str::from_utf8(read_value(rest)?).ok()?;
            let code = code_of(code);
            Some(ErrorBody { code, text })
        });
        body.ok_or(DecodeError::MalformedPayload { kind: Kind::Error })
    }

    fn error_number(&self, message: &Message<'_>) -> i32 {
        split_code(message.payload).map_or(0, |(code, _)| code)
    }
}

/// Returns the action at the front of a payload, and the rest.
#[inline]
fn split_action(payload: &[u8]) -> Option<(&str, &[u8])> {
    let (action_bytes, length_bytes) = read_varint(payload)??;
    let (action, rest) =
        payload[length_bytes..].split_at_checked(usize::try_from(action_bytes).ok()?)?;
    Some((str::from_utf8(action).ok()?, rest))
}

/// Returns the code at the front of an error's rest, and the bytes after the code.
fn split_code(rest: &[u8]) -> Option<(i32, &[u8])> {
    let mut reader = Reader::new(rest);
    let code = reader.array().map(i32::from_le_bytes)?;
    Some((code, reader.rest()))
}

/// Returns the code and the value that fill the rest of an error's payload. An empty value has no length, so it has one
/// spelling.
fn read_refusal(rest: &[u8]) -> Option<&[u8]> {
    let (_, value) = split_code(rest)?;
    if read_value(value)?.is_empty() {
        return Some(&rest[..rest.len() - value.len()]);
    }
    Some(rest)
}

/// Returns the value that fills the rest of a payload. An empty rest is no value.
#[inline]
fn read_value(rest: &[u8]) -> Option<&[u8]> {
    if rest.is_empty() {
        return Some(rest);
    }
    let (length, value) = rest.split_first_chunk()?;
    (u32::from_le_bytes(*length) as usize == value.len()).then_some(value)
}

/// Returns the code's number: that of HTTP if there is one, otherwise TW1's.
fn wire_code(code: ErrorCode) -> i32 {
    CODES
        .iter()
        .find(|(known, _)| *known == code)
        .map_or_else(|| i32::from(code.to_wire()), |(_, number)| *number)
}

fn code_of(number: i32) -> ErrorCode {
    let known = CODES.iter().find(|(_, known)| *known == number);
    match (known, u16::try_from(number)) {
        (Some((code, _)), _) => *code,
        (None, Ok(number)) => ErrorCode::from_wire(number),
        (None, Err(_)) => ErrorCode::UNKNOWN,
    }
}

const FORMAT: Format = Format {
    ids: RequestIds::Bits8,
    ..Format::new("srmp-rpc")
};
const NAME: &str = FORMAT.name;

/// A number of two codes stands for the first of them: peers of this format say 404 for a missing method.
const CODES: [(ErrorCode, i32); 8] = [
    (ErrorCode::MalformedBody, 400),
    (ErrorCode::Forbidden, 403),
    (ErrorCode::MethodNotFound, 404),
    (ErrorCode::NotFound, 404),
    (ErrorCode::LimitReached, 429),
    (ErrorCode::Internal, 500),
    (ErrorCode::Unsupported, 501),
    (ErrorCode::Draining, 503),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::FRAME_BYTES_MAX;

    fn decode(frame: &[u8]) -> Result<Decoded<'_>, DecodeError> {
        SrmpRpc.decode(frame, FRAME_BYTES_MAX)
    }

    fn decoded(frame: &[u8]) -> Message<'_> {
        match decode(frame) {
            Ok(Decoded::Frame { message, consumed }) => {
                assert_eq!(consumed, frame.len());
                message
            }
            other => panic!("not one frame: {other:?}"),
        }
    }

    fn encoded(message: &Message<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        SrmpRpc.encode(message, &mut out).unwrap();
        out
    }

    const LOGIN: &[u8] = b"\x01\x01\x0C\x00\x05\x4C\x6F\x67\x69\x6E\x02\x00\x00\x00\x7B\x7D";

    #[test]
    fn the_vector_holds_both_ways() {
        let message = Message::with_id(Kind::Request, 0, 1, b"{}").with_name("Login");
        assert_eq!(encoded(&message), LOGIN);
        assert_eq!(decoded(LOGIN), message);
        let body = RpcPayload {
            action: "Login",
            code: None,
            value: b"{}",
        };
        assert_eq!(RpcPayload::decode(Kind::Request, &LOGIN[4..]), Ok(body));
        let mut payload = Vec::new();
        body.encode(&mut payload).unwrap();
        assert_eq!(payload, &LOGIN[4..]);
    }

    #[test]
    fn no_value_takes_no_bytes_and_an_empty_one_is_read() {
        let message = Message::with_id(Kind::Reply, 0, 1, b"").with_name("Ping");
        assert_eq!(encoded(&message), b"\x81\x01\x05\x00\x04Ping");
        assert_eq!(decoded(b"\x81\x01\x05\x00\x04Ping"), message);
        assert_eq!(decoded(b"\x81\x01\x09\x00\x04Ping\0\0\0\0"), message);
        let refusal = Message::with_id(Kind::Error, 0, 1, b"\x07\0\0\0").with_name("Ping");
        assert_eq!(encoded(&refusal), b"\xC1\x01\x09\x00\x04Ping\x07\0\0\0");
        assert_eq!(
            decoded(b"\xC1\x01\x0D\x00\x04Ping\x07\0\0\0\0\0\0\0"),
            refusal
        );
    }

    #[test]
    fn actions_of_every_length_survive() {
        for bytes in [0, 1, 127, 128, 300, 16_383, 16_384, 70_000] {
            let name = "n".repeat(bytes);
            let message = Message::with_id(Kind::Request, 0, 1, b"v").with_name(&name);
            assert_eq!(decoded(&encoded(&message)), message);
        }
    }

    #[test]
    fn an_error_carries_a_code_and_a_text() {
        let request = decoded(LOGIN);
        let error = ErrorBody {
            code: ErrorCode::MethodNotFound,
            text: "no Login",
        };
        let mut out = Vec::new();
        SrmpRpc.encode_error(&request, &error, &mut out).unwrap();
        assert_eq!(
            out,
            b"\xC1\x01\x16\x00\x05Login\x94\x01\x00\x00\x08\x00\x00\x00no Login"
        );
        let message = decoded(&out);
        assert_eq!((message.kind, message.name), (Kind::Error, "Login"));
        assert_eq!(SrmpRpc.decode_error(&message), Ok(error));
        assert_eq!(SrmpRpc.error_number(&message), 404);
        assert_eq!(encoded(&message), out);
        let body = RpcPayload::decode(Kind::Error, &out[4..]).unwrap();
        assert_eq!((body.code, body.value), (Some(404), &b"no Login"[..]));
    }

    #[test]
    fn every_code_survives() {
        for number in (0..=13).filter(|number| *number != ErrorCode::NotFound.to_wire()) {
            let code = ErrorCode::from_wire(number);
            assert_eq!(code_of(wire_code(code)), code);
        }
        assert_eq!(
            code_of(wire_code(ErrorCode::NotFound)),
            ErrorCode::MethodNotFound
        );
        assert_eq!(code_of(1234), ErrorCode::Other(1234));
        assert_eq!(code_of(-1), ErrorCode::UNKNOWN);
    }

    #[test]
    fn broken_payloads_are_malformed_and_not_encoded() {
        let malformed = |kind| Err(DecodeError::MalformedPayload { kind });
        for payload in [
            &b""[..],
            b"\x80",
            b"\x05Log",
            b"\x01\xFF",
            b"\x01a\x02\0\0\0x",
            b"\x01a\x01\0\0\0xy",
            b"\x01a\x01\0",
            b"\xFF\xFF\xFF\xFF\xFF\x01",
        ] {
            let frame = [&[1, 1, payload.len() as u8, 0], payload].concat();
            assert_eq!(decode(&frame), malformed(Kind::Request), "{payload:?}");
        }
        assert_eq!(decode(b"\xC1\x01\x03\x00\x01ax"), malformed(Kind::Error));
        let mut out = Vec::new();
        assert_eq!(
            SrmpRpc.encode(&Message::with_id(Kind::Error, 0, 1, b"x"), &mut out),
            Err(EncodeError::InvalidBody { kind: Kind::Error })
        );
        assert!(out.is_empty());
    }
}
