//! The limits of histories, and the patterns of the rooms and topics that they are for.

use std::time::Duration;

use tidewire_proto::topic::PatternBuf;

/// Limits of the messages that a room or a topic keeps; see [`Chat::history`](crate::Chat::history) and
/// [`PubSub::history`](crate::PubSub::history).
///
/// A room keeps the newest messages within all limits. The memory of all histories is at most `names_max × bytes_max`
/// and an eighth more, and does not count towards [`MemoryLimits::bytes_max`](crate::limits::MemoryLimits::bytes_max).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// Messages of one room. Default 50, which fills a screen.
    pub messages_max: usize,
    /// Bytes of these messages, including the names of their authors and 13 bytes for each message. Default 64 KiB. A
    /// single message that exceeds it is delivered but not kept. The earlier messages stay, and
    /// [`Metrics::history_skipped`](crate::metrics::Metrics::history_skipped) counts the message. At most 1 GiB.
    pub bytes_max: usize,
    /// The age of these messages. Older ones are removed. Default `None`: they stay however old they are.
    pub age_max: Option<Duration>,
    /// Rooms and topics of the server with a history, including those without members. Default 1,024. A further room
    /// replaces the history of a room without members that has been silent for the longest time: first one that was
    /// brought by an address with more than a quarter of all, then one of the address that brings the further room, and
    /// only then one of others. If all have members, the further room keeps no messages, and its messages are counted
    /// as skipped.
    pub names_max: usize,
}

impl History {
    /// Returns limits for the last messages of each room, in this number. With 1 a topic keeps its latest value.
    #[must_use]
    pub fn last(messages: usize) -> Self {
        Self {
            messages_max: messages,
            ..Self::default()
        }
    }
}

impl Default for History {
    fn default() -> Self {
        Self {
            messages_max: 50,
            bytes_max: 64 * 1024,
            age_max: None,
            names_max: 1_024,
        }
    }
}

/// Topics or rooms that keep a history: a pattern, and its limits.
#[derive(Clone, Debug)]
pub(crate) struct HistoryPattern {
    text: Box<str>,
    /// `None` for a text that is no pattern. It may be the name of a room.
    pattern: Option<PatternBuf>,
    limits: History,
}

impl HistoryPattern {
    pub(crate) fn new(text: &str, limits: History) -> Self {
        Self {
            text: text.into(),
            pattern: PatternBuf::parse(text).ok(),
            limits,
        }
    }

    /// The limits of what the pattern matches.
    pub(crate) fn limits(&self) -> &History {
        &self.limits
    }

    /// Returns the limits of the first pattern that matches this topic, or this room by its name.
    pub(crate) fn limits_of(rules: &[Self], name: &str) -> Option<History> {
        let matches = |rule: &&Self| {
            let pattern = rule.pattern.as_ref().map(PatternBuf::as_pattern);
            // The name of a room need be no pattern, and the pattern for everything includes it.
            *rule.text == *name
                || &*rule.text == ">"
                || pattern.is_some_and(|pattern| pattern.matches(name))
        };
        rules.iter().find(matches).map(|rule| rule.limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pattern_that_matches_counts_and_names_need_be_no_patterns() {
        let kept = ["team.*", "the lounge", "a..b"];
        let kept = (1..).zip(kept);
        let mut rules: Vec<HistoryPattern> = kept
            .map(|(count, text)| HistoryPattern::new(text, History::last(count)))
            .collect();
        let count = |rules: &[HistoryPattern], name| {
            Some(HistoryPattern::limits_of(rules, name)?.messages_max)
        };
        for (name, expected) in [
            ("team.red", Some(1)),
            ("the lounge", Some(2)),
            ("a..b", Some(3)),
            ("team", None),
        ] {
            assert_eq!(count(&rules, name), expected, "{name}");
        }
        rules.push(HistoryPattern::new(">", History::last(4)));
        assert_eq!(count(&rules, "a b..c"), Some(4));
        assert_eq!(count(&rules, "team.red"), Some(1));
    }
}
