//! Runs suites: every contender of a row in turns, a fresh pair of processes for each run.
//! A machine drifts, so the contenders of a row take turns, and every other round has the reverse order (A B C, C B
//! A, …): a steady drift then affects all equally. A run from which the host or other programs took time is repeated
//! a few times. A failure is noted in the results of its contender, and the others go on.

mod contender;
mod estimate;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidewire_load::clock::Clock;
use tidewire_load::environment::Environment;
use tidewire_load::format::describe;

use self::contender::{Contender, contenders, results};
pub use self::estimate::estimates;
use self::estimate::{Pace, row_secs, run_secs};
use crate::contract::Measured;
use crate::plan::{RowPlan, Suite, choose};
use crate::program::Program;
use crate::report::{BenchEnvironment, BenchReport, RowResult, SuiteResult};
use crate::run::{Cores, Disturbance, Outcome, RunError, Terms, Timeouts, run_once};

/// The suites, contenders and settings of a benchmark.
#[derive(Debug)]
pub struct BenchOptions {
    /// The suites, in order.
    pub suites: Vec<&'static Suite>,
    /// Fewer and shorter rows.
    pub quick: bool,
    /// Only rows whose names are one of these texts, or contain one that is no row's name; all of them if there is
    /// none.
    pub row_texts: Vec<String>,
    /// Length of the window of a run, in milliseconds, if its time is fixed and not its work.
    pub measure_ms: Option<u64>,
    /// Rounds of each row.
    pub repeat: usize,
    /// The bare loops.
    pub bare: Program,
    /// Tidewire; `None` if only the limits are measured.
    pub tidewire: Option<Program>,
    /// The peers.
    pub peers: Vec<Program>,
    /// Peers that do not take part, with the reasons.
    pub missing_peers: Vec<String>,
    /// Cores that processes are pinned to: the servers to the first, the drivers to the second. With fewer than two
    /// they are not pinned.
    pub cores: Vec<usize>,
    /// The time limits of waits for programs.
    pub timeouts: Timeouts,
    /// The most repetitions of a disturbed run.
    pub again_max: AgainMax,
    /// Is set to stop the benchmark. The results until then are kept.
    pub stop: Arc<AtomicBool>,
}

/// The most repetitions of a run that the machine disturbed.
#[derive(Clone, Copy, Debug, Default)]
pub struct AgainMax {
    /// Of a run whose result counts, but whose figure may be too low.
    pub slow: usize,
    /// Of a run that got no message or lost some, which would fail the benchmark: a program may have had no core for as
    /// long as a short window.
    pub failed: usize,
}

impl AgainMax {
    fn after(self, measured: &Measured) -> usize {
        match measured.messages == 0 || measured.lost > 0 {
            true => self.failed,
            false => self.slow,
        }
    }
}

/// An event for the display of progress.
#[derive(Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// A run begins.
    Run {
        /// Its suite.
        suite: &'a str,
        /// Its row.
        row: &'a str,
        /// The contender that runs.
        contender: &'a str,
        /// The round, from 1.
        round: usize,
        /// Share of all runs that is done, from 0 to 1.
        done: f64,
        /// The estimated time left.
        left: Duration,
    },
    /// A run failed. The contender takes no further part in this row, or has one more try if the row climbs.
    Failed {
        /// Its suite.
        suite: &'a str,
        /// Its row.
        row: &'a str,
        /// The contender that failed.
        contender: &'a str,
        /// The reason.
        error: &'a RunError,
    },
    /// A run is repeated.
    Again {
        /// The contender that ran.
        contender: &'a str,
        /// The reason why the run does not count.
        why: Disturbance,
    },
    /// A suite is done.
    Suite {
        /// All results so far.
        report: &'a BenchReport,
    },
}

impl BenchOptions {
    /// Returns the rows to measure, with the lengths of their windows.
    pub fn plans(&self) -> Vec<(&'static Suite, Vec<RowPlan>)> {
        let mut chosen = choose(&self.suites, self.quick, &self.row_texts);
        if let Some(measure_ms) = self.measure_ms {
            let plans = chosen.iter_mut().flat_map(|(_, plans)| plans);
            plans.for_each(|plan| plan.measure_for(measure_ms));
        }
        chosen
    }

    /// Describes the pinning of processes in a sentence.
    pub fn pinning(&self) -> String {
        Cores::of(&self.cores).to_string()
    }
}

/// Runs everything and returns the results, at the end or when it was stopped.
pub fn run(
    options: &BenchOptions,
    machine: Environment,
    watch: &mut dyn FnMut(&Progress<'_>),
) -> BenchReport {
    let mut runner = Runner {
        options,
        cores: Cores::of(&options.cores),
        pace: Pace::new(estimates(options).iter().map(|(_, secs)| secs).sum()),
        watch,
        fallen: BTreeSet::new(),
    };
    let mut report = BenchReport {
        schema_version: BenchReport::SCHEMA_VERSION,
        env: BenchEnvironment {
            machine,
            started_at: tidewire_load::format::utc(Clock::Machine.wall()),
            pinning: runner.cores.to_string(),
            repeat: options.repeat,
            quick: options.quick,
            interrupted: false,
            missing_peers: options.missing_peers.clone(),
        },
        suites: Vec::new(),
    };
    for (suite, plans) in options.plans() {
        let mut rows = Vec::new();
        runner.fallen.clear();
        let began = Instant::now();
        for plan in plans {
            if runner.is_stopped() {
                break;
            }
            rows.extend(runner.row(suite, &plan));
        }
        if !rows.is_empty() {
            let elapsed_secs = began.elapsed().as_secs_f64();
            let name = suite.name.to_owned();
            report.suites.push(SuiteResult {
                name,
                elapsed_secs,
                rows,
            });
            (runner.watch)(&Progress::Suite { report: &report });
        }
    }
    report.env.interrupted = runner.is_stopped();
    report
}

struct Runner<'a> {
    options: &'a BenchOptions,
    cores: Cores,
    pace: Pace,
    watch: &'a mut dyn FnMut(&Progress<'_>),
    /// Peers that did not hold a step of the current suite.
    fallen: BTreeSet<String>,
}

impl Runner<'_> {
    fn is_stopped(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
    }

    /// Measures a row. Returns `None` if it was stopped before the first result.
    fn row(&mut self, suite: &Suite, plan: &RowPlan) -> Option<RowResult> {
        let mut contenders = contenders(self.options, plan);
        contenders.retain(|one| !(plan.rises && self.fallen.contains(&one.name)));
        if contenders.is_empty() {
            return None;
        }
        self.pace.begin_row(row_secs(self.options, plan));
        self.in_turns(suite, plan, &mut contenders, |one| one.climbs());
        let repeat = self.options.repeat;
        self.in_turns(suite, plan, &mut contenders, |one| {
            one.has_less_than(repeat)
        });
        self.pace.end_row();
        if contenders.iter().all(Contender::has_nothing) {
            return None;
        }
        if plan.rises {
            let fell = |one: &&Contender<'_>| one.mode.is_some() && !one.holds();
            let names = contenders.iter().filter(fell).map(|one| one.name.clone());
            self.fallen.extend(names);
        }
        Some(results(plan, contenders))
    }

    /// Lets the contenders that `want` a run make one each, in turns, until none wants one. Every other round has the
    /// reverse order.
    fn in_turns(
        &mut self,
        suite: &Suite,
        plan: &RowPlan,
        contenders: &mut [Contender<'_>],
        wants: impl Fn(&Contender<'_>) -> bool,
    ) {
        for round in 1.. {
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            order.retain(|&index| wants(&contenders[index]));
            if order.is_empty() {
                return;
            }
            if round % 2 == 0 {
                order.reverse();
            }
            for index in order {
                if self.is_stopped() {
                    return;
                }
                let contender = &mut contenders[index];
                let began = Instant::now();
                let Some(run) = self.run(suite, plan, contender, round) else {
                    return;
                };
                contender.take(run);
                self.pace.end_run(run_secs(contender), began);
            }
        }
    }

    /// Makes a run, which may fail for a reason. Returns `None` if the user stopped the benchmark.
    fn run(
        &mut self,
        suite: &Suite,
        plan: &RowPlan,
        contender: &Contender<'_>,
        round: usize,
    ) -> Option<Result<Outcome, String>> {
        let (done, left) = self.pace.state();
        let (suite, row, work) = (suite.name, &plan.id, contender.work_now());
        let (cast, contender) = (&contender.cast, &contender.name);
        (self.watch)(&Progress::Run {
            suite,
            row,
            contender,
            round,
            done,
            left,
        });
        let mut again = 0;
        loop {
            let terms = Terms {
                cores: &self.cores,
                timeouts: &self.options.timeouts,
                stop: &self.options.stop,
            };
            match run_once(cast, &work, &terms) {
                Ok(outcome) => match outcome.disturbance() {
                    Some(why) if again < self.options.again_max.after(&outcome.measured) => {
                        again += 1;
                        (self.watch)(&Progress::Again { contender, why });
                    }
                    _ => return Some(Ok(outcome)),
                },
                Err(error) if error.is_stop() => return None,
                Err(error) => {
                    (self.watch)(&Progress::Failed {
                        suite,
                        row,
                        contender,
                        error: &error,
                    });
                    return Some(Err(describe(&error)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: on a busy machine a quick benchmark failed, because one of its programs had no core for 150 ms.
    #[test]
    fn a_disturbed_run_without_a_message_is_repeated_in_a_quick_benchmark_too() {
        let measured = |messages, lost| Measured::verified(messages, 0.15, lost);
        let [quick, full] = [0, 2].map(|slow| AgainMax { slow, failed: 2 });
        assert_eq!(quick.after(&measured(0, 0)), 2);
        assert_eq!(quick.after(&measured(9, 1)), 2);
        assert_eq!(quick.after(&measured(9, 0)), 0);
        assert_eq!(full.after(&measured(9, 0)), 2);
    }
}
