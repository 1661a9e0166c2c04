//! Presence: the rooms of this node, their members on other nodes, and what the other nodes are told.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewire_proto::backplane::entry::encode_here;
use tidewire_proto::backplane::{Entry, Here, SequenceKind};
use tidewire_proto::body::validate_name;
use tidewire_proto::codec::{Codec, Presence};
use tidewire_proto::message::{MemberId, PresenceEvent};
use tidewire_proto::topic::{Pattern, PatternIndex};

use super::{Node, Subject, Wire};
use crate::mailbox::Receiver;
use crate::room::{SharedRoom, Shown};

/// A room with members on this node.
#[derive(Debug)]
pub(super) struct LocalRoom {
    pub(super) shared: Arc<SharedRoom>,
    /// The known members on other nodes, by node and by their numbers there.
    remote: HashMap<Arc<str>, HashMap<MemberId, Known>>,
    /// The room is so large that the other nodes are told the number of members, and not who they are.
    is_counted: bool,
    /// The other nodes were asked for their members.
    has_asked: bool,
}

impl LocalRoom {
    fn new(shared: Arc<SharedRoom>, has_asked: bool) -> Self {
        Self {
            shared,
            remote: HashMap::new(),
            is_counted: false,
            has_asked,
        }
    }
}

/// The question of a room for its members on other nodes, which it asks when it opens. It may be lost, or an answer.
#[derive(Debug, Default)]
pub(super) struct FirstQuestion {
    answered: HashSet<Arc<str>>,
    beats: u32,
}

/// A member on another node.
#[derive(Clone, Debug)]
struct Known {
    /// The number on this node.
    member: MemberId,
    shown: Arc<str>,
    /// Whether the members of this node were told of it. If not, its messages have its name.
    is_listed: bool,
}

/// The author of a message.
#[derive(Clone, Debug)]
pub(super) struct Author {
    pub(super) member: MemberId,
    pub(super) name: Arc<str>,
    pub(super) is_listed: bool,
}

impl Node {
    /// Subscribes to rooms that have members now, and asks for their members on other nodes.
    pub(super) fn open_rooms(&mut self, names: &HashSet<Box<str>>, wire: &mut dyn Wire) {
        for name in names {
            let Some(shared) = self.directory.room(name) else {
                continue;
            };
            match self.rooms.get_mut(name) {
                Some(room) if room.shared.alias == shared.alias && room.has_asked => continue,
                Some(room) if room.shared.alias == shared.alias => room.has_asked = true,
                // The room was closed and opened again, and its subscription stays.
                Some(room) => *room = LocalRoom::new(shared, true),
                None => {
                    if !self.take_opening(SequenceKind::Room, name) {
                        wire.subscribe(Subject::Room(name));
                    }
                    let room = LocalRoom::new(shared, true);
                    self.rooms.insert(name.clone(), room);
                }
            }
            self.send_here(name, true, wire);
            self.life
                .first_questions
                .insert(name.clone(), FirstQuestion::default());
        }
    }

    /// Asks again for the members in rooms that have opened, unless all nodes have answered. Only those with members there do, so
    /// this ends after two more questions. Called at a heartbeat.
    pub(super) fn ask_rooms_again(&mut self) {
        let (alive, mut again) = (self.peers.alive(), Vec::new());
        self.life.first_questions.retain(|room, question| {
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

    /// Tells the other nodes the members in a room in one of the next turns, and asks them for theirs.
    pub(super) fn tell_later(&mut self, room: &str, asks: bool) {
        match self.life.due_rooms.get_mut(room) {
            Some(asks_already) => *asks_already |= asks,
            None => drop(self.life.due_rooms.insert(room.into(), asks)),
        }
    }

    /// Asks a node for all its rooms and positions in this turn.
    pub(super) fn ask_for_all(&mut self, node: &Arc<str>) {
        if let Some(peer) = self.peers.all.get_mut(node) {
            // The next question waits for the answer to this one.
            let _ = peer.may_ask();
        }
        self.life.due_asks.insert(Arc::clone(node));
    }

    /// Asks a node for its members in a room, because a change of them is lost. It is asked again until it has told them.
    pub(super) fn note_stale(&mut self, node: &Arc<str>, room: &str) {
        if let Some(peer) = self.peers.all.get_mut(node) {
            peer.note_stale(room);
            if peer.may_ask() {
                self.life.due_asks.insert(Arc::clone(node));
            }
        }
    }

    /// Asks a node that is believed dead for the members that it has had, if it is back. Its positions would not show that they
    /// are missing.
    pub(super) fn note_all_stale(&mut self, node: &Arc<str>) {
        let Some(peer) = self.peers.all.get_mut(node) else {
            return;
        };
        for (room, local) in &self.rooms {
            if local.remote.contains_key(node) {
                peer.note_stale(room);
            }
        }
    }

    /// Returns a room of this node. A packet may come before the note that the room has its first member.
    pub(super) fn local_room(&mut self, name: &str) -> Option<Arc<SharedRoom>> {
        if let Some(room) = self.rooms.get(name) {
            return Some(Arc::clone(&room.shared));
        }
        let shared = self
            .directory
            .room(name)
            .filter(|_| self.is_opening(name))?;
        self.take_opening(SequenceKind::Room, name);
        let room = LocalRoom::new(Arc::clone(&shared), false);
        self.rooms.insert(name.into(), room);
        Some(shared)
    }

    /// Ends the subscriptions of rooms that have no members any more.
    pub(super) fn close_rooms(&mut self, names: &HashSet<Box<str>>, wire: &mut dyn Wire) {
        for name in names {
            if self.directory.room(name).is_none() && self.rooms.remove(name).is_some() {
                wire.unsubscribe(Subject::Room(name));
                // Messages that pass while the room has no members here are no loss.
                for peer in self.peers.all.values_mut() {
                    peer.streams.forget(SequenceKind::Room, name);
                    peer.end_stale(name);
                }
                self.life.first_questions.remove(name);
            }
        }
    }

    /// Subscribes to patterns that have subscribers now, and ends the subscriptions of the others.
    pub(super) fn follow_patterns(&mut self, names: &HashSet<Box<str>>, wire: &mut dyn Wire) {
        let (mut topics, mut wildcards) = (Vec::new(), Vec::new());
        for name in names {
            let is_wanted = self.directory.has_pattern(name);
            if is_wanted && self.patterns.insert(name.clone()) {
                if !self.take_opening(SequenceKind::Topic, name) {
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
            self.forget_topics(&topics, &wildcards);
        }
    }

    /// Forgets the positions in topics that only these patterns have matched: what passes from now on is no loss. All topics are
    /// looked through only for a wildcard, because any client can end a subscription in every turn.
    fn forget_topics(&mut self, topics: &[&str], wildcards: &[Pattern<'_>]) {
        self.directory.refresh(&mut self.routes);
        let is_followed = |topic: &str| {
            let mut is_followed = false;
            self.routes.each_match(topic, |shared| {
                let pattern = shared.pattern.as_deref();
                is_followed |= pattern.is_some_and(|it| self.patterns.contains(it));
            });
            is_followed
        };
        let topics: Vec<&str> = topics
            .iter()
            .copied()
            .filter(|it| !is_followed(it))
            .collect();
        let mut ended = PatternIndex::new();
        for wildcard in wildcards {
            ended.insert(wildcard, ());
        }
        for peer in self.peers.all.values_mut() {
            for topic in &topics {
                peer.streams.forget(SequenceKind::Topic, topic);
            }
            if wildcards.is_empty() {
                continue;
            }
            peer.streams.retain(|kind, topic| {
                let mut has_ended = false;
                if kind == SequenceKind::Topic {
                    ended.each_match(topic, |()| has_ended = true);
                }
                !has_ended || is_followed(topic)
            });
        }
    }

    /// Whether the other nodes are told of an entry. In large rooms they are told numbers at the next heartbeat.
    pub(super) fn tells_change(&mut self, room: &str, entry: &Entry<'_>) -> bool {
        if !entry.is_change() {
            return true;
        }
        if let Entry::Joined { member, name } = *entry {
            self.rename_namesakes(room, name);
            self.tell_partition_to(room, member);
        }
        let own = self.directory.own_count(room);
        let members_max = self.config.limits.presence_members_max;
        let Some(local) = self.rooms.get_mut(room) else {
            return true;
        };
        local.is_counted |= own > members_max;
        if local.is_counted {
            self.life.due_counts.insert(room.into());
        }
        !local.is_counted
    }

    /// Tells members that another node asked for, the numbers of large rooms, and positions. Returns when more must be told. The pace
    /// is one that the others can follow.
    pub(super) fn tell(&mut self, now: Instant, wire: &mut dyn Wire) -> Option<Instant> {
        if self.is_cut_off() {
            return None;
        }
        if std::mem::take(&mut self.life.tells_all) {
            let rooms: Vec<Box<str>> = self.rooms.keys().cloned().collect();
            for room in rooms {
                self.tell_later(&room, false);
            }
            self.sent.unmark_all();
        }
        if self.life.tell_at.is_some_and(|at| now < at) {
            return self.life.tell_at;
        }
        let due = self.life.due_rooms.keys().take(TOLD_PER_TURN).cloned();
        let due: Vec<Box<str>> = due.collect();
        let mut left = TOLD_PER_TURN - due.len();
        for name in due {
            let asks = self.life.due_rooms.remove(&name).unwrap_or_default();
            if self.rooms.contains_key(&name) && !self.send_here(&name, asks, wire) {
                left = 0;
                break;
            }
        }
        while left > 0
            && let Some((kind, name, position)) = self.life.due_positions.pop()
        {
            left -= 1;
            if !self.send_position(kind, &name, position, wire) {
                self.life.due_positions.push((kind, name, position));
                left = 0;
            }
        }
        let has_more = !self.life.due_rooms.is_empty() || !self.life.due_positions.is_empty();
        self.life.tell_at = has_more.then(|| now + TELL_PAUSE);
        self.life.tell_at
    }

    /// Tells the other nodes who of this node is in a room. What cannot go out now is due again, because no position counts it.
    fn send_here(&mut self, name: &str, asks: bool, wire: &mut dyn Wire) -> bool {
        let bytes_max = self.entry_bytes_max();
        let mut members_max = self.config.limits.presence_members_max;
        members_max = members_max.min(bytes_max / MEMBER_BYTES_MAX);
        if self.rooms.get(name).is_some_and(|room| room.is_counted) {
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
            room.is_counted = members.len() < own;
        }
        let is_sent = self.send_stream((SequenceKind::Room, name), (0, 0), &entries, wire);
        if !is_sent {
            self.tell_later(name, asks);
        }
        is_sent
    }

    pub(super) fn handle_joined(
        &mut self,
        node: &Arc<str>,
        room: &str,
        number: MemberId,
        name: &str,
    ) {
        if validate_name(name).is_err() {
            return self.counters.backplane_malformed.add_shared(1);
        }
        let Some(local) = self.rooms.get_mut(room) else {
            return;
        };
        let known = local.remote.entry(Arc::clone(node)).or_default();
        let listed_max = self.config.limits.presence_members_max.max(1) * 2;
        if known.len() >= listed_max {
            known.retain(|_, known| known.is_listed);
            if known.len() >= listed_max && !known.contains_key(&number) {
                // The node lists more than it should. Its messages have the names of their authors.
                return self.counters.backplane_malformed.add_shared(1);
            }
        }
        let member = match known.get(&number) {
            Some(known) if known.is_listed => return,
            Some(known) => known.member,
            None => self.directory.next_member(),
        };
        let Some(shown) = self
            .directory
            .add_remote(room, member, (node, number), name)
        else {
            return;
        };
        let entry = Known {
            member,
            shown: Arc::clone(&shown.name),
            is_listed: true,
        };
        known.insert(number, entry);
        self.show(room, &shown, PresenceEvent::Joined);
    }

    pub(super) fn handle_left(&mut self, node: &Arc<str>, room: &str, number: MemberId) {
        let Some(local) = self.rooms.get_mut(room) else {
            return;
        };
        let known = local.remote.get_mut(node);
        if let Some(known) = known.and_then(|known| known.remove(&number))
            && known.is_listed
            && let Some(shown) = self.directory.remove_remote(room, known.member)
        {
            self.show(room, &shown, PresenceEvent::Left);
        }
    }

    /// Replaces what is known of a node's members in a room.
    pub(super) fn handle_here(&mut self, node: &Arc<str>, room: &str, here: &Here<'_>) {
        if here.asks && self.rooms.contains_key(room) {
            self.tell_later(room, false);
        }
        let Some(local) = self.rooms.get_mut(room) else {
            return;
        };
        if let Some(peer) = self.peers.all.get_mut(node) {
            peer.note_told(room);
        }
        if let Some(question) = self.life.first_questions.get_mut(room) {
            question.answered.insert(Arc::clone(node));
        }
        let present: HashMap<MemberId, &str> = here.members().collect();
        let is_list = present.len() as u64 >= u64::from(here.count);
        let counted = if is_list { 0 } else { here.count as usize };
        let known = local.remote.get(node);
        let listed = known.iter().flat_map(|known| known.iter());
        let gone =
            listed.filter(|(number, known)| known.is_listed && !present.contains_key(number));
        let mut gone: Vec<MemberId> = gone.map(|(number, _)| *number).collect();
        gone.sort_unstable();
        for number in gone {
            match is_list {
                true => self.handle_left(node, room, number),
                // They are still there, but only counted from now on.
                false => self.unlist(node, room, number),
            }
        }
        self.directory.count_remote(room, node, counted);
        let mut present: Vec<(MemberId, &str)> = here.members().collect();
        present.sort_unstable();
        for (number, name) in present {
            self.handle_joined(node, room, number, name);
        }
    }

    fn unlist(&mut self, node: &Arc<str>, room: &str, number: MemberId) {
        let known = self.rooms.get_mut(room);
        let known = known.and_then(|local| local.remote.get_mut(node));
        if let Some(known) = known.and_then(|known| known.get_mut(&number)) {
            known.is_listed = false;
            self.directory.remove_remote(room, known.member);
        }
    }

    /// Removes the members of a node from all rooms, in the order of their numbers.
    pub(super) fn forget_members_of(&mut self, node: &Arc<str>) {
        let rooms: Vec<Box<str>> = self.rooms.keys().cloned().collect();
        for room in rooms {
            self.directory.count_remote(&room, node, 0);
            let Some(local) = self.rooms.get_mut(&room) else {
                continue;
            };
            let known = local.remote.get(node);
            let mut numbers: Vec<MemberId> =
                known.map_or_else(Vec::new, |known| known.keys().copied().collect());
            numbers.sort_unstable();
            for number in numbers {
                self.handle_left(node, &room, number);
            }
            if let Some(local) = self.rooms.get_mut(&room) {
                local.remote.remove(node);
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
            return Some(Author {
                member: number,
                name: "".into(),
                is_listed: true,
            });
        }
        if validate_name(name).is_err() {
            self.counters.backplane_malformed.add_shared(1);
            return None;
        }
        let local = self.rooms.get_mut(room)?;
        let known = local.remote.entry(Arc::clone(node)).or_default();
        let (directory, authors) = (&self.directory, &mut self.authors);
        let known = known.entry(number).or_insert_with(|| {
            *authors += 1;
            Known {
                member: directory.next_member(),
                shown: match directory.find(name) {
                    Some(_) => format!("{name}@{node}").into(),
                    None => name.into(),
                },
                is_listed: false,
            }
        });
        let author = Author {
            member: known.member,
            name: Arc::clone(&known.shown),
            is_listed: known.is_listed,
        };
        if self.authors > AUTHORS_MAX {
            self.forget_authors();
        }
        Some(author)
    }

    /// Forgets the numbers of authors that are not listed. They get others with their next messages.
    fn forget_authors(&mut self) {
        self.authors = 0;
        for local in self.rooms.values_mut() {
            for known in local.remote.values_mut() {
                known.retain(|_, known| known.is_listed);
            }
        }
    }

    /// Shows remote members by their node, because a member of this node has their name now.
    fn rename_namesakes(&mut self, room: &str, name: &str) {
        if let Some((old, new)) = self.directory.rename_remote(room, name) {
            let local = self.rooms.get_mut(room);
            let known = local
                .into_iter()
                .flat_map(|local| local.remote.values_mut());
            for known in known.flat_map(HashMap::values_mut) {
                if known.member == old.member {
                    known.shown = Arc::clone(&new);
                }
            }
            self.show(room, &old, PresenceEvent::Left);
            let shown = Shown { name: new, ..old };
            self.show(room, &shown, PresenceEvent::Joined);
        }
    }

    /// Tells the members of this node of a change, unless the room is too large.
    fn show(&mut self, room: &str, shown: &Shown, event: PresenceEvent) {
        if shown.members > self.config.limits.presence_members_max {
            return;
        }
        let Some(shared) = self.rooms.get(room).map(|room| Arc::clone(&room.shared)) else {
            return;
        };
        if let Some(frame) = self.frame_presence(shared.alias, (shown.member, &shown.name), event) {
            self.to_lanes
                .send_presence(shared.lanes(), shared.alias, &frame);
        }
    }

    /// Lists the members on other nodes to lanes that had no room for changes. Members that have left meanwhile stay there.
    pub(super) fn list_members(&mut self) {
        for (lane, alias) in self.to_lanes.take_unshown() {
            let name = self.directory.name_of(alias).unwrap_or_default();
            let local = self.rooms.get(&name).into_iter();
            let known = local.flat_map(|local| local.remote.values().flat_map(HashMap::values));
            let mut listed: Vec<&Known> = known.filter(|known| known.is_listed).collect();
            listed.sort_unstable_by_key(|known| known.member);
            listed.truncate(self.config.limits.presence_members_max);
            for known in listed {
                let member = (known.member, &*known.shown);
                if let Some(frame) = self.frame_presence(alias, member, PresenceEvent::Here) {
                    let to = Receiver::Lane(lane).into();
                    self.to_lanes.send_presence(to, alias, &frame);
                }
            }
        }
    }

    fn frame_presence(
        &self,
        channel: u16,
        (member, name): (MemberId, &str),
        event: PresenceEvent,
    ) -> Option<Vec<u8>> {
        let presence = Presence {
            channel,
            member,
            name,
            event,
        };
        let mut frame = Vec::new();
        let encoded = self.config.codec.encode_presence(&presence, &mut frame);
        encoded.is_ok().then_some(frame)
    }
}

/// Heartbeats after which a room that has opened asks no more.
const QUESTION_BEATS_MAX: u32 = 3;

/// Rooms and positions that are told in one turn. The others follow after a pause.
const TOLD_PER_TURN: usize = 1_000;

/// The pause before more rooms and positions are told: 200,000 a second.
const TELL_PAUSE: Duration = Duration::from_millis(5);

/// Most bytes of a member in a list: a number and a name.
const MEMBER_BYTES_MAX: usize = 4 + 1 + 64;

/// Members on other nodes that are remembered because they have said something, and are not listed.
pub(super) const AUTHORS_MAX: usize = 1 << 20;
