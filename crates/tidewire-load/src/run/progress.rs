//! The looks that a watcher takes at a run.

use std::time::Duration;

use crate::facts::{Phase, StepFacts};
use crate::report::{Second, Verdict};
use crate::scenario::Step;

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
