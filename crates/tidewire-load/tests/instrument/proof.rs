//! One run against a fault server, with the checks that every report must pass.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;

use serde_json::Value;
use tidewire_load::plan::{Plan, PlanError, RunOptions};
use tidewire_load::report::{Conclusion, Report, StepReport};
use tidewire_load::run::{Observer, Silent};
use tidewire_load::scenario::{Guard, Load, OnViolation, Scenario, Step, ThinkTime, Trust};
use tidewire_load::schedule::{Schedule, agent_seed};
use tidewire_testkit::fault_server::{FaultLedger, FaultPlan, FaultServer};

/// The report of the instrument, and the account of the server.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) report: Report,
    pub(crate) server: FaultLedger,
}

impl Proof {
    /// The only step of the run.
    pub(crate) fn step(&self) -> &StepReport {
        let [step] = &self.report.steps[..] else {
            panic!("one step was expected: {:?}", self.report);
        };
        step
    }

    pub(crate) fn assert_passed(&self) {
        assert_eq!(
            self.report.conclusion(),
            Conclusion::Passed,
            "{:?}",
            self.report
        );
    }

    /// The run found something. On a busy machine its measurement is invalid as well, which outweighs that.
    pub(crate) fn assert_failed(&self) {
        assert!(
            matches!(
                self.report.conclusion(),
                Conclusion::Failed | Conclusion::Invalid
            ),
            "{:?}",
            self.report
        );
        assert!(!self.step().problems.is_empty());
    }

    /// Both sides agree on what was offered: no message left the instrument that the server did not see, and
    /// everyone in the room was owed each of them.
    pub(crate) fn assert_offered_agrees(&self) {
        let step = self.step();
        assert_eq!(step.total_sent, self.server.messages);
        assert_eq!(step.expected_received, self.server.offered);
        let receivers = self.server.joins - 1;
        assert_eq!(step.expected_received, step.total_sent * receivers);
    }

    /// Lost, duplicated, reordered and corrupt, as the report has them.
    pub(crate) fn amiss(&self) -> [u64; 4] {
        let step = self.step();
        let seen = [step.duplicated, step.reordered, step.corrupt];
        let [duplicated, reordered, corrupt] = seen.map(Option::unwrap);
        [step.lost, duplicated, reordered, corrupt]
    }
}

/// Does the same for all of these at the same time: each mostly waits, and what one of them finds is in none of the
/// others.
pub(crate) fn at_once<I: Send, O: Send>(
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> O + Sync,
) -> Vec<O> {
    let work = &work;
    thread::scope(|scope| {
        let running: Vec<_> = items
            .into_iter()
            .map(|item| scope.spawn(move || work(item)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, O>| {
            // The panic of a failed assertion is the test's.
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    })
}

/// A run of one step of a second with twelve agents: some 600 messages and 6,600 deliveries.
pub(crate) fn prove(plan: FaultPlan) -> Proof {
    prove_with(plan, &scenario(&[step(12, 1.0)]), |_| {})
}

/// Runs `scenario` against a server with `plan`.
pub(crate) fn prove_with(
    plan: FaultPlan,
    scenario: &Scenario,
    adjust: impl FnOnce(&mut RunOptions),
) -> Proof {
    prove_watched(plan, scenario, &mut Silent, adjust)
}

/// As [`prove_with`], with a watcher.
pub(crate) fn prove_watched(
    plan: FaultPlan,
    scenario: &Scenario,
    observer: &mut dyn Observer,
    adjust: impl FnOnce(&mut RunOptions),
) -> Proof {
    let server = FaultServer::start(plan).unwrap();
    let mut options = RunOptions::new(vec![server.address().into()]);
    options.seed = SEED;
    // The bound of lateness is a time of this machine, so only tests about lateness have one.
    options.late_ms = u64::MAX;
    adjust(&mut options);
    let report = run(scenario, options, observer).unwrap();
    let server = server.finish();
    assert!(server.is_conserved(), "{server:?}");
    assert_eq!(server.queued, 0, "{server:?}");
    assert_sound(&report);
    Proof { report, server }
}

pub(crate) fn scenario(steps: &[Step]) -> Scenario {
    Scenario {
        version: 1,
        target: None,
        nodes: 1,
        backplane: None,
        history: None,
        trust: Trust::default(),
        steps: steps.to_vec(),
        repeat: 1,
        seed: None,
        guard: Guard {
            on_violation: OnViolation::Warn,
            ..Guard::default()
        },
    }
}

pub(crate) fn step(concurrency: u32, duration_secs: f64) -> Step {
    let name = format!("{concurrency} agents");
    Step {
        // Longer than any pause of a server that does not stall. Most tests wait for this time, so it is not longer.
        drain_ms: 700,
        ..Step::chat(name, concurrency, duration_secs, THINK_TIME)
    }
}

/// How many messages the schedule holds for all agents of a step, found without running it.
pub(crate) fn planned(step: &Step, seed: u64, number: u8) -> u64 {
    let Load::Closed { think_time_ms } = step.load else {
        panic!("only think times are planned here: {step:?}");
    };
    let of_agent = |agent| {
        let seed = agent_seed(seed, number, agent);
        let mut schedule = Schedule::new(seed, 0, think_time_ms);
        std::iter::repeat_with(|| schedule.next_intended_ns())
            .take_while(|intended_ns| *intended_ns < step.duration_ns())
            .count() as u64
    };
    (0..step.concurrency).map(of_agent).sum()
}

/// Checks the rules for every report, after any failure in its run.
pub(crate) fn assert_sound(report: &Report) {
    report.validate().unwrap();
    for step in &report.steps {
        assert_eq!(
            step.expected_received,
            step.total_received + step.lost + step.unconfirmed
        );
        let ledger = "the ledger does not close";
        let is_open = |problem: &String| problem.contains(ledger);
        assert!(!step.problems.iter().any(is_open), "{:?}", step.problems);
    }
    let folder = tempfile::tempdir().unwrap();
    report.write_to(folder.path()).unwrap();
    let text = fs::read_to_string(folder.path().join("report.json")).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let errors: Vec<String> = schema()
        .iter_errors(&value)
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}\n{text}");
    assert_eq!(&serde_json::from_value::<Report>(value).unwrap(), report);
}

fn schema() -> &'static jsonschema::Validator {
    static SCHEMA: OnceLock<jsonschema::Validator> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/report.schema.json");
        let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        jsonschema::validator_for(&schema).unwrap()
    })
}

const THINK_TIME: ThinkTime = ThinkTime {
    min_ms: 10.0,
    max_ms: 30.0,
};

/// Any seed works. The report of a failing test has it.
pub(crate) const SEED: u64 = 20_261_121;

/// Drain of a step with a server that stalls for a second, in milliseconds.
pub(crate) const LONGER_THAN_A_SECOND: u64 = 1_300;

/// Plans and makes a run, and judges its measurements.
pub(crate) fn run(
    scenario: &Scenario,
    options: RunOptions,
    observer: &mut dyn Observer,
) -> Result<Report, PlanError> {
    let facts = Plan::new(scenario, options)?.run(observer);
    Ok(facts.unwrap().judge())
}
