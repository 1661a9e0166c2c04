//! Errors of rooms and topics, and the codes that are sent to the peer for them.

use thiserror::Error;
use tidewire_proto::body::{ErrorCode, NameError};
use tidewire_proto::error::EncodeError;
use tidewire_proto::topic::TopicError;

use crate::config::{PolicyError, SharedFrameError};
use crate::session::SendError;
use crate::session::TableFull;

/// The limit on rooms, patterns or registrations that was reached. The limits are fields of
/// [`Limits`](crate::Limits), which has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReachedLimit {
    /// The session has as many as allowed. Leave one.
    Session,
    /// The sessions from the peer's address have opened as many as allowed. Leave one of them, or use an existing
    /// one.
    Address,
    /// The server has as many as allowed. Use an existing one, or try again later.
    Server,
    /// The server is at its memory limit. Try again later.
    Memory,
}

impl From<TableFull> for ReachedLimit {
    fn from(full: TableFull) -> Self {
        match full {
            TableFull::Address => Self::Address,
            TableFull::Server => Self::Server,
        }
    }
}

/// Returns the remedy for a peer that reached a limit on rooms.
fn room_limit(limit: ReachedLimit) -> &'static str {
    match limit {
        ReachedLimit::Session => {
            "this session is in as many rooms as it may be (rooms_per_session_max); leave one first"
        }
        ReachedLimit::Address => {
            "your address has opened as many rooms as it may (rooms_per_address_max); leave one of them, or join a \
             room that exists"
        }
        ReachedLimit::Server => {
            "the server has as many rooms as it may (rooms_max); join a room that exists, or try again later"
        }
        ReachedLimit::Memory => OUT_OF_MEMORY,
    }
}

/// Returns the remedy for a peer that reached a limit on patterns.
fn pattern_limit(limit: ReachedLimit) -> &'static str {
    match limit {
        ReachedLimit::Session => {
            "this session has as many subscriptions as it may (subscriptions_per_session_max); unsubscribe from one, \
             or use a wildcard"
        }
        ReachedLimit::Address => {
            "your address has opened as many patterns as it may (topics_per_address_max); unsubscribe from one of \
             them, or use a wildcard"
        }
        ReachedLimit::Server => {
            "the server has as many patterns as it may (topics_max); subscribe to one that exists, or try again later"
        }
        ReachedLimit::Memory => OUT_OF_MEMORY,
    }
}

/// Returns the remedy for a limit on registrations, for the server's log.
fn registration_limit(limit: ReachedLimit) -> &'static str {
    match limit {
        ReachedLimit::Session | ReachedLimit::Address => {
            "this address has as many registrations as it may (registrations_per_address_max)"
        }
        ReachedLimit::Server => {
            "the server has as many registrations as it may (registrations_max)"
        }
        ReachedLimit::Memory => OUT_OF_MEMORY,
    }
}

/// The remedy for a peer whose server is cut off.
const CUT_OFF: &str = "the server is cut off from the other nodes of its cluster; try again later";

/// The remedy for a peer whose message would wait with too many others for its history.
const HISTORY_FULL: &str =
    "too many messages wait to be stored in their histories; try again later";

impl From<SharedFrameError> for RoomError {
    fn from(error: SharedFrameError) -> Self {
        match error {
            SharedFrameError::TooLarge(error) => Self::Encode(error),
            SharedFrameError::CutOff => Self::CutOff,
        }
    }
}

impl From<SharedFrameError> for PublishError {
    fn from(error: SharedFrameError) -> Self {
        match error {
            SharedFrameError::TooLarge(error) => Self::Encode(error),
            SharedFrameError::CutOff => Self::CutOff,
        }
    }
}

/// The remedy for a peer whose server is at its memory limit.
const OUT_OF_MEMORY: &str = "the server is at its memory limit (memory_bytes_max); try again later";

/// A session could not join a room. If the error is about the member's name, try another name. An error of
/// [`RoomActions::join`](crate::RoomActions::join); [`RoomActions`](crate::RoomActions) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The member's name is empty or malformed.
    #[error("{0}")]
    Name(NameError),
    /// The name of the identity cannot be one in rooms, which have stricter rules.
    #[error(
        "the name of this user cannot be one in rooms: {0}; its server needs another name for the user"
    )]
    IdentityName(NameError),
    /// The room's name is empty or malformed.
    #[error("room: {0}")]
    RoomName(NameError),
    /// Another session has the name.
    #[error("the name is taken")]
    NameTaken,
    /// The name looks like one that is in use.
    #[error("the name looks like one that is in use")]
    NameConfusable,
    /// The room's name looks like that of another room.
    #[error("room: the name looks like that of another room")]
    RoomConfusable,
    /// The session already has another name.
    #[error("this session already has another name; leave the name empty to keep it")]
    NameFixed,
    /// The peer is known by another name. Join with that, or with an empty name.
    #[error("you are known by another name; leave the name empty to use it")]
    NotYourName,
    /// The name belongs to somebody who is known by credentials.
    #[error("the name belongs to another user")]
    NameReserved,
    /// The session is already in the room.
    #[error("already in that room")]
    AlreadyJoined,
    /// There are too many rooms.
    #[error("{}", room_limit(*.0))]
    LimitReached(ReachedLimit),
    /// The session agreed on smaller frames than a room may send. Connect again with the server's limit.
    #[error(
        "this connection's frame limit is below the server's, so it cannot join rooms; connect with the server's limit"
    )]
    FrameLimit,
    /// The codec does not support the policy. Choose another policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The session's UDP address is not validated, so the server sends it nothing but replies. The server can be
    /// configured to trust its peers.
    #[error(
        "this UDP address is not validated, so it cannot join rooms; the server can be configured to trust its UDP \
        peers"
    )]
    Unproven,
    /// The session is not open.
    #[error("the session is not open")]
    NotOpen,
}

/// A room could not be left, listed or sent to. An error of [`RoomActions::say`](crate::RoomActions::say), which has an
/// example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RoomError {
    /// The session is not in the room.
    #[error("not in that room")]
    NotJoined,
    /// No member has that name, or no member of that room.
    #[error("no member has that name")]
    NoSuchMember,
    /// The room has no members.
    #[error("there is no such room")]
    NoSuchRoom,
    /// The server is at its memory limit. Try again later.
    #[error("{OUT_OF_MEMORY}")]
    OutOfMemory,
    /// The server is cut off from the other nodes of its cluster, and refuses messages until it is back. Try again
    /// later.
    #[error("{CUT_OFF}")]
    CutOff,
    /// Too many messages wait for their histories: the backplane is slow, or cannot store them. Try again later.
    #[error("{HISTORY_FULL}")]
    HistoryFull,
    /// The message could not be enqueued.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The codec cannot express the message.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// A session could not subscribe to a pattern. An error of [`TopicActions::subscribe`](crate::TopicActions::subscribe);
/// [`TopicActions`](crate::TopicActions) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The text is not a pattern; correct it.
    #[error(transparent)]
    Pattern(#[from] TopicError),
    /// The session is already subscribed to that pattern.
    #[error("already subscribed to that pattern")]
    AlreadySubscribed,
    /// There are too many patterns.
    #[error("{}", pattern_limit(*.0))]
    LimitReached(ReachedLimit),
    /// There are too many registrations for all topics.
    #[error("{}", registration_limit(*.0))]
    TooManyRegistrations(ReachedLimit),
    /// The session agreed on smaller frames than a topic may send. Connect again with the server's limit.
    #[error(
        "this connection's frame limit is below the server's, so it cannot subscribe; connect with the server's limit"
    )]
    FrameLimit,
    /// The codec does not support the policy. Choose another policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The session's UDP address is not validated, so the server sends it nothing but replies. The server can be
    /// configured to trust its peers.
    #[error(
        "this UDP address is not validated, so it cannot subscribe; the server can be configured to trust its UDP peers"
    )]
    Unproven,
    /// The session is not open.
    #[error("the session is not open")]
    NotOpen,
}

/// The session has no subscription with this alias. An error of
/// [`TopicActions::unsubscribe`](crate::TopicActions::unsubscribe). [`TopicActions`](crate::TopicActions) has an
/// example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the session has no such subscription")]
pub struct NotSubscribed;

/// A message could not be published.
/// An error of [`TopicActions::publish`](crate::TopicActions::publish) and [`Client::publish`](crate::Client::publish).
///
/// ```
/// use tidewire::{Client, PubSub, PublishError, Server};
///
/// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(PubSub::new())?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// let outcome = client.publish("price.*", b"71"); // a pattern is no topic
/// assert!(matches!(outcome, Err(PublishError::Topic(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The text is not a topic; correct it.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The server is at its memory limit. Try again later.
    #[error("{OUT_OF_MEMORY}")]
    OutOfMemory,
    /// The server is cut off from the other nodes of its cluster, and refuses messages until it is back. Try again
    /// later.
    #[error("{CUT_OFF}")]
    CutOff,
    /// Too many messages wait for their histories: the backplane is slow, or cannot store them. Try again later.
    #[error("{HISTORY_FULL}")]
    HistoryFull,
    /// The codec cannot express the message, or it is too large.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The message could not be enqueued for the client's lane.
    #[error(transparent)]
    Send(#[from] SendError),
}

impl JoinError {
    /// Returns the code that is sent to the peer.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Name(error) | Self::RoomName(error) | Self::IdentityName(error) => error.code(),
            Self::NameTaken | Self::NameConfusable | Self::RoomConfusable | Self::NameReserved => {
                ErrorCode::NameTaken
            }
            Self::NotYourName => ErrorCode::Forbidden,
            Self::NameFixed => ErrorCode::NameInvalid,
            Self::AlreadyJoined => ErrorCode::AlreadyJoined,
            Self::LimitReached(_) | Self::FrameLimit => ErrorCode::LimitReached,
            Self::Unproven | Self::Policy(_) => ErrorCode::Unsupported,
            Self::NotOpen => ErrorCode::Draining,
        }
    }

    /// Whether another member name may help.
    pub(crate) fn is_about_name(self) -> bool {
        matches!(
            self,
            Self::Name(_)
                | Self::NameTaken
                | Self::NameFixed
                | Self::NotYourName
                | Self::NameReserved
        )
    }
}

impl SubscribeError {
    /// Returns the code that is sent to the peer.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Pattern(error) => error.code(),
            Self::AlreadySubscribed => ErrorCode::AlreadyJoined,
            Self::LimitReached(_) | Self::TooManyRegistrations(_) | Self::FrameLimit => {
                ErrorCode::LimitReached
            }
            Self::Unproven | Self::Policy(_) => ErrorCode::Unsupported,
            Self::NotOpen => ErrorCode::Draining,
        }
    }
}
