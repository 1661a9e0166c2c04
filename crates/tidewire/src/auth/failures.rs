//! Failed attempts of addresses. An address that fails often is answered late, and then not checked at all.
//!
//! The delay is a deadline of the session, so it holds no thread. The table has a bound. When it is full, addresses whose
//! failures are long past make room; if there are none, a new address counts as one that has failed too often, because only
//! an attack from very many addresses fills the table.

use std::collections::HashMap;
use std::net::IpAddr;

/// The failures of each address in the last minute.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    by_address: HashMap<IpAddr, Recent>,
}

/// The failures of one address since `began_ns`.
#[derive(Clone, Copy, Debug)]
struct Recent {
    began_ns: u64,
    count: u32,
}

impl Failures {
    /// Whether the credentials of this address may be checked now.
    pub(crate) fn may_try(&self, address: Option<IpAddr>, now_ns: u64) -> bool {
        let recent = address.and_then(|address| self.by_address.get(&address));
        recent.is_none_or(|recent| recent.count < FAILURES_MAX || recent.is_past(now_ns))
    }

    /// Counts a failure. Returns when it should be answered.
    pub(crate) fn note(&mut self, address: Option<IpAddr>, now_ns: u64) -> u64 {
        let Some(address) = address else {
            return now_ns;
        };
        if self.by_address.len() >= ADDRESSES_MAX && !self.by_address.contains_key(&address) {
            self.by_address.retain(|_, recent| !recent.is_past(now_ns));
            if self.by_address.len() >= ADDRESSES_MAX {
                return now_ns.saturating_add(DELAY_NS_MAX);
            }
        }
        let new = Recent {
            began_ns: now_ns,
            count: 0,
        };
        let recent = self.by_address.entry(address).or_insert(new);
        if recent.is_past(now_ns) {
            *recent = new;
        }
        recent.count = recent.count.saturating_add(1);
        let doublings = recent.count.saturating_sub(FAILURES_AT_ONCE);
        let delay_ns = match doublings {
            0 => 0,
            many => (DELAY_NS_FIRST << many.min(10)).min(DELAY_NS_MAX),
        };
        now_ns.saturating_add(delay_ns)
    }
}

impl Recent {
    fn is_past(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.began_ns) >= WINDOW_NS
    }
}

/// The time over which failures are counted.
const WINDOW_NS: u64 = 60_000_000_000;

/// Failures of one address in a minute, after which no more of its credentials are checked. Many clients behind one address
/// seldom fail, and a guesser gains nothing with 30 tokens.
const FAILURES_MAX: u32 = 30;

/// Failures that are answered at once. A person mistypes.
const FAILURES_AT_ONCE: u32 = 3;

/// Half of the first delay. It doubles with each failure.
const DELAY_NS_FIRST: u64 = 50_000_000;

/// The longest delay. It is below the usual deadline of the handshake, so that the peer is told the reason.
const DELAY_NS_MAX: u64 = 3_000_000_000;

/// Addresses that are remembered: about 1 MB.
const ADDRESSES_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> Option<IpAddr> {
        Some(std::net::Ipv4Addr::from_bits(number).into())
    }

    #[test]
    fn an_address_that_fails_is_slowed_then_stopped_and_forgiven_after_a_minute() {
        let mut failures = Failures::default();
        let (ann, bob) = (address(1), address(2));
        let delays: Vec<u64> = (0..FAILURES_MAX).map(|_| failures.note(ann, 0)).collect();
        assert_eq!(delays[..5], [0, 0, 0, 100_000_000, 200_000_000]);
        assert!(delays.is_sorted());
        assert_eq!(delays.last(), Some(&DELAY_NS_MAX));
        assert!(!failures.may_try(ann, 1) && failures.may_try(bob, 1));
        assert!(failures.may_try(None, 1), "a Unix socket has no address");
        assert!(failures.may_try(ann, WINDOW_NS));
        assert_eq!(failures.note(ann, WINDOW_NS), WINDOW_NS, "it begins anew");
    }

    #[test]
    fn many_addresses_do_not_fill_the_memory() {
        let mut failures = Failures::default();
        for number in 0..2 * ADDRESSES_MAX as u32 {
            failures.note(address(number), 0);
        }
        assert_eq!(failures.by_address.len(), ADDRESSES_MAX);
        assert_eq!(failures.note(address(u32::MAX), 0), DELAY_NS_MAX);
        assert_eq!(failures.note(address(u32::MAX), WINDOW_NS), WINDOW_NS);
        assert_eq!(failures.by_address.len(), 1);
    }
}
