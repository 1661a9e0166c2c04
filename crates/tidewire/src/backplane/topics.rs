//! The topics of which this node gets the messages: patterns with subscribers here.

use std::collections::HashSet;
use std::sync::Arc;

use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::topic::{Pattern, PatternIndex};

use super::openings::Openings;
use super::peers::Peers;
use super::{Subject, Wire};
use crate::room::{Directory, Routes, SharedRoom};

/// The patterns with subscribers on this node.
#[derive(Debug)]
pub(super) struct Topics {
    directory: Arc<Directory>,
    routes: Routes,
    patterns: HashSet<Box<str>>,
}

impl Topics {
    pub(super) fn new(directory: Arc<Directory>) -> Self {
        Self {
            directory,
            routes: Routes::default(),
            patterns: HashSet::new(),
        }
    }

    /// Whether a pattern has subscribers here, as far as the node was told.
    pub(super) fn has(&self, pattern: &str) -> bool {
        self.patterns.contains(pattern)
    }

    /// Subscribes to patterns that have subscribers now, and ends the subscriptions of the others.
    pub(super) fn follow(
        &mut self,
        names: &HashSet<Box<str>>,
        openings: &mut Openings,
        peers: &mut Peers,
        wire: &mut dyn Wire,
    ) {
        let (mut topics, mut wildcards) = (Vec::new(), Vec::new());
        for name in names {
            let is_wanted = self.directory.has_pattern(name);
            if is_wanted && self.patterns.insert(name.clone()) {
                if !openings.take(SequenceKind::Topic, name) {
                    wire.subscribe(Subject::Pattern(name));
                }
            } else if !is_wanted && self.patterns.remove(name) {
                wire.unsubscribe(Subject::Pattern(name));
                match Pattern::parse(name) {
                    Ok(pattern) if pattern.is_wildcard() => wildcards.push(pattern),
                    _ => topics.push(&**name),
                }
            }
        }
        if !topics.is_empty() || !wildcards.is_empty() {
            self.forget(&topics, &wildcards, peers);
        }
    }

    /// Forgets the sequences of topics that only these patterns have matched: what passes from now on is no loss. All
    /// topics are looked through only for a wildcard, because any client can end a subscription in every turn.
    fn forget(&mut self, topics: &[&str], wildcards: &[Pattern<'_>], peers: &mut Peers) {
        self.directory.refresh(&mut self.routes);
        let is_followed = |topic: &str| {
            let mut is_followed = false;
            self.routes.each_match(topic, |shared| {
                is_followed |= self.patterns.contains(&**shared.name());
            });
            is_followed
        };
        for topic in topics.iter().filter(|it| !is_followed(it)) {
            peers.forget_topic(topic);
        }
        if wildcards.is_empty() {
            return;
        }
        let mut ended = PatternIndex::new();
        for wildcard in wildcards {
            ended.insert(wildcard, ());
        }
        peers.retain_topics(|topic| {
            let mut has_ended = false;
            ended.each_match(topic, |()| has_ended = true);
            !has_ended || is_followed(topic)
        });
    }

    /// The patterns that match a topic and have subscribers here, but not the topic itself if its messages come by its
    /// history.
    pub(super) fn receivers_of(&mut self, topic: &str) -> Vec<Arc<SharedRoom>> {
        self.directory.refresh(&mut self.routes);
        let mut matches = Vec::new();
        self.routes.each_match(topic, |shared| {
            if !shared.lanes().is_empty() && !shared.is_numbered_by_carrier() {
                matches.push(Arc::clone(shared));
            }
        });
        matches
    }
}
