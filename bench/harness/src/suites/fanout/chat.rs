//! The two steps of the chat test that the project started from: agents in one room, each of whom hears all others.

use tidewire::{Chat, Endpoint};
use tidewire_load::plan::{Plan, RunOptions};
use tidewire_load::report::StepReport;
use tidewire_load::run::Silent;
use tidewire_load::scenario::{Scenario, Step};

use super::SUITE;
use crate::contract::{Measured, Work};
use crate::plan::{Metric, RoleError, RowPlan};
use crate::stage::{OrFailed, Stage};

/// The mode of these rows.
pub(super) const MODE: &str = "chat";

/// Agents of each step, and messages a second that they offer together.
pub(super) const STEPS: [(usize, f64); 2] = [(50, 200.0 / 3.0), (500, 4_000.0)];

pub(super) fn row((connections, rate_per_sec): (usize, f64), quick: bool) -> RowPlan {
    let work = Work {
        mode: MODE.to_owned(),
        connections,
        rate_per_sec,
        measure_ms: if quick { MEASURE_MS_MIN } else { 8_000 },
        ..super::super::work(&SUITE, "tcp", "tw1")
    };
    let id = format!("chat of {connections}, the seed's step");
    let row = RowPlan::new(id, work, Metric::DELIVERIES);
    RowPlan {
        measure_ms_min: MEASURE_MS_MIN,
        ..row.with_limit(None).with_peers(None)
    }
}

/// Each of 50 agents says something every three quarters of a second, and a part of the window is for warming up.
const MEASURE_MS_MIN: u64 = 3_000;

pub(super) fn serve(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    super::super::serve_ours(&super::super::start_server(work, Chat::new)?, stage)
}

/// Runs the step. The load test has windows of its own; what it says of the processor is of the whole step, as the
/// number of messages is.
pub(super) fn drive(endpoint: Endpoint, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let scenario = scenario(work)?;
    stage.started()?;
    let plan = Plan::new(&scenario, RunOptions::new(vec![endpoint]));
    let plan = plan.or_failed("plan the load test")?;
    let facts = plan.run(&mut Silent).or_failed("run the load test")?;
    let report = facts.judge();
    let interrupted = || RoleError::Unsupported("the load test was interrupted".to_owned());
    stage.measured(measured(report.steps.first().ok_or_else(interrupted)?))
}

/// The built-in step with so many agents, as long as the work wants it.
fn scenario(work: &Work) -> Result<Scenario, RoleError> {
    let mut scenario = Scenario::built_in();
    let is_wanted = |step: &Step| step.concurrency as usize == work.connections;
    scenario.steps.retain(is_wanted);
    if scenario.steps.is_empty() {
        let text = format!("the chat test has no step of {} agents", work.connections);
        return Err(RoleError::Unsupported(text));
    }
    for step in &mut scenario.steps {
        step.duration_secs = work.measure_ms as f64 / 1e3;
    }
    Ok(scenario)
}

fn measured(step: &StepReport) -> Measured {
    let latency = step.detail.times.scheduled.histogram.decode().ok();
    // The steady rate, which is not diluted by coming and going.
    let seconds = step.total_received as f64
        / step
            .steady
            .receive_tps
            .unwrap_or(0.0)
            .max(f64::MIN_POSITIVE);
    let disordered = step.duplicated.unwrap_or(0) + step.reordered.unwrap_or(0);
    let lost = step.lost + disordered + step.total_send_errors;
    let measured = Measured {
        verified: step.receivers_unresolved == 0 && step.corrupt == Some(0),
        ..Measured::verified(step.total_received, seconds, lost)
    };
    let measured = match &latency {
        Some(latency) => measured.with_times(latency),
        None => measured,
    };
    measured
        .with_figure("send_per_sec", step.steady.send_tps)
        .with_figure("attainment", step.attainment)
}
