//! The rules between the figures of a report, beyond those that a schema can express.

use thiserror::Error;

use super::success::Failures;
use super::{
    LATENCY_KIND_END_TO_END, LATENCY_KIND_NONE, Latency, MODEL_CLOSED, MODEL_MIXED, Report,
    SCHEMA_VERSION, Status, StepDetail, StepReport,
};
use crate::scenario::Pattern;

impl Report {
    /// Checks that the figures agree with each other. A report that fails this must not be believed.
    ///
    /// # Errors
    /// The first rule that is broken, and where.
    pub fn validate(&self) -> Result<(), ValidateError> {
        let check = Check {
            place: String::new(),
        };
        check.holds(
            self.schema_version == SCHEMA_VERSION,
            "schema_version is this build's",
        )?;
        let models = [MODEL_CLOSED, "open", "max", MODEL_MIXED];
        check.holds(
            models.contains(&self.model.as_str()),
            "model is a known one",
        )?;
        check.is_amount(self.total_duration_secs, "total_duration_secs")?;
        check.holds(
            self.start_time_utc.ends_with('Z'),
            "start_time_utc is in UTC",
        )?;
        check.holds(self.end_time_utc.ends_with('Z'), "end_time_utc is in UTC")?;
        check.holds(self.env.cores >= 1, "env.cores is at least 1")?;
        for (index, step) in self.steps.iter().enumerate() {
            Check {
                place: format!("steps[{index}]: "),
            }
            .step(step)?;
        }
        check.holds(
            self.status != Status::Passed || super::all_pass(&self.steps),
            "status is passed only when there are steps and each is clean, keeps its limits and is believed",
        )
    }
}

/// A rule between the figures of a report that does not hold: the report was altered, or the instrument has a fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}{rule}: this does not hold")]
pub struct ValidateError {
    /// Empty for the whole, or such as `steps[0]: `.
    place: String,
    rule: String,
}

struct Check {
    place: String,
}

impl Check {
    fn step(&self, step: &StepReport) -> Result<(), ValidateError> {
        self.counts(step)?;
        self.rates(step)?;
        self.shares(step)?;
        self.latency(step.latency.as_ref(), "latency")?;
        self.latency(step.latency_send.as_ref(), "latency_send")?;
        self.holds(
            [LATENCY_KIND_END_TO_END, LATENCY_KIND_NONE].contains(&step.latency_kind.as_str()),
            "latency_kind is a known one",
        )?;
        if let Some(detail) = &step.detail {
            self.detail(step, detail)?;
        }
        self.is_amount(step.client.cpu_secs, "client.cpu_secs")?;
        let send_lag_ms = step.client.send_lag_p99_ms.unwrap_or(0.0);
        self.is_amount(send_lag_ms, "client.send_lag_p99_ms")?;
        self.is_amount(step.server.cpu_secs.unwrap_or(0.0), "server.cpu_secs")
    }

    fn counts(&self, step: &StepReport) -> Result<(), ValidateError> {
        self.holds(
            [step.lost, step.unconfirmed]
                .into_iter()
                .try_fold(step.total_received, u64::checked_add)
                == Some(step.expected_received),
            "expected_received = total_received + lost + unconfirmed",
        )?;
        self.holds(
            step.reordered <= Some(step.total_received),
            "reordered ≤ total_received",
        )?;
        self.holds(step.concurrency >= 1, "concurrency is at least 1")?;
        let detail = step.detail.as_ref();
        let answers = detail.is_some_and(|detail| detail.workload.pattern == "request");
        let missing = if step.allows_loss() {
            0
        } else {
            step.lost + step.unconfirmed
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
            step.total_send_errors,
        ];
        self.holds(
            !step.is_clean() || amiss.iter().all(|count| *count == 0),
            "a step without problems has lost nothing, got nothing wrong and failed at nothing",
        )
    }

    fn detail(&self, step: &StepReport, detail: &StepDetail) -> Result<(), ValidateError> {
        let counts = &detail.counts;
        let accounted = step.total_sent + step.total_send_errors + counts.skipped + counts.unsent;
        self.holds(
            counts.offered == accounted,
            "detail: offered = sent + send errors + skipped + unsent",
        )?;
        if let Some(allowed) = detail.workload.in_flight_allowed {
            self.holds(
                counts.in_flight_max <= allowed,
                "detail: never more unanswered messages than allowed",
            )?;
        }
        let scheduled = &detail.times.scheduled;
        if detail.window.latencies_are_steady {
            self.holds(
                scheduled.histogram.count + scheduled.missing
                    == counts.steady_expected.max(scheduled.histogram.count),
                "detail: what was due in the window arrived or is missing",
            )?;
        } else if step.invented == 0 && step.receivers_unresolved == 0 {
            self.holds(
                scheduled.histogram.count == step.total_received
                    && scheduled.missing == step.lost + step.unconfirmed,
                "detail: what was expected has a latency, is lost or is unconfirmed",
            )?;
        }
        let sent: u64 = detail.series.iter().map(|second| second.sent).sum();
        self.holds(
            sent <= step.total_sent,
            "detail: the seconds hold no more than was sent",
        )
    }

    fn rates(&self, step: &StepReport) -> Result<(), ValidateError> {
        let secs = step.test_duration_secs;
        self.is_amount(secs, "test_duration_secs")?;
        self.is_amount(step.theoretical_tps, "theoretical_tps")?;
        self.is_amount(step.steady.send_tps, "steady.send_tps")?;
        self.is_amount(step.steady.receive_tps, "steady.receive_tps")?;
        self.is_amount(step.attainment, "attainment")?;
        let counts = [step.total_sent, step.total_received];
        let [sent, received] = counts.map(|count| if secs > 0.0 { count as f64 } else { 0.0 });
        let rule = "send_tps = total_sent / test_duration_secs";
        self.agrees(step.send_tps * secs, sent, rule)?;
        let rule = "receive_tps = total_received / test_duration_secs";
        self.agrees(step.receive_tps * secs, received, rule)?;
        let counts = step.detail.as_ref().filter(|detail| detail.is_open());
        if let Some(share) = counts.and_then(|detail| detail.counts.steady_on_time_share()) {
            self.holds(
                share <= 1.0,
                "detail: no more was sent in time than was due",
            )?;
            return self.agrees(
                step.attainment,
                share,
                "attainment = steady_on_time / steady_offered in an open step",
            );
        }
        self.agrees(
            step.attainment * step.theoretical_tps,
            step.steady.send_tps,
            "attainment = steady.send_tps / theoretical_tps",
        )
    }

    fn shares(&self, step: &StepReport) -> Result<(), ValidateError> {
        let is_share = |value: f64| (0.0..=1.0).contains(&value);
        let (success, error) = (step.success_rate, step.error_rate);
        self.holds(is_share(success), "success_rate is from 0 to 1")?;
        self.holds(is_share(error), "error_rate is from 0 to 1")?;
        self.agrees(error, 1.0 - success, "error_rate = 1 − success_rate")?;
        let failures = match &step.detail {
            Some(detail) if detail.counts.steady_on_time.is_some() => {
                detail.counts.failed_deliveries
            }
            // An older build; its failures were counted in another way.
            Some(_) => return Ok(()),
            None => Failures {
                pattern: Pattern::Chat,
                receivers: u64::from(step.concurrency),
                logged_in: u64::from(step.concurrency),
                sent: step.total_sent,
                logins: step.total_login_failures,
                sends: step.total_send_errors,
                receivers_unresolved: step.receivers_unresolved,
            }
            .deliveries(),
        };
        let failed = step.total_login_failures + step.total_send_errors + step.receivers_unresolved;
        self.holds(
            (failures == 0) == (failed == 0),
            "failures cost deliveries, and nothing else does",
        )?;
        let whole = step.lost + step.unconfirmed == 0 && failures == 0;
        self.holds(
            step.success_rate < 1.0 || whole,
            "success_rate is 1.0 only when all expected arrived and nothing failed",
        )?;
        self.holds(
            step.success_rate >= 1.0 || !whole || step.total_sent == 0,
            "success_rate is 1.0 when all expected arrived and nothing failed",
        )?;
        let attempted = step.expected_received.saturating_add(failures);
        self.agrees(
            step.success_rate * attempted as f64,
            step.total_received as f64,
            "success_rate = total_received / (expected_received + failures)",
        )
    }

    fn latency(&self, latency: Option<&Latency>, name: &str) -> Result<(), ValidateError> {
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
        self.holds(
            ascending.is_sorted() && finite && mean_inside,
            &format!("{name}: 0 ≤ min ≤ p50 ≤ p90 ≤ p95 ≤ p99 ≤ max and min ≤ mean ≤ max"),
        )
    }

    fn is_amount(&self, value: f64, name: &str) -> Result<(), ValidateError> {
        let is_amount = value.is_finite() && value >= 0.0;
        self.holds(is_amount, &format!("{name} is finite and not negative"))
    }

    /// Equal but for rounding: these figures went through one division and perhaps through JSON.
    fn agrees(&self, value: f64, expected: f64, rule: &str) -> Result<(), ValidateError> {
        let tolerance = expected.abs().max(1.0) * RELATIVE_TOLERANCE;
        self.holds((value - expected).abs() <= tolerance, rule)
    }

    fn holds(&self, holds: bool, rule: &str) -> Result<(), ValidateError> {
        if holds {
            return Ok(());
        }
        Err(ValidateError {
            place: self.place.clone(),
            rule: rule.to_owned(),
        })
    }
}

const RELATIVE_TOLERANCE: f64 = 1e-9;
