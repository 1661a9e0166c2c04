//! The words of the format: kinds of objects, and their fields.

use std::fmt;

use crate::message::Kind;

/// Makes an enum whose values have names in the format.
macro_rules! words {
    ($(#[$doc:meta])* $type:ident: $($(#[$value_doc:meta])* $value:ident $name:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum $type {
            $($(#[$value_doc])* $value,)*
        }

        impl $type {
            /// Every value, in the order of the specification.
            pub const ALL: &'static [Self] = &[$(Self::$value),*];

            /// The word in an object.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }

            pub(crate) fn named(word: &str) -> Option<Self> {
                match word {
                    $($name => Some(Self::$value),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.name())
            }
        }
    };
}

words! {
    /// The kind of an object. Most are the kinds of TW1. The others spell a request or a reply whose payload has a
    /// structure.
    JsonKind:
    /// See [`Kind::Hello`].
    Hello "hello",
    /// See [`Kind::Welcome`].
    Welcome "welcome",
    /// See [`Kind::Request`].
    Request "request",
    /// See [`Kind::Reply`].
    Reply "reply",
    /// See [`Kind::Error`].
    Error "error",
    /// See [`Kind::Cancel`].
    Cancel "cancel",
    /// See [`Kind::OneWay`].
    OneWay "one-way",
    /// See [`Kind::Subscribe`].
    Subscribe "subscribe",
    /// See [`Kind::Unsubscribe`].
    Unsubscribe "unsubscribe",
    /// See [`Kind::Publish`].
    Publish "publish",
    /// See [`Kind::Deliver`].
    Deliver "deliver",
    /// See [`Kind::Join`].
    Join "join",
    /// See [`Kind::Leave`].
    Leave "leave",
    /// See [`Kind::Say`].
    Say "say",
    /// See [`Kind::Presence`].
    Presence "presence",
    /// See [`Kind::Gap`].
    Gap "gap",
    /// See [`Kind::Ping`].
    Ping "ping",
    /// See [`Kind::Pong`].
    Pong "pong",
    /// See [`Kind::GoAway`].
    GoAway "go-away",
    /// See [`Kind::Position`].
    Position "position",
    /// See [`Kind::Placement`].
    Placement "placement",
    /// The reply to a join.
    Joined "joined",
    /// The request for the members of a room.
    List "list",
    /// The reply to a list.
    Members "members",
    /// The request to send a message to one member of a room.
    Whisper "whisper",
}

words! {
    /// A field of an object.
    JsonField:
    /// The kind of the object.
    Kind "kind",
    /// The id of a request.
    Id "id",
    /// The alias of a room, subscription or method.
    Channel "channel",
    /// The name of a method.
    Method "method",
    /// The topic of a message.
    Topic "topic",
    /// The topics of a subscription.
    Pattern "pattern",
    /// The policy for a slow subscriber.
    Policy "policy",
    /// The queue group of a subscription.
    Group "group",
    /// The name of a room.
    Room "room",
    /// The name of a member.
    Name "name",
    /// The number of a member.
    Member "member",
    /// How many members a room has.
    Count "count",
    /// The members of a room.
    Members "members",
    /// The receiver of a private message.
    To "to",
    /// Whether only one member receives the message.
    Private "private",
    /// The event that a presence tells.
    Event "event",
    /// How many messages were lost.
    Lost "lost",
    /// The epoch of a position.
    Epoch "epoch",
    /// The offset of a position.
    Offset "offset",
    /// A reason as a word.
    Code "code",
    /// A reason as a number.
    Number "number",
    /// The address of another server.
    Address "address",
    /// A reason for people.
    Text "text",
    /// Credentials.
    Token "token",
    /// Name and version of a program.
    Agent "agent",
    /// The version of the protocol.
    Version "version",
    /// Optional features.
    Features "features",
    /// The largest frame.
    FrameBytesMax "frame_bytes_max",
    /// The heartbeat.
    HeartbeatMs "heartbeat_ms",
    /// The number of the session.
    Session "session",
    /// When the credentials expire.
    ExpiresInMs "expires_in_ms",
    /// A payload that is text.
    Data "data",
    /// A payload in base64.
    Data64 "data64",
    /// A payload that is JSON.
    Json "json",
}

/// The type of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// A whole number up to this.
    Number(u64),
    Text,
    Truth,
    /// JSON that is read later, or never.
    Value,
}

impl JsonKind {
    pub(crate) const fn message_kind(self) -> Kind {
        match self {
            Self::Hello => Kind::Hello,
            Self::Welcome => Kind::Welcome,
            Self::Request | Self::List | Self::Whisper => Kind::Request,
            Self::Reply | Self::Joined | Self::Members => Kind::Reply,
            Self::Error => Kind::Error,
            Self::Cancel => Kind::Cancel,
            Self::OneWay => Kind::OneWay,
            Self::Subscribe => Kind::Subscribe,
            Self::Unsubscribe => Kind::Unsubscribe,
            Self::Publish => Kind::Publish,
            Self::Deliver => Kind::Deliver,
            Self::Join => Kind::Join,
            Self::Leave => Kind::Leave,
            Self::Say => Kind::Say,
            Self::Presence => Kind::Presence,
            Self::Gap => Kind::Gap,
            Self::Ping => Kind::Ping,
            Self::Pong => Kind::Pong,
            Self::GoAway => Kind::GoAway,
            Self::Position => Kind::Position,
            Self::Placement => Kind::Placement,
        }
    }

    /// The plain spelling of a message of this kind.
    pub(crate) fn of(kind: Kind) -> Self {
        Self::ALL[kind as usize - 1]
    }

    /// The fields beside the kind. An object has any of them, in any order.
    #[must_use]
    pub const fn fields(self) -> &'static [JsonField] {
        use JsonField as F;
        match self {
            Self::Hello => &[
                F::Token,
                F::Agent,
                F::Version,
                F::Features,
                F::FrameBytesMax,
            ],
            Self::Welcome => &[
                F::Version,
                F::Features,
                F::FrameBytesMax,
                F::HeartbeatMs,
                F::Session,
                F::Agent,
                F::ExpiresInMs,
            ],
            Self::Request => &[F::Id, F::Channel, F::Method, F::Data, F::Data64, F::Json],
            Self::Reply => &[F::Id, F::Channel, F::Data, F::Data64, F::Json],
            Self::Error => &[F::Id, F::Channel, F::Code, F::Number, F::Text],
            Self::Cancel | Self::Unsubscribe | Self::Leave | Self::List => &[F::Id, F::Channel],
            Self::OneWay => &[F::Channel, F::Method, F::Data, F::Data64, F::Json],
            Self::Subscribe => &[F::Id, F::Pattern, F::Policy, F::Group],
            Self::Publish => &[F::Topic, F::Data, F::Data64, F::Json],
            Self::Deliver => &[
                F::Channel,
                F::Topic,
                F::Member,
                F::Name,
                F::Private,
                F::Data,
                F::Data64,
                F::Json,
            ],
            Self::Join => &[F::Id, F::Room, F::Name],
            Self::Say => &[F::Channel, F::Data, F::Data64, F::Json],
            Self::Presence => &[F::Channel, F::Event, F::Member, F::Name],
            Self::Gap => &[F::Channel, F::Lost],
            Self::Ping | Self::Pong => &[F::Data, F::Data64, F::Json],
            Self::GoAway => &[F::Code, F::Number, F::Address, F::Text],
            Self::Position => &[F::Channel, F::Epoch, F::Offset],
            Self::Placement => &[
                F::Channel,
                F::Room,
                F::Name,
                F::Member,
                F::Count,
                F::Pattern,
            ],
            Self::Joined => &[F::Id, F::Channel, F::Member, F::Count],
            Self::Members => &[F::Id, F::Channel, F::Members],
            Self::Whisper => &[F::Id, F::Channel, F::To, F::Data, F::Data64, F::Json],
        }
    }
}

impl JsonField {
    pub(crate) const fn type_of(self) -> Type {
        match self {
            Self::Channel | Self::Number | Self::Version => Type::Number(u16::MAX as u64),
            Self::Id
            | Self::Member
            | Self::Count
            | Self::Features
            | Self::FrameBytesMax
            | Self::HeartbeatMs => Type::Number(u32::MAX as u64),
            Self::Lost | Self::Epoch | Self::Offset | Self::Session | Self::ExpiresInMs => {
                Type::Number(u64::MAX)
            }
            Self::Private => Type::Truth,
            Self::Json | Self::Members => Type::Value,
            _ => Type::Text,
        }
    }

    /// The valid values, for an error text.
    pub(crate) const fn expected(self) -> &'static str {
        match self {
            Self::Kind => {
                "a kind of message, such as \"join\", \"say\", \"request\", \"subscribe\" or \"publish\""
            }
            Self::Method | Self::Topic => "a text of at most 255 bytes",
            Self::Room | Self::Name | Self::To | Self::Agent | Self::Address | Self::Text => {
                "a text of at most 255 bytes"
            }
            Self::Token => "a text of at most 1024 bytes",
            Self::Policy => {
                "one of \"disconnect\", \"drop_oldest\", \"drop_newest\", \"conflate\", \"block\" and \
                 \"conflate_by_topic\""
            }
            Self::Event => "one of \"here\", \"joined\" and \"left\"",
            Self::Code => "the word of the reason that \"number\" gives, or be left out",
            Self::Members => "a list of objects with \"member\" and \"name\"",
            Self::Data64 => "bytes in base64 with its padding",
            Self::Json => "JSON of at most 127 levels of lists and objects",
            _ => match self.type_of() {
                Type::Number(65_535) => "a whole number from 0 to 65535",
                Type::Number(4_294_967_295) => "a whole number from 0 to 4294967295",
                Type::Number(_) => "a whole number from 0 to 18446744073709551615",
                Type::Truth => "true or false",
                Type::Text | Type::Value => "a text in quotation marks",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_message_has_its_word() {
        for kind in Kind::ALL {
            assert_eq!(JsonKind::of(kind).message_kind(), kind);
        }
        for kind in JsonKind::ALL {
            assert_eq!(JsonKind::named(kind.name()), Some(*kind));
            assert!(!kind.fields().contains(&JsonField::Kind));
        }
        for field in JsonField::ALL {
            assert_eq!(JsonField::named(field.name()), Some(*field));
            assert!(!field.expected().is_empty());
        }
    }
}
