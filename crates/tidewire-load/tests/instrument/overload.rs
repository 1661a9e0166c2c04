//! The report on servers that delay the load, and on closed loops with lost replies.

use std::time::Duration;

use tidewire::{Context, HandlerResult, Kind, Message};
use tidewire_load::plan::RunOptions;
use tidewire_load::report::{Conclusion, Verdict};
use tidewire_load::run::{Observer, Phase, Progress};

use crate::proof::run;
use crate::proof::{SEED, at_once};
use crate::workloads::{only, run_against, scenario};

/// Answers a hundred requests a second.
fn slow(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    std::thread::sleep(Duration::from_millis(10));
    cx.reply(message.payload)
}

/// Takes everything, and answers no request.
fn silent(_: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
    Ok(())
}

#[test]
fn messages_unsent_for_a_slow_server_fail_the_step_of_any_server() {
    let lines = "pattern = \"request\"\nmodel = \"open\"\nrate = 400\nconcurrency = 4\nduration_secs = 0.5\n\
                 max_in_flight = 8\ntimeout_ms = 60000\ndrain_ms = 20000\n";
    at_once(["catch_up", "skip"], |on_late| {
        let lines = format!("{lines}on_late = \"{on_late}\"\n[guard]\non_violation = \"warn\"\n");
        let report = run_against("tw1", |_| slow, &lines, |_| {});
        let (step, detail) = only(&report);
        // The processor time of this server is not known, which is no excuse for it.
        assert_eq!(detail.cost.server_cpu_pct, None);
        assert!(step.attainment < 0.99, "{}", step.attainment);
        assert_eq!(report.conclusion(), Conclusion::Failed, "{step:?}");
        let told =
            "messages that were due in the steady window could not be sent in it: all 2 places";
        assert!(step.problems.iter().any(|it| it.contains(told)), "{step:?}");
        // The server answered all that was sent, so that its own time is known of every message.
        assert_eq!((step.lost, step.total_received), (0, step.total_sent));
        let service = detail.times.service.as_ref().unwrap();
        assert_eq!(
            (service.missing, service.histogram.count),
            (0, step.total_sent)
        );
        assert_eq!(detail.times.scheduled.missing, 200 - step.total_sent);
    });
}

#[test]
fn the_window_of_a_codec_is_the_one_that_the_report_names() {
    let lines = "pattern = \"request\"\ncodec = \"srmp\"\nmodel = \"open\"\nrate = 2000\nconcurrency = 1\n\
                 duration_secs = 0.3\ntimeout_ms = 60000\ndrain_ms = 200\n[guard]\non_violation = \"warn\"\n";
    let report = run_against("srmp", |_| silent, lines, |_| {});
    let (step, detail) = only(&report);
    assert_eq!(detail.workload.in_flight_allowed, Some(255));
    assert_eq!((step.total_sent, detail.counts.unsent), (255, 345));
    let told = "345 of 600 messages that were due in the steady window could not be sent in it: the codec srmp allows \
        255 unanswered messages an agent";
    assert!(step.problems.iter().any(|it| it.contains(told)), "{step:?}");
    // The 255 that were sent and not answered are missing in the time of the server, and the others are not.
    assert_eq!(detail.times.scheduled.missing, 600);
    assert_eq!(detail.times.service, None);
}

#[test]
fn a_closed_loop_whose_replies_are_lost_or_late_keeps_littles_law() {
    /// Loses, refuses or delays every fiftieth.
    fn every_fiftieth(
        fault: &'static str,
    ) -> impl FnMut(&mut Context<'_>, Message<'_>) -> HandlerResult {
        let mut count = 0_u64;
        move |cx, message| {
            count += 1;
            match fault {
                _ if message.kind != Kind::Request || !count.is_multiple_of(50) => {
                    cx.reply(message.payload)
                }
                "lost" => Ok(()),
                _ => cx.reply(b"no stamp"),
            }
        }
    }
    let lines = "pattern = \"request\"\nmodel = \"closed\"\nthink_time_ms = [2, 2]\nconcurrency = 16\nduration_secs = \
        3\n\
                 timeout_ms = 300\ndrain_ms = 500\n[guard]\non_violation = \"warn\"\n";
    at_once(["lost", "corrupt"], |fault| {
        let mut service = Some(every_fiftieth(fault));
        let report = run_against("tw1", |_| service.take().unwrap(), lines, |_| {});
        let (step, detail) = only(&report);
        assert!(step.lost > 0, "{step:?}");
        assert_eq!(
            fault == "lost",
            detail.counts.timeouts > 0,
            "{:?}",
            detail.counts
        );
        let doubts = &detail.verdict.reasons;
        let breaks_law = doubts.iter().any(|doubt| doubt.contains("Little's law"));
        assert!(!breaks_law, "{fault}: {doubts:?}");
        assert_eq!(report.conclusion(), Conclusion::Failed);
    });
}

/// Keeps the last progress of each phase.
#[derive(Default)]
struct Looks(Vec<Progress>);

impl Observer for Looks {
    fn progress(&mut self, progress: &Progress) {
        self.0.push(progress.clone());
    }
}

#[test]
fn a_watcher_of_a_step_has_its_verdict_so_far() {
    let lines = "pattern = \"request\"\nmodel = \"open\"\nrate = 100\nconcurrency = 2\nduration_secs = 3\n\
                 [guard]\nmax_client_cpu_pct = 1e-9\non_violation = \"warn\"\n";
    let server = tidewire::Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| tidewire_testkit::fixtures::echo)
        .unwrap();
    let mut options = RunOptions::new(server.addresses()[..1].to_vec());
    options.seed = SEED;
    let mut looks = Looks::default();
    let mut scenario = scenario(lines);
    scenario.steps[0].warmup_secs = Some(1.5);
    let report = run(&scenario, options, &mut looks).unwrap();
    let (_, detail) = only(&report);
    let busy = |verdict: &Verdict| {
        verdict
            .disturbances
            .iter()
            .any(|it| it.starts_with("the instrument used"))
    };
    // The instrument has used processor time on any machine.
    assert!(busy(&detail.verdict), "{detail:?}");
    let is_early = |look: &&Progress| matches!(look.phase, Phase::Login | Phase::WarmUp);
    let (early, later): (Vec<_>, Vec<_>) = looks.0.iter().partition(is_early);
    let has_none = |look: &Progress| look.verdict == Verdict::default();
    assert!(early.iter().all(|look| has_none(look)), "{early:?}");
    assert!(
        !later.is_empty() && later.iter().all(|look| busy(&look.verdict)),
        "{later:?}"
    );
}
