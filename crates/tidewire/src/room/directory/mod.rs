//! The names, rooms and topic patterns of a whole server. Its lanes share them.
//!
//! Only joins, leaves, subscriptions, lists and look-ups of names use the directory, so a mutex is sufficient.
//! Messages of rooms and topics do not use it. An atomic read of [`SharedRoom::lanes`] tells a lane which other lanes
//! have members of a room.

mod histories;
mod opening;
mod remote;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_proto::body::name_skeleton;
use tidewire_proto::message::MemberId;
use tidewire_proto::topic::Pattern;

use super::shared_room::{LaneCounts, SharedRoom};
use super::topics::{Routes, Topics};
use crate::auth::Guard;
use crate::broker::BackplaneLink;
use crate::history::ServerHistories;
use crate::limits::{ALIASES_MAX, Limits};
use crate::mailbox::Receiver;
use crate::session::{Member, SessionId};
use crate::session::{Shares, TableFull};
use opening::Openings;
use remote::RemoteMembers;
pub(crate) use remote::Shown;

/// All names, rooms and patterns.
#[derive(Debug)]
pub(crate) struct Directory {
    state: Mutex<State>,
    /// The version of the topics in `state`. Lanes compare it without the lock.
    topics_version: AtomicU64,
    limits: TableLimits,
    /// The way to the node, which must know the rooms and patterns of this server.
    backplane: Option<Arc<BackplaneLink>>,
    /// Knows the names that belong to identities.
    guard: Option<Arc<Guard>>,
    histories: ServerHistories,
    /// The subscriptions of the node that have no members yet.
    openings: Openings,
}

/// How many entries the tables have, in total and per address.
#[derive(Debug)]
struct TableLimits {
    rooms: usize,
    rooms_per_address: usize,
    topics: usize,
    topics_per_address: usize,
}

/// The result of entering a room.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) room: Arc<SharedRoom>,
    pub(crate) members: usize,
}

#[derive(Debug, Default)]
struct State {
    names: HashMap<Arc<str>, (MemberId, SessionId)>,
    /// Skeletons of the names. They prevent two names in use from looking alike.
    name_skeletons: HashSet<String>,
    rooms: HashMap<Box<str>, RoomEntry>,
    /// Skeletons of the rooms' names, for the same reason.
    room_skeletons: HashSet<String>,
    by_alias: HashMap<u16, Box<str>>,
    topics: Topics,
    /// Aliases of `topics`. Rooms and patterns share one range, so that a channel means one thing on a connection.
    topic_aliases: HashSet<u16>,
    room_shares: Shares,
    topic_shares: Shares,
    /// Members on other nodes that are listed, in all rooms.
    remote_listed: usize,
    member_last: u32,
    alias_last: u16,
}

#[derive(Debug)]
struct RoomEntry {
    shared: Arc<SharedRoom>,
    members: BTreeMap<MemberId, Arc<str>>,
    /// Members on other nodes.
    remote: Option<Box<RemoteMembers>>,
    lanes: LaneCounts,
}

/// A name is not available.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NameConflict {
    /// Another session has the name.
    Taken,
    /// The name looks like one that is in use.
    Confusable,
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
        let mut state = State::default();
        if backplane.is_some() {
            state.publish_all();
        }
        Self {
            topics_version: AtomicU64::new(state.topics.version()),
            state: Mutex::new(state),
            histories: ServerHistories::new(backplane.clone()),
            backplane,
            openings: Openings::default(),
            guard,
            limits: TableLimits {
                rooms: limits.rooms.max(),
                rooms_per_address: limits.rooms.per_address_max(),
                topics: limits.topics.max(),
                topics_per_address: limits.topics.per_address_max(),
            },
        }
    }

    /// The earlier messages of rooms and topics.
    pub(crate) fn histories(&self) -> &ServerHistories {
        &self.histories
    }

    /// The way to the node, if there is one.
    pub(in crate::room) fn link(&self) -> Option<&BackplaneLink> {
        self.backplane.as_deref()
    }

    /// Whether a name belongs to an identity, so that only that identity may use it.
    pub(crate) fn is_reserved(&self, name: &str) -> bool {
        let guard = self.guard.as_ref();
        guard.is_some_and(|guard| guard.is_reserved(name))
    }

    /// The name of the room with this alias.
    pub(crate) fn name_of(&self, alias: u16) -> Option<Box<str>> {
        self.lock().by_alias.get(&alias).cloned()
    }

    /// Reserves a name for a session.
    pub(crate) fn claim(&self, name: &str, session: SessionId) -> Result<Member, NameConflict> {
        let skeleton = name_skeleton(name);
        let mut state = self.lock();
        if state.names.contains_key(name) {
            return Err(NameConflict::Taken);
        }
        if !state.name_skeletons.insert(skeleton) {
            return Err(NameConflict::Confusable);
        }
        let member = Member {
            id: state.next_member(),
            name: Arc::from(name),
        };
        state
            .names
            .insert(Arc::clone(&member.name), (member.id, session));
        Ok(member)
    }

    pub(crate) fn release(&self, member: &Member) {
        let skeleton = name_skeleton(&member.name);
        let mut state = self.lock();
        if state.names.remove(&member.name).is_some() {
            state.name_skeletons.remove(&skeleton);
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<SessionId> {
        self.lock().names.get(name).map(|(_, session)| *session)
    }

    /// Adds a member to a room. If there is no such room, this opens it, and the room counts for `owner`.
    pub(crate) fn enter(
        &self,
        room: &str,
        member: &Member,
        lane: usize,
        owner: Option<IpAddr>,
    ) -> Result<Entered, EnterError> {
        let skeleton = name_skeleton(room);
        let mut state = self.lock();
        if !state.rooms.contains_key(room) {
            let (count, limits) = (state.rooms.len(), &self.limits);
            let shares = &state.room_shares;
            shares
                .check(owner, limits.rooms_per_address, count, limits.rooms)
                .map_err(EnterError::Full)?;
            if state.room_skeletons.contains(&skeleton) {
                return Err(EnterError::Confusable);
            }
            let alias = state.free_alias().map_err(EnterError::Full)?;
            state.room_shares.add(owner);
            state.room_skeletons.insert(skeleton);
            let mut shared = SharedRoom::new(alias, None, owner);
            if let Some(link) = &self.backplane {
                shared.span(room);
                link.note_room(room);
            }
            let entry = RoomEntry {
                shared: Arc::new(shared),
                members: BTreeMap::new(),
                remote: None,
                lanes: LaneCounts::default(),
            };
            state.by_alias.insert(alias, room.into());
            state.rooms.insert(room.into(), entry);
        }
        let Some(entry) = state.rooms.get_mut(room) else {
            return Err(EnterError::Full(TableFull::Server));
        };
        entry.members.insert(member.id, Arc::clone(&member.name));
        entry.lanes.enter(&entry.shared, Receiver::Lane(lane));
        Ok(Entered {
            room: Arc::clone(&entry.shared),
            members: entry.count(),
        })
    }

    /// Removes a member from a room. The last one of this node closes the room here. Returns how many remain on all nodes.
    pub(crate) fn exit(&self, alias: u16, member: MemberId, lane: usize) -> usize {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(name) = state.by_alias.get(&alias) else {
            return 0;
        };
        let Some(entry) = state.rooms.get_mut(name) else {
            return 0;
        };
        if entry.members.remove(&member).is_some() {
            entry.lanes.exit(&entry.shared, Receiver::Lane(lane));
        }
        let remaining = entry.count();
        if entry.members.is_empty() {
            if let Some(link) = &self.backplane {
                link.note_room(name);
            }
            state.room_shares.remove(entry.shared.owner);
            state.room_skeletons.remove(&name_skeleton(name));
            let others = entry.remote.as_ref();
            state.remote_listed -= others.map_or(0, |others| others.listed.len());
            state.rooms.remove(name);
            state.by_alias.remove(&alias);
        }
        remaining
    }

    /// Returns the alias of the room with this name.
    pub(crate) fn alias_of(&self, room: &str) -> Option<u16> {
        self.lock().rooms.get(room).map(|entry| entry.shared.alias)
    }

    /// Returns the alias of the pattern with this text.
    pub(in crate::room) fn alias_of_pattern(&self, pattern: &str) -> Option<u16> {
        self.lock()
            .topics
            .shared(pattern)
            .map(|shared| shared.alias)
    }

    /// Returns the room with this alias, and its name.
    pub(in crate::room) fn by_alias(&self, alias: u16) -> Option<(Arc<SharedRoom>, Box<str>)> {
        let state = self.lock();
        let name = state.by_alias.get(&alias)?;
        let entry = state.rooms.get(name)?;
        Some((Arc::clone(&entry.shared), name.clone()))
    }

    /// Returns the room with this name, if it has members.
    pub(in crate::room) fn by_name(&self, room: &str) -> Option<Arc<SharedRoom>> {
        let state = self.lock();
        state.rooms.get(room).map(|entry| Arc::clone(&entry.shared))
    }

    /// Returns the session of the member `name` and the alias of the room, if the member is in that room.
    pub(in crate::room) fn member_of(&self, room: &str, name: &str) -> Option<(SessionId, u16)> {
        self.lock().member_of(room, name)
    }

    /// Returns the session of the member `name`, if the member is in the room with this alias.
    pub(in crate::room) fn member_in(&self, alias: u16, name: &str) -> Option<SessionId> {
        let state = self.lock();
        let room = state.by_alias.get(&alias)?;
        Some(state.member_of(room, name)?.0)
    }

    /// Returns the number of members of a room, on all nodes.
    pub(in crate::room) fn size_of(&self, alias: u16) -> usize {
        let state = self.lock();
        let name = state.by_alias.get(&alias);
        let entry = name.and_then(|name| state.rooms.get(name));
        entry.map_or(0, RoomEntry::count)
    }

    /// Calls `visit` for the members of a room, in the order of their numbers.
    pub(crate) fn roster(&self, alias: u16, mut visit: impl FnMut(MemberId, &str)) {
        let state = self.lock();
        let entry = state
            .by_alias
            .get(&alias)
            .and_then(|name| state.rooms.get(name));
        for (member, name) in entry.iter().flat_map(|entry| &entry.members) {
            visit(*member, name);
        }
        let remote = entry.and_then(|entry| entry.remote.as_ref());
        for (member, remote) in remote.iter().flat_map(|remote| &remote.listed) {
            visit(*member, &remote.shown);
        }
    }

    /// Adds a subscriber to a pattern. The first subscriber adds the pattern to the table of all lanes, and the
    /// pattern counts for its `owner`.
    pub(crate) fn subscribe(
        &self,
        pattern: &Pattern<'_>,
        lane: usize,
        owner: Option<IpAddr>,
    ) -> Result<Arc<SharedRoom>, TableFull> {
        // It stays open until the pattern has its subscriber.
        let hold = self.histories.hold_topic(pattern);
        let mut state = self.lock();
        if let Some(link) = &self.backplane {
            link.note_pattern(pattern.text());
        }
        if let Some(shared) = state.topics.enter(pattern.text(), lane) {
            return Ok(shared);
        }
        let own = usize::from(self.backplane.is_some());
        let (count, limits) = (state.topics.len() - own, &self.limits);
        let shares = &state.topic_shares;
        shares.check(owner, limits.topics_per_address, count, limits.topics)?;
        let alias = state.free_alias()?;
        state.topic_shares.add(owner);
        state.topic_aliases.insert(alias);
        let text: Arc<str> = pattern.text().into();
        let mut shared = SharedRoom::new(alias, Some(Arc::clone(&text)), owner);
        shared.is_wildcard = pattern.is_wildcard();
        if let Some(hold) = &hold {
            shared.history = hold.history().into();
        }
        let shared = Arc::new(shared);
        let first = Receiver::Lane(lane);
        state.topics.open(&text, Arc::clone(&shared), first);
        self.topics_version
            .store(state.topics.version(), Ordering::Release);
        Ok(shared)
    }

    /// Removes a subscriber from a pattern. The last one removes the pattern.
    pub(crate) fn unsubscribe(&self, shared: &SharedRoom, lane: usize) {
        let Some(pattern) = &shared.pattern else {
            return;
        };
        let mut state = self.lock();
        if let Some(link) = &self.backplane {
            link.note_pattern(pattern);
        }
        if state.topics.exit(pattern, lane) {
            state.topic_aliases.remove(&shared.alias);
            state.topic_shares.remove(shared.owner);
            self.topics_version
                .store(state.topics.version(), Ordering::Release);
        }
    }

    /// Brings a lane's routes up to date. Most of the time this costs one read.
    #[inline]
    pub(crate) fn refresh(&self, routes: &mut Routes) {
        if self.topics_version.load(Ordering::Acquire) != routes.version() {
            self.refresh_stale(routes);
        }
    }

    #[cold]
    #[inline(never)]
    fn refresh_stale(&self, routes: &mut Routes) {
        self.lock().topics.refresh(routes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves the maps consistent enough to serve other sessions.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RoomEntry {
    /// The number of members on all nodes.
    pub(in crate::room) fn count(&self) -> usize {
        let remote = self.remote.as_ref().map_or(0, |remote| remote.len());
        self.members.len() + remote
    }
}

impl State {
    /// Makes the backplane a subscriber of every topic. It shares the alias of the pattern `>` with those who subscribe to that.
    fn publish_all(&mut self) {
        let Ok(alias) = self.free_alias() else {
            return;
        };
        let text: Arc<str> = ">".into();
        let mut shared = SharedRoom::new(alias, Some(Arc::clone(&text)), None);
        shared.is_wildcard = true;
        self.topic_aliases.insert(alias);
        self.topics.open(&text, Arc::new(shared), Receiver::Node);
    }

    pub(in crate::room) fn room(&self, name: &str) -> Option<&RoomEntry> {
        self.rooms.get(name)
    }

    pub(in crate::room) fn room_mut(&mut self, name: &str) -> Option<&mut RoomEntry> {
        self.rooms.get_mut(name)
    }

    pub(in crate::room) fn name_of(&self, alias: u16) -> Option<&str> {
        self.by_alias.get(&alias).map(|name| &**name)
    }

    /// The session that has a name on this node.
    pub(in crate::room) fn session_named(&self, name: &str) -> Option<SessionId> {
        self.names.get(name).map(|(_, session)| *session)
    }

    /// Whether a pattern has subscribers on this node who get the messages from other nodes, and not from a history.
    pub(in crate::room) fn has_pattern(&self, pattern: &str) -> bool {
        let shared = self.topics.shared(pattern);
        shared.is_some_and(|shared| !shared.is_numbered_by_carrier())
    }

    /// Returns a topic that has subscribers on this node.
    pub(in crate::room) fn topic(&self, topic: &str) -> Option<&Arc<SharedRoom>> {
        self.topics.shared(topic)
    }

    pub(in crate::room) fn next_member(&mut self) -> MemberId {
        self.member_last = self.member_last.wrapping_add(1);
        MemberId(self.member_last)
    }

    /// The session of the member `name` and the alias of the room, if the member is in that room.
    fn member_of(&self, room: &str, name: &str) -> Option<(SessionId, u16)> {
        let entry = self.rooms.get(room)?;
        let (member, session) = self.names.get(name)?;
        let is_member = entry.members.contains_key(member);
        is_member.then_some((*session, entry.shared.alias))
    }

    /// Returns the next free alias. Aliases are used in turn, so that a room does not get an alias whose old frames
    /// are still on their way between lanes. Alias 0 means "none".
    fn free_alias(&mut self) -> Result<u16, TableFull> {
        if self.by_alias.len() + self.topic_aliases.len() >= ALIASES_MAX {
            return Err(TableFull::Server);
        }
        loop {
            self.alias_last = self.alias_last.wrapping_add(1);
            let alias = &self.alias_last;
            if *alias != 0
                && !self.by_alias.contains_key(alias)
                && !self.topic_aliases.contains(alias)
            {
                return Ok(*alias);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(rooms_max: usize, topics_max: usize) -> Directory {
        let mut limits = Limits::default();
        limits.rooms.set_max(rooms_max);
        limits.topics.set_max(topics_max);
        Directory::new(&limits, None, None)
    }

    #[test]
    fn a_name_is_unique_until_it_is_released() {
        let directory = directory(10, 10);
        let alice = directory.claim("alice", SessionId::new(0, 1, 1)).unwrap();
        assert_eq!(
            directory
                .claim("alice", SessionId::new(0, 2, 2))
                .unwrap_err(),
            NameConflict::Taken
        );
        assert_eq!(directory.find("alice"), Some(SessionId::new(0, 1, 1)));
        directory.release(&alice);
        assert!(directory.claim("alice", SessionId::new(0, 2, 2)).is_ok());
    }

    #[test]
    fn a_room_knows_its_lanes_and_ends_with_its_last_member() {
        let directory = directory(10, 10);
        let alice = directory.claim("alice", SessionId::new(0, 1, 1)).unwrap();
        let bob = directory.claim("bob", SessionId::new(3, 1, 1)).unwrap();
        let first = directory.enter("lobby", &alice, 0, None).unwrap();
        let second = directory.enter("lobby", &bob, 3, None).unwrap();
        assert_eq!((first.members, second.members), (1, 2));
        assert_eq!(first.room.others(0), Receiver::Lane(3).into());
        assert_eq!(directory.exit(first.room.alias, bob.id, 3), 1);
        assert!(first.room.others(0).is_empty());
        assert_eq!(directory.exit(first.room.alias, alice.id, 0), 0);
        assert_eq!(directory.alias_of("lobby"), None);
        let again = directory.enter("lobby", &alice, 0, None).unwrap();
        assert_ne!(again.room.alias, first.room.alias, "aliases go round");
    }

    #[test]
    fn the_room_limit_is_typed() {
        let directory = directory(2, 2);
        let alice = directory.claim("alice", SessionId::new(0, 1, 1)).unwrap();
        assert!(directory.enter("a", &alice, 0, None).is_ok());
        assert!(directory.enter("b", &alice, 0, None).is_ok());
        assert_eq!(
            directory.enter("c", &alice, 0, None).unwrap_err(),
            EnterError::Full(TableFull::Server)
        );
    }

    #[test]
    fn names_and_rooms_that_look_alike_are_not_in_use_together() {
        let directory = directory(10, 10);
        let session = |slot| SessionId::new(0, slot, 1);
        let real = directory.claim("admin1", session(1)).unwrap();
        assert_eq!(
            directory.claim("adminl", session(2)).unwrap_err(),
            NameConflict::Confusable
        );
        assert!(directory.claim("admin2", session(2)).is_ok());
        directory.release(&real);
        let other = directory.claim("adminl", session(2)).unwrap();
        // A released name does not affect a name that looks like it.
        directory.release(&real);
        assert_eq!(
            directory.claim("admin1", session(1)).unwrap_err(),
            NameConflict::Confusable
        );
        let lobby = directory.enter("lobby1", &other, 0, None).unwrap().room;
        assert_eq!(
            directory.enter("lobbyl", &other, 0, None).unwrap_err(),
            EnterError::Confusable
        );
        assert_eq!(directory.exit(lobby.alias, other.id, 0), 0);
        assert!(directory.enter("lobbyl", &other, 0, None).is_ok());
    }

    /// Regression: with all aliases in use but one, the next room had the alias of the one that had just closed, and messages
    /// that were still on their way between lanes reached the wrong room.
    #[test]
    fn rooms_beyond_the_aliases_are_refused_and_aliases_rest() {
        const ROOMS: usize = ALIASES_MAX + 500;
        let directory = directory(ROOMS, 10);
        let alice = directory.claim("alice", SessionId::new(0, 1, 1)).unwrap();
        let mut opened = Vec::new();
        for room in 0..ROOMS {
            match directory.enter(&format!("r{room}"), &alice, 0, None) {
                Ok(entered) => opened.push(entered.room.alias),
                Err(error) => assert_eq!(error, EnterError::Full(TableFull::Server)),
            }
        }
        assert_eq!(opened.len(), ALIASES_MAX);
        let closed = opened[ALIASES_MAX / 2];
        directory.exit(closed, alice.id, 0);
        for round in 0..1_000 {
            let entered = directory.enter("again", &alice, 0, None).unwrap();
            assert_ne!(entered.room.alias, closed, "round {round}");
            directory.exit(entered.room.alias, alice.id, 0);
        }
    }

    #[test]
    fn rooms_and_patterns_never_share_an_alias() {
        let directory = directory(10, 2);
        let alice = directory.claim("alice", SessionId::new(0, 1, 1)).unwrap();
        let pattern = |text| Pattern::parse(text).unwrap();
        let room = directory.enter("a", &alice, 0, None).unwrap().room;
        let topic = directory.subscribe(&pattern("a"), 0, None).unwrap();
        assert_ne!(room.alias, topic.alias);
        assert!(!topic.is_wildcard);
        let again = directory.subscribe(&pattern("a"), 5, None).unwrap();
        assert_eq!(again.alias, topic.alias);
        assert_eq!(topic.others(0), Receiver::Lane(5).into());
        assert!(
            directory
                .subscribe(&pattern("b.*"), 0, None)
                .unwrap()
                .is_wildcard
        );
        assert_eq!(
            directory.subscribe(&pattern("c"), 0, None).unwrap_err(),
            TableFull::Server
        );
        directory.unsubscribe(&topic, 0);
        directory.unsubscribe(&topic, 5);
        let anew = directory.subscribe(&pattern("a"), 0, None).unwrap();
        assert_ne!(anew.alias, topic.alias, "aliases go round");
    }
}
