//! A queue that serves addresses in turn, and the entries of one address in the order in which they came.
//!
//! So an address with a thousand entries does not keep the only entry of another address waiting. Entries without an
//! address share one place.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

#[derive(Debug)]
pub(super) struct FairQueue<T> {
    by_owner: HashMap<Option<IpAddr>, VecDeque<T>>,
    /// The addresses with entries, the next one first.
    turns: VecDeque<Option<IpAddr>>,
}

impl<T> FairQueue<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn push(&mut self, owner: Option<IpAddr>, entry: T) {
        let entries = self.by_owner.entry(owner).or_default();
        if entries.is_empty() {
            self.turns.push_back(owner);
        }
        entries.push_back(entry);
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let owner = self.turns.pop_front()?;
        let entries = self.by_owner.get_mut(&owner)?;
        let entry = entries.pop_front();
        if entries.is_empty() {
            self.by_owner.remove(&owner);
        } else {
            self.turns.push_back(owner);
        }
        entry
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            by_owner: HashMap::new(),
            turns: VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_served_in_turn_and_the_entries_of_each_in_their_order() {
        let mut queue = FairQueue::default();
        let [one, two] = [1, 2].map(|number| Some(IpAddr::from([10, 0, 0, number])));
        for number in 0..4 {
            queue.push(one, (1, number));
        }
        queue.push(two, (2, 0));
        queue.push(None, (0, 0));
        assert_eq!(queue.pop(), Some((1, 0)));
        queue.push(two, (2, 1));
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [(2, 0), (0, 0), (1, 1), (2, 1), (1, 2), (1, 3)]);
        assert!(queue.is_empty() && queue.by_owner.is_empty());
    }
}
