//! Policies for a subscriber that does not keep up.

use std::fmt;
use std::str::FromStr;

use crate::setting::SettingError;

/// The policy of one subscription. Dropped messages are counted and announced in band.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// Close the session: no subscriber overlooks a lost connection.
    #[default]
    Disconnect,
    /// Drop the oldest unsent messages until the rest fits the limits.
    DropOldest,
    /// Keep the messages that fit the limits and drop new messages until the kept messages have been sent.
    DropNewest,
    /// Keep only the newest message while the subscriber cannot take more.
    Conflate,
    /// Stop reading from the publishers of the room until the subscriber has caught up or the deadline has passed; then
    /// disconnect it.
    Block,
    /// Keep the newest message of each topic while the subscriber cannot take more, and send them in the order of their
    /// last updates. The policy is meant for patterns with a wildcard. A room or a pattern without a wildcard has one
    /// topic, so the policy is the same as [`Self::Conflate`].
    ///
    /// All slow subscribers of a pattern share one table of these messages. [`LagLimits`] bound it: beyond them the
    /// topic that was updated longest ago is dropped.
    ConflateByTopic,
}

/// How far a subscriber may fall behind. The first limit that is reached counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LagLimits {
    /// Unsent bytes.
    pub bytes_max: u64,
    /// Unsent messages.
    pub messages_max: u64,
}

/// The decision of the policy about a subscriber that could not be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The subscriber is within its limits, or was brought back within them.
    Keep {
        /// The number of messages dropped for that.
        dropped: u64,
    },
    /// The subscriber is over its limits: close the session.
    Disconnect,
    /// The subscriber is over its limits: hold the publishers.
    Block,
    /// The subscriber is behind: call [`Subscriber::conflate`](super::Subscriber::conflate).
    Conflate,
    /// The subscriber gets the messages of the log from the history.
    Replay {
        /// The number of messages of the log that it passed.
        replayed: u64,
    },
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 6] = [
        Self::Disconnect,
        Self::DropOldest,
        Self::DropNewest,
        Self::Conflate,
        Self::Block,
        Self::ConflateByTopic,
    ];

    /// The name used in flags, logs and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disconnect => "disconnect",
            Self::DropOldest => "drop_oldest",
            Self::DropNewest => "drop_newest",
            Self::Conflate => "conflate",
            Self::Block => "block",
            Self::ConflateByTopic => "conflate_by_topic",
        }
    }

    /// The policy with this number on the wire, if any.
    #[must_use]
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Disconnect),
            2 => Some(Self::DropOldest),
            3 => Some(Self::DropNewest),
            4 => Some(Self::Conflate),
            5 => Some(Self::Block),
            6 => Some(Self::ConflateByTopic),
            _ => None,
        }
    }

    /// Whether the policy drops messages while the subscription continues. The subscriber must then receive their
    /// number.
    #[must_use]
    pub const fn drops(self) -> bool {
        !matches!(self, Self::Disconnect | Self::Block)
    }

    /// The policy's number on the wire, which is never 0.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::Disconnect => 1,
            Self::DropOldest => 2,
            Self::DropNewest => 3,
            Self::Conflate => 4,
            Self::Block => 5,
            Self::ConflateByTopic => 6,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| {
                SettingError::new(
                    "policy",
                    text,
                    format!(
                        "unknown policy {text:?}; use one of disconnect, drop_oldest, drop_newest, conflate, block, \
                         conflate_by_topic"
                    ),
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_others_are_refused() {
        for policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert_eq!("dorp".parse::<Policy>().unwrap_err().value(), "dorp");
    }
}
