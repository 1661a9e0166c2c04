//! Names of rooms and topics, as a node and its engine have them.

use std::fmt;
use std::sync::Arc;

use tidewire_proto::backplane::StreamKind;

/// The room or topic of a stream. Streams are those of [`NodeSettings`](crate::backplane::NodeSettings).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeptName {
    /// A room.
    Room(Arc<str>),
    /// A topic. It is no pattern.
    Topic(Arc<str>),
}

impl KeptName {
    pub(crate) fn new(kind: StreamKind, name: &str) -> Self {
        match kind {
            StreamKind::Room => Self::Room(name.into()),
            StreamKind::Topic => Self::Topic(name.into()),
        }
    }

    pub(crate) fn kind(&self) -> StreamKind {
        match self {
            Self::Room(_) => StreamKind::Room,
            Self::Topic(_) => StreamKind::Topic,
        }
    }

    /// The name alone.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Room(name) | Self::Topic(name) => name,
        }
    }
}

impl fmt::Display for KeptName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room(name) => write!(formatter, "room {name}"),
            Self::Topic(name) => write!(formatter, "topic {name}"),
        }
    }
}
