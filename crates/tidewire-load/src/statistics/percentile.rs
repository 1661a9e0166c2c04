//! Percentiles that say when they are not known.
//!
//! A message that never arrived has no latency, and leaving it out makes the tail look better the more is
//! lost. So lost messages rank above every measured time: when at least 1 % is lost, the 99th percentile is
//! infinite. And a percentile of too few samples is a random number: fewer than 10 / (1 − q) samples leave
//! less than ten above it, so it is not given at all. Rejected: NaN for both, which a table would print and
//! JSON cannot hold, and which compares as neither better nor worse.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::LatencyHistogram;
use crate::format::milliseconds;

/// A percentile in milliseconds, or why there is none.
///
/// In JSON it is an object with the key `state`: `{"state":"known","ms":1.5}`, `{"state":"above","ms":120000.0}`,
/// `{"state":"infinite"}` or `{"state":"too_few","samples":50,"needed":1000}`. Infinity is not a JSON number,
/// and a reader must not take a missing one for zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Percentile {
    /// The time in milliseconds, at most 0.1 % too high.
    Known {
        /// Milliseconds.
        ms: f64,
    },
    /// More than the largest time a histogram holds.
    Above {
        /// The largest time, in milliseconds.
        ms: f64,
    },
    /// The share above this percentile never arrived.
    Infinite,
    /// There are too few samples to tell.
    TooFew {
        /// Messages, with those that never arrived.
        samples: u64,
        /// Messages that are needed.
        needed: u64,
    },
}

impl Percentile {
    /// The percentile `quantile` of the times in `histogram`, with `missing` messages that never arrived
    /// ranked above all of them.
    pub fn of(histogram: &LatencyHistogram, missing: u64, quantile: Quantile) -> Self {
        let arrived = histogram.count();
        let samples = arrived.saturating_add(missing);
        let needed = quantile.samples_needed();
        if samples < needed {
            return Self::TooFew { samples, needed };
        }
        if quantile.is_beyond(missing, samples) {
            return Self::Infinite;
        }
        // The rank among all, from 1; it is at most `arrived`, because less than the share above is missing.
        let above = u128::from(quantile.above_ppm()) * u128::from(samples) / u128::from(PARTS);
        let rank = u128::from(samples) - above;
        if rank > u128::from(arrived - histogram.clipped().min(arrived)) {
            return Self::Above {
                ms: LatencyHistogram::HIGHEST_NS as f64 / 1e6,
            };
        }
        // Half a rank below, so that no rounding reaches into the next sample.
        let share = (rank as f64 - 0.5) / arrived as f64;
        Self::Known {
            ms: histogram.quantile_ns(share) as f64 / 1e6,
        }
    }

    /// Returns milliseconds for arithmetic: infinity if the share above never arrived, `None` if there are too few
    /// samples or the value is above the recorded range.
    pub fn as_ms(self) -> Option<f64> {
        match self {
            Self::Known { ms } => Some(ms),
            Self::Infinite => Some(f64::INFINITY),
            Self::Above { .. } | Self::TooFew { .. } => None,
        }
    }

    /// How it compares with a limit in milliseconds; nothing when that cannot be known.
    pub fn compare_ms(self, limit_ms: f64) -> Option<Ordering> {
        match self {
            Self::Known { ms } => ms.partial_cmp(&limit_ms),
            Self::Above { ms } => (limit_ms <= ms).then_some(Ordering::Greater),
            Self::Infinite => Some(Ordering::Greater),
            Self::TooFew { .. } => None,
        }
    }
}

impl fmt::Display for Percentile {
    /// The number alone, for a column of milliseconds: `1.25`, `>120000`, `inf` or `n/a`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Known { ms } => milliseconds(*ms),
            Self::Above { ms } => format!(">{}", milliseconds(*ms)),
            Self::Infinite => "inf".to_owned(),
            Self::TooFew { .. } => "n/a".to_owned(),
        };
        formatter.pad(&text)
    }
}

/// A share of the samples, in parts per million, so that counting with it is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantile(u32);

impl Quantile {
    /// The median.
    pub const P50: Self = Self(500_000);
    /// Nine in ten.
    pub const P90: Self = Self(900_000);
    /// Nineteen in twenty.
    pub const P95: Self = Self(950_000);
    /// Ninety-nine in a hundred.
    pub const P99: Self = Self(990_000);
    /// All but one in a thousand.
    pub const P999: Self = Self(999_000);
    /// All but one in ten thousand.
    pub const P9999: Self = Self(999_900);

    /// A share in parts per million, from 1 to 999,999: the ends are the minimum and the maximum, which no number of
    /// samples makes certain.
    pub const fn from_ppm(ppm: u32) -> Option<Self> {
        if ppm == 0 || ppm >= PARTS {
            return None;
        }
        Some(Self(ppm))
    }

    /// Samples below which this percentile is not given: 10 / (1 − q), so that at least ten lie above it.
    pub fn samples_needed(self) -> u64 {
        (u64::from(PARTS) * SAMPLES_ABOVE).div_ceil(u64::from(self.above_ppm()))
    }

    /// Whether so many missing messages make this percentile infinite: when they are as many as lie above it.
    pub fn is_beyond(self, missing: u64, samples: u64) -> bool {
        let above = u128::from(self.above_ppm()) * u128::from(samples);
        samples > 0 && u128::from(missing) * u128::from(PARTS) >= above
    }

    const fn above_ppm(self) -> u32 {
        PARTS - self.0
    }
}

const PARTS: u32 = 1_000_000;

/// With ten samples above it, chance moves a percentile's rank by about a third of its distance from the end.
const SAMPLES_ABOVE: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of_milliseconds(values: impl IntoIterator<Item = u64>) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::new();
        for value in values {
            histogram.record(value * 1_000_000);
        }
        histogram
    }

    fn known_ms(percentile: Percentile) -> f64 {
        match percentile {
            Percentile::Known { ms } => ms,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn enough_samples_are_ten_above_the_percentile() {
        assert_eq!(Quantile::P50.samples_needed(), 20);
        assert_eq!(Quantile::P99.samples_needed(), 1_000);
        assert_eq!(Quantile::P999.samples_needed(), 10_000);
        let histogram = of_milliseconds(1..=999);
        assert_eq!(
            Percentile::of(&histogram, 0, Quantile::P99),
            Percentile::TooFew {
                samples: 999,
                needed: 1_000
            }
        );
        let histogram = of_milliseconds(1..=1_000);
        let p99 = known_ms(Percentile::of(&histogram, 0, Quantile::P99));
        assert!((p99 - 990.0).abs() < 1.0, "{p99}");
    }

    #[test]
    fn one_percent_lost_makes_the_p99_infinite_and_a_little_less_does_not() {
        let histogram = of_milliseconds(1..=990);
        let p99 = |missing| Percentile::of(&histogram, missing, Quantile::P99);
        assert_eq!(p99(10), Percentile::Infinite);
        let histogram = of_milliseconds(1..=991);
        // Nine of a thousand are lost: the highest measured time is the one below them.
        let nearly = known_ms(Percentile::of(&histogram, 9, Quantile::P99));
        assert!((nearly - 990.0).abs() < 1.0, "{nearly}");
        assert_eq!(
            Percentile::of(&histogram, 991, Quantile::P50),
            Percentile::Infinite
        );
    }

    #[test]
    fn a_clipped_tail_is_above_and_not_a_number() {
        let mut histogram = of_milliseconds(1..=900);
        histogram.record_many(u64::MAX, 100);
        let p95 = Percentile::of(&histogram, 0, Quantile::P95);
        assert_eq!(p95, Percentile::Above { ms: 120_000.0 });
        assert_eq!(p95.to_string(), ">120000");
        assert_eq!(p95.compare_ms(5.0), Some(Ordering::Greater));
        assert_eq!(p95.compare_ms(200_000.0), None);
        assert!(known_ms(Percentile::of(&histogram, 0, Quantile::P90)) < 901.0);
    }

    #[test]
    fn every_state_survives_json_and_prints_alone() {
        for (percentile, shown) in [
            (Percentile::Known { ms: 1.25 }, "1.25"),
            (Percentile::Infinite, "inf"),
            (
                Percentile::TooFew {
                    samples: 3,
                    needed: 20,
                },
                "n/a",
            ),
        ] {
            let json = serde_json::to_string(&percentile).unwrap();
            assert_eq!(
                serde_json::from_str::<Percentile>(&json).unwrap(),
                percentile
            );
            assert_eq!(percentile.to_string(), shown);
        }
        let json = serde_json::to_string(&Percentile::Infinite).unwrap();
        assert_eq!(json, r#"{"state":"infinite"}"#);
        assert_eq!(format!("{:>6}", Percentile::Infinite), "   inf");
    }

    #[test]
    fn the_ends_are_no_percentiles() {
        assert_eq!(Quantile::from_ppm(0), None);
        assert_eq!(Quantile::from_ppm(1_000_000), None);
    }

    proptest! {
        /// Against the definition, spelled out: sort everything, lost ones last, and take the rank.
        #[test]
        fn equals_the_sorted_definition(
            values in prop::collection::vec(1_u64..100_000, 20..400),
            missing in 0_u64..60,
        ) {
            let histogram = of_milliseconds(values.iter().copied());
            let mut sorted: Vec<Option<u64>> = values.iter().copied().map(Some).collect();
            sorted.sort_unstable();
            sorted.extend((0..missing).map(|_| None));
            for quantile in [Quantile::P50, Quantile::P90, Quantile::P95] {
                let found = Percentile::of(&histogram, missing, quantile);
                let share_ppm = quantile.0 as usize;
                let rank = (sorted.len() * share_ppm).div_ceil(1_000_000);
                let lost_enough = missing as usize * 1_000_000
                    >= (1_000_000 - share_ppm) * sorted.len();
                match found {
                    Percentile::TooFew { .. } => {
                        prop_assert!((sorted.len() as u64) < quantile.samples_needed());
                    }
                    Percentile::Infinite => prop_assert!(lost_enough),
                    Percentile::Known { ms } => {
                        prop_assert!(!lost_enough);
                        let expected = sorted[rank - 1].unwrap() as f64;
                        // At most 120 s, so none of these is clipped.
                        prop_assert!((ms - expected).abs() <= expected * 0.001 + 0.001);
                    }
                    Percentile::Above { .. } => prop_assert!(false, "nothing was clipped"),
                }
            }
        }
    }
}
