//! The decoded unit of work: the message that a codec decodes and a service receives.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// The purpose of a frame. The numbers are those of the native protocol (`docs/protocol.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// First frame of a client: magic, version, limits, credentials.
    Hello = 1,
    /// The server's answer to `Hello`.
    Welcome = 2,
    /// A call that expects a `Reply` or an `Error` with the same id.
    Request = 3,
    /// The answer to a `Request`, `Join` or `Leave`.
    Reply = 4,
    /// A typed refusal of the request with the same id.
    Error = 5,
    /// The caller no longer wants the reply to this id.
    Cancel = 6,
    /// A message without an answer.
    OneWay = 7,
    /// Start receiving the topics of a pattern.
    Subscribe = 8,
    /// Stop receiving the topics of a pattern.
    Unsubscribe = 9,
    /// Offer a message to a topic.
    Publish = 10,
    /// A message of a room or topic on its way to a receiver. The id names its author.
    Deliver = 11,
    /// Enter a room under a name.
    Join = 12,
    /// Leave a room.
    Leave = 13,
    /// Send a message to all other members of a room.
    Say = 14,
    /// A member is in, came into, or left a room.
    Presence = 15,
    /// Messages were dropped here. The payload has their number.
    Gap = 16,
    /// A check whether the peer is alive.
    Ping = 17,
    /// The answer to a `Ping`.
    Pong = 18,
    /// The sender of this frame will close. The payload has the reason.
    GoAway = 19,
    /// The next message of a channel follows the position in the payload.
    Position = 20,
    /// The server has put the client into a room or subscription, or taken it out. The payload says which.
    Placement = 21,
}

impl Kind {
    /// Every kind, in the order of its number.
    pub const ALL: [Self; 21] = [
        Self::Hello,
        Self::Welcome,
        Self::Request,
        Self::Reply,
        Self::Error,
        Self::Cancel,
        Self::OneWay,
        Self::Subscribe,
        Self::Unsubscribe,
        Self::Publish,
        Self::Deliver,
        Self::Join,
        Self::Leave,
        Self::Say,
        Self::Presence,
        Self::Gap,
        Self::Ping,
        Self::Pong,
        Self::GoAway,
        Self::Position,
        Self::Placement,
    ];

    /// Returns the kind with this number on the wire, if there is one.
    #[inline]
    #[must_use]
    pub const fn from_wire(number: u8) -> Option<Self> {
        if number >= 1 && number as usize <= Self::ALL.len() {
            Some(Self::ALL[number as usize - 1])
        } else {
            None
        }
    }

    /// Whether messages of this kind belong to a method or a topic, which may be given by name.
    #[inline]
    #[must_use]
    pub const fn has_name(self) -> bool {
        matches!(
            self,
            Self::Request | Self::OneWay | Self::Publish | Self::Deliver
        )
    }

    /// Whether frames of this kind carry a u32 id after the channel.
    #[inline]
    #[must_use]
    pub const fn has_id(self) -> bool {
        matches!(
            self,
            Self::Request
                | Self::Reply
                | Self::Error
                | Self::Cancel
                | Self::Subscribe
                | Self::Unsubscribe
                | Self::Deliver
                | Self::Join
                | Self::Leave
        )
    }
}

/// A flag on a `Deliver` frame that only one member received.
pub const FLAG_PRIVATE: u8 = 0b0000_0001;

/// A flag on a frame with a name at the start of its payload: of a method on a `Request` or `OneWay`, of a topic on a
/// `Publish` or `Deliver`. Messages never have the flag, because they have the name itself.
pub const FLAG_NAMED: u8 = 0b0000_0010;

/// A flag on a `GoAway` whose payload has the address of another server; see [`MovedBody`](crate::body::MovedBody).
pub const FLAG_MOVED: u8 = 0b0000_0001;
/// A flag on a frame that carries a [`Position`] or an offset: see [`Since`](crate::body::Since),
/// [`RecoveryBody`](crate::body::RecoveryBody) and [`split_delivery`](crate::body::split_delivery).
pub const FLAG_POSITION: u8 = 0b0000_0100;

/// One decoded frame. The payload borrows the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The purpose of the frame.
    pub kind: Kind,
    /// Bits whose meaning depends on the kind, such as [`FLAG_PRIVATE`].
    pub flags: u8,
    /// Alias of a method, topic or room; 0 if the kind has none.
    pub channel: u16,
    /// Request id, or the author of a delivery; 0 if the kind has none. The answer to a request with id 0 is ignored.
    pub id: u32,
    /// Name of the method that a request or a one-way message is for, or the topic of a publication or delivery. Empty
    /// if the channel identifies it, or if the codec has no names. A reply has a name only if the codec repeats it.
    pub name: &'a str,
    /// The rest of the frame.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// A message without id and flags.
    #[inline]
    #[must_use]
    pub const fn new(kind: Kind, channel: u16, payload: &'a [u8]) -> Self {
        Self {
            kind,
            flags: 0,
            channel,
            id: 0,
            name: "",
            payload,
        }
    }

    /// A one-way message without a name.
    #[inline]
    #[must_use]
    pub const fn one_way(payload: &'a [u8]) -> Self {
        Self::new(Kind::OneWay, 0, payload)
    }

    /// A message with an id.
    #[inline]
    #[must_use]
    pub const fn with_id(kind: Kind, channel: u16, id: u32, payload: &'a [u8]) -> Self {
        Self {
            kind,
            flags: 0,
            channel,
            id,
            name: "",
            payload,
        }
    }

    /// The room of the channel, for kinds of messages about a room.
    #[inline]
    #[must_use]
    pub const fn room(&self) -> RoomId {
        RoomId(self.channel)
    }

    /// The same message for the method, or of the topic, with this name.
    #[inline]
    #[must_use]
    pub const fn with_name(self, name: &'a str) -> Self {
        Self { name, ..self }
    }
}

impl<'a> From<&Self> for Message<'a> {
    #[inline]
    fn from(message: &Self) -> Self {
        *message
    }
}

/// A payload alone is a one-way message.
impl<'a> From<&'a [u8]> for Message<'a> {
    #[inline]
    fn from(payload: &'a [u8]) -> Self {
        Self::one_way(payload)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Message<'a> {
    #[inline]
    fn from(payload: &'a [u8; N]) -> Self {
        Self::one_way(payload)
    }
}

impl<'a> From<&'a Vec<u8>> for Message<'a> {
    #[inline]
    fn from(payload: &'a Vec<u8>) -> Self {
        Self::one_way(payload)
    }
}

/// The number of a room member, unique in a server while the member is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u32);

/// The number of a room in one server, or in one connection of a client. Frames of the room have it as their channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoomId(pub u16);

/// The number of a subscription's pattern in one server, or in one connection of a client. Its deliveries have it as
/// their channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId(pub u16);

/// The position of a message in the history of its room or topic.
///
/// Offsets count from 1 without holes. The epoch changes when a history has lost messages that it should have kept, for
/// example because the server restarted. Offsets of different epochs cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// The epoch of the history.
    pub epoch: u64,
    /// The number of the message in its epoch; 0 is before the first message.
    pub offset: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.epoch, self.offset)
    }
}

impl FromStr for Position {
    type Err = ParseIntError;

    /// Reads an epoch and an offset with a colon between them, as [`Display`](fmt::Display) writes them.
    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let (epoch, offset) = text.split_once(':').unwrap_or((text, ""));
        Ok(Self {
            epoch: epoch.parse()?,
            offset: offset.parse()?,
        })
    }
}

/// The information of a presence frame about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PresenceEvent {
    /// Was in the room before the receiver came.
    Here = 0,
    /// Came into the room.
    Joined = 1,
    /// Left the room.
    Left = 2,
}
