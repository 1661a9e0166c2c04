//! The runs of a report file.
//! Only the compared keys are read, and unknown keys are ignored: the two sides of a comparison are often two
//! versions of the instrument, and neither version may refuse the report of the other. A report may hold several runs
//! of a step; each of them is a run here. A report that was merged from parts holds the figures of the parts at the
//! same keys, but it is one run: the rates of parts add up to the rate of the whole.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Metric;
use super::metric::{Figures, Missing};
use super::run::{Machine, Run, StepRun};
use crate::statistics::Percentile;

#[derive(Deserialize)]
pub(super) struct FileVersion {
    pub(super) schema_version: u32,
}

#[derive(Deserialize)]
pub(super) struct FileReport {
    pub(super) status: String,
    env: Machine,
    steps: Vec<FileStep>,
}

impl FileReport {
    /// The runs of the report, one unless it was merged from several.
    pub(super) fn runs(&self) -> Vec<Run> {
        let most = self.steps.iter().map(FileStep::run_count).max();
        (0..most.unwrap_or(1))
            .map(|index| Run {
                env: self.env.clone(),
                steps: self
                    .steps
                    .iter()
                    .filter_map(|step| step.run(index))
                    .collect(),
            })
            .collect()
    }
}

#[derive(Deserialize)]
struct FileStep {
    step_name: String,
    test_duration_secs: f64,
    concurrency: u32,
    latency_kind: String,
    total_received: u64,
    lost: u64,
    #[serde(default)]
    unconfirmed: u64,
    steady: Rates,
    server: Server,
    problems: Vec<String>,
    detail: Detail,
}

#[derive(Deserialize)]
struct Rates {
    send_tps: f64,
    receive_tps: Option<f64>,
}

#[derive(Deserialize)]
struct Server {
    rss_bytes_max: Option<u64>,
}

#[derive(Deserialize)]
struct Detail {
    workload: BTreeMap<String, serde_json::Value>,
    window: Window,
    times: Times,
    cost: Cost,
    verdict: Verdict,
    runs: Vec<FileRun>,
}

#[derive(Deserialize)]
struct Window {
    latencies_are_steady: bool,
}

#[derive(Deserialize)]
struct Times {
    scheduled: Percentiles,
}

#[derive(Deserialize)]
struct Percentiles {
    p50: Percentile,
    p90: Percentile,
    p99: Percentile,
    p999: Percentile,
}

#[derive(Deserialize)]
struct Cost {
    client_ns_per_message: Option<f64>,
    server_ns_per_message: Option<f64>,
}

#[derive(Deserialize)]
struct Verdict {
    reasons: Vec<String>,
    /// A version that judged less has none.
    #[serde(default)]
    disturbances: Vec<String>,
    enforced: bool,
}

/// The figures of one of several runs.
#[derive(Deserialize)]
struct FileRun {
    send_tps: f64,
    receive_tps: Option<f64>,
    expected: u64,
    lost: u64,
    #[serde(default)]
    unconfirmed: u64,
    p50: Percentile,
    p99: Percentile,
    p999: Percentile,
    server_ns_per_message: Option<f64>,
    valid: bool,
}

impl FileStep {
    /// The runs that were put together one after another, if there are several.
    fn repeats(&self) -> &[FileRun] {
        let runs = &self.detail.runs;
        let sum: f64 = runs.iter().map(|run| run.send_tps).sum();
        // Two runs come to twice the rate of the whole, any number of parts to once that.
        if sum > self.steady.send_tps * 1.5 {
            runs
        } else {
            &[]
        }
    }

    fn run_count(&self) -> usize {
        self.repeats().len().max(1)
    }

    /// The step of one run; nothing when there are fewer.
    fn run(&self, index: usize) -> Option<StepRun> {
        let repeats = self.repeats();
        let (figures, invalid) = match repeats.get(index) {
            Some(run) => (run.figures(), self.invalid().filter(|_| !run.valid)),
            None if index == 0 => (self.figures(), self.invalid()),
            None => return None,
        };
        Some(StepRun {
            step_name: self.step_name.clone(),
            concurrency: self.concurrency,
            secs: self.test_duration_secs / self.run_count() as f64,
            setting: self.setting(),
            figures,
            invalid,
            problems: self.problems(),
        })
    }

    /// The problems of the step, and those of the machine.
    fn problems(&self) -> Vec<String> {
        let disturbances = &self.detail.verdict.disturbances;
        self.problems.iter().chain(disturbances).cloned().collect()
    }

    /// The first reason not to believe the measurement, if that is to have consequences.
    fn invalid(&self) -> Option<String> {
        let verdict = &self.detail.verdict;
        let reason = verdict.reasons.first()?;
        verdict.enforced.then(|| reason.clone())
    }

    fn figures(&self) -> Figures {
        let (arrived, lost, unconfirmed) = (self.total_received, self.lost, self.unconfirmed);
        let expected = arrived + lost + unconfirmed;
        let mut figures = measured([
            (Metric::SendTps, Some(self.steady.send_tps)),
            (Metric::ReceiveTps, self.steady.receive_tps),
            (Metric::LossPct, share_pct(lost, expected)),
            (Metric::UnconfirmedPct, share_pct(unconfirmed, expected)),
            (
                Metric::ServerMemoryBytes,
                self.server.rss_bytes_max.map(|bytes| bytes as f64),
            ),
        ]);
        let (times, cost) = (&self.detail.times.scheduled, &self.detail.cost);
        figures.extend([
            (Metric::P50Ms, known(times.p50)),
            (Metric::P90Ms, known(times.p90)),
            (Metric::P99Ms, known(times.p99)),
            (Metric::P999Ms, known(times.p999)),
        ]);
        figures.extend(measured([
            (Metric::ServerCpuNs, cost.server_ns_per_message),
            (Metric::ClientCpuNs, cost.client_ns_per_message),
        ]));
        figures
    }

    /// The settings of the step, for comparison key by key.
    fn setting(&self) -> BTreeMap<String, String> {
        let value = |value: &serde_json::Value| match value.as_str() {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        };
        let workload = self.detail.workload.iter();
        let mut setting: BTreeMap<String, String> = workload
            .map(|(key, found)| (key.clone(), value(found)))
            .collect();
        // A step that is to find its rate offers a different one each time.
        let offered = setting.remove("offered_tps");
        setting.extend(offered.map(|tps| ("offered messages a second".to_owned(), tps)));
        let latencies_of = match self.detail.window.latencies_are_steady {
            true => "the steady window",
            false => "the whole step",
        };
        setting.extend([
            ("agents".to_owned(), self.concurrency.to_string()),
            ("kind of latency".to_owned(), self.latency_kind.clone()),
            ("latencies of".to_owned(), latencies_of.to_owned()),
        ]);
        setting
    }
}

impl FileRun {
    fn figures(&self) -> Figures {
        let mut figures = measured([
            (Metric::SendTps, Some(self.send_tps)),
            (Metric::ReceiveTps, self.receive_tps),
            (Metric::LossPct, share_pct(self.lost, self.expected)),
            (
                Metric::UnconfirmedPct,
                share_pct(self.unconfirmed, self.expected),
            ),
            (Metric::ServerCpuNs, self.server_ns_per_message),
        ]);
        figures.extend([
            (Metric::P50Ms, known(self.p50)),
            (Metric::P99Ms, known(self.p99)),
            (Metric::P999Ms, known(self.p999)),
        ]);
        figures
    }
}

fn share_pct(count: u64, expected: u64) -> Option<f64> {
    (expected > 0).then(|| count as f64 / expected as f64 * 100.0)
}

fn measured<const COUNT: usize>(figures: [(Metric, Option<f64>); COUNT]) -> Figures {
    let known = figures.into_iter();
    let known = known.map(|(metric, figure)| (metric, figure.ok_or(Missing::NotMeasured)));
    known.collect()
}

/// A percentile beyond the range of a histogram is as good as infinite: both sides cannot be told apart there.
fn known(percentile: Percentile) -> Result<f64, Missing> {
    match percentile {
        Percentile::Known { ms } => Ok(ms),
        Percentile::Above { .. } | Percentile::Infinite => Ok(f64::INFINITY),
        Percentile::TooFew { .. } => Err(Missing::TooFewSamples),
    }
}
