//! The rules between the figures of a report, beyond those that a schema can express.

use thiserror::Error;

use super::{
    LATENCY_KIND_END_TO_END, LATENCY_KIND_NONE, Latency, MODEL_CLOSED, MODEL_MIXED, Report,
    SCHEMA_VERSION, Status, StepDetail, StepReport,
};

impl Report {
    /// Checks that the figures agree with each other. A report that fails this must not be believed.
    ///
    /// # Errors
    /// The first rule that is broken, and where.
    pub fn validate(&self) -> Result<(), ValidateError> {
        let at = |place: String| move |rule| ValidateError { place, rule };
        run(self).map_err(at(String::new()))?;
        for (index, one) in self.steps.iter().enumerate() {
            step(one).map_err(at(format!("steps[{index}]: ")))?;
        }
        let may_pass = self.status != Status::Passed || super::all_pass(&self.steps);
        let rule = "status is passed only when there are steps and each is clean, keeps its limits and is believed";
        holds(may_pass, rule).map_err(at(String::new()))
    }
}

/// A rule between the figures of a report that does not hold: the report was altered, or the instrument has a fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}it is not true that {rule}")]
pub struct ValidateError {
    /// Empty for the whole, or such as `steps[0]: `.
    place: String,
    rule: String,
}

/// The rule that is broken, if one is.
type RuleResult = Result<(), String>;

fn run(report: &Report) -> RuleResult {
    let version = report.schema_version;
    holds(version == SCHEMA_VERSION, "schema_version is this build's")?;
    let models = [MODEL_CLOSED, "open", "max", MODEL_MIXED];
    let is_model = models.contains(&report.model.as_str());
    holds(is_model, "model is a known one")?;
    is_amount(report.total_duration_secs, "total_duration_secs")?;
    let (start, end) = (&report.start_time_utc, &report.end_time_utc);
    holds(start.ends_with('Z'), "start_time_utc is in UTC")?;
    holds(end.ends_with('Z'), "end_time_utc is in UTC")?;
    holds(report.env.cores >= 1, "env.cores is at least 1")
}

fn step(step: &StepReport) -> RuleResult {
    counts(step)?;
    rates(step)?;
    shares(step)?;
    latency(step.latency.as_ref(), "latency")?;
    latency(step.latency_send.as_ref(), "latency_send")?;
    let kinds = [LATENCY_KIND_END_TO_END, LATENCY_KIND_NONE];
    let is_kind = kinds.contains(&step.latency_kind.as_str());
    holds(is_kind, "latency_kind is a known one")?;
    detail(step, &step.detail)?;
    is_amount(step.client.cpu_secs, "client.cpu_secs")?;
    let send_lag_ms = step.client.send_lag_p99_ms.unwrap_or(0.0);
    is_amount(send_lag_ms, "client.send_lag_p99_ms")?;
    is_amount(step.server.cpu_secs.unwrap_or(0.0), "server.cpu_secs")
}

fn counts(step: &StepReport) -> RuleResult {
    let mut missing = [step.lost, step.unconfirmed].into_iter();
    let sum = missing.try_fold(step.total_received, u64::checked_add);
    let rule = "expected_received = total_received + lost + unconfirmed";
    holds(sum == Some(step.expected_received), rule)?;
    let received = Some(step.total_received);
    holds(step.reordered <= received, "reordered ≤ total_received")?;
    holds(step.concurrency >= 1, "concurrency is at least 1")?;
    let answers = step.detail.workload.pattern == "request";
    let missing = if step.allows_loss() {
        0
    } else {
        step.lost_by_mistake() + step.unconfirmed
    };
    let send_errors = match step.detail.faults.is_empty() {
        true => step.total_send_errors,
        false => 0,
    };
    let amiss = [
        missing,
        step.duplicated.unwrap_or(0),
        step.reordered.filter(|_| !answers).unwrap_or(0),
        step.corrupt.unwrap_or(0),
        step.foreign,
        step.invented,
        step.receivers_unresolved,
        step.total_login_failures,
        send_errors,
    ];
    let is_clean = !step.is_clean() || amiss.iter().all(|count| *count == 0);
    let rule = "a step without problems has lost nothing, got nothing wrong and failed at nothing";
    holds(is_clean, rule)
}

fn detail(step: &StepReport, detail: &StepDetail) -> RuleResult {
    if let Some(losses) = &detail.losses {
        let causes = [
            losses.told,
            losses.sender_cut,
            losses.receiver_cut,
            losses.away,
        ];
        let sum = causes
            .iter()
            .fold(losses.unexplained, |sum, cause| sum.saturating_add(*cause));
        let rule = "detail: each lost delivery has one cause";
        holds(sum == step.lost, rule)?;
    }
    let counts = &detail.counts;
    let accounted = step.total_sent + step.total_send_errors + counts.skipped + counts.unsent;
    let rule = "detail: offered = sent + send errors + skipped + unsent";
    holds(counts.offered == accounted, rule)?;
    let allowed = detail.workload.in_flight_allowed.unwrap_or(u64::MAX);
    let rule = "detail: never more unanswered messages than allowed";
    holds(counts.in_flight_max <= allowed, rule)?;
    let scheduled = &detail.times.scheduled;
    let (arrived, missing) = (scheduled.histogram.count, scheduled.missing);
    if detail.window.latencies_are_steady {
        let due = counts.steady_expected.max(arrived);
        let rule = "detail: what was due in the window arrived or is missing";
        holds(arrived + missing == due, rule)?;
    } else if step.invented == 0 && step.receivers_unresolved == 0 {
        let rule = "detail: what was expected has a latency, is lost or is unconfirmed";
        let is_missing = missing == step.lost + step.unconfirmed;
        holds(arrived == step.total_received && is_missing, rule)?;
    }
    let sent: u64 = detail.series.iter().map(|second| second.sent).sum();
    let rule = "detail: the seconds hold no more than was sent";
    holds(sent <= step.total_sent, rule)
}

fn rates(step: &StepReport) -> RuleResult {
    let secs = step.test_duration_secs;
    is_amount(secs, "test_duration_secs")?;
    is_amount(step.theoretical_tps, "theoretical_tps")?;
    is_amount(step.steady.send_tps, "steady.send_tps")?;
    is_amount(step.steady.receive_tps.unwrap_or(0.0), "steady.receive_tps")?;
    is_amount(step.attainment, "attainment")?;
    let counts = [step.total_sent, step.total_received];
    let [sent, received] = counts.map(|count| if secs > 0.0 { count as f64 } else { 0.0 });
    let rule = "send_tps = total_sent / test_duration_secs";
    agrees(step.send_tps * secs, sent, rule)?;
    let rule = "receive_tps = total_received / test_duration_secs";
    agrees(step.receive_tps * secs, received, rule)?;
    if let Some(share) = step.detail.on_time_share() {
        let rule = "detail: no more was sent in time than was due";
        holds(share <= 1.0, rule)?;
        let rule = "attainment = steady_on_time / steady_offered in an open step";
        return agrees(step.attainment, share, rule);
    }
    let rule = "attainment = steady.send_tps / theoretical_tps";
    let attained = step.attainment * step.theoretical_tps;
    agrees(attained, step.steady.send_tps, rule)
}

fn shares(step: &StepReport) -> RuleResult {
    let is_share = |value: f64| (0.0..=1.0).contains(&value);
    let (success, error) = (step.success_rate, step.error_rate);
    holds(is_share(success), "success_rate is from 0 to 1")?;
    holds(is_share(error), "error_rate is from 0 to 1")?;
    agrees(error, 1.0 - success, "error_rate = 1 − success_rate")?;
    let counts = &step.detail.counts;
    if counts.steady_on_time.is_none() && step.total_sent > 0 {
        // An older build; its failures were counted in another way.
        return Ok(());
    }
    let failures = counts.failed_deliveries;
    let failed = step.total_login_failures + step.total_send_errors + step.receivers_unresolved;
    let rule = "failures cost deliveries, and nothing else does";
    holds((failures == 0) == (failed == 0), rule)?;
    let whole = step.lost + step.unconfirmed == 0 && failures == 0;
    let rule = "success_rate is 1.0 only when all expected arrived and nothing failed";
    holds(success < 1.0 || whole, rule)?;
    let rule = "success_rate is 1.0 when all expected arrived and nothing failed";
    holds(success >= 1.0 || !whole || step.total_sent == 0, rule)?;
    let attempted = step.expected_received.saturating_add(failures);
    let rule = "success_rate = total_received / (expected_received + failures)";
    agrees(success * attempted as f64, step.total_received as f64, rule)
}

fn latency(latency: Option<&Latency>, name: &str) -> RuleResult {
    let Some(latency) = latency else {
        return Ok(());
    };
    let ascending = [
        0.0,
        latency.min_ms,
        latency.p50_ms,
        latency.p90_ms,
        latency.p95_ms,
        latency.p99_ms,
        latency.max_ms,
    ];
    let mut amounts = [latency.mean_ms, latency.std_dev_ms, latency.max_ms].into_iter();
    let finite = amounts.all(|value| value.is_finite() && value >= 0.0);
    let mean_inside = latency.min_ms <= latency.mean_ms && latency.mean_ms <= latency.max_ms;
    let rule = format!("{name}: 0 ≤ min ≤ p50 ≤ p90 ≤ p95 ≤ p99 ≤ max and min ≤ mean ≤ max");
    holds(ascending.is_sorted() && finite && mean_inside, &rule)
}

fn is_amount(value: f64, name: &str) -> RuleResult {
    let is_amount = value.is_finite() && value >= 0.0;
    holds(is_amount, &format!("{name} is finite and not negative"))
}

/// Equal but for rounding: these figures went through one division and perhaps through JSON.
fn agrees(value: f64, expected: f64, rule: &str) -> RuleResult {
    let tolerance = expected.abs().max(1.0) * RELATIVE_TOLERANCE;
    holds((value - expected).abs() <= tolerance, rule)
}

fn holds(holds: bool, rule: &str) -> RuleResult {
    if holds { Ok(()) } else { Err(rule.to_owned()) }
}

const RELATIVE_TOLERANCE: f64 = 1e-9;
