//! The share of each address in a table of the whole server.
//!
//! Problem: a limit for each address protects a table only from three addresses, if it is a quarter of the table, and
//! from none if the table was made smaller. Approach: the last quarter of a table is for addresses that have few
//! entries. There an address may have a 32nd of what is free, or one entry. So fifty addresses that take what they can
//! leave places for others, in a table of 256 entries, too. With a sixteenth they filled such a table, and left a
//! newcomer half as much of a large one. Entries of rooms and topics are never taken away, because members of other
//! addresses may be in them. A session is: the address with the most sessions makes room for a newcomer.
//!
//! Rejected: equal shares for all addresses that have entries, because the first address of a server that is alone for
//! now would have to leave half of the table free.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// The limit that an entry would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableFull {
    /// The address has used up its share.
    Address,
    /// The table is full.
    Server,
}

/// The number of entries of each address in a table. Entries without an address have no share.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    by_address: HashMap<IpAddr, usize>,
    /// The addresses by the number of their entries.
    by_count: BTreeSet<(usize, IpAddr)>,
}

impl Shares {
    /// Checks whether `owner` may add an entry to a table that has `count` of at most `count_max`. The share is checked
    /// first, because `owner` can end entries of its own.
    pub(crate) fn check(
        &self,
        owner: Option<IpAddr>,
        share_max: usize,
        count: usize,
        count_max: usize,
    ) -> Result<(), TableFull> {
        let share = self.of(owner);
        let free = count_max.saturating_sub(count);
        let is_scarce = free > 0 && free <= count_max / SCARCE_PARTS;
        let share_max = match is_scarce {
            true => share_max.min((free / NEWCOMER_PARTS).max(1)),
            false => share_max,
        };
        if owner.is_some() && share >= share_max {
            Err(TableFull::Address)
        } else if free == 0 {
            Err(TableFull::Server)
        } else {
            Ok(())
        }
    }

    /// The number of entries of an address.
    pub(crate) fn of(&self, owner: Option<IpAddr>) -> usize {
        let share = owner.and_then(|owner| self.by_address.get(&owner));
        share.copied().unwrap_or(0)
    }

    /// The address with the most entries, and their number.
    pub(super) fn most(&self) -> Option<(usize, IpAddr)> {
        self.by_count.last().copied()
    }

    pub(crate) fn add(&mut self, owner: Option<IpAddr>) {
        if let Some(owner) = owner {
            let count = self.of(Some(owner));
            self.set(owner, count, count + 1);
        }
    }

    pub(crate) fn remove(&mut self, owner: Option<IpAddr>) {
        if let Some(owner) = owner
            && let count @ 1.. = self.of(Some(owner))
        {
            self.set(owner, count, count - 1);
        }
    }

    fn set(&mut self, owner: IpAddr, before: usize, after: usize) {
        self.by_count.remove(&(before, owner));
        if after > 0 {
            self.by_count.insert((after, owner));
            self.by_address.insert(owner, after);
        } else {
            self.by_address.remove(&owner);
        }
    }
}

/// The last part of a table, which is for addresses with few entries.
const SCARCE_PARTS: usize = 4;

/// The part of what is free that one address may have then.
const NEWCOMER_PARTS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(
        shares: &mut Shares,
        owner: Option<IpAddr>,
        count: &mut usize,
        count_max: usize,
    ) -> usize {
        let before = *count;
        while shares
            .check(owner, count_max / 4, *count, count_max)
            .is_ok()
        {
            shares.add(owner);
            *count += 1;
        }
        *count - before
    }

    /// Regression: four addresses filled a table whose limit for one address is a quarter, and a newcomer got nothing.
    /// Then fifty filled a table of 256 entries.
    #[test]
    fn fifty_addresses_that_take_what_they_can_leave_places_for_a_newcomer() {
        for count_max in [256, 1_024, 16_384] {
            let (mut shares, mut count) = (Shares::default(), 0);
            let address = |number: u8| Some(IpAddr::from([127, 0, 0, number]));
            for number in 100..150 {
                assert!(fill(&mut shares, address(number), &mut count, count_max) > 0);
            }
            let got = fill(&mut shares, address(1), &mut count, count_max);
            assert!(got > count_max / 4_096, "{got} of {count_max}");
            assert!(count < count_max, "and the next one, too");
            assert_eq!(shares.most().unwrap().0, count_max / 4);
        }
    }

    #[test]
    fn a_small_table_has_its_whole_size_and_counts_go_to_nothing() {
        let (mut shares, mut count) = (Shares::default(), 0);
        let owner = Some(IpAddr::from([127, 0, 0, 1]));
        while shares.check(owner, 10, count, 3).is_ok() {
            shares.add(owner);
            count += 1;
        }
        assert_eq!(count, 3);
        (0..3).for_each(|_| shares.remove(owner));
        assert!(shares.most().is_none() && shares.by_address.is_empty());
    }
}
