//! Ids of 8 bits.
//!
//! Sequences are assigned in turn, without those with pending replies. Sequence 0 is left out: this gives the limit of
//! 255 requests in flight, and keeps id 0 for "no request".

#[derive(Debug)]
pub(super) struct Sequences<T> {
    slots: Vec<Slot<T>>,
    last: u8,
    waiting: usize,
    given_up: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Free,
    Waiting(T),
    GivenUp,
}

impl<T> Sequences<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: std::iter::repeat_with(|| Slot::Free)
                .take(PENDING_MAX + 1)
                .collect(),
            last: 0,
            waiting: 0,
            given_up: 0,
        }
    }

    /// Registers a request, unless every sequence is in use.
    pub(super) fn insert(&mut self, value: T) -> Result<u32, T> {
        if self.pending_replies() >= PENDING_MAX {
            return Err(value);
        }
        // At least one of the 255 sequences is free, so the loop ends.
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if let Some(slot @ Slot::Free) = self.slots.get_mut(usize::from(self.last)) {
                *slot = Slot::Waiting(value);
                self.waiting += 1;
                return Ok(u32::from(self.last));
            }
        }
    }

    pub(super) fn answer(&mut self, id: u32) -> Option<T> {
        let slot = self.slots.get_mut(id as usize)?;
        match std::mem::replace(slot, Slot::Free) {
            Slot::Free => None,
            Slot::GivenUp => {
                self.given_up -= 1;
                None
            }
            Slot::Waiting(value) => {
                self.waiting -= 1;
                Some(value)
            }
        }
    }

    pub(super) fn give_up(&mut self, id: u32) -> Option<T> {
        let value = self.take(id)?;
        // `take` found the slot, so it is there.
        self.slots[id as usize] = Slot::GivenUp;
        self.given_up += 1;
        Some(value)
    }

    pub(super) fn take(&mut self, id: u32) -> Option<T> {
        let slot = self.slots.get_mut(id as usize)?;
        if !matches!(slot, Slot::Waiting(_)) {
            return None;
        }
        match std::mem::replace(slot, Slot::Free) {
            Slot::Waiting(value) => {
                self.waiting -= 1;
                Some(value)
            }
            Slot::Free | Slot::GivenUp => None,
        }
    }

    pub(super) fn find_mut(&mut self, id: u32) -> Option<&mut T> {
        match self.slots.get_mut(id as usize)? {
            Slot::Waiting(value) => Some(value),
            Slot::Free | Slot::GivenUp => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(id, slot)| match slot {
            Slot::Waiting(value) => Some((id, value)),
            Slot::Free | Slot::GivenUp => None,
        })
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.waiting = 0;
        self.given_up = 0;
        self.slots
            .iter_mut()
            .filter_map(|slot| match std::mem::replace(slot, Slot::Free) {
                Slot::Waiting(value) => Some(value),
                Slot::Free | Slot::GivenUp => None,
            })
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn pending_replies(&self) -> usize {
        self.waiting + self.given_up
    }
}

/// Sequences 1 to 255.
pub(super) const PENDING_MAX: usize = 255;
