//! TW1, the native protocol's framing.
//!
//! Problem: small messages arrive by the hundred million, so the cost of finding the next frame decides
//! how much a lane can carry. Approach: a header of fixed size whose first eight bytes are the same for
//! every kind, so that a single load brings in everything the decision needs and a single bounds check
//! yields the payload; what depends on the kind comes from a table.
//!
//! ```text
//!  0        4      5       6         8          12
//!  +--------+------+-------+---------+----------+------------
//!  | length | kind | flags | channel | id       | payload ...     little-endian
//!  +--------+------+-------+---------+----------+------------
//!  length counts everything after itself; the id is there only where Kind::has_id says so;
//!  with FLAG_NAMED, the payload of a request, one-way, publish or deliver starts with a u8 length and a name
//! ```
//!
//! Rejected: variable-length integers (a header then needs a byte loop and the bench shows it), an id in
//! every frame (one-way messages of 32 bytes would grow by a tenth), and a checksum (the transports below
//! carry their own; the load instrument puts one into its payloads).

use super::{Codec, Decoded, Presence};
use crate::body::{GapBody, PresenceBody, Reader, push_short_text};
use crate::error::{DecodeError, EncodeError};
use crate::message::{FLAG_NAMED, Kind, Message};

/// The native codec. It has no configuration: limits are arguments of `decode`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tw1;

impl Tw1 {
    /// Appends a frame whose payload `write_payload` appends, so that a body needs no buffer of its own.
    ///
    /// The length field is filled in afterwards. If `write_payload` fails, `out` is cut back to what it
    /// was.
    ///
    /// # Errors
    /// Whatever `write_payload` returns, and [`EncodeError::PayloadTooLarge`] if the length field cannot
    /// hold what it wrote.
    pub fn encode_with(
        head: &Message<'_>,
        out: &mut Vec<u8>,
        write_payload: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let start = out.len();
        push_header(head, 0, out);
        let header_end = out.len();
        let written = push_name(head, out)
            .and_then(|()| write_payload(out))
            .and_then(|()| {
                let payload_bytes = out.len() - header_end;
                length_field(head.kind, payload_bytes)
            });
        match written {
            Ok(length) => {
                out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
                Ok(())
            }
            Err(error) => {
                out.truncate(start);
                Err(error)
            }
        }
    }
}

impl Codec for Tw1 {
    fn name(&self) -> &'static str {
        "tw1"
    }

    fn has_handshake(&self) -> bool {
        true
    }

    #[inline]
    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        let Some(head) = input.first_chunk::<ONE_WAY_HEADER_BYTES>() else {
            return decode_short(input, frame_bytes_max);
        };
        let word = u64::from_le_bytes(*head);
        let frame_bytes = (word & u64::from(u32::MAX)) + LENGTH_BYTES as u64;
        let shape = SHAPES[usize::from((word >> 32) as u8)];
        let header_bytes = usize::from(shape.header_bytes);
        if frame_bytes > frame_bytes_max as u64
            || frame_bytes < header_bytes as u64
            || header_bytes == UNKNOWN_HEADER_BYTES
        {
            return Err(reject(input, frame_bytes_max));
        }
        // It is at most `frame_bytes_max`, which is a usize.
        let frame_bytes = frame_bytes as usize;
        let Some(payload) = input.get(header_bytes..frame_bytes) else {
            return Ok(Decoded::Incomplete { frame_bytes });
        };
        let id = if header_bytes == ID_HEADER_BYTES {
            match input
                .get(ONE_WAY_HEADER_BYTES..)
                .and_then(<[u8]>::first_chunk)
            {
                Some(id) => u32::from_le_bytes(*id),
                None => 0,
            }
        } else {
            0
        };
        let mut message = Message {
            kind: shape.kind,
            flags: (word >> 40) as u8,
            channel: (word >> 48) as u16,
            id,
            name: "",
            payload,
        };
        if word & NAMED_BIT != 0 && shape.kind.has_name() {
            let malformed = DecodeError::MalformedPayload { kind: shape.kind };
            message.name = name_of(payload).ok_or(malformed)?;
            message.payload = &payload[1 + message.name.len()..];
            message.flags &= !FLAG_NAMED;
        }
        Ok(Decoded::Frame {
            message,
            consumed: frame_bytes,
        })
    }

    #[inline]
    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if !message.name.is_empty() {
            return encode_named(message, out);
        }
        let length = length_field(message.kind, message.payload.len())?;
        out.reserve(ID_HEADER_BYTES + message.payload.len());
        push_header(message, length, out);
        out.extend_from_slice(message.payload);
        Ok(())
    }

    fn encode_presence(
        &self,
        presence: &Presence<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let body = PresenceBody {
            event: presence.event,
            member: presence.member,
            name: presence.name,
        };
        let head = Message::new(Kind::Presence, presence.channel, &[]);
        Self::encode_with(&head, out, |out| body.encode(out))
    }

    fn encode_gap(&self, channel: u16, lost: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let head = Message::new(Kind::Gap, channel, &[]);
        Self::encode_with(&head, out, |out| {
            GapBody { lost }.encode(out);
            Ok(())
        })
    }
}

/// What the table knows about a kind byte.
#[derive(Clone, Copy)]
struct Shape {
    kind: Kind,
    header_bytes: u8,
}

/// The length field of a frame of this kind, if it can hold the payload.
#[inline]
fn length_field(kind: Kind, payload_bytes: usize) -> Result<u32, EncodeError> {
    let rest = SHAPES[usize::from(kind as u8)].header_bytes - LENGTH_BYTES as u8;
    match u32::try_from(payload_bytes) {
        Ok(bytes) if bytes <= u32::MAX - u32::from(rest) => Ok(bytes + u32::from(rest)),
        _ => Err(EncodeError::PayloadTooLarge {
            bytes: payload_bytes as u64,
            limit: u64::from(u32::MAX) - u64::from(rest),
        }),
    }
}

/// Appends the header of `message` with this length field.
#[inline]
fn push_header(message: &Message<'_>, length: u32, out: &mut Vec<u8>) {
    let mut flags = message.flags;
    if message.kind.has_name() {
        let named = if message.name.is_empty() {
            0
        } else {
            FLAG_NAMED
        };
        flags = flags & !FLAG_NAMED | named;
    }
    let word = u64::from(length)
        | u64::from(message.kind as u8) << 32
        | u64::from(flags) << 40
        | u64::from(message.channel) << 48;
    out.extend_from_slice(&word.to_le_bytes());
    if message.kind.has_id() {
        out.extend_from_slice(&message.id.to_le_bytes());
    }
}

/// The name in front of a payload. It returns no more than fits registers: were the whole message completed
/// here, in memory, frames without names would pay for it, too.
#[cold]
fn name_of(payload: &[u8]) -> Option<&str> {
    // Saying "no name" with a length of 0 would give the frame a second spelling.
    Reader::new(payload)
        .short_text()
        .filter(|name| !name.is_empty())
}

/// Appends a frame whose message has a name.
fn encode_named(message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    out.reserve(ID_HEADER_BYTES + 1 + message.name.len() + message.payload.len());
    Tw1::encode_with(message, out, |out| {
        out.extend_from_slice(message.payload);
        Ok(())
    })
}

/// Appends the name in front of a payload, in the kinds that have one.
fn push_name(message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if message.name.is_empty() || !message.kind.has_name() {
        return Ok(());
    }
    push_short_text(message.name, out)
}

/// Decodes an input that ends inside the fixed header.
#[cold]
fn decode_short(input: &[u8], frame_bytes_max: usize) -> Result<Decoded<'_>, DecodeError> {
    match find_fault(input, frame_bytes_max) {
        Some(error) => Err(error),
        None => Ok(Decoded::Incomplete {
            frame_bytes: announced_bytes(input).map_or(0, |bytes| bytes as usize),
        }),
    }
}

/// The reason why a whole header was refused.
#[cold]
fn reject(input: &[u8], frame_bytes_max: usize) -> DecodeError {
    find_fault(input, frame_bytes_max).unwrap_or(DecodeError::FrameTooShort {
        bytes: announced_bytes(input).unwrap_or(0),
    })
}

/// The first fault of a header in the order of its bytes, so that a header arriving byte by byte fails with
/// the same error as one that arrives at once.
fn find_fault(input: &[u8], frame_bytes_max: usize) -> Option<DecodeError> {
    let frame_bytes = announced_bytes(input)?;
    if frame_bytes > frame_bytes_max as u64 {
        return Some(DecodeError::FrameTooLarge {
            bytes: frame_bytes,
            limit: frame_bytes_max as u64,
        });
    }
    let too_short = DecodeError::FrameTooShort { bytes: frame_bytes };
    if frame_bytes < ONE_WAY_HEADER_BYTES as u64 {
        return Some(too_short);
    }
    let number = *input.get(LENGTH_BYTES)?;
    let header_bytes = usize::from(SHAPES[usize::from(number)].header_bytes);
    if header_bytes == UNKNOWN_HEADER_BYTES {
        return Some(DecodeError::UnknownKind(number));
    }
    (frame_bytes < header_bytes as u64).then_some(too_short)
}

/// The whole length of the frame at the front of `input`, once its length field is there.
fn announced_bytes(input: &[u8]) -> Option<u64> {
    let length = input.first_chunk::<LENGTH_BYTES>()?;
    Some(u64::from(u32::from_le_bytes(*length)) + LENGTH_BYTES as u64)
}

const fn shapes() -> [Shape; 256] {
    let mut shapes = [Shape {
        kind: Kind::OneWay,
        header_bytes: UNKNOWN_HEADER_BYTES as u8,
    }; 256];
    let mut index = 0;
    while index < Kind::ALL.len() {
        let kind = Kind::ALL[index];
        shapes[kind as usize] = Shape {
            kind,
            header_bytes: if kind.has_id() {
                ID_HEADER_BYTES as u8
            } else {
                ONE_WAY_HEADER_BYTES as u8
            },
        };
        index += 1;
    }
    shapes
}

/// Header of the kinds without an id, length field included.
pub const ONE_WAY_HEADER_BYTES: usize = 8;

/// Header of the kinds with an id, length field included.
pub const ID_HEADER_BYTES: usize = 12;

/// [`FLAG_NAMED`] in the first eight bytes of a header.
const NAMED_BIT: u64 = (FLAG_NAMED as u64) << 40;
const LENGTH_BYTES: usize = 4;
const UNKNOWN_HEADER_BYTES: usize = u8::MAX as usize;
static SHAPES: [Shape; 256] = shapes();

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64;

    fn error_of(input: &[u8]) -> DecodeError {
        Tw1.decode(input, LIMIT).unwrap_err()
    }

    #[test]
    fn every_kind_has_the_header_its_id_asks_for() {
        for kind in Kind::ALL {
            let message = Message {
                kind,
                flags: 0xA5,
                channel: 0x1234,
                id: if kind.has_id() { 0x89AB_CDEF } else { 0 },
                name: "",
                payload: b"tide",
            };
            let mut out = Vec::new();
            Tw1.encode(&message, &mut out).unwrap();

            let header_bytes = out.len() - message.payload.len();
            assert_eq!(header_bytes == ID_HEADER_BYTES, kind.has_id());
            let consumed = out.len();
            assert_eq!(
                Tw1.decode(&out, LIMIT),
                Ok(Decoded::Frame { message, consumed })
            );
        }
    }

    #[test]
    fn an_unfinished_frame_says_how_long_it_will_be() {
        let mut out = Vec::new();
        Tw1.encode(&Message::with_id(Kind::Request, 1, 2, b"abc"), &mut out)
            .unwrap();
        for end in 0..out.len() {
            let frame_bytes = if end < LENGTH_BYTES { 0 } else { out.len() };
            assert_eq!(
                Tw1.decode(&out[..end], LIMIT),
                Ok(Decoded::Incomplete { frame_bytes })
            );
        }
    }

    #[test]
    fn a_frame_may_fill_the_limit_and_no_more() {
        let message = Message::new(Kind::OneWay, 0, &[0; LIMIT - ONE_WAY_HEADER_BYTES]);
        let mut out = Vec::new();
        Tw1.encode(&message, &mut out).unwrap();
        assert!(Tw1.decode(&out, LIMIT).is_ok());

        let too_large = DecodeError::FrameTooLarge {
            bytes: 64,
            limit: 63,
        };
        for end in LENGTH_BYTES..out.len() {
            assert_eq!(Tw1.decode(&out[..end], LIMIT - 1), Err(too_large));
        }
        let endless = [0xFF; 12];
        let bytes = u64::from(u32::MAX) + 4;
        let limit = LIMIT as u64;
        assert_eq!(
            error_of(&endless),
            DecodeError::FrameTooLarge { bytes, limit }
        );
    }

    #[test]
    fn a_length_below_the_header_is_refused() {
        let with_id = Kind::Request as u8;
        let without = Kind::Say as u8;
        assert_eq!(
            error_of(&[3, 0, 0, 0, without, 0, 0, 0]),
            DecodeError::FrameTooShort { bytes: 7 }
        );
        assert_eq!(
            error_of(&[7, 0, 0, 0, with_id, 0, 0, 0, 1, 0, 0, 0]),
            DecodeError::FrameTooShort { bytes: 11 }
        );
    }

    #[test]
    fn a_name_stands_in_front_of_the_payload() {
        for kind in [Kind::Request, Kind::OneWay, Kind::Publish, Kind::Deliver] {
            let id = if kind.has_id() { 7 } else { 0 };
            let message = Message::with_id(kind, 0, id, b"hi").with_name("echo");
            let mut out = Vec::new();
            Tw1.encode(&message, &mut out).unwrap();
            assert!(out.ends_with(b"\x04echohi"));
            let consumed = out.len();
            assert_eq!(
                Tw1.decode(&out, LIMIT),
                Ok(Decoded::Frame { message, consumed })
            );
        }
        let long = "n".repeat(256);
        let mut out = b"before".to_vec();
        assert_eq!(
            Tw1.encode(
                &Message::new(Kind::OneWay, 0, b"").with_name(&long),
                &mut out
            ),
            Err(EncodeError::TextTooLong {
                bytes: 256,
                limit: 255
            })
        );
        assert_eq!(out, b"before");
    }

    #[test]
    fn a_broken_name_is_malformed_and_the_bit_means_nothing_elsewhere() {
        for payload in [&b""[..], b"\0", b"\x02a", b"\x01\xFF"] {
            let head = [4 + payload.len() as u8, 0, 0, 0, 7, FLAG_NAMED, 0, 0];
            assert_eq!(
                error_of(&[&head, payload].concat()),
                DecodeError::MalformedPayload { kind: Kind::OneWay }
            );
        }
        let say = [5, 0, 0, 0, Kind::Say as u8, FLAG_NAMED, 0, 0, b'x'];
        let message = Message {
            flags: FLAG_NAMED,
            ..Message::new(Kind::Say, 0, b"x")
        };
        assert_eq!(
            Tw1.decode(&say, LIMIT),
            Ok(Decoded::Frame {
                message,
                consumed: 9
            })
        );
        let mut out = Vec::new();
        Tw1.encode(&message, &mut out).unwrap();
        assert_eq!(out, say);
        // A message has a name or not, whatever its flags say.
        out.clear();
        let stray = Message {
            flags: FLAG_NAMED,
            ..Message::new(Kind::OneWay, 0, b"x")
        };
        Tw1.encode(&stray, &mut out).unwrap();
        assert_eq!(out, [5, 0, 0, 0, 7, 0, 0, 0, b'x']);
    }

    #[test]
    fn kinds_outside_the_table_are_refused() {
        for number in (0..=u8::MAX).filter(|number| Kind::from_wire(*number).is_none()) {
            let whole = [4, 0, 0, 0, number, 0, 0, 0];
            for end in LENGTH_BYTES + 1..=whole.len() {
                assert_eq!(error_of(&whole[..end]), DecodeError::UnknownKind(number));
            }
        }
    }

    #[test]
    fn a_failed_body_leaves_the_output_unchanged() {
        let presence = Presence {
            channel: 1,
            member: crate::message::MemberId(1),
            name: &"n".repeat(256),
            event: crate::message::PresenceEvent::Joined,
        };
        let mut out = b"before".to_vec();
        assert!(Tw1.encode_presence(&presence, &mut out).is_err());
        assert_eq!(out, b"before");
    }
}
