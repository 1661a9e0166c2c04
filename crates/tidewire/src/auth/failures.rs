//! Failed and open attempts of addresses. An address that guesses often is answered late, and later not checked.
//!
//! Two limits are apart. Guesses of an address are counted for a minute. Open attempts have a separate limit and a
//! queue, because an authenticator that asks another server answers later. The limit bounds the questions of one
//! address, and the queue admits a hundred users of one gateway. Rejected: one limit for both, which refused honest
//! users.
//!
//! The same wrong token is one guess, because a guesser gains nothing with it. Genuine credentials that have expired,
//! are not valid yet or were revoked are no guess: a fleet of such devices does not lock out others at its address.
//!
//! The delay is a deadline of the session, so it holds no thread. The table has a bound. A full table removes addresses
//! with old failures. If all failures are recent, a new address counts as one that has failed too often, because only
//! an attack from very many addresses fills the table.

use std::collections::{HashMap, VecDeque};
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
    swept_ns: u64,
    /// Attempts in the queues of all addresses.
    queued: usize,
}

/// The guesses of one address since `began_ns`, and its attempts that have not ended.
#[derive(Debug)]
struct Recent {
    began_ns: u64,
    failed: u32,
    in_flight: u32,
    tokens: Vec<u64>,
    /// Attempts that wait until another attempt ends. Empty while fewer than [`IN_FLIGHT_MAX`] are in flight.
    queue: VecDeque<Queued>,
}

/// An attempt in the queue of its address.
struct Queued {
    token: Option<u64>,
    turn: Turn,
}

/// Gives an attempt its turn. Returns the attempt if its peer has left.
pub(crate) type Turn = Box<dyn FnOnce(Attempt) -> Option<Attempt> + Send>;

opaque!(Queued);

/// An attempt that has begun. It is in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Attempt {
    failures: Arc<Failures>,
    address: IpAddr,
    token: Option<u64>,
    /// Whether the table had room for it.
    is_counted: bool,
}

impl Failures {
    /// Begins an attempt. One without a token is no guess, so earlier failures do not stop it. `None` if it has to
    /// wait: then `turn` gets it later.
    ///
    /// # Errors
    /// The credentials of this address may not be checked now.
    pub(crate) fn begin(
        self: &Arc<Self>,
        address: IpAddr,
        token: &[u8],
        now_ns: u64,
        turn: impl FnOnce() -> Turn,
    ) -> Result<Option<Attempt>, AuthFailure> {
        let token = (!token.is_empty()).then(|| self.hasher.hash_one(token));
        let mut table = self.table();
        let is_full = table.queued >= QUEUED_MAX;
        let recent = table.recent(address, now_ns);
        let is_counted = recent.is_some();
        if let Some(recent) = recent {
            if recent.refuses(token) {
                return Err(AuthFailure::TooManyFailures);
            }
            if recent.in_flight >= IN_FLIGHT_MAX {
                if is_full || recent.queue.len() >= QUEUED_PER_ADDRESS_MAX {
                    return Err(AuthFailure::Unavailable);
                }
                let turn = turn();
                recent.queue.push_back(Queued { token, turn });
                table.queued += 1;
                return Ok(None);
            }
            recent.in_flight += 1;
        }
        Ok(Some(Attempt {
            failures: Arc::clone(self),
            address,
            token,
            is_counted,
        }))
    }

    /// Ends an attempt of this address. Returns the next attempt in its queue, now in flight.
    fn end(&self, address: IpAddr) -> Option<Queued> {
        let mut table = self.table();
        let recent = table.by_address.get_mut(&address)?;
        if let Some(next) = recent.queue.pop_front() {
            table.queued -= 1;
            return Some(next);
        }
        recent.in_flight -= 1;
        if recent.in_flight == 0 && recent.failed == 0 {
            table.by_address.remove(&address);
        }
        None
    }

    /// Counts a failure, unless this token failed before. Returns when it should be answered.
    fn note(&self, address: IpAddr, token: Option<u64>, now_ns: u64) -> u64 {
        let mut table = self.table();
        let Some(recent) = table.recent(address, now_ns) else {
            return Self::latest_answer(now_ns);
        };
        if token.is_none_or(|token| !recent.tokens.contains(&token)) {
            recent.failed = recent.failed.saturating_add(1);
            let remembered = token.filter(|_| recent.failed <= GUESSES_MAX);
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
            queue: VecDeque::new(),
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
    /// Whether the address has guessed so often that this token is not checked.
    fn refuses(&self, token: Option<u64>) -> bool {
        token.is_some() && self.failed >= GUESSES_MAX
    }

    fn is_past(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.began_ns) >= WINDOW_NS
    }
}

impl Attempt {
    /// Counts it as a guess. Returns when it should be answered.
    pub(crate) fn note_failure(&self, now_ns: u64) -> u64 {
        self.failures.note(self.address, self.token, now_ns)
    }

    /// Checks, at the turn of an attempt from the queue, that its address has not guessed too often since.
    ///
    /// # Errors
    /// It has.
    pub(crate) fn check_turn(&self, now_ns: u64) -> Result<(), AuthFailure> {
        let mut table = self.failures.table();
        let recent = table.recent(self.address, now_ns);
        match recent.is_some_and(|recent| recent.refuses(self.token)) {
            true => Err(AuthFailure::TooManyFailures),
            false => Ok(()),
        }
    }
}

impl Drop for Attempt {
    /// The next attempt in the queue gets the place. This loop passes over attempts of peers that have left, because
    /// nested drops would recurse.
    fn drop(&mut self) {
        let mut holds_place = std::mem::take(&mut self.is_counted);
        while holds_place {
            let Some(Queued { token, turn }) = self.failures.end(self.address) else {
                return;
            };
            let back = turn(Self {
                failures: Arc::clone(&self.failures),
                address: self.address,
                token,
                is_counted: true,
            });
            let Some(mut back) = back else { return };
            holds_place = std::mem::take(&mut back.is_counted);
        }
    }
}

const WINDOW_NS: u64 = 60_000_000_000;

/// Guesses of one address in a minute. After them, its credentials are not checked. Many clients behind one address
/// seldom guess, and a guesser gains nothing with 30 tokens.
const GUESSES_MAX: u32 = 30;

/// Attempts of one address without an answer yet. A login server that takes a second for each peer admits some hundreds
/// within the time of a handshake. A guesser gains at most this many guesses.
const IN_FLIGHT_MAX: u32 = 64;

/// Attempts of one address that wait until others end. More would not have their turn within the time of a handshake.
const QUEUED_PER_ADDRESS_MAX: usize = 1_024;

/// Attempts of all addresses that wait, so that the queues hold 2 MB at most.
const QUEUED_MAX: usize = 16_384;

/// The least time between two searches of a full table for old addresses. A search walks all addresses.
const SWEEP_NS: u64 = 1_000_000_000;

/// Failures that are answered at once. A person mistypes.
const FAILURES_AT_ONCE: u32 = 3;

/// Half of the first delay. It doubles with each failure.
const DELAY_NS_FIRST: u64 = 50_000_000;

/// The longest delay. It is below the usual deadline of the handshake, so the peer receives the reason.
const DELAY_NS_MAX: u64 = 3_000_000_000;

/// Addresses that are remembered: about 1 MB, and up to 4 MB for their wrong tokens.
const ADDRESSES_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Begins an attempt of a peer that leaves before its turn.
    fn begin(
        failures: &Arc<Failures>,
        address: IpAddr,
        token: &[u8],
        now_ns: u64,
    ) -> Result<Option<Attempt>, AuthFailure> {
        failures.begin(address, token, now_ns, || Box::new(Some))
    }

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn an_address_that_fails_is_slowed_then_stopped_and_forgiven_after_a_minute() {
        let failures = Arc::new(Failures::default());
        let (ann, bob) = (address(1), address(2));
        let delays: Vec<u64> = (0..GUESSES_MAX)
            .map(|_| failures.note(ann, None, 0))
            .collect();
        assert_eq!(delays[..5], [0, 0, 0, 100_000_000, 200_000_000]);
        assert!(delays.is_sorted());
        assert_eq!(delays.last(), Some(&DELAY_NS_MAX));
        let refused = begin(&failures, ann, b"guess", 1).unwrap_err();
        assert_eq!(refused, AuthFailure::TooManyFailures);
        assert!(begin(&failures, bob, b"guess", 1).is_ok());
        assert!(
            begin(&failures, ann, b"", 1).is_ok(),
            "it sends no credentials"
        );
        assert!(begin(&failures, ann, b"guess", WINDOW_NS).is_ok());
        assert_eq!(
            failures.note(ann, None, WINDOW_NS),
            WINDOW_NS,
            "it begins anew"
        );
    }

    /// Regression: attempts in flight counted with the failures, so 70 of 100 honest logins at a slow authenticator
    /// were refused.
    #[test]
    fn attempts_above_the_limit_wait_for_their_turn_in_order() {
        let failures = Arc::new(Failures::default());
        let site = address(1);
        let mut open: Vec<Attempt> = (0..IN_FLIGHT_MAX)
            .map(|_| begin(&failures, site, b"honest", 0).unwrap().unwrap())
            .collect();
        let (turns, taken) = mpsc::channel();
        for number in 0..QUEUED_PER_ADDRESS_MAX {
            let turns = turns.clone();
            let turn = move || -> Turn {
                // Attempts with odd numbers have left.
                Box::new(move |attempt| match number % 2 {
                    0 => turns
                        .send((number, attempt))
                        .map_or_else(|it| Some(it.0.1), |()| None),
                    _ => Some(attempt),
                })
            };
            assert!(failures.begin(site, b"honest", 0, turn).unwrap().is_none());
        }
        let refused = begin(&failures, site, b"honest", 0).unwrap_err();
        assert_eq!(refused, AuthFailure::Unavailable);
        assert!(
            begin(&failures, address(2), b"honest", 0)
                .unwrap()
                .is_some()
        );
        open.clear();
        let mut order = Vec::new();
        while let Ok((number, attempt)) = taken.try_recv() {
            assert_eq!(attempt.check_turn(0), Ok(()));
            order.push(number);
        }
        let expected: Vec<usize> = (0..QUEUED_PER_ADDRESS_MAX).step_by(2).collect();
        assert_eq!(order, expected);
        let table = failures.table();
        assert!(table.by_address.is_empty() && table.queued == 0);
    }

    #[test]
    fn an_attempt_of_an_address_with_too_many_guesses_is_not_checked_at_its_turn() {
        let failures = Arc::new(Failures::default());
        let guesser = address(1);
        let attempt = begin(&failures, guesser, b"guess", 0).unwrap().unwrap();
        for guess in 0..GUESSES_MAX {
            assert_eq!(attempt.check_turn(0), Ok(()));
            failures.note(guesser, Some(u64::from(guess)), 0);
        }
        assert_eq!(attempt.check_turn(0), Err(AuthFailure::TooManyFailures));
        assert_eq!(attempt.check_turn(WINDOW_NS), Ok(()));
    }

    #[test]
    fn a_queue_whose_lanes_have_ended_empties_without_deep_recursion() {
        let failures = Arc::new(Failures::default());
        let site = address(1);
        let open: Vec<Attempt> = (0..IN_FLIGHT_MAX)
            .map(|_| begin(&failures, site, b"", 0).unwrap().unwrap())
            .collect();
        for _ in 0..QUEUED_PER_ADDRESS_MAX {
            assert!(begin(&failures, site, b"", 0).unwrap().is_none());
        }
        drop(open);
        assert!(failures.table().by_address.is_empty());
    }

    /// Regression: devices with a revoked token tried again and again, and locked out all others at their address.
    #[test]
    fn the_same_wrong_token_is_one_failure() {
        let failures = Arc::new(Failures::default());
        let site = address(1);
        let fail = |token: &[u8]| {
            let attempt = begin(&failures, site, token, 0).unwrap();
            attempt.unwrap().note_failure(0)
        };
        for _ in 0..100 {
            fail(b"revoked 1");
            fail(b"revoked 2");
        }
        assert_eq!(failures.table().by_address[&site].failed, 2);
        for guess in 2..GUESSES_MAX {
            fail(&guess.to_le_bytes());
        }
        let refused = begin(&failures, site, b"revoked 1", 0).unwrap_err();
        assert_eq!(refused, AuthFailure::TooManyFailures);
    }

    #[test]
    fn addresses_that_do_not_fail_are_not_remembered() {
        let failures = Arc::new(Failures::default());
        drop(begin(&failures, address(1), b"guess", 0));
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
        assert!(begin(&failures, last, b"guess", 0).is_ok());
        assert_eq!(failures.note(last, None, 0), DELAY_NS_MAX);
        assert_eq!(failures.note(last, None, WINDOW_NS), WINDOW_NS);
        assert_eq!(failures.table().by_address.len(), 1);
    }
}
