//! Matching replies to requests.
//!
//! A request's id is its place in a table plus a counter of how often that place was used, so finding the
//! request is an index, and an id that is still waiting is never given out again. A reply that comes after its
//! request was given up finds another counter and matches nothing.

use slab::Slab;

/// Requests that wait for their replies.
#[derive(Debug)]
pub struct Correlator<T> {
    waiting: Slab<Entry<T>>,
    pending_max: usize,
    uses: u32,
}

#[derive(Debug)]
struct Entry<T> {
    id: u32,
    value: T,
}

/// As many requests wait as the limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pending_max} requests are waiting for their replies already")]
pub struct WindowFull {
    /// The limit.
    pub pending_max: usize,
}

impl<T> Correlator<T> {
    /// A table for at most `pending_max` requests, itself at most 65,535.
    #[must_use]
    pub fn new(pending_max: usize) -> Self {
        let pending_max = pending_max.clamp(1, PLACES_MAX - 1);
        Self {
            waiting: Slab::new(),
            pending_max,
            uses: 0,
        }
    }

    /// Registers a request and returns its id, which is never 0.
    ///
    /// # Errors
    /// The table is full; `value` comes back with the error.
    pub fn insert(&mut self, value: T) -> Result<u32, (WindowFull, T)> {
        if self.waiting.len() >= self.pending_max {
            return Err((
                WindowFull {
                    pending_max: self.pending_max,
                },
                value,
            ));
        }
        self.uses = self.uses.wrapping_add(1) & USES_MASK;
        let entry = self.waiting.vacant_entry();
        let place = entry.key() as u32;
        // Places count from 1 on the wire, because ids start at 1.
        let id = self.uses << PLACE_BITS | (place + 1);
        entry.insert(Entry { id, value });
        Ok(id)
    }

    /// The request with this id, which then no longer waits. `None` for a reply that nobody waits for.
    pub fn take(&mut self, id: u32) -> Option<T> {
        let place = ((id & PLACE_MASK) as usize).checked_sub(1)?;
        if self.waiting.get(place).is_none_or(|entry| entry.id != id) {
            return None;
        }
        Some(self.waiting.remove(place).value)
    }

    /// The request with this id, still waiting.
    pub fn find_mut(&mut self, id: u32) -> Option<&mut T> {
        let place = ((id & PLACE_MASK) as usize).checked_sub(1)?;
        let entry = self.waiting.get_mut(place).filter(|entry| entry.id == id)?;
        Some(&mut entry.value)
    }

    /// Takes all waiting requests, to fail them.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.waiting.drain().map(|entry| entry.value)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

const PLACE_BITS: u32 = 16;
const PLACES_MAX: usize = 1 << PLACE_BITS;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;
const USES_MASK: u32 = (1 << (32 - PLACE_BITS)) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_find_their_requests_in_any_order_and_only_once() {
        let mut correlator = Correlator::new(100);
        let ids: Vec<u32> = (0..100)
            .map(|value| correlator.insert(value).unwrap())
            .collect();
        assert!(correlator.insert(100).is_err());
        for (value, id) in ids.iter().enumerate().rev() {
            assert_eq!(correlator.take(*id), Some(value));
            assert_eq!(correlator.take(*id), None);
        }
    }

    #[test]
    fn a_late_reply_does_not_match_the_next_request_in_the_same_place() {
        let mut correlator = Correlator::new(10);
        let first = correlator.insert("first").unwrap();
        assert_eq!(correlator.take(first), Some("first"));
        let second = correlator.insert("second").unwrap();
        assert_ne!(first, second);
        assert_eq!(correlator.take(first), None);
        assert_eq!(correlator.take(0), None);
        assert_eq!(correlator.take(second), Some("second"));
    }

    #[test]
    fn ids_never_are_zero_and_never_repeat_while_waiting() {
        let mut correlator = Correlator::new(3);
        let held = correlator.insert(0).unwrap();
        for value in 1..200_000 {
            let id = correlator.insert(value).unwrap();
            assert!(id != 0 && id != held);
            assert_eq!(correlator.take(id), Some(value));
        }
        assert_eq!(correlator.take(held), Some(0));
    }
}
