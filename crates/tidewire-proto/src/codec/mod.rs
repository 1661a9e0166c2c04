//! Codecs: bytes ⇄ frames.
//!
//! # The contract of a codec
//!
//! - **Decoding is pure**: the same input gives the same answer, whatever was decoded before. A codec
//!   keeps its configuration but no state of a connection, so one instance serves a whole server.
//! - `decode` looks at the *front* of `input` and consumes at most one frame. It never reads past
//!   `input`, never panics, and never asks for more than `frame_bytes_max` allows: a frame that would
//!   be longer is [`DecodeError::FrameTooLarge`] as soon as its header says so.
//! - Any way of cutting a byte stream into pieces decodes to the same frames.
//! - `encode` appends one whole frame to `out`, or leaves `out` as it was and returns an error.
//! - Nothing here blocks, allocates (beyond growing `out`) or knows a socket.

mod lines;
mod tw1;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

pub use lines::Lines;
pub use tw1::{ID_HEADER_BYTES, ONE_WAY_HEADER_BYTES, Tw1};

use crate::error::{DecodeError, EncodeError};
use crate::message::{FLAG_PRIVATE, Kind, MemberId, Message, PresenceEvent};

/// What `decode` found at the front of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// No whole frame yet. `frame_bytes` is the frame's whole length if the header already says it, else 0.
    Incomplete {
        /// Whole length of the unfinished frame, or 0 if it is not known yet.
        frame_bytes: usize,
    },
    /// One frame.
    Frame {
        /// The frame, borrowing the input.
        message: Message<'a>,
        /// How many bytes of the input it took.
        consumed: usize,
    },
}

/// Something said in a room, ready to be framed for its receivers.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// Alias of the room.
    pub channel: u16,
    /// Who said it.
    pub member: MemberId,
    /// Their name, for codecs that have no member numbers.
    pub name: &'a str,
    /// Whether only one receiver gets it.
    pub private: bool,
    /// What was said.
    pub payload: &'a [u8],
}

/// A member's coming, staying or going, ready to be framed.
#[derive(Clone, Copy, Debug)]
pub struct Presence<'a> {
    /// Alias of the room.
    pub channel: u16,
    /// Whose.
    pub member: MemberId,
    /// Their name.
    pub name: &'a str,
    /// What happened.
    pub event: PresenceEvent,
}

/// A way to frame messages. See the module documentation for the contract.
pub trait Codec: Send + Sync + 'static {
    /// The name used in flags, logs and reports.
    fn name(&self) -> &'static str;

    /// Whether a connection starts with `Hello` and `Welcome` and answers `Ping`.
    fn has_handshake(&self) -> bool;

    /// Whether requests and replies carry ids. Without them, replies match requests first in, first out, and
    /// both travel as one-way messages.
    fn has_ids(&self) -> bool {
        self.has_handshake()
    }

    /// Decodes the frame at the front of `input`.
    ///
    /// # Errors
    /// The bytes can never become a frame; the connection cannot be used further.
    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError>;

    /// Appends `message` as one frame to `out`.
    ///
    /// # Errors
    /// This codec cannot express the message; `out` is unchanged.
    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// Appends the frame by which a room's member hears `said`.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    fn encode_said(&self, said: &Said<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let message = Message {
            kind: Kind::Deliver,
            flags: if said.private { FLAG_PRIVATE } else { 0 },
            channel: said.channel,
            id: said.member.0,
            payload: said.payload,
        };
        self.encode(&message, out)
    }

    /// Appends the frame by which a room's member learns of another's presence.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    fn encode_presence(
        &self,
        presence: &Presence<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError>;

    /// Appends the notice that `lost` messages of `channel` were dropped before the next one.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    fn encode_gap(&self, channel: u16, lost: u64, out: &mut Vec<u8>) -> Result<(), EncodeError>;
}

/// A codec chosen at run time. The known ones are spelled out so that the decode loop is compiled for each.
#[derive(Clone)]
#[non_exhaustive]
pub enum AnyCodec {
    /// The native protocol.
    Tw1(Tw1),
    /// LF-terminated UTF-8 lines.
    Lines(Lines),
    /// A codec of the user's own.
    Custom(Arc<dyn Codec>),
}

impl AnyCodec {
    /// Names `by_name` knows, in the order they should be offered.
    pub const NAMES: [&'static str; 2] = ["tw1", "lines"];

    /// The codec with this name, as used in flags; see [`AnyCodec::NAMES`].
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "tw1" => Some(Self::Tw1(Tw1)),
            "lines" => Some(Self::Lines(Lines)),
            _ => None,
        }
    }
}

impl Codec for AnyCodec {
    fn name(&self) -> &'static str {
        match self {
            Self::Tw1(codec) => codec.name(),
            Self::Lines(codec) => codec.name(),
            Self::Custom(codec) => codec.name(),
        }
    }

    fn has_handshake(&self) -> bool {
        match self {
            Self::Tw1(codec) => codec.has_handshake(),
            Self::Lines(codec) => codec.has_handshake(),
            Self::Custom(codec) => codec.has_handshake(),
        }
    }

    #[inline]
    fn has_ids(&self) -> bool {
        match self {
            Self::Tw1(codec) => codec.has_ids(),
            Self::Lines(codec) => codec.has_ids(),
            Self::Custom(codec) => codec.has_ids(),
        }
    }

    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        match self {
            Self::Tw1(codec) => codec.decode(input, frame_bytes_max),
            Self::Lines(codec) => codec.decode(input, frame_bytes_max),
            Self::Custom(codec) => codec.decode(input, frame_bytes_max),
        }
    }

    #[inline]
    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Tw1(codec) => codec.encode(message, out),
            Self::Lines(codec) => codec.encode(message, out),
            Self::Custom(codec) => codec.encode(message, out),
        }
    }

    fn encode_said(&self, said: &Said<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Tw1(codec) => codec.encode_said(said, out),
            Self::Lines(codec) => codec.encode_said(said, out),
            Self::Custom(codec) => codec.encode_said(said, out),
        }
    }

    fn encode_presence(
        &self,
        presence: &Presence<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        match self {
            Self::Tw1(codec) => codec.encode_presence(presence, out),
            Self::Lines(codec) => codec.encode_presence(presence, out),
            Self::Custom(codec) => codec.encode_presence(presence, out),
        }
    }

    fn encode_gap(&self, channel: u16, lost: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Tw1(codec) => codec.encode_gap(channel, lost, out),
            Self::Lines(codec) => codec.encode_gap(channel, lost, out),
            Self::Custom(codec) => codec.encode_gap(channel, lost, out),
        }
    }
}

impl fmt::Debug for AnyCodec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("AnyCodec")
            .field(&self.name())
            .finish()
    }
}

impl FromStr for AnyCodec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::by_name(name).ok_or(UnknownCodec)
    }
}

/// The name given is not that of a built-in codec; choose one of [`AnyCodec::NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("unknown codec; choose one of: {}", AnyCodec::NAMES.join(", "))]
pub struct UnknownCodec;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_finds_the_codec_of_that_name() {
        for name in AnyCodec::NAMES {
            let codec = AnyCodec::by_name(name).unwrap();
            assert_eq!(codec.name(), name);
            assert_eq!(format!("{codec:?}"), format!("AnyCodec({name:?})"));
        }
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let error = "TW1".parse::<AnyCodec>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown codec; choose one of: tw1, lines"
        );
    }

    #[test]
    fn a_custom_codec_answers_for_itself() {
        let custom = AnyCodec::Custom(Arc::new(Lines));
        let said = Said {
            channel: 1,
            member: MemberId(2),
            name: "ada",
            private: false,
            payload: b"hi",
        };
        let mut out = Vec::new();
        custom.encode_said(&said, &mut out).unwrap();
        // Not the default of the trait, which would be a bare "hi".
        assert_eq!(out, b"[ada]: hi\n");
        assert!(!custom.has_handshake());
    }
}
