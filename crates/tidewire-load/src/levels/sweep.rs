//! A step with more and more agents, and the law of how its throughput grows.

use serde::Serialize;

use crate::environment::Environment;
use crate::report::{Conclusion, Report, StepReport};
use crate::scenario::{Pattern, Step};
use crate::statistics::{Bootstrap, Percentile, ScalabilityFit, ScalePoint};

/// The result of a run with one number of agents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepLevel {
    /// Agents.
    pub concurrency: u32,
    /// Number of the run within its level, from 1.
    pub run: u32,
    /// Messages a second in the steady window that reached everybody they were for; in an ingest, that were sent.
    pub throughput: f64,
    /// Median of the scheduled latency.
    pub p50: Percentile,
    /// 99th percentile of the same.
    pub p99: Percentile,
    /// The conclusion of the run.
    pub conclusion: Conclusion,
    /// The doubts about the measurement, enforced or not.
    pub verdict_reasons: Vec<String>,
    /// Signs of a busy machine, which made the times longer.
    pub disturbances: Vec<String>,
}

impl SweepLevel {
    /// The figures of a run of `step` alone; nothing when it could not be measured.
    pub fn of(step: &Step, run: u32, report: &Report) -> Option<Self> {
        let found = report.steps.first()?;
        let detail = &found.detail;
        Some(Self {
            concurrency: step.concurrency,
            run,
            throughput: throughput(step, found),
            p50: detail.times.scheduled.p50,
            p99: detail.times.scheduled.p99,
            conclusion: report.conclusion(),
            verdict_reasons: detail.verdict.reasons.clone(),
            disturbances: detail.verdict.disturbances.clone(),
        })
    }
}

/// A sweep with its fit; the content of `sweep.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Sweep {
    /// Version of this layout.
    pub schema_version: u32,
    /// Address of the server, or of the last of them.
    pub target_server: String,
    /// Name of the step.
    pub step: String,
    /// The pattern of the messages.
    pub pattern: &'static str,
    /// `closed` or `max`.
    pub model: &'static str,
    /// Seed of every run.
    pub seed: u64,
    /// Every run, in order.
    pub levels: Vec<SweepLevel>,
    /// The Universal Scalability Law through them.
    pub fit: Option<ScalabilityFit>,
    /// Why there is no fit.
    pub no_fit: Option<String>,
    /// Machine and build.
    pub env: Environment,
}

impl Sweep {
    /// A sweep of `step` that has not begun.
    pub fn new(step: &Step, seed: u64, env: Environment) -> Self {
        Self {
            schema_version: SWEEP_SCHEMA_VERSION,
            target_server: String::new(),
            step: step.name.clone(),
            pattern: step.pattern.name(),
            model: step.load.model(),
            seed,
            levels: Vec::new(),
            fit: None,
            no_fit: None,
            env,
        }
    }

    /// Fits the law through all levels.
    pub fn close(&mut self) {
        let points: Vec<ScalePoint> = self
            .levels
            .iter()
            .map(|level| ScalePoint {
                concurrency: f64::from(level.concurrency),
                throughput: level.throughput,
            })
            .collect();
        match ScalabilityFit::of(&points, Bootstrap::default()) {
            Ok(fit) => self.fit = Some(fit),
            Err(error) => self.no_fit = Some(error.to_string()),
        }
    }
}

/// The units of work per second. A unit must not grow with the agents, so deliveries of a fan-out are divided by the
/// receivers of each message.
fn throughput(step: &Step, found: &StepReport) -> f64 {
    if step.pattern == Pattern::Ingest {
        return found.steady.send_tps;
    }
    let owed = step.pattern.receivers(u64::from(step.senders()));
    found.steady.receive_tps.unwrap_or(0.0) / owed.max(1) as f64
}

/// Version of the layout of `sweep.json`.
const SWEEP_SCHEMA_VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::ThinkTime;
    use crate::statistics::Knee;

    fn closed(throughputs: &[f64]) -> Sweep {
        let step = Step::chat("step", 2, 1.0, ThinkTime::NONE);
        let mut sweep = Sweep::new(&step, 1, Environment::detect("0", "unknown"));
        sweep.levels = throughputs
            .iter()
            .zip(0..)
            .map(|(throughput, doubled)| SweepLevel {
                concurrency: 1 << doubled,
                run: 1,
                throughput: *throughput,
                p50: Percentile::Infinite,
                p99: Percentile::Infinite,
                conclusion: Conclusion::Passed,
                verdict_reasons: Vec::new(),
                disturbances: Vec::new(),
            })
            .collect();
        sweep.close();
        sweep
    }

    #[test]
    fn the_law_goes_through_the_levels() {
        let law = |agents: f64| {
            1_000.0 * agents / (1.0 + 0.05 * (agents - 1.0) + 0.000_5 * agents * (agents - 1.0))
        };
        let throughputs: Vec<f64> = (0..8).map(|doubled| law(f64::from(1 << doubled))).collect();
        let sweep = closed(&throughputs);
        let fit = sweep.fit.unwrap();
        assert!((fit.lambda.value - 1_000.0).abs() < 1e-3, "{fit:?}");
        assert!(matches!(fit.knee, Knee::At { .. }), "{fit:?}");
        assert_eq!(sweep.no_fit, None);
        let straight: Vec<f64> = (0..8).map(|doubled| f64::from(1 << doubled)).collect();
        assert_eq!(closed(&straight).fit.unwrap().knee, Knee::None);
    }

    #[test]
    fn why_there_is_no_fit_is_told() {
        for (throughputs, told) in [
            (
                &[1.0, 2.0, 3.0, 4.0, 5.0][..],
                "5 levels of concurrency are too few",
            ),
            (
                &[1.0, 2.0, 0.0, 4.0, 5.0, 6.0],
                "a throughput of 0/s at a concurrency of 4",
            ),
        ] {
            let sweep = closed(throughputs);
            assert_eq!(sweep.fit, None);
            assert!(sweep.no_fit.unwrap().contains(told));
        }
    }
}
