//! The runs of a report.
//!
//! The two sides of a comparison are often two versions of the instrument: keys that this version does not know are
//! ignored, so that it reads reports of newer versions. A report may hold several runs of a step; each of them
//! is a run here. A report that was merged from parts holds the figures of the parts at the same keys, but it is one
//! run: the rates of parts add up to the rate of the whole.

use std::collections::BTreeMap;

use super::Metric;
use super::metric::{Figures, NoFigure};
use super::run::{Machine, Run, StepRun};
use crate::report::{Report, RunFigures, StepReport};
use crate::statistics::Percentile;

/// The runs of a report, one unless it was merged from several.
pub(super) fn runs(report: &Report) -> Vec<Run> {
    let most = report.steps.iter().map(|step| repeats(step).len()).max();
    let run = |index| Run {
        env: Machine::of(&report.env),
        steps: report
            .steps
            .iter()
            .filter_map(|step| step_run(step, index))
            .collect(),
    };
    (0..most.unwrap_or(1).max(1)).map(run).collect()
}

/// The runs of a step that were put together one after another, if there are several.
fn repeats(step: &StepReport) -> &[RunFigures] {
    let runs = &step.detail.runs;
    let sum: f64 = runs.iter().map(|run| run.send_tps).sum();
    // Two runs come to twice the rate of the whole, any number of parts to once that.
    match sum > step.steady.send_tps * 1.5 {
        true => runs,
        false => &[],
    }
}

/// The step of one run; nothing when there are fewer.
fn step_run(step: &StepReport, index: usize) -> Option<StepRun> {
    let (repeats, verdict) = (repeats(step), &step.detail.verdict);
    // The first reason not to believe the measurement, if that is to have consequences.
    let invalid = verdict.reasons.first().filter(|_| verdict.enforced);
    let (figures, invalid) = match repeats.get(index) {
        Some(run) => (run_figures(run), invalid.filter(|_| !run.valid)),
        None if index == 0 => (step_figures(step), invalid),
        None => return None,
    };
    // A merged verdict has the disturbances of all runs.
    let disturbances = match repeats.get(index) {
        Some(run) if !run.disturbed => &[][..],
        _ => &verdict.disturbances[..],
    };
    Some(StepRun {
        step_name: step.step_name.clone(),
        concurrency: step.concurrency,
        secs: step.test_duration_secs / repeats.len().max(1) as f64,
        setting: setting(step),
        figures,
        invalid: invalid.cloned(),
        problems: [&step.problems[..], disturbances].concat(),
    })
}

fn step_figures(step: &StepReport) -> Figures {
    let (times, cost) = (&step.detail.times.scheduled, &step.detail.cost);
    let memory = step.server.rss_bytes_max.map(|bytes| bytes as f64);
    let mut figures = measured([
        (Metric::SendTps, Some(step.steady.send_tps)),
        (Metric::ReceiveTps, step.steady.receive_tps),
        (
            Metric::LossPct,
            share_pct(step.lost, step.expected_received),
        ),
        (
            Metric::UnconfirmedPct,
            share_pct(step.unconfirmed, step.expected_received),
        ),
        (Metric::ServerCpuNs, cost.server_ns_per_message),
        (Metric::ClientCpuNs, cost.client_ns_per_message),
        (Metric::ServerMemoryBytes, memory),
    ]);
    figures.extend([
        (Metric::P50Ms, known(times.p50)),
        (Metric::P90Ms, known(times.p90)),
        (Metric::P99Ms, known(times.p99)),
        (Metric::P999Ms, known(times.p999)),
    ]);
    figures
}

fn run_figures(run: &RunFigures) -> Figures {
    let mut figures = measured([
        (Metric::SendTps, Some(run.send_tps)),
        (Metric::ReceiveTps, run.receive_tps),
        (Metric::LossPct, share_pct(run.lost, run.expected)),
        (
            Metric::UnconfirmedPct,
            share_pct(run.unconfirmed, run.expected),
        ),
        (Metric::ServerCpuNs, run.server_ns_per_message),
    ]);
    figures.extend([
        (Metric::P50Ms, known(run.p50)),
        (Metric::P99Ms, known(run.p99)),
        (Metric::P999Ms, known(run.p999)),
    ]);
    figures
}

/// The settings of a step, for comparison key by key.
fn setting(step: &StepReport) -> BTreeMap<String, String> {
    // Maps of texts can be expressed as JSON.
    let workload = serde_json::to_value(&step.detail.workload).unwrap_or_default();
    let keys = workload.as_object().into_iter().flatten();
    let text = |value: &serde_json::Value| match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    };
    let mut setting: BTreeMap<String, String> = keys
        .map(|(key, found)| (key.clone(), text(found)))
        .collect();
    // A step that is to find its rate offers a different one each time.
    let offered = setting.remove("offered_tps");
    setting.extend(offered.map(|tps| ("offered messages a second".to_owned(), tps)));
    let latencies_of = match step.detail.window.latencies_are_steady {
        true => "the steady window",
        false => "the whole step",
    };
    setting.extend([
        ("agents".to_owned(), step.concurrency.to_string()),
        ("kind of latency".to_owned(), step.latency_kind.clone()),
        ("latencies of".to_owned(), latencies_of.to_owned()),
    ]);
    setting
}

fn share_pct(count: u64, expected: u64) -> Option<f64> {
    (expected > 0).then(|| count as f64 / expected as f64 * 100.0)
}

fn measured<const COUNT: usize>(figures: [(Metric, Option<f64>); COUNT]) -> Figures {
    let known = figures.into_iter();
    let known = known.map(|(metric, figure)| (metric, figure.ok_or(NoFigure::NotMeasured)));
    known.collect()
}

/// A percentile beyond the range of a histogram is as good as infinite: both sides cannot be told apart there.
fn known(percentile: Percentile) -> Result<f64, NoFigure> {
    match percentile {
        Percentile::Known { ms } => Ok(ms),
        Percentile::Above { .. } | Percentile::Infinite => Ok(f64::INFINITY),
        Percentile::TooFew { .. } => Err(NoFigure::TooFewSamples),
    }
}
