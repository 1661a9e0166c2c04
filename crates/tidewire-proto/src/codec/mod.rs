//! Codecs: bytes ⇄ frames.
//!
//! # The contract of a codec
//!
//! - **Decoding is pure**: the same input gives the same answer. A codec has a configuration but no state of a
//!   connection, so one instance serves a whole server. A [`ConnectionState`] holds its state of a connection; see
//!   [below](#state-of-a-connection).
//! - `decode` looks at the *front* of `input` and consumes at most one frame. It never reads past `input`, never
//!   panics, and never requires more than `frame_bytes_max`: a longer frame is [`DecodeError::FrameTooLarge`] as soon
//!   as its header shows the length.
//! - Any cut of a byte stream into pieces decodes to the same frames, except with [`Raw`], which has no frames.
//! - `encode` appends one whole frame to `out`, or leaves `out` unchanged and returns an error.
//! - No method blocks, allocates (beyond growing `out`) or knows a socket.
//!
//! [`contract`] checks this contract for any codec, as far as a test can.
//!
//! # A custom codec
//!
//! Implement [`Codec`] and pass it as [`AnyCodec::custom`] to the builders of servers and clients. Three methods are
//! required: `format`, `decode` and `encode`. The [`Format`] says what the format has, such as ids of requests, pings
//! or names. All other properties are off. The other methods have defaults for a format without more. `encode` decides
//! by [`Message::kind`]: it writes the kinds that its peers understand, and refuses other kinds with
//! [`EncodeError::Unsupported`]. Without ids, `encode` gets the requests of a client as [`Kind::OneWay`], and the
//! answers of a server too.
//!
//! A lane calls such a codec through a pointer, once for every frame. The known codecs have their own decode loops.
//! [`Codec::layout`] avoids most of these calls: when messages differ only in id and payload, the lane reads and writes
//! their frames by itself. A codec without names should also set [`Format::repeats_names`] to false; otherwise `encode`
//! writes all of its replies.
//!
//! ```
//! use tidewire_proto::codec::{Codec, Decoded, Format, FrameLayout, contract};
//! use tidewire_proto::error::{DecodeError, EncodeError};
//! use tidewire_proto::message::{Kind, Message};
//!
//! /// A length of two bytes, then the payload.
//! struct Short;
//!
//! impl Codec for Short {
//!     fn format(&self) -> &'static Format {
//!         const FORMAT: Format = Format { repeats_names: false, ..Format::new("short") };
//!         &FORMAT
//!     }
//!
//!     fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
//!         let Some((length, rest)) = input.split_first_chunk() else {
//!             return Ok(Decoded::Incomplete { frame_bytes: 0 });
//!         };
//!         let payload_bytes = usize::from(u16::from_le_bytes(*length));
//!         let consumed = payload_bytes + 2;
//!         if consumed > limit {
//!             let (bytes, limit) = (consumed as u64, limit as u64);
//!             return Err(DecodeError::FrameTooLarge { bytes, limit });
//!         }
//!         let message = |payload| Message::new(Kind::OneWay, 0, payload);
//!         Ok(match rest.get(..payload_bytes) {
//!             Some(payload) => Decoded::Frame { message: message(payload), consumed },
//!             None => Decoded::Incomplete { frame_bytes: consumed },
//!         })
//!     }
//!
//!     fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
//!         let length = u16::try_from(message.payload.len()).map_err(|_| {
//!             let (bytes, limit) = (message.payload.len() as u64, u64::from(u16::MAX));
//!             EncodeError::PayloadTooLarge { bytes, limit }
//!         })?;
//!         out.extend_from_slice(&length.to_le_bytes());
//!         out.extend_from_slice(message.payload);
//!         Ok(())
//!     }
//!
//!     fn layout(&self, frame: &[u8], _: &Message<'_>) -> Option<FrameLayout> {
//!         Some(FrameLayout::new(2..frame.len()))
//!     }
//! }
//!
//! let messages = [&b"some bytes"[..], b"more bytes"].map(|it| Message::new(Kind::OneWay, 0, it));
//! contract::check_every_cut(&Short, &messages)?;
//! # Ok::<(), contract::BrokenContract>(())
//! ```
//!
//! # State of a connection
//!
//! [`Decoding::WithState`] declares that a codec has sequence numbers, header tables or an agreed version. A lane then
//! keeps a [`ConnectionState`] for each session.
//!
//! | call | state | why |
//! |---|---|---|
//! | [`Codec::decode_next`] | yes | each frame that a session sends, once and in order |
//! | [`Codec::adapt_frame`] | yes | each frame sent over a stream, once and in order |
//! | [`Codec::encode`] and other encoders | no | a room's message is encoded once for all members, by any thread |
//! | [`Codec::delivery_header`] | no | it is called again after a write that took nothing |
//! | [`Codec::layout`] | no | a lane reads and writes frames of a template without the codec |
//! | [`Codec::decode`] | no | finds the end of a frame, or looks at the first one of an address |
//!
//! `encode` therefore makes a frame as if it were the first of a connection, and `adapt_frame` turns it into the frame
//! for this connection. `decode` reads the output of `encode`. The end of a frame does not depend on the state. A peer
//! can make the state's memory grow, so the codec bounds it. Frames over UDP are decoded with the state, and sent as
//! they were encoded: both sides cannot agree on a state when datagrams are lost.
//!
//! # Limits of foreign formats
//!
//! The vocabulary is that of the native protocol. A foreign codec maps the part that its peers understand, and refuses
//! the rest with [`EncodeError::Unsupported`], which the caller counts:
//!
//! - A delivery to a room's member is a one-way message with the payload alone. Presence and gap notices are
//!   unsupported, so only the server's counters show a gap.
//! - A codec without names refuses a request or one-way message for a named method with
//!   [`EncodeError::NameUnsupported`], because the message would call another method without its name.
//! - Without ids ([`RequestIds::None`]) a request, its reply and a one-way message look the same, and a refusal is
//!   impossible. Every request must be answered in its turn, or the connection closed; otherwise each later answer
//!   would match the wrong request.

mod any;
pub mod contract;
mod delimited;
mod format;
mod frame;
mod inline;
mod json;
mod length_field;
mod lines;
mod raw;
mod room;
mod scan;
mod spec;
mod srmp;
mod srmp_rpc;
mod state;
mod template;
mod tw1;
pub mod uvrpc;

pub use crate::json::{JsonFault, JsonField, JsonKind};
pub use any::{AnyCodec, KnownCodec};
pub use delimited::Delimited;
pub use format::{Decoding, Format, Framing, Opening, RequestIds, StreamFraming, Text};
pub use frame::Decoded;
pub use json::Json;
pub use length_field::{LengthField, LengthSize};
pub use lines::Lines;
pub use raw::Raw;
pub use room::{ChatMessage, Presence, Subscription};
pub use srmp::{ONE_WAY_SEQUENCE, PayloadKind, Srmp};
pub use srmp_rpc::{RpcPayload, SrmpRpc};
pub use state::ConnectionState;
pub use template::{FrameLayout, FrameTemplate, TemplateForm};
pub use tw1::{ID_HEADER_BYTES, ONE_WAY_HEADER_BYTES, Tw1};
pub use uvrpc::Uvrpc;

use crate::body::ErrorBody;
use crate::error::{DecodeError, EncodeError};
use crate::message::{FLAG_PRIVATE, Kind, Message};

/// A way to frame messages. See the module documentation for the contract.
pub trait Codec: Send + Sync + 'static {
    /// The properties of the format. The answer never changes.
    fn format(&self) -> &'static Format;

    /// Returns the same codec with the framing that a transport needs, or `None` if the codec has only one.
    fn with_framing(&self, framing: Framing) -> Option<AnyCodec> {
        let _ = framing;
        None
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

    /// Decodes the next frame of a connection. The first `searched` bytes of `input` alone were [`Decoded::Incomplete`]
    /// before. A codec that searches for the end of a frame should skip these bytes: otherwise a frame in small pieces
    /// costs time in the square of its length. Without a state the answer is that of [`Codec::decode`]. An answer that
    /// is no frame leaves the state unchanged.
    ///
    /// # Errors
    /// As [`Codec::decode`].
    #[inline(always)]
    fn decode_next<'a>(
        &self,
        state: &mut ConnectionState,
        input: &'a [u8],
        searched: usize,
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        let _ = (state, searched);
        self.decode(input, frame_bytes_max)
    }

    /// Makes the message of a decoded frame. The message may borrow `scratch`, and its former content has no effect. So
    /// a codec can undo escapes and encodings, which [`Codec::decode`] cannot, because it borrows only the input.
    ///
    /// # Errors
    /// As [`Codec::decode`].
    fn translate<'a>(
        &self,
        frame: Message<'a>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Message<'a>, DecodeError> {
        let _ = scratch;
        Ok(frame)
    }

    /// Appends `frame`, which was encoded for any connection, in the form for this connection. A lane calls it if
    /// the codec keeps a state: once for each frame, in the order in which they leave.
    fn adapt_frame(&self, state: &mut ConnectionState, frame: &[u8], out: &mut Vec<u8>) {
        let _ = state;
        out.extend_from_slice(frame);
    }

    /// Returns the positions of id and payload in `frame`. Either [`Codec::decode`] decodes it to `message`, or
    /// [`Codec::encode`] encoded `message` to it. Lanes make a [`FrameTemplate`] of the layout, and read and write such
    /// frames without the codec.
    ///
    /// The answer is a promise. For a decoded frame: a frame that differs only in id, payload and ignored bytes decodes
    /// to the same message except for id and payload. For an encoded frame: a message that differs only in id and
    /// payload, with a payload of the same length, gives the same frame except for id and payload, and is never
    /// refused. A codec that cannot promise this returns `None`, for example because it searches payloads for a
    /// delimiter. [`contract`] checks the promise. With a codec that breaks the promise, a lane receives and sends
    /// wrong messages, and nothing worse.
    #[inline(always)]
    fn layout(&self, frame: &[u8], message: &Message<'_>) -> Option<FrameLayout> {
        let _ = (frame, message);
        None
    }

    /// Appends `message` as one frame to `out`.
    ///
    /// # Errors
    /// This codec cannot express the message; `out` is unchanged.
    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// Appends a [`Kind::Deliver`] with the message's offset in its history; see
    /// [`split_delivery`](crate::body::split_delivery). It is called only if the format has
    /// [positions](Format::has_positions).
    ///
    /// # Errors
    /// As [`Codec::encode`].
    fn encode_delivery_at(
        &self,
        offset: u64,
        message: &Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let _ = offset;
        self.encode(message, out)
    }

    /// Appends the frame by which a room's member receives a chat message.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    fn encode_chat_message(
        &self,
        chat: &ChatMessage<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let message = Message {
            kind: Kind::Deliver,
            flags: if chat.private { FLAG_PRIVATE } else { 0 },
            channel: chat.channel,
            id: chat.member.0,
            name: "",
            payload: chat.payload,
        };
        self.encode(&message, out)
    }

    /// Appends the frame about another member's presence. A codec without such frames keeps the default.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    fn encode_presence(
        &self,
        presence: &Presence<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let _ = (presence, out);
        Err(unsupported(self.format().name, Kind::Presence))
    }

    /// Appends the notice that `lost` messages of `channel` were dropped before the next one. A codec without such
    /// frames keeps the default.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    fn encode_gap(&self, channel: u16, lost: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let _ = (channel, lost, out);
        Err(unsupported(self.format().name, Kind::Gap))
    }

    /// Appends the reply to a request about a room. The payload of the reply to a [`Kind::Join`] is a
    /// [`JoinedBody`](crate::body::JoinedBody). If the reply has [`FLAG_POSITION`](crate::message::FLAG_POSITION), a
    /// [`RecoveryBody`](crate::body::RecoveryBody) follows. The payload of any other reply is the
    /// [`Roster`](crate::body::Roster) of the room.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    fn encode_room_reply(
        &self,
        request: Kind,
        reply: &Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let _ = request;
        self.encode(reply, out)
    }

    /// Appends the header in front of `shared` for this subscriber, for example the subscription's own number. A
    /// subscriber receives header and shared bytes as one frame.
    ///
    /// The shared bytes are encoded once for all members of a room or subscribers of a pattern and kept in its log:
    /// [`Codec::encode_chat_message`], [`Codec::encode_presence`], and [`Codec::encode`] of a [`Kind::Deliver`]. Gap
    /// notices and the roster of a room get a header, too. A private message gets no header, because it is encoded for
    /// one member.
    ///
    /// It is called again if the subscriber took nothing, so the same arguments must give the same bytes.
    fn delivery_header(&self, subscription: Subscription, shared: &[u8], out: &mut Vec<u8>) {
        let _ = (subscription, shared, out);
    }

    /// Returns the topic of a delivery in a log, which is a [`Kind::Deliver`] without its
    /// [header](Codec::delivery_header). Empty if it contains none. A codec with names and headers should find it
    /// there, so that [`Policy::ConflateByTopic`](crate::room::Policy::ConflateByTopic) works.
    fn delivery_topic<'a>(&self, shared: &'a [u8]) -> &'a str {
        match self.decode(shared, usize::MAX) {
            Ok(Decoded::Frame { message, .. }) if message.kind == Kind::Deliver => message.name,
            _ => "",
        }
    }

    /// Appends the frame that refuses `request`. The kind and the payload of `request` do not matter.
    ///
    /// [`Codec::encode`] sends the payload of a [`Kind::Error`] unchanged. Foreign codecs have layouts of their own for
    /// the content of an [`ErrorBody`]; this method uses the codec's layout.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    fn encode_error(
        &self,
        request: &Message<'_>,
        error: &ErrorBody<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        error.with_bytes(|payload| {
            let answer = Message::with_id(Kind::Error, request.channel, request.id, payload);
            self.encode(&answer, out)
        })
    }

    /// Reads a received message of [`Kind::Error`] in the codec's layout.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    fn decode_error<'a>(&self, message: &Message<'a>) -> Result<ErrorBody<'a>, DecodeError> {
        ErrorBody::decode(message.payload)
    }

    /// Returns the reason of a received message of [`Kind::Error`] as a number of the codec's own, which can be more
    /// exact than an [`ErrorCode`](crate::body::ErrorCode). 0 if it has none.
    fn error_number(&self, message: &Message<'_>) -> i32 {
        self.decode_error(message)
            .map_or(0, |body| i32::from(body.code.to_wire()))
    }
}

/// Whether a codec that sends only payloads sends a message of this kind.
#[inline]
const fn is_bare(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::OneWay | Kind::Request | Kind::Reply | Kind::Deliver
    )
}

/// Refuses a message for a named method or topic. Without the name it would call another method, or a receiver would
/// not know the topic of a delivery.
#[inline]
fn check_unnamed(message: &Message<'_>, codec: &'static str) -> Result<(), EncodeError> {
    if message.name.is_empty() || !message.kind.has_name() {
        return Ok(());
    }
    Err(EncodeError::NameUnsupported { codec })
}

const fn unsupported(codec: &'static str, kind: Kind) -> EncodeError {
    EncodeError::Unsupported { codec, kind }
}
