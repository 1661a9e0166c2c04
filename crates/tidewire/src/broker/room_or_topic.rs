//! Names of rooms and topics, as a node and its engine have them.

use std::fmt;
use std::sync::Arc;

use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::text::escaped;

/// The name of a room or topic, as the nodes of [`NodeSettings`](crate::backplane::NodeSettings) have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoomOrTopic {
    /// A room.
    Room(Arc<str>),
    /// A topic. It is no pattern.
    Topic(Arc<str>),
}

impl RoomOrTopic {
    pub(crate) fn new(kind: SequenceKind, name: &str) -> Self {
        match kind {
            SequenceKind::Room => Self::Room(name.into()),
            SequenceKind::Topic => Self::Topic(name.into()),
        }
    }

    pub(crate) fn kind(&self) -> SequenceKind {
        match self {
            Self::Room(_) => SequenceKind::Room,
            Self::Topic(_) => SequenceKind::Topic,
        }
    }

    /// The name alone.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Room(name) | Self::Topic(name) => name,
        }
    }
}

/// For logs: peers choose topics, so hazardous characters are escaped.
impl fmt::Display for RoomOrTopic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Room(_) => "room",
            Self::Topic(_) => "topic",
        };
        write!(formatter, "{kind} {}", escaped(self.text().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a topic reached the log as its publisher wrote it.
    #[test]
    fn a_name_is_shown_without_characters_that_change_the_line() {
        let name = RoomOrTopic::Topic("a\u{202e}b".into());
        assert_eq!(name.to_string(), "topic a\\u{202e}b");
    }
}
