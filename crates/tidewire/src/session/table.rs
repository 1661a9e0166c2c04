//! The sessions of a lane, by slot, with the lists of those that the lane looks at again before a turn ends.
//!
//! The index is inlined. That of the slab itself is not: its panic keeps the compiler from it in builds without
//! link-time optimisation. A turn with one message looks up its session some twenty times, which took 200 instructions
//! of 2,900.

use std::ops::{Index, IndexMut};

use slab::{Iter, IterMut, Slab};
use tidewire_io::memory::release_unused;
use tidewire_proto::connection::{Connection, PauseReason};

use super::{CloseReason, Session, SessionId};
use crate::transport::Transport;

#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    slab: Slab<Session>,
    /// The part of session numbers that distinguishes sessions of the same slot.
    generation: u32,
    /// Closed sessions. The lane removes them at the end of the turn.
    closed: Vec<usize>,
    /// Sessions that are read again, because a reason for the pause has gone.
    resumed: Vec<usize>,
    /// Sessions in queue groups to which nothing can be written any more.
    unwritable: Vec<usize>,
    /// In-process sessions that are read without poller events. The lane checks them at the end of each turn.
    awake: Vec<usize>,
    has_rings: bool,
}

impl SessionTable {
    #[inline]
    pub(crate) fn get(&self, slot: usize) -> Option<&Session> {
        self.slab.get(slot)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut Session> {
        self.slab.get_mut(slot)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// The slots of all sessions, for a loop that may remove some.
    pub(crate) fn slots(&self) -> Vec<usize> {
        self.slab.iter().map(|(slot, _)| slot).collect()
    }

    /// Every slot is below this number.
    pub(super) fn slots_end(&self) -> usize {
        self.slab.capacity()
    }

    /// The slot of a session that is not closed.
    #[inline]
    pub(crate) fn slot_of(&self, id: SessionId) -> Option<usize> {
        let session = self.find(id)?;
        (!session.connection.is_closed()).then(|| id.slot())
    }

    #[inline]
    pub(crate) fn find(&self, id: SessionId) -> Option<&Session> {
        self.slab.get(id.slot()).filter(|session| session.id == id)
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        let session = self.slab.get_mut(id.slot());
        session.filter(|session| session.id == id)
    }

    /// How many sessions of this lane are newer.
    pub(crate) fn age_of(&self, id: SessionId) -> u32 {
        id.age(self.generation)
    }

    /// Returns a number for the next session, in the free slot that the slab will use.
    pub(crate) fn next_id(&mut self, lane: usize) -> SessionId {
        self.generation = self.generation.wrapping_add(1);
        if self.generation == u32::MAX {
            // The highest generation is reserved: in a batch such a session number would look like a room.
            self.generation = 0;
        }
        SessionId::new(lane, self.slab.vacant_key(), self.generation)
    }

    /// Adds a session in the slot of its number.
    pub(super) fn insert(&mut self, session: Session) {
        let places = self.slab.capacity();
        self.slab.insert(session);
        // All sessions may be awake at once. The reserve keeps that from allocating later.
        self.awake.reserve(self.slab.len());
        let has_grown = self.slab.capacity() > places;
        if has_grown && places * size_of::<Session>() >= RELEASED_BYTES_MIN {
            // The tables of sessions were copied to larger ones. The allocator would keep the former ones resident.
            release_unused();
        }
    }

    pub(super) fn remove(&mut self, slot: usize) -> Option<Session> {
        self.slab.try_remove(slot)
    }

    /// Changes a connection. If the change closes it, the session is removed at the end of this turn.
    #[inline]
    pub(crate) fn change<T>(
        &mut self,
        slot: usize,
        change: impl FnOnce(&mut Connection) -> T,
    ) -> T {
        let connection = &mut self[slot].connection;
        let was_closed = connection.is_closed();
        let result = change(connection);
        if connection.is_closed() && !was_closed {
            self.closed.push(slot);
        }
        result
    }

    /// Whether the peer of a session has announced that it closes. It accepts no new requests.
    pub(crate) fn is_peer_going(&self, id: SessionId) -> bool {
        let session = self.find(id);
        session.is_some_and(|session| session.connection.output().is_peer_going())
    }

    /// Ends a session at the end of this turn. Its unsent output is dropped and counted.
    pub(crate) fn close(&mut self, slot: usize, reason: CloseReason) {
        self.change(slot, |connection| connection.close(reason));
    }

    /// Ends a session as [`close`](Self::close) does, unless it has closed already.
    pub(crate) fn close_by_id(&mut self, id: SessionId, reason: CloseReason) {
        if let Some(slot) = self.slot_of(id) {
            self.close(slot, reason);
        }
    }

    /// Whether a session waits for its removal.
    #[inline]
    pub(crate) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Takes a closed session from the list, for its removal.
    #[inline]
    pub(crate) fn take_closed(&mut self) -> Option<usize> {
        self.closed.pop()
    }

    /// Removes a reason not to read a session. Lists the session if the lane reads it again.
    #[inline]
    pub(crate) fn resume(&mut self, slot: usize, reason: PauseReason) {
        if self[slot].connection.input_mut().resume(reason) {
            self.resumed.push(slot);
        }
    }

    /// Lists a session that the lane reads although no event has come.
    pub(crate) fn list_resumed(&mut self, slot: usize) {
        self.resumed.push(slot);
    }

    #[inline]
    pub(crate) fn has_resumed(&self) -> bool {
        !self.resumed.is_empty()
    }

    /// Lists a session in queue groups to which nothing can be written any more, so that it leaves them in this turn.
    pub(super) fn list_unwritable(&mut self, slot: usize) {
        self.unwritable.push(slot);
    }

    #[inline]
    pub(crate) fn has_unwritable(&self) -> bool {
        !self.unwritable.is_empty()
    }

    pub(crate) fn take_unwritable(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.unwritable)
    }

    /// Takes the list of the sessions to read again, for [`Self::return_resumed`].
    pub(crate) fn take_resumed(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.resumed)
    }

    /// Takes the emptied list back. Sessions that were listed meanwhile stay listed.
    pub(crate) fn return_resumed(&mut self, mut list: Vec<usize>) {
        list.append(&mut self.resumed);
        self.resumed = list;
    }

    /// Notes a session that is read without events. All of them may have input after the same turn: the reserve of
    /// `ready` keeps that turn from allocating.
    pub(crate) fn note_awake(&mut self, slot: usize, ready: &mut Vec<usize>) {
        self.awake.push(slot);
        ready.reserve(self.awake.capacity().saturating_sub(ready.len()));
    }

    /// Notes that the table gets an in-process session.
    pub(crate) fn note_ring(&mut self) {
        self.has_rings = true;
    }

    /// Whether the table has had in-process sessions. Most lanes have none.
    #[inline]
    pub(crate) fn has_rings(&self) -> bool {
        self.has_rings
    }

    #[inline]
    pub(crate) fn has_awake(&self) -> bool {
        !self.awake.is_empty()
    }

    /// Checks the sessions that are read without events, and lists those with input in `ready`. Returns whether there
    /// is one. If there is none and the lane sleeps, these sessions ask for events again. Most lanes have no such
    /// session, and ask once a turn.
    #[inline]
    pub(crate) fn finish_turn_of_awake(&mut self, sleeps: bool, ready: &mut Vec<usize>) -> bool {
        self.has_awake() && self.finish_turn_of_each(sleeps, ready)
    }

    fn finish_turn_of_each(&mut self, sleeps: bool, ready: &mut Vec<usize>) -> bool {
        let Self { slab, awake, .. } = self;
        let mut found = false;
        awake.retain(|slot| {
            let Some(session) = slab.get_mut(*slot) else {
                return false;
            };
            if session.stream.finish_turn(sleeps && !found) {
                found = true;
                ready.push(*slot);
            }
            session.stream.is_awake()
        });
        found
    }
}

impl Index<usize> for SessionTable {
    type Output = Session;

    #[inline(always)]
    fn index(&self, slot: usize) -> &Session {
        match self.slab.get(slot) {
            Some(session) => session,
            None => no_session(slot),
        }
    }
}

impl IndexMut<usize> for SessionTable {
    #[inline(always)]
    fn index_mut(&mut self, slot: usize) -> &mut Session {
        match self.slab.get_mut(slot) {
            Some(session) => session,
            None => no_session(slot),
        }
    }
}

impl<'a> IntoIterator for &'a SessionTable {
    type Item = (usize, &'a Session);
    type IntoIter = Iter<'a, Session>;

    fn into_iter(self) -> Iter<'a, Session> {
        self.slab.iter()
    }
}

impl<'a> IntoIterator for &'a mut SessionTable {
    type Item = (usize, &'a mut Session);
    type IntoIter = IterMut<'a, Session>;

    fn into_iter(self) -> IterMut<'a, Session> {
        self.slab.iter_mut()
    }
}

#[cold]
#[inline(never)]
fn no_session(slot: usize) -> ! {
    panic!("there is no session in slot {slot}")
}

/// The size of a former table of sessions from which its memory goes back to the system. Each table is twice as large
/// as the one before, so this happens a few times in the life of a lane.
const RELEASED_BYTES_MIN: usize = 256 << 10;
