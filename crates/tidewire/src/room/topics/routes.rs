//! Finds the subscriptions that match a topic, without a lock per message.
//!
//! All patterns of a server are in one table behind the directory's mutex, which only subscribing and unsubscribing
//! lock. Each lane that publishes has a copy of the table. One atomic read of a version number per message tells the
//! lane that its copy is old. The lane then takes the lock and applies the changes since. A subscription is in the
//! table before its subscriber gets the reply, so every message that is published after the reply reaches it.
//!
//! Rejected: rebuilding the copies at every change, because a thousand clients that reconnect would cost a million
//! entries.
//! Rejected: sending changes to lanes as messages, because the subscriber would get its reply before all lanes know.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tidewire_proto::topic::{Pattern, PatternIndex};

use super::groups::{Group, GroupRoutes, Groups};
use crate::mailbox::Receiver;
use crate::room::shared_room::{LaneCounts, SharedRoom};

/// The patterns of a server, and their latest changes. The directory's mutex protects it.
#[derive(Debug, Default)]
pub(in crate::room) struct Topics {
    entries: HashMap<Arc<str>, TopicEntry>,
    groups: Groups,
    changes: VecDeque<Change>,
    /// The version of the table before the first of `changes`.
    changes_start: u64,
}

/// A lane's copy of the table.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    version: u64,
    index: PatternIndex<Arc<SharedRoom>>,
    groups: GroupRoutes,
}

#[derive(Debug)]
struct TopicEntry {
    shared: Arc<SharedRoom>,
    lanes: LaneCounts,
}

#[derive(Clone, Debug)]
enum Change {
    Added(Arc<SharedRoom>),
    Removed(Arc<str>),
    /// A group got or lost a member. The name is enough: a copy of the members for each change would take much memory.
    Group(Arc<str>),
}

impl Topics {
    /// The patterns with subscribers, and the subscriptions in groups.
    pub(in crate::room) fn len(&self) -> usize {
        self.entries.len() + self.groups.members()
    }

    pub(in crate::room) fn group(&self, name: &str) -> Option<&Arc<Group>> {
        self.groups.get(name)
    }

    /// Adds a subscription to its group.
    pub(in crate::room) fn enter_group(&mut self, member: &Arc<SharedRoom>, lane: usize) {
        member.receive_on(lane);
        self.groups.add(member);
        self.note(Change::Group(Arc::clone(member.name())));
    }

    /// Removes a subscription from its group. Returns the group without it.
    pub(in crate::room) fn exit_group(&mut self, member: &SharedRoom) -> Arc<Group> {
        let group = self.groups.remove(member);
        self.note(Change::Group(Arc::clone(member.name())));
        group
    }

    /// Returns the version, which increases with every change.
    pub(in crate::room) fn version(&self) -> u64 {
        self.changes_start + self.changes.len() as u64
    }

    /// Returns what the lanes share of a pattern that has subscribers on a lane.
    pub(in crate::room) fn shared(&self, pattern: &str) -> Option<&Arc<SharedRoom>> {
        let entry = self.entries.get(pattern)?;
        (!entry.shared.lanes().is_empty()).then_some(&entry.shared)
    }

    /// Adds a subscriber, if the pattern already has one.
    pub(in crate::room) fn enter(&mut self, pattern: &str, lane: usize) -> Option<Arc<SharedRoom>> {
        let entry = self.entries.get_mut(pattern)?;
        entry.lanes.enter(&entry.shared, Receiver::Lane(lane));
        Some(Arc::clone(&entry.shared))
    }

    /// Adds a pattern with its first subscriber.
    pub(in crate::room) fn open(&mut self, shared: Arc<SharedRoom>, first: Receiver) {
        let mut lanes = LaneCounts::default();
        lanes.enter(&shared, first);
        self.note(Change::Added(Arc::clone(&shared)));
        let pattern = Arc::clone(shared.name());
        self.entries.insert(pattern, TopicEntry { shared, lanes });
    }

    /// Removes a subscriber. Returns whether it was the pattern's last one, whose alias is then free.
    pub(in crate::room) fn exit(&mut self, pattern: &Arc<str>, lane: usize) -> bool {
        let Some(entry) = self.entries.get_mut(pattern) else {
            return false;
        };
        if entry.lanes.exit(&entry.shared, Receiver::Lane(lane)) > 0 {
            return false;
        }
        self.entries.remove(pattern);
        self.note(Change::Removed(Arc::clone(pattern)));
        true
    }

    /// Brings a lane's copy up to date.
    pub(in crate::room) fn refresh(&self, routes: &mut Routes) {
        if routes.version < self.changes_start {
            routes.index = PatternIndex::new();
            for entry in self.entries.values() {
                routes.apply(&Change::Added(Arc::clone(&entry.shared)), &self.groups);
            }
            routes.groups = GroupRoutes::default();
            for group in self.groups.all() {
                routes.groups.apply(group.name(), Some(group));
            }
        } else {
            let known = (routes.version - self.changes_start) as usize;
            for change in self.changes.range(known..) {
                routes.apply(change, &self.groups);
            }
        }
        routes.version = self.version();
    }

    fn note(&mut self, change: Change) {
        self.changes.push_back(change);
        if self.changes.len() > CHANGES_MAX {
            self.changes.pop_front();
            self.changes_start += 1;
        }
    }
}

impl Routes {
    #[inline]
    pub(in crate::room) fn version(&self) -> u64 {
        self.version
    }

    /// Calls `visit` for each pattern that matches a topic.
    #[inline]
    pub(crate) fn each_match(&self, topic: &str, visit: impl FnMut(&Arc<SharedRoom>)) {
        self.index.each_match(topic, visit);
    }

    /// Calls `visit` for each queue group that matches a topic.
    #[inline]
    pub(super) fn each_group(&self, topic: &str, visit: impl FnMut(&Arc<Group>)) {
        self.groups.each_match(topic, visit);
    }

    fn apply(&mut self, change: &Change, groups: &Groups) {
        let text = match change {
            Change::Added(shared) => shared.name(),
            Change::Removed(pattern) => pattern,
            Change::Group(name) => return self.groups.apply(name, groups.get(name)),
        };
        // Only patterns that parsed were added.
        let Ok(pattern) = Pattern::parse(text) else {
            return;
        };
        match change {
            Change::Added(shared) => self.index.insert(&pattern, Arc::clone(shared)),
            _ => self.index.remove(&pattern),
        };
    }
}

/// Changes that are kept for lanes to apply. A lane that missed more copies the whole table. A change has 48 bytes.
/// Copying 16,384 patterns for fewer changes than this would cost more than applying them.
const CHANGES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn open(topics: &mut Topics, alias: u16, pattern: &str) -> Arc<str> {
        let shared = Arc::new(SharedRoom::pattern(alias, pattern, None, None));
        topics.open(Arc::clone(&shared), Receiver::Lane(0));
        Arc::clone(shared.name())
    }

    fn matched(routes: &Routes, topic: &str) -> Vec<u16> {
        let mut aliases = Vec::new();
        routes.each_match(topic, |shared| aliases.push(shared.alias()));
        aliases.sort_unstable();
        aliases
    }

    #[test]
    fn a_copy_catches_up_with_what_changed() {
        let (mut topics, mut routes) = (Topics::default(), Routes::default());
        let exact = open(&mut topics, 1, "a.b");
        open(&mut topics, 2, "a.*");
        assert!(matched(&routes, "a.b").is_empty());
        topics.refresh(&mut routes);
        assert_eq!(matched(&routes, "a.b"), [1, 2]);
        assert!(topics.enter("a.b", 3).is_some());
        assert!(!topics.exit(&exact, 0), "lane 3 still has a subscriber");
        assert!(topics.exit(&exact, 3));
        assert_ne!(topics.version(), routes.version());
        topics.refresh(&mut routes);
        assert_eq!(matched(&routes, "a.b"), [2]);
        assert_eq!(topics.len(), 1);
    }

    #[test]
    fn a_copy_that_missed_too_much_is_made_anew() {
        let (mut topics, mut routes) = (Topics::default(), Routes::default());
        let early = open(&mut topics, 1, "early");
        topics.refresh(&mut routes);
        topics.exit(&early, 0);
        for _ in 0..CHANGES_MAX {
            let pattern = open(&mut topics, 2, "short.lived");
            topics.exit(&pattern, 0);
        }
        open(&mut topics, 3, "late.>");
        assert!(topics.changes.len() <= CHANGES_MAX);
        topics.refresh(&mut routes);
        assert!(matched(&routes, "early").is_empty());
        assert!(matched(&routes, "short.lived").is_empty());
        assert_eq!(matched(&routes, "late.comer"), [3]);
        assert_eq!(topics.version(), routes.version());
    }
}
