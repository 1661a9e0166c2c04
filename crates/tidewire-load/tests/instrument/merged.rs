//! Runs and parts put together: disjoint shares, exact sums, and the figures of each beside them.

use std::time::Duration;

use tidewire::{Endpoint, PubSub, Server};
use tidewire_load::clock::Clock;
use tidewire_load::plan::{PlanError, RunOptions};
use tidewire_load::report::{Distribution, LaneCost, MergeKind, Report};
use tidewire_load::run::Silent;
use tidewire_load::scenario::{OnViolation, Scenario};
use tidewire_load::segment::Segment;
use tidewire_load::statistics::LatencyHistogram;
use tidewire_proto::codec::AnyCodec;
use tidewire_testkit::fault_server::{Disconnect, Every, FaultPlan, FaultServer};
use tidewire_testkit::fixtures::echo;

use crate::proof::run;
use crate::proof::{SEED, assert_sound, at_once};
use crate::workloads::{only, run_against, scenario};

#[test]
fn segments_are_disjoint_and_their_merge_is_the_whole() {
    let lines = "pattern = \"request\"\nmodel = \"open\"\nconcurrency = 7\nrate = 700\narrival = \"poisson\"\n\
                 duration_secs = 0.5\n[steps.slo]\ndelivery_ratio_min = 1\n";
    let of = |segment| run_against("tw1", |_| echo, lines, |options| options.segment = segment);
    let part = |part| Segment { part, parts: 3 };
    let mut parts = at_once([Segment::WHOLE, part(1), part(2), part(3)], of);
    let whole = parts.remove(0);
    // Set by hand, different for each part: on a busy machine a coordinator may sleep through an end of its window and
    // measure none.
    for (calls, part) in [2.0, 3.0, 5.0].into_iter().zip(&mut parts) {
        let detail = &mut part.steps[0].detail;
        detail.cost.client_lanes = Some(LaneCost {
            system_calls_per_message: calls,
            allocations_per_message: None,
            allocated_bytes_per_message: None,
        });
    }
    let merged = Report::merge(&parts, MergeKind::Parts).unwrap();
    assert_sound(&merged);
    let (whole, merged_step) = (only(&whole), only(&merged));
    assert_eq!(merged_step.0.total_sent, whole.0.total_sent);
    assert_eq!(merged_step.0.lost, 0);
    assert_eq!(
        merged_step.1.counts.steady_offered,
        whole.1.counts.steady_offered
    );
    // Every histogram of the merge is bucket by bucket the sum of those of the parts.
    let mut sum = LatencyHistogram::new();
    for part in &parts {
        sum.merge(&only(part).1.times.scheduled.histogram.decode().unwrap());
    }
    assert_eq!(
        merged_step.1.times.scheduled,
        Distribution::of(&sum, merged_step.1.times.scheduled.missing)
    );
    assert_eq!(merged_step.1.runs.len(), 3);
    assert_eq!(merged.segment, None);
    // The cost per message of a part is weighted by its messages.
    let (mut calls, mut messages) = (0.0, 0.0);
    for part in &parts {
        let detail = only(part).1;
        let of_part = (detail.counts.steady_sent + detail.counts.steady_received) as f64;
        calls += detail.cost.client_lanes.unwrap().system_calls_per_message * of_part;
        messages += of_part;
    }
    let lanes = merged_step.1.cost.client_lanes.unwrap();
    assert!((lanes.system_calls_per_message - calls / messages).abs() < 1e-9);
    assert_eq!(merged_step.1.cost.server_lanes, None);

    for (given, told) in [(&parts[..2], "2 were given of 3"), (&[][..], "no report")] {
        let error = Report::merge(given, MergeKind::Parts).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
    let twice = [parts[0].clone(), parts[1].clone(), parts[0].clone()];
    let error = Report::merge(&twice, MergeKind::Parts).unwrap_err();
    assert!(error.to_string().contains("given twice"), "{error}");
}

#[test]
fn repeats_are_one_report_with_the_figures_of_each_run() {
    let lines = "pattern = \"echo\"\nconcurrency = 2\nduration_secs = 0.2\n";
    let runs = at_once(0..3, |_| run_against("tw1", |_| echo, lines, |_| {}));
    let merged = Report::merge(&runs, MergeKind::Runs).unwrap();
    assert_sound(&merged);
    let (step, detail) = only(&merged);
    let sent: u64 = runs.iter().map(|run| only(run).0.total_sent).sum();
    assert_eq!(step.total_sent, sent);
    assert_eq!(detail.runs.len(), 3);
    for (figures, run) in detail.runs.iter().zip(&runs) {
        assert_eq!(figures.send_tps, only(run).0.steady.send_tps);
    }
    let secs: f64 = runs.iter().map(|run| only(run).1.window.steady_secs).sum();
    assert_eq!(detail.window.steady_secs, secs);
}

/// Runs the parts of a fan-out at the same time, against one server, and puts them together.
fn run_parts(address: &Endpoint, lines: &str, parts: u32) -> Report {
    let mut steps = scenario(lines);
    steps.guard.on_violation = OnViolation::Warn;
    // Enough for the logins on a busy machine. A late part reports the delay, and fails.
    let start_at = Clock::Machine.wall() + Duration::from_secs(4);
    let run_part = |part| {
        let mut options = RunOptions::new(vec![address.clone()]);
        options.seed = SEED;
        options.late_ms = u64::MAX;
        options.segment = Segment { part, parts };
        options.start_at = Some(start_at);
        let report = run(&steps, options, &mut Silent).unwrap();
        assert_sound(&report);
        report
    };
    let reports = at_once(1..=parts, run_part);
    let merged = Report::merge(&reports, MergeKind::Parts).unwrap();
    assert_sound(&merged);
    let problems = &only(&merged).0.problems;
    assert!(
        !problems.iter().any(|problem| problem.contains("began")),
        "{problems:?}"
    );
    merged
}

const CHAT: &str =
    "pattern = \"chat\"\nthink_time_ms = [10, 30]\nduration_secs = 1\ndrain_ms = 1500\n";

/// Every fiftieth delivery is dropped, wherever sender and receiver are.
fn chat_in_three_parts_with_losses() {
    let server = FaultServer::start(FaultPlan {
        drop: Some(Every::nth(50)),
        ..FaultPlan::default()
    })
    .unwrap();
    let merged = run_parts(
        &server.address().into(),
        &format!("concurrency = 8\n{CHAT}"),
        3,
    );
    let server = server.finish();
    assert!(server.is_conserved() && server.dropped > 0, "{server:?}");
    let (step, detail) = only(&merged);
    assert_eq!(step.total_sent, server.messages);
    assert_eq!(step.expected_received, server.offered);
    assert_eq!(step.expected_received, step.total_sent * 7);
    // A part that was stopped for longer than its drain would not be there any more.
    assert_eq!(step.lost, server.dropped + server.undeliverable);
    assert_eq!(step.total_received, server.delivered);
    assert_eq!(
        (step.duplicated, step.reordered, step.corrupt, step.foreign),
        (Some(0), Some(0), Some(0), 0)
    );
    assert!(!step.is_clean());
    // Only messages that leave and arrive by the same clock are timed: within parts of 3, 3 and 2 agents.
    let times = &detail.times.scheduled;
    assert!(times.histogram.count > 0 && times.histogram.count < step.total_received);
    assert_eq!(
        times.histogram.count + times.missing,
        detail.counts.steady_expected
    );
    assert_eq!(detail.fan_out_share, None);
}

/// The only receiver of a part is cut off, so the part receives no more, and does not notice.
fn chat_in_two_parts_of_which_one_falls_silent() {
    let server = FaultServer::start(FaultPlan {
        disconnect: Some(Disconnect {
            receiver: 0,
            after_deliveries: 10,
        }),
        ..FaultPlan::default()
    })
    .unwrap();
    let merged = run_parts(
        &server.address().into(),
        &format!("concurrency = 2\n{CHAT}"),
        2,
    );
    let server = server.finish();
    assert!(server.is_conserved(), "{server:?}");
    let (step, _) = only(&merged);
    assert_eq!(
        (step.total_sent, step.expected_received),
        (server.messages, server.offered)
    );
    assert!(server.undeliverable > 0, "{server:?}");
    assert_eq!(
        (step.lost, step.total_received),
        (server.undeliverable, server.delivered)
    );
    let told = |problem: &String| problem.contains("lost at the end of what other parts sent");
    assert!(step.problems.iter().any(told), "{:?}", step.problems);
}

/// Subscribers hear their own publications, too.
fn pubsub_in_two_parts() {
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .codec(AnyCodec::default())
        .start(|_| PubSub::new())
        .unwrap();
    let lines = "pattern = \"pubsub\"\nmodel = \"open\"\nrate = 300\nconcurrency = 5\nduration_secs = 1\n\
                 drain_ms = 3000\n";
    let merged = run_parts(&server.addresses()[0], lines, 2);
    let (step, detail) = only(&merged);
    assert_eq!(step.problems, Vec::<String>::new());
    // Laid down in advance, and dealt out among the parts.
    assert_eq!((step.total_sent, step.expected_received), (300, 1_500));
    assert_eq!((step.total_received, step.lost), (1_500, 0));
    // Agents 0, 2 and 4 are in one part, 1 and 3 in the other; the service times within each part are known.
    let service = detail.times.service.as_ref().unwrap();
    assert_eq!(service.histogram.count, 60 * (3 * 3 + 2 * 2));
    assert_eq!(detail.counts.sent_unknown, 0);
    let metrics = server.metrics();
    assert_eq!((metrics.published, metrics.room_delivered), (300, 1_500));
}

#[test]
fn a_fan_out_in_parts_is_accounted_for_to_the_last_delivery() {
    // At the same time, because each of them waits for its start.
    let cases: [fn(); 3] = [
        chat_in_three_parts_with_losses,
        chat_in_two_parts_of_which_one_falls_silent,
        pubsub_in_two_parts,
    ];
    at_once(cases, |case| case());
}

#[test]
fn a_fan_out_that_cannot_be_accounted_for_in_parts_is_refused() {
    let refuse = |steps: &Scenario, adjust: fn(&mut RunOptions), told: &str| {
        let mut options =
            RunOptions::new(vec![std::net::SocketAddr::from(([127, 0, 0, 1], 1)).into()]);
        options.segment = Segment { part: 1, parts: 2 };
        options.start_at = Some(Clock::Machine.wall());
        adjust(&mut options);
        let error = run(steps, options, &mut Silent).unwrap_err();
        assert!(matches!(error, PlanError::Segment { .. }), "{error:?}");
        assert!(error.to_string().contains(told), "{error}");
    };
    let lines = |more: &str| scenario(&format!("{CHAT}{more}"));
    let small = lines("concurrency = 4\n");
    refuse(
        &small,
        |options| options.start_at = None,
        "the same --start-at",
    );
    refuse(
        &lines("concurrency = 1001\n"),
        |_| {},
        "at most 1,000 agents",
    );
    refuse(
        &lines("concurrency = 4\nslow_receivers = 1\n"),
        |_| {},
        "leave slow_receivers out",
    );
    let mut old = small;
    old.version = 1;
    refuse(&old, |_| {}, "version = 2");
}
