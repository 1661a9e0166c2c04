//! The median of some runs, and how far chance alone could have moved it.
//! With few runs a bootstrap promises more than it keeps: its ends lie between runs, and the chance that such an
//! interval misses depends on an unknown distribution. For an interval between two *runs* the chance is known: the
//! true median is below the lowest of n runs with a chance of exactly 1 in 2ⁿ. So the bootstrapped ends are moved
//! outward to the next run, and further if that does not reach 95 %. The attained coverage is part of the result:
//! five runs reach 93.75 % at most, six 96.9 %. Rejected: to call any of these 95 %.

use serde::Serialize;

use super::bootstrap::{Bootstrap, LEFT_OUT, median_of};

/// The median of runs with its interval, in the unit of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MedianInterval {
    /// Median of the runs.
    #[serde(with = "super::json_number")]
    pub median: f64,
    /// Lower end, one of the runs.
    #[serde(with = "super::json_number")]
    pub low: f64,
    /// Upper end, one of the runs.
    #[serde(with = "super::json_number")]
    pub high: f64,
    /// The chance, from 0 to 1, with which such an interval holds the true median; 0.95 or more from six runs
    /// on.
    pub coverage: f64,
    /// Number of runs.
    pub runs: usize,
}

impl MedianInterval {
    /// The median of `runs` with an interval of 95 %, or as near as so few runs come. Nothing when there are
    /// no runs or one of them is NaN. Infinite values, as of lost messages, are the largest ones.
    pub fn of(runs: &[f64], bootstrap: Bootstrap) -> Option<Self> {
        if runs.is_empty() || runs.iter().any(|value| value.is_nan()) {
            return None;
        }
        let mut sorted = runs.to_vec();
        let median = median_of(&mut sorted);
        let mut drawn = sorted.clone();
        let (low, high) = bootstrap.interval(|random| {
            drawn.fill_with(|| sorted[random.usize(..sorted.len())]);
            median_of(&mut drawn)
        })?;
        // Positions from 0; both exist, because no drawn median lies outside the runs.
        let mut lowest = sorted.partition_point(|value| *value <= low).max(1) - 1;
        let mut highest = sorted
            .partition_point(|value| *value < high)
            .min(sorted.len() - 1);
        while coverage(sorted.len(), lowest, highest) < 1.0 - LEFT_OUT
            && (lowest > 0 || highest + 1 < sorted.len())
        {
            lowest = lowest.saturating_sub(1);
            highest = (highest + 1).min(sorted.len() - 1);
        }
        Some(Self {
            median,
            low: sorted[lowest],
            high: sorted[highest],
            coverage: coverage(sorted.len(), lowest, highest),
            runs: sorted.len(),
        })
    }
}

/// The chance that the true median lies between the runs at two positions, from 0, of `runs` sorted ones: each
/// run is below it with a chance of a half, so the number below it is binomial.
fn coverage(runs: usize, lowest: usize, highest: usize) -> f64 {
    let mut log_chance = -(runs as f64) * std::f64::consts::LN_2;
    let mut sum = 0.0;
    for below in 1..=highest {
        log_chance += ((runs - below + 1) as f64 / below as f64).ln();
        if below > lowest {
            sum += log_chance.exp();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(runs: &[f64]) -> MedianInterval {
        MedianInterval::of(runs, Bootstrap::default()).unwrap()
    }

    fn close(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-9
    }

    #[test]
    fn few_runs_say_what_they_attain() {
        let five = of(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!((five.low, five.median, five.high), (1.0, 3.0, 5.0));
        assert!(close(five.coverage, 0.9375), "{five:?}");
        let six = of(&[6.0, 5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!((six.low, six.median, six.high), (1.0, 3.5, 6.0));
        assert!(close(six.coverage, 0.96875), "{six:?}");
        let one = of(&[7.0]);
        assert_eq!((one.low, one.high, one.coverage), (7.0, 7.0, 0.0));
        assert_eq!(
            (one.low, one.median, one.high, one.runs),
            (7.0, 7.0, 7.0, 1)
        );
    }

    #[test]
    fn nothing_comes_of_nothing() {
        assert_eq!(MedianInterval::of(&[], Bootstrap::default()), None);
        assert_eq!(
            MedianInterval::of(&[1.0, f64::NAN], Bootstrap::default()),
            None
        );
    }

    #[test]
    fn infinite_runs_are_the_largest() {
        let runs = [1.0, 2.0, f64::INFINITY, 3.0, f64::INFINITY, f64::INFINITY];
        let interval = of(&runs);
        assert_eq!(interval.low, 1.0);
        assert_eq!(
            (interval.median, interval.high),
            (f64::INFINITY, f64::INFINITY)
        );
    }

    /// The promise itself: of many sets of runs from a skewed distribution, as many intervals hold its median as
    /// announced.
    #[test]
    fn the_attained_coverage_is_kept() {
        let bootstrap = Bootstrap {
            resamples: 400,
            seed: 7,
        };
        let mut random = fastrand::Rng::with_seed(8);
        for runs in [5, 6, 11, 20] {
            let (mut held, mut promised) = (0, 0.0);
            for _ in 0..1_000 {
                let values: Vec<f64> = (0..runs).map(|_| -random.f64().ln()).collect();
                let interval = MedianInterval::of(&values, bootstrap).unwrap();
                let truth = std::f64::consts::LN_2;
                held += u32::from(interval.low <= truth && truth <= interval.high);
                promised += interval.coverage;
            }
            // Three standard deviations of a thousand draws.
            assert!(
                f64::from(held) >= promised - 21.0,
                "{runs}: {held} of {promised}"
            );
            assert!(runs < 6 || promised >= 950.0, "{runs}: {promised}");
        }
    }

    proptest! {
        #[test]
        fn the_interval_is_made_of_runs_around_the_median(
            runs in prop::collection::vec(-1e9_f64..1e9, 1..40),
        ) {
            let bootstrap = Bootstrap { resamples: 200, seed: 3 };
            let interval = MedianInterval::of(&runs, bootstrap).unwrap();
            prop_assert!(interval.low <= interval.median && interval.median <= interval.high);
            prop_assert!(runs.contains(&interval.low) && runs.contains(&interval.high));
            prop_assert!(interval.coverage <= 1.0 + 1e-9);
            prop_assert!(runs.len() < 6 || interval.coverage >= 0.95);
        }
    }
}
