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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tidewire_proto::codec::{AnyCodec, Codec, Decoded};
use tidewire_proto::message::Kind;
use tidewire_proto::topic::{Pattern, PatternIndex};

use super::LaneTopics;
use super::publishing::append_without_offset;
use crate::observe::DropReason;
use crate::room::{RoomError, SharedRoom};
use crate::session::{LogKey, Session};

/// The subscriptions of a group, at one time. A change makes another value.
#[derive(Debug)]
pub(crate) struct Group {
    /// The pattern, a space, and the name of the group.
    name: Arc<str>,
    members: Vec<Arc<SharedRoom>>,
    /// The member whose turn it is.
    turn: AtomicUsize,
    /// The fewest unsent messages that a member had at the last choice. A member with no more is chosen without a look
    /// at the others.
    least: AtomicU64,
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
            least: AtomicU64::new(0),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(in crate::room) fn is_full(&self) -> bool {
        self.members.len() >= MEMBERS_MAX
    }

    /// The member that gets the next message: one that blocks nobody, with the fewest unsent messages. `None` if the
    /// group has no members.
    pub(super) fn choose(&self) -> Option<&Arc<SharedRoom>> {
        // Two lanes may take the same turn, which harms nothing.
        let start = self.turn.load(Ordering::Relaxed);
        let start = if start < self.members.len() { start } else { 0 };
        self.turn.store(start + 1, Ordering::Relaxed);
        let (before, after) = self.members.split_at(start);
        let least = (false, self.least.load(Ordering::Relaxed));
        let mut best: Option<(&Arc<SharedRoom>, (bool, u64))> = None;
        for member in after.iter().chain(before) {
            let burden = (member.is_congested(), member.unsent());
            if best.is_none_or(|(_, fewest)| burden < fewest) {
                best = Some((member, burden));
                if burden <= least {
                    break;
                }
            }
        }
        let (member, (_, unsent)) = best?;
        self.least.store(unsent, Ordering::Relaxed);
        Some(member)
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

    /// Takes over what a group is now. `None` if it has no members any more.
    pub(super) fn apply(&mut self, name: &str, group: Option<&Arc<Group>>) {
        // Only groups whose pattern parsed were added.
        let Ok(pattern) = Pattern::parse(pattern_of(name)) else {
            return;
        };
        let mut groups = self.0.remove(&pattern).unwrap_or_default();
        groups.retain(|it| *it.name != *name);
        groups.extend(group.cloned());
        if !groups.is_empty() {
            self.0.insert(&pattern, groups);
        }
    }
}

/// The topic and the payload of a message that a member was not sent.
pub(super) type Unsent = (Box<str>, Vec<u8>);

/// Members of a group. A publication looks at each, and the messages of one that leaves go to the others one by one.
const MEMBERS_MAX: usize = 256;

/// The topic and the payload of a frame in the log of a subscription in a group.
fn published(codec: &AnyCodec, group: &str, frame: &[u8]) -> Option<Unsent> {
    let Ok(Decoded::Frame { message, .. }) = codec.decode(frame, usize::MAX) else {
        return None;
    };
    let pattern = Pattern::parse(pattern_of(group)).ok()?;
    let topic = match message.name {
        "" => pattern.text(),
        topic => topic,
    };
    let is_of_group = message.kind == Kind::Deliver && pattern.matches(topic);
    is_of_group.then(|| (topic.into(), message.payload.to_vec()))
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
        // Its lane corrects the number after the next sweep.
        member.add_unsent();
        Ok(Some(member))
    }

    /// Gives the unsent messages of a member that has left to the other members of its group.
    #[cold]
    pub(super) fn pass_on(&mut self, alias: u16, group: &Group, unsent: Vec<Unsent>) {
        self.open.note_left_group(alias, Arc::clone(&group.name));
        for (topic, payload) in unsent {
            self.give_again(Some(group), &topic, &payload);
        }
    }

    /// Gives a message of a member that has left to another one of its group.
    fn give_again(&mut self, group: Option<&Group>, topic: &str, payload: &[u8]) {
        let must_drop = self.sessions.relief.is_short() && !self.sessions.relief_pass().may_grow();
        let given = match group.filter(|_| !must_drop) {
            Some(group) => self.give_to(group, topic, payload),
            None => Ok(None),
        };
        if !matches!(given, Ok(Some(_))) {
            let reason = match must_drop {
                true => DropReason::Memory,
                false => DropReason::Left,
            };
            let counters = &self.sessions.counters;
            counters.room_offered.add(1);
            counters.room_dropped[reason as usize].add(1);
        }
    }

    /// Ends the subscriptions in queue groups of a session to which nothing can be written any more, so that others get
    /// its messages.
    #[cold]
    pub(in crate::room) fn leave_groups(&mut self, slot: usize) {
        let in_group = |session: &Session| {
            let is_unwritable = !session.connection.output().is_writing();
            let mut memberships = session.memberships.iter().filter(|_| is_unwritable);
            memberships.position(|membership| membership.is_in_group())
        };
        while let Some(subscription) = self.sessions.table.get(slot).and_then(in_group) {
            self.detach(slot, subscription, DropReason::Closed);
        }
    }

    /// Handles a message of another lane for a subscription that has ended meanwhile. One in a queue group lets another
    /// member have the message.
    #[cold]
    pub(in crate::room) fn redirect(&mut self, log: LogKey, frame: &[u8]) {
        let Some(name) = self.open.left_group(log.alias()).cloned() else {
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
    #[cold]
    pub(super) fn unsent_of(&self, slot: usize, subscription: usize) -> Vec<Unsent> {
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
    use tidewire_proto::message::Message;
    use tidewire_proto::room::Policy;

    use super::super::Wanted;
    use super::*;
    use crate::lane::{Lane, lane};
    use crate::limits::Limits;
    use crate::mailbox::BatchEntry;
    use crate::server::Server;
    use crate::service::Service;
    use crate::session::SessionId;

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
            groups.add(member);
            routes.apply(member.name(), groups.get(member.name()));
        }
        let mut remove = |routes: &mut GroupRoutes, member: &SharedRoom| {
            groups.remove(member);
            routes.apply(member.name(), groups.get(member.name()));
        };
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
        remove(&mut routes, &one);
        assert_eq!(found(&routes, "jobs.a").len(), 2);
        remove(&mut routes, &other);
        assert_eq!(found(&routes, "jobs.a"), ["jobs.* loggers"]);
        remove(&mut routes, &third);
        assert!(found(&routes, "jobs.a").is_empty());
    }

    fn join(lane: &mut Lane<impl Service>, slot: usize, policy: Policy) -> u16 {
        let id = lane.core.sessions[slot].id;
        let wanted = Wanted::in_group("jobs.*", Some("workers"));
        let mut rooms = lane.core.rooms();
        rooms.topics().subscribe(id, wanted, Some(policy)).unwrap()
    }

    fn publish(lane: &mut Lane<impl Service>, count: usize) {
        for _ in 0..count {
            let mut rooms = lane.core.rooms();
            let published = rooms.topics().publish(SessionId::NONE, "jobs.a", b"work");
            published.unwrap();
        }
    }

    fn behind(lane: &Lane<impl Service>, slot: usize) -> u64 {
        let session = &lane.core.sessions[slot];
        let membership = &session.memberships[0];
        let log = lane.core.sessions.logs.get(membership.log()).unwrap();
        membership.subscriber.messages_behind(log)
    }

    /// Everything was offered once, or given to another member once more.
    fn check_conservation(lane: &Lane<impl Service>, published: u64, waiting: u64) {
        let counters = &lane.core.counters;
        let dropped = |reason: DropReason| counters.room_dropped[reason as usize].read();
        let reassigned = dropped(DropReason::Reassigned);
        assert_eq!(counters.room_offered.read(), published + reassigned);
        assert_eq!(counters.room_delivered.read() + waiting, published);
    }

    /// Regression: the log of a member that took no more bytes grew without a limit as long as it stayed open.
    #[test]
    fn a_member_that_takes_no_more_bytes_leaves_its_groups() {
        let mut lane = lane(&Server::builder());
        let ((broken, _end), (other, _other_end)) = (lane.open_session(), lane.open_session());
        join(&mut lane, broken, Policy::Disconnect);
        lane.core.sessions[broken]
            .connection
            .output_mut()
            .handle_blocked();
        publish(&mut lane, 10);
        join(&mut lane, other, Policy::Disconnect);
        assert_eq!(behind(&lane, broken), 10);
        lane.core.sessions[broken].connection.handle_write_failed();
        lane.core.sessions.flush(broken);
        lane.core.rooms().release_held(&mut Vec::new());
        assert!(lane.core.sessions[broken].memberships.is_empty());
        assert_eq!(behind(&lane, other), 10);
        publish(&mut lane, 5);
        assert_eq!(behind(&lane, other), 15);
        check_conservation(&lane, 15, 15);
    }

    /// Regression: all that waited for a member went to one other, which was over its limit then, and so on.
    #[test]
    fn the_messages_of_a_member_that_leaves_are_spread_over_the_others() {
        let mut lane = lane(&Server::builder());
        let mut sessions: Vec<_> = (0..8).map(|_| lane.open_session()).collect();
        let (first, _end) = sessions.remove(0);
        join(&mut lane, first, Policy::Disconnect);
        publish(&mut lane, 700);
        for (slot, _) in &sessions {
            join(&mut lane, *slot, Policy::Disconnect);
        }
        lane.core.rooms().leave_all(first);
        let shares: Vec<u64> = sessions
            .iter()
            .map(|(slot, _)| behind(&lane, *slot))
            .collect();
        assert_eq!(shares, [100; 7]);
        check_conservation(&lane, 700, 700);
    }

    /// Regression: a message of a room that had the alias of a former member came to a group.
    #[test]
    fn only_publications_for_the_former_member_are_given_again() {
        let mut lane = lane(&Server::builder());
        let ((former, _end), (other, _other_end)) = (lane.open_session(), lane.open_session());
        let alias = join(&mut lane, former, Policy::Disconnect);
        join(&mut lane, other, Policy::Disconnect);
        lane.core.rooms().leave_all(former);
        let framed = |kind, topic: &str| {
            let mut frame = Vec::new();
            let message = Message::new(kind, alias, b"work").with_name(topic);
            AnyCodec::default().encode(&message, &mut frame).unwrap();
            frame
        };
        for (frame, expected) in [
            (framed(Kind::Deliver, "jobs.a"), 1),
            (framed(Kind::Deliver, "ada"), 1),
            (framed(Kind::Publish, "jobs.a"), 1),
        ] {
            let log = LogKey::main(alias);
            let entry = BatchEntry::Room { log, frame: &frame };
            lane.core.rooms().deliver_entry(&entry);
            assert_eq!(behind(&lane, other), expected);
        }
        // A room with the alias: the lane does not know the group of the alias any more.
        let member = lane.core.sessions[other].memberships[0].room();
        assert_ne!(member, alias);
        let room = Arc::new(SharedRoom::room(alias, "lobby", None));
        let mut rooms = lane.core.rooms();
        rooms.deliveries().attach(former, &room, None);
        assert!(lane.core.rooms.open().left_group(alias).is_none());
    }

    #[test]
    fn a_group_has_a_limit_of_members() {
        let mut limits = Limits::default();
        limits.topics.set_per_session_max(1_000);
        let mut lane = lane(&Server::builder().limits(limits));
        let sessions: Vec<_> = (0..=MEMBERS_MAX).map(|_| lane.open_session()).collect();
        let mut subscribe = |slot: usize| {
            let id = lane.core.sessions[slot].id;
            let wanted = Wanted::in_group("jobs.*", Some("workers"));
            lane.core.rooms().topics().subscribe(id, wanted, None)
        };
        for (slot, _) in &sessions[..MEMBERS_MAX] {
            subscribe(*slot).unwrap();
        }
        assert_eq!(
            subscribe(sessions[MEMBERS_MAX].0),
            Err(RoomError::GroupFull)
        );
    }
}
