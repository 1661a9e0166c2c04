//! Counts the sessions and registrations of the whole server against its limits, and the share of each address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidewire_io::socket::SocketAddress;

use crate::address::Endpoint;
use crate::limits::Limits;

/// The number of sessions, in all and for each IP address. It is checked once per connection.
#[derive(Debug)]
pub(crate) struct SessionLimiter {
    sessions_max: usize,
    per_address_max: usize,
    registrations_max: usize,
    registrations_per_address_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sessions: usize,
    session_shares: Shares,
    registrations: usize,
    registration_shares: Shares,
}

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
        let share = owner.and_then(|owner| self.by_address.get(&owner));
        if owner.is_some() && share.copied().unwrap_or(0) >= share_max {
            Err(TableFull::Address)
        } else if count >= count_max {
            Err(TableFull::Server)
        } else {
            Ok(())
        }
    }

    pub(crate) fn add(&mut self, owner: Option<IpAddr>) {
        if let Some(owner) = owner {
            *self.by_address.entry(owner).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, owner: Option<IpAddr>) {
        if let Some(owner) = owner
            && let Some(count) = self.by_address.get_mut(&owner)
        {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&owner);
            }
        }
    }
}

impl SessionLimiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            sessions_max: limits.sessions_max,
            per_address_max: limits.sessions_per_address_max,
            registrations_max: limits.registrations_max,
            registrations_per_address_max: limits.registrations_per_address_max,
            state: Mutex::default(),
        }
    }

    /// Counts a new session, unless a limit is reached.
    pub(crate) fn enter(&self, peer: Option<&Endpoint>) -> bool {
        let owner = peer.and_then(counted_address);
        let mut state = self.lock();
        let (shares, count) = (&state.session_shares, state.sessions);
        let checked = shares.check(owner, self.per_address_max, count, self.sessions_max);
        if checked.is_ok() {
            state.sessions += 1;
            state.session_shares.add(owner);
        }
        checked.is_ok()
    }

    /// Removes a session from the count.
    pub(crate) fn leave(&self, peer: Option<&Endpoint>) {
        let mut state = self.lock();
        state.sessions -= 1;
        state.session_shares.remove(peer.and_then(counted_address));
    }

    /// Counts a subscriber's registration, unless a limit is reached.
    pub(crate) fn register(&self, owner: Option<IpAddr>) -> Result<(), TableFull> {
        let mut state = self.lock();
        let (shares, count) = (&state.registration_shares, state.registrations);
        let (share_max, count_max) = (self.registrations_per_address_max, self.registrations_max);
        shares.check(owner, share_max, count, count_max)?;
        state.registrations += 1;
        state.registration_shares.add(owner);
        Ok(())
    }

    /// Removes a registration from the count.
    pub(crate) fn unregister(&self, owner: Option<IpAddr>) {
        let mut state = self.lock();
        state.registrations -= 1;
        state.registration_shares.remove(owner);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is complete before anything can panic, so the counts stay usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address that a peer counts for: its IPv4 address, also if mapped to IPv6, or the first 64 bits of its IPv6 address.
/// One IPv6 host can use all addresses that share these bits.
pub(crate) fn counted_address(peer: &Endpoint) -> Option<IpAddr> {
    let (Endpoint::Socket(SocketAddress::Tcp(address))
    | Endpoint::Tls(address)
    | Endpoint::Udp(address)) = peer
    else {
        return None;
    };
    Some(match address.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK_BITS).into(),
        ip => ip,
    })
}

/// The network part of an IPv6 address.
const NETWORK_BITS: u128 = !(u64::MAX as u128);

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Option<Endpoint> {
        Some(Endpoint::Socket(SocketAddress::Tcp(text.parse().unwrap())))
    }

    #[test]
    fn both_limits_hold_and_places_come_back() {
        let limiter = SessionLimiter::new(&Limits {
            sessions_max: 3,
            sessions_per_address_max: 2,
            ..Limits::default()
        });
        assert!(limiter.enter(peer("10.0.0.1:1").as_ref()));
        assert!(limiter.enter(peer("10.0.0.1:2").as_ref()));
        assert!(
            !limiter.enter(peer("10.0.0.1:3").as_ref()),
            "two from one address"
        );
        let datagrams = Endpoint::Udp("[::ffff:10.0.0.1]:9".parse().unwrap());
        assert!(!limiter.enter(Some(&datagrams)), "the same address");
        assert!(limiter.enter(peer("10.0.0.2:1").as_ref()));
        assert!(!limiter.enter(None), "three in all");
        limiter.leave(peer("10.0.0.1:1").as_ref());
        assert!(limiter.enter(peer("10.0.0.1:4").as_ref()));
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let address = |text| counted_address(&peer(text).unwrap());
        assert_eq!(
            address("[2001:db8:1:2::3]:1"),
            address("[2001:db8:1:2:f::]:1")
        );
        assert_ne!(
            address("[2001:db8:1:2::3]:1"),
            address("[2001:db8:1:3::3]:1")
        );
        assert_eq!(
            address("[::ffff:10.0.0.1]:1"),
            Some("10.0.0.1".parse().unwrap())
        );
    }

    #[test]
    fn one_address_takes_no_more_than_its_share_of_the_registrations() {
        let limiter = SessionLimiter::new(&Limits {
            registrations_max: 3,
            registrations_per_address_max: 2,
            ..Limits::default()
        });
        let [one, two] = ["10.0.0.1:1", "10.0.0.2:1"].map(|text| counted_address(&peer(text)?));
        assert_eq!(limiter.register(one), Ok(()));
        assert_eq!(limiter.register(one), Ok(()));
        assert_eq!(limiter.register(one), Err(TableFull::Address));
        assert_eq!(limiter.register(two), Ok(()));
        assert_eq!(limiter.register(two), Err(TableFull::Server));
        limiter.unregister(one);
        assert_eq!(limiter.register(two), Ok(()));
    }
}
