//! Messages and events of rooms and topics, as a codec gets them to frame.

use crate::message::{MemberId, PresenceEvent};

/// Something said in a room, ready to be framed for its receivers.
#[derive(Clone, Copy, Debug)]
pub struct ChatMessage<'a> {
    /// Alias of the room.
    pub channel: u16,
    /// The member who said it; 0 for the room itself.
    pub member: MemberId,
    /// Their name, for codecs that have no member numbers; empty for the room itself.
    pub name: &'a str,
    /// Whether only one receiver gets it.
    pub private: bool,
    /// The bytes that the member said.
    pub payload: &'a [u8],
}

/// A member's coming, staying or going, ready to be framed.
#[derive(Clone, Copy, Debug)]
pub struct Presence<'a> {
    /// Alias of the room.
    pub channel: u16,
    /// The member this event is about.
    pub member: MemberId,
    /// Their name.
    pub name: &'a str,
    /// The kind of event: joined, here or left.
    pub event: PresenceEvent,
}

/// The subscription, or the place in a room, that a delivery goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subscription {
    /// The id of the message that asked for it, by which the subscriber knows it. 0 if none asked, or the codec has no ids.
    pub number: u32,
    /// Alias of the room or topic pattern.
    pub channel: u16,
}
