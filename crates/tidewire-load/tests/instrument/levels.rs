//! One step at several levels: gathered into one report, and judged by the criteria of a search and a sweep.

use tidewire_load::levels::{Levels, Probe, SweepLevel};
use tidewire_load::report::{Report, Status};
use tidewire_load::scenario::{Scenario, Step};
use tidewire_testkit::fault_server::{Every, FaultPlan};

use crate::proof::{assert_sound, prove_with};
use crate::workloads::scenario;

/// Runs this step alone against a fault server.
fn run_step(plan: FaultPlan, scenario: &Scenario, step: Step) -> Report {
    let scenario = Scenario {
        steps: vec![step],
        ..scenario.clone()
    };
    prove_with(plan, &scenario, |_| {}).report
}

#[test]
fn rates_become_the_steps_of_one_report_and_a_rate_that_loses_does_not_hold() {
    let lines = "pattern = \"request\"\nmodel = \"open\"\nconcurrency = 2\nrate = 1\nduration_secs = 0.3\n\
                 timeout_ms = 100\ndrain_ms = 300\n[steps.slo]\nloss_pct = 0.5\n[guard]\non_violation = \"warn\"\n";
    let scenario = scenario(lines);
    let step = &scenario.steps[0];
    let lossy = FaultPlan {
        drop: Some(Every::nth(20)),
        ..FaultPlan::default()
    };
    let mut levels = Levels::default();
    // Out of order, as a search goes about it.
    for (number, rate, plan, held) in [
        (1, 400.0, lossy, false),
        (2, 200.0, FaultPlan::default(), true),
        (3, 200.0, FaultPlan::default(), true),
    ] {
        let report = run_step(plan, &scenario, step.at_rate(rate).unwrap());
        let probe = Probe::of(number, rate, &report).unwrap();
        // Against a rate that loses nothing only the machine can speak, which kept the instrument from sending in time.
        let is_late = |reason: &String| reason.contains("was sent in time");
        assert_eq!(probe.reasons.iter().all(is_late), held, "{probe:?}");
        assert_eq!(probe.held, probe.reasons.is_empty(), "{probe:?}");
        assert_eq!(probe.lost, if held { 0 } else { 6 });
        levels.add(rate, report);
    }
    let report = levels.report().unwrap().unwrap();
    assert_sound(&report);
    assert_eq!(report.status, Status::Failed);
    let [low, high] = &report.steps[..] else {
        panic!("two rates were run: {report:?}");
    };
    assert_eq!(
        (low.step_name.as_str(), high.step_name.as_str()),
        ("step at 200/s", "step at 400/s")
    );
    // Both runs of one rate are one step, with nothing lost on the way.
    assert_eq!((low.total_sent, low.total_received), (2 * 60, 2 * 60));
    assert_eq!(low.detail.runs.len(), 2);
    assert_eq!((high.total_sent, high.lost), (120, 6));
    assert_eq!(Levels::default().report().unwrap(), None);
}

#[test]
fn a_sweep_counts_messages_and_not_their_deliveries() {
    let lines = "think_time_ms = [10, 10]\nconcurrency = 2\nduration_secs = 0.5\n[guard]\non_violation = \"warn\"\n";
    let scenario = scenario(lines);
    for agents in [2, 6] {
        let step = scenario.steps[0].at_concurrency(agents);
        let report = run_step(FaultPlan::default(), &scenario, step.clone());
        let found = &report.steps[0];
        assert_eq!(found.lost, 0);
        assert_eq!(
            found.expected_received,
            found.total_sent * u64::from(agents - 1)
        );
        let level = SweepLevel::of(&step, 1, &report).unwrap();
        let deliveries = found.steady.receive_tps.unwrap();
        assert!(deliveries > 0.0, "{found:?}");
        assert_eq!(level.throughput, deliveries / f64::from(agents - 1));
    }
}
