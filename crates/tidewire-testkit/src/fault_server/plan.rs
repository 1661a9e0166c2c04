//! The faults that a server commits, and when it does.
//!
//! A proof needs faults with a known or exactly counted number, so counting selects them: every Nth delivery, with an
//! offset inside the first N from the seed. A delivery has one fault at most, because a receiver could not distinguish
//! the effects of two. Probabilities were rejected: a test would need tolerances, and they hide a wrong count.

use std::time::Duration;

use super::token_clock::TokenClock;

/// The faults of a [`FaultServer`](super::FaultServer). The default has none.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Determines where in the first N deliveries each fault begins, and which bit a corruption flips.
    pub seed: u64,
    /// Drop these deliveries without notice.
    pub drop: Option<Every>,
    /// Send these deliveries twice.
    pub duplicate: Option<Every>,
    /// Send the previous message of the same sender once more instead of these deliveries: the number of arrivals stays
    /// right for every pair, and one message is lost and another duplicated.
    pub substitute: Option<Every>,
    /// Flip one bit in the payload of these deliveries.
    pub corrupt: Option<Every>,
    /// Leave out the last byte of the payload of these deliveries, in an otherwise correct frame.
    pub cut: Option<Every>,
    /// Send these deliveries after the next one of the same sender. Each receiver has its own count.
    pub swap: Option<Every>,
    /// Deliver these messages to their own sender as well.
    pub echo: Option<Every>,
    /// Announce every dropped delivery to its receiver, like a correct server.
    pub announces_drops: bool,
    /// Delay every delivery by at least this long.
    pub delay: Duration,
    /// Delay the deliveries to one receiver longer than to others.
    pub slow_receiver: Option<SlowReceiver>,
    /// Pause everything for a while.
    pub stall: Option<Stall>,
    /// Refuse these joins: the name is taken.
    pub refuse_joins: Option<Every>,
    /// Cut one receiver off.
    pub disconnect: Option<Disconnect>,
    /// Accept this many messages, then close the listener and every connection without a farewell.
    pub die_after_messages: Option<u64>,
    /// Write at most this many deliveries a second, to all receivers together.
    pub deliveries_per_sec_max: Option<u32>,
    /// Do not wait for the next slot of that rate but move this clock there. By this clock the rate is exact as long as
    /// there are deliveries, however busy the machine is.
    pub clock: Option<TokenClock>,
}

/// One in every N, at an offset that the seed decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every {
    nth: u64,
    times_max: u64,
}

impl Every {
    /// One in every `nth`, without an end. 0 counts as 1.
    #[must_use]
    pub fn nth(nth: u64) -> Self {
        Self {
            nth: nth.max(1),
            times_max: u64::MAX,
        }
    }

    /// Limits the total to `times`.
    #[must_use]
    pub fn times_max(mut self, times: u64) -> Self {
        self.times_max = times;
        self
    }
}

/// A pause of everything: reading, logging in and delivering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The number of the message, from 1, before which the fault begins.
    pub at_message: u64,
    /// The duration.
    pub duration: Duration,
}

/// One receiver that gets everything later than the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowReceiver {
    /// The end of its name in the room.
    pub name_end: String,
    /// The additional delay of each of its deliveries.
    pub delay: Duration,
}

/// The end of one receiver's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// The receiver, in the order of accepted joins, from 0.
    pub receiver: u64,
    /// The number of deliveries that it gets before the end of the stream. At least 1.
    pub after_deliveries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Drop,
    Duplicate,
    Substitute,
    Corrupt,
    Cut,
}

/// Counts deliveries against a plan.
#[derive(Debug)]
pub(super) struct Chooser {
    drop: Countdown,
    duplicate: Countdown,
    substitute: Countdown,
    corrupt: Countdown,
    cut: Countdown,
    refuse_joins: Countdown,
    echo: Countdown,
    random: fastrand::Rng,
}

impl Chooser {
    pub(super) fn new(plan: &FaultPlan) -> Self {
        let mut random = fastrand::Rng::with_seed(plan.seed);
        Self {
            drop: Countdown::new(plan.drop, &mut random),
            duplicate: Countdown::new(plan.duplicate, &mut random),
            substitute: Countdown::new(plan.substitute, &mut random),
            corrupt: Countdown::new(plan.corrupt, &mut random),
            cut: Countdown::new(plan.cut, &mut random),
            refuse_joins: Countdown::new(plan.refuse_joins, &mut random),
            echo: Countdown::new(plan.echo, &mut random),
            random,
        }
    }

    /// Returns the fault of the next delivery. `substitutable` says whether there is an earlier message to send
    /// instead. If two faults are due, the second waits for the next delivery.
    pub(super) fn next_fault(&mut self, substitutable: bool) -> Option<Fault> {
        for countdown in [
            &mut self.drop,
            &mut self.duplicate,
            &mut self.substitute,
            &mut self.corrupt,
            &mut self.cut,
        ] {
            countdown.advance();
        }
        if self.drop.take() {
            Some(Fault::Drop)
        } else if self.duplicate.take() {
            Some(Fault::Duplicate)
        } else if substitutable && self.substitute.take() {
            Some(Fault::Substitute)
        } else if self.corrupt.take() {
            Some(Fault::Corrupt)
        } else if self.cut.take() {
            Some(Fault::Cut)
        } else {
            None
        }
    }

    pub(super) fn refuses_next_join(&mut self) -> bool {
        self.refuse_joins.advance();
        self.refuse_joins.take()
    }

    pub(super) fn echoes_next_message(&mut self) -> bool {
        self.echo.advance();
        self.echo.take()
    }

    pub(super) fn corrupt(&mut self, payload: &mut [u8]) {
        if !payload.is_empty() {
            payload[self.random.usize(0..payload.len())] ^= 1 << self.random.u8(0..8);
        }
    }
}

/// Decides which of the counted items are hit.
#[derive(Debug)]
pub(super) struct Countdown {
    every: Option<Every>,
    until_due: u64,
    overdue: u64,
    left: u64,
}

impl Countdown {
    pub(super) fn new(every: Option<Every>, random: &mut fastrand::Rng) -> Self {
        Self {
            every,
            until_due: every.map_or(0, |every| random.u64(1..=every.nth)),
            overdue: 0,
            left: every.map_or(0, |every| every.times_max),
        }
    }

    pub(super) fn advance(&mut self) {
        let Some(every) = self.every else {
            return;
        };
        self.until_due -= 1;
        if self.until_due == 0 {
            self.until_due = every.nth;
            self.overdue += 1;
        }
    }

    /// Takes the hit of the last counted item, if any. A second call returns false.
    pub(super) fn take(&mut self) -> bool {
        let hit = self.overdue > 0 && self.left > 0;
        if hit {
            self.overdue -= 1;
            self.left -= 1;
        }
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(every: Every, seed: u64, count: u64) -> Vec<u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut countdown = Countdown::new(Some(every), &mut random);
        (0..count)
            .filter(|_| {
                countdown.advance();
                countdown.take()
            })
            .collect()
    }

    #[test]
    fn every_nth_is_hit_once_in_each_n_wherever_the_seed_begins() {
        for seed in 0..50 {
            let hits = hits(Every::nth(10), seed, 1_000);
            assert_eq!(hits.len(), 100, "seed {seed}");
            assert!(hits.windows(2).all(|pair| pair[1] - pair[0] == 10));
        }
        let starts: std::collections::HashSet<u64> = (0..50)
            .map(|seed| hits(Every::nth(10), seed, 10)[0])
            .collect();
        assert!(starts.len() > 5, "the seed moves the place: {starts:?}");
    }

    #[test]
    fn a_limit_ends_the_faults() {
        assert_eq!(hits(Every::nth(2).times_max(3), 1, 100).len(), 3);
        assert_eq!(hits(Every::nth(0), 1, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn faults_that_meet_on_one_delivery_all_happen_one_after_another() {
        for seed in 0..50 {
            let mut chooser = Chooser::new(&FaultPlan {
                seed,
                drop: Some(Every::nth(5).times_max(20)),
                duplicate: Some(Every::nth(5).times_max(20)),
                corrupt: Some(Every::nth(5).times_max(20)),
                ..FaultPlan::default()
            });
            let faults: Vec<Fault> = (0..110).filter_map(|_| chooser.next_fault(false)).collect();
            for fault in [Fault::Drop, Fault::Duplicate, Fault::Corrupt] {
                let count = faults.iter().filter(|found| **found == fault).count();
                assert_eq!(count, 20, "{fault:?} with seed {seed}");
            }
        }
    }

    #[test]
    fn a_substitution_waits_for_something_to_substitute() {
        let mut chooser = Chooser::new(&FaultPlan {
            substitute: Some(Every::nth(1).times_max(1)),
            ..FaultPlan::default()
        });
        assert_eq!(chooser.next_fault(false), None);
        assert_eq!(chooser.next_fault(true), Some(Fault::Substitute));
        assert_eq!(chooser.next_fault(true), None);
    }

    #[test]
    fn a_corruption_changes_exactly_one_bit_anywhere() {
        let mut positions = std::collections::HashSet::new();
        for seed in 0..200 {
            let mut chooser = Chooser::new(&FaultPlan {
                seed,
                ..FaultPlan::default()
            });
            let mut payload = [0_u8; 40];
            chooser.corrupt(&mut payload);
            let bits: u32 = payload.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(bits, 1);
            positions.extend(payload.iter().position(|byte| *byte > 0));
        }
        assert!(positions.len() > 30, "{positions:?}");
        Chooser::new(&FaultPlan::default()).corrupt(&mut []);
    }
}
