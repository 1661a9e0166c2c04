//! Codecs: the built-in ones, and everything that a custom codec needs.
//!
//! [`AnyCodec`](crate::AnyCodec) chooses a codec by its name for the builders of servers and clients. To write a codec,
//! implement [`Codec`] and pass it as [`AnyCodec::custom`](crate::AnyCodec::custom). The module
//! [`tidewire_proto::codec`] has the contract with a whole codec, and says when a lane passes the [`ConnectionState`].
//! [`contract`] checks a codec in tests:
//!
//! ```
//! use tidewire::codec::contract;
//! use tidewire::{AnyCodec, Kind, Message};
//!
//! let messages = [&b"some bytes"[..], b"more bytes"].map(|it| Message::new(Kind::OneWay, 0, it));
//! contract::check_every_cut(&AnyCodec::by_name("length-field")?, &messages)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that reads or writes control messages as bytes finds their bodies in [`tidewire_proto::body`].
//!
//! `examples/src/checksum.rs` in the repository is a codec of a hundred lines with its tests.

pub use tidewire_proto::body::ErrorBody;
pub use tidewire_proto::codec::contract;
pub use tidewire_proto::codec::{
    ChatMessage, Codec, ConnectionState, Decoded, Decoding, Format, FrameLayout, Framing,
    JsonFault, Opening, Presence, RequestIds, StreamFraming, Subscription, Text,
};
pub use tidewire_proto::error::{DecodeError, EncodeError};
pub use tidewire_proto::handshake::{FirstBytes, HandshakeError};
pub use tidewire_proto::message::FLAG_PRIVATE;
