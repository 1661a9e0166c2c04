//! The holders of memory: the bytes that each address and each user hold, and the share that each has when memory is
//! short.
//!
//! Problem: one address with many idle sessions could hold the whole account, and then all others were refused.
//! Approach: nothing is counted for an address while there is room. Under pressure each lane sums the memory of its
//! sessions by holder, and notes the sums here. The share is a level: holders below it keep their memory, and holders
//! above it must release the excess. So one large holder pays alone, fifty equal holders pay equally, and a small
//! holder pays nothing.
//!
//! Rejected: a fixed part of the limit for each address. A quarter is too much if fifty addresses attack, and too
//! little for the proxy that all clients come from. Rejected: counting at each change of a buffer, because every
//! message would pay.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The owner of a session's memory: its user if it has one, else its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    Address(IpAddr),
    /// The hash of the user's name.
    User(u64),
}

/// The memory of all holders of a server, as the lanes last noted it.
#[derive(Debug, Default)]
pub(crate) struct MemoryShares {
    names: RandomState,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    by_lane: HashMap<u64, HashMap<Holder, usize>>,
    totals: HashMap<Holder, usize>,
    /// The share of each holder.
    level: usize,
}

impl Default for State {
    fn default() -> Self {
        Self {
            by_lane: HashMap::new(),
            totals: HashMap::new(),
            level: usize::MAX,
        }
    }
}

impl MemoryShares {
    pub(crate) fn of_user(&self, name: &str) -> Holder {
        Holder::User(self.names.hash_one(name))
    }

    /// Notes the memory of the holders on a lane. All holders together should have `bytes_max` at most, and a holder
    /// with `share_min` is never above its share.
    pub(super) fn note(
        &self,
        lane: u64,
        held: HashMap<Holder, usize>,
        bytes_max: impl FnOnce(usize) -> usize,
        share_min: usize,
    ) {
        let mut state = self.lock();
        state.forget(lane);
        for (holder, bytes) in &held {
            *state.totals.entry(*holder).or_default() += bytes;
        }
        state.by_lane.insert(lane, held);
        let mut totals: Vec<usize> = state.totals.values().copied().collect();
        let bytes_max = bytes_max(totals.iter().sum());
        state.level = level(&mut totals, bytes_max).max(share_min);
    }

    pub(super) fn forget(&self, lane: u64) {
        self.lock().forget(lane);
    }

    /// Forgets all, because memory is not short any more.
    pub(super) fn clear(&self) {
        *self.lock() = State::default();
    }

    /// Returns the bytes that each holder above its share has beyond it.
    pub(crate) fn above(&self) -> HashMap<Holder, usize> {
        let state = self.lock();
        let above = |(holder, bytes): (&Holder, &usize)| {
            let more = bytes.checked_sub(state.level)?;
            (more > 0).then_some((*holder, more))
        };
        state.totals.iter().filter_map(above).collect()
    }

    /// Whether this holder has more than its share. `None` for a session without an address, which has no share.
    pub(crate) fn is_above(&self, holder: Option<Holder>) -> bool {
        let state = self.lock();
        let bytes = holder.and_then(|holder| state.totals.get(&holder));
        bytes.is_some_and(|bytes| *bytes > state.level)
    }

    pub(crate) fn is_any_above(&self) -> bool {
        let state = self.lock();
        state.totals.values().any(|bytes| *bytes > state.level)
    }

    pub(crate) fn holders(&self) -> usize {
        self.lock().totals.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget(&mut self, lane: u64) {
        for (holder, bytes) in self.by_lane.remove(&lane).unwrap_or_default() {
            if let Some(total) = self.totals.get_mut(&holder) {
                *total -= bytes;
                if *total == 0 {
                    self.totals.remove(&holder);
                }
            }
        }
    }
}

/// The level that cuts these sums down to `bytes_max` in all.
fn level(sums: &mut [usize], mut bytes_max: usize) -> usize {
    sums.sort_unstable();
    let mut left = sums.len();
    for bytes in sums {
        if *bytes > bytes_max / left {
            return bytes_max / left;
        }
        bytes_max -= *bytes;
        left -= 1;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(number: u8) -> Holder {
        Holder::Address([127, 0, 0, number].into())
    }

    #[test]
    fn the_level_cuts_off_exactly_the_excess() {
        assert_eq!(level(&mut [10, 20, 30], 60), usize::MAX);
        assert_eq!(level(&mut [10, 20, 300], 60), 30);
        assert_eq!(level(&mut [300, 1, 300], 61), 30);
        assert_eq!(level(&mut [5, 5], 0), 0);
        assert_eq!(level(&mut [], 0), usize::MAX);
        let mut random = fastrand::Rng::with_seed(29);
        for _ in 0..1_000 {
            let mut sums: Vec<usize> = (0..random.usize(1..60))
                .map(|_| random.usize(..1_000))
                .collect();
            let bytes_max = random.usize(..30_000);
            let level = level(&mut sums, bytes_max);
            let cut: usize = sums.iter().map(|bytes| *bytes.min(&level)).sum();
            assert!(cut <= bytes_max);
            assert!(
                level == usize::MAX || cut + sums.len() > bytes_max,
                "no more than needed"
            );
        }
    }

    #[test]
    fn one_large_holder_is_above_its_share_and_fifty_equal_ones_are_and_small_ones_never() {
        let shares = MemoryShares::default();
        let note = |lane, held: &[(u8, usize)], bytes_max| {
            let held = held.iter().map(|(number, bytes)| (holder(*number), *bytes));
            shares.note(lane, held.collect(), |_| bytes_max, 2);
        };
        note(0, &[(1, 900), (2, 10)], 500);
        note(1, &[(1, 300), (3, 10)], 500);
        assert_eq!(shares.above(), HashMap::from([(holder(1), 1_200 - 480)]));
        assert!(shares.is_above(Some(holder(1))) && !shares.is_above(Some(holder(2))));
        assert!(!shares.is_above(Some(holder(9))) && !shares.is_above(None));
        shares.forget(0);
        note(1, &[(3, 10)], 500);
        assert!(!shares.is_any_above());
        let fifty: Vec<(u8, usize)> = (100..150).map(|number| (number, 30)).collect();
        note(1, &fifty, 500);
        note(0, &[(2, 5)], 500);
        assert_eq!(shares.above().len(), 50);
        assert!(!shares.is_above(Some(holder(2))));
        note(1, &[(7, 2)], 0);
        assert!(
            !shares.is_above(Some(holder(7))),
            "so little is never too much"
        );
        assert_eq!(shares.holders(), 2);
    }
}
