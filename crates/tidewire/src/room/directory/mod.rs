//! The names, rooms and topic patterns of a whole server. Its lanes share them.
//!
//! Only joins, leaves, subscriptions, lists and look-ups of names use the directory, so a mutex is sufficient.
//! Messages of rooms and topics do not use it. An atomic read of [`SharedRoom::lanes`] tells a lane which other lanes
//! have members of a room.

mod aliases;
mod histories;
mod names;
mod opening;
mod remote;
mod shapes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_proto::body::name_skeleton;
use tidewire_proto::message::MemberId;
use tidewire_proto::topic::{Pattern, PatternBuf, Shape};

use super::refusal::RoomError;
use super::shared_room::{LaneCounts, SharedRoom};
use super::topics::{Group, Routes, Topics};
use crate::auth::Guard;
use crate::broker::BackplaneLink;
use crate::history::ServerHistories;
use crate::limits::Limits;
use crate::mailbox::Receiver;
use crate::session::{Member, SessionId, TableFull};
use aliases::{Aliases, Quota};
pub(crate) use names::NameConflict;
use names::Names;
use opening::Openings;
use remote::RemoteMembers;
pub(crate) use remote::ShownMember;
use shapes::Shapes;

/// All names, rooms and patterns.
#[derive(Debug)]
pub(crate) struct Directory {
    state: Mutex<State>,
    /// The version of the topics in `state`. Lanes compare it without the lock.
    topics_version: AtomicU64,
    names: Names,
    /// The way to the node, which must know the rooms and patterns of this server.
    backplane: Option<Arc<BackplaneLink>>,
    histories: ServerHistories,
    /// The subscriptions of the node that have no members yet.
    openings: Openings,
}

/// The rooms and patterns. One lock protects both, because they share the aliases.
#[derive(Debug)]
struct State {
    rooms: HashMap<Arc<str>, RoomEntry>,
    /// Skeletons of the names of rooms. They prevent two names in use from looking alike.
    skeletons: HashSet<String>,
    by_alias: HashMap<u16, Arc<SharedRoom>>,
    room_quota: Quota,
    topics: Topics,
    /// The patterns of the node itself.
    own_patterns: usize,
    topic_quota: Quota,
    shapes: Shapes,
    aliases: Aliases,
    /// Members on other nodes that are listed, in all rooms.
    remote_listed: usize,
}

#[derive(Debug)]
struct RoomEntry {
    shared: Arc<SharedRoom>,
    members: BTreeMap<MemberId, Arc<str>>,
    remote: Option<Box<RemoteMembers>>,
    lanes: LaneCounts,
}

/// A room cannot be entered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EnterError {
    /// A limit of rooms is reached.
    Full(TableFull),
    /// The room's name looks like that of another room.
    Confusable,
}

impl Directory {
    pub(crate) fn new(
        limits: &Limits,
        guard: Option<Arc<Guard>>,
        backplane: Option<Arc<BackplaneLink>>,
    ) -> Self {
        let mut state = State {
            rooms: HashMap::new(),
            skeletons: HashSet::new(),
            by_alias: HashMap::new(),
            room_quota: Quota::new(limits.rooms.per_address_max(), limits.rooms.max()),
            topics: Topics::default(),
            own_patterns: 0,
            topic_quota: Quota::new(limits.topics.per_address_max(), limits.topics.max()),
            shapes: Shapes::new(&limits.topics),
            aliases: Aliases::default(),
            remote_listed: 0,
        };
        if backplane.is_some() {
            state.publish_all();
        }
        Self {
            topics_version: AtomicU64::new(state.topics.version()),
            state: Mutex::new(state),
            histories: ServerHistories::new(backplane.clone()),
            backplane,
            openings: Openings::default(),
            names: Names::new(guard),
        }
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// The earlier messages of rooms and topics.
    pub(crate) fn histories(&self) -> &ServerHistories {
        &self.histories
    }

    /// The way to the node, if there is one.
    pub(in crate::room) fn link(&self) -> Option<&BackplaneLink> {
        self.backplane.as_deref()
    }

    pub(crate) fn name_of(&self, alias: u16) -> Option<Box<str>> {
        let state = self.lock();
        Some((&**state.by_alias.get(&alias)?.name()).into())
    }

    /// Adds a member to a room. If there is no such room, this opens it, and the room counts for `owner`.
    pub(crate) fn enter(
        &self,
        room: &str,
        member: &Member,
        lane: usize,
        owner: Option<IpAddr>,
    ) -> Result<(Arc<SharedRoom>, usize), EnterError> {
        let skeleton = name_skeleton(room);
        let mut state = self.lock();
        if !state.rooms.contains_key(room) {
            let quota = &state.room_quota;
            quota
                .check(owner, state.rooms.len())
                .map_err(EnterError::Full)?;
            if state.skeletons.contains(&skeleton) {
                return Err(EnterError::Confusable);
            }
            let alias = state.aliases.take().map_err(EnterError::Full)?;
            state.room_quota.add(owner);
            state.skeletons.insert(skeleton);
            let shared = Arc::new(SharedRoom::room(alias, room, owner));
            if let Some(link) = &self.backplane {
                shared.span();
                link.note_room(room);
            }
            state.by_alias.insert(alias, Arc::clone(&shared));
            let name = Arc::clone(shared.name());
            let entry = RoomEntry {
                shared,
                members: BTreeMap::new(),
                remote: None,
                lanes: LaneCounts::default(),
            };
            state.rooms.insert(name, entry);
        }
        let Some(entry) = state.rooms.get_mut(room) else {
            return Err(EnterError::Full(TableFull::Server));
        };
        entry.members.insert(member.id(), Arc::clone(member.name()));
        entry.lanes.enter(&entry.shared, Receiver::Lane(lane));
        Ok((Arc::clone(&entry.shared), entry.count()))
    }

    /// Removes a member from a room. The last member of this node closes the room here. Returns how many remain on all
    /// nodes.
    pub(crate) fn exit(&self, alias: u16, member: MemberId, lane: usize) -> usize {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(entry) = state.room_at(alias) else {
            return 0;
        };
        if entry.members.remove(&member).is_some() {
            entry.lanes.exit(&entry.shared, Receiver::Lane(lane));
        }
        let remaining = entry.count();
        if entry.members.is_empty() {
            let shared = Arc::clone(&entry.shared);
            let others = entry.remote.as_ref();
            state.remote_listed -= others.map_or(0, |others| others.listed());
            if let Some(link) = &self.backplane {
                link.note_room(shared.name());
            }
            state.room_quota.remove(shared.owner());
            state.skeletons.remove(&name_skeleton(shared.name()));
            state.rooms.remove(shared.name());
            state.by_alias.remove(&alias);
            state.aliases.release(alias);
        }
        remaining
    }

    pub(in crate::room) fn by_alias(&self, alias: u16) -> Option<Arc<SharedRoom>> {
        self.lock().by_alias.get(&alias).cloned()
    }

    /// Returns the room with this name, if it has members here.
    pub(crate) fn room(&self, name: &str) -> Option<Arc<SharedRoom>> {
        let state = self.lock();
        state.rooms.get(name).map(|entry| Arc::clone(&entry.shared))
    }

    /// Returns the pattern with this text, if it has subscribers here.
    pub(in crate::room) fn pattern(&self, text: &str) -> Option<Arc<SharedRoom>> {
        self.lock().topics.shared(text).cloned()
    }

    /// Returns the session of the member `name` and the alias of the room, if the member is in that room.
    pub(in crate::room) fn member_of(&self, room: &str, name: &str) -> Option<(SessionId, u16)> {
        let (member, session) = self.names.holder(name)?;
        let state = self.lock();
        let entry = state.rooms.get(room)?;
        let is_member = entry.members.contains_key(&member);
        is_member.then_some((session, entry.shared.alias()))
    }

    pub(in crate::room) fn member_in(&self, alias: u16, name: &str) -> Option<SessionId> {
        let room = self.by_alias(alias)?;
        Some(self.member_of(room.name(), name)?.0)
    }

    /// Returns the number of members of a room, on all nodes.
    pub(in crate::room) fn size_of(&self, alias: u16) -> usize {
        let mut state = self.lock();
        state.room_at(alias).map_or(0, |entry| entry.count())
    }

    /// Calls `visit` for the members of a room, in the order of their numbers.
    pub(crate) fn roster(&self, alias: u16, mut visit: impl FnMut(MemberId, &str)) {
        let mut state = self.lock();
        let Some(entry) = state.room_at(alias) else {
            return;
        };
        for (member, name) in &entry.members {
            visit(*member, name);
        }
        if let Some(remote) = &entry.remote {
            remote.each_shown(visit);
        }
    }

    /// Adds a session to the subscribers of a pattern, or to the queue group of this name, which has the pattern. The
    /// first subscriber adds the pattern to the table of all lanes, and the pattern counts for its `owner`. Each
    /// subscription in a group counts as a pattern.
    pub(crate) fn subscribe(
        &self,
        pattern: &Pattern<'_>,
        group: Option<&str>,
        id: SessionId,
        owner: Option<IpAddr>,
    ) -> Result<Arc<SharedRoom>, RoomError> {
        if let Some(name) = group {
            let mut state = self.lock();
            let shared = state.subscribe_in_group((pattern, name), id, owner)?;
            state.note_version(&self.topics_version);
            return Ok(shared);
        }
        // It stays open until the pattern has its subscriber.
        let hold = self.histories.hold_topic(pattern);
        let lane = id.lane();
        let mut state = self.lock();
        if let Some(link) = &self.backplane {
            link.note_pattern(pattern.text());
        }
        if let Some(shared) = state.topics.enter(pattern.text(), lane) {
            return Ok(shared);
        }
        let alias = state.take_topic(pattern, owner)?;
        let shared = SharedRoom::pattern(alias, pattern.text(), pattern.shape(), owner);
        if let Some(hold) = &hold {
            shared.keep(|| hold.history());
        }
        let shared = Arc::new(shared);
        let first = Receiver::Lane(lane);
        state.topics.open(Arc::clone(&shared), first);
        state.note_version(&self.topics_version);
        Ok(shared)
    }

    /// Returns the queue group of this name, if it has members.
    pub(in crate::room) fn group(&self, name: &str) -> Option<Arc<Group>> {
        self.lock().topics.group(name).cloned()
    }

    /// Removes a subscriber from a pattern. The last subscriber removes the pattern. Returns the queue group without
    /// it, if it was in one.
    pub(crate) fn unsubscribe(&self, shared: &SharedRoom, lane: usize) -> Option<Arc<Group>> {
        let mut state = self.lock();
        if shared.is_in_group() {
            let group = state.topics.exit_group(shared);
            state.release_topic(shared);
            state.note_version(&self.topics_version);
            return Some(group);
        }
        if let Some(link) = &self.backplane {
            link.note_pattern(shared.name());
        }
        if state.topics.exit(shared.name(), lane) {
            state.release_topic(shared);
            state.note_version(&self.topics_version);
        }
        None
    }

    /// Brings a lane's routes up to date. Most of the time this costs one read.
    #[inline]
    pub(crate) fn refresh(&self, routes: &mut Routes) {
        if !self.is_fresh(routes) {
            refresh_stale(self, routes);
        }
    }

    /// Whether a lane's routes are up to date.
    #[inline]
    pub(in crate::room) fn is_fresh(&self, routes: &Routes) -> bool {
        self.topics_version.load(Ordering::Acquire) == routes.version()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves the maps consistent enough to serve other sessions.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cold]
#[inline(never)]
fn refresh_stale(directory: &Directory, routes: &mut Routes) {
    directory.lock().topics.refresh(routes);
}

impl RoomEntry {
    /// The number of members on all nodes.
    pub(in crate::room) fn count(&self) -> usize {
        let remote = self.remote.as_ref().map_or(0, |remote| remote.len());
        self.members.len() + remote
    }
}

impl State {
    /// Makes the backplane a subscriber of every topic. It shares the alias of the pattern `>` with the subscribers of
    /// that pattern.
    fn publish_all(&mut self) {
        if let Ok(alias) = self.aliases.take() {
            let everything = PatternBuf::everything();
            let everything = everything.as_pattern();
            let shared = SharedRoom::pattern(alias, everything.text(), everything.shape(), None);
            self.topics.open(Arc::new(shared), Receiver::Node);
            self.own_patterns = 1;
        }
    }

    /// Lets the lanes see that the topics have changed.
    fn note_version(&self, version: &AtomicU64) {
        version.store(self.topics.version(), Ordering::Release);
    }

    /// Takes an alias for a pattern, or for a subscription in a queue group, within the limits.
    fn take_topic(
        &mut self,
        pattern: &Pattern<'_>,
        owner: Option<IpAddr>,
    ) -> Result<u16, RoomError> {
        let count = self.topics.len() - self.own_patterns;
        let too_many = |full: TableFull| RoomError::TooManyPatterns(full.into());
        self.topic_quota.check(owner, count).map_err(too_many)?;
        let shape = pattern.shape().filter(Shape::has_inner_wildcard);
        self.shapes.check(shape, owner)?;
        let alias = self.aliases.take().map_err(too_many)?;
        self.topic_quota.add(owner);
        self.shapes.add(shape, owner);
        Ok(alias)
    }

    fn subscribe_in_group(
        &mut self,
        (pattern, name): (&Pattern<'_>, &str),
        id: SessionId,
        owner: Option<IpAddr>,
    ) -> Result<Arc<SharedRoom>, RoomError> {
        if self.topics.group(name).is_some_and(|group| group.is_full()) {
            return Err(RoomError::GroupFull);
        }
        let alias = self.take_topic(pattern, owner)?;
        let shared = SharedRoom::in_group(alias, name, pattern.shape(), owner);
        let shared = Arc::new(shared);
        self.topics.enter_group(&shared, id.lane());
        Ok(shared)
    }

    fn release_topic(&mut self, shared: &SharedRoom) {
        self.aliases.release(shared.alias());
        self.topic_quota.remove(shared.owner());
        self.shapes.remove(shared.limited_shape());
    }

    fn room_at(&mut self, alias: u16) -> Option<&mut RoomEntry> {
        self.rooms.get_mut(self.by_alias.get(&alias)?.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ALIASES_MAX;
    use crate::room::ReachedLimit;

    fn directory(rooms_max: usize, topics_max: usize) -> Directory {
        let mut limits = Limits::default();
        limits.rooms.set_max(rooms_max);
        limits.topics.set_max(topics_max);
        Directory::new(&limits, None, None)
    }

    #[test]
    fn a_room_knows_its_lanes_and_ends_with_its_last_member() {
        let directory = directory(10, 10);
        let alice = directory
            .names
            .claim("alice", SessionId::new(0, 1, 1))
            .unwrap();
        let bob = directory
            .names
            .claim("bob", SessionId::new(3, 1, 1))
            .unwrap();
        let (first, alone) = directory.enter("lobby", &alice, 0, None).unwrap();
        let (_, both) = directory.enter("lobby", &bob, 3, None).unwrap();
        assert_eq!((alone, both), (1, 2));
        assert_eq!(first.others(0), Receiver::Lane(3).into());
        assert_eq!(directory.exit(first.alias(), bob.id(), 3), 1);
        assert!(first.others(0).is_empty());
        assert_eq!(directory.exit(first.alias(), alice.id(), 0), 0);
        assert!(directory.room("lobby").is_none());
        let (again, _) = directory.enter("lobby", &alice, 0, None).unwrap();
        assert_ne!(again.alias(), first.alias(), "aliases go round");
    }

    #[test]
    fn the_room_limit_is_typed() {
        let directory = directory(2, 2);
        let alice = directory
            .names
            .claim("alice", SessionId::new(0, 1, 1))
            .unwrap();
        assert!(directory.enter("a", &alice, 0, None).is_ok());
        assert!(directory.enter("b", &alice, 0, None).is_ok());
        assert_eq!(
            directory.enter("c", &alice, 0, None).unwrap_err(),
            EnterError::Full(TableFull::Server)
        );
    }

    #[test]
    fn rooms_that_look_alike_are_not_in_use_together() {
        let directory = directory(10, 10);
        let alice = directory
            .names
            .claim("alice", SessionId::new(0, 1, 1))
            .unwrap();
        let lobby = directory.enter("lobby1", &alice, 0, None).unwrap().0;
        assert_eq!(
            directory.enter("lobbyl", &alice, 0, None).unwrap_err(),
            EnterError::Confusable
        );
        assert_eq!(directory.exit(lobby.alias(), alice.id(), 0), 0);
        assert!(directory.enter("lobbyl", &alice, 0, None).is_ok());
    }

    /// Regression: with all aliases in use but one, the next room had the alias of the room that had just closed, and
    /// messages that were still on their way between lanes reached the wrong room.
    #[test]
    fn rooms_beyond_the_aliases_are_refused_and_aliases_rest() {
        const ROOMS: usize = ALIASES_MAX + 500;
        let directory = directory(ROOMS, 10);
        let alice = directory
            .names
            .claim("alice", SessionId::new(0, 1, 1))
            .unwrap();
        let mut opened = Vec::new();
        for room in 0..ROOMS {
            match directory.enter(&format!("r{room}"), &alice, 0, None) {
                Ok((entered, _)) => opened.push(entered.alias()),
                Err(error) => assert_eq!(error, EnterError::Full(TableFull::Server)),
            }
        }
        assert_eq!(opened.len(), ALIASES_MAX);
        let closed = opened[ALIASES_MAX / 2];
        directory.exit(closed, alice.id(), 0);
        for round in 0..1_000 {
            let (entered, _) = directory.enter("again", &alice, 0, None).unwrap();
            assert_ne!(entered.alias(), closed, "round {round}");
            directory.exit(entered.alias(), alice.id(), 0);
        }
    }

    #[test]
    fn rooms_and_patterns_never_share_an_alias() {
        let directory = directory(10, 2);
        let alice = directory
            .names
            .claim("alice", SessionId::new(0, 1, 1))
            .unwrap();
        let pattern = |text| Pattern::parse(text).unwrap();
        let session = |lane| SessionId::new(lane, 1, 1);
        let room = directory.enter("a", &alice, 0, None).unwrap().0;
        let topic = directory
            .subscribe(&pattern("a"), None, session(0), None)
            .unwrap();
        assert_ne!(room.alias(), topic.alias());
        assert!(!topic.is_wildcard());
        let again = directory
            .subscribe(&pattern("a"), None, session(5), None)
            .unwrap();
        assert_eq!(again.alias(), topic.alias());
        assert_eq!(topic.others(0), Receiver::Lane(5).into());
        assert!(
            directory
                .subscribe(&pattern("b.*"), None, session(0), None)
                .unwrap()
                .is_wildcard()
        );
        assert_eq!(
            directory
                .subscribe(&pattern("c"), None, session(0), None)
                .unwrap_err(),
            RoomError::TooManyPatterns(ReachedLimit::Server)
        );
        directory.unsubscribe(&topic, 0);
        directory.unsubscribe(&topic, 5);
        let anew = directory
            .subscribe(&pattern("a"), None, session(0), None)
            .unwrap();
        assert_ne!(anew.alias(), topic.alias(), "aliases go round");
    }
}
