//! Clocks: figures follow the monotonic clock exactly, and the wall clock changes none of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tidewire_load::clock::{Clock, TimeSource};
use tidewire_load::scenario::{OnViolation, Scenario};
use tidewire_load::segment::Segment;
use tidewire_testkit::fault_server::{Every, FaultPlan, TokenClock};

use crate::proof::{Proof, SEED, planned, prove_with, step};
use crate::workloads::{only, scenario};

/// Time passes as a capped server delivers.
#[derive(Debug)]
struct Delivered(TokenClock);

impl TimeSource for Delivered {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }
}

/// A scenario whose measurement is taken also when the machine's host takes time away.
fn believed(lines: &str) -> Scenario {
    let mut steps = scenario(lines);
    steps.guard.on_violation = OnViolation::Warn;
    steps
}

/// Eight agents, each of which has one request unanswered at any time, for two steady seconds.
fn prove_capped(plan: FaultPlan) -> Proof {
    let clock = TokenClock::default();
    let plan = FaultPlan {
        clock: Some(clock.clone()),
        ..plan
    };
    let lines = "pattern = \"request\"\nconcurrency = 8\nduration_secs = 2.5\ndrain_ms = 300\n";
    let mut steps = believed(lines);
    steps.steps[0].warmup_secs = Some(0.5);
    prove_with(plan, &steps, |options| {
        options.clock = Clock::Other(Arc::new(Delivered(clock)));
    })
}

#[test]
fn a_server_capped_at_5000_a_second_reads_5000() {
    for cap in [4_900, 5_000, 5_100] {
        let proof = prove_capped(FaultPlan {
            deliveries_per_sec_max: Some(cap),
            ..FaultPlan::default()
        });
        proof.assert_passed();
        let (step, detail) = only(&proof.report);
        // Both sides have the same messages, each once.
        assert_eq!(step.total_sent, proof.server.messages);
        assert_eq!(step.total_received, proof.server.delivered);
        let share = f64::from(cap) * 0.005;
        for (what, rate) in [
            ("received", step.steady.receive_tps.unwrap()),
            ("sent", step.steady.send_tps),
            ("counted", detail.counts.steady_received as f64 / 2.0),
        ] {
            assert!(
                (rate - f64::from(cap)).abs() <= share,
                "{what} {rate} of {cap}"
            );
            let reads_5000 = (4_975.0..=5_025.0).contains(&rate);
            assert_eq!(reads_5000, cap == 5_000, "{what} {rate} of {cap}");
        }
        assert!(detail.counts.in_flight_max <= 8, "{:?}", detail.counts);
    }
}

#[test]
fn copies_of_a_capped_server_are_no_messages() {
    // Each tenth delivery replaces another delivery by going out twice.
    let proof = prove_capped(FaultPlan {
        deliveries_per_sec_max: Some(5_000),
        duplicate: Some(Every::nth(10)),
        ..FaultPlan::default()
    });
    let step = proof.step();
    assert_eq!(step.duplicated, Some(proof.server.duplicated));
    assert_eq!(
        step.total_received + step.duplicated.unwrap(),
        proof.server.delivered
    );
    let expected = 5_000.0 * 10.0 / 11.0;
    let rate = step.steady.receive_tps.unwrap();
    assert!(
        (rate - expected).abs() <= expected * 0.005,
        "{rate} of {expected}"
    );
}

/// A wall clock that is never right: each reading is a day ahead or a year behind.
#[derive(Debug, Default)]
struct Jumping {
    looks: AtomicU64,
}

impl TimeSource for Jumping {
    fn wall(&self) -> SystemTime {
        let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        match self.looks.fetch_add(1, Ordering::SeqCst) % 2 {
            0 => noon + Duration::from_secs(86_400),
            _ => noon - Duration::from_secs(31_536_000),
        }
    }
}

#[test]
fn a_jumping_wall_clock_changes_nothing() {
    let delay = Duration::from_millis(50);
    let whole = step(10, 1.0);
    let jumping = Arc::new(Jumping::default());
    let plan = FaultPlan {
        delay,
        ..FaultPlan::default()
    };
    let steps = crate::proof::scenario(std::slice::from_ref(&whole));
    let proof = prove_with(plan, &steps, |options| {
        options.clock = Clock::Other(Arc::clone(&jumping) as _);
    });
    // The clock is read only for the beginning of the run, and for the end a year earlier.
    assert_eq!(jumping.looks.load(Ordering::SeqCst), 2);
    assert_eq!(proof.report.start_time_utc, "2027-01-16T08:00:00.000Z");
    assert_eq!(proof.report.end_time_utc, "2026-01-15T08:00:00.000Z");
    proof.assert_passed();
    proof.assert_offered_agrees();
    let step = proof.step();
    assert_eq!(step.total_sent, planned(&whole, SEED, 0));
    assert_eq!(proof.amiss(), [0; 4]);
    // A day or a year in a time would be beyond the range of histograms, and the median is no such time.
    assert!(
        step.latency.unwrap().min_ms >= 50.0 * 0.999,
        "{:?}",
        step.latency
    );
    assert!(
        step.latency.unwrap().max_ms < 86_400_000.0,
        "{:?}",
        step.latency
    );
    assert!(
        !step.notes.iter().any(|note| note.contains("clipped")),
        "{:?}",
        step.notes
    );
    assert!(
        step.latency_send.unwrap().max_ms < 86_400_000.0,
        "{:?}",
        step.latency_send
    );
    let secs = proof.report.total_duration_secs;
    assert!((1.0..86_400.0).contains(&secs), "{secs}");
    let seconds = &step.detail.series;
    assert!(
        seconds
            .iter()
            .all(|second| second.secs > 0.0 && second.at_secs < 86_400.0)
    );
    // The only rate that depends on a clock: received messages by elapsed time.
    let received = step.receive_tps * step.test_duration_secs;
    assert!((received - step.total_received as f64).abs() < 1.0);
}

/// Right when it is asked when to begin, and wrong ever after.
#[derive(Debug, Default)]
struct JumpsOnce {
    looks: AtomicU64,
}

impl TimeSource for JumpsOnce {
    fn wall(&self) -> SystemTime {
        let looks = self.looks.fetch_add(1, Ordering::SeqCst);
        FIRST_LOOK + Duration::from_secs(if looks == 0 { 0 } else { 86_400 })
    }
}

#[test]
fn a_part_that_waits_for_its_start_does_not_look_at_the_wall_again() {
    let clock = Arc::new(JumpsOnce::default());
    let waits = Duration::from_millis(1_500);
    let lines = "pattern = \"echo\"\nconcurrency = 2\nduration_secs = 0.3\ndrain_ms = 300\nthink_time_ms = [5, 5]\n";
    let proof = prove_with(FaultPlan::default(), &believed(lines), |options| {
        options.segment = Segment { part: 1, parts: 2 };
        options.start_at = Some(FIRST_LOOK + waits);
        options.clock = Clock::Other(Arc::clone(&clock) as _);
    });
    proof.assert_passed();
    assert_eq!(proof.step().total_sent, proof.server.messages);
    assert!(proof.step().test_duration_secs >= waits.as_secs_f64());
    // Readings: the translation of the start, the beginning, and the end.
    assert_eq!(clock.looks.load(Ordering::SeqCst), 3);
}

/// Any time will do.
const FIRST_LOOK: SystemTime = SystemTime::UNIX_EPOCH;
