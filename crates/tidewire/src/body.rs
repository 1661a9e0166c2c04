//! Bodies of the native protocol's control messages, for programs that read or write them as bytes.
//!
//! A client of a room sees [`Kind::Presence`](crate::Kind::Presence) and [`Kind::Gap`](crate::Kind::Gap) as events;
//! their payloads are a [`PresenceBody`] and a [`GapBody`]. A custom [codec](crate::codec) translates an [`ErrorBody`].
//!
//! ```
//! use tidewire::body::PresenceBody;
//! use tidewire::{MemberId, PresenceEvent};
//!
//! let mut payload = Vec::new();
//! let joined = PresenceBody { event: PresenceEvent::Joined, member: MemberId(7), name: "ada" };
//! joined.encode(&mut payload)?;
//! assert_eq!(PresenceBody::decode(&payload)?, joined);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use tidewire_proto::body::{
    ErrorBody, GapBody, GoAwayBody, JoinBody, JoinedBody, NameError, PresenceBody, Recovery,
    RecoveryBody, Roster, RosterEntries, SubscribeBody, displayed_name, name_skeleton,
    validate_name,
};
