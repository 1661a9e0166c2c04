//! No ids: first in, first out.
//!
//! The queue holds a slot for every pending reply. A request given up leaves its slot for its late answer. A request
//! that was never sent leaves a hole, which no answer uses.

use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Order<T> {
    slots: VecDeque<Slot<T>>,
    /// Number of the first slot, counted over the life of the connection.
    first: u64,
    waiting: usize,
    holes: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Waiting(T),
    GivenUp,
    Hole,
}

impl<T> Order<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: VecDeque::new(),
            first: 0,
            waiting: 0,
            holes: 0,
        }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let number = self.first + self.slots.len() as u64;
        self.slots.push_back(Slot::Waiting(value));
        self.waiting += 1;
        (number % IDS) as u32 + 1
    }

    /// Takes the oldest request with a pending reply, unless it was given up.
    pub(super) fn answer(&mut self) -> Option<T> {
        self.drop_holes();
        let slot = self.slots.pop_front()?;
        self.first += 1;
        match slot {
            Slot::Waiting(value) => {
                self.waiting -= 1;
                Some(value)
            }
            Slot::GivenUp | Slot::Hole => None,
        }
    }

    pub(super) fn give_up(&mut self, id: u32) -> Option<T> {
        self.replace(id, Slot::GivenUp)
    }

    pub(super) fn take(&mut self, id: u32) -> Option<T> {
        let value = self.replace(id, Slot::Hole)?;
        self.holes += 1;
        self.drop_holes();
        Some(value)
    }

    pub(super) fn find_mut(&mut self, id: u32) -> Option<&mut T> {
        match self.slot_mut(id)? {
            Slot::Waiting(value) => Some(value),
            Slot::GivenUp | Slot::Hole => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (self.first..)
            .zip(&self.slots)
            .filter_map(|(number, slot)| match slot {
                Slot::Waiting(value) => Some(((number % IDS) as u32 + 1, value)),
                Slot::GivenUp | Slot::Hole => None,
            })
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.first += self.slots.len() as u64;
        self.waiting = 0;
        self.holes = 0;
        self.slots.drain(..).filter_map(|slot| match slot {
            Slot::Waiting(value) => Some(value),
            Slot::GivenUp | Slot::Hole => None,
        })
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn pending_replies(&self) -> usize {
        self.slots.len() - self.holes
    }

    fn slot_mut(&mut self, id: u32) -> Option<&mut Slot<T>> {
        let number = u64::from(id.checked_sub(1)?);
        let index = (number + IDS - self.first % IDS) % IDS;
        self.slots.get_mut(usize::try_from(index).ok()?)
    }

    /// Replaces a waiting request by `with`.
    fn replace(&mut self, id: u32, with: Slot<T>) -> Option<T> {
        let slot = self.slot_mut(id)?;
        if !matches!(slot, Slot::Waiting(_)) {
            return None;
        }
        match std::mem::replace(slot, with) {
            Slot::Waiting(value) => {
                self.waiting -= 1;
                Some(value)
            }
            Slot::GivenUp | Slot::Hole => None,
        }
    }

    /// Removes the holes at both ends. A hole in the middle goes when it reaches an end.
    fn drop_holes(&mut self) {
        while let Some(Slot::Hole) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
            self.holes -= 1;
        }
        // The last request has not been sent yet, so the next request may have its number.
        while let Some(Slot::Hole) = self.slots.back() {
            self.slots.pop_back();
            self.holes -= 1;
        }
    }
}

/// Ids go from 1 to this number and start again.
const IDS: u64 = u32::MAX as u64;
