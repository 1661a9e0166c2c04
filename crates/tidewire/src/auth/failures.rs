//! Attempts of addresses: those that failed, and those whose answer is not known yet. An address that fails often is answered
//! late, and then not checked at all.
//!
//! An attempt counts from its begin, because an authenticator that asks another server answers later: an address must not
//! have any number of questions open, also if it leaves before the answers.
//!
//! The same wrong token is one failure, because a guesser gains nothing with it: a device whose token was revoked does not
//! lock out the others behind its address.
//!
//! The delay is a deadline of the session, so it holds no thread. The table has a bound. When it is full, addresses whose
//! failures are long past make room; if there are none, a new address counts as one that has failed too often, because only
//! an attack from very many addresses fills the table.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_proto::connection::AuthFailure;

/// The attempts of each address in the last minute.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    table: Mutex<Table>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Table {
    by_address: HashMap<IpAddr, Recent>,
    /// When addresses last made room.
    swept_ns: u64,
}

/// The failures of one address since `began_ns`, and its attempts that have not ended.
#[derive(Debug)]
struct Recent {
    began_ns: u64,
    failed: u32,
    in_flight: u32,
    /// Hashes of the wrong tokens.
    tokens: Vec<u64>,
}

/// An attempt that has begun. It is in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Attempt {
    failures: Arc<Failures>,
    address: IpAddr,
    /// The hash of its token, if it has one.
    token: Option<u64>,
    /// Whether the table had room for it.
    is_counted: bool,
}

impl Failures {
    /// Begins an attempt. One without a token is no guess, so earlier failures do not stop it.
    ///
    /// # Errors
    /// The credentials of this address may not be checked now.
    pub(crate) fn begin(
        self: &Arc<Self>,
        address: IpAddr,
        token: &[u8],
        now_ns: u64,
    ) -> Result<Attempt, AuthFailure> {
        let token = (!token.is_empty()).then(|| self.hasher.hash_one(token));
        let mut table = self.table();
        let recent = table.recent(address, now_ns);
        let is_counted = recent.is_some();
        if let Some(recent) = recent {
            let failed = token.map_or(0, |_| recent.failed);
            if failed >= ATTEMPTS_MAX {
                return Err(AuthFailure::TooManyFailures);
            }
            if failed + recent.in_flight >= ATTEMPTS_MAX {
                return Err(AuthFailure::Unavailable);
            }
            recent.in_flight += 1;
        }
        Ok(Attempt {
            failures: Arc::clone(self),
            address,
            token,
            is_counted,
        })
    }

    /// Counts a failure, unless it is that of a token which failed before. Returns when it should be answered.
    fn note(&self, address: IpAddr, token: Option<u64>, now_ns: u64) -> u64 {
        let mut table = self.table();
        let Some(recent) = table.recent(address, now_ns) else {
            return Self::latest_answer(now_ns);
        };
        if token.is_none_or(|token| !recent.tokens.contains(&token)) {
            recent.failed = recent.failed.saturating_add(1);
            let remembered = token.filter(|_| recent.failed <= ATTEMPTS_MAX);
            recent.tokens.extend(remembered);
        }
        let delay_ns = match recent.failed.saturating_sub(FAILURES_AT_ONCE) {
            0 => 0,
            doublings => (DELAY_NS_FIRST << doublings.min(10)).min(DELAY_NS_MAX),
        };
        now_ns.saturating_add(delay_ns)
    }

    /// When an address is answered that has failed too often.
    pub(crate) fn latest_answer(now_ns: u64) -> u64 {
        now_ns.saturating_add(DELAY_NS_MAX)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The attempts of an address, or `None` if there is no room for one more address.
    fn recent(&mut self, address: IpAddr, now_ns: u64) -> Option<&mut Recent> {
        let is_new = !self.by_address.contains_key(&address);
        if is_new && self.by_address.len() >= ADDRESSES_MAX {
            if now_ns.saturating_sub(self.swept_ns) < SWEEP_NS {
                return None;
            }
            self.swept_ns = now_ns;
            let is_needed = |recent: &Recent| recent.in_flight > 0 || !recent.is_past(now_ns);
            self.by_address.retain(|_, recent| is_needed(recent));
            if self.by_address.len() >= ADDRESSES_MAX {
                return None;
            }
        }
        let new = Recent {
            began_ns: now_ns,
            failed: 0,
            in_flight: 0,
            tokens: Vec::new(),
        };
        let recent = self.by_address.entry(address).or_insert(new);
        if recent.is_past(now_ns) {
            (recent.began_ns, recent.failed) = (now_ns, 0);
            recent.tokens.clear();
        }
        Some(recent)
    }
}

impl Recent {
    fn is_past(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.began_ns) >= WINDOW_NS
    }
}

impl Attempt {
    /// Counts it as a failure. Returns when it should be answered.
    pub(crate) fn note_failure(&self, now_ns: u64) -> u64 {
        self.failures.note(self.address, self.token, now_ns)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_counted {
            return;
        }
        let by_address = &mut self.failures.table().by_address;
        if let Some(recent) = by_address.get_mut(&self.address) {
            recent.in_flight -= 1;
            if recent.in_flight == 0 && recent.failed == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

/// The time over which failures are counted.
const WINDOW_NS: u64 = 60_000_000_000;

/// Attempts of one address that failed in a minute or are in flight, after which no more of its credentials are checked.
/// Many clients behind one address seldom fail, and a guesser gains nothing with 30 tokens.
const ATTEMPTS_MAX: u32 = 30;

/// The least time between two searches of a full table for addresses that make room. A search looks at all of them.
const SWEEP_NS: u64 = 1_000_000_000;

/// Failures that are answered at once. A person mistypes.
const FAILURES_AT_ONCE: u32 = 3;

/// Half of the first delay. It doubles with each failure.
const DELAY_NS_FIRST: u64 = 50_000_000;

/// The longest delay. It is below the usual deadline of the handshake, so that the peer is told the reason.
const DELAY_NS_MAX: u64 = 3_000_000_000;

/// Addresses that are remembered: about 1 MB, and up to 4 MB for their wrong tokens.
const ADDRESSES_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn an_address_that_fails_is_slowed_then_stopped_and_forgiven_after_a_minute() {
        let failures = Arc::new(Failures::default());
        let (ann, bob) = (address(1), address(2));
        let delays: Vec<u64> = (0..ATTEMPTS_MAX)
            .map(|_| failures.note(ann, None, 0))
            .collect();
        assert_eq!(delays[..5], [0, 0, 0, 100_000_000, 200_000_000]);
        assert!(delays.is_sorted());
        assert_eq!(delays.last(), Some(&DELAY_NS_MAX));
        let refused = failures.begin(ann, b"guess", 1).unwrap_err();
        assert_eq!(refused, AuthFailure::TooManyFailures);
        assert!(failures.begin(bob, b"guess", 1).is_ok());
        assert!(
            failures.begin(ann, b"", 1).is_ok(),
            "it sends no credentials"
        );
        assert!(failures.begin(ann, b"guess", WINDOW_NS).is_ok());
        assert_eq!(
            failures.note(ann, None, WINDOW_NS),
            WINDOW_NS,
            "it begins anew"
        );
    }

    #[test]
    fn attempts_in_flight_count_with_those_that_failed() {
        let failures = Arc::new(Failures::default());
        let ann = address(1);
        failures.note(ann, None, 0);
        let begin = |token: &[u8]| failures.begin(ann, token, 0);
        let mut open: Vec<Attempt> = (1..ATTEMPTS_MAX)
            .map(|_| begin(b"guess").unwrap())
            .collect();
        assert_eq!(begin(b"guess").unwrap_err(), AuthFailure::Unavailable);
        open.push(begin(b"").unwrap());
        assert_eq!(begin(b"").unwrap_err(), AuthFailure::Unavailable);
        assert!(
            failures.begin(ann, b"guess", WINDOW_NS).is_err(),
            "they are still in flight"
        );
        open.truncate(20);
        let ended = begin(b"guess").unwrap();
        ended.note_failure(0);
        drop((open, ended));
        assert_eq!(failures.table().by_address[&ann].in_flight, 0);
        assert!(begin(b"guess").is_ok());
    }

    /// Regression: devices with a revoked token tried again and again, and locked out all others behind their address.
    #[test]
    fn the_same_wrong_token_is_one_failure() {
        let failures = Arc::new(Failures::default());
        let site = address(1);
        let fail = |token: &[u8]| failures.begin(site, token, 0).unwrap().note_failure(0);
        for _ in 0..100 {
            fail(b"revoked 1");
            fail(b"revoked 2");
        }
        assert_eq!(failures.table().by_address[&site].failed, 2);
        for guess in 2..ATTEMPTS_MAX {
            fail(&guess.to_le_bytes());
        }
        let refused = failures.begin(site, b"revoked 1", 0).unwrap_err();
        assert_eq!(refused, AuthFailure::TooManyFailures);
    }

    #[test]
    fn addresses_that_do_not_fail_are_not_remembered() {
        let failures = Arc::new(Failures::default());
        drop(failures.begin(address(1), b"guess", 0));
        assert!(failures.table().by_address.is_empty());
    }

    #[test]
    fn many_addresses_do_not_fill_the_memory() {
        let failures = Arc::new(Failures::default());
        for number in 0..2 * ADDRESSES_MAX as u32 {
            failures.note(address(number), None, 0);
        }
        assert_eq!(failures.table().by_address.len(), ADDRESSES_MAX);
        let last = address(u32::MAX);
        assert!(failures.begin(last, b"guess", 0).is_ok());
        assert_eq!(failures.note(last, None, 0), DELAY_NS_MAX);
        assert_eq!(failures.note(last, None, WINDOW_NS), WINDOW_NS);
        assert_eq!(failures.table().by_address.len(), 1);
    }
}
