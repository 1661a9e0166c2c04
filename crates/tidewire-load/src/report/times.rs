//! The times of a step: the distributions, and the seconds of its course.

use serde::{Deserialize, Serialize};

use crate::exchange::Times;
use crate::slo::SloFigures;
use crate::statistics::{EncodedHistogram, LatencyHistogram, Percentile, Quantile};

/// The distributions of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Received − intended. What a user of an open system feels.
    pub scheduled: Distribution,
    /// The part of `scheduled` that went from a sender at one node of a cluster to a receiver at another. Without those
    /// that never arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub across: Option<Distribution>,
    /// Received − sent, in open steps and where there are replies. Its gap to `scheduled` is coordinated omission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Distribution>,
    /// Sent − intended.
    pub send_lag: Distribution,
    /// The part of `send_lag` in which the message could have gone: how late the instrument itself was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_lag: Option<Distribution>,
    /// Written − sent.
    pub write: Distribution,
}

impl StepTimes {
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &Distribution)> {
        let all = [
            ("scheduled", Some(&self.scheduled)),
            ("across", self.across.as_ref()),
            ("service", self.service.as_ref()),
            ("send lag", Some(&self.send_lag)),
            ("client lag", self.client_lag.as_ref()),
            ("write", Some(&self.write)),
        ];
        let known = all.into_iter();
        known.filter_map(|(name, times)| Some((name, times?)))
    }
}

/// A distribution with everything needed to add it to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Messages that never arrived; they rank above all that did.
    pub missing: u64,
    /// Median.
    pub p50: Percentile,
    /// 90th percentile.
    pub p90: Percentile,
    /// 95th percentile.
    pub p95: Percentile,
    /// 99th percentile.
    pub p99: Percentile,
    /// 99.9th percentile.
    pub p999: Percentile,
    /// 99.99th percentile.
    pub p9999: Percentile,
    /// Mean of those that arrived, in milliseconds.
    pub mean_ms: f64,
    /// Largest of those that arrived, in milliseconds.
    pub max_ms: f64,
    /// All of them.
    pub histogram: EncodedHistogram,
}

impl Default for Distribution {
    fn default() -> Self {
        Self::of(&LatencyHistogram::new(), 0)
    }
}

impl Distribution {
    /// The distribution of `histogram`, with `missing` messages that never arrived.
    pub fn of(histogram: &LatencyHistogram, missing: u64) -> Self {
        let percentile = |quantile| Percentile::of(histogram, missing, quantile);
        let summary = histogram.summary().unwrap_or_default();
        Self {
            missing,
            p50: percentile(Quantile::P50),
            p90: percentile(Quantile::P90),
            p95: percentile(Quantile::P95),
            p99: percentile(Quantile::P99),
            p999: percentile(Quantile::P999),
            p9999: percentile(Quantile::P9999),
            mean_ms: summary.mean_ms,
            max_ms: summary.max_ms,
            histogram: EncodedHistogram::of(histogram),
        }
    }

    /// The figures that limits are set on, with what was expected, delivered and left unconfirmed.
    pub(crate) fn slo_figures(&self, [expected, delivered, unconfirmed]: [u64; 3]) -> SloFigures {
        SloFigures {
            p50: self.p50,
            p90: self.p90,
            p99: self.p99,
            p999: self.p999,
            expected,
            delivered,
            unconfirmed,
        }
    }
}

/// About a second of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// The run or part it belongs to, from 1.
    pub run: u32,
    /// Its end, in seconds since the barrier opened.
    pub at_secs: f64,
    /// Its length in seconds.
    pub secs: f64,
    /// `warm_up`, `steady` or `drain`, at its end.
    pub phase: String,
    /// Messages that were due, if that is laid down.
    pub offered: Option<f64>,
    /// Messages sent.
    pub sent: u64,
    /// Distinct messages that arrived; nothing where messages go one way.
    pub received: Option<u64>,
    /// Median of what arrived, by when it was due, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the same.
    pub p99_ms: Option<f64>,
    /// 99.9th percentile of the same.
    pub p999_ms: Option<f64>,
    /// 99th percentile of sent − intended, in milliseconds.
    pub send_lag_p99_ms: Option<f64>,
    /// Processor time of the instrument in percent of one core.
    pub client_cpu_pct: Option<f64>,
    /// Processor time of the server in percent of one core.
    pub server_cpu_pct: Option<f64>,
    /// Agents with a connection at its end, node by node; empty if there is one server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connected: Vec<u64>,
    /// For a heat map: upper edges in milliseconds, ten to a decade, and how many arrived below each.
    pub heat: Vec<(f64, u64)>,
    /// The share of this second in the distribution `scheduled` of the step; nothing if it has none. Older reports have
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<EncodedHistogram>,
}

impl Second {
    /// Messages a second that were due, if that is laid down.
    pub fn offered_tps(&self) -> Option<f64> {
        Some(self.offered? / self.secs)
    }

    /// Messages sent a second.
    pub fn send_tps(&self) -> f64 {
        self.sent as f64 / self.secs
    }

    /// Distinct messages that arrived a second, if that is known.
    pub fn receive_tps(&self) -> Option<f64> {
        Some(self.received? as f64 / self.secs)
    }

    /// The figures of what was recorded in it, into an otherwise finished entry.
    pub(crate) fn record(&mut self, times: &Times) {
        let mut all = times.scheduled.clone();
        all.merge(&times.outside);
        let quantile_ms = |histogram: &LatencyHistogram, quantile| {
            (histogram.count() > 0).then(|| histogram.quantile_ns(quantile) as f64 / 1e6)
        };
        self.p50_ms = quantile_ms(&all, 0.5);
        self.p99_ms = quantile_ms(&all, 0.99);
        self.p999_ms = quantile_ms(&all, 0.999);
        self.send_lag_p99_ms = quantile_ms(&times.send_lag, 0.99);
        self.heat = heat(&all);
        let has_some = times.scheduled.count() > 0;
        self.scheduled = has_some.then(|| EncodedHistogram::of(&times.scheduled));
    }
}

/// Counts in buckets of which ten make a decade of milliseconds.
fn heat(histogram: &LatencyHistogram) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(i32, u64)> = Vec::new();
    for value in histogram.inner().iter_recorded() {
        let milliseconds = (value.value_iterated_to() as f64 / 1e6).max(1e-6);
        let bucket = (milliseconds.log10() * 10.0).floor() as i32 + 1;
        match buckets.last_mut() {
            Some((last, count)) if *last == bucket => *count += value.count_since_last_iteration(),
            _ => buckets.push((bucket, value.count_since_last_iteration())),
        }
    }
    buckets
        .into_iter()
        .map(|(bucket, count)| (10_f64.powf(f64::from(bucket) / 10.0), count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_has_ten_buckets_a_decade_and_loses_nothing() {
        let mut histogram = LatencyHistogram::new();
        for microseconds in 1..=100_000_u64 {
            histogram.record(microseconds * 1_000);
        }
        let heat = heat(&histogram);
        let count: u64 = heat.iter().map(|(_, count)| count).sum();
        assert_eq!(count, 100_000);
        assert!((40..=52).contains(&heat.len()), "{}", heat.len());
        // Neighbours are a tenth of a decade apart, or more where nothing lies between.
        assert!(heat.windows(2).all(|pair| pair[1].0 / pair[0].0 > 1.258));
        let below_one_ms: u64 = heat
            .iter()
            .filter(|(edge, _)| *edge < 1.001)
            .map(|(_, count)| count)
            .sum();
        // A bucket of the histogram may lie across an edge.
        assert!(below_one_ms.abs_diff(1_000) <= 2, "{below_one_ms}");
    }
}
