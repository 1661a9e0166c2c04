//! The details of a step beyond the report that the project started with.
//!
//! It stands in one object, `detail`, so that a reader of the old report meets nothing new among its keys. Everything
//! that can be added up is here as a count or a histogram, never as an average: parts and repeats are merged from
//! these, and a picture drawn from them shows what a new run would.

use serde::{Deserialize, Serialize};

use super::{Cost, FanOutShare, FaultFigures, ProcessFigures, WorkCounts};
use crate::exchange::Times;
use crate::ledger::{Losses, ReceiverTotals};
use crate::scenario::{Load, Step};
use crate::slo::{Slo, SloFigures};
use crate::statistics::{EncodedHistogram, LatencyHistogram, Percentile, Quantile};

/// The details of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepDetail {
    /// The workload.
    pub workload: Workload,
    /// The fates of the messages, as numbers that can be added.
    pub counts: WorkCounts,
    /// From when to when figures count.
    pub window: Window,
    /// The distributions.
    pub times: StepTimes,
    /// The cost.
    pub cost: Cost,
    /// Whether the measurement is to be believed.
    pub verdict: Verdict,
    /// The limits of the step, and which of them were broken.
    pub slo: SloReport,
    /// The course of the step, about one entry a second.
    pub series: Vec<Second>,
    /// Up to ten receivers with most amiss, worst first.
    pub worst_receivers: Vec<ReceiverFigures>,
    /// Receivers that were slow on purpose; they are in no other figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_receivers: Option<SlowReceivers>,
    /// The share of a fan-out that the other parts must know, in a part of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out_share: Option<FanOutShare>,
    /// The processes that were started for the run; empty if that is only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessFigures>,
    /// The faults that were inflicted, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultFigures>,
    /// The causes of the lost deliveries, in a fan-out with any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses: Option<Losses>,
    /// The figures of each run or part that this was merged from; empty for a single one.
    pub runs: Vec<RunFigures>,
}

/// The workload of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// `ingest`, `echo`, `request`, `chat` or `pubsub`.
    pub pattern: String,
    /// The codec with its parameters.
    pub codec: String,
    /// `closed`, `open` or `max`.
    pub model: String,
    /// How messages were spread over time, in an open step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival: Option<String>,
    /// The policy for messages that could not be sent when they were due, in an open step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_late: Option<String>,
    /// Messages a second that were to be offered, over the whole step; nothing where the step is to find its rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_tps: Option<f64>,
    /// Shortest and longest think time in milliseconds, in a closed step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think_time_ms: Option<[f64; 2]>,
    /// Bytes of each payload.
    pub payload_bytes: u32,
    /// Most unanswered messages of all agents, where there are replies: `max_in_flight`, or what the codec's ids tell
    /// apart if that is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight_allowed: Option<u64>,
    /// The limits of the histories of rooms, such as `messages=100,bytes=65536`, if the run's servers kept any. Agents
    /// that came back then got what they had missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<String>,
}

/// From when to when figures count, in seconds since the barrier opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Length of the warm-up.
    pub warmup_secs: f64,
    /// Length of the steady window.
    pub steady_secs: f64,
    /// Whether the medians of the last three seconds of the warm-up lie within 2 %; nothing when it was too short to
    /// tell.
    pub stationary: Option<bool>,
    /// Whether latencies are those of messages due in the steady window (version 2) or of all (version 1).
    pub latencies_are_steady: bool,
}

/// The distributions of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Returns the distributions that are known, with their names.
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
#[serde(deny_unknown_fields)]
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

/// Whether a measurement is to be believed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// Why it is not; empty when it is.
    pub reasons: Vec<String>,
    /// What else the machine did meanwhile. Times are longer by it and are not to be believed; the counts of messages
    /// and the rates are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbances: Vec<String>,
    /// Whether an invalid measurement ends the run with an exit code of its own.
    pub enforced: bool,
}

impl Verdict {
    /// Whether nothing speaks against the measurement, or only against its times.
    pub fn is_valid(&self) -> bool {
        self.reasons.is_empty()
    }

    /// Whether it is valid and a busy machine made its times longer, so that they are not to be believed.
    pub fn is_disturbed(&self) -> bool {
        self.is_valid() && !self.disturbances.is_empty()
    }

    /// `VALID`, `DISTURBED` or `INVALID`.
    pub fn name(&self) -> &'static str {
        verdict_name(self.is_valid(), self.is_disturbed())
    }
}

/// The limits of a step and which of them were broken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SloReport {
    /// The limits.
    pub limits: Slo,
    /// The figure of each broken limit.
    pub violations: Vec<String>,
}

impl SloReport {
    /// Whether lost messages are judged by a limit.
    pub fn limits_loss(&self) -> bool {
        self.limits.loss_pct.is_some() || self.limits.delivery_ratio_min.is_some()
    }

    /// Judges the limits of a step. Percentiles count what never arrived; the shares are of the whole step.
    pub(crate) fn judge(limits: &Slo, figures: &SloFigures) -> Self {
        Self {
            limits: *limits,
            violations: limits.evaluate(figures),
        }
    }
}

/// About a second of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// One receiver's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiverFigures {
    /// Its number among the agents.
    pub receiver: u32,
    /// Messages it should have got.
    pub expected: u64,
    /// Expected messages that it got.
    pub delivered: u64,
    /// Expected messages that it did not get.
    pub lost: u64,
    /// Expected messages of which nobody can know whether it got them.
    #[serde(default)]
    pub unconfirmed: u64,
    /// Messages that it got more than once.
    pub duplicated: u64,
    /// Messages that it got after a later one.
    pub reordered: u64,
    /// Messages that it got too late.
    pub late: u64,
    /// Arrivals with a broken checksum.
    pub corrupt: u64,
}

impl ReceiverFigures {
    pub(crate) fn of(receiver: u32, totals: &ReceiverTotals) -> Self {
        Self {
            receiver,
            expected: totals.expected,
            delivered: totals.delivered,
            lost: totals.lost,
            unconfirmed: totals.unconfirmed,
            duplicated: totals.duplicated,
            reordered: totals.reordered,
            late: totals.late,
            corrupt: totals.corrupt,
        }
    }

    pub(crate) fn is_amiss(&self) -> bool {
        self.amiss() > (0, 0)
    }

    /// Loss and disorder first, lateness second.
    pub(crate) fn amiss(&self) -> (u64, u64) {
        (
            self.lost + self.unconfirmed + self.duplicated + self.reordered + self.corrupt,
            self.late,
        )
    }
}

/// The fate of messages at receivers that read slowly on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowReceivers {
    /// How many.
    pub receivers: u64,
    /// Messages they should have got.
    pub expected: u64,
    /// Expected messages that they got.
    pub delivered: u64,
    /// Expected messages that they did not get.
    pub lost: u64,
    /// Expected messages of which nobody can know whether they got them.
    #[serde(default)]
    pub unconfirmed: u64,
    /// How many lost their connection.
    pub disconnected: u64,
}

/// The figures of one run or part, for intervals over several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFigures {
    /// Number of the run or part, from 1.
    pub run: u32,
    /// Messages sent a second in the steady window.
    pub send_tps: f64,
    /// Messages received a second in the steady window; nothing where messages go one way.
    pub receive_tps: Option<f64>,
    /// Deliveries that were expected.
    pub expected: u64,
    /// Expected deliveries that did not arrive.
    pub lost: u64,
    /// Expected deliveries of which nobody can know whether they arrived.
    #[serde(default)]
    pub unconfirmed: u64,
    /// Median of `scheduled`.
    pub p50: Percentile,
    /// 99th percentile of `scheduled`.
    pub p99: Percentile,
    /// 99.9th percentile of `scheduled`.
    pub p999: Percentile,
    /// Processor time of the server in nanoseconds a message.
    pub server_ns_per_message: Option<f64>,
    /// Whether its measurement is to be believed.
    pub valid: bool,
    /// Whether a busy machine made its times longer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disturbed: bool,
}

impl RunFigures {
    /// `VALID`, `DISTURBED` or `INVALID`.
    pub(super) fn verdict(&self) -> &'static str {
        verdict_name(self.valid, self.disturbed)
    }
}

fn verdict_name(is_valid: bool, is_disturbed: bool) -> &'static str {
    match (is_valid, is_disturbed) {
        (false, _) => "INVALID",
        (true, true) => "DISTURBED",
        (true, false) => "VALID",
    }
}

impl Workload {
    pub(crate) fn of(step: &Step) -> Self {
        let (mut arrival, mut on_late, mut think_time_ms) = (None, None, None);
        match &step.load {
            Load::Closed {
                think_time_ms: think,
            } => {
                think_time_ms = Some([think.min_ms, think.max_ms]);
            }
            Load::Open {
                arrival: kind,
                on_late: late,
                ..
            } => {
                arrival = Some(kind.name().to_owned());
                on_late = Some(late.name().to_owned());
            }
            Load::Max => {}
        }
        Self {
            pattern: step.pattern.name().to_owned(),
            codec: step.codec.clone(),
            model: step.load.model().to_owned(),
            arrival,
            on_late,
            offered_tps: step.offered_tps(),
            think_time_ms,
            payload_bytes: step.payload_bytes,
            in_flight_allowed: None,
            history: None,
        }
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

    #[test]
    fn the_worst_receivers_are_those_with_loss_before_those_with_lateness() {
        let figures = |lost, late| ReceiverTotals {
            lost,
            late,
            ..ReceiverTotals::default()
        };
        let of = |lost, late| ReceiverFigures::of(1, &figures(lost, late));
        assert!(of(1, 0).amiss() > of(0, 100).amiss());
        assert!(!of(0, 0).is_amiss() && of(0, 1).is_amiss());
    }
}
