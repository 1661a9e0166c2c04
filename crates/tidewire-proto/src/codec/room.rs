//! Messages and events of rooms and topics, in the form that a codec frames.

use crate::message::{MemberId, PresenceEvent};

/// A chat message of a room, ready to be framed for its receivers.
#[derive(Clone, Copy, Debug)]
pub struct ChatMessage<'a> {
    /// Alias of the room.
    pub channel: u16,
    /// The author; 0 for the room itself.
    pub member: MemberId,
    /// The author's name, for codecs that have no member numbers; empty for the room itself.
    pub name: &'a str,
    /// Whether only one receiver gets it.
    pub private: bool,
    /// The bytes of the message.
    pub payload: &'a [u8],
}

/// The presence of a member, ready to be framed.
#[derive(Clone, Copy, Debug)]
pub struct Presence<'a> {
    /// Alias of the room.
    pub channel: u16,
    /// The member this event is about.
    pub member: MemberId,
    /// The member's name.
    pub name: &'a str,
    /// The kind of event: joined, here or left.
    pub event: PresenceEvent,
}

/// The subscription, or the membership of a room, that a delivery goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subscription {
    /// The id of the subscriber's request, which identifies the subscription. 0 if there was none, or the codec has no
    /// ids.
    pub number: u32,
    /// Alias of the room or topic pattern.
    pub channel: u16,
}
