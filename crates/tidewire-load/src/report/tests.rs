//! Reports against their own rules, against the schema, and on disk.

use std::error::Error;
use std::fs;
use std::io;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::*;
use crate::format::utc;
use crate::ledger::{Losses, ReceiverTotals};
use crate::scenario::{Scenario, Step};

const SCHEMA: &str = include_str!("../../../../docs/report.schema.json");

/// Adds the details of a step whose messages were all due outside of the steady window.
fn add_detail(known: &mut StepReport, step: &Step) {
    let detail = &mut known.detail;
    detail.workload = Workload::of(step);
    detail.window.latencies_are_steady = true;
    detail.counts.offered = known.total_sent + known.total_send_errors;
    detail.counts.steady_on_time = Some(0);
    detail.window.steady_secs = 24.0;
    (detail.counts.steady_sent, detail.counts.steady_received) = (96_000, 47_904_000);
}

/// A clean run of the second built-in step, or what `spoil` makes of it.
fn report_of(spoil: impl FnOnce(&mut StepMeasurements)) -> Report {
    let scenario = Scenario::built_in();
    let latency = Latency {
        min_ms: 0.2,
        mean_ms: 3.1,
        std_dev_ms: 1.5,
        p50_ms: 2.9,
        p90_ms: 5.0,
        p95_ms: 6.0,
        p99_ms: 8.1,
        max_ms: 40.0,
    };
    let known = StepReport {
        test_duration_secs: 31.5,
        total_sent: 120_000,
        latency: Some(latency),
        latency_send: Some(Latency {
            max_ms: 0.05,
            ..Latency::default()
        }),
        server: ServerUsage {
            cpu_secs: Some(14.2),
            rss_bytes_max: Some(12 << 20),
            lanes: Some(1),
            poller: Some("epoll".to_owned()),
            encryption: None,
        },
        client: ClientUsage {
            cpu_secs: 20.5,
            send_lag_p99_ms: Some(0.4),
        },
        ..StepReport::default()
    };
    let mut measured = StepMeasurements {
        known,
        logged_in: 500,
        totals: ReceiverTotals {
            receivers: 500,
            receivers_tracked: 500,
            expected: 59_880_000,
            delivered: 59_880_000,
            arrived: 59_880_000,
            ..ReceiverTotals::default()
        },
        losses: Losses::default(),
    };
    spoil(&mut measured);
    add_detail(&mut measured.known, &scenario.steps[1]);
    let facts = Report {
        target_server: "tcp://127.0.0.1:8080".to_owned(),
        start_time_utc: utc(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        end_time_utc: utc(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_032)),
        total_duration_secs: 32.0,
        seed: u64::MAX,
        env: Environment {
            cpu: "Test processor".to_owned(),
            cores: 2,
            kernel: "6.18.0".to_owned(),
            version: "0.1.0".to_owned(),
            commit: "unknown".to_owned(),
            ..Environment::default()
        },
        scenario_version: 1,
        ..Report::default()
    };
    let step = StepReport::from_measurements(&scenario.steps[1], measured);
    facts.with_steps(vec![step], false)
}

#[test]
fn a_report_of_version_1_says_completed_as_the_original_did() {
    for spoil in [0, 1] {
        let report = report_of(lose(spoil));
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["status"], "COMPLETED");
        let whole = Report::merge(&[report], MergeKind::Runs).unwrap();
        assert_eq!(
            (whole.status, whole.status.name()),
            (Status::Completed, "COMPLETED")
        );
    }
    let steps = report_of(|_| {}).steps;
    assert_eq!(Status::of(false, 2, &steps), Status::Passed);
    assert_eq!(
        Status::of(false, 2, &report_of(lose(1)).steps),
        Status::Failed
    );
    assert_eq!(Status::of(true, 1, &steps), Status::Interrupted);
}

#[test]
fn what_is_unconfirmed_is_neither_delivered_nor_lost_in_any_form_of_the_report() {
    let report = report_of(|measured| {
        measured.totals.unconfirmed = 1_234;
        measured.totals.delivered -= 1_234;
        measured.totals.arrived -= 1_234;
    });
    report.validate().unwrap();
    assert_eq!(report.conclusion(), Conclusion::Failed);
    let step = &report.steps[0];
    assert_eq!((step.lost, step.unconfirmed), (0, 1_234));
    assert!(step.problems[0].starts_with("1,234 expected deliveries are unconfirmed"));
    let table = step_table(step, usize::MAX);
    let lines = [
        "0 of 59,880,000 expected (success at least",
        "1,234 of 59,880,000 expected",
    ];
    assert!(lines.iter().all(|line| table.contains(line)), "{table}");
    for text in [report.to_markdown(), report.to_html()] {
        assert!(
            text.contains("unconfirmed") && text.contains("1,234"),
            "{text}"
        );
    }
    assert!(report.to_csv().contains(",59880000,0,1234,"));
    assert!(report.to_junit().contains("unconfirmed"));
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(value["steps"][0]["unconfirmed"], 1_234);
    assert!(schema().is_valid(&value));
    let mut hidden = value;
    hidden["steps"][0]["problems"] = json!([]);
    assert!(!schema().is_valid(&hidden));
}

fn lose(count: u64) -> impl FnOnce(&mut StepMeasurements) {
    move |measured| {
        measured.totals.lost = count;
        measured.totals.delivered -= count;
        measured.totals.arrived -= count;
    }
}

fn broken_rule(report: &Report) -> String {
    report.validate().unwrap_err().to_string()
}

fn schema() -> jsonschema::Validator {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    jsonschema::draft202012::meta::validate(&schema).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

#[test]
fn a_clean_run_passes_and_its_rates_are_those_of_the_issue() {
    let report = report_of(|_| {});
    report.validate().unwrap();
    assert_eq!(report.conclusion(), Conclusion::Passed);
    let step = &report.steps[0];
    assert_eq!((step.success_rate, step.error_rate), (1.0, 0.0));
    assert_eq!(step.send_tps, 120_000.0 / 31.5);
    assert_eq!(step.receive_tps, 59_880_000.0 / 31.5);
    assert_eq!(
        (step.steady.send_tps, step.steady.receive_tps),
        (4_000.0, Some(1_996_000.0))
    );
    assert!((step.theoretical_tps - 4_000.0).abs() < 1e-9);
    assert!((step.attainment - 1.0).abs() < 1e-9);
    assert_eq!(report.start_time_utc, "2023-11-14T22:13:20.000Z");
}

#[test]
fn one_lost_message_fails_the_run_and_never_rounds_up_to_success() {
    let report = report_of(lose(1));
    report.validate().unwrap();
    assert_eq!(report.conclusion(), Conclusion::Failed);
    let step = &report.steps[0];
    assert!(step.success_rate < 1.0 && step.error_rate > 0.0);
    assert_eq!(step.problems, ["1 expected deliveries were lost"]);

    let enormous = report_of(|measured| {
        let totals = &mut measured.totals;
        (totals.expected, totals.delivered, totals.lost) = (u64::MAX >> 1, (u64::MAX >> 1) - 1, 1);
        totals.arrived = totals.delivered;
    });
    let step = &enormous.steps[0];
    assert!(step.success_rate < 1.0 && step.error_rate > 0.0);
    enormous.validate().unwrap();
}

#[test]
fn every_kind_of_trouble_is_a_problem() {
    type Spoil = fn(&mut StepMeasurements);
    let spoils: [(Spoil, &str); 10] = [
        (
            |measured| measured.known.total_login_failures = 1,
            "could not connect",
        ),
        (
            |measured| measured.known.total_send_errors = 1,
            "could not be sent",
        ),
        (
            |measured| measured.totals.receivers_unresolved = 1,
            "wrong set",
        ),
        (|measured| measured.totals.reordered = 1, "out of order"),
        (
            |measured| measured.known.problems.push("the server died".to_owned()),
            "the server died",
        ),
        (
            |measured| measured.totals.arrived += 1,
            "ledger does not close",
        ),
        (
            |measured| bump(&mut measured.totals, |totals| &mut totals.duplicated),
            "more than once",
        ),
        (
            |measured| bump(&mut measured.totals, |totals| &mut totals.corrupt),
            "corrupt",
        ),
        (
            |measured| bump(&mut measured.totals, |totals| &mut totals.foreign),
            "elsewhere",
        ),
        (
            |measured| bump(&mut measured.totals, |totals| &mut totals.invented),
            "never sent",
        ),
    ];
    for (spoil, expected) in spoils {
        let report = report_of(spoil);
        assert_eq!(report.conclusion(), Conclusion::Failed, "{expected}");
        let [problem] = &report.steps[0].problems[..] else {
            panic!("{expected}")
        };
        assert!(problem.contains(expected), "{problem}");
        report.validate().unwrap();
    }
    let silent = report_of(|measured| {
        measured.known.total_sent = 0;
        measured.totals = ReceiverTotals::default();
    });
    assert_eq!(
        (silent.steps[0].success_rate, silent.conclusion()),
        (0.0, Conclusion::Failed)
    );
    silent.validate().unwrap();
}

fn bump(totals: &mut ReceiverTotals, field: fn(&mut ReceiverTotals) -> &mut u64) {
    *field(totals) += 1;
    totals.arrived += 1;
}

#[test]
fn late_messages_and_samples_do_not_fail_a_run_but_are_told() {
    let report = report_of(|measured| {
        measured.totals.late = 7;
        measured.totals.receivers_tracked = 100;
        measured.totals.given_up = 5;
    });
    assert_eq!(report.conclusion(), Conclusion::Passed);
    let notes = &report.steps[0].notes;
    assert!(notes[0].contains("100 of 500 receivers"), "{notes:?}");
    assert!(notes[1].starts_with("5 lost messages"), "{notes:?}");
}

#[test]
fn contradictions_are_found() {
    type Spoil = fn(&mut Report);
    let spoiled = |spoil: Spoil| {
        let mut report = report_of(lose(3));
        spoil(&mut report);
        broken_rule(&report)
    };
    let cases: [(Spoil, &str); 11] = [
        (|report| report.steps[0].lost = 2, "expected_received = "),
        (
            |report| report.steps[0].success_rate = 1.0,
            "error_rate = 1",
        ),
        (|report| report.steps[0].error_rate = 0.5, "error_rate = 1"),
        (|report| report.steps[0].send_tps += 1.0, "send_tps = "),
        (
            |report| report.steps[0].receive_tps *= 2.0,
            "receive_tps = ",
        ),
        (
            |report| report.steps[0].attainment = f64::NAN,
            "attainment is finite",
        ),
        (
            |report| report.steps[0].latency.as_mut().unwrap().p50_ms = 99.0,
            "latency: 0 ≤ min",
        ),
        (
            |report| report.steps[0].problems.clear(),
            "a step without problems",
        ),
        (
            |report| report.status = Status::Passed,
            "status is passed only",
        ),
        (|report| report.schema_version = 2, "schema_version"),
        (
            |report| report.total_duration_secs = -1.0,
            "total_duration_secs",
        ),
    ];
    for (spoil, rule) in cases {
        let broken = spoiled(spoil);
        assert!(broken.contains(rule), "{broken} should name {rule}");
    }
}

#[test]
fn times_that_were_not_measured_are_null_and_not_zero() {
    let report = report_of(|measured| {
        (measured.known.latency, measured.known.latency_send) = (None, None);
        measured.known.client.send_lag_p99_ms = None;
    });
    let json = serde_json::to_value(&report).unwrap();
    assert!(schema().is_valid(&json));
    let step = &json["steps"][0];
    for pointer in ["/latency", "/latency_send", "/client/send_lag_p99_ms"] {
        assert_eq!(step.pointer(pointer), Some(&Value::Null));
    }
    report.validate().unwrap();
    let table = step_table(&report.steps[0], usize::MAX);
    for text in [table, report.to_markdown()] {
        let row = text
            .lines()
            .find(|line| line.trim_start_matches(['|', ' ']).starts_with("write "));
        assert_eq!(row.unwrap().matches("n/a").count(), 7, "{text}");
    }
}

#[test]
fn generated_reports_match_the_schema_and_survive_a_round_trip() {
    let schema = schema();
    let unknown_server =
        |measured: &mut StepMeasurements| measured.known.server = ServerUsage::default();
    for mut report in [
        report_of(|_| {}),
        report_of(lose(17)),
        report_of(unknown_server),
    ] {
        for status in [report.status, Status::Interrupted] {
            report.env.memory_bytes = Some(8 << 30);
            report.env.virtualisation = Some("none found".to_owned());
            report.env.command_line = Some("tidewire load scenario.toml".to_owned());
            report.status = status;
            let text = serde_json::to_string(&report).unwrap();
            let value: Value = serde_json::from_str(&text).unwrap();
            let errors: Vec<String> = schema.iter_errors(&value).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{errors:?}");
            let back: Report = serde_json::from_str(&text).unwrap();
            back.validate().unwrap();
            assert_eq!(serde_json::to_string(&back).unwrap(), text);
        }
    }
}

#[test]
fn the_schema_refuses_any_missing_or_unknown_key() {
    let schema = schema();
    let report = serde_json::to_value(report_of(|_| {})).unwrap();
    let mut objects = Vec::new();
    collect_objects(&report, String::new(), &mut objects);
    let mut optional = Vec::new();
    for pointer in objects {
        let keys: Vec<String> = report
            .pointer(&pointer)
            .unwrap()
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        for key in keys {
            let mut broken = report.clone();
            broken
                .pointer_mut(&pointer)
                .unwrap()
                .as_object_mut()
                .unwrap()
                .remove(&key);
            if schema.is_valid(&broken) {
                optional.push(format!("{pointer}/{key}"));
            }
        }
        let mut broken = report.clone();
        broken.pointer_mut(&pointer).unwrap()["surprise"] = json!(1);
        assert!(!schema.is_valid(&broken), "{pointer} with an unknown key");
    }
    // Left out where they are not known.
    let known = [
        "cost/client_lanes",
        "cost/server_lanes",
        "workload/offered_tps",
        "workload/think_time_ms",
    ];
    assert_eq!(optional, known.map(|key| format!("/steps/0/detail/{key}")));
}

fn collect_objects(value: &Value, pointer: String, objects: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                collect_objects(member, format!("{pointer}/{key}"), objects);
            }
            objects.push(pointer);
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_objects(item, format!("{pointer}/{index}"), objects);
            }
        }
        _ => {}
    }
}

#[test]
fn the_schema_refuses_wrong_types_ranges_and_contradictions() {
    let schema = schema();
    let mut good = serde_json::to_value(report_of(|_| {})).unwrap();
    good["status"] = json!("passed");
    let cases = [
        ("/schema_version", json!(2)),
        ("/status", json!("ok")),
        ("/start_time_utc", json!("yesterday")),
        ("/total_duration_secs", json!("32")),
        ("/model", json!("ajar")),
        ("/seed", json!(-1)),
        ("/env/cores", json!(0)),
        ("/steps", json!({})),
        ("/steps", json!([])),
        ("/steps/0/concurrency", json!(0)),
        ("/steps/0/total_sent", json!(1.5)),
        ("/steps/0/total_sent", json!(-1)),
        ("/steps/0/send_tps", json!(null)),
        ("/steps/0/error_rate", json!(1.1)),
        ("/steps/0/success_rate", json!(-0.1)),
        ("/steps/0/latency/p99_ms", json!(-1)),
        ("/steps/0/latency_kind", json!("round trip")),
        ("/steps/0/server/poller", json!(3)),
        ("/steps/0/server/lanes", json!(0)),
        ("/steps/0/client/cpu_secs", json!(null)),
        ("/steps/0/lost", json!(1)),
        ("/steps/0/unconfirmed", json!(1)),
        ("/steps/0/problems", json!(["lost"])),
        ("/steps/0/notes", json!([1])),
    ];
    for (pointer, value) in cases {
        let mut broken = good.clone();
        *broken.pointer_mut(pointer).unwrap() = value.clone();
        assert!(!schema.is_valid(&broken), "{pointer} = {value}");
    }
}

#[test]
fn files_are_written_into_a_new_directory_and_replace_older_ones() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("a/b");
    report_of(lose(1)).write_to(&directory).unwrap();
    let report = report_of(|_| {});
    let written = report.write_to(&directory).unwrap();
    let back: Report = serde_json::from_slice(&fs::read(&written.json).unwrap()).unwrap();
    assert_eq!(back.seed, u64::MAX);
    assert_eq!(back.conclusion(), Conclusion::Passed);
    assert_eq!(
        fs::read_to_string(&written.markdown).unwrap(),
        report.to_markdown()
    );
    assert_eq!(fs::read_to_string(&written.html).unwrap(), report.to_html());
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 6);
}

#[test]
fn a_full_disk_and_a_file_in_the_way_are_typed_errors_with_a_remedy() {
    let parent = tempfile::tempdir().unwrap();
    let report = report_of(|_| {});
    let written = report.write_to(parent.path()).unwrap();
    let before = fs::read(&written.json).unwrap();

    // The kernel's device that is always full stands in for the disk.
    std::os::unix::fs::symlink("/dev/full", parent.path().join("report.json.partial")).unwrap();
    let error = report.write_to(parent.path()).unwrap_err();
    assert!(
        error.to_string().contains("the disk is full; make room"),
        "{error}"
    );
    let cause = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(cause.kind(), io::ErrorKind::StorageFull);
    assert_eq!(
        fs::read(&written.json).unwrap(),
        before,
        "the earlier report is whole"
    );

    let error = report.write_to(&written.json).unwrap_err();
    assert!(matches!(error, WriteError::Directory { .. }), "{error}");
    assert!(
        error.to_string().contains("a file is in the way"),
        "{error}"
    );
}

#[test]
fn the_table_says_the_worst_first_and_cannot_be_broken_by_a_name() {
    let mut report = report_of(lose(3));
    report.steps[0].step_name = "evil | \u{1b}[2J\nname".to_owned();
    let table = step_table(&report.steps[0], usize::MAX);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].ends_with(": failed"), "{table}");
    assert_eq!(lines[1], "  ! 3 expected deliveries were lost");
    assert!(lines[2].starts_with("  lost         3 of 59,880,000 expected (success 99.999 %)"));
    assert!(!table.contains('\u{1b}'));
    assert!(
        table.contains("4,000/s of 4,000/s offered (attainment 1.000)"),
        "{table}"
    );
    assert!(
        table.contains("14.20 s of processor time (0.45 cores), 12.0 MiB at most, 1 lane, epoll")
    );
    assert!(
        lines.iter().all(|line| line.chars().count() <= 100),
        "{table}"
    );

    let markdown = report.to_markdown();
    assert!(markdown.contains("**Failed**"), "{markdown}");
    assert!(markdown.contains("evil \\| "), "{markdown}");
    assert!(
        markdown.contains("- **3 expected deliveries were lost**"),
        "{markdown}"
    );
    for expected in [
        "Test processor",
        "6.18.0",
        "18446744073709551615",
        "tcp://127.0.0.1:8080",
    ] {
        assert!(markdown.contains(expected), "{markdown}");
    }
}

#[test]
fn an_unobserved_server_says_so() {
    let report = report_of(|measured| measured.known.server = ServerUsage::default());
    assert!(step_table(&report.steps[0], usize::MAX).contains("server       not observed"));
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(value["steps"][0]["server"]["cpu_secs"], Value::Null);
}
