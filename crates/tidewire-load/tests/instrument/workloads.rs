//! Scenarios of version 2: every pattern and model, their counts, and the causes of a worthless measurement.

use std::collections::HashMap;
use std::time::Duration;

use tidewire::{AnyCodec, Chat, Context, Kind, Message, PubSub, Server, Service};
use tidewire_load::plan::RunOptions;
use tidewire_load::report::{Conclusion, Distribution, Percentile, Report, StepDetail, StepReport};
use tidewire_load::run::Silent;
use tidewire_load::scenario::Scenario;
use tidewire_testkit::fault_server::{Every, FaultPlan, Stall};
use tidewire_testkit::fixtures::echo;

use crate::proof::run;
use crate::proof::{Proof, SEED, assert_sound, at_once, prove_with};

/// A scenario of one step with these lines.
pub(crate) fn scenario(lines: &str) -> Scenario {
    let text = format!(
        "version = 2\ntarget = \"tcp://h:1\"\n[[steps]]\nname = \"step\"\nwarmup_secs = 0\n{lines}"
    );
    Scenario::parse(&text, "test").unwrap().0
}

/// Runs it against a fault server.
fn prove(plan: FaultPlan, lines: &str) -> Proof {
    let proof = prove_with(plan, &scenario(lines), |_| {});
    let step = proof.step();
    assert_eq!(step.total_sent, proof.server.messages);
    assert_eq!(step.expected_received, proof.server.offered);
    proof
}

/// Runs it against a server of the library.
pub(crate) fn run_against<S: Service>(
    codec: &str,
    make: impl FnMut(usize) -> S,
    lines: &str,
    adjust: impl FnOnce(&mut RunOptions),
) -> Report {
    run_scenario(codec, make, &scenario(lines), adjust)
}

pub(crate) fn run_scenario<S: Service>(
    codec: &str,
    make: impl FnMut(usize) -> S,
    scenario: &Scenario,
    adjust: impl FnOnce(&mut RunOptions),
) -> Report {
    let codec = codec.parse::<AnyCodec>().unwrap();
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .codec(codec)
        .start(make)
        .unwrap();
    let mut options = RunOptions::new(server.addresses()[..1].to_vec());
    options.seed = SEED;
    options.late_ms = u64::MAX;
    adjust(&mut options);
    let report = run(scenario, options, &mut Silent).unwrap();
    assert_sound(&report);
    report
}

pub(crate) fn only(report: &Report) -> (&StepReport, &StepDetail) {
    let [step] = &report.steps[..] else {
        panic!("one step was expected: {report:?}");
    };
    (step, &step.detail)
}

/// Checks the properties that every clean run has in common.
fn assert_whole(report: &Report, what: &str) {
    let (step, detail) = only(report);
    assert_eq!(step.problems, Vec::<String>::new(), "{what}");
    assert!(step.total_sent > 0, "{what}");
    assert_eq!(step.total_received, step.expected_received, "{what}");
    assert_eq!(step.lost, 0, "{what}");
    let counts = &detail.counts;
    let accounted = step.total_sent + step.total_send_errors + counts.skipped + counts.unsent;
    assert_eq!(counts.offered, accounted, "{what}");
}

fn histogram_p(times: &Distribution, quantile: f64) -> f64 {
    times.histogram.decode().unwrap().quantile_ns(quantile) as f64 / 1e6
}

#[test]
fn requests_and_echoes_come_back_over_every_codec_and_model() {
    let models = [
        "model = \"closed\"\nthink_time_ms = [1, 3]\n",
        "model = \"open\"\nrate = 2000\narrival = \"poisson\"\n",
        "model = \"max\"\nmax_in_flight = 64\n",
    ];
    let cases = [
        ("request", "tw1"),
        ("request", "srmp"),
        ("request", "srmp-rpc"),
        ("request", "length-field:size=4"),
        ("request", "uvrpc"),
        ("echo", "tw1"),
        ("echo", "length-field"),
    ];
    // At the same time: each of them mostly waits.
    at_once(cases, |(pattern, codec)| {
        for model in models {
            assert_comes_back(pattern, codec, model);
        }
    });
}

fn assert_comes_back(pattern: &str, codec: &str, model: &str) {
    let lines = format!(
        "pattern = \"{pattern}\"\ncodec = \"{codec}\"\nconcurrency = 4\nduration_secs = 0.3\n\
         payload_bytes = 50\n{model}"
    );
    let report = run_against(codec, |_| echo, &lines, |_| {});
    let what = format!("{pattern} over {codec}, {model}");
    assert_whole(&report, &what);
    let (step, detail) = only(&report);
    let allowed = if model.contains("open") { 4_096 } else { 64 };
    assert!(detail.counts.in_flight_max <= allowed, "{what}");
    assert!(detail.times.service.is_some(), "{what}");
    assert_eq!(step.total_received, step.total_sent, "{what}");
    assert_eq!(detail.counts.timeouts, 0, "{what}");
}

#[test]
fn fan_out_reaches_exactly_its_receivers() {
    let open = "model = \"open\"\nrate = 300\narrival = \"burst\"\n";
    let lines = format!("concurrency = 6\nduration_secs = 0.5\n{open}");
    let chat = Chat::new();
    let report = run_against("tw1", |_| chat.clone(), &lines, |_| {});
    assert_whole(&report, "chat");
    let (step, detail) = only(&report);
    assert_eq!((step.total_sent, step.expected_received), (150, 150 * 5));
    assert_eq!(detail.counts.sent_unknown, 0);
    let service = detail.times.service.as_ref().unwrap();
    assert_eq!(
        service.histogram.count,
        detail.times.scheduled.histogram.count
    );

    let report = run_against(
        "tw1",
        |_| PubSub::new(),
        &format!("pattern = \"pubsub\"\n{lines}"),
        |_| {},
    );
    assert_whole(&report, "pubsub");
    let (step, _) = only(&report);
    assert_eq!((step.total_sent, step.expected_received), (150, 150 * 6));
}

/// Counts the messages of each session, and answers every request with that; with 1 it hides every tenth.
#[derive(Clone, Default)]
pub(crate) struct Sink(HashMap<tidewire::SessionId, u64>, u64);

impl Service for Sink {
    fn on_message(
        &mut self,
        cx: &mut Context<'_>,
        message: Message<'_>,
    ) -> tidewire::HandlerResult {
        let count = self.0.entry(cx.id()).or_default();
        if message.kind == Kind::Request {
            let shown = *count - *count / 10 * self.1;
            return cx.reply(&shown.to_le_bytes());
        }
        *count += 1;
        Ok(())
    }
}

#[test]
fn an_ingest_is_confirmed_by_the_server_and_its_shortfall_is_lost() {
    let lines = "pattern = \"ingest\"\nmodel = \"max\"\nconcurrency = 3\nduration_secs = 0.2\n";
    let report = run_against("tw1", |_| Sink::default(), lines, |_| {});
    assert_whole(&report, "honest");
    let warned = format!("{lines}[guard]\non_violation = \"warn\"\n");
    let report = run_against("tw1", |_| Sink(Default::default(), 1), &warned, |_| {});
    let (step, _) = only(&report);
    assert!(
        step.lost > 0 && step.lost.abs_diff(step.total_sent / 10) <= 3,
        "{step:?}"
    );
    assert_eq!(report.conclusion(), Conclusion::Failed);
}

#[test]
fn a_sink_that_refuses_requests_has_still_handled_all_before_it() {
    let refuse = |_: &mut Context<'_>, message: Message<'_>| match message.kind {
        Kind::Request => Err(tidewire::HandlerError::new(
            tidewire_proto::body::ErrorCode::Unsupported,
            "no",
        )),
        _ => Ok(()),
    };
    let open = "pattern = \"ingest\"\nmodel = \"open\"\nrate = 1000\nconcurrency = 3\nduration_secs = 0.2\n";
    at_once(["tw1", "srmp", "srmp-rpc"], |codec| {
        let lines = format!("codec = \"{codec}\"\n{open}");
        let report = run_against(codec, |_| refuse, &lines, |_| {});
        assert_whole(&report, codec);
        let (step, _) = only(&report);
        assert_eq!(step.total_sent, 200);
        assert!(
            step.notes
                .iter()
                .any(|note| note.contains("does not count")),
            "{:?}",
            step.notes
        );
    });
}

#[test]
fn a_fixed_delay_is_in_both_times_and_a_dropped_hundredth_is_exactly_one_percent() {
    let plan = FaultPlan {
        delay: Duration::from_millis(60),
        drop: Some(Every::nth(100)),
        ..FaultPlan::default()
    };
    let lines = "pattern = \"request\"\nmodel = \"open\"\nconcurrency = 10\nrate = 2000\nduration_secs = 1\n\
                 timeout_ms = 700\ndrain_ms = 1500\n";
    let proof = prove(plan, lines);
    let (step, server) = (proof.step(), proof.server);
    let detail = &step.detail;
    assert_eq!(step.total_sent, 2_000);
    assert_eq!((step.lost, server.dropped), (20, 20));
    // A drop is noticed by its timeout alone.
    assert!(detail.counts.timeouts >= 20, "{:?}", detail.counts);
    let share = step.lost as f64 / step.expected_received as f64;
    assert_eq!(share, 0.01);
    for times in [
        &detail.times.scheduled,
        detail.times.service.as_ref().unwrap(),
    ] {
        assert!(histogram_p(times, 0.0) >= 60.0 * 0.999, "{times:?}");
        assert_eq!(times.missing, 20);
        assert_eq!(times.p99, Percentile::Infinite, "1 % never arrived");
        assert!(matches!(times.p50, Percentile::Known { ms } if ms >= 60.0 * 0.999));
    }
}

#[test]
fn losses_duplicates_and_corrupt_bytes_of_replies_are_distinguished() {
    let plan = FaultPlan {
        seed: 5,
        drop: Some(Every::nth(50).times_max(10)),
        duplicate: Some(Every::nth(40).times_max(10)),
        corrupt: Some(Every::nth(45).times_max(10)),
        ..FaultPlan::default()
    };
    at_once(["request", "echo"], |pattern| {
        let lines = format!(
            "pattern = \"{pattern}\"\nmodel = \"open\"\nconcurrency = 5\nrate = 2000\nduration_secs = 0.5\n\
             timeout_ms = 300\ndrain_ms = 1000\n[guard]\non_violation = \"warn\"\n"
        );
        let proof = prove(plan.clone(), &lines);
        let server = proof.server;
        assert_eq!(
            (server.dropped, server.duplicated, server.corrupted),
            (10, 10, 10)
        );
        // Equal numbers of duplicates and losses do not cancel. A corrupt message also counts as lost.
        assert_eq!(proof.amiss(), [20, 10, 0, 10], "{pattern}");
        assert_eq!(proof.report.conclusion(), Conclusion::Failed);
    });
}

#[test]
fn a_stall_shows_in_scheduled_and_hardly_in_service_on_a_serial_connection() {
    // One request at a time: while the server stalls one waits, and the others are not even sent. Of 3 s the share
    // that is due in the stall waits for its end; of the requests only one saw it.
    let plan = FaultPlan {
        stall: Some(Stall {
            at_message: 500,
            duration: Duration::from_secs(1),
        }),
        ..FaultPlan::default()
    };
    let lines = "pattern = \"request\"\nmodel = \"open\"\nconcurrency = 1\nrate = 1000\nduration_secs = 3\n\
                 max_in_flight = 1\n";
    let proof = prove(plan, lines);
    let (step, detail) = only(&proof.report);
    assert_eq!((step.total_sent, step.lost), (3_000, 0));
    let scheduled = &detail.times.scheduled;
    let service = detail.times.service.as_ref().unwrap();
    let lag = &detail.times.send_lag;
    assert_eq!(scheduled.histogram.count, 3_000);
    // A third of all was due during the second: 3 in 30 of them waited 0.9 s or longer, 15 in 30 half a second.
    assert!(histogram_p(scheduled, 0.99) >= 900.0, "{scheduled:?}");
    assert!(histogram_p(scheduled, 0.90) >= 650.0, "{scheduled:?}");
    assert!(histogram_p(scheduled, 0.80) >= 400.0, "{scheduled:?}");
    assert!(service.max_ms >= 990.0, "{service:?}");
    // All but one of the requests did not see the stall, so that up to the last thousandth the two are far apart.
    for quantile in [0.80, 0.90, 0.99] {
        let (felt, seen) = (
            histogram_p(scheduled, quantile),
            histogram_p(service, quantile),
        );
        assert!(seen * 2.0 < felt, "{quantile}: {seen} and {felt}");
        // Scheduled latency exceeds service time by the lag of sending, message by message.
        assert!(histogram_p(lag, quantile) <= felt * 1.002, "{quantile}");
    }
    assert_eq!(detail.counts.in_flight_max, 1);
}

#[test]
fn messages_that_cannot_be_sent_in_time_are_skipped_and_counted() {
    let plan = FaultPlan {
        delay: Duration::from_millis(50),
        ..FaultPlan::default()
    };
    // A window of one and a delay of 50 ms allow at most 20 a second; 100 are due.
    let lines = "pattern = \"request\"\nmodel = \"open\"\nconcurrency = 1\nrate = 100\nduration_secs = 1\n\
                 max_in_flight = 1\non_late = \"skip\"\n";
    let proof = prove(plan, lines);
    let (step, detail) = only(&proof.report);
    let counts = &detail.counts;
    assert_eq!(counts.offered, 100);
    assert_eq!(step.total_sent + counts.skipped + counts.unsent, 100);
    assert!(step.total_sent <= 21, "{}", step.total_sent);
    assert_eq!(step.lost, 0);
    // A message that was left out ranks above everything that arrived.
    assert_eq!(detail.times.scheduled.missing, 100 - step.total_received);
    assert_eq!(detail.times.scheduled.p90, Percentile::Infinite);
}

#[test]
fn messages_that_are_caught_up_are_as_late_as_the_window() {
    let plan = FaultPlan {
        delay: Duration::from_millis(50),
        ..FaultPlan::default()
    };
    let lines = "pattern = \"request\"\nmodel = \"open\"\nconcurrency = 1\nrate = 40\nduration_secs = 1\n\
                 max_in_flight = 1\non_late = \"catch_up\"\n";
    let proof = prove(plan, lines);
    let (step, detail) = only(&proof.report);
    assert_eq!((step.total_sent, detail.counts.skipped), (40, 0));
    assert!(detail.times.scheduled.max_ms >= 40.0 * 50.0 - 1_000.0);
}

#[test]
fn replies_that_come_after_the_timeout_are_late_and_not_lost() {
    let plan = FaultPlan {
        // Sixteen timeouts, so that even a lane that is stopped for long sees the timeout before the reply.
        delay: Duration::from_millis(800),
        ..FaultPlan::default()
    };
    let lines = "pattern = \"request\"\nmodel = \"open\"\nconcurrency = 2\nrate = 100\nduration_secs = 0.5\n\
                 timeout_ms = 50\n";
    let proof = prove(plan, lines);
    let (step, detail) = only(&proof.report);
    assert_eq!((step.total_sent, step.lost), (50, 0));
    assert_eq!(detail.counts.timeouts, 50);
    assert_eq!(detail.counts.late_replies, 50);
    assert_eq!(detail.times.scheduled.histogram.count, 50);
    assert!(histogram_p(&detail.times.scheduled, 0.0) >= 800.0 * 0.999);
}

#[test]
fn an_overdriven_instrument_is_invalid_and_its_lateness_is_not_in_service() {
    let lines = "pattern = \"echo\"\nmodel = \"open\"\nconcurrency = 4\nrate = 20000000\nduration_secs = 0.01\n\
                 max_in_flight = 100000000\n";
    let report = run_against("tw1", |_| echo, lines, |_| {});
    let (step, detail) = only(&report);
    assert_eq!(step.lost, 0, "{step:?}");
    assert!(!detail.verdict.is_valid(), "{:?}", detail.verdict);
    assert!(
        detail
            .verdict
            .reasons
            .iter()
            .any(|reason| reason.contains("sent late")),
        "{:?}",
        detail.verdict
    );
    assert_eq!(report.conclusion(), Conclusion::Invalid);
    // The instrument stood still between the intended time and the reading of the clock: that is its own.
    let (scheduled, lag) = (&detail.times.scheduled, &detail.times.send_lag);
    let service = detail.times.service.as_ref().unwrap();
    assert!(histogram_p(scheduled, 0.9) >= histogram_p(lag, 0.9) * 0.998);
    assert!(
        service.mean_ms < scheduled.mean_ms,
        "{} {}",
        service.mean_ms,
        scheduled.mean_ms
    );
    let sum = service.mean_ms + lag.mean_ms;
    assert!(
        (sum - scheduled.mean_ms).abs() <= scheduled.mean_ms * 0.01,
        "{sum} {}",
        scheduled.mean_ms
    );

    let warned = format!("{lines}[guard]\non_violation = \"warn\"\n");
    let report = run_against("tw1", |_| echo, &warned, |_| {});
    assert_eq!(report.conclusion(), Conclusion::Passed);
}

#[test]
fn limits_are_judged_and_allow_values_up_to_them() {
    let plan = FaultPlan {
        drop: Some(Every::nth(100)),
        ..FaultPlan::default()
    };
    let lines = "pattern = \"request\"\nmodel = \"open\"\nconcurrency = 4\nrate = 1000\nduration_secs = 1\n\
                 timeout_ms = 200\ndrain_ms = 600\n[steps.slo]\nloss_pct = 1\n[guard]\non_violation = \"warn\"\n";
    let cases = [
        ("1", Conclusion::Passed, 0),
        ("0.9", Conclusion::SloFailed, 1),
    ];
    at_once(cases, |(limit, conclusion, violations)| {
        let lines = lines.replace("loss_pct = 1", &format!("loss_pct = {limit}"));
        let proof = prove(plan.clone(), &lines);
        assert_eq!(proof.step().lost, 10);
        let (report, (_, detail)) = (&proof.report, only(&proof.report));
        assert_eq!(report.conclusion(), conclusion, "{report:?}");
        assert_eq!(detail.slo.violations.len(), violations, "{:?}", detail.slo);
    });
}

#[test]
fn slow_receivers_are_reported_apart() {
    let lines = "concurrency = 5\nslow_receivers = 2\nslow_pause_ms = 20\nmodel = \"open\"\nrate = 300\n\
                 duration_secs = 0.5\n";
    let chat = Chat::new();
    let report = run_against("tw1", |_| chat.clone(), lines, |_| {});
    assert_whole(&report, "slow");
    let (step, detail) = only(&report);
    // Three send and receive from each other. The other two only listen.
    assert_eq!((step.total_sent, step.expected_received), (150, 150 * 2));
    let slow = detail.slow_receivers.unwrap();
    assert_eq!((slow.receivers, slow.expected), (2, 150 * 2));
    assert_eq!(slow.delivered + slow.lost, slow.expected);
}
