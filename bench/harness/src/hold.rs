//! Judges whether a run kept up with the offered rate.
//! Problem: a row with an offered rate shows only the delivered rate. A reader sees neither that it is lower than the
//! offered one nor that a queue grew. Approach: one rule judges each run, of Tidewire, the limit and rivals. A run
//! that does not hold is no fault: rising rows end where no contender holds the rate.

use super::contract::Measured;

/// Whether a run lost nothing, delivered the offered rate, and delayed no message for long. A run without an offered
/// rate holds if it lost nothing and delayed nothing for long.
pub(super) fn holds(measured: &Measured) -> bool {
    let p99_us = measured.latency.map_or(0.0, |latency| latency.p99_us);
    let offered = measured.figures.get(OFFERED).copied().unwrap_or_default() * measured.seconds;
    measured.verified
        && measured.lost == 0
        && p99_us <= P99_US_MAX
        && measured.messages as f64 >= offered * SHARE_MIN
}

/// Whether all of these runs held; `None` if no rate was offered.
pub(super) fn all_hold(runs: &[&Measured]) -> Option<bool> {
    let is_offered = runs.iter().any(|run| run.figures.contains_key(OFFERED));
    is_offered.then(|| runs.iter().all(|run| holds(run)))
}

/// The name of the figure for the offered rate, in messages a second.
pub(super) const OFFERED: &str = "offered_per_sec";

/// The highest p99 of a run that holds, in microseconds. A higher one means that a queue grows.
const P99_US_MAX: f64 = 1e6;

/// The lowest share of the offered messages that a run must deliver to hold.
const SHARE_MIN: f64 = 0.99;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::contract::Times;

    fn good() -> Measured {
        Measured {
            messages: 995,
            seconds: 1.0,
            verified: true,
            latency: Some(Times {
                p99_us: 900_000.0,
                ..Times::default()
            }),
            figures: BTreeMap::from([(OFFERED.to_owned(), 1_000.0)]),
            ..Measured::default()
        }
    }

    #[test]
    fn who_loses_falls_behind_or_lets_wait_does_not_hold() {
        assert!(holds(&good()));
        let bad: [fn(&mut Measured); 5] = [
            |run| run.lost = 1,
            |run| run.messages = 980,
            // All messages came, but later than the offered rate allows.
            |run| run.seconds = 1.1,
            |run| run.verified = false,
            |run| {
                if let Some(latency) = &mut run.latency {
                    latency.p99_us = 1_100_000.0;
                }
            },
        ];
        for spoil in bad {
            let mut run = good();
            spoil(&mut run);
            assert!(!holds(&run), "{run:?}");
        }
    }

    #[test]
    fn one_run_that_does_not_hold_is_enough_and_without_a_rate_nobody_is_judged() {
        let mut slow = good();
        slow.messages = 500;
        assert_eq!(all_hold(&[&good(), &slow]), Some(false));
        assert_eq!(all_hold(&[&good(), &good()]), Some(true));
        slow.figures.clear();
        assert_eq!(all_hold(&[&slow]), None);
        assert_eq!(all_hold(&[]), None);
    }
}
