//! Distributions of times, in memory that does not grow with the number of samples.
//! A run of tens of millions of deliveries a second cannot keep its samples, and percentiles of averages are wrong.
//! So every lane records into its own histogram, and the histograms are added at the end. They cover 1 ns to 120 s
//! with three significant digits: from the cost of one write (hundreds of nanoseconds) to a stalled room (many
//! seconds). They never resize while recording. A larger value is recorded as the largest one and counted, so that a
//! clipped tail is seen.

use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A distribution of nanosecond values with three significant digits.
#[derive(Clone)]
pub struct LatencyHistogram {
    histogram: Histogram<u64>,
    clipped: u64,
}

impl LatencyHistogram {
    /// Largest value that is recorded as itself, in nanoseconds (120 s).
    pub const HIGHEST_NS: u64 = 120_000_000_000;

    /// An empty histogram. This allocates, about 200 KiB; recording does not.
    pub fn new() -> Self {
        let mut histogram = Histogram::new_with_bounds(1, Self::HIGHEST_NS, SIGNIFICANT_DIGITS)
            .expect("constant bounds that the histogram accepts");
        histogram.auto(false);
        Self {
            histogram,
            clipped: 0,
        }
    }

    /// Records one value in nanoseconds.
    #[inline]
    pub fn record(&mut self, value_ns: u64) {
        self.record_many(value_ns, 1);
    }

    /// Records `count` samples of one value in nanoseconds, such as the shared cost of a batch.
    #[inline]
    pub fn record_many(&mut self, value_ns: u64, count: u64) {
        if value_ns > Self::HIGHEST_NS {
            self.clipped = self.clipped.saturating_add(count);
        }
        self.histogram
            .saturating_record_n(value_ns.min(Self::HIGHEST_NS), count);
    }

    /// Adds the samples of another histogram to this one.
    pub fn merge(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("both histograms have the same constant bounds");
        self.clipped = self.clipped.saturating_add(other.clipped);
    }

    /// The samples as the file format of HdrHistogram knows them; the clipped ones are its largest value.
    pub(crate) fn inner(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// A histogram that was read from a file, of which `clipped` samples were above the largest value.
    ///
    /// Nothing when its layout is not ours, because adding the two would then not be exact.
    pub(super) fn from_inner(mut histogram: Histogram<u64>, clipped: u64) -> Option<Self> {
        let ours = histogram.low() == 1
            && histogram.high() == Self::HIGHEST_NS
            && histogram.sigfig() == SIGNIFICANT_DIGITS;
        histogram.auto(false);
        ours.then_some(Self { histogram, clipped })
    }

    /// Forgets every sample and keeps the memory.
    pub fn clear(&mut self) {
        self.histogram.reset();
        self.clipped = 0;
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Number of samples above [`LatencyHistogram::HIGHEST_NS`], which were recorded as that value.
    pub fn clipped(&self) -> u64 {
        self.clipped
    }

    /// The value in nanoseconds below or at which the share `quantile` (0 to 1) of the samples lies; 0 when
    /// there are none.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        self.histogram.value_at_quantile(quantile)
    }

    /// The mean of the samples below `limit_ns`, in milliseconds; 0 when there are none.
    pub(crate) fn mean_ms_below(&self, limit_ns: u64) -> f64 {
        let recorded = self.histogram.iter_recorded();
        let below = recorded.take_while(|value| value.value_iterated_to() < limit_ns);
        let (mut count, mut sum) = (0_u64, 0.0);
        for value in below {
            let median = self.histogram.median_equivalent(value.value_iterated_to());
            count += value.count_at_value();
            sum += value.count_at_value() as f64 * median as f64;
        }
        nanos_to_ms(sum / count.max(1) as f64)
    }

    /// The figures of the report in milliseconds; none when there are no samples.
    pub fn summary(&self) -> Option<Latency> {
        if self.histogram.is_empty() {
            return None;
        }
        let quantile_ms = |quantile| nanos_to_ms(self.quantile_ns(quantile) as f64);
        Some(Latency {
            min_ms: nanos_to_ms(self.histogram.min() as f64),
            mean_ms: nanos_to_ms(self.histogram.mean()),
            std_dev_ms: nanos_to_ms(self.histogram.stdev()),
            p50_ms: quantile_ms(0.50),
            p90_ms: quantile_ms(0.90),
            p95_ms: quantile_ms(0.95),
            p99_ms: quantile_ms(0.99),
            max_ms: nanos_to_ms(self.histogram.max() as f64),
        })
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatencyHistogram")
            .field("count", &self.count())
            .field("clipped", &self.clipped)
            .finish_non_exhaustive()
    }
}

/// A distribution in eight figures, each in milliseconds.
///
/// A figure read from a histogram is the upper end of its bucket and so at most 0.1 % too high; `min_ms` is
/// the lower end of the lowest bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Smallest sample.
    pub min_ms: f64,
    /// Arithmetic mean.
    pub mean_ms: f64,
    /// Standard deviation of the samples.
    pub std_dev_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Largest sample.
    pub max_ms: f64,
}

fn nanos_to_ms(nanos: f64) -> f64 {
    nanos / 1e6
}

/// Three digits keep every bucket within 0.1 % of its values.
const SIGNIFICANT_DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn close(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= expected * 0.001
    }

    #[test]
    fn an_empty_one_has_no_figures() {
        assert_eq!(LatencyHistogram::new().summary(), None);
    }

    #[test]
    fn known_values_give_known_figures() {
        let mut histogram = LatencyHistogram::new();
        for value_ms in 1..=1_000_u64 {
            histogram.record(value_ms * 1_000_000);
        }
        let summary = histogram.summary().unwrap();
        assert!(close(summary.min_ms, 1.0), "{summary:?}");
        assert!(close(summary.mean_ms, 500.5), "{summary:?}");
        // Of the numbers 1 to n: √((n² - 1) / 12).
        assert!(close(summary.std_dev_ms, 288.675), "{summary:?}");
        assert!(close(summary.p50_ms, 500.0), "{summary:?}");
        assert!(close(summary.p90_ms, 900.0), "{summary:?}");
        assert!(close(summary.p95_ms, 950.0), "{summary:?}");
        assert!(close(summary.p99_ms, 990.0), "{summary:?}");
        assert!(close(summary.max_ms, 1_000.0), "{summary:?}");
    }

    #[test]
    fn merging_equals_recording_into_one() {
        let mut one = LatencyHistogram::new();
        let mut parts = [LatencyHistogram::new(), LatencyHistogram::new()];
        let mut random = fastrand::Rng::with_seed(11);
        for index in 0..10_000 {
            let value_ns = random.u64(100..10_000_000_000);
            one.record(value_ns);
            parts[index % 2].record(value_ns);
        }
        let [mut merged, other] = parts;
        merged.merge(&other);
        assert_eq!(merged.count(), 10_000);
        assert_eq!(merged.summary(), one.summary());
    }

    #[test]
    fn values_beyond_the_range_are_kept_and_counted_as_clipped() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(0);
        histogram.record(LatencyHistogram::HIGHEST_NS);
        assert_eq!(histogram.clipped(), 0);
        histogram.record(u64::MAX);
        histogram.record_many(LatencyHistogram::HIGHEST_NS + 1, 4);
        assert_eq!((histogram.clipped(), histogram.count()), (5, 7));
        assert!(close(histogram.summary().unwrap().max_ms, 120_000.0));
        histogram.clear();
        assert_eq!((histogram.clipped(), histogram.count()), (0, 0));
    }

    #[test]
    fn resolves_the_cost_of_a_single_write() {
        let mut histogram = LatencyHistogram::new();
        histogram.record_many(950, 100);
        assert!(close(histogram.summary().unwrap().p50_ms, 0.000_950));
    }
}
