//! The bodies of the native protocol's control messages, for programs that read or write them as bytes.
//!
//! A client of a room sees [`Kind::Presence`](crate::Kind::Presence) and [`Kind::Gap`](crate::Kind::Gap) as events; their
//! payloads are a [`PresenceBody`] and a [`GapBody`]. A [codec](crate::codec) of your own translates an [`ErrorBody`].
//!
//! ```
//! use tidewire::PresenceEvent;
//! use tidewire::body::PresenceBody;
//!
//! let mut payload = Vec::new();
//! PresenceBody { event: PresenceEvent::Joined, name: "ada" }.encode(&mut payload);
//! assert_eq!(PresenceBody::decode(&payload)?.name, "ada");
//! # Ok::<(), tidewire::codec::DecodeError>(())
//! ```

pub use tidewire_proto::body::{
    ErrorBody, GapBody, GoAwayBody, JoinBody, JoinedBody, NameError, PresenceBody, SubscribeBody,
    displayed_name, validate_name,
};
