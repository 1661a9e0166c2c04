//! Topics that keep a history, by patterns.

use std::sync::{Arc, OnceLock};

use tidewire_proto::topic::Pattern;

use super::history::{Histories, History, RoomHistory};
use super::rooms::LaneRooms;

/// Which topics keep a history, and their histories.
#[derive(Debug, Default)]
pub(crate) struct KeptTopics {
    /// The patterns and their limits. The first pattern that matches a topic counts.
    rules: OnceLock<Vec<KeptPattern>>,
    histories: Histories,
}

/// Topics or rooms that keep a history: a pattern, and its limits.
#[derive(Clone, Debug)]
pub(crate) struct KeptPattern {
    pub(crate) pattern: Box<str>,
    pub(crate) limits: History,
}

impl LaneRooms<'_> {
    /// Sets which topics of the server keep a history. All lanes set the same.
    pub(crate) fn keep_topics(&self, rules: Vec<KeptPattern>) {
        let directory = &self.table.directory;
        if !rules.is_empty() && directory.may_keep_histories() {
            directory.kept_topics.set(rules);
        }
    }
}

impl KeptPattern {
    /// Returns the limits of the first pattern that matches this topic, or this room by its name.
    pub(crate) fn limits_of(rules: &[Self], name: &str) -> Option<History> {
        let matches = |rule: &&Self| {
            // The name of a room may have empty segments, and the pattern for everything includes it.
            let pattern = Pattern::parse(&rule.pattern);
            &*rule.pattern == ">" || pattern.is_ok_and(|pattern| pattern.matches(name))
        };
        rules.iter().find(matches).map(|rule| rule.limits)
    }
}

impl KeptTopics {
    /// Sets the patterns. Only the first call has an effect.
    fn set(&self, rules: Vec<KeptPattern>) {
        let _ = self.rules.set(rules);
    }

    /// Whether some topics keep a history.
    pub(super) fn is_used(&self) -> bool {
        self.rules.get().is_some_and(|rules| !rules.is_empty())
    }

    /// Returns the history of this topic, if it keeps one. If there are too many topics, it does not, and has no positions.
    pub(super) fn history_of(&self, topic: &str) -> Option<Arc<RoomHistory>> {
        let limits = KeptPattern::limits_of(self.rules.get()?, topic)?;
        self.histories.open_kept(topic, limits)
    }
}
