//! The used rates of identities. They outlive sessions, so that a peer that connects again does not begin with a full
//! burst.
//!
//! All sessions of an identity use one bucket, on every lane. A message costs two atomic operations, only in sessions
//! of an identity with its own rate. Rejected: a grant of messages for each session, because a session that ends or
//! falls silent would have to give its rest back.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::Identity;
use crate::limits::{Rate, SharedBucket};

/// The buckets of all identities that have a rate and that have used some of it.
#[derive(Debug, Default)]
pub(crate) struct IdentityRates(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_owner: HashMap<Owner, Arc<SharedBucket>>,
    /// At this length, buckets that need not be remembered are forgotten.
    search_at: usize,
}

/// The peers that share a rate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Name(Box<str>),
    /// Anonymous peers share nothing but their address.
    Address(IpAddr),
}

impl IdentityRates {
    /// The rate of an identity, and its bucket. `address` is the peer's.
    pub(crate) fn of(
        &self,
        identity: &Identity,
        address: Option<IpAddr>,
        now_ns: u64,
    ) -> Option<(Rate, Arc<SharedBucket>)> {
        let rate = identity.own_limits().rate?.rate().ok()?;
        let owner = match (identity.is_anonymous(), address) {
            (false, _) => Owner::Name(identity.name().into()),
            (true, Some(address)) => Owner::Address(address),
            // A peer of this machine or this process, which is not known.
            (true, None) => return Some((rate, Arc::default())),
        };
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.by_owner.len() >= table.search_at {
            table.forget(now_ns);
        }
        let bucket = table.by_owner.entry(owner).or_default();
        Some((rate, Arc::clone(bucket)))
    }
}

impl Table {
    /// Forgets buckets that no session uses and that are full again.
    fn forget(&mut self, now_ns: u64) {
        let is_over = self.by_owner.len() >= UNUSED_MAX;
        self.by_owner.retain(|_, bucket| {
            let is_used = Arc::strong_count(bucket) > 1;
            is_used || (!is_over && !bucket.load().is_full(now_ns))
        });
        self.search_at = (2 * self.by_owner.len()).max(SEARCH_MIN);
    }
}

/// The least number of buckets at which a search is worth it.
const SEARCH_MIN: usize = 1_024;

/// Above this number, unused buckets are removed, even if they are not full: some 8 MB.
const UNUSED_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{IdentityLimits, Permissions};
    use crate::limits::{RateLimit, WhenExceeded};

    const SECOND_NS: u64 = 1_000_000_000;

    fn with_rate(identity: Identity) -> Identity {
        let rate = RateLimit::new(WhenExceeded::Refuse).messages_per_second(10);
        identity.limits(IdentityLimits {
            rate: Some(rate),
            ..IdentityLimits::default()
        })
    }

    fn named(name: &str) -> Identity {
        with_rate(Identity::new(name, Permissions::nothing()))
    }

    /// How many messages may come now.
    fn taken((rate, bucket): &(Rate, Arc<SharedBucket>), now_ns: u64) -> usize {
        (0..100)
            .take_while(|_| bucket.take(rate, 1, now_ns, false))
            .count()
    }

    /// Regression: a rate was reset by each connection, so a user sent 54,020 messages in 2 s at a rate of 10.
    #[test]
    fn a_rate_belongs_to_the_identity_and_outlives_its_sessions() {
        let rates = IdentityRates::default();
        let now_ns = 77 * SECOND_NS;
        let first = rates.of(&named("ann"), None, now_ns).unwrap();
        assert_eq!(taken(&first, now_ns), 10);
        drop(first);
        let second = rates.of(&named("ann"), None, now_ns).unwrap();
        let third = rates.of(&named("ann"), None, now_ns).unwrap();
        assert_eq!((taken(&second, now_ns), taken(&third, now_ns)), (0, 0));
        let later_ns = now_ns + SECOND_NS / 2;
        assert_eq!(taken(&second, later_ns) + taken(&third, later_ns), 5);
        let bob = rates.of(&named("bob"), None, now_ns).unwrap();
        assert_eq!(taken(&bob, now_ns), 10);
        let unlimited = Identity::new("eve", Permissions::nothing());
        assert!(rates.of(&unlimited, None, now_ns).is_none());
    }

    #[test]
    fn anonymous_peers_share_a_rate_with_those_of_their_address_only() {
        let rates = IdentityRates::default();
        let now_ns = 77 * SECOND_NS;
        let address = |last| Some(std::net::Ipv4Addr::new(192, 0, 2, last).into());
        let of = |address| {
            let anonymous = with_rate(Identity::anonymous(Permissions::nothing()));
            rates.of(&anonymous, address, now_ns).unwrap()
        };
        assert_eq!(taken(&of(address(1)), now_ns), 10);
        assert_eq!(taken(&of(address(1)), now_ns), 0);
        assert_eq!(taken(&of(address(2)), now_ns), 10);
        assert_eq!(taken(&of(None), now_ns), 10);
    }

    #[test]
    fn buckets_that_are_full_again_are_forgotten() {
        let rates = IdentityRates::default();
        let used = rates.of(&named("used"), None, 0).unwrap();
        for number in 0..4 * SEARCH_MIN as u64 {
            let now_ns = number * SECOND_NS;
            let one = rates.of(&named(&number.to_string()), None, now_ns).unwrap();
            assert_eq!(taken(&one, now_ns), 10);
        }
        assert!(rates.0.lock().unwrap().by_owner.len() <= SEARCH_MIN);
        let again = rates.of(&named("used"), None, 0).unwrap();
        assert!(Arc::ptr_eq(&used.1, &again.1));
    }
}
