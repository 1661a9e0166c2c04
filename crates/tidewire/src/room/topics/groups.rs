//! Queue groups: of the subscriptions with one pattern and one group name, one gets each message.
//!
//! Problem: workers share the messages of a topic. A worker that is slow or stalled must not get as many as the others,
//! and the messages that wait for a worker that leaves must not be lost. Approach: each subscription of a group has a
//! log of its own, under an alias of its own. So policies, gaps and counters are those of any subscription. A publisher
//! gives a message to the member with the fewest unsent messages; among equals, in turn. A lane notes how many messages
//! its members have unsent after each sweep, and until they have none. When a member leaves, its unsent messages go to
//! the other members.
//!
//! Rejected: one log for a group, from which each member takes the next message. Members are on several lanes, and each
//! would need a lock for each message.
//! Rejected: an exact count of what is on its way between lanes. A message that is dropped on the way would count for
//! ever.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidewire_proto::codec::{AnyCodec, Codec, Decoded};
use tidewire_proto::topic::{Pattern, PatternIndex};

use super::LaneTopics;
use super::publishing::append_without_offset;
use crate::observe::DropReason;
use crate::room::{RoomError, SharedRoom};
use crate::session::LogKey;

/// The subscriptions of a group, at one time. A change makes another value.
#[derive(Debug)]
pub(crate) struct Group {
    /// The pattern, a space, and the name of the group.
    name: Arc<str>,
    members: Vec<Arc<SharedRoom>>,
    /// The member whose turn it is.
    turn: AtomicUsize,
}

/// The groups of a server by name. The directory's mutex protects it.
#[derive(Debug, Default)]
pub(in crate::room) struct Groups {
    by_name: HashMap<Arc<str>, Arc<Group>>,
    /// The subscriptions in all groups.
    members: usize,
}

/// The groups that match a topic, in a lane's copy of the routes.
#[derive(Debug, Default)]
pub(super) struct GroupRoutes(PatternIndex<Vec<Arc<Group>>>);

impl Group {
    fn with(name: &Arc<str>, turn: usize, members: Vec<Arc<SharedRoom>>) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(name),
            members,
            turn: AtomicUsize::new(turn),
        })
    }

    /// The member that gets the next message: one that blocks nobody, with the fewest unsent messages. `None` if the
    /// group has no members.
    pub(super) fn choose(&self) -> Option<&Arc<SharedRoom>> {
        // Two lanes may take the same turn, which harms nothing.
        let start = self.turn.load(Ordering::Relaxed);
        let start = if start < self.members.len() { start } else { 0 };
        self.turn.store(start + 1, Ordering::Relaxed);
        let (before, after) = self.members.split_at(start);
        let mut best: Option<(&Arc<SharedRoom>, (bool, u64))> = None;
        for member in after.iter().chain(before) {
            let burden = (member.is_congested(), member.unsent());
            if burden == (false, 0) {
                return Some(member);
            }
            if best.is_none_or(|(_, least)| burden < least) {
                best = Some((member, burden));
            }
        }
        best.map(|(member, _)| member)
    }
}

impl Groups {
    pub(super) fn members(&self) -> usize {
        self.members
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<Group>> {
        self.by_name.get(name)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.by_name.values()
    }

    /// Adds a subscription. Returns the group as it is now.
    pub(super) fn add(&mut self, member: &Arc<SharedRoom>) -> Arc<Group> {
        self.members += 1;
        self.change(member.name(), |members| members.push(Arc::clone(member)))
    }

    /// Removes a subscription. Returns the group as it is now.
    pub(super) fn remove(&mut self, member: &SharedRoom) -> Arc<Group> {
        self.members -= 1;
        self.change(member.name(), |members| {
            members.retain(|it| it.alias() != member.alias());
        })
    }

    fn change(
        &mut self,
        name: &Arc<str>,
        change: impl FnOnce(&mut Vec<Arc<SharedRoom>>),
    ) -> Arc<Group> {
        let before = self.by_name.get(name);
        let turn = before.map_or(0, |group| group.turn.load(Ordering::Relaxed));
        let mut members = before.map_or_else(Vec::new, |group| group.members.clone());
        change(&mut members);
        let group = Group::with(name, turn, members);
        match group.members.is_empty() {
            true => self.by_name.remove(name),
            false => self.by_name.insert(Arc::clone(name), Arc::clone(&group)),
        };
        group
    }
}

impl GroupRoutes {
    #[inline]
    pub(super) fn each_match(&self, topic: &str, mut visit: impl FnMut(&Arc<Group>)) {
        self.0
            .each_match(topic, |groups| groups.iter().for_each(&mut visit));
    }

    /// Takes a changed group over. One without members is forgotten.
    pub(super) fn apply(&mut self, group: &Arc<Group>) {
        // Only groups whose pattern parsed were added.
        let Ok(pattern) = Pattern::parse(pattern_of(&group.name)) else {
            return;
        };
        let mut groups = self.0.remove(&pattern).unwrap_or_default();
        groups.retain(|it| it.name != group.name);
        if !group.members.is_empty() {
            groups.push(Arc::clone(group));
        }
        if !groups.is_empty() {
            self.0.insert(&pattern, groups);
        }
    }
}

/// The topic and the payload of a frame in the log of a subscription in a group.
fn published(codec: &AnyCodec, group: &str, frame: &[u8]) -> Option<(Box<str>, Vec<u8>)> {
    let Ok(Decoded::Frame { message, .. }) = codec.decode(frame, usize::MAX) else {
        return None;
    };
    let topic = match message.name {
        "" => pattern_of(group),
        topic => topic,
    };
    Some((topic.into(), message.payload.to_vec()))
}

/// The name of a group in the tables. No pattern has a space.
pub(crate) fn group_name(pattern: &str, group: &str) -> Box<str> {
    format!("{pattern} {group}").into()
}

/// The pattern in the name of a group, or the pattern itself.
fn pattern_of(name: &str) -> &str {
    name.split_once(' ').map_or(name, |(pattern, _)| pattern)
}

impl LaneTopics<'_> {
    /// Gives a message of the recent topic to one member of each queue group that matches. Returns a member that
    /// blocks, if all members of its group do.
    #[cold]
    pub(super) fn publish_to_groups(
        &mut self,
        topic: &str,
        payload: &[u8],
    ) -> Result<Option<Arc<SharedRoom>>, RoomError> {
        let (mut congested, mut result) = (None, Ok(()));
        let groups = self.topics.cache.take_groups();
        for group in &groups {
            match self.give_to(group, topic, payload) {
                Ok(Some(member)) if member.is_congested() => congested = Some(Arc::clone(member)),
                Ok(_) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.topics.cache.put_groups(groups);
        result.map(|()| congested)
    }

    /// Gives a message to one member of a group. Returns the member; `None` if there is none.
    fn give_to<'g>(
        &mut self,
        group: &'g Group,
        topic: &str,
        payload: &[u8],
    ) -> Result<Option<&'g Arc<SharedRoom>>, RoomError> {
        let Some(member) = group.choose() else {
            return Ok(None);
        };
        append_without_offset(&mut self.deliveries(), member, topic, payload)?;
        Ok(Some(member))
    }

    /// Ends a subscription in a queue group. Its unsent messages go to the other members.
    #[cold]
    pub(super) fn leave_group(&mut self, slot: usize, subscription: usize, reason: DropReason) {
        let unsent = self.take_unsent(slot, subscription);
        let membership = &self.sessions[slot].memberships[subscription];
        let Some(shared) = self.open.shared(membership.room()).cloned() else {
            return;
        };
        let directory = self.open.directory();
        let Some(group) = directory.unsubscribe(&shared, self.exchange.lane()) else {
            return;
        };
        let name = Arc::clone(&group.name);
        self.topics.left_groups.insert(shared.alias(), name);
        let reason = match group.members.is_empty() {
            true => reason,
            false => DropReason::Reassigned,
        };
        self.deliveries().detach(slot, subscription, reason);
        self.deliveries().close_unused(&shared);
        for (topic, payload) in unsent {
            self.give_again(Some(&group), &topic, &payload);
        }
    }

    /// Gives a message of a member that has left to another one of its group.
    fn give_again(&mut self, group: Option<&Group>, topic: &str, payload: &[u8]) {
        let given = group.map_or(Ok(None), |group| self.give_to(group, topic, payload));
        if !matches!(given, Ok(Some(_))) {
            let counters = &self.sessions.counters;
            counters.room_offered.add(1);
            counters.room_dropped[DropReason::Left as usize].add(1);
        }
    }

    /// Handles a message of another lane for a subscription that has ended meanwhile. One in a queue group lets another
    /// member have the message.
    #[cold]
    pub(in crate::room) fn redirect(&mut self, log: LogKey, frame: &[u8]) {
        let Some(name) = self.topics.left_groups.get(&log.alias()).cloned() else {
            return;
        };
        let codec = self.sessions.config.codecs.get(log.codec());
        let Some((topic, payload)) = published(codec, &name, frame) else {
            return;
        };
        let group = self.open.directory().group(&name);
        self.give_again(group.as_deref(), &topic, &payload);
    }

    /// The topics and payloads of the messages that wait in the log of a subscription.
    fn take_unsent(&self, slot: usize, subscription: usize) -> Vec<(Box<str>, Vec<u8>)> {
        let membership = &self.sessions[slot].memberships[subscription];
        let (Some(shared), Some(log)) = (
            self.open.shared(membership.room()),
            self.sessions.logs.get(membership.log()),
        ) else {
            return Vec::new();
        };
        let codec = self.sessions.config.codecs.get(membership.log().codec());
        let mut unsent = Vec::new();
        membership.subscriber.gather_frames(log, |frame| {
            unsent.extend(published(codec, shared.name(), frame));
            true
        });
        unsent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(alias: u16) -> Arc<SharedRoom> {
        Arc::new(SharedRoom::in_group(alias, "jobs.* workers", None, None))
    }

    fn chosen(group: &Group, count: usize) -> Vec<u16> {
        let choose = || group.choose().unwrap().alias();
        std::iter::repeat_with(choose).take(count).collect()
    }

    #[test]
    fn equal_members_take_turns_and_the_one_with_the_fewest_unsent_comes_first() {
        let members: Vec<_> = (1..=3).map(member).collect();
        let mut groups = Groups::default();
        let mut group = groups.add(&members[0]);
        for member in &members[1..] {
            group = groups.add(member);
        }
        assert_eq!(chosen(&group, 6), [1, 2, 3, 1, 2, 3]);
        members[0].set_unsent(5);
        members[1].set_unsent(2);
        assert_eq!(chosen(&group, 3), [3, 3, 3]);
        members[2].set_unsent(3);
        assert_eq!(chosen(&group, 3), [2, 2, 2]);
        // A member that blocks gets a message only if all do.
        members[1].set_congested(0, true);
        assert_eq!(chosen(&group, 2), [3, 3]);
        let group = groups.remove(&members[2]);
        assert_eq!(chosen(&group, 2), [1, 1]);
        groups.remove(&members[0]);
        let group = groups.remove(&members[1]);
        assert!(group.choose().is_none());
        assert_eq!((groups.members(), groups.all().count()), (0, 0));
    }

    #[test]
    fn a_lane_finds_the_groups_of_a_topic() {
        let (one, other) = (member(1), member(2));
        let third = Arc::new(SharedRoom::in_group(3, "jobs.* loggers", None, None));
        let mut groups = Groups::default();
        let mut routes = GroupRoutes::default();
        for member in [&one, &other, &third] {
            routes.apply(&groups.add(member));
        }
        let found = |routes: &GroupRoutes, topic: &str| {
            let mut names = Vec::new();
            routes.each_match(topic, |group| names.push(group.name.to_string()));
            names.sort();
            names
        };
        assert_eq!(
            found(&routes, "jobs.a"),
            ["jobs.* loggers", "jobs.* workers"]
        );
        assert!(found(&routes, "jobs").is_empty());
        routes.apply(&groups.remove(&one));
        assert_eq!(found(&routes, "jobs.a").len(), 2);
        routes.apply(&groups.remove(&other));
        assert_eq!(found(&routes, "jobs.a"), ["jobs.* loggers"]);
        routes.apply(&groups.remove(&third));
        assert!(found(&routes, "jobs.a").is_empty());
    }
}
