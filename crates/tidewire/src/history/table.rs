//! The histories of a server by name, and which one gives way when there are too many.
//!
//! Problem: strangers choose the names. One address with a thousand new names must not erase the values of all others,
//! and a new name must not cost a search through all names. Approach: each history belongs to the address that brought
//! its name. The names of an address are in the order of their newest messages. If the table is full, a new name takes
//! the place of the oldest name of an address: first of an address with more than a quarter of all names, then of the
//! address that brings the new name, and only then of another one.
//!
//! The order is brought up to date when a name is about to give way, so a message costs nothing more. A name that got
//! messages meanwhile goes to its right place, and one that has members goes to the end. Each message pays for one such
//! move. A new name makes a bounded number of them.
//!
//! Rejected: a list that each message changes, because its lock would be taken by all lanes for each message.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use slab::Slab;
use tidewire_proto::topic::Pattern;

use super::message_history::MessageHistory;

/// All histories of the rooms, or of the topics, of a server.
#[derive(Debug, Default)]
pub(super) struct HistoryTable {
    entries: Slab<NamedHistory>,
    by_name: HashMap<Arc<str>, usize>,
    /// The names of each owner that may give way.
    owned: HashMap<Owner, BTreeMap<Place, usize>>,
    /// The addresses by the number of their names.
    by_count: BTreeSet<(usize, IpAddr)>,
    /// Makes places unique.
    placed: u64,
    /// Where the search for expired messages goes on.
    cursor: usize,
}

/// The address that brought a name. `None` for a peer within the machine, and for the program itself.
type Owner = Option<IpAddr>;

/// The time of the newest message when the order was brought up to date, and a unique number.
type Place = (u64, u64);

#[derive(Debug)]
struct NamedHistory {
    name: Arc<str>,
    history: Arc<MessageHistory>,
    /// Where it stands among the names of its owner. `None` for the history of a node, which the node removes.
    place: Option<(Owner, Place)>,
}

impl HistoryTable {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<MessageHistory>> {
        Some(&self.entries[*self.by_name.get(name)?].history)
    }

    /// The names that a pattern matches. It looks at every name.
    pub(super) fn matched_by(&self, pattern: &Pattern<'_>) -> Vec<Arc<str>> {
        let names = self.by_name.keys();
        let matched = names.filter(|name| pattern.matches(name));
        matched.cloned().collect()
    }

    /// Adds a history whose messages the carrier numbers.
    pub(super) fn insert_of_node(&mut self, name: &str, history: Arc<MessageHistory>) {
        self.remove(name);
        self.add(name, history, None);
    }

    /// Adds a history that `owner` brings. Nothing has its name.
    pub(super) fn insert(&mut self, name: &str, history: Arc<MessageHistory>, owner: Owner) {
        let touched = history.touched();
        let place = self.next_place(touched);
        let key = self.add(name, history, Some((owner, place)));
        self.change_owned(owner, |owned| {
            owned.insert(place, key);
        });
    }

    pub(super) fn remove(&mut self, name: &str) {
        if let Some(key) = self.by_name.get(name) {
            self.remove_key(*key);
        }
    }

    /// Makes room for a name that `owner` brings to a table of at most `names_max`. Returns whether a history gave way.
    pub(super) fn make_room(&mut self, owner: Owner, names_max: usize) -> bool {
        let own = self.owned.get(&owner).map_or(0, BTreeMap::len);
        // Names that the program itself brings come before the names of strangers.
        if let Some((count, address)) = self.by_count.last().copied()
            && (owner.is_none() || count > own.max(names_max / SHARE_PARTS))
            && self.remove_oldest(Some(address))
        {
            return true;
        }
        if self.remove_oldest(owner) {
            return true;
        }
        let others = self.by_count.iter().rev().take(OWNERS_TRIED_MAX);
        let others: Vec<Owner> = others.map(|(_, address)| Some(*address)).collect();
        let mut others = others.into_iter().chain([None]);
        others.any(|other| other != owner && self.remove_oldest(other))
    }

    /// Returns the next histories of a round through all of them, at most `count`.
    pub(super) fn next(&mut self, count: usize) -> Vec<Arc<MessageHistory>> {
        let end = self.entries.capacity();
        let keys = self.cursor..(self.cursor + count).min(end);
        self.cursor = if keys.end < end { keys.end } else { 0 };
        let found = keys.filter_map(|key| self.entries.get(key));
        found.map(|entry| Arc::clone(&entry.history)).collect()
    }

    /// Removes the history of `owner` that has been silent for the longest time, unless all have members. If very many
    /// got messages since the order was brought up to date, it is the oldest one of a part.
    fn remove_oldest(&mut self, owner: Owner) -> bool {
        let mut found = None;
        for _ in 0..MOVES_MAX {
            let Some(oldest) = self.owned.get(&owner).and_then(BTreeMap::first_key_value) else {
                return false;
            };
            let (place, key) = (*oldest.0, *oldest.1);
            let history = &self.entries[key].history;
            let touched = history.touched();
            // A room with members has a second reference to its history.
            let is_used = Arc::strong_count(history) > 1;
            if !is_used {
                found = found.into_iter().chain([(touched, key)]).min();
                if touched <= place.0 {
                    break;
                }
            }
            let now = history.now();
            let next = self.next_place(if is_used { now } else { touched });
            self.entries[key].place = Some((owner, next));
            if let Some(owned) = self.owned.get_mut(&owner) {
                owned.remove(&place);
                owned.insert(next, key);
            }
        }
        if let Some((_, key)) = found {
            self.remove_key(key);
        }
        found.is_some()
    }

    fn add(
        &mut self,
        name: &str,
        history: Arc<MessageHistory>,
        place: Option<(Owner, Place)>,
    ) -> usize {
        let name: Arc<str> = name.into();
        let key = self.entries.insert(NamedHistory {
            name: Arc::clone(&name),
            history,
            place,
        });
        self.by_name.insert(name, key);
        key
    }

    fn remove_key(&mut self, key: usize) {
        let NamedHistory { name, place, .. } = self.entries.remove(key);
        self.by_name.remove(&name);
        if let Some((owner, place)) = place {
            self.change_owned(owner, |owned| {
                owned.remove(&place);
            });
        }
    }

    fn next_place(&mut self, touched: u64) -> Place {
        self.placed += 1;
        (touched, self.placed)
    }

    /// Changes the names of an owner, and the count of it.
    fn change_owned(&mut self, owner: Owner, change: impl FnOnce(&mut BTreeMap<Place, usize>)) {
        let owned = self.owned.entry(owner).or_default();
        let before = owned.len();
        change(owned);
        let after = owned.len();
        if after == 0 {
            self.owned.remove(&owner);
        }
        if let Some(address) = owner {
            self.by_count.remove(&(before, address));
            if after > 0 {
                self.by_count.insert((after, address));
            }
        }
    }
}

/// An address with more than this part of all names pays for the names of others.
const SHARE_PARTS: usize = 4;

/// Names that one new name may move to another place: some 20 µs.
const MOVES_MAX: usize = 128;

/// Addresses whose names are tried if all names of the one that brings a name have members.
const OWNERS_TRIED_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::History;
    use super::super::named::NamedHistories;
    use super::*;

    const NAMES: usize = 1_024;

    fn limits() -> History {
        History {
            names_max: NAMES,
            ..History::last(1)
        }
    }

    fn address(number: u8) -> Owner {
        Some([127, 0, 1, number].into())
    }

    /// Publishes to this many new names of an address.
    fn publish(histories: &NamedHistories, owner: Owner, prefix: &str, count: usize) {
        for number in 0..count {
            let name = format!("{prefix}.{number}");
            let history = histories.open_within(&name, limits(), || owner).unwrap();
            history.touch();
        }
    }

    fn kept(histories: &NamedHistories, prefix: &str, count: usize) -> usize {
        let table = histories.table();
        let names = (0..count).filter(|number| table.get(&format!("{prefix}.{number}")).is_some());
        names.count()
    }

    /// Regression: 1,100 single bytes to new names of one address erased the last values of all others.
    #[test]
    fn one_address_with_new_names_loses_its_own_and_a_newcomer_has_its_share() {
        let histories = NamedHistories::default();
        publish(&histories, address(1), "before", 200);
        publish(&histories, address(2), "attack", 5_000);
        assert_eq!(kept(&histories, "before", 200), 200);
        publish(&histories, address(3), "after", 200);
        publish(&histories, address(2), "again", 5_000);
        assert_eq!(kept(&histories, "before", 200), 200);
        assert_eq!(kept(&histories, "after", 200), 200);
        assert_eq!(histories.table().len(), NAMES);
    }

    #[test]
    fn fifty_addresses_with_new_names_lose_their_own() {
        let histories = NamedHistories::default();
        publish(&histories, address(1), "before", 200);
        for round in 0..3 {
            for number in 0..50 {
                publish(
                    &histories,
                    address(100 + number),
                    &format!("{round}.{number}"),
                    500,
                );
            }
        }
        assert_eq!(kept(&histories, "before", 200), 200);
        publish(&histories, None, "own", 10);
        publish(&histories, address(2), "after", 1);
        publish(&histories, address(100), "again", 500);
        assert_eq!(kept(&histories, "after", 1), 1);
        assert_eq!(kept(&histories, "own", 10), 10);
        assert_eq!(kept(&histories, "before", 200), 200);
    }

    /// Regression: each new name beyond the limit searched all names under a lock: 4 to 7 ms at 200,000 names.
    #[test]
    fn a_new_name_moves_few_names_and_the_order_is_that_of_the_newest_messages() {
        let histories = NamedHistories::default();
        publish(&histories, None, "old", NAMES);
        let touch = |number: usize| {
            let open = histories.open_within(&format!("old.{number}"), limits(), || None);
            open.unwrap().touch();
        };
        // All but those that a multiple of 8 names get another message, in the opposite order.
        (0..NAMES).rev().filter(|it| it % 8 != 0).for_each(touch);
        let mut moves_max = 0;
        let mut rest = (0..NAMES).rev().filter(|it| it % 8 != 0);
        for number in 0..NAMES {
            let before = histories.table().placed;
            publish(&histories, None, &format!("new.{number}"), 1);
            moves_max = moves_max.max(histories.table().placed - before);
            assert_eq!(kept(&histories, "old", NAMES), NAMES - 1 - number);
            if number >= NAMES / 8 {
                let oldest = format!("old.{}", rest.next().unwrap());
                assert!(histories.table().get(&oldest).is_none(), "{oldest}");
            }
        }
        assert!(moves_max <= MOVES_MAX as u64 + 1, "{moves_max}");
    }

    #[test]
    fn a_name_with_members_stays_and_the_others_give_way() {
        let histories = NamedHistories::default();
        let names = 0..NAMES;
        let used: Vec<_> = names
            .map(|number| histories.open_within(&format!("used.{number}"), limits(), || address(1)))
            .collect();
        assert!(
            histories
                .open_within("more", limits(), || address(1))
                .is_none()
        );
        drop(used.into_iter().nth(700));
        // Each attempt searches a part.
        let tries = NAMES / MOVES_MAX + 2;
        let opened = (0..tries).any(|_| histories.open_within("more", limits(), || None).is_some());
        assert!(opened);
    }
}
