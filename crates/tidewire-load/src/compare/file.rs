//! The runs of a report file.
//! Only the compared keys are read, and unknown keys are ignored: the two sides of a comparison are often two
//! versions of the instrument, and neither version may refuse the report of the other. A report may hold several runs
//! of a step; each of them is a run here. A report that was merged from parts holds the figures of the parts at the
//! same keys, but it is one run: the rates of parts add up to the rate of the whole.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Metric;
use super::metric::{Figures, Missing};
use super::run_set::{Machine, Run, StepRun};
use crate::statistics::{Percentile, Quantile};

#[derive(Deserialize)]
pub(super) struct FileVersion {
    pub(super) schema_version: u32,
}

#[derive(Deserialize)]
pub(super) struct FileReport {
    pub(super) status: String,
    model: String,
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
                    .filter_map(|step| step.run(index, &self.model))
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
    theoretical_tps: f64,
    latency_kind: String,
    total_sent: u64,
    total_received: u64,
    lost: u64,
    #[serde(default)]
    unconfirmed: u64,
    steady: Rates,
    /// Nothing where no message has such a time.
    latency: Option<Latencies>,
    server: Server,
    client: Client,
    problems: Vec<String>,
    #[serde(default)]
    detail: Option<Detail>,
}

#[derive(Deserialize)]
struct Rates {
    send_tps: f64,
    receive_tps: Option<f64>,
}

#[derive(Deserialize)]
struct Latencies {
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
}

#[derive(Deserialize)]
struct Server {
    cpu_secs: Option<f64>,
    rss_bytes_max: Option<u64>,
}

#[derive(Deserialize)]
struct Client {
    cpu_secs: f64,
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
        let Some(detail) = &self.detail else {
            return &[];
        };
        let sum: f64 = detail.runs.iter().map(|run| run.send_tps).sum();
        // Two runs come to twice the rate of the whole, any number of parts to once that.
        if sum > self.steady.send_tps * 1.5 {
            &detail.runs
        } else {
            &[]
        }
    }

    fn run_count(&self) -> usize {
        self.repeats().len().max(1)
    }

    /// The step of one run; nothing when there are fewer.
    fn run(&self, index: usize, model: &str) -> Option<StepRun> {
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
            setting: self.setting(model),
            figures,
            cost_is_steady: self.detail.is_some(),
            invalid,
            problems: self.problems(),
        })
    }

    /// The problems of the step, and those of the machine.
    fn problems(&self) -> Vec<String> {
        let disturbances = self.detail.iter().flat_map(|it| &it.verdict.disturbances);
        self.problems.iter().chain(disturbances).cloned().collect()
    }

    /// The first reason not to believe the measurement, if that is to have consequences.
    fn invalid(&self) -> Option<String> {
        let verdict = &self.detail.as_ref()?.verdict;
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
        if let Some(detail) = &self.detail {
            let (times, cost) = (&detail.times.scheduled, &detail.cost);
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
            return figures;
        }
        // A report of an older build: its percentiles are those of arrived messages, and its processor time that of
        // the whole step.
        let samples = arrived + lost;
        for (metric, quantile, value_ms) in OLDER {
            let value_ms = self.latency.as_ref().map(value_ms);
            let figure = if samples < quantile.samples_needed() {
                Err(Missing::TooFewSamples)
            } else if quantile.is_beyond(lost, samples) {
                Ok(f64::INFINITY)
            } else {
                value_ms.ok_or(Missing::NotMeasured)
            };
            figures.insert(metric, figure);
        }
        let messages = self.total_sent + arrived;
        let each = |secs: f64| (messages > 0).then(|| secs * 1e9 / messages as f64);
        figures.extend(measured([
            (Metric::ServerCpuNs, self.server.cpu_secs.and_then(each)),
            (Metric::ClientCpuNs, each(self.client.cpu_secs)),
        ]));
        figures
    }

    /// The settings of the step, for comparison key by key.
    fn setting(&self, model: &str) -> BTreeMap<String, String> {
        let mut setting = BTreeMap::from([
            ("agents".to_owned(), self.concurrency.to_string()),
            ("kind of latency".to_owned(), self.latency_kind.clone()),
        ]);
        let mut offered = Some(self.theoretical_tps);
        let mut latencies_of = "the whole step";
        match &self.detail {
            None => {
                setting.insert("model".to_owned(), model.to_owned());
            }
            Some(detail) => {
                let value = |value: &serde_json::Value| match value.as_str() {
                    Some(text) => text.to_owned(),
                    None => value.to_string(),
                };
                let workload = detail.workload.iter();
                setting.extend(workload.map(|(key, found)| (key.clone(), value(found))));
                // A step that is to find its rate offers a different one each time.
                offered = setting
                    .remove("offered_tps")
                    .and_then(|text| text.parse().ok());
                if detail.window.latencies_are_steady {
                    latencies_of = "the steady window";
                }
            }
        }
        setting
            .extend(offered.map(|tps| ("offered messages a second".to_owned(), tps.to_string())));
        setting.insert("latencies of".to_owned(), latencies_of.to_owned());
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

/// A percentile of a report, and its place in reports of older builds.
type Older = (Metric, Quantile, fn(&Latencies) -> f64);

/// The percentiles of older builds.
const OLDER: [Older; 3] = [
    (Metric::P50Ms, Quantile::P50, |latency| latency.p50_ms),
    (Metric::P90Ms, Quantile::P90, |latency| latency.p90_ms),
    (Metric::P99Ms, Quantile::P99, |latency| latency.p99_ms),
];

/// A percentile beyond the range of a histogram is as good as infinite: both sides cannot be told apart there.
fn known(percentile: Percentile) -> Result<f64, Missing> {
    match percentile {
        Percentile::Known { ms } => Ok(ms),
        Percentile::Above { .. } | Percentile::Infinite => Ok(f64::INFINITY),
        Percentile::TooFew { .. } => Err(Missing::TooFewSamples),
    }
}
