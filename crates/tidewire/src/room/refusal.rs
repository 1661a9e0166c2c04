//! Errors of rooms and topics, and the codes that are sent to the peer for them.

use thiserror::Error;
use tidewire_proto::body::{ErrorCode, NameError};
use tidewire_proto::error::EncodeError;
use tidewire_proto::room::Policy;

use crate::config::{MissingFeature, SharedFrameError};
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
    }
}

/// Returns the remedy for a peer that reached a limit on the shapes of patterns.
fn shape_limit(limit: ReachedLimit) -> &'static str {
    match limit {
        ReachedLimit::Session => {
            "this session has patterns with `*` before the last segment in as many places as it may \
             (topic_shapes_per_session_max); unsubscribe from some of them, or use a `>` at the end"
        }
        ReachedLimit::Address => {
            "your address has patterns with `*` before the last segment in as many places as it may \
             (topic_shapes_per_address_max); unsubscribe from some of them, or use a `>` at the end"
        }
        ReachedLimit::Server => {
            "the server has patterns with `*` before the last segment in as many places as it may (topic_shapes_max); \
             use a `>` at the end, or try again later"
        }
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
    }
}

impl From<SharedFrameError> for RoomError {
    fn from(error: SharedFrameError) -> Self {
        match error {
            SharedFrameError::TooLarge(error) => Self::Encode(error),
            SharedFrameError::CutOff => Self::CutOff,
        }
    }
}

/// A room or a topic refused a session: it could not be joined or left, listed or sent to. An error of
/// [`RoomActions`](crate::RoomActions) and [`TopicActions`](crate::TopicActions), which have examples, and of
/// [`Client::publish`](crate::Client::publish).
///
/// ```
/// use tidewire::{Client, PubSub, RoomError, Server};
///
/// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(PubSub::new())?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// let outcome = client.publish("price.*", b"71"); // a pattern is no topic
/// assert!(matches!(outcome, Err(RoomError::Topic(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RoomError {
    /// The member's name is empty or malformed; try another.
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
    /// The text is not a topic or pattern; correct it.
    #[error(transparent)]
    Topic(NameError),
    /// The name of the queue group is empty or malformed.
    #[error("group: {0}")]
    GroupName(NameError),
    /// The queue group has as many members as it may. Join another group.
    #[error("this queue group has as many members as it may; use another group for the same work")]
    GroupFull,
    /// A queue group would span the nodes of a cluster, which it does not.
    #[error(
        "queue groups are for one server, and this one is a node of a cluster; subscribe without a group, or let each \
        worker ask for its work"
    )]
    GroupOnNode,
    /// Another session has the name; try another.
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
    /// The session is already subscribed to that pattern.
    #[error("already subscribed to that pattern")]
    AlreadySubscribed,
    /// The session is not in the room.
    #[error("not in that room")]
    NotJoined,
    /// The session has no subscription with this alias.
    #[error("the session has no such subscription")]
    NotSubscribed,
    /// No member has that name, or no member of that room.
    #[error("no member has that name")]
    NoSuchMember,
    /// The room has no members.
    #[error("there is no such room")]
    NoSuchRoom,
    /// There are too many rooms.
    #[error("{}", room_limit(*.0))]
    TooManyRooms(ReachedLimit),
    /// There are too many patterns.
    #[error("{}", pattern_limit(*.0))]
    TooManyPatterns(ReachedLimit),
    /// There are patterns with inner wildcards of too many shapes. `a.*.c` and `x.*.z` have the same shape.
    #[error("{}", shape_limit(*.0))]
    TooManyShapes(ReachedLimit),
    /// There are too many registrations for all topics.
    #[error("{}", registration_limit(*.0))]
    TooManyRegistrations(ReachedLimit),
    /// The session agreed on smaller frames than a room may send. Connect again with the server's limit.
    #[error(
        "this connection's frame limit is below the server's, so it cannot join rooms or subscribe; connect with the \
        server's limit"
    )]
    FrameLimit,
    /// The policy drops messages, and the codec has no frame that tells a subscriber their number. Choose a policy that
    /// drops none.
    #[error(
        "codec {codec} cannot tell a subscriber how many messages {policy} drops; use disconnect or block"
    )]
    GapsUnannounced {
        /// The policy that was asked for.
        policy: Policy,
        /// The name of the codec.
        codec: &'static str,
    },
    /// `conflate_by_topic` needs the topic of each delivery, and the deliveries of the codec do not show it. Choose
    /// another policy.
    #[error(
        "deliveries of codec {codec} do not show their topics, which conflate_by_topic needs; use another policy"
    )]
    TopicsHidden {
        /// The name of the codec.
        codec: &'static str,
    },
    /// The session's UDP address is not validated, so the server sends it nothing but replies. The server can be
    /// configured to trust its peers.
    #[error(
        "this UDP address is not validated, so it cannot join rooms or subscribe; the server can be configured to \
        trust its UDP peers"
    )]
    Unproven,
    /// The session is not open.
    #[error("the session is not open")]
    NotOpen,
    /// The server is at its memory limit. Try again later.
    #[error("the server is at its memory limit (memory_bytes_max); try again later")]
    OutOfMemory,
    /// The server is cut off from the other nodes of its cluster, and refuses messages until it is back. Try again
    /// later.
    #[error("the server is cut off from the other nodes of its cluster; try again later")]
    CutOff,
    /// Too many messages wait for their histories: the backplane is slow, or cannot store them. Try again later.
    #[error("too many messages wait to be stored in their histories; try again later")]
    HistoryFull,
    /// The message could not be enqueued.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The codec cannot express the message, or it is too large.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

impl From<MissingFeature> for RoomError {
    fn from(missing: MissingFeature) -> Self {
        match missing {
            MissingFeature::Gaps { policy, codec } => Self::GapsUnannounced { policy, codec },
            MissingFeature::Topics { codec } => Self::TopicsHidden { codec },
        }
    }
}

impl RoomError {
    /// Returns the code that is sent to the peer.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Name(error) | Self::RoomName(error) | Self::IdentityName(error) => error.code(),
            Self::Topic(error) | Self::GroupName(error) => error.code(),
            Self::NameTaken | Self::NameConfusable | Self::RoomConfusable | Self::NameReserved => {
                ErrorCode::NameTaken
            }
            Self::NotYourName => ErrorCode::Forbidden,
            Self::NameFixed => ErrorCode::NameInvalid,
            Self::AlreadyJoined | Self::AlreadySubscribed => ErrorCode::AlreadyJoined,
            Self::NotJoined | Self::NotSubscribed => ErrorCode::NotJoined,
            Self::NoSuchMember
            | Self::NoSuchRoom
            | Self::Send(SendError::NotOpen | SendError::Ended | SendError::OtherProcess) => {
                ErrorCode::NotFound
            }
            Self::TooManyRooms(_)
            | Self::TooManyPatterns(_)
            | Self::TooManyShapes(_)
            | Self::GroupFull
            | Self::TooManyRegistrations(_)
            | Self::FrameLimit
            | Self::OutOfMemory
            | Self::CutOff
            | Self::HistoryFull
            | Self::Send(SendError::QueueFull | SendError::Encode(_))
            | Self::Encode(_) => ErrorCode::LimitReached,
            Self::Unproven
            | Self::GroupOnNode
            | Self::GapsUnannounced { .. }
            | Self::TopicsHidden { .. } => ErrorCode::Unsupported,
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
