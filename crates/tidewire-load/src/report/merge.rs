//! One report of several: of runs of the same scenario, or of parts of one run.
//!
//! Counts are added and histograms are added, which is exact; no percentile and no rate is ever averaged. Limits are
//! judged once, on the whole, because each part may keep what all together break, and a p99 of a part may have too few
//! samples to be one. The figures of each run stay beside it, for intervals over runs.

use thiserror::Error;

use super::fan_out::Unheard;
use super::success::Failures;
use super::{
    Cost, Distribution, FanOutShare, LaneCost, MergeKind, ProcessFigures, Report, RunFigures,
    SloReport, Status, StepDetail, StepReport, StepTimes,
};
use crate::ledger::Losses;
use crate::scenario::Pattern;
use crate::statistics::{DecodeError, LatencyHistogram};

/// Why reports cannot be put together.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum MergeError {
    #[error("there is no report to merge; name at least one report")]
    Nothing,
    #[error("report {0} is of another scenario: {1} differs; merge only reports of one scenario")]
    Different(u32, &'static str),
    #[error("the reports are not the parts of one run: {0}; name each part once")]
    Parts(String),
    #[error(
        "a histogram of step {step:?} of report {number} cannot be read: {source}; copy the file again from where it was made"
    )]
    Histogram {
        number: u32,
        step: String,
        source: DecodeError,
    },
}

impl Report {
    /// Puts reports together into one. A single one comes back as it is.
    pub fn merge(reports: &[Self], kind: MergeKind) -> Result<Self, MergeError> {
        let [first, others @ ..] = reports else {
            return Err(MergeError::Nothing);
        };
        if kind == MergeKind::Parts {
            check_parts(reports)?;
        }
        if others.is_empty() {
            return Ok(first.clone());
        }
        for (number, report) in (2..).zip(others) {
            let differs = |what| Err(MergeError::Different(number, what));
            if report.scenario_version != first.scenario_version {
                return differs("the version");
            }
            if report.steps.len() != first.steps.len() {
                return differs("the number of steps");
            }
            if kind == MergeKind::Parts && report.seed != first.seed {
                return differs("the seed");
            }
        }
        let mut steps = Vec::new();
        for index in 0..first.steps.len() {
            steps.push(Parts::of(reports, index, kind)?.merge()?);
        }
        let is_interrupted = |report: &Self| report.status == Status::Interrupted;
        let durations = reports.iter().map(|report| report.total_duration_secs);
        // RFC 3339 in UTC sorts by time.
        let ends = reports.iter().map(|report| &report.end_time_utc);
        let starts = reports.iter().map(|report| &report.start_time_utc);
        Ok(Self {
            status: Status::of(
                reports.iter().any(is_interrupted),
                first.scenario_version,
                &steps,
            ),
            start_time_utc: starts.min().cloned().unwrap_or_default(),
            end_time_utc: ends.max().cloned().unwrap_or_default(),
            total_duration_secs: kind.secs(durations),
            segment: None,
            steps,
            ..first.clone()
        })
    }
}

/// Whether the reports are all parts of a whole, each once.
fn check_parts(reports: &[Report]) -> Result<(), MergeError> {
    let wrong = |what: String| Err(MergeError::Parts(what));
    let mut found = Vec::new();
    for (index, report) in reports.iter().enumerate() {
        let Some(segment) = report.segment else {
            return wrong(format!("report {} is of a whole run", index + 1));
        };
        if segment.parts as usize != reports.len() {
            let (given, parts) = (reports.len(), segment.parts);
            return wrong(format!("{given} were given of {parts}"));
        }
        if found.contains(&segment.part) {
            return wrong(format!("part {segment} was given twice"));
        }
        found.push(segment.part);
    }
    Ok(())
}

/// One step of every report.
struct Parts<'r> {
    all: Vec<Part<'r>>,
    kind: MergeKind,
    /// The deliveries that are left to account for between the parts of a fan-out; zero elsewhere.
    unheard: Unheard,
}

#[derive(Clone, Copy)]
struct Part<'r> {
    /// Number of the report, from 1.
    number: u32,
    step: &'r StepReport,
    detail: &'r StepDetail,
}

impl<'r> Parts<'r> {
    /// The steps at `index`, if they are the same one.
    fn of(reports: &'r [Report], index: usize, kind: MergeKind) -> Result<Self, MergeError> {
        let first = &reports[0].steps[index];
        let mut all: Vec<Part<'r>> = Vec::new();
        for (number, report) in (1..).zip(reports) {
            let step = &report.steps[index];
            let differs = |what| MergeError::Different(number, what);
            if step.step_name != first.step_name || step.concurrency != first.concurrency {
                return Err(differs("a step"));
            }
            let detail = &*step.detail;
            let known = all.first().map_or(detail, |part| part.detail);
            if detail.workload != known.workload || detail.slo.limits != known.slo.limits {
                return Err(differs("what a step does"));
            }
            if detail.fan_out_share.is_some() != known.fan_out_share.is_some() {
                return Err(differs("what its parts say of each other"));
            }
            all.push(Part {
                number,
                step,
                detail,
            });
        }
        let shares: Vec<&FanOutShare> = all
            .iter()
            .filter_map(|part| part.detail.fan_out_share.as_ref())
            .collect();
        Ok(Self {
            unheard: Unheard::of(&shares),
            all,
            kind,
        })
    }

    fn sum(&self, count: impl Fn(&StepReport) -> u64) -> u64 {
        self.all.iter().map(|part| count(part.step)).sum()
    }

    /// The sum of what is known of all parts.
    fn sum_known<T: std::iter::Sum>(&self, count: fn(&StepReport) -> Option<T>) -> Option<T> {
        self.all.iter().map(|part| count(part.step)).sum()
    }

    /// The texts of the runs, each with the number of its run.
    fn told(&self, pick: impl Fn(&Part<'r>) -> &'r Vec<String>) -> Vec<String> {
        let texts = self.all.iter().flat_map(|part| {
            let of_run = |text| format!("run {}: {text}", part.number);
            pick(part).iter().map(of_run).collect::<Vec<String>>()
        });
        texts.collect()
    }

    fn merge(&self) -> Result<StepReport, MergeError> {
        let mut detail = self.detail()?;
        let mut step = self.all[0].step.clone();
        let secs = self.all.iter().map(|part| part.step.test_duration_secs);
        step.test_duration_secs = self.kind.secs(secs);
        step.total_sent = self.sum(|part| part.total_sent);
        step.total_received = self.sum(|part| part.total_received);
        step.total_login_failures = self.sum(|part| part.total_login_failures);
        step.total_send_errors = self.sum(|part| part.total_send_errors);
        self.add_fates(&mut step);
        step.receivers_tracked = self.sum(|part| part.receivers_tracked);
        step.receivers_unresolved = self.sum(|part| part.receivers_unresolved);
        detail.counts.failed_deliveries = self.failed_deliveries(&step);
        step.latency = self.add_up(|times| Some(&times.scheduled))?.0.summary();
        step.latency_send = self.add_up(|times| Some(&times.write))?.0.summary();
        step.client.cpu_secs = self.all.iter().map(|part| part.step.client.cpu_secs).sum();
        step.client.send_lag_p99_ms = detail.times.send_lag.p99.as_ms();
        // Only of a server that every part could observe is the sum that of the whole.
        step.server.cpu_secs = self.sum_known(|part| part.server.cpu_secs);
        let memory = self.all.iter().map(|part| part.step.server.rss_bytes_max);
        step.server.rss_bytes_max = memory.max().flatten();
        step.problems = self.told(|part| &part.step.problems);
        let limits_loss = detail.slo.limits_loss();
        step.problems.extend(self.unheard.problems(limits_loss));
        step.notes = self.told(|part| &part.step.notes);
        step.detail = Box::new(detail);
        step.derive();
        Ok(step)
    }

    /// The deliveries that the failures of all parts cost. An agent that could not log in to a fan-out would have heard
    /// what all parts sent, of which each knows only its own.
    fn failed_deliveries(&self, step: &StepReport) -> u64 {
        let name = &self.all[0].detail.workload.pattern;
        let is_shared = |pattern: &Pattern| {
            pattern.name() == name && pattern.is_fan_out() && self.kind == MergeKind::Parts
        };
        match Pattern::ALL.into_iter().find(is_shared) {
            None => {
                let each = self.all.iter();
                let each = each.map(|part| part.detail.counts.failed_deliveries);
                each.fold(0, u64::saturating_add)
            }
            Some(pattern) => {
                let agents = u64::from(step.concurrency);
                let logged_in = agents.saturating_sub(step.total_login_failures);
                let failures = Failures {
                    pattern,
                    receivers: agents,
                    logged_in,
                    sent: step.total_sent,
                    logins: step.total_login_failures,
                    sends: step.total_send_errors,
                    receivers_unresolved: step.receivers_unresolved,
                };
                failures.deliveries()
            }
        }
    }

    /// The deliveries that were expected, delivered and left unconfirmed.
    fn fates(&self) -> [u64; 3] {
        let unheard = self.unheard;
        let expected = self.sum(|part| part.expected_received);
        let unconfirmed = self.sum(|part| part.unconfirmed);
        [
            expected.saturating_add(unheard.all()),
            self.sum(|part| part.total_received),
            unconfirmed.saturating_add(unheard.unconfirmed),
        ]
    }

    /// Adds the fates of the messages; `step` is the first of the parts.
    fn add_fates(&self, step: &mut StepReport) {
        let unheard = self.unheard;
        [step.expected_received, _, step.unconfirmed] = self.fates();
        step.lost = self.sum(|part| part.lost).saturating_add(unheard.lost);
        // Known of all parts or of none: they ran the same pattern.
        step.duplicated = self.sum_known(|part| part.duplicated);
        step.reordered = self.sum_known(|part| part.reordered);
        step.corrupt = self.sum_known(|part| part.corrupt);
        step.late = self.sum_known(|part| part.late);
        step.foreign = self.sum(|part| part.foreign);
        let invented = self.sum(|part| part.invented);
        step.invented = invented.saturating_add(unheard.invented);
    }

    fn detail(&self) -> Result<StepDetail, MergeError> {
        let details: Vec<&StepDetail> = self.all.iter().map(|part| part.detail).collect();
        let mut merged = details[0].clone();
        for detail in &details[1..] {
            let (most, other) = (merged.counts.in_flight_max, detail.counts.in_flight_max);
            merged.counts.add(&detail.counts);
            merged.counts.in_flight_max = match self.kind {
                MergeKind::Runs => most.max(other),
                MergeKind::Parts => most + other,
            };
            if let (Some(sum), Some(slow)) = (&mut merged.slow_receivers, &detail.slow_receivers) {
                add_fields!(sum, slow; expected delivered lost unconfirmed disconnected);
            }
        }
        let windows = || details.iter().map(|detail| &detail.window);
        merged.window.steady_secs = self.kind.secs(windows().map(|window| window.steady_secs));
        merged.window.stationary = windows()
            .map(|window| window.stationary)
            .reduce(|one, other| Some(one? && other?))
            .unwrap_or_default();
        merged.times = self.times()?;
        merged.cost = merged_cost(&details, self.kind);
        merged.verdict.reasons = self.told(|part| &part.detail.verdict.reasons);
        merged.verdict.disturbances = self.told(|part| &part.detail.verdict.disturbances);
        let figures = merged.times.scheduled.slo_figures(self.fates());
        merged.slo = SloReport::judge(&details[0].slo.limits, &figures);
        merged.fan_out_share = None;
        let series = self.all.iter().flat_map(|part| {
            let run = part.number;
            let seconds = part.detail.series.iter().cloned();
            seconds.map(move |second| super::Second { run, ..second })
        });
        merged.series = series.collect();
        merged.runs = self.all.iter().map(run_figures).collect();
        let worst = details.iter().flat_map(|detail| &detail.worst_receivers);
        merged.worst_receivers = worst.copied().collect();
        merged.processes = ProcessFigures::merge(details.iter().flat_map(|it| &it.processes));
        merged.faults = details.iter().flat_map(|it| it.faults.clone()).collect();
        merged.losses = self.losses(&details);
        merged
            .worst_receivers
            .sort_by_key(|figures| std::cmp::Reverse(figures.amiss()));
        merged.worst_receivers.truncate(WORST_MAX);
        Ok(merged)
    }

    /// The causes of all losses. No part knows the cause of what another part sent and nobody heard.
    fn losses(&self, details: &[&StepDetail]) -> Option<Losses> {
        let unheard = Losses {
            unexplained: self.unheard.lost,
            ..Losses::default()
        };
        let mut all: Vec<Losses> = details.iter().filter_map(|detail| detail.losses).collect();
        all.extend((unheard.unexplained > 0).then_some(unheard));
        all.into_iter().reduce(|mut sum, losses| {
            sum.merge(&losses);
            sum
        })
    }

    fn times(&self) -> Result<StepTimes, MergeError> {
        let known = |pick: fn(&StepTimes) -> Option<&Distribution>| -> Result<_, MergeError> {
            let (histogram, missing) = self.add_up(pick)?;
            let is_any = self
                .all
                .iter()
                .any(|part| pick(&part.detail.times).is_some());
            Ok(is_any.then(|| Distribution::of(&histogram, missing)))
        };
        let required = |pick: fn(&StepTimes) -> Option<&Distribution>| {
            let (histogram, missing) = self.add_up(pick)?;
            Ok(Distribution::of(&histogram, missing))
        };
        Ok(StepTimes {
            scheduled: required(|times| Some(&times.scheduled))?,
            across: known(|times| times.across.as_ref())?,
            service: known(|times| times.service.as_ref())?,
            send_lag: required(|times| Some(&times.send_lag))?,
            client_lag: known(|times| times.client_lag.as_ref())?,
            write: required(|times| Some(&times.write))?,
        })
    }

    /// One distribution of all parts, with how many messages never arrived.
    fn add_up(
        &self,
        pick: fn(&StepTimes) -> Option<&Distribution>,
    ) -> Result<(LatencyHistogram, u64), MergeError> {
        let (mut whole, mut missing) = (LatencyHistogram::new(), 0);
        for part in &self.all {
            let Some(times) = pick(&part.detail.times) else {
                continue;
            };
            let decoded = times.histogram.decode();
            whole.merge(&decoded.map_err(|source| MergeError::Histogram {
                number: part.number,
                step: part.step.step_name.clone(),
                source,
            })?);
            missing += times.missing;
        }
        Ok((whole, missing))
    }
}

fn run_figures(part: &Part<'_>) -> RunFigures {
    let (step, detail) = (part.step, part.detail);
    let scheduled = &detail.times.scheduled;
    RunFigures {
        run: part.number,
        send_tps: step.steady.send_tps,
        receive_tps: step.steady.receive_tps,
        expected: step.expected_received,
        lost: step.lost,
        unconfirmed: step.unconfirmed,
        p50: scheduled.p50,
        p99: scheduled.p99,
        p999: scheduled.p999,
        server_ns_per_message: detail.cost.server_ns_per_message,
        valid: detail.verdict.is_valid(),
        disturbed: detail.verdict.is_disturbed(),
    }
}

/// Shares of time are weighted by time, and costs of a message by messages.
fn merged_cost(details: &[&StepDetail], kind: MergeKind) -> Cost {
    let secs = |detail: &StepDetail| detail.window.steady_secs;
    // All parts share one server, and it cannot say which work it did for which part.
    let servers = match kind {
        MergeKind::Runs => details,
        MergeKind::Parts => &[],
    };
    Cost {
        client_cpu_pct: mean(details, |detail| detail.cost.client_cpu_pct, secs),
        server_cpu_pct: mean(servers, |detail| detail.cost.server_cpu_pct, secs),
        client_ns_per_message: mean(details, |one| one.cost.client_ns_per_message, messages),
        server_ns_per_message: mean(servers, |one| one.cost.server_ns_per_message, messages),
        steal_pct: mean(details, |detail| detail.cost.steal_pct, secs),
        client_lanes: merge_lanes(details, |cost| cost.client_lanes),
        server_lanes: merge_lanes(servers, |cost| cost.server_lanes),
    }
}

fn merge_lanes(details: &[&StepDetail], side: fn(&Cost) -> Option<LaneCost>) -> Option<LaneCost> {
    let mean_of = |figure: fn(&LaneCost) -> Option<f64>| {
        mean(details, |detail| figure(&side(&detail.cost)?), messages)
    };
    Some(LaneCost {
        system_calls_per_message: mean_of(|lanes| Some(lanes.system_calls_per_message))?,
        allocations_per_message: mean_of(|lanes| lanes.allocations_per_message),
        allocated_bytes_per_message: mean_of(|lanes| lanes.allocated_bytes_per_message),
    })
}

fn mean(
    details: &[&StepDetail],
    value: impl Fn(&StepDetail) -> Option<f64>,
    weight: impl Fn(&StepDetail) -> f64,
) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for detail in details {
        sum += value(detail)? * weight(detail);
        weights += weight(detail);
    }
    (weights > 0.0).then(|| sum / weights)
}

fn messages(detail: &StepDetail) -> f64 {
    (detail.counts.steady_sent + detail.counts.steady_received) as f64
}

/// Receivers that the report names.
const WORST_MAX: usize = 10;
