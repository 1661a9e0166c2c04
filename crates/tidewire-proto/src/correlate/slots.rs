//! Ids of 32 bits.
//!
//! A request's id is its slot in a table plus a counter of all requests so far. Finding the request is an index, and an
//! id that is still waiting is never assigned again. A reply that comes after its request was given up finds another
//! counter and matches nothing. One exception: exactly a multiple of 65,535 requests followed, and the last of them is
//! in its slot.
//!
//! Rejected: `slab`, which moves a value through memory and reads larger pieces than were written, so the processor
//! waits. The processor has to wait for that, as long as for all the other work here.

#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// Indices of slots without a value.
    free: Vec<u32>,
    waiting: usize,
    uses: u32,
}

#[derive(Debug)]
struct Slot<T> {
    /// The id of the last request in it.
    id: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            waiting: 0,
            uses: 0,
        }
    }

    /// Registers a request. The caller ensures that there are at most [`PENDING_MAX`].
    #[inline(always)]
    pub(super) fn insert(&mut self, value: T) -> u32 {
        // The counter starts at 1, so that a receiver that counts can recognise such ids.
        self.uses = self.uses % USES_MAX + 1;
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.add(),
        };
        // Slots count from 1 on the wire, because ids start at 1.
        let id = self.uses << SLOT_BITS | (index + 1);
        let slot = &mut self.slots[index as usize];
        slot.id = id;
        slot.value = Some(value);
        self.waiting += 1;
        id
    }

    #[cold]
    fn add(&mut self) -> u32 {
        let index = self.slots.len() as u32;
        self.slots.push(Slot { id: 0, value: None });
        index
    }

    #[inline]
    pub(super) fn take(&mut self, id: u32) -> Option<T> {
        let index = (id & SLOT_MASK).checked_sub(1)?;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.id != id {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push(index);
        self.waiting -= 1;
        Some(value)
    }

    pub(super) fn find_mut(&mut self, id: u32) -> Option<&mut T> {
        let index = (id & SLOT_MASK).checked_sub(1)?;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.id != id {
            return None;
        }
        slot.value.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let slots = self.slots.iter();
        slots.filter_map(|slot| Some((slot.id, slot.value.as_ref()?)))
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.waiting = 0;
        self.free.clear();
        let slots = std::mem::take(&mut self.slots).into_iter();
        slots.filter_map(|slot| slot.value)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }
}

const SLOT_BITS: u32 = 16;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
const USES_MAX: u32 = (1 << (32 - SLOT_BITS)) - 1;

/// Maximum number of requests that the slots can tell apart.
pub(super) const PENDING_MAX: usize = (1 << SLOT_BITS) - 1;
