//! Runs suites: every contender of a row in turns, a fresh pair of processes for each run.
//!
//! A machine drifts, so the contenders of a row take turns, and every other round goes the other way (A B C, C B A, …):
//! a steady drift is then given to all alike. A run from which the host, or others on its cores, took time is made again,
//! but not forever. What fails is written into its place in the results, and the others go on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::contract::{Driver, Work};
use super::disturbance::Disturbance;
use super::hold::holds;
use super::plan::{RowPlan, Suite};
use super::program::{DROPS, Program};
use super::report::{BenchEnvironment, BenchReport, Figures, PeerFigures, RowResult, SuiteResult};
use super::run::{Cast, Cores, Outcome, Patience, RunError, Terms, run_once};
use super::suites;
use crate::clock::Clock;
use crate::environment::Environment;
use crate::format::describe;

/// What to run, with whom and how.
#[derive(Debug)]
pub struct BenchOptions {
    /// The suites, in order.
    pub suites: Vec<&'static Suite>,
    /// Fewer and shorter rows.
    pub quick: bool,
    /// Only rows whose names contain one of these texts; all of them if there is none.
    pub row_texts: Vec<String>,
    /// Rounds of each row.
    pub repeat: usize,
    /// The bare loops.
    pub bare: Program,
    /// Tidewire, unless only the limits are wanted.
    pub tidewire: Option<Program>,
    /// The peers.
    pub peers: Vec<Program>,
    /// Peers that do not take part, and why.
    pub missing_peers: Vec<String>,
    /// Cores that processes are pinned to: the servers to the first, the drivers to the second. With fewer than two they
    /// are not pinned.
    pub cores: Vec<usize>,
    /// How long programs are waited for.
    pub patience: Patience,
    /// How often at most a disturbed run is made again.
    pub again_max: usize,
    /// Set to end it: what was measured until then is kept.
    pub stop: Arc<AtomicBool>,
}

/// What happened, for whoever watches.
#[derive(Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// A run begins.
    Run {
        /// Its suite.
        suite: &'a str,
        /// Its row.
        row: &'a str,
        /// Who runs.
        contender: &'a str,
        /// The round, from 1.
        round: usize,
        /// Share of all runs that is done, from 0 to 1.
        done: f64,
        /// What is probably left.
        left: Duration,
    },
    /// A run came to nothing; the contender takes no further part in this row.
    Failed {
        /// Its suite.
        suite: &'a str,
        /// Its row.
        row: &'a str,
        /// Who failed.
        contender: &'a str,
        /// Why.
        error: &'a RunError,
    },
    /// A run is made again.
    Again {
        /// Who ran.
        contender: &'a str,
        /// What spoilt it.
        why: Disturbance,
    },
    /// A suite is done.
    Suite {
        /// Everything that was found until now.
        report: &'a BenchReport,
    },
}

impl BenchOptions {
    /// How processes are pinned, as a sentence.
    #[must_use]
    pub fn pinning(&self) -> String {
        Cores::of(&self.cores).to_string()
    }
}

/// Runs everything, and returns what was found, at the end or when it was stopped.
pub fn run(
    options: &BenchOptions,
    machine: Environment,
    watch: &mut dyn FnMut(&Progress<'_>),
) -> BenchReport {
    let mut runner = Runner {
        options,
        cores: Cores::of(&options.cores),
        pace: Pace::new(planned_secs(options)),
        watch,
        fallen: BTreeSet::new(),
    };
    let mut report = BenchReport {
        schema_version: BenchReport::SCHEMA_VERSION,
        env: BenchEnvironment {
            machine,
            started_at: crate::format::utc(Clock::Machine.wall()),
            pinning: runner.cores.to_string(),
            repeat: options.repeat,
            quick: options.quick,
            interrupted: false,
            missing_peers: options.missing_peers.clone(),
        },
        suites: Vec::new(),
    };
    for suite in &options.suites {
        let mut rows = Vec::new();
        runner.fallen.clear();
        for plan in suite.chosen_rows(options.quick, &options.row_texts) {
            if runner.is_stopped() {
                break;
            }
            rows.extend(runner.row(suite, &plan));
        }
        if !rows.is_empty() {
            let name = suite.name.to_owned();
            report.suites.push(SuiteResult { name, rows });
            (runner.watch)(&Progress::Suite { report: &report });
        }
    }
    report.env.interrupted = runner.is_stopped();
    report
}

/// About how long it will take, in seconds.
#[must_use]
pub fn estimate_secs(options: &BenchOptions) -> f64 {
    planned_secs(options)
}

struct Runner<'a> {
    options: &'a BenchOptions,
    cores: Cores,
    pace: Pace,
    watch: &'a mut dyn FnMut(&Progress<'_>),
    /// Peers that did not hold a step of the suite at hand.
    fallen: BTreeSet<String>,
}

/// Someone who takes part in a row.
struct Contender<'a> {
    name: String,
    cast: Cast<'a>,
    work: &'a Work,
    mode: Option<&'a str>,
    /// What each round found, from the first on. There are no gaps: who fails, and who is stopped, runs no more.
    outcomes: Vec<Outcome>,
    error: Option<String>,
}

impl Contender<'_> {
    fn holds(&self) -> bool {
        self.error.is_none() && self.outcomes.iter().all(|run| holds(&run.measured))
    }
}

impl Runner<'_> {
    fn is_stopped(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
    }

    /// Measures a row; nothing when it was stopped before anything was measured.
    fn row(&mut self, suite: &Suite, plan: &RowPlan) -> Option<RowResult> {
        let mut contenders = contenders(self.options, plan);
        contenders.retain(|one| !(plan.rises && self.fallen.contains(&one.name)));
        if contenders.is_empty() {
            return None;
        }
        for round in 0..self.options.repeat {
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                if self.is_stopped() {
                    break;
                }
                let contender = &mut contenders[index];
                self.pace.begin();
                if contender.error.is_none() {
                    self.run(suite, plan, contender, round);
                }
                self.pace.end(run_secs(contender.work));
            }
        }
        if contenders
            .iter()
            .all(|one| one.outcomes.is_empty() && one.error.is_none())
        {
            return None;
        }
        if plan.rises {
            let fell = |one: &&Contender<'_>| one.mode.is_some() && !one.holds();
            let names = contenders.iter().filter(fell).map(|one| one.name.clone());
            self.fallen.extend(names);
        }
        Some(results(plan, contenders))
    }

    fn run(&mut self, suite: &Suite, plan: &RowPlan, contender: &mut Contender<'_>, round: usize) {
        let (done, left) = self.pace.state();
        (self.watch)(&Progress::Run {
            suite: suite.name,
            row: &plan.id,
            contender: &contender.name,
            round: round + 1,
            done,
            left,
        });
        let mut work = contender.work.clone();
        if let Some(mode) = contender.mode {
            mode.clone_into(&mut work.mode);
            if contender.cast.kind == Driver::Own {
                suites::in_own_format(&mut work);
            }
        }
        for attempt in 0..=self.options.again_max {
            let terms = Terms {
                cores: &self.cores,
                patience: &self.options.patience,
                stop: &self.options.stop,
            };
            match run_once(&contender.cast, &work, &terms) {
                Ok(outcome) => match outcome.disturbance() {
                    Some(why) if attempt < self.options.again_max => {
                        let contender = &contender.name;
                        (self.watch)(&Progress::Again { contender, why });
                    }
                    _ => return contender.outcomes.push(outcome),
                },
                Err(error) if error.is_stop() => return,
                Err(error) => {
                    (self.watch)(&Progress::Failed {
                        suite: suite.name,
                        row: &plan.id,
                        contender: &contender.name,
                        error: &error,
                    });
                    contender.error = Some(describe(&error));
                    return;
                }
            }
        }
    }
}

fn contenders<'a>(options: &'a BenchOptions, plan: &'a RowPlan) -> Vec<Contender<'a>> {
    let contender = |name: &str, server: &'a Program, driver, kind, work| Contender {
        name: name.to_owned(),
        cast: Cast {
            server,
            driver,
            kind,
        },
        work,
        mode: None,
        outcomes: Vec::new(),
        error: None,
    };
    let mut contenders = Vec::new();
    if let Some(limit) = &plan.limit {
        let bare = &options.bare;
        contenders.push(contender(LIMIT, bare, bare, Driver::Own, limit));
    }
    if let Some(tidewire) = &options.tidewire {
        let work = &plan.work;
        contenders.push(contender(OURS, tidewire, tidewire, Driver::Own, work));
    }
    if let Some(work) = &plan.peers {
        for peer in &options.peers {
            for offer in peer.offers_for(work) {
                let mut name = peer.description.name.clone();
                if offer.mode == DROPS {
                    name.push_str(" (drops)");
                }
                let driver = if offer.driver.is_ours() {
                    &options.bare
                } else {
                    peer
                };
                contenders.push(Contender {
                    mode: Some(&offer.mode),
                    ..contender(&name, peer, driver, offer.driver, work)
                });
            }
        }
    }
    contenders
}

fn results(plan: &RowPlan, contenders: Vec<Contender<'_>>) -> RowResult {
    let (mut tidewire, mut limit) = (Figures::default(), None);
    let mut peers = BTreeMap::new();
    for contender in contenders {
        let figures = Figures::of(plan, &contender.outcomes, contender.error);
        match contender.name.as_str() {
            LIMIT if contender.mode.is_none() => limit = Some(figures),
            OURS if contender.mode.is_none() => tidewire = figures,
            _ => {
                let peer = PeerFigures {
                    version: contender.cast.server.description.version.clone(),
                    ratio: None,
                    ratio_ci95: None,
                    drops: contender.mode == Some(DROPS),
                    figures,
                };
                peers.insert(contender.name, peer);
            }
        }
    }
    RowResult::of(plan, tidewire, limit, peers)
}

/// How much is done, and how long the rest will take by what the done part took.
struct Pace {
    planned_secs: f64,
    done_secs: f64,
    spent: Duration,
    began: Instant,
}

impl Pace {
    fn new(planned_secs: f64) -> Self {
        Self {
            planned_secs,
            done_secs: 0.0,
            spent: Duration::ZERO,
            began: Instant::now(),
        }
    }

    fn begin(&mut self) {
        self.began = Instant::now();
    }

    fn end(&mut self, planned_secs: f64) {
        self.done_secs += planned_secs;
        self.spent += self.began.elapsed();
    }

    fn state(&self) -> (f64, Duration) {
        let factor = if self.done_secs > 0.0 {
            self.spent.as_secs_f64() / self.done_secs
        } else {
            1.0
        };
        let left_secs = (self.planned_secs - self.done_secs).max(0.0) * factor;
        let done = self.done_secs / self.planned_secs.max(f64::MIN_POSITIVE);
        (done.min(1.0), Duration::from_secs_f64(left_secs))
    }
}

fn planned_secs(options: &BenchOptions) -> f64 {
    let rows = options
        .suites
        .iter()
        .flat_map(|suite| suite.chosen_rows(options.quick, &options.row_texts));
    rows.map(|plan| {
        let once: f64 = contenders(options, &plan)
            .iter()
            .map(|contender| run_secs(contender.work))
            .sum();
        once * options.repeat as f64
    })
    .sum()
}

fn run_secs(work: &Work) -> f64 {
    (work.warm_up_ms + work.measure_ms) as f64 / 1e3 + OVERHEAD_SECS
}

/// Name of the bare loop among the contenders.
const LIMIT: &str = "limit";

/// Name of Tidewire among them.
const OURS: &str = "tidewire";

/// What starting and ending two processes takes, roughly.
const OVERHEAD_SECS: f64 = 0.1;
