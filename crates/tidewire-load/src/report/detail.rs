//! The details of a step beyond the report that the project started with.
//!
//! It stands in one object, `detail`, so that a reader of the old report meets nothing new among its keys. Everything
//! that can be added up is here as a count or a histogram, never as an average: parts and repeats are merged from
//! these, and a picture drawn from them shows what a new run would.

use serde::{Deserialize, Serialize};

use super::{Cost, FanOutShare, Second, StepTimes, WorkCounts};
use crate::ledger::{Losses, ReceiverTotals};
use crate::scenario::{Load, Step};
use crate::slo::{Slo, SloFigures};
use crate::statistics::Percentile;

/// The details of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// Whether a measurement is to be believed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Why it is not; empty when it is.
    pub reasons: Vec<String>,
    /// Signs of a busy machine. They make times longer, so that these are not to be believed; the counts of messages
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

/// One receiver's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// A process that was started for the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessFigures {
    /// Its name, such as `node 1` or `nats`.
    pub name: String,
    /// Processor time in the step, in seconds.
    pub cpu_secs: Option<f64>,
    /// Largest resident memory in bytes, since it started.
    pub rss_bytes_max: Option<u64>,
}

impl ProcessFigures {
    /// Adds the figures of several runs up, process by process.
    pub(super) fn merge<'r>(all: impl Iterator<Item = &'r Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for figures in all {
            match merged.iter_mut().find(|known| known.name == figures.name) {
                Some(known) => {
                    let both = known.cpu_secs.zip(figures.cpu_secs);
                    known.cpu_secs = both.map(|(one, other)| one + other);
                    known.rss_bytes_max = known.rss_bytes_max.max(figures.rss_bytes_max);
                }
                None => merged.push(figures.clone()),
            }
        }
        merged
    }
}

/// A fault of the schedule, as it was inflicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultFigures {
    /// When it began, in seconds since the barrier opened.
    pub at_secs: f64,
    /// How long it took until it had its effect, such as a server that accepts connections again.
    pub took_secs: f64,
    /// `kill`, `stop`, `continue` or `restart`, and the process.
    pub what: String,
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

#[cfg(test)]
mod tests {
    use super::*;

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
