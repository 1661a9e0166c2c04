//! The plan of a run: a scenario with its servers and options, checked and resolved.
//!
//! ```text
//! scenario, options ──new──▶ Plan ──run──▶ Facts ──judge──▶ Report ──write_to──▶ files
//! ```
//!
//! Problem: a run that finds in its third step that a codec cannot carry the messages has wasted two steps. Approach:
//! everything that can be refused is refused here, before the first message: codecs and the sizes of frames, processes
//! of faults, tokens, descriptors, shares, and whether each server answers. A step of the plan has all that its agents
//! and its judge need, so that nobody asks the scenario again.

mod check;
mod codec;
mod error;
mod options;
mod process;
mod step;
mod target;

use std::sync::Arc;
use std::time::SystemTime;

pub use self::error::PlanError;
pub use self::options::RunOptions;
pub use self::process::ServerProcess;
pub(crate) use self::step::{PENDING_MAX, PlannedFault, StepPlan};
use crate::scenario::{Scenario, Step};
use crate::schedule::mix;

/// A run that can begin.
#[derive(Debug)]
pub struct Plan {
    pub(crate) options: RunOptions,
    pub(crate) scenario_version: u8,
    pub(crate) steps: Vec<Arc<StepPlan>>,
}

impl Plan {
    /// Checks a scenario, and finds the servers that it is run against.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn new(scenario: &Scenario, mut options: RunOptions) -> Result<Self, PlanError> {
        let is_datagrams = check::targets(scenario, &options)?;
        let mut steps = Vec::new();
        for step in &scenario.steps {
            let codec = check::step(scenario, step, &options, is_datagrams)?;
            steps.push(StepPlan::new(scenario, step, &options, codec)?);
        }
        options.targets = target::reach(scenario, steps.first(), &options)?;
        let (targets, run) = (options.targets.clone().into(), run_number(&options));
        let mut starts = Starts::new(&options);
        let placed = |(number, plan): (usize, StepPlan)| {
            let start_ns = starts.next(&plan.step);
            Arc::new(plan.placed(&targets, (run, number), start_ns))
        };
        Ok(Self {
            scenario_version: scenario.version,
            steps: steps.into_iter().enumerate().map(placed).collect(),
            options,
        })
    }
}

/// When the steps of parts that start together begin to send.
struct Starts {
    next_ns: Option<u64>,
}

impl Starts {
    fn new(options: &RunOptions) -> Self {
        let next_ns = options.start_at.map(|at| {
            let ahead = at.duration_since(options.clock.wall()).unwrap_or_default();
            let now_ns = options.clock.now_ns();
            now_ns.saturating_add(u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX))
        });
        Self { next_ns }
    }

    /// The start of this step. The next one leaves time for its drain and for the logins after the drain.
    fn next(&mut self, step: &Step) -> Option<u64> {
        let start_ns = self.next_ns?;
        // Catching up and silence each last as long as the drain.
        let length_ns = step.duration_ns() + step.drain_ms * 2_000_000 + BETWEEN_STEPS_NS;
        self.next_ns = Some(start_ns.saturating_add(length_ns));
        Some(start_ns)
    }
}

/// The number that tells the messages and rooms of this run from those of others. Parts that begin together belong to
/// the same run.
fn run_number(options: &RunOptions) -> u16 {
    let Some(start_at) = options.start_at.filter(|_| !options.segment.is_whole()) else {
        return fastrand::u16(..);
    };
    let since = start_at.duration_since(SystemTime::UNIX_EPOCH);
    let start_ns = since.map_or(0, |since| since.as_nanos() as u64);
    mix(mix(start_ns) ^ options.seed) as u16
}

/// Between the drain of a step and the start of the next, in parts that start together.
const BETWEEN_STEPS_NS: u64 = 10_000_000_000;
