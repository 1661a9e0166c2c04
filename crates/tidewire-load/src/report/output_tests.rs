//! The report in other forms, and old reports in this one.

use super::*;
use std::time::SystemTime;

use crate::format::utc;
use crate::scenario::{Step, ThinkTime};
use crate::slo::Slo;
use crate::statistics::{EncodedHistogram, LatencyHistogram};

const THINK_TIME: ThinkTime = ThinkTime {
    min_ms: 1.0,
    max_ms: 1.0,
};

/// A report of one step with details, as an open step leaves it.
fn report(name: &str) -> Report {
    let mut histogram = LatencyHistogram::new();
    for value in 1..=2_000_u64 {
        histogram.record(value * 1_000);
    }
    let times = Distribution::of(&histogram, 0);
    let step = Step::chat(name, 3, 1.0, THINK_TIME);
    let detail = StepDetail {
        workload: Workload::of(&step),
        counts: WorkCounts::default(),
        window: Window::default(),
        times: StepTimes {
            scheduled: times.clone(),
            across: None,
            service: Some(times.clone()),
            send_lag: times.clone(),
            client_lag: None,
            write: times,
        },
        cost: Cost::default(),
        verdict: Verdict {
            reasons: vec!["the instrument <was> late".to_owned()],
            enforced: true,
        },
        slo: SloReport {
            limits: Slo {
                p99_ms: Some(1.0),
                ..Slo::default()
            },
            violations: vec!["p99 is 1.98 ms, the limit 1 ms".to_owned()],
        },
        series: Vec::new(),
        worst_receivers: Vec::new(),
        slow_receivers: None,
        fan_out_share: None,
        processes: Vec::new(),
        faults: Vec::new(),
        losses: None,
        runs: Vec::new(),
    };
    let mut step = StepReport::failed(&step, "lost & found".to_owned());
    step.detail = Some(Box::new(detail));
    let facts = Report {
        target_server: "tcp://127.0.0.1:1".to_owned(),
        start_time_utc: utc(SystemTime::UNIX_EPOCH),
        end_time_utc: utc(SystemTime::UNIX_EPOCH),
        total_duration_secs: 1.0,
        seed: 1,
        env: Environment::detect("0", ""),
        scenario_version: 2,
        ..Report::default()
    };
    facts.with_steps(vec![step], false)
}

#[test]
fn a_build_server_gets_every_reason_and_names_cannot_break_the_file() {
    let text = report("a \"b\" <c> & d\u{7}").to_junit();
    assert!(text.contains("tests=\"1\" failures=\"1\""), "{text}");
    assert!(
        text.contains("name=\"a &quot;b&quot; &lt;c&gt; &amp; d\u{FFFD}\""),
        "{text}"
    );
    assert!(
        text.contains("message=\"INVALID: the instrument &lt;was&gt; late\""),
        "{text}"
    );
    assert!(
        text.contains("p99 is 1.98 ms") && text.contains("lost &amp; found"),
        "{text}"
    );
}

#[test]
fn a_line_of_csv_has_as_many_fields_as_its_heading() {
    let text = report("plain").to_csv();
    let lines: Vec<&str> = text.lines().collect();
    let [heading, line] = lines[..] else {
        panic!("{text}")
    };
    assert_eq!(
        heading.split(',').count(),
        line.split(',').count(),
        "{text}"
    );
    assert!(line.starts_with("plain,chat,tw1,closed,"), "{line}");
    // The work of the lanes is not known, so the cells are empty.
    assert!(
        line.ends_with("INVALID,broken,,,,,,,,,0,0,0,0.000"),
        "{line}"
    );
    assert!(
        report("a, \"b\"")
            .to_csv()
            .contains("\n\"a, \"\"b\"\"\",chat")
    );
}

#[test]
fn the_histogram_log_holds_the_histograms_themselves() {
    let text = report("one\ntwo").to_histogram_log();
    let line = text
        .lines()
        .find(|line| line.starts_with("Tag=service,"))
        .unwrap();
    let encoded = EncodedHistogram {
        hdr_v2_base64: line.rsplit(',').next().unwrap().to_owned(),
        count: 2_000,
        clipped: 0,
    };
    assert_eq!(encoded.decode().unwrap().count(), 2_000);
    // Nothing but comments, the heading and tagged lines.
    assert!(
        text.lines()
            .all(|line| ["#[", "\"S", "Ta"].contains(&&line[..2])),
        "{text}"
    );
}

#[test]
fn steps_of_the_histogram_log_do_not_overlap_in_time() {
    let mut report = report("one");
    let mut first = report.steps.remove(0);
    first.test_duration_secs = 5.0;
    let window = &mut first.detail.as_mut().unwrap().window;
    (window.warmup_secs, window.steady_secs) = (1.0, 3.0);
    let mut short = first.clone();
    // Merged parts have a longer window than any of them took.
    short.test_duration_secs = 2.0;
    // A step that failed has no line, and takes its time.
    let mut failed = first.clone();
    failed.detail = None;
    report.steps = vec![first.clone(), failed, short, first];
    let text = report.to_histogram_log();
    let times = text.lines().filter(|line| line.starts_with("Tag=service,"));
    let times = times.map(|line| {
        let mut fields = line.split(',').skip(1);
        let mut field = || fields.next().unwrap().parse::<f64>().unwrap();
        (field(), field())
    });
    let times: Vec<(f64, f64)> = times.collect();
    assert_eq!(times, [(1.0, 3.0), (11.0, 3.0), (15.0, 3.0)]);
}

#[test]
fn the_weightiest_conclusion_counts() {
    let mut report = report("a");
    assert_eq!(
        (report.conclusion(), report.status),
        (Conclusion::Invalid, Status::Failed)
    );
    let verdict = |report: &mut Report, enforced| {
        report.steps[0].detail.as_mut().unwrap().verdict.enforced = enforced;
    };
    verdict(&mut report, false);
    assert_eq!(report.conclusion(), Conclusion::SloFailed);
    report.steps[0]
        .detail
        .as_mut()
        .unwrap()
        .slo
        .violations
        .clear();
    assert_eq!(report.conclusion(), Conclusion::Failed);
    report.steps[0].problems.clear();
    assert_eq!(report.conclusion(), Conclusion::Passed);
    report.status = Status::Interrupted;
    assert_eq!(report.conclusion(), Conclusion::Interrupted);
}

#[test]
fn a_report_without_histograms_cannot_be_merged_and_says_which() {
    let mut old = report("a");
    old.steps[0].detail = None;
    let error = Report::merge(&[report("a"), old], MergeKind::Runs).unwrap_err();
    assert!(
        error.to_string().contains("step \"a\" of report 2"),
        "{error}"
    );
    let error = Report::merge(&[report("a"), report("b")], MergeKind::Runs).unwrap_err();
    assert!(error.to_string().contains("of another scenario"), "{error}");
    let mut damaged = report("a");
    let detail = damaged.steps[0].detail.as_mut().unwrap();
    detail.times.scheduled.histogram.hdr_v2_base64.truncate(9);
    let error = Report::merge(&[report("a"), damaged], MergeKind::Runs).unwrap_err();
    assert!(
        matches!(error, MergeError::Histogram { number: 2, .. }),
        "{error}"
    );
}

#[test]
fn a_report_of_version_1_goes_round_without_a_change() {
    // A report of an older build has none of the new keys, and none appears.
    let mut report = report("a");
    report.scenario_version = 1;
    report.steps[0].detail = None;
    let text = serde_json::to_string_pretty(&report).unwrap();
    for key in ["detail", "scenario_version", "segment"] {
        assert!(!text.contains(key), "{key}");
    }
    let back: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(back, report);
    assert_eq!(serde_json::to_string_pretty(&back).unwrap(), text);
}

#[test]
fn a_wall_clock_that_jumps_changes_no_figure() {
    let jumped = |secs| {
        let end = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(secs);
        let facts = Report {
            target_server: String::new(),
            start_time_utc: utc(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(9_000)),
            end_time_utc: utc(end),
            total_duration_secs: 1.5,
            seed: 1,
            env: Environment::detect("0", ""),
            scenario_version: 2,
            ..Report::default()
        };
        facts.with_steps(report("a").steps, false)
    };
    // An hour back and an hour ahead: only the label differs.
    let (back, ahead) = (jumped(5_400), jumped(12_600));
    assert_eq!(back.total_duration_secs, ahead.total_duration_secs);
    assert_eq!(back.steps, ahead.steps);
    assert_ne!(back.end_time_utc, ahead.end_time_utc);
}
