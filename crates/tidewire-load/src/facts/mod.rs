//! The facts of a run, and the report that follows from them.
//!
//! A step leaves its accounts, its times and the usage of each side. Nothing in them is judged. [`Facts::judge`] makes
//! the report. Its functions are pure: the same facts have the same verdict, in the live view of a step and in its
//! report.

mod accounts;
mod causes;
mod step;
mod usage;
mod verdict;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub(crate) use self::accounts::Accounts;
pub(crate) use self::causes::Ending;
pub(crate) use self::usage::{SidesUsage, Usage};
pub(crate) use self::verdict::{Evidence, Lateness, judge};
use crate::environment::Environment;
use crate::exchange::Times;
use crate::format::utc;
use crate::plan::StepPlan;
use crate::report::{FaultFigures, ProcessFigures, Report, Second, ServerUsage};
use crate::segment::Segment;

/// The facts of a run.
#[derive(Debug)]
pub struct Facts {
    pub(crate) target_server: String,
    pub(crate) start_time: SystemTime,
    pub(crate) end_time: SystemTime,
    pub(crate) secs: f64,
    pub(crate) seed: u64,
    pub(crate) environment: Environment,
    pub(crate) scenario_version: u8,
    pub(crate) segment: Segment,
    /// The user stopped the run.
    pub(crate) is_interrupted: bool,
    pub(crate) steps: Vec<StepFacts>,
    /// Names of the steps that were not begun.
    pub(crate) not_run: Vec<String>,
}

impl Facts {
    /// The report of the run, step by step and as a whole.
    pub fn judge(&self) -> Report {
        let report = Report {
            target_server: self.target_server.clone(),
            start_time_utc: utc(self.start_time),
            end_time_utc: utc(self.end_time),
            total_duration_secs: self.secs,
            seed: self.seed,
            env: self.environment.clone(),
            scenario_version: self.scenario_version,
            segment: (!self.segment.is_whole()).then_some(self.segment),
            not_run: self.not_run.clone(),
            ..Report::default()
        };
        let steps = self.steps.iter().map(StepFacts::judge);
        report.with_steps(steps.collect(), self.is_interrupted)
    }
}

/// The facts of a step. All are empty where a step failed before its end.
#[derive(Debug)]
pub struct StepFacts {
    pub(crate) plan: Arc<StepPlan>,
    /// Length of the whole step, in seconds.
    pub(crate) secs: f64,
    /// Agents that logged in, slow receivers left out.
    pub(crate) logins: u64,
    pub(crate) login_failures: u64,
    /// Agents that lost their connection, slow receivers left out.
    pub(crate) disconnects: u64,
    pub(crate) steady: SteadyWindow,
    /// The usage of each side at both ends of the steady window.
    pub(crate) steady_usage: Option<(SidesUsage, SidesUsage)>,
    pub(crate) accounts: Accounts,
    pub(crate) times: Times,
    pub(crate) series: Vec<Second>,
    pub(crate) client_cpu_secs: f64,
    pub(crate) server: ServerUsage,
    pub(crate) processes: Vec<ProcessFigures>,
    pub(crate) faults: Vec<FaultFigures>,
    /// Problems and notes that no count shows.
    pub(crate) problems: Vec<String>,
    pub(crate) notes: Vec<String>,
}

impl StepFacts {
    /// A step that has measured nothing.
    pub(crate) fn new(plan: Arc<StepPlan>) -> Self {
        Self {
            plan,
            secs: 0.0,
            logins: 0,
            login_failures: 0,
            disconnects: 0,
            steady: SteadyWindow::default(),
            steady_usage: None,
            accounts: Accounts::default(),
            times: Times::default(),
            series: Vec::new(),
            client_cpu_secs: 0.0,
            server: ServerUsage::default(),
            processes: Vec::new(),
            faults: Vec::new(),
            problems: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// From when to when figures count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SteadyWindow {
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

worded! {
    /// Where a step is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Phase {
        /// Agents connect and log in.
        Login = "login",
        /// Messages are sent; the steady window has not begun.
        WarmUp = "warm_up",
        /// Messages are sent and count for the steady rates.
        Steady = "steady",
        /// Nothing is sent; what is under way arrives.
        Drain = "drain",
    }
}
