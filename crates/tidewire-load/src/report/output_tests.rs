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
            disturbances: Vec::new(),
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
    step.detail = Box::new(detail);
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
    let window = &mut first.detail.window;
    (window.warmup_secs, window.steady_secs) = (1.0, 3.0);
    let mut short = first.clone();
    // Merged parts have a longer window than any of them took.
    short.test_duration_secs = 2.0;
    // A step that failed has no line, and takes its time.
    let mut failed = first.clone();
    failed.detail = Box::default();
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
        report.steps[0].detail.verdict.enforced = enforced;
    };
    verdict(&mut report, false);
    assert_eq!(report.conclusion(), Conclusion::SloFailed);
    report.steps[0].detail.slo.violations.clear();
    assert_eq!(report.conclusion(), Conclusion::Failed);
    report.steps[0].problems.clear();
    assert_eq!(report.conclusion(), Conclusion::Passed);
    report.status = Status::Interrupted;
    assert_eq!(report.conclusion(), Conclusion::Interrupted);
}

#[test]
fn the_verdict_is_the_same_in_every_form_and_says_what_may_be_believed() {
    let mut report = report("a");
    let spoil = |report: &mut Report, spoil: fn(&mut StepDetail)| {
        spoil(&mut report.steps[0].detail);
    };
    let check = |report: &Report, run: &str, step: &str| {
        assert_eq!(
            (report.verdict(), report.steps[0].verdict().name()),
            (run, step)
        );
        let html = report.to_html();
        let capitals = verdict::capitalised(run);
        assert!(
            html.contains(&format!(" {capitals}</strong>")),
            "{capitals}: {html}"
        );
        assert!(html.contains(&format!(" {step}</em>")), "{step}: {html}");
        let markdown = report.to_markdown();
        assert!(
            markdown.contains(&format!("**{capitals}**: ")),
            "{markdown}"
        );
        assert!(markdown.contains(&format!("## a: {step}\n")), "{markdown}");
        let table = step_table(&report.steps[0], usize::MAX);
        assert!(table.starts_with(&format!("a: {step}\n")), "{table}");
        let is_doubtful = step.contains("INVALID");
        for text in [html, markdown, table] {
            assert_eq!(
                text.contains("the counts of messages; not the rates"),
                is_doubtful,
                "{text}"
            );
        }
        assert_eq!(
            report
                .explanation()
                .contains("counts of messages may be believed"),
            is_doubtful
        );
    };
    check(&report, "INVALID measurement", "INVALID");
    spoil(&mut report, |detail| detail.verdict.enforced = false);
    check(
        &report,
        "limit broken, and INVALID",
        "limit broken, and INVALID",
    );
    spoil(&mut report, |detail| detail.slo.violations.clear());
    check(&report, "failed, and INVALID", "failed, and INVALID");
    report.steps[0].problems.clear();
    check(&report, "passed, but INVALID", "passed, but INVALID");
    // A measurement that the scenario takes all the same is no failure, and is told.
    let junit = report.to_junit();
    assert!(
        junit.contains("failures=\"0\"") && junit.contains("<system-out>INVALID: "),
        "{junit}"
    );
    spoil(&mut report, |detail| detail.verdict.reasons.clear());
    check(&report, "passed", "passed");
}

#[test]
fn a_busy_machine_is_a_note_and_its_times_are_marked_in_every_form() {
    let mut report = report("a");
    report.steps[0].problems.clear();
    let detail = &mut report.steps[0].detail;
    (detail.verdict, detail.slo) = (Verdict::default(), SloReport::default());
    let quiet = report.clone();
    let late = "the instrument sent late".to_owned();
    report.steps[0].detail.verdict.disturbances = vec![late];
    assert_eq!(
        (report.conclusion(), report.verdict()),
        (Conclusion::Passed, "passed")
    );
    assert!(report.is_disturbed() && !report.is_doubtful() && !quiet.is_disturbed());
    assert!(
        report.explanation().ends_with("steps include its delays"),
        "{}",
        report.explanation()
    );
    let forms = |report: &Report| {
        let table = step_table(&report.steps[0], usize::MAX);
        let (markdown, html) = (report.to_markdown(), report.to_html());
        [table, markdown, html, report.to_csv(), report.to_junit()]
    };
    let [table, markdown, html, csv, junit] = forms(&report);
    for text in [&table, &markdown, &html] {
        assert!(
            text.contains("disturbed: the instrument sent late"),
            "{text}"
        );
        assert!(text.contains("include delays of this machine"), "{text}");
        assert!(!text.contains("INVALID"), "{text}");
    }
    assert!(
        table.contains("scheduled*") && table.contains("service*"),
        "{table}"
    );
    assert!(
        !table.contains("write*") && !table.contains("send lag*"),
        "{table}"
    );
    assert!(markdown.contains("| scheduled\\* |"), "{markdown}");
    assert!(html.contains("Believe the counts and rates"), "{html}");
    assert_eq!(html.matches("scheduled*").count(), 1, "{html}");
    assert!(
        html.contains("ms, disturbed") && html.contains("✓ Passed"),
        "{html}"
    );
    assert!(html.contains("✓ passed; times disturbed"), "{html}");
    assert!(csv.contains("DISTURBED"), "{csv}");
    assert!(
        junit.contains("failures=\"0\"") && junit.contains("<system-out>disturbed: "),
        "{junit}"
    );
    let [table, markdown, html, csv, junit] = forms(&quiet);
    for text in [table, markdown, html, csv, junit] {
        assert!(!text.to_lowercase().contains("disturbed"), "{text}");
    }
}

#[test]
fn a_run_that_passed_claims_only_what_was_checked() {
    let mut passed = report("a");
    passed.steps[0].problems.clear();
    let detail = &mut passed.steps[0].detail;
    (detail.verdict, detail.slo) = (Verdict::default(), SloReport::default());
    let counts = |report: &mut Report, pattern: &str, reordered: Option<u64>| {
        let step = &mut report.steps[0];
        (step.duplicated, step.reordered, step.late) = (reordered.map(|_| 0), reordered, Some(3));
        step.detail.workload.pattern = pattern.to_owned();
        report.explanation()
    };
    let whole = "every expected message arrived";
    for (pattern, reordered, told) in [
        (
            "chat",
            Some(0),
            ", once, unchanged and in order; 3 were late",
        ),
        ("request", Some(0), ", once and unchanged; 3 were late"),
        (
            "request",
            Some(149),
            ", once and unchanged; 149 replies overtook others; 3 were late",
        ),
        (
            "ingest",
            None,
            "; the server says only how many, so that neither order nor content is known; 3 were late",
        ),
    ] {
        let said = counts(&mut passed, pattern, reordered);
        assert_eq!(said, format!("{whole}{told}"));
        let sentence = verdict::capitalised(&said);
        assert!(passed.to_html().contains(&sentence), "{sentence}");
    }
    passed.steps[0].lost = 2;
    assert!(
        !passed.explanation().contains(whole),
        "{}",
        passed.explanation()
    );
}

#[test]
fn an_interrupted_run_is_not_green_for_a_build_server() {
    let mut cut = report("a");
    cut.status = Status::Interrupted;
    let detail = &mut cut.steps[0].detail;
    (detail.verdict, detail.slo) = (Verdict::default(), SloReport::default());
    cut.steps[0].problems =
        vec!["the run was interrupted 1.4 s before the end of this step".to_owned()];
    cut.not_run = vec!["b".to_owned(), "c & d".to_owned()];
    let text = cut.to_junit();
    assert!(
        text.contains("tests=\"3\" failures=\"0\" errors=\"1\" skipped=\"2\""),
        "{text}"
    );
    assert!(
        text.contains("<error message=\"the run was interrupted 1.4 s"),
        "{text}"
    );
    assert!(text.contains("name=\"c &amp; d\"><skipped "), "{text}");
    assert!(cut.to_markdown().contains("## b: not run"));
    let back: Report = serde_json::from_str(&serde_json::to_string(&cut).unwrap()).unwrap();
    assert_eq!(back.not_run, cut.not_run);
}

#[test]
fn a_name_of_a_time_has_one_meaning_in_a_table() {
    let mut lossy = report("a");
    let mut histogram = LatencyHistogram::new();
    histogram.record_many(4_000_000, 980);
    let times = &mut lossy.steps[0].detail.times;
    times.scheduled = Distribution::of(&histogram, 20);
    times.service = Some(Distribution::of(&histogram, 0));
    for text in [step_table(&lossy.steps[0], usize::MAX), lossy.to_markdown()] {
        let rows: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("scheduled ") && line.contains("4.00"))
            .collect();
        assert_eq!(rows.len(), 1, "{text}");
        // p50, p90 and p95 are known; one in fifty is missing, so that the p99 is infinite.
        assert_eq!(
            (
                rows[0].matches("4.00").count(),
                rows[0].matches("inf").count()
            ),
            (5, 1),
            "{text}"
        );
        assert!(rows[0].contains("n/a"), "too few for a p99.9: {text}");
    }
}

#[test]
fn a_report_of_another_scenario_or_with_a_damaged_histogram_cannot_be_merged() {
    let error = Report::merge(&[report("a"), report("b")], MergeKind::Runs).unwrap_err();
    assert!(error.to_string().contains("of another scenario"), "{error}");
    let mut damaged = report("a");
    let detail = &mut damaged.steps[0].detail;
    detail.times.scheduled.histogram.hdr_v2_base64.truncate(9);
    let error = Report::merge(&[report("a"), damaged], MergeKind::Runs).unwrap_err();
    assert!(
        matches!(error, MergeError::Histogram { number: 2, .. }),
        "{error}"
    );
}

#[test]
fn a_step_that_failed_in_one_run_is_merged_and_its_problem_told() {
    let mut failed = report("a");
    let step = Step::chat("a", 3, 1.0, THINK_TIME);
    let limits = failed.steps[0].detail.slo.limits;
    failed.steps[0] = StepReport::failed(&step, "a client lane failed".to_owned());
    failed.steps[0].detail.slo.limits = limits;
    let merged = Report::merge(&[report("a"), failed], MergeKind::Runs).unwrap();
    let step = &merged.steps[0];
    assert!(
        step.problems
            .contains(&"run 2: a client lane failed".to_owned()),
        "{step:?}"
    );
    assert_eq!(step.detail.times.scheduled.histogram.count, 2_000);
}

#[test]
fn a_report_of_version_1_goes_round_without_a_change() {
    let mut report = report("a");
    report.scenario_version = 1;
    let text = serde_json::to_string_pretty(&report).unwrap();
    for key in ["scenario_version", "segment"] {
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

/// Regression: the table was wider than a terminal, which cut its lines anywhere.
#[test]
fn the_table_of_a_step_fits_the_terminal() {
    let mut long = report("a");
    long.steps[0]
        .notes
        .push("the rate of this step is not that of a server with other work".repeat(3));
    let words = |text: &str| -> Vec<String> {
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        words.sort();
        words.dedup();
        words
    };
    let whole = step_table(&long.steps[0], usize::MAX);
    for columns in [40, 50, 80, 132] {
        let table = step_table(&long.steps[0], columns);
        let widest = table.lines().map(|line| line.chars().count()).max();
        assert!(widest.unwrap() <= columns, "{table}");
        assert_eq!(words(&table), words(&whole));
        let heads = table.lines().filter(|line| line.starts_with("  ms "));
        let expected = [(40, 3), (50, 2), (80, 1), (132, 1)];
        assert!(expected.contains(&(columns, heads.count())), "{table}");
    }
}

/// Regression: the log had one interval for a distribution, in which an analyser sees no time series.
#[test]
fn the_histogram_log_has_a_line_for_each_second() {
    let mut report = report("one");
    let detail = &mut report.steps[0].detail;
    let mut all = LatencyHistogram::new();
    for (at_secs, value_ns) in [(1.0, 0), (2.0, 3_000_000), (3.5, 5_000_000)] {
        let mut histogram = LatencyHistogram::new();
        histogram.record_many(value_ns, 7);
        let is_empty = value_ns == 0;
        detail.series.push(Second {
            run: 1,
            at_secs,
            secs: if at_secs > 3.0 { 1.5 } else { 1.0 },
            scheduled: (!is_empty).then(|| EncodedHistogram::of(&histogram)),
            ..Second::default()
        });
        if !is_empty {
            all.merge(&histogram);
        }
    }
    detail.times.scheduled = Distribution::of(&all, 0);
    let lines = |report: &Report| -> Vec<String> {
        let text = report.to_histogram_log();
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("Tag=scheduled,"));
        lines.map(str::to_owned).collect()
    };
    let found = lines(&report);
    let heads: Vec<&str> = found
        .iter()
        .map(|line| line.rsplit_once(',').unwrap().0)
        .collect();
    assert_eq!(heads, ["1.000,1.000,3.000", "2.000,1.500,5.001"]);
    // The seconds of two runs overlap, and those of an older report have no histograms.
    let spoil = |change: fn(&mut Second)| {
        let mut report = report.clone();
        change(&mut report.steps[0].detail.series[1]);
        assert_eq!(lines(&report).len(), 1);
    };
    spoil(|second| second.run = 2);
    spoil(|second| second.scheduled = None);
}
