//! Presence: the rooms of this node, their members on other nodes, and what the other nodes are told.

mod local_room;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_proto::backplane::entry::encode_here;
use tidewire_proto::backplane::sequence::EntryCounts;
use tidewire_proto::backplane::{Entry, Here, SequenceKind};
use tidewire_proto::body::validate_name;
use tidewire_proto::message::{MemberId, PresenceEvent};

use super::author::Author;
use super::openings::Openings;
use super::peers::Peers;
use super::to_engine::ToEngine;
use super::to_lanes::ToLanes;
use super::{Subject, Wire};
use crate::config::Config;
use crate::observe::LaneCounters;
use crate::room::{Directory, SharedRoom, ShownMember};
use local_room::LocalRoom;

/// The rooms with members on this node.
#[derive(Debug)]
pub(super) struct Presence {
    directory: Arc<Directory>,
    config: Arc<Config>,
    counters: Arc<CachePadded<LaneCounters>>,
    rooms: HashMap<Box<str>, LocalRoom>,
    /// Authors that are not listed and were noted since they were forgotten last.
    authors: usize,
    /// The first questions of rooms that not all nodes have answered.
    first_questions: HashMap<Box<str>, FirstQuestion>,
    /// Rooms whose members must be told in the next turn, and whether the others must be asked for theirs.
    due_rooms: HashMap<Box<str>, bool>,
    /// Large rooms whose number of members must be told at the next heartbeat.
    due_counts: HashSet<Box<str>>,
}

/// The question of a room for its members on other nodes, which it asks when it opens. The question or an answer may be
/// lost.
#[derive(Debug, Default)]
struct FirstQuestion {
    answered: HashSet<Arc<str>>,
    beats: u32,
}

impl Presence {
    pub(super) fn new(
        directory: Arc<Directory>,
        config: Arc<Config>,
        counters: Arc<CachePadded<LaneCounters>>,
    ) -> Self {
        Self {
            directory,
            config,
            counters,
            rooms: HashMap::new(),
            authors: 0,
            first_questions: HashMap::new(),
            due_rooms: HashMap::new(),
            due_counts: HashSet::new(),
        }
    }

    /// Whether a room has members here, as far as the node was told.
    pub(super) fn has(&self, room: &str) -> bool {
        self.rooms.contains_key(room)
    }

    pub(super) fn room(&self, name: &str) -> Option<&Arc<SharedRoom>> {
        self.rooms.get(name).map(LocalRoom::shared)
    }

    pub(super) fn rooms(&self) -> impl Iterator<Item = &Arc<SharedRoom>> {
        self.rooms.values().map(LocalRoom::shared)
    }

    /// The names of the rooms in which members of a node are known.
    pub(super) fn rooms_with(&self, node: &str) -> impl Iterator<Item = &str> {
        let rooms = self.rooms.iter();
        let rooms = rooms.filter(move |(_, room)| room.has_members_of(node));
        rooms.map(|(name, _)| &**name)
    }

    /// Subscribes to rooms that have members now, and asks for their members on other nodes.
    pub(super) fn open(
        &mut self,
        names: &HashSet<Box<str>>,
        openings: &mut Openings,
        engine: &mut ToEngine,
        wire: &mut dyn Wire,
    ) {
        for name in names {
            let Some(shared) = self.directory.room(name) else {
                continue;
            };
            match self.rooms.get_mut(name) {
                Some(room) if room.shared().alias() == shared.alias() => {
                    if !room.ask() {
                        continue;
                    }
                }
                // The room was closed and opened again, and its subscription stays.
                Some(room) => *room = LocalRoom::new(shared, true),
                None => {
                    if !openings.take(SequenceKind::Room, name) {
                        wire.subscribe(Subject::Room(name));
                    }
                    let room = LocalRoom::new(shared, true);
                    self.rooms.insert(name.clone(), room);
                }
            }
            self.send_here(name, true, engine, wire);
            self.first_questions
                .insert(name.clone(), FirstQuestion::default());
        }
    }

    /// Returns a room of this node. A packet may come before the note that the room has its first member.
    pub(super) fn open_early(
        &mut self,
        name: &str,
        openings: &mut Openings,
    ) -> Option<Arc<SharedRoom>> {
        if let Some(shared) = self.room(name) {
            return Some(Arc::clone(shared));
        }
        let shared = self.directory.room(name);
        let shared = shared.filter(|_| openings.has_room(name))?;
        openings.take(SequenceKind::Room, name);
        let room = LocalRoom::new(Arc::clone(&shared), false);
        self.rooms.insert(name.into(), room);
        Some(shared)
    }

    /// Ends the subscriptions of rooms that have no members any more.
    pub(super) fn close(
        &mut self,
        names: &HashSet<Box<str>>,
        peers: &mut Peers,
        wire: &mut dyn Wire,
    ) {
        for name in names {
            if self.directory.room(name).is_none() && self.rooms.remove(name).is_some() {
                wire.unsubscribe(Subject::Room(name));
                peers.forget_room(name);
                self.first_questions.remove(name);
            }
        }
    }

    /// Asks again for the members in rooms that have opened, unless all nodes have answered. Only those with members
    /// there do, so this ends after two more questions. Called at a heartbeat.
    pub(super) fn ask_again(&mut self, alive: usize) {
        let mut again = Vec::new();
        self.first_questions.retain(|room, question| {
            question.beats += 1;
            let is_open = question.answered.len() < alive && question.beats <= QUESTION_BEATS_MAX;
            // Answers to a question have a whole heartbeat.
            if is_open && question.beats > 1 {
                again.push(room.clone());
            }
            is_open
        });
        for room in again {
            self.tell_later(&room, true);
        }
    }

    /// Tells the numbers of members of large rooms that have changed in one of the next turns. Called at a heartbeat.
    pub(super) fn tell_counts_later(&mut self) {
        for room in std::mem::take(&mut self.due_counts) {
            self.tell_later(&room, false);
        }
    }

    /// Tells the members in all rooms in one of the next turns.
    pub(super) fn tell_all_later(&mut self) {
        let rooms: Vec<Box<str>> = self.rooms.keys().cloned().collect();
        for room in rooms {
            self.tell_later(&room, false);
        }
    }

    /// Tells the other nodes the members in a room in one of the next turns, and asks them for theirs.
    fn tell_later(&mut self, room: &str, asks: bool) {
        match self.due_rooms.get_mut(room) {
            Some(asks_already) => *asks_already |= asks,
            None => drop(self.due_rooms.insert(room.into(), asks)),
        }
    }

    /// Tells the members of at most `count` rooms. Returns how many more rooms may be told now.
    pub(super) fn tell(
        &mut self,
        count: usize,
        engine: &mut ToEngine,
        wire: &mut dyn Wire,
    ) -> usize {
        let due = self.due_rooms.keys().take(count).cloned();
        let due: Vec<Box<str>> = due.collect();
        let left = count - due.len();
        for name in due {
            let asks = self.due_rooms.remove(&name).unwrap_or_default();
            if self.has(&name) && !self.send_here(&name, asks, engine, wire) {
                return 0;
            }
        }
        left
    }

    pub(super) fn has_due_rooms(&self) -> bool {
        !self.due_rooms.is_empty()
    }

    /// Tells the other nodes who of this node is in a room. If that cannot go out now, it is due again, because no
    /// sequence counts it.
    fn send_here(
        &mut self,
        name: &str,
        asks: bool,
        engine: &mut ToEngine,
        wire: &mut dyn Wire,
    ) -> bool {
        let mut members_max = self.config.limits.rooms.presence_members_max();
        members_max = members_max.min(engine.entry_bytes_max() / MEMBER_BYTES_MAX);
        if self.rooms.get(name).is_some_and(LocalRoom::is_counted) {
            // A room at the limit is not listed and counted in turn, because each list is shown as members that join.
            members_max -= members_max / 8;
        }
        let mut members = Vec::new();
        let own = self.directory.own_count(name);
        if own <= members_max {
            self.directory
                .own_members(name, |member, name| members.push((member, name.to_owned())));
        }
        let count = own.max(members.len()) as u32;
        let listed = members.iter().map(|(member, name)| (*member, &**name));
        let mut entries = Vec::new();
        encode_here(asks, count, listed, &mut entries);
        if let Some(room) = self.rooms.get_mut(name) {
            room.set_counted(members.len() < own);
        }
        let to = (SequenceKind::Room, name);
        let is_sent = engine.send_entries(to, EntryCounts::default(), &entries, wire);
        if !is_sent {
            self.tell_later(name, asks);
        }
        is_sent
    }

    /// Whether the other nodes are told of an entry. In large rooms they are told numbers at the next heartbeat.
    pub(super) fn tells(&mut self, room: &str, entry: &Entry<'_>) -> bool {
        if !entry.is_change() {
            return true;
        }
        let own = self.directory.own_count(room);
        let members_max = self.config.limits.rooms.presence_members_max();
        let Some(local) = self.rooms.get_mut(room) else {
            return true;
        };
        let is_counted = local.is_counted() || own > members_max;
        local.set_counted(is_counted);
        if is_counted {
            self.due_counts.insert(room.into());
        }
        !is_counted
    }

    /// Notes that a member of another node has joined.
    pub(super) fn join(
        &mut self,
        node: &Arc<str>,
        room: &str,
        (number, name): (MemberId, &str),
        lanes: &mut ToLanes,
    ) {
        if validate_name(name).is_err() {
            return self.counters.backplane_malformed.add_shared(1);
        }
        let Some(local) = self.rooms.get_mut(room) else {
            return;
        };
        let listed_max = self.config.limits.rooms.presence_members_max().max(1) * 2;
        if !local.may_list(node, number, listed_max) {
            return self.counters.backplane_malformed.add_shared(1);
        }
        let member = match local.find(node, number) {
            Some(known) if known.is_listed() => return,
            Some(known) => known.member(),
            None => self.directory.names().next_member(),
        };
        let of = (node, number);
        let Some(shown) = self.directory.add_remote(room, member, of, name) else {
            return;
        };
        local.list(node, number, member, Arc::clone(shown.name()));
        self.show(room, &shown, PresenceEvent::Joined, lanes);
    }

    /// Notes that a member of another node has left.
    pub(super) fn leave(&mut self, node: &str, room: &str, number: MemberId, lanes: &mut ToLanes) {
        let Some(local) = self.rooms.get_mut(room) else {
            return;
        };
        if let Some(known) = local.remove(node, number)
            && known.is_listed()
            && let Some(shown) = self.directory.remove_remote(room, known.member())
        {
            self.show(room, &shown, PresenceEvent::Left, lanes);
        }
    }

    /// Replaces what is known of a node's members in a room.
    pub(super) fn replace(
        &mut self,
        node: &Arc<str>,
        room: &str,
        here: &Here<'_>,
        lanes: &mut ToLanes,
    ) {
        if here.asks && self.has(room) {
            self.tell_later(room, false);
        }
        let Some(local) = self.rooms.get(room) else {
            return;
        };
        if let Some(question) = self.first_questions.get_mut(room) {
            question.answered.insert(Arc::clone(node));
        }
        let present: HashMap<MemberId, &str> = here.members().collect();
        let is_list = present.len() as u64 >= u64::from(here.count);
        let counted = if is_list { 0 } else { here.count as usize };
        let mut gone = local.numbers_of(node);
        gone.retain(|number| {
            let is_listed = local.find(node, *number).is_some_and(|it| it.is_listed());
            is_listed && !present.contains_key(number)
        });
        for number in gone {
            match is_list {
                true => self.leave(node, room, number, lanes),
                // They are still there, but only counted from now on.
                false => self.unlist(node, room, number),
            }
        }
        self.directory.count_remote(room, node, counted);
        let mut present: Vec<(MemberId, &str)> = here.members().collect();
        present.sort_unstable();
        for member in present {
            self.join(node, room, member, lanes);
        }
    }

    fn unlist(&mut self, node: &str, room: &str, number: MemberId) {
        let local = self.rooms.get_mut(room);
        if let Some(member) = local.and_then(|local| local.unlist(node, number)) {
            self.directory.remove_remote(room, member);
        }
    }

    /// Removes the members of a node from all rooms, in the order of their numbers.
    pub(super) fn forget_node(&mut self, node: &Arc<str>, lanes: &mut ToLanes) {
        let rooms: Vec<Box<str>> = self.rooms.keys().cloned().collect();
        for room in rooms {
            self.directory.count_remote(&room, node, 0);
            let local = self.rooms.get(&room);
            for number in local.map_or_else(Vec::new, |local| local.numbers_of(node)) {
                self.leave(node, &room, number, lanes);
            }
            if let Some(local) = self.rooms.get_mut(&room) {
                local.remove_node(node);
            }
        }
    }

    /// Returns the author of a message under its number and name of this node.
    pub(super) fn author(
        &mut self,
        node: &Arc<str>,
        room: &str,
        (number, name): (MemberId, &str),
    ) -> Option<Author> {
        if number == MemberId(0) {
            return Some(Author::nameless());
        }
        if validate_name(name).is_err() {
            self.counters.backplane_malformed.add_shared(1);
            return None;
        }
        let directory = &self.directory;
        let local = self.rooms.get_mut(room)?;
        let (author, is_new) = local.author(node, number, || {
            let shown = match directory.names().find(name) {
                Some(_) => format!("{name}@{node}").into(),
                None => name.into(),
            };
            (directory.names().next_member(), shown)
        });
        self.authors += usize::from(is_new);
        if self.authors > AUTHORS_MAX {
            self.authors = 0;
            self.rooms.values_mut().for_each(LocalRoom::forget_authors);
        }
        Some(author)
    }

    /// Shows remote members by their node, because a member of this node has their name now.
    pub(super) fn rename_namesakes(&mut self, room: &str, name: &str, lanes: &mut ToLanes) {
        if let Some([old, new]) = self.directory.rename_remote(room, name) {
            if let Some(local) = self.rooms.get_mut(room) {
                local.rename(new.member(), new.name());
            }
            self.show(room, &old, PresenceEvent::Left, lanes);
            self.show(room, &new, PresenceEvent::Joined, lanes);
        }
    }

    /// Tells the members of this node of a change, unless the room is too large.
    fn show(&self, room: &str, shown: &ShownMember, event: PresenceEvent, lanes: &mut ToLanes) {
        if shown.is_among_more_than(self.config.limits.rooms.presence_members_max()) {
            return;
        }
        if let Some(shared) = self.room(room) {
            lanes.show(shared, (shown.member(), shown.name()), event);
        }
    }

    /// Lists the members on other nodes to lanes that had no room for changes. Members that have left meanwhile stay
    /// there.
    pub(super) fn list_members(&self, lanes: &mut ToLanes) {
        for (lane, alias) in lanes.take_unshown() {
            let name = self.directory.name_of(alias).unwrap_or_default();
            let room = self.directory.room(&name);
            let (Some(local), Some(room)) = (self.rooms.get(&name), room) else {
                continue;
            };
            let members_max = self.config.limits.rooms.presence_members_max();
            for known in local.listed().into_iter().take(members_max) {
                lanes.list(lane, &room, (known.member(), known.name()));
            }
        }
    }
}

/// Heartbeats after which a room that has opened asks no more.
const QUESTION_BEATS_MAX: u32 = 3;

/// Most bytes of a member in a list: a number and a name.
const MEMBER_BYTES_MAX: usize = 4 + 1 + 64;

/// Members on other nodes that are remembered because they have said something, and are not listed.
const AUTHORS_MAX: usize = 1 << 20;
