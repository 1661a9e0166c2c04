//! The places of connections: a bounded number, and the choice of a connection to close when all are taken.
//!
//! Problem: one address can open more connections than there are places and send nothing. If newcomers then waited, no
//! health check would be answered, and a supervisor would kill the server. Approach: a newcomer always gets a place.
//! When all are taken, the address with the most places loses the connection that has been silent for the longest time.
//! So a flood displaces itself, and a short time for request heads is not needed.
//!
//! Rejected: a fixed share for each address, because four addresses then fill the places. Rejected: places for health
//! alone on the same address, because the purpose of a connection is known only after its first bytes. A server may
//! have a separate address for health.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

#[derive(Debug)]
pub(crate) struct Places {
    max: usize,
    table: Mutex<Table>,
    /// Counts the actions of all peers, so that one number orders their signs of life.
    clock: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    taken: HashMap<u64, OccupiedPlace>,
}

#[derive(Debug)]
struct OccupiedPlace {
    network: IpAddr,
    life: Arc<AtomicU64>,
    /// Ends the connection. `None` until its task is known.
    task: Option<AbortHandle>,
}

/// The place of a connection. Dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    life: Arc<AtomicU64>,
}

impl Places {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            table: Mutex::default(),
            clock: AtomicU64::new(0),
        })
    }

    /// Gives a newcomer a place. Returns whether another connection was ended for it.
    pub(crate) fn take(self: &Arc<Self>, peer: IpAddr) -> (Place, bool) {
        let network = network(peer);
        let life = Arc::new(AtomicU64::new(self.tick()));
        let mut table = self.table();
        let is_full = table.taken.len() >= self.max;
        if is_full {
            table.make_room(network);
        }
        let id = table.next;
        table.next += 1;
        let taken = OccupiedPlace {
            network,
            life: Arc::clone(&life),
            task: None,
        };
        table.taken.insert(id, taken);
        drop(table);
        let places = Arc::clone(self);
        (Place { places, id, life }, is_full)
    }

    /// Names the task of a connection, which may have given way already.
    pub(crate) fn set_task(&self, id: u64, task: AbortHandle) {
        match self.table().taken.get_mut(&id) {
            Some(taken) => taken.task = Some(task),
            None => task.abort(),
        }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Ends a connection for a newcomer of this network: the connection with the longest silence of the network with
    /// the most places, counting the newcomer's.
    fn make_room(&mut self, newcomer: IpAddr) {
        let mut counts: HashMap<IpAddr, usize> = HashMap::from([(newcomer, 1)]);
        for taken in self.taken.values() {
            *counts.entry(taken.network).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or_default();
        let of_largest = self
            .taken
            .iter()
            .filter(|(_, it)| counts[&it.network] == most);
        let silent = of_largest.min_by_key(|(_, it)| it.life.load(Ordering::Relaxed));
        // A newcomer is alone in a network of one place only if all others have one place, too.
        let Some(id) = silent.map(|(id, _)| *id) else {
            return;
        };
        if let Some(OccupiedPlace {
            task: Some(task), ..
        }) = self.taken.remove(&id)
        {
            task.abort();
        }
    }
}

impl Place {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Notes that the peer sent or took bytes.
    pub(crate) fn note_life(&self) {
        self.life.store(self.places.tick(), Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().taken.remove(&self.id);
    }
}

/// The part of an address that identifies a peer: a peer with an IPv6 address has all 2^64 addresses of its network.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_taken(places: &Places, place: &Place) -> bool {
        places.table().taken.contains_key(&place.id)
    }

    #[test]
    fn a_flood_of_one_address_displaces_itself() {
        let places = Places::new(4);
        let (early, _) = places.take(address("192.0.2.9"));
        let flood: Vec<_> = (0..100)
            .map(|_| places.take(address("192.0.2.1")))
            .collect();
        let (late, displaced) = places.take(address("192.0.2.8"));
        assert!(displaced);
        assert!(is_taken(&places, &early) && is_taken(&places, &late));
        let left = flood.iter().filter(|(place, _)| is_taken(&places, place));
        assert_eq!(left.count(), 2);
        assert!(is_taken(&places, &flood[99].0), "the newest has the place");
    }

    #[test]
    fn the_connection_that_was_silent_for_the_longest_time_gives_way() {
        let places = Places::new(3);
        let [a, b, c] = [1, 2, 3].map(|_| places.take(address("2001:db8::1")).0);
        a.note_life();
        let (d, _) = places.take(address("2001:db8::2"));
        assert!(is_taken(&places, &a) && !is_taken(&places, &b));
        let (_e, _) = places.take(address("2001:db8:0:1::1"));
        assert!(!is_taken(&places, &c) && is_taken(&places, &d));
    }

    #[test]
    fn among_equals_a_newcomer_replaces_the_longest_silent_one() {
        let places = Places::new(2);
        let (a, _) = places.take(address("192.0.2.1"));
        let (b, _) = places.take(address("192.0.2.2"));
        let (c, displaced) = places.take(address("192.0.2.3"));
        assert!(displaced && !is_taken(&places, &a));
        drop(b);
        let (_d, displaced) = places.take(address("192.0.2.4"));
        assert!(!displaced && is_taken(&places, &c));
    }
}
