//! The estimated time: before the begin from the plan, then from the time of the part that is done.

use std::time::{Duration, Instant};

use super::BenchOptions;
use super::contender::{Contender, contenders};
use crate::plan::RowPlan;

/// Estimates the time of each suite, in seconds, by its name.
pub fn estimates(options: &BenchOptions) -> Vec<(&'static str, f64)> {
    let secs = |plans: &[RowPlan]| plans.iter().map(|plan| row_secs(options, plan)).sum();
    let suites = options.plans().into_iter();
    suites
        .map(|(suite, plans)| (suite.name, secs(&plans)))
        .collect()
}

/// Estimates the time of a row, in seconds.
pub(super) fn row_secs(options: &BenchOptions, plan: &RowPlan) -> f64 {
    let mut runs = options.repeat as f64;
    if !plan.climbs.is_empty() {
        runs += plan.climbs.len() as f64 / 2.0 + FAILED_TRIES;
    }
    let contenders = contenders(options, plan);
    contenders.iter().map(run_secs).sum::<f64>() * runs
}

/// Estimates the time of a run, in seconds.
pub(super) fn run_secs(contender: &Contender<'_>) -> f64 {
    let work = contender.work;
    let beside = contender.mode.map_or(OWN_SECS, |_| PEER_SECS);
    let connections = work.connections.max(work.subscribers) as f64;
    (work.warm_up_ms + work.measure_ms) as f64 / 1e3 + beside + connections * CONNECTION_SECS
}

/// The share that is done, and an estimate of the rest from the time of the done part.
#[derive(Default)]
pub(super) struct Pace {
    planned_secs: f64,
    /// Planned seconds of the rows that are done.
    done_secs: f64,
    row_planned_secs: f64,
    /// Seconds of the current row. The number of runs of a climb is not known before, so it may be more than planned.
    in_row_secs: f64,
    spent: Duration,
}

impl Pace {
    pub(super) fn new(planned_secs: f64) -> Self {
        Self {
            planned_secs,
            ..Self::default()
        }
    }

    pub(super) fn begin_row(&mut self, planned_secs: f64) {
        self.row_planned_secs = planned_secs;
        self.in_row_secs = 0.0;
    }

    pub(super) fn end_run(&mut self, planned_secs: f64, began: Instant) {
        self.in_row_secs += planned_secs;
        self.spent += began.elapsed();
    }

    /// The row is done, whatever number of runs it took.
    pub(super) fn end_row(&mut self) {
        self.done_secs += self.row_planned_secs;
        self.begin_row(0.0);
    }

    /// Returns the share that is done, and the time of the rest.
    pub(super) fn state(&self) -> (f64, Duration) {
        let done_secs = self.done_secs + self.in_row_secs.min(self.row_planned_secs);
        let is_begun = done_secs > 0.0;
        let factor = if is_begun {
            self.spent.as_secs_f64() / done_secs
        } else {
            1.0
        };
        let left_secs = (self.planned_secs - done_secs).max(0.0) * factor;
        let done = done_secs / self.planned_secs.max(f64::MIN_POSITIVE);
        (done.min(1.0), Duration::from_secs_f64(left_secs))
    }
}

/// The seconds to start and end a server and a driver of Tidewire, without their windows.
const OWN_SECS: f64 = 0.1;

/// The same for a peer, with its work until it is ready.
const PEER_SECS: f64 = 0.2;

/// The seconds to make a connection, on both sides.
const CONNECTION_SECS: f64 = 0.000_1;

/// The cost of runs at rates that are too high, in runs at a rate that is held. They wait long for messages on their
/// way.
const FAILED_TRIES: f64 = 8.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_done_when_it_is_done_however_many_runs_it_took() {
        let mut pace = Pace::new(10.0);
        assert_eq!(pace.state().0, 0.0);
        pace.begin_row(4.0);
        for (done, run) in [(0.2, 2.0), (0.4, 3.0), (0.4, 1.0)] {
            pace.end_run(run, Instant::now());
            assert!((pace.state().0 - done).abs() < 1e-9, "{done}");
        }
        pace.end_row();
        assert!((pace.state().0 - 0.4).abs() < 1e-9);
        pace.begin_row(6.0);
        pace.end_row();
        assert_eq!(pace.state(), (1.0, Duration::ZERO));
    }
}
