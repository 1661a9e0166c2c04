//! One report of several: of runs of the same scenario, or of parts of one run.
//!
//! Counts are added and histograms are added, which is exact; no percentile and no rate is ever averaged. Limits are
//! judged once, on the whole, because each part may keep what all together break, and a p99 of a part may have too few
//! samples to be one. The figures of each run stay beside it, for intervals over runs.

use thiserror::Error;

use super::fan_out::Unheard;
use super::step::rate;
use super::success::{Failures, attainment, success_rate};
use super::{
    Cost, Distribution, FanOutShare, Report, RunFigures, SloReport, Status, StepDetail, StepReport,
    StepTimes,
};
use crate::scenario::Pattern;
use crate::statistics::{DecodeError, LatencyHistogram};

/// The relation of the reports that are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeKind {
    /// Runs one after another: their times add up.
    Runs,
    /// Parts of one run at the same time: their rates add up.
    Parts,
}

/// Why reports cannot be put together.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MergeError {
    /// There is nothing to merge. Name at least one report.
    #[error("there is no report to merge")]
    Nothing,
    /// Reports of different scenarios. Merge only reports of the same file.
    #[error("report {number} is of another scenario: {what} differs")]
    Different {
        /// Which report, from 1.
        number: usize,
        /// The difference.
        what: &'static str,
    },
    /// Parts are missing, doubled, or no parts at all. Merge each part of one run once.
    #[error("the reports are not the parts of one run: {what}")]
    Parts {
        /// The contradiction.
        what: String,
    },
    /// A report of an older build, or of a step that could not be measured, has no histograms. Run it again.
    #[error("step {step:?} of report {number} has no histograms to add")]
    NoDetail {
        /// Which report, from 1.
        number: usize,
        /// The step.
        step: String,
    },
    /// A histogram in a report cannot be read. Take the file from where it was made once more.
    #[error("a histogram of step {step:?} of report {number} cannot be read")]
    Histogram {
        /// Which report, from 1.
        number: usize,
        /// The step.
        step: String,
        /// The error of the decoder.
        source: DecodeError,
    },
}

impl Report {
    /// Puts reports together into one. A single one comes back as it is.
    ///
    /// # Errors
    /// See [`MergeError`].
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
            let differs = |what| Err(MergeError::Different { number, what });
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
            let parts: Vec<&StepReport> =
                reports.iter().map(|report| &report.steps[index]).collect();
            steps.push(merge_steps(&parts, kind)?);
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
            total_duration_secs: match kind {
                MergeKind::Runs => durations.sum(),
                MergeKind::Parts => durations.fold(0.0, f64::max),
            },
            segment: None,
            steps,
            ..first.clone()
        })
    }
}

/// Whether the reports are all parts of a whole, each once.
fn check_parts(reports: &[Report]) -> Result<(), MergeError> {
    let wrong = |what: String| Err(MergeError::Parts { what });
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

fn merge_steps(parts: &[&StepReport], kind: MergeKind) -> Result<StepReport, MergeError> {
    let first = parts[0];
    let mut details = Vec::new();
    for (number, part) in (1..).zip(parts) {
        if part.step_name != first.step_name || part.concurrency != first.concurrency {
            let what = "a step";
            return Err(MergeError::Different { number, what });
        }
        let Some(detail) = part.detail.as_deref() else {
            let step = part.step_name.clone();
            return Err(MergeError::NoDetail { number, step });
        };
        details.push(detail);
    }
    let unheard = unheard(&details)?;
    let mut detail = merge_details(parts, &details, kind, unheard)?;
    let sum = |count: fn(&StepReport) -> u64| parts.iter().map(|part| count(part)).sum::<u64>();
    let durations = parts.iter().map(|part| part.test_duration_secs);
    let secs = match kind {
        MergeKind::Runs => durations.sum(),
        MergeKind::Parts => durations.fold(0.0, f64::max),
    };
    let steady_secs = detail.window.steady_secs;
    let mut step = first.clone();
    step.test_duration_secs = secs;
    step.total_sent = sum(|part| part.total_sent);
    step.total_received = sum(|part| part.total_received);
    step.send_tps = rate(step.total_sent, secs);
    step.receive_tps = rate(step.total_received, secs);
    step.total_login_failures = sum(|part| part.total_login_failures);
    step.total_send_errors = sum(|part| part.total_send_errors);
    add_fates(&mut step, parts, unheard);
    step.receivers_tracked = sum(|part| part.receivers_tracked);
    step.receivers_unresolved = sum(|part| part.receivers_unresolved);
    step.steady.send_tps = rate(detail.counts.steady_sent, steady_secs);
    step.steady.receive_tps = rate(detail.counts.steady_received, steady_secs);
    step.theoretical_tps = match detail.workload.model.as_str() {
        "open" => rate(detail.counts.steady_offered, steady_secs),
        _ => detail.workload.offered_tps.unwrap_or(step.steady.send_tps),
    };
    step.attainment = attainment(Some(&detail), step.steady.send_tps, step.theoretical_tps);
    let failures = failed_deliveries(&step, &details, kind);
    detail.counts.failed_deliveries = failures;
    let (received, expected) = (step.total_received, step.expected_received);
    step.success_rate = success_rate(step.total_sent, received, expected, failures);
    step.error_rate = 1.0 - step.success_rate;
    let mut latencies = [LatencyHistogram::new(), LatencyHistogram::new()];
    for (number, (part, detail)) in (1..).zip(parts.iter().zip(&details)) {
        let read = |times: &Distribution| decode(times, number, part);
        latencies[0].merge(&read(&detail.times.scheduled)?);
        latencies[1].merge(&read(&detail.times.write)?);
    }
    [step.latency, step.latency_send] = latencies.map(|latency| latency.summary());
    merge_usage(&mut step, parts);
    step.client.send_lag_p99_ms = detail.times.send_lag.p99.as_ms();
    step.problems = told(parts, |part| &part.problems);
    let limits_loss = detail.slo.limits_loss();
    step.problems.extend(unheard.problems(limits_loss));
    step.notes = told(parts, |part| &part.notes);
    step.detail = Some(Box::new(detail));
    Ok(step)
}

/// The deliveries that the failures of all parts cost. An agent that could not log in to a fan-out would have heard what
/// all parts sent, of which each knows only its own.
fn failed_deliveries(step: &StepReport, details: &[&StepDetail], kind: MergeKind) -> u64 {
    let sum = details.iter().map(|detail| detail.counts.failed_deliveries);
    let is_shared = |pattern: &Pattern| {
        let is_this = pattern.name() == details[0].workload.pattern;
        is_this && pattern.is_fan_out() && kind == MergeKind::Parts
    };
    match Pattern::ALL.into_iter().find(is_shared) {
        None => sum.fold(0, u64::saturating_add),
        Some(pattern) => Failures {
            pattern,
            receivers: u64::from(step.concurrency),
            logged_in: u64::from(step.concurrency).saturating_sub(step.total_login_failures),
            sent: step.total_sent,
            logins: step.total_login_failures,
            sends: step.total_send_errors,
            receivers_unresolved: step.receivers_unresolved,
        }
        .deliveries(),
    }
}

/// Adds the fates of the messages; `step` is the first of the parts.
fn add_fates(step: &mut StepReport, parts: &[&StepReport], unheard: Unheard) {
    let sum = |count: fn(&StepReport) -> u64| parts.iter().map(|part| count(part)).sum::<u64>();
    step.expected_received = sum(|part| part.expected_received).saturating_add(unheard.all());
    step.lost = sum(|part| part.lost).saturating_add(unheard.lost);
    step.unconfirmed = sum(|part| part.unconfirmed).saturating_add(unheard.unconfirmed);
    // Known of all parts or of none: they ran the same pattern.
    let seen = |count: fn(&StepReport) -> Option<u64>| parts.iter().map(|part| count(part)).sum();
    step.duplicated = seen(|part| part.duplicated);
    step.reordered = seen(|part| part.reordered);
    step.corrupt = seen(|part| part.corrupt);
    step.late = seen(|part| part.late);
    step.foreign = sum(|part| part.foreign);
    step.invented = sum(|part| part.invented).saturating_add(unheard.invented);
}

fn merge_usage(step: &mut StepReport, parts: &[&StepReport]) {
    step.client.cpu_secs = parts.iter().map(|part| part.client.cpu_secs).sum();
    // Only of a server that every part could observe is the sum that of the whole.
    step.server.cpu_secs = parts.iter().map(|part| part.server.cpu_secs).sum();
    step.server.rss_bytes_max = parts
        .iter()
        .filter_map(|part| part.server.rss_bytes_max)
        .max();
}

/// The deliveries that are left to account for between the parts of a fan-out; zero elsewhere.
fn unheard(details: &[&StepDetail]) -> Result<Unheard, MergeError> {
    let shares: Vec<&FanOutShare> = details
        .iter()
        .filter_map(|detail| detail.fan_out_share.as_ref())
        .collect();
    if !shares.is_empty() && shares.len() < details.len() {
        let (number, what) = (1, "what its parts say of each other");
        return Err(MergeError::Different { number, what });
    }
    Ok(Unheard::of(&shares))
}

fn merge_details(
    parts: &[&StepReport],
    details: &[&StepDetail],
    kind: MergeKind,
    unheard: Unheard,
) -> Result<StepDetail, MergeError> {
    let first = details[0];
    let mut merged = first.clone();
    for (number, detail) in (1..).zip(details) {
        if detail.workload != first.workload || detail.slo.limits != first.slo.limits {
            let what = "what a step does";
            return Err(MergeError::Different { number, what });
        }
    }
    merged.counts = details
        .iter()
        .skip(1)
        .fold(first.counts, |mut sum, detail| {
            sum.add(&detail.counts, kind);
            sum
        });
    let steady = details.iter().map(|detail| detail.window.steady_secs);
    merged.window.steady_secs = match kind {
        MergeKind::Runs => steady.sum(),
        MergeKind::Parts => steady.fold(0.0, f64::max),
    };
    let told = details.iter().map(|detail| detail.window.stationary);
    merged.window.stationary = told
        .reduce(|one, other| Some(one? && other?))
        .unwrap_or_default();
    merged.times = merge_times(parts, details)?;
    merged.cost = Cost::merge(details, kind);
    merged.verdict.reasons = told_of(details, |detail| &detail.verdict.reasons);
    let sum = |count: fn(&StepReport) -> u64| parts.iter().map(|part| count(part)).sum::<u64>();
    let figures = merged.times.scheduled.slo_figures([
        sum(|part| part.expected_received).saturating_add(unheard.all()),
        sum(|part| part.total_received),
        sum(|part| part.unconfirmed).saturating_add(unheard.unconfirmed),
    ]);
    merged.slo = SloReport::judge(&first.slo.limits, &figures);
    merged.fan_out_share = None;
    merged.series.clear();
    merged.worst_receivers.clear();
    merged.runs.clear();
    for (run, (part, detail)) in (1..).zip(parts.iter().zip(details)) {
        let seconds = detail.series.iter().cloned();
        merged
            .series
            .extend(seconds.map(|second| super::Second { run, ..second }));
        merged.worst_receivers.extend(&detail.worst_receivers);
        merged.runs.push(run_figures(run, part, detail));
        if let (Some(sum), Some(slow), true) =
            (&mut merged.slow_receivers, &detail.slow_receivers, run > 1)
        {
            sum.expected += slow.expected;
            sum.delivered += slow.delivered;
            sum.lost += slow.lost;
            sum.unconfirmed += slow.unconfirmed;
            sum.disconnected += slow.disconnected;
        }
    }
    merged
        .worst_receivers
        .sort_by_key(|figures| std::cmp::Reverse(figures.amiss()));
    merged.worst_receivers.truncate(WORST_MAX);
    Ok(merged)
}

fn merge_times(parts: &[&StepReport], details: &[&StepDetail]) -> Result<StepTimes, MergeError> {
    let add = |pick: fn(&StepTimes) -> Option<&Distribution>| -> Result<_, MergeError> {
        let (mut whole, mut missing, mut any) = (LatencyHistogram::new(), 0, false);
        for (number, (part, detail)) in (1..).zip(parts.iter().zip(details)) {
            if let Some(times) = pick(&detail.times) {
                whole.merge(&decode(times, number, part)?);
                missing += times.missing;
                any = true;
            }
        }
        Ok((any, Distribution::of(&whole, missing)))
    };
    let optional = |(any, distribution): (bool, Distribution)| any.then_some(distribution);
    Ok(StepTimes {
        scheduled: add(|times| Some(&times.scheduled))?.1,
        service: optional(add(|times| times.service.as_ref())?),
        send_lag: add(|times| Some(&times.send_lag))?.1,
        client_lag: optional(add(|times| times.client_lag.as_ref())?),
        write: add(|times| Some(&times.write))?.1,
    })
}

pub(super) fn run_figures(run: u32, step: &StepReport, detail: &StepDetail) -> RunFigures {
    let scheduled = &detail.times.scheduled;
    RunFigures {
        run,
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
    }
}

impl super::WorkCounts {
    fn add(&mut self, other: &Self, kind: MergeKind) {
        self.offered += other.offered;
        self.skipped += other.skipped;
        self.unsent += other.unsent;
        self.timeouts += other.timeouts;
        self.late_replies += other.late_replies;
        self.refused += other.refused;
        self.in_flight_max = match kind {
            MergeKind::Runs => self.in_flight_max.max(other.in_flight_max),
            MergeKind::Parts => self.in_flight_max + other.in_flight_max,
        };
        self.sent_unknown += other.sent_unknown;
        self.failed_deliveries += other.failed_deliveries;
        self.steady_offered += other.steady_offered;
        self.steady_on_time = self
            .steady_on_time
            .zip(other.steady_on_time)
            .map(|(one, other)| one + other);
        self.steady_expected += other.steady_expected;
        self.steady_sent += other.steady_sent;
        self.steady_received += other.steady_received;
    }
}

fn decode(
    times: &Distribution,
    number: usize,
    step: &StepReport,
) -> Result<LatencyHistogram, MergeError> {
    times
        .histogram
        .decode()
        .map_err(|source| MergeError::Histogram {
            number,
            step: step.step_name.clone(),
            source,
        })
}

/// The texts of the runs, each with the number of its run.
fn told(parts: &[&StepReport], pick: fn(&StepReport) -> &Vec<String>) -> Vec<String> {
    let texts = (1..).zip(parts);
    texts
        .flat_map(|(run, part)| {
            pick(part)
                .iter()
                .map(move |text| format!("run {run}: {text}"))
        })
        .collect()
}

fn told_of(details: &[&StepDetail], pick: fn(&StepDetail) -> &Vec<String>) -> Vec<String> {
    let texts = (1..).zip(details);
    texts
        .flat_map(|(run, part)| {
            pick(part)
                .iter()
                .map(move |text| format!("run {run}: {text}"))
        })
        .collect()
}

/// Receivers that the report names.
const WORST_MAX: usize = 10;
