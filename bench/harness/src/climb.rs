//! The highest of several rates that a contender holds.
//!
//! Problem: rows with fixed rates show that one contender still holds where another has long lost messages, but not how
//! many times as much the one holds at most. Approach: each contender climbs by itself, from rate to rate, until it
//! fails one twice; then it makes its rounds where it held last, as many as in any other row. One more round may fail,
//! which is kept and told: the figure is that of the rounds that held, and beside it stands of how many. At the second
//! one that fails, in a row or not, the rate is too high after all, and everything is measured again one rate lower.
//! Rejected: halving the interval, which takes fewer runs of those who hold much, but most of its runs are then far
//! above what the others hold, where a run takes ten times as long and leaves the machine with full queues.

use serde::{Deserialize, Serialize};
use tidewire_load::format::thousands;

use super::contract::Measured;
use super::hold::{OFFERED, holds};
use super::run::Outcome;

/// The state of a contender: on its way up, then at the highest rate that it holds.
#[derive(Clone, Debug)]
pub(super) struct Climb {
    /// Rates of [`Work::rate_per_sec`](super::contract::Work::rate_per_sec), rising.
    rates: &'static [f64],
    /// The index of the current rate.
    at: usize,
    /// The number of failures: successive ones on the way up, then all in the rounds.
    failures: usize,
    is_up: bool,
    tries: Vec<Try>,
}

/// One run on the way up, or a later round that did not hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Try {
    /// Offered deliveries a second; `None` for a run that failed at a rate that was never held.
    pub offered_per_sec: Option<f64>,
    /// Received deliveries a second.
    pub delivered_per_sec: Option<f64>,
    /// 99th percentile of their times, in microseconds.
    pub p99_us: Option<f64>,
    /// Lost messages.
    pub lost: u64,
    /// Whether it held.
    pub holds: bool,
    /// The reason why the run failed, if it did.
    pub error: Option<String>,
}

impl Climb {
    /// Begins at the lowest of these rates.
    pub(super) fn new(rates: &'static [f64]) -> Self {
        Self {
            rates,
            at: 0,
            failures: 0,
            is_up: false,
            tries: Vec::new(),
        }
    }

    /// Returns the next rate to offer: on the way up the next one to try, then the highest that it holds. `None` if
    /// it holds none.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rates.get(self.at).copied()
    }

    /// Whether the highest rate is found, or it is known that there is none.
    pub(super) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Notes a run on the way up.
    pub(super) fn climb(&mut self, run: Result<&Outcome, &str>) {
        if self.note(run) {
            self.at += 1;
            self.failures = 0;
        }
        if self.at == self.rates.len() || self.failures == FAILURES_MAX {
            self.step_down();
        }
    }

    /// Notes a round at the rate that it held. Returns whether the rate is still the same. After a step down the
    /// earlier rounds do not count.
    pub(super) fn stay(&mut self, run: Result<&Outcome, &str>) -> bool {
        if self.holds(run) {
            return true;
        }
        self.note(run);
        let is_too_high = self.failures == FAILURES_MAX;
        if is_too_high {
            self.step_down();
        }
        !is_too_high
    }

    /// Returns the reason why it holds no rate.
    pub(super) fn why_none(&self) -> String {
        let error = self.tries.iter().rev().find_map(|one| one.error.as_deref());
        let offered = self.tries.iter().find_map(|one| one.offered_per_sec);
        match (offered, error) {
            (_, Some(error)) => format!("it holds none of the rates; at last: {error}"),
            (Some(offered), None) => {
                let offered = thousands(offered as u64);
                format!("it does not even hold the lowest rate, {offered} a second")
            }
            (None, None) => "it holds none of the rates".to_owned(),
        }
    }

    /// Returns all runs on the way up, in order, and the later rounds that did not hold.
    pub(super) fn into_tries(self) -> Vec<Try> {
        self.tries
    }

    fn holds(&self, run: Result<&Outcome, &str>) -> bool {
        run.is_ok_and(|run| holds(&run.measured))
    }

    fn note(&mut self, run: Result<&Outcome, &str>) -> bool {
        let is_held = self.holds(run);
        if !is_held {
            self.failures += 1;
        }
        let mut one = Try::of(run, is_held);
        // A round that broke off does not report its offered rate, but the run that held this rate did.
        one.offered_per_sec = one.offered_per_sec.or_else(|| self.offered_per_sec());
        self.tries.push(one);
        is_held
    }

    /// Returns the offered load at the current rate, if that rate was held. Each rate was held by one run on the way
    /// up.
    fn offered_per_sec(&self) -> Option<f64> {
        let mut held = self.tries.iter().filter(|one| one.holds);
        held.nth(self.at)?.offered_per_sec
    }

    /// The rate held last is the highest one. Below the lowest rate there is no other.
    fn step_down(&mut self) {
        self.is_up = true;
        self.failures = 0;
        self.at = self.at.checked_sub(1).unwrap_or(self.rates.len());
    }
}

impl Try {
    fn of(run: Result<&Outcome, &str>, holds: bool) -> Self {
        let measured = run.ok().map(|run| &run.measured);
        Self {
            offered_per_sec: measured.and_then(|one| one.figures.get(OFFERED).copied()),
            delivered_per_sec: measured.and_then(Measured::rate),
            p99_us: measured.and_then(|one| Some(one.latency?.p99_us)),
            lost: measured.map_or(0, |one| one.lost),
            holds,
            error: run.err().map(str::to_owned),
        }
    }
}

/// The number of failures that make a rate too high: successive ones on the way up, any in the rounds. A single one
/// may be caused by the machine.
const FAILURES_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::contract::Measured;

    const RATES: &[f64] = &[1.0, 2.0, 4.0, 8.0];

    fn outcome(rate: f64, lost: u64) -> Outcome {
        Outcome {
            measured: Measured {
                messages: 10,
                seconds: 1.0,
                verified: true,
                lost,
                figures: BTreeMap::from([(OFFERED.to_owned(), rate)]),
                ..Measured::default()
            },
            ..Outcome::default()
        }
    }

    /// Climbs with a contender that holds all rates up to one, except in the runs with these numbers.
    fn climbed(most: f64, unlucky: &[usize]) -> Climb {
        let mut climb = Climb::new(RATES);
        let mut run = 0;
        while !climb.is_up() {
            let rate = climb.rate().unwrap();
            let is_held = rate <= most && !unlucky.contains(&run);
            climb.climb(Ok(&outcome(rate, u64::from(!is_held))));
            run += 1;
        }
        climb
    }

    #[test]
    fn the_highest_rate_is_the_last_before_one_that_fails_twice() {
        for (most, expected, tries) in [
            (0.5, None, 2),
            (1.0, Some(1.0), 3),
            (5.0, Some(4.0), 5),
            (8.0, Some(8.0), 4),
        ] {
            let climb = climbed(most, &[]);
            assert_eq!(climb.rate(), expected, "{most}");
            assert_eq!(climb.into_tries().len(), tries, "{most}");
        }
        // One failure is allowed, at each rate again.
        let climb = climbed(8.0, &[0, 2, 4]);
        assert_eq!(climb.rate(), Some(8.0));
        assert_eq!(climb.into_tries().iter().filter(|one| one.holds).count(), 4);
        assert_eq!(climbed(8.0, &[1, 2]).rate(), Some(1.0));
    }

    #[test]
    fn who_does_not_hold_it_again_goes_one_lower_and_not_below_the_lowest() {
        let mut climb = climbed(4.0, &[]);
        let good = outcome(4.0, 0);
        assert!(climb.stay(Ok(&good)) && climb.stay(Err("it broke")));
        // The second failure is too many, also if rounds between them held.
        assert!(climb.stay(Ok(&good)) && !climb.stay(Ok(&outcome(4.0, 3))));
        assert_eq!(climb.rate(), Some(2.0));
        assert!(climb.stay(Err("it broke")) && !climb.stay(Err("it broke")));
        assert!(climb.stay(Err("it broke")) && !climb.stay(Err("it broke")));
        assert_eq!(climb.rate(), None);
        let tries = climb.into_tries();
        assert_eq!(tries.last().unwrap().error.as_deref(), Some("it broke"));
        assert_eq!(tries.iter().map(|one| one.lost).sum::<u64>(), 1 + 1 + 3);
        let rounds = tries.iter().skip(5).map(|one| one.offered_per_sec);
        let expected = [4.0, 4.0, 2.0, 2.0, 1.0, 1.0];
        assert_eq!(rounds.collect::<Vec<_>>(), expected.map(Some));
    }
}
