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

use std::sync::Arc;

pub use lines::Lines;
pub use tw1::Tw1;

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
