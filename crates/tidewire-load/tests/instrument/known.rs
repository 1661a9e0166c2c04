//! The report of the instrument on itself and the server when it cannot keep up, or cannot know.

use std::time::Duration;

use tidewire::{Context, HandlerResult, Kind, Message};
use tidewire_load::report::{Conclusion, Report};
use tidewire_testkit::fixtures::echo;

use crate::proof::at_once;
use crate::workloads::{only, run_against, run_scenario, scenario};

/// Takes everything, and answers no question.
fn silent(_: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
    Ok(())
}

/// Whatever became of them, no message that was due is missing from the books, and none is in them twice.
fn assert_offers_its_schedule(report: &Report, offered: u64, steady: u64) {
    let (step, detail) = only(report);
    let counts = &detail.counts;
    assert_eq!((counts.offered, counts.steady_offered), (offered, steady));
    let sent = step.total_sent + step.total_send_errors;
    assert_eq!(offered, sent + counts.skipped + counts.unsent);
    assert_eq!(
        step.expected_received,
        step.total_received + step.lost + step.unconfirmed
    );
    assert!(step.attainment <= 1.0, "{}", step.attainment);
    assert!(counts.steady_on_time.unwrap() <= steady);
}

#[test]
fn an_overdriven_ingest_offers_its_schedule_reports_unsent_messages_and_is_invalid() {
    let lines = "pattern = \"ingest\"\nmodel = \"open\"\nrate = 90000000\nconcurrency = 20\nduration_secs = 0.5\n\
                 drain_ms = 300\n";
    at_once(["catch_up", "skip"], |on_late| {
        let mut scenario = scenario(&format!("{lines}on_late = \"{on_late}\"\n"));
        // All that can be sent is of the warm-up: of the steady window not one message is taken from the schedule.
        scenario.steps[0].warmup_secs = Some(0.2);
        let report = run_scenario("tw1", |_| silent, &scenario, |_| {});
        assert_offers_its_schedule(&report, 45_000_000, 27_000_000);
        let (step, detail) = only(&report);
        assert!((step.theoretical_tps - 9e7).abs() < 1.0, "{step:?}");
        assert!(step.attainment < 0.9, "{}", step.attainment);
        let missed = match on_late {
            "skip" => detail.counts.skipped,
            _ => detail.counts.unsent,
        };
        assert!(missed > 0, "{:?}", detail.counts);
        assert_eq!((step.client.send_lag_p99_ms, step.latency), (None, None));
        assert_eq!(report.conclusion(), Conclusion::Invalid, "{step:?}");
    });
}

#[test]
fn a_schedule_that_was_kept_up_with_is_offered_whole() {
    let lines = "pattern = \"request\"\nmodel = \"open\"\nrate = 200\nconcurrency = 4\nduration_secs = 0.5\n\
                 drain_ms = 20000\n[guard]\non_violation = \"warn\"\n";
    let report = run_against("tw1", |_| echo, lines, |_| {});
    assert_offers_its_schedule(&report, 100, 100);
    let (step, detail) = only(&report);
    assert_eq!((step.total_sent, detail.counts.unsent), (100, 0));
}

#[test]
fn catching_up_ends_with_the_drain_and_the_rest_counts_as_unsent() {
    // A place comes free every 200 ms, so that all of it would take a hundred seconds.
    let slow = |cx: &mut Context<'_>, message: Message<'_>| {
        std::thread::sleep(Duration::from_millis(200));
        cx.reply(message.payload)
    };
    let lines = "pattern = \"request\"\nmodel = \"open\"\nrate = 1000\nconcurrency = 1\nduration_secs = 0.5\n\
                 max_in_flight = 1\ntimeout_ms = 60000\ndrain_ms = 500\n[guard]\non_violation = \"warn\"\n";
    let report = run_against("tw1", |_| slow, lines, |_| {});
    assert_offers_its_schedule(&report, 500, 500);
    let (step, detail) = only(&report);
    // Five places a second, for half a second and the drain.
    assert!((1..=7).contains(&step.total_sent), "{}", step.total_sent);
    assert_eq!(detail.counts.unsent, 500 - step.total_sent);
    let told = format!("{} messages were due and never sent", detail.counts.unsent);
    assert!(
        step.notes.iter().any(|note| note.contains(&told)),
        "{:?}",
        step.notes
    );
    assert_eq!(detail.times.scheduled.missing, 500 - step.total_received);
}

#[test]
fn an_ingest_that_the_server_does_not_confirm_is_unconfirmed_and_not_lost() {
    let open = "pattern = \"ingest\"\nmodel = \"open\"\nrate = 1000\nconcurrency = 4\nduration_secs = 0.2\n\
                drain_ms = 100\n";
    let guard = "[guard]\non_violation = \"warn\"\n";
    let cases = [
        ("", Conclusion::Failed),
        // An unknown figure is judged as the worst that it may be.
        ("[steps.slo]\nloss_pct = 99\n", Conclusion::SloFailed),
        ("[steps.slo]\nloss_pct = 100\n", Conclusion::Passed),
    ];
    at_once(cases, |(limits, conclusion)| {
        let report = run_against("tw1", |_| silent, &format!("{open}{limits}{guard}"), |_| {});
        let (step, detail) = only(&report);
        // The server was planned to report at the end, so the time of each arrival is unknown.
        assert_eq!(step.steady.receive_tps, None);
        assert!(detail.series.iter().all(|second| second.received.is_none()));
        assert!(report.to_markdown().contains("steady n/a"), "{step:?}");
        let fates = (step.total_received, step.lost, step.unconfirmed);
        assert_eq!(fates, (0, 0, 200), "{limits}");
        assert_eq!(report.conclusion(), conclusion, "{limits} {step:?}");
        let texts = step.problems.iter().chain(&step.notes);
        assert!(
            texts
                .into_iter()
                .any(|text| text.starts_with("200 expected deliveries are unconfirmed")),
            "{step:?}"
        );
    });
}

#[test]
fn a_known_count_gives_the_loss_beside_an_unknown_count() {
    // Every other connection gets an answer, and one message fewer than it sent.
    let mut counts = std::collections::HashMap::<_, u64>::new();
    let mut answered = 0_u64;
    let half = move |cx: &mut Context<'_>, message: Message<'_>| {
        let count = counts.entry(cx.id()).or_default();
        if message.kind != Kind::Request {
            *count += 1;
            return Ok(());
        }
        answered += 1;
        match answered % 2 {
            0 => cx.reply(&(*count - 1).to_le_bytes()),
            _ => Ok(()),
        }
    };
    let mut half = Some(half);
    let lines = "pattern = \"ingest\"\nmodel = \"open\"\nrate = 1000\nconcurrency = 4\nduration_secs = 0.2\n\
                 drain_ms = 200\n";
    let report = run_against("tw1", |_| half.take().unwrap(), lines, |_| {});
    let (step, detail) = only(&report);
    let fates = (step.total_received, step.lost, step.unconfirmed);
    assert_eq!(fates, (98, 2, 100), "{step:?}");
    let worst = detail.worst_receivers.iter();
    assert_eq!(worst.map(|receiver| receiver.unconfirmed).sum::<u64>(), 100);
}
