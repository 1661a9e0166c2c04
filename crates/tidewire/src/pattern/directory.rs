//! Names and rooms of a whole server, shared by its lanes.
//!
//! Only joining, leaving, listing and looking up a name come here, so a mutex is right: what is said in a room
//! never passes it. A lane asks a room's [`SharedRoom::lanes`] for which other lanes have members, an atomic read.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_proto::message::MemberId;

use crate::session::{Member, SessionId};

/// All names and rooms.
#[derive(Debug)]
pub(crate) struct Directory {
    state: Mutex<State>,
    rooms_max: usize,
}

/// What the lanes share about one room.
#[derive(Debug)]
pub(crate) struct SharedRoom {
    pub(crate) alias: u16,
    /// Bit n is set while lane n has members.
    lanes: AtomicU64,
    /// Bit n is set while a subscriber on lane n holds the room's publishers.
    congested: AtomicU64,
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
    rooms: HashMap<Box<str>, RoomEntry>,
    by_alias: HashMap<u16, Box<str>>,
    member_last: u32,
    alias_last: u16,
}

#[derive(Debug)]
struct RoomEntry {
    shared: Arc<SharedRoom>,
    members: BTreeMap<MemberId, Arc<str>>,
    members_by_lane: [u32; LANES_MAX],
}

/// Every alias is in use, or the room limit is reached.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyRooms;

/// Somebody else has the name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NameTaken;

impl Directory {
    pub(crate) fn new(rooms_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            rooms_max: rooms_max.min(usize::from(u16::MAX)),
        }
    }

    /// Reserves a name for a session.
    pub(crate) fn claim(&self, name: &str, session: SessionId) -> Result<Member, NameTaken> {
        let mut state = self.lock();
        if state.names.contains_key(name) {
            return Err(NameTaken);
        }
        state.member_last = state.member_last.wrapping_add(1);
        let member = Member {
            id: MemberId(state.member_last),
            name: Arc::from(name),
        };
        state
            .names
            .insert(Arc::clone(&member.name), (member.id, session));
        Ok(member)
    }

    /// Gives a name back.
    pub(crate) fn release(&self, member: &Member) {
        self.lock().names.remove(&member.name);
    }

    /// The session that has a name.
    pub(crate) fn find(&self, name: &str) -> Option<SessionId> {
        self.lock().names.get(name).map(|(_, session)| *session)
    }

    /// Adds a member to a room, making the room if there is none.
    pub(crate) fn enter(
        &self,
        room: &str,
        member: &Member,
        lane: usize,
    ) -> Result<Entered, TooManyRooms> {
        let mut state = self.lock();
        if !state.rooms.contains_key(room) {
            let alias = state.free_alias(self.rooms_max)?;
            let entry = RoomEntry {
                shared: Arc::new(SharedRoom {
                    alias,
                    lanes: AtomicU64::new(0),
                    congested: AtomicU64::new(0),
                }),
                members: BTreeMap::new(),
                members_by_lane: [0; LANES_MAX],
            };
            state.by_alias.insert(alias, room.into());
            state.rooms.insert(room.into(), entry);
        }
        let Some(entry) = state.rooms.get_mut(room) else {
            return Err(TooManyRooms);
        };
        entry.members.insert(member.id, Arc::clone(&member.name));
        entry.members_by_lane[lane] += 1;
        entry.shared.lanes.fetch_or(1 << lane, Ordering::AcqRel);
        Ok(Entered {
            room: Arc::clone(&entry.shared),
            members: entry.members.len(),
        })
    }

    /// Takes a member out of a room; the last one out closes it. Returns how many remain.
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
            entry.members_by_lane[lane] -= 1;
            if entry.members_by_lane[lane] == 0 {
                entry.shared.lanes.fetch_and(!(1 << lane), Ordering::AcqRel);
            }
        }
        let remaining = entry.members.len();
        if remaining == 0 {
            state.rooms.remove(name);
            state.by_alias.remove(&alias);
        }
        remaining
    }

    /// Whether a room of this name has this alias.
    pub(crate) fn alias_of(&self, room: &str) -> Option<u16> {
        self.lock().rooms.get(room).map(|entry| entry.shared.alias)
    }

    /// Members of a room, in the order of their numbers.
    pub(crate) fn roster(&self, alias: u16, mut visit: impl FnMut(MemberId, &str)) {
        let state = self.lock();
        let entry = state
            .by_alias
            .get(&alias)
            .and_then(|name| state.rooms.get(name));
        for (member, name) in entry.iter().flat_map(|entry| &entry.members) {
            visit(*member, name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves the maps consistent enough to go on serving others.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedRoom {
    /// Lanes other than `lane` that have members, as bits.
    #[inline]
    pub(crate) fn other_lanes(&self, lane: usize) -> u64 {
        self.lanes.load(Ordering::Acquire) & !(1 << lane)
    }

    /// Whether a subscriber on any lane holds the room's publishers.
    #[inline]
    pub(crate) fn is_congested(&self) -> bool {
        self.congested.load(Ordering::Relaxed) != 0
    }

    /// A subscriber on `lane` holds the room's publishers, or none does any more.
    pub(crate) fn set_congested(&self, lane: usize, congested: bool) {
        if congested {
            self.congested.fetch_or(1 << lane, Ordering::Relaxed);
        } else {
            self.congested.fetch_and(!(1 << lane), Ordering::Relaxed);
        }
    }
}

impl State {
    /// Aliases go round, so that one in use a moment ago is not given to another room while frames for the
    /// old one are still on their way between lanes. Alias 0 means "none".
    fn free_alias(&mut self, rooms_max: usize) -> Result<u16, TooManyRooms> {
        if self.rooms.len() >= rooms_max {
            return Err(TooManyRooms);
        }
        loop {
            self.alias_last = self.alias_last.wrapping_add(1);
            if self.alias_last != 0 && !self.by_alias.contains_key(&self.alias_last) {
                return Ok(self.alias_last);
            }
        }
    }
}

/// Lanes of a server: the bits of the mask that says which have members of a room.
pub(crate) const LANES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_unique_until_it_is_released() {
        let directory = Directory::new(10);
        let alice = directory.claim("alice", SessionId::new(0, 1, 1)).unwrap();
        assert_eq!(
            directory
                .claim("alice", SessionId::new(0, 2, 2))
                .unwrap_err(),
            NameTaken
        );
        assert_eq!(directory.find("alice"), Some(SessionId::new(0, 1, 1)));
        directory.release(&alice);
        assert!(directory.claim("alice", SessionId::new(0, 2, 2)).is_ok());
    }

    #[test]
    fn a_room_knows_its_lanes_and_ends_with_its_last_member() {
        let directory = Directory::new(10);
        let alice = directory.claim("alice", SessionId::new(0, 1, 1)).unwrap();
        let bob = directory.claim("bob", SessionId::new(3, 1, 1)).unwrap();
        let first = directory.enter("lobby", &alice, 0).unwrap();
        let second = directory.enter("lobby", &bob, 3).unwrap();
        assert_eq!((first.members, second.members), (1, 2));
        assert_eq!(first.room.other_lanes(0), 1 << 3);
        assert_eq!(directory.exit(first.room.alias, bob.id, 3), 1);
        assert_eq!(first.room.other_lanes(0), 0);
        assert_eq!(directory.exit(first.room.alias, alice.id, 0), 0);
        assert_eq!(directory.alias_of("lobby"), None);
        let again = directory.enter("lobby", &alice, 0).unwrap();
        assert_ne!(again.room.alias, first.room.alias, "aliases go round");
    }

    #[test]
    fn the_room_limit_is_typed() {
        let directory = Directory::new(2);
        let alice = directory.claim("alice", SessionId::new(0, 1, 1)).unwrap();
        assert!(directory.enter("a", &alice, 0).is_ok());
        assert!(directory.enter("b", &alice, 0).is_ok());
        assert_eq!(directory.enter("c", &alice, 0).unwrap_err(), TooManyRooms);
    }
}
