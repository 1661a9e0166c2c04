//! Codecs: the built-in ones, and everything that a custom codec needs.
//!
//! [`AnyCodec`](crate::AnyCodec) chooses a codec for the builders of servers and clients. To write a codec, implement
//! [`Codec`] and pass it as [`AnyCodec::custom`](crate::AnyCodec::custom). The module [`tidewire_proto::codec`] has the
//! contract with a whole codec, and says when a lane passes the [`ConnectionState`]. [`contract`] checks a codec in
//! tests:
//!
//! ```
//! use tidewire::codec::{LengthField, contract};
//! use tidewire::{Kind, Message};
//!
//! let messages = [&b"some bytes"[..], b"more bytes"].map(|it| Message::new(Kind::OneWay, 0, it));
//! contract::check_every_cut(&LengthField::default(), &messages)?;
//! # Ok::<(), contract::BrokenContract>(())
//! ```
//!
//! `examples/src/checksum.rs` in the repository is a codec of a hundred lines with its tests.

pub use tidewire_proto::codec::contract;
pub use tidewire_proto::codec::{
    Boundary, ChatMessage, Codec, ConnectionState, Decoded, Decoding, Delimited, FieldName, Format,
    FrameLayout, Framing, Json, JsonFault, JsonField, JsonKind, LengthField, LengthSize, Lines,
    MethodCase, Opening, PayloadKind, Presence, Raw, RequestIds, RoomReply, RpcPayload, Srmp,
    SrmpRpc, StreamFraming, Subscription, Text, Tw1, Uvrpc,
};
pub use tidewire_proto::error::{DecodeError, EncodeError};
pub use tidewire_proto::handshake::{FirstBytes, HandshakeError};
pub use tidewire_proto::message::FLAG_PRIVATE;
