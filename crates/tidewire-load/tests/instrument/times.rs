//! Times: the instrument measures every delay that the server added, and keeps its schedule with any server.

use std::thread;
use std::time::Duration;

use tidewire_load::report::Latency;
use tidewire_load::scenario::{Step, ThinkTime};
use tidewire_load::statistics::{EncodedHistogram, LatencyHistogram};
use tidewire_testkit::fault_server::{FaultPlan, SlowReceiver, Stall};
use tidewire_testkit::fixtures::echo;

use crate::proof::{
    LONGER_THAN_A_SECOND, Proof, SEED, at_once, planned, prove_with, scenario, step,
};
use crate::workloads::{only, run_against};

#[test]
fn a_known_delay_is_in_every_figure_and_in_the_difference_to_an_undelayed_run() {
    let delay = Duration::from_millis(250);
    let run = |delay, late_ms| {
        let plan = FaultPlan {
            delay,
            ..FaultPlan::default()
        };
        prove_with(plan, &scenario(&[patient(10, 1.5)]), |options| {
            options.late_ms = late_ms;
        })
    };
    // At the same time, so that other work of the machine slows both.
    let (delayed, undelayed) = thread::scope(|scope| {
        let delayed = scope.spawn(|| run(delay, 200));
        let undelayed = run(Duration::ZERO, u64::MAX);
        (delayed.join().unwrap(), undelayed)
    });
    for proof in [&delayed, &undelayed] {
        proof.assert_passed();
        proof.assert_offered_agrees();
    }
    assert_all_at_least(&delayed.step().latency.unwrap(), 250.0);
    let difference_ms =
        delayed.step().latency.unwrap().p50_ms - undelayed.step().latency.unwrap().p50_ms;
    assert!(difference_ms >= 0.9 * 250.0, "{difference_ms}");
    assert_eq!(delayed.step().late, Some(delayed.step().total_received));
    assert_eq!(undelayed.step().late, Some(0));
    // A slow server cannot slow the writes of a client that does not wait for it.
    let step = delayed.step();
    assert!(step.latency_send.unwrap().p50_ms < step.latency.unwrap().p50_ms);
}

#[test]
fn a_stall_shows_in_the_tail_and_does_not_slow_the_offered_load() {
    let whole = patient(10, 2.5);
    let all = planned(&whole, SEED, 0);
    let plan = FaultPlan {
        stall: Some(Stall {
            at_message: all / 3,
            duration: Duration::from_secs(1),
        }),
        ..FaultPlan::default()
    };
    let proof = prove_with(plan, &scenario(std::slice::from_ref(&whole)), |options| {
        options.late_ms = 500;
    });
    proof.assert_passed();
    proof.assert_offered_agrees();
    assert_eq!(proof.server.stalls, 1);
    let step = proof.step();
    assert_eq!((step.total_sent, step.total_send_errors), (all, 0));
    assert!(step.attainment >= 0.95, "{}", step.attainment);

    // Messages due during the stall wait for its end: of 2.5 s, the share due in its first 100 ms waits 0.9 s and more,
    // which is 4 % of all, and so on. An instrument that started its clock at the actual send, or sent less during the
    // stall, would show a tail of one message an agent.
    let latency = step.latency.unwrap();
    assert!(at_least(latency.max_ms, 1_000.0), "{latency:?}");
    assert!(latency.p99_ms >= 900.0, "{latency:?}");
    assert!(latency.p90_ms >= 500.0, "{latency:?}");
    let late = step.late.unwrap();
    assert!(late * 10 >= step.total_received, "{late}");
    assert!(late < step.total_received, "{late}");
}

#[test]
fn an_instrument_that_falls_behind_its_schedule_counts_its_own_lateness() {
    // Two agents that think for a microsecond or two ask for more than a lane can send, so it is late and the
    // server is not. Every delivery is at least as late as its message was sent, and each message has as many
    // deliveries as any other; hence no quantile of the one may be below that of the other.
    let think_time_ms = ThinkTime {
        min_ms: 0.001,
        max_ms: 0.002,
    };
    let whole = Step::chat("two", 2, 0.05, think_time_ms);
    let steps = scenario(std::slice::from_ref(&whole));
    let proof = prove_with(FaultPlan::default(), &steps, |_| {});
    proof.assert_passed();
    proof.assert_offered_agrees();
    let step = proof.step();
    // A busy machine may not send all messages before the step gives up. The rest is reported as unsent.
    let unsent = step.detail.counts.unsent;
    assert_eq!(step.total_sent + unsent, planned(&whole, SEED, 0));
    let (latency, lag_p99_ms) = (step.latency.unwrap(), step.client.send_lag_p99_ms.unwrap());
    assert!(
        latency.p99_ms >= lag_p99_ms * 0.998,
        "{latency:?}, {lag_p99_ms}"
    );
    // A message that was sent after the window must not count as sent in it.
    assert!(step.attainment < 0.9, "attainment {}", step.attainment);
}

#[test]
fn a_server_that_cannot_keep_up_is_waited_for_and_its_rate_reported() {
    let (rate, whole) = (2_000, step(10, 1.0));
    let plan = FaultPlan {
        deliveries_per_sec_max: Some(rate),
        ..FaultPlan::default()
    };
    let proof = prove_with(plan, &scenario(std::slice::from_ref(&whole)), |_| {});
    proof.assert_passed();
    proof.assert_offered_agrees();
    let step = proof.step();
    assert_eq!(step.total_sent, planned(&whole, SEED, 0));
    let spaced_secs = (step.total_received - 1) as f64 / f64::from(rate);
    assert!(step.test_duration_secs >= spaced_secs);
    assert!(step.receive_tps * spaced_secs <= step.total_received as f64);
    // The last delivery leaves the server this long after the first message was due, and no message was
    // due later than the step's end.
    let backlog_ms = (spaced_secs - whole.duration_secs) * 1e3;
    assert!(backlog_ms > 500.0, "the load must exceed the cap");
    assert!(
        at_least(step.latency.unwrap().max_ms, backlog_ms),
        "{:?}",
        step.latency
    );
    // A message that arrived after the window must not count as arrived in it.
    assert!(
        step.steady.receive_tps.unwrap() <= f64::from(rate) * 1.1,
        "{:?}",
        step.steady
    );
}

#[test]
fn the_same_seed_offers_the_same_load_on_any_number_of_lanes() {
    let whole = step(8, 1.0);
    let run = |seed, lanes| -> Proof {
        let steps = scenario(std::slice::from_ref(&whole));
        prove_with(FaultPlan::default(), &steps, |options| {
            (options.seed, options.lanes) = (seed, lanes);
        })
    };
    let seeds = [1, 2, 3, 4];
    let all: Vec<u64> = seeds.iter().map(|seed| planned(&whole, *seed, 0)).collect();
    assert!(all.iter().any(|count| *count != all[0]), "{all:?}");
    at_once([(1, 1), (1, 2), (2, 1)], |(seed, lanes)| {
        let proof = run(seed, lanes);
        proof.assert_passed();
        assert_eq!(proof.report.seed, seed);
        assert_eq!(proof.step().total_sent, planned(&whole, seed, 0));
    });
}

#[test]
fn a_slow_receiver_is_named() {
    let plan = FaultPlan {
        slow_receiver: Some(SlowReceiver {
            name_end: "-7".to_owned(),
            delay: Duration::from_millis(400),
        }),
        ..FaultPlan::default()
    };
    let proof = prove_with(plan, &scenario(&[patient(12, 1.0)]), |options| {
        options.late_ms = 300;
    });
    // Late is not lost.
    proof.assert_passed();
    proof.assert_offered_agrees();
    let step = proof.step();
    assert_eq!(step.total_received, proof.server.delivered);
    let worst = &step.detail.worst_receivers;
    // A busy machine may make others late too, but not with every message.
    let first = &worst[0];
    assert_eq!(first.receiver, 7, "{worst:?}");
    assert_eq!((first.late, first.lost), (first.expected, 0), "{worst:?}");
    assert!(worst.iter().map(|one| one.late).sum::<u64>() <= step.late.unwrap());
}

/// A step that waits for the replies of a slow server.
fn patient(concurrency: u32, duration_secs: f64) -> Step {
    Step {
        drain_ms: LONGER_THAN_A_SECOND,
        ..step(concurrency, duration_secs)
    }
}

fn assert_all_at_least(latency: &Latency, least_ms: f64) {
    let figures = [
        latency.min_ms,
        latency.mean_ms,
        latency.p50_ms,
        latency.p90_ms,
        latency.p95_ms,
        latency.p99_ms,
        latency.max_ms,
    ];
    assert!(
        figures.iter().all(|figure| at_least(*figure, least_ms)),
        "{latency:?}"
    );
}

/// Histograms have three significant digits.
fn at_least(figure_ms: f64, least_ms: f64) -> bool {
    figure_ms >= least_ms * 0.999
}

#[test]
fn the_seconds_of_a_step_add_up_to_its_distribution() {
    let lines = "pattern = \"request\"\nmodel = \"open\"\nrate = 100\nconcurrency = 2\nduration_secs = 2.5\n\
                 drain_ms = 20000\n[guard]\non_violation = \"warn\"\n";
    let report = run_against("tw1", |_| echo, lines, |_| {});
    let (_, detail) = only(&report);
    let seconds = detail.series.iter();
    let scheduled: Vec<_> = seconds
        .filter_map(|second| second.scheduled.as_ref())
        .collect();
    assert!(scheduled.len() >= 2, "{:?}", detail.series);
    let mut sum = LatencyHistogram::new();
    for second in &scheduled {
        sum.merge(&second.decode().unwrap());
    }
    let whole = &detail.times.scheduled.histogram;
    assert_eq!(EncodedHistogram::of(&sum), *whole);
    let log = report.to_histogram_log();
    let lines = log
        .lines()
        .filter(|line| line.starts_with("Tag=scheduled,"));
    assert_eq!(lines.count(), scheduled.len(), "{log}");
}
