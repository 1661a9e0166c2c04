//! Ids of 32 bits.
//!
//! A request's id is its place in a table plus a counter of how often that place was used, so finding the
//! request is an index, and an id that is still waiting is never given out again. A reply that comes after its
//! request was given up finds another counter and matches nothing.

use slab::Slab;

#[derive(Debug)]
pub(super) struct Places<T> {
    waiting: Slab<Entry<T>>,
    uses: u32,
}

#[derive(Debug)]
struct Entry<T> {
    id: u32,
    value: T,
}

impl<T> Places<T> {
    pub(super) fn new() -> Self {
        Self {
            waiting: Slab::new(),
            uses: 0,
        }
    }

    /// Registers a request; the caller sees to it that there are at most [`PENDING_MAX`].
    pub(super) fn insert(&mut self, value: T) -> u32 {
        // From 1, so that a receiver that counts can tell ids like these from those of others.
        self.uses = self.uses % USES_MAX + 1;
        let entry = self.waiting.vacant_entry();
        let place = entry.key() as u32;
        // Places count from 1 on the wire, because ids start at 1.
        let id = self.uses << PLACE_BITS | (place + 1);
        entry.insert(Entry { id, value });
        id
    }

    pub(super) fn take(&mut self, id: u32) -> Option<T> {
        let place = ((id & PLACE_MASK) as usize).checked_sub(1)?;
        if self.waiting.get(place).is_none_or(|entry| entry.id != id) {
            return None;
        }
        Some(self.waiting.remove(place).value)
    }

    pub(super) fn find_mut(&mut self, id: u32) -> Option<&mut T> {
        let place = ((id & PLACE_MASK) as usize).checked_sub(1)?;
        let entry = self.waiting.get_mut(place).filter(|entry| entry.id == id)?;
        Some(&mut entry.value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.waiting
            .iter()
            .map(|(_, entry)| (entry.id, &entry.value))
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.waiting.drain().map(|entry| entry.value)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

const PLACE_BITS: u32 = 16;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;
const USES_MAX: u32 = (1 << (32 - PLACE_BITS)) - 1;

/// Most requests that places can tell apart.
pub(super) const PENDING_MAX: usize = (1 << PLACE_BITS) - 1;
