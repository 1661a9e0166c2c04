//! Runs a plan, step by step.
//!
//! ```text
//! connect, log in ──▶ barrier ──▶ warm-up ──▶ steady window ──▶ stop sending ──▶ drain ──▶ close accounts
//! ```
//!
//! Rates of the steady window are not diluted by connecting and draining; the totals of the old report are
//! kept beside them. A step ends when every expected delivery has arrived, or when nothing has arrived for
//! the length of the drain. What it measured is its [`StepFacts`].

mod faults;
mod step;
mod watch;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use thiserror::Error;
use tidewire::ServeError;

use self::step::StepRun;
use crate::credentials::TokensError;
pub use crate::facts::Phase;
use crate::facts::{Facts, StepFacts};
use crate::plan::Plan;
use crate::report::{Second, Verdict};
use crate::scenario::Step;

/// A run failed in its first step. After that a failure is among the facts.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum RunError {
    #[error(transparent)]
    Tokens(#[from] TokensError),
    #[error("cannot start the client lanes")]
    Client(#[from] ServeError),
    #[error("a client lane failed: {0}")]
    Lane(String),
}

impl Plan {
    /// Runs every step. Losses, refused logins and a server that dies are no errors of the run: the facts have them.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run(&self, observer: &mut dyn Observer) -> Result<Facts, RunError> {
        let options = &self.options;
        let is_stopped = || options.stop.load(Ordering::Relaxed);
        let (start_time, started) = (options.clock.wall(), Instant::now());
        let mut steps = Vec::new();
        for (number, plan) in self.steps.iter().enumerate() {
            if is_stopped() {
                break;
            }
            observer.step_started(number, &plan.step);
            let result = StepRun::start(plan, options, observer).and_then(StepRun::finish);
            match result {
                Ok(facts) => {
                    observer.step_ended(&facts);
                    steps.push(facts);
                }
                // Earlier measurements are worth more than the error alone, so the error goes into the report.
                Err(error) if !steps.is_empty() => {
                    let mut facts = StepFacts::new(plan.clone());
                    facts.problems.push(error.to_string());
                    steps.push(facts);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let not_run = self.steps[steps.len()..].iter();
        Ok(Facts {
            target_server: options.addresses(),
            start_time,
            end_time: options.clock.wall(),
            secs: started.elapsed().as_secs_f64(),
            seed: options.seed,
            environment: options.environment.clone(),
            scenario_version: self.scenario_version,
            segment: options.segment,
            is_interrupted: is_stopped(),
            not_run: not_run.map(|plan| plan.step.name.clone()).collect(),
            steps,
        })
    }
}

/// A look at a running step.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Where the step is.
    pub phase: Phase,
    /// Time since the barrier opened.
    pub elapsed: Duration,
    /// How long messages are sent in all.
    pub duration: Duration,
    /// Agents logged in.
    pub logins: u64,
    /// Agents of the step.
    pub agents: u64,
    /// Messages sent so far.
    pub sent: u64,
    /// Deliveries so far.
    pub received: u64,
    /// Deliveries that will have to arrive for what was sent so far.
    pub expected: u64,
    /// The figures since the last look.
    pub second: Second,
    /// Connections lost and sends refused so far.
    pub errors: u64,
    /// The verdict on the measurement of the steady window so far; without doubts before the window begins.
    pub verdict: Verdict,
}

/// Watches a run.
pub trait Observer {
    /// A step begins.
    fn step_started(&mut self, _number: usize, _step: &Step) {}

    /// About once a second.
    fn progress(&mut self, _progress: &Progress) {}

    /// A step ended.
    fn step_ended(&mut self, _facts: &StepFacts) {}
}

/// An observer that shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
