//! TW1, the native protocol's framing.
//!
//! Problem: small messages arrive by the hundred million, so the cost of finding the next frame decides how much a lane
//! can carry. Approach: a header of fixed size whose first eight bytes are the same for every kind. A single load reads
//! everything the decision needs, and a single bounds check yields the payload. A table holds the parts that depend on
//! the kind.
//!
//! ```text
//!  0        4      5       6         8          12
//!  +--------+------+-------+---------+----------+------------
//!  | length | kind | flags | channel | id       | payload ...     little-endian
//!  +--------+------+-------+---------+----------+------------
//!  length counts everything after itself; the id is there only if Kind::has_id says so;
//!  with FLAG_NAMED, the payload of a request, one-way, publish or deliver starts with a u8 length and a name
//! ```
//!
//! Rejected: variable-length integers, because a header then needs a byte loop, which is measurably slower. Rejected:
//! an id in every frame, because one-way messages of 32 bytes would grow by a tenth. Rejected: a checksum, because the
//! transports below have their own, and the load instrument puts one into its payloads.

use super::frame::Head;
use super::spec::BuiltIn;
use super::{Codec, Decoded, Format, FrameLayout, Opening, Presence, RequestIds};
use crate::body::{GapBody, PresenceBody, Reader, push_short_text};
use crate::error::{DecodeError, EncodeError};
use crate::message::{FLAG_NAMED, FLAG_POSITION, Kind, Message};

/// The native codec. It has no configuration: limits are arguments of `decode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tw1;

impl Tw1 {
    /// Appends a frame with the payload from `write_payload`, so a body needs no buffer.
    ///
    /// The length field is filled in afterwards. If `write_payload` fails, `out` is truncated to its previous length.
    ///
    /// # Errors
    /// The errors of `write_payload`, and [`EncodeError::PayloadTooLarge`] if the length field cannot hold the length.
    pub fn encode_with(
        head: &Message<'_>,
        out: &mut Vec<u8>,
        write_payload: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let start = out.len();
        head_with(head, 0).push(out);
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

impl Tw1 {
    /// Returns the header of a message without a name.
    #[inline(always)]
    pub(super) fn head(&self, message: &Message<'_>) -> Result<Head, EncodeError> {
        let length = length_field(message.kind, message.payload.len())?;
        Ok(head_with(message, length))
    }
}

impl BuiltIn for Tw1 {
    const FORMAT: Format = FORMAT;
}

impl Codec for Tw1 {
    #[inline(always)]
    fn format(&self) -> &'static Format {
        &FORMAT
    }

    #[inline(always)]
    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        // A frame without id may be shorter than the longest header and end the input. The bytes read for a missing id
        // are not used.
        let [word @ .., i0, i1, i2, i3] = match input.first_chunk::<ID_HEADER_BYTES>() {
            Some(head) => *head,
            None if input.len() < ONE_WAY_HEADER_BYTES => {
                let frame_bytes = unfinished(input, frame_bytes_max)?;
                return Ok(Decoded::Incomplete { frame_bytes });
            }
            None => padded(input),
        };
        let mut word = u64::from_le_bytes(word);
        let frame_bytes = (word & u64::from(u32::MAX)) + LENGTH_BYTES as u64;
        let Shape { kind, header_bytes } = SHAPES[usize::from((word >> 32) as u8)];
        let header_bytes = usize::from(header_bytes);
        if frame_bytes > frame_bytes_max as u64
            || frame_bytes < header_bytes as u64
            || header_bytes == UNKNOWN_HEADER_BYTES
        {
            return Err(reject(input, frame_bytes_max));
        }
        // The value is at most `frame_bytes_max`, which is a usize.
        let frame_bytes = frame_bytes as usize;
        let Some(mut payload) = input.get(header_bytes..frame_bytes) else {
            return Ok(Decoded::Incomplete { frame_bytes });
        };
        let id = if header_bytes == ID_HEADER_BYTES {
            u32::from_le_bytes([i0, i1, i2, i3])
        } else {
            0
        };
        let mut name = "";
        if word & NAMED_BIT != 0 && kind.has_name() {
            name = name_of(payload).ok_or(DecodeError::MalformedPayload { kind })?;
            payload = &payload[1 + name.len()..];
            word &= !NAMED_BIT;
        }
        let message = Message {
            kind,
            flags: flags_in(word),
            channel: channel_in(word),
            id,
            name,
            payload,
        };
        Ok(Decoded::Frame {
            message,
            consumed: frame_bytes,
        })
    }

    #[inline(always)]
    fn layout(&self, frame: &[u8], message: &Message<'_>) -> Option<FrameLayout> {
        let name_bytes = if message.name.is_empty() || !message.kind.has_name() {
            0
        } else {
            1 + message.name.len()
        };
        Some(if message.kind.has_id() {
            FrameLayout::new(ID_HEADER_BYTES + name_bytes..frame.len())
                .with_id(ONE_WAY_HEADER_BYTES)
        } else {
            FrameLayout::new(ONE_WAY_HEADER_BYTES + name_bytes..frame.len())
        })
    }

    #[inline(always)]
    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if !message.name.is_empty() {
            return encode_named(message, out);
        }
        self.head(message)?.push_with(message.payload, out);
        Ok(())
    }

    fn encode_delivery_at(
        &self,
        offset: u64,
        message: &Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let head = Message {
            flags: message.flags | FLAG_POSITION,
            ..*message
        };
        out.reserve(ID_HEADER_BYTES + 1 + message.name.len() + 8 + message.payload.len());
        Self::encode_with(&head, out, |out| {
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(message.payload);
            Ok(())
        })
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

/// The table's entry for a kind byte.
#[derive(Clone, Copy)]
struct Shape {
    kind: Kind,
    header_bytes: u8,
}

/// Returns the length field of a frame of this kind, if it can hold the payload.
#[inline(always)]
fn length_field(kind: Kind, payload_bytes: usize) -> Result<u32, EncodeError> {
    let rest = header_bytes(kind) - LENGTH_BYTES;
    let limit = u32::MAX as usize - rest;
    if payload_bytes > limit {
        return Err(EncodeError::PayloadTooLarge {
            bytes: payload_bytes as u64,
            limit: limit as u64,
        });
    }
    Ok((payload_bytes + rest) as u32)
}

/// Returns the header length of a frame of this kind.
#[inline(always)]
const fn header_bytes(kind: Kind) -> usize {
    if kind.has_id() {
        ID_HEADER_BYTES
    } else {
        ONE_WAY_HEADER_BYTES
    }
}

#[inline(always)]
fn head_with(message: &Message<'_>, length: u32) -> Head {
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
    Head::new(word, message.id, header_bytes(message.kind))
}

/// Returns the flags in the first eight bytes of a header.
#[inline(always)]
const fn flags_in(word: u64) -> u8 {
    (word >> 40) as u8
}

/// Returns the channel in the first eight bytes of a header.
#[inline(always)]
const fn channel_in(word: u64) -> u16 {
    (word >> 48) as u16
}

/// Reads the name in front of a payload.
#[cold]
fn name_of(payload: &[u8]) -> Option<&str> {
    // A name of length 0 would give a frame without a name a second spelling.
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

/// Appends the name before a payload, if the kind has one.
fn push_name(message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if message.name.is_empty() || !message.kind.has_name() {
        return Ok(());
    }
    push_short_text(message.name, out)
}

/// Returns the length of a frame with an incomplete fixed header; 0 if the length is not known yet.
///
/// This function and the ones below handle rare cases. They are calls that return little. If they returned whole frames
/// in memory, the compiler would pass the common frames through memory, too.
#[cold]
fn unfinished(input: &[u8], frame_bytes_max: usize) -> Result<usize, DecodeError> {
    match find_fault(input, frame_bytes_max) {
        Some(error) => Err(error),
        None => Ok(announced_bytes(input).map_or(0, |bytes| bytes as usize)),
    }
}

/// Copies the available part of the longest header, and fills the rest with zeros.
#[cold]
fn padded(input: &[u8]) -> [u8; ID_HEADER_BYTES] {
    let mut head = [0; ID_HEADER_BYTES];
    head[..input.len()].copy_from_slice(input);
    head
}

/// Returns the reason why a whole header was refused.
#[cold]
fn reject(input: &[u8], frame_bytes_max: usize) -> DecodeError {
    find_fault(input, frame_bytes_max).unwrap_or(DecodeError::FrameTooShort {
        bytes: announced_bytes(input).unwrap_or(0),
    })
}

/// Returns the first fault of a header in the order of its bytes, so a header that arrives byte by byte fails with the
/// same error as a header that arrives at once.
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

/// Returns the whole length of the frame at the front of `input`, once its length field is there.
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
            header_bytes: header_bytes(kind) as u8,
        };
        index += 1;
    }
    shapes
}

const FORMAT: Format = Format {
    opening: Opening::Hello,
    ids: RequestIds::Bits32,
    repeats_names: false,
    has_positions: true,
    has_pings: true,
    has_go_away: true,
    has_room_frames: true,
    ..Format::new("tw1")
};

/// Header length of the kinds without an id, including the length field.
pub const ONE_WAY_HEADER_BYTES: usize = 8;

/// Header length of the kinds with an id, including the length field.
pub const ID_HEADER_BYTES: usize = 12;

/// The bit [`FLAG_NAMED`] in the first eight bytes of a header.
const NAMED_BIT: u64 = (FLAG_NAMED as u64) << 40;
const LENGTH_BYTES: usize = 4;
const UNKNOWN_HEADER_BYTES: usize = u8::MAX as usize;
static SHAPES: [Shape; 256] = shapes();

#[cfg(test)]
mod tests;
