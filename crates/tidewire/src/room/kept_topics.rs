//! Topics that keep a history, by patterns.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use tidewire_proto::topic::PatternBuf;

use super::directory::Directory;
use super::history::{Histories, History, RoomHistory};
use super::rooms::LaneRooms;

/// The topics that keep a history, and their histories.
#[derive(Debug, Default)]
pub(crate) struct KeptTopics {
    /// The patterns and their limits. The first pattern that matches a topic counts.
    rules: OnceLock<Vec<KeptPattern>>,
    pub(super) histories: Histories,
}

/// Where the messages of a topic are kept.
#[derive(Clone, Debug)]
pub(super) enum TopicHistory {
    /// On this server.
    Here(Arc<RoomHistory>),
    /// In a stream that all nodes share.
    Stream,
}

/// Topics or rooms that keep a history: a pattern, and its limits.
#[derive(Clone, Debug)]
pub(crate) struct KeptPattern {
    text: Box<str>,
    /// `None` for a text that is no pattern. It may be the name of a room.
    pattern: Option<PatternBuf>,
    limits: History,
}

impl LaneRooms<'_> {
    /// Sets which topics of the server keep a history. All lanes set the same.
    pub(crate) fn keep_topics(&mut self, rules: Vec<KeptPattern>) {
        for rule in &rules {
            self.plan_expiry(&rule.limits);
        }
        let directory = &self.table.directory;
        if rules.is_empty() {
            return;
        }
        match directory.keeps_histories() {
            true => directory.kept_topics.set(rules),
            false => directory.warn_of_histories(),
        }
    }
}

impl KeptPattern {
    pub(crate) fn new(text: &str, limits: History) -> Self {
        Self {
            text: text.into(),
            pattern: PatternBuf::parse(text).ok(),
            limits,
        }
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

impl KeptTopics {
    /// Sets the patterns. Only the first call has an effect.
    fn set(&self, rules: Vec<KeptPattern>) {
        let _ = self.rules.set(rules);
    }

    /// Whether some topics keep a history.
    pub(super) fn is_used(&self) -> bool {
        self.rules.get().is_some_and(|rules| !rules.is_empty())
    }

    /// The limits of the history of this topic, if it keeps one.
    pub(super) fn limits_of(&self, topic: &str) -> Option<History> {
        KeptPattern::limits_of(self.rules.get()?, topic)
    }
}

impl Directory {
    /// The limits of the history of this topic, if it keeps one.
    pub(crate) fn kept_limits(&self, topic: &str) -> Option<History> {
        self.kept_topics.limits_of(topic)
    }

    /// Returns where the messages of this topic are kept, if they are. On a server alone they are not if there are too many
    /// topics; then the topic has no positions.
    /// `owner` returns the address that brings a new topic.
    pub(super) fn topic_history(
        &self,
        topic: &str,
        owner: impl FnOnce() -> Option<IpAddr>,
    ) -> Option<TopicHistory> {
        let limits = self.kept_limits(topic)?;
        match self.link() {
            Some(_) => Some(TopicHistory::Stream),
            None => {
                let here = self.kept_topics.histories.open_kept(topic, limits, owner);
                here.map(TopicHistory::Here)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pattern_that_matches_counts_and_names_need_be_no_patterns() {
        let kept = ["team.*", "the lounge", "a..b"];
        let kept = (1..).zip(kept);
        let mut rules: Vec<KeptPattern> = kept
            .map(|(count, text)| KeptPattern::new(text, History::last(count)))
            .collect();
        let count =
            |rules: &[KeptPattern], name| Some(KeptPattern::limits_of(rules, name)?.messages_max);
        for (name, expected) in [
            ("team.red", Some(1)),
            ("the lounge", Some(2)),
            ("a..b", Some(3)),
            ("team", None),
        ] {
            assert_eq!(count(&rules, name), expected, "{name}");
        }
        rules.push(KeptPattern::new(">", History::last(4)));
        assert_eq!(count(&rules, "a b..c"), Some(4));
        assert_eq!(count(&rules, "team.red"), Some(1));
    }
}
