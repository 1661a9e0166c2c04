//! Names of rooms and topics, as a node and its engine have them.

use std::fmt;
use std::sync::Arc;

use tidewire_proto::backplane::StreamKind;
use tidewire_proto::text::escaped;

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

/// For logs: peers choose topics, so hazardous characters are escaped.
impl fmt::Display for KeptName {
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
        let name = KeptName::Topic("a\u{202e}b".into());
        assert_eq!(name.to_string(), "topic a\\u{202e}b");
    }
}
