//! SRMP, the "StandardCodec" of NewLife.Net.
//!
//! ```text
//!  0        1          2         4                8
//!  +--------+----------+---------+----------------+------------
//!  | flags  | sequence | length  | long length    | payload ...      little-endian
//!  +--------+----------+---------+----------------+------------
//!    u8       u8         u16       u32, only where length is FF FF
//!    bits 7-6: 00 request, 01 one-way, 10 reply, 11 error reply; bits 5-0: kind of payload, 0 to 3
//! ```
//!
//! Problem: requests are matched by one byte. Approach: sequences 1 to 255 are the ids 1 to 255. Sequence 0, which
//! other programs use and this codec never chooses, is id 256, because id 0 names no request. The
//! [`Correlator`](crate::correlate::Correlator) never assigns a sequence that is still waiting.
//!
//! The sequence of a one-way message is the low byte of its id, and [`ONE_WAY_SEQUENCE`] is set in the id of a received
//! one: the id can be counted, and differs from all ids of requests. [`Message::flags`] holds the kind of payload; see
//! [`PayloadKind`].
//!
//! Rejected: the id's low byte for any id (an answer to id 257 would match the request with sequence 1).

use super::frame::{Framed, Head};
use super::spec::BuiltIn;
use super::{Codec, Decoded, Format, FrameLayout, RequestIds, check_unnamed, unsupported};
use crate::body::{ErrorBody, ErrorCode};
use crate::error::{DecodeError, EncodeError};
use crate::message::{Kind, Message};

/// The codec of SRMP frames. A delivery is a one-way message with the payload alone, without the room and the member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Srmp;

/// The kind of an SRMP frame's payload, according to the sender. Its bits are part of [`Message::flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PayloadKind(u8);

impl PayloadKind {
    /// Text.
    pub const STRING: Self = Self(0);
    /// Bytes; the kind of a message without flags.
    pub const PACKET: Self = Self(1);
    /// An object in the peers' binary format.
    pub const BINARY: Self = Self(2);
    /// JSON.
    pub const JSON: Self = Self(3);

    /// Returns the kind with this number, if there is one.
    #[must_use]
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            0..=KIND_LAST => Some(Self(number)),
            _ => None,
        }
    }

    /// Returns its number on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self.0
    }

    /// Returns the kind of payload in a message's flags.
    #[inline]
    #[must_use]
    pub const fn from_flags(flags: u8) -> Self {
        Self((flags >> FLAGS_SHIFT & KIND_LAST) ^ Self::PACKET.0)
    }

    /// Returns the flags of a message with such a payload. Packets have none, so that flags of 0 mean the default.
    #[inline]
    #[must_use]
    pub const fn to_flags(self) -> u8 {
        (self.0 ^ Self::PACKET.0) << FLAGS_SHIFT
    }
}

impl Srmp {
    #[inline(always)]
    pub(super) fn head(&self, message: &Message<'_>) -> Result<Head, EncodeError> {
        check_unnamed(message, NAME)?;
        let start = start_of(message, NAME)?;
        Ok(head_with(start, check_payload(message.payload.len())?))
    }
}

impl BuiltIn for Srmp {
    const FORMAT: Format = FORMAT;
}

impl Codec for Srmp {
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
        let Some(head) = input.first_chunk::<SHORT_HEADER_BYTES>() else {
            return decode_start(input);
        };
        let word = u32::from_le_bytes(*head);
        check_start(word as u8)?;
        let short_length = word >> 16;
        let framed = if short_length == LONG_MARK {
            match decode_long(input, frame_bytes_max)? {
                Some(framed) => framed,
                None => return Ok(Decoded::Incomplete { frame_bytes: 0 }),
            }
        } else {
            let payload_bytes = u64::from(short_length);
            Framed::cut(input, SHORT_HEADER_BYTES, payload_bytes, frame_bytes_max)?
        };
        Ok(framed.decoded(|payload| message_of(word, payload)))
    }

    #[inline(always)]
    fn layout(&self, frame: &[u8], message: &Message<'_>) -> Option<FrameLayout> {
        // The sequence of a delivery is not part of its id.
        let is_delivery = message.kind as u8 == Kind::Deliver as u8;
        if frame.len() != SHORT_HEADER_BYTES + message.payload.len() || is_delivery {
            return None;
        }
        let first_id = if message.kind as u8 == Kind::OneWay as u8 {
            message.id & !0xFF
        } else {
            ID_OF_SEQUENCE_0 - 0xFF
        };
        let layout = FrameLayout::new(SHORT_HEADER_BYTES..frame.len());
        Some(layout.with_id_byte(SEQUENCE_AT, first_id))
    }

    #[inline(always)]
    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.head(message)?.push_with(message.payload, out);
        Ok(())
    }

    /// An error is only its text, without a code. If the text is empty, the code's own text is sent.
    fn encode_error(
        &self,
        request: &Message<'_>,
        error: &ErrorBody<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let text = error.words();
        let answer = Message {
            kind: Kind::Error,
            flags: PayloadKind::STRING.to_flags(),
            payload: text.as_bytes(),
            ..*request
        };
        self.encode(&answer, out)
    }

    fn decode_error<'a>(&self, message: &Message<'a>) -> Result<ErrorBody<'a>, DecodeError> {
        let malformed = DecodeError::MalformedPayload { kind: Kind::Error };
        let text = str::from_utf8(message.payload).map_err(|_| malformed)?;
        let code = ErrorCode::UNKNOWN;
        Ok(ErrorBody { code, text })
    }
}

/// Decodes the beginning of a frame whose header is not complete.
#[cold]
fn decode_start(input: &[u8]) -> Result<Decoded<'_>, DecodeError> {
    if let Some(flags) = input.first() {
        check_start(*flags)?;
    }
    Ok(Decoded::Incomplete { frame_bytes: 0 })
}

/// Refuses flags that no frame starts with: six bits can name 64 kinds of payload, and only four exist. Nearly all text
/// and the records of TLS name others, so the wrong program gets an answer at once. Otherwise the decoder would wait
/// for as many bytes as the next two announce.
#[inline(always)]
fn check_start(flags: u8) -> Result<(), DecodeError> {
    if flags & KIND_BITS > KIND_LAST {
        return Err(DecodeError::MalformedFrame);
    }
    Ok(())
}

/// Cuts a frame with the 8-byte header out of `input`, if the header is complete.
#[cold]
fn decode_long(input: &[u8], frame_bytes_max: usize) -> Result<Option<Framed<'_>>, DecodeError> {
    let Some(head) = input.first_chunk::<LONG_HEADER_BYTES>() else {
        return Ok(None);
    };
    let payload_bytes = u64::from_le_bytes(*head) >> 32;
    let limit = frame_bytes_max.min(PAYLOAD_BYTES_MAX as usize + LONG_HEADER_BYTES);
    Framed::cut(input, LONG_HEADER_BYTES, payload_bytes, limit).map(Some)
}

/// Returns the message whose header starts with these four bytes.
#[inline(always)]
fn message_of(head: u32, payload: &[u8]) -> Message<'_> {
    message_with(KINDS[usize::from(head as u8 >> 6)], head, payload)
}

/// Returns the same message, for a known kind.
#[inline(always)]
fn message_with(kind: Kind, head: u32, payload: &[u8]) -> Message<'_> {
    let flags = head as u8;
    let sequence = u32::from((head >> 8) as u8);
    let id = if kind as u8 == Kind::OneWay as u8 {
        sequence | ONE_WAY_SEQUENCE
    } else if sequence == 0 {
        ID_OF_SEQUENCE_0
    } else {
        sequence
    };
    Message {
        kind,
        flags: PayloadKind(flags & KIND_LAST).to_flags(),
        channel: 0,
        id,
        name: "",
        payload,
    }
}

/// Returns the first two bytes of a message's header: flags and sequence.
#[inline(always)]
pub(super) fn start_of(message: &Message<'_>, codec: &'static str) -> Result<[u8; 2], EncodeError> {
    let payload_kind = PayloadKind::from_flags(message.flags).to_wire();
    let direction = match message.kind {
        // The flags of a delivery do not describe its payload, and its id is not a request's.
        Kind::Deliver => return Ok([ONE_WAY | PayloadKind::PACKET.to_wire(), 0]),
        Kind::OneWay => return Ok([ONE_WAY | payload_kind, message.id as u8]),
        Kind::Request => REQUEST,
        Kind::Reply => REPLY,
        Kind::Error => ERROR,
        kind => return Err(unsupported(codec, kind)),
    };
    if message.id == 0 || message.id > ID_OF_SEQUENCE_0 {
        return Err(EncodeError::IdOutOfRange {
            id: message.id,
            limit: ID_OF_SEQUENCE_0,
        });
    }
    Ok([direction | payload_kind, message.id as u8])
}

/// Returns the length for the header, if it fits.
#[inline(always)]
pub(super) fn check_payload(payload_bytes: usize) -> Result<u32, EncodeError> {
    match u32::try_from(payload_bytes) {
        Ok(bytes) if bytes <= PAYLOAD_BYTES_MAX => Ok(bytes),
        _ => Err(EncodeError::PayloadTooLarge {
            bytes: payload_bytes as u64,
            limit: u64::from(PAYLOAD_BYTES_MAX),
        }),
    }
}

/// Returns the short header, or the long one if the length requires it.
#[inline(always)]
pub(super) fn head_with(start: [u8; 2], payload_bytes: u32) -> Head {
    let short_length = payload_bytes.min(LONG_MARK);
    let word = u64::from(u16::from_le_bytes(start)) | u64::from(short_length) << 16;
    let header_bytes = if short_length == LONG_MARK {
        LONG_HEADER_BYTES
    } else {
        SHORT_HEADER_BYTES
    };
    Head::new(word | u64::from(payload_bytes) << 32, 0, header_bytes)
}

/// The bit in the id of a received one-way message. The low byte of such an id is the sender's sequence number.
pub const ONE_WAY_SEQUENCE: u32 = 0x200;

const FORMAT: Format = Format {
    ids: RequestIds::Bits8,
    repeats_names: false,
    ..Format::new("srmp")
};
const NAME: &str = FORMAT.name;
const KINDS: [Kind; 4] = [Kind::Request, Kind::OneWay, Kind::Reply, Kind::Error];
const REQUEST: u8 = 0;
const ONE_WAY: u8 = 0x40;
const REPLY: u8 = 0x80;
const ERROR: u8 = 0xC0;
/// The kind of payload in the flags.
const KIND_BITS: u8 = 0x3F;
/// The highest kind. All numbers below it are kinds, so it works as a mask for a checked kind.
const KIND_LAST: u8 = PayloadKind::JSON.0;
/// The shift that leaves the lowest two bits of a message's flags to the native vocabulary.
const FLAGS_SHIFT: u32 = 2;
const ID_OF_SEQUENCE_0: u32 = 256;
const SEQUENCE_AT: usize = 1;
const SHORT_HEADER_BYTES: usize = 4;
pub(super) const LONG_HEADER_BYTES: usize = 8;
/// The short length that announces the long length.
const LONG_MARK: u32 = 0xFFFF;
const PAYLOAD_BYTES_MAX: u32 = i32::MAX as u32;

#[cfg(test)]
mod tests;
