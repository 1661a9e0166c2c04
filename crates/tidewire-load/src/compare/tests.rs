//! Simulated sides with known changes, and reports as the instrument writes them.

use serde_json::{Value, json};

use super::*;
use crate::report::{Report, SCHEMA_VERSION, StepDetail, StepReport};
use crate::scenario::{Step, ThinkTime};
use crate::statistics::Sides;

const THINK_TIME: ThinkTime = ThinkTime {
    min_ms: 1.0,
    max_ms: 1.0,
};

/// A step whose figures are all `factor` times those of an ordinary one, as in a report.
fn step(factor: f64) -> Value {
    let step = Step::chat("steady", 500, 20.0, THINK_TIME);
    let mut step = serde_json::to_value(StepReport::failed(&step, String::new())).unwrap();
    let keys = json!({
        "test_duration_secs": 20.0, "latency_kind": "end to end",
        "total_received": 10_000_000, "expected_received": 10_000_000, "lost": 0,
        "steady": {"send_tps": 2_000.0 * factor, "receive_tps": 1e6 * factor},
        "problems": [], "detail": detail(factor),
    });
    put(&mut step, &keys);
    step["server"]["rss_bytes_max"] = json!(50_000_000);
    step
}

fn put(object: &mut Value, keys: &Value) {
    for (key, value) in keys.as_object().unwrap() {
        object[key] = value.clone();
    }
}

fn detail(factor: f64) -> Value {
    let known = |ms: f64| json!({"state": "known", "ms": ms * factor});
    let mut detail = serde_json::to_value(StepDetail::default()).unwrap();
    put(
        &mut detail["workload"],
        &json!({"pattern": "chat", "model": "open", "offered_tps": 2_000.0, "payload_bytes": 28}),
    );
    detail["window"]["latencies_are_steady"] = json!(true);
    put(
        &mut detail["times"]["scheduled"],
        &json!({"p50": known(1.0), "p90": known(2.0), "p99": known(4.0), "p999": known(8.0)}),
    );
    put(
        &mut detail["cost"],
        &json!({"client_ns_per_message": 400.0 * factor, "server_ns_per_message": 500.0 * factor}),
    );
    detail["verdict"] = json!({"reasons": [], "enforced": true});
    detail
}

fn report_of(steps: &Value) -> Value {
    let mut report = serde_json::to_value(Report::default()).unwrap();
    put(
        &mut report,
        &json!({"schema_version": SCHEMA_VERSION, "status": "passed", "steps": steps}),
    );
    put(
        &mut report["env"],
        &json!({"cpu": "Ordinary 3000", "cores": 2, "kernel": "6.1", "version": "0.1.0", "commit": "abc"}),
    );
    // Written by a version that knows more.
    report["surprise"] = json!(1);
    report
}

fn runs(report: Value) -> Vec<Run> {
    file::runs(&serde_json::from_value(report).unwrap())
}

/// A side of which each run's report was changed.
fn changed(factors: &[f64], change: impl Fn(usize, &mut Value)) -> RunSet {
    let run = |(index, factor): (usize, &f64)| {
        let mut report = report_of(&json!([step(*factor)]));
        change(index, &mut report);
        runs(report)
    };
    RunSet {
        runs: factors.iter().enumerate().flat_map(run).collect(),
        ..RunSet::default()
    }
}

fn set(factors: &[f64]) -> RunSet {
    changed(factors, |_, _| ())
}

fn compare(base: &RunSet, new: &RunSet, pairing: Pairing) -> Comparison {
    Comparison::of(base, new, pairing, None, quick()).unwrap()
}

fn quick() -> Bootstrap {
    Bootstrap {
        resamples: 200,
        seed: 9,
    }
}

fn metric(comparison: &Comparison, metric: Metric) -> &MetricComparison {
    comparison.steps[0]
        .metrics
        .iter()
        .find(|compared| compared.metric == metric)
        .unwrap()
}

/// Why six runs are not comparable with six of which the fourth was changed.
fn obstacle(change: impl Fn(&mut Value)) -> String {
    let new = changed(&[1.0; 6], |index, report| {
        if index == 3 {
            change(report);
        }
    });
    let comparison = compare(&set(&[1.0; 6]), &new, Pairing::None);
    assert_eq!(comparison.judged(), 0);
    comparison.steps[0].obstacle.as_ref().unwrap().to_string()
}

/// A machine that drifts by 3 % from pair to pair, and varies by 2 % from run to run.
struct Simulation {
    random: fastrand::Rng,
}

impl Simulation {
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0
    }

    fn series(&mut self, change: f64) -> Vec<(f64, f64)> {
        let mut level = 0.0;
        (0..PAIRS)
            .map(|_| {
                level += 0.03 * self.normal();
                let base = (level + 0.02 * self.normal()).exp();
                (base, (level + 0.02 * self.normal()).exp() * change)
            })
            .collect()
    }

    /// Of 1,000 comparisons, with noise recorded anew for each, those that find a change.
    fn alarms(&mut self, change: f64, with_noise: bool) -> usize {
        let ratio =
            |pairs: &[(f64, f64)]| RatioInterval::of(Sides::Paired(pairs), quick()).unwrap();
        (0..1_000)
            .filter(|_| {
                let noise = noise::share_of(ratio(&self.series(1.0)));
                let noise = if with_noise { noise } else { NOISE_FLOOR };
                let verdict = judge::verdict(ratio(&self.series(change)), noise, Metric::P99Ms);
                verdict != Verdict::NoChangeFound
            })
            .count()
    }
}

#[test]
fn the_same_binary_raises_no_alarm_and_five_percent_are_found() {
    let mut simulation = Simulation {
        random: fastrand::Rng::with_seed(12),
    };
    for with_noise in [false, true] {
        let alarms = simulation.alarms(1.0, with_noise);
        assert!(alarms <= 50, "{alarms} of 1,000, noise {with_noise}");
        let found = simulation.alarms(1.05, with_noise);
        assert!(found >= 800, "{found} of 1,000, noise {with_noise}");
    }
}

#[test]
fn better_and_worse_depend_on_the_metric() {
    let base = set(&[1.0, 1.001, 0.999, 1.0, 1.001, 0.999]);
    let new = set(&[1.1, 1.101, 1.099, 1.1, 1.101, 1.099]);
    let comparison = compare(&base, &new, Pairing::ByOrder);
    assert_eq!(metric(&comparison, Metric::P50Ms).verdict, Verdict::Worse);
    assert_eq!(
        metric(&comparison, Metric::ReceiveTps).verdict,
        Verdict::Better
    );
    let memory = metric(&comparison, Metric::ServerMemoryBytes);
    assert_eq!(memory.verdict, Verdict::NoChangeFound);
    assert_eq!(comparison.count(Verdict::Worse), 6);
    assert_eq!(comparison.judged(), 11);
    let text = comparison.to_text();
    let position = |word| text.find(word).unwrap();
    assert!(position("WORSE") < position("better") && position("better") < position("no change"));
    assert!(text.contains("note: no noise of this machine is known and 3 % is assumed"));
    assert!(text.contains("assumed 3.0 %"));
}

#[test]
fn a_wild_run_is_told_and_stays_in_the_median() {
    let base = set(&[1.0, 1.01, 0.99, 1.02, 3.0, 0.98]);
    let comparison = compare(&base, &set(&[1.0; 6]), Pairing::None);
    let p99 = metric(&comparison, Metric::P99Ms);
    assert_eq!(p99.base_outliers.as_ref().unwrap().flagged, [4]);
    assert!((p99.base.unwrap().median - 4.02).abs() < 1e-9);
    assert!(comparison.to_text().contains(
        "base p99: run 5 lies far from the others; iqr_mean 4.00 ms (1 of 6 runs set aside in this mean only)"
    ));
    assert!(!comparison.to_text().contains("new p99"));
}

#[test]
fn a_small_but_certain_change_is_noise_until_noise_is_known_to_be_smaller() {
    let (base, new) = (set(&[1.0; 6]), set(&[1.02; 6]));
    let comparison = compare(&base, &new, Pairing::ByOrder);
    assert_eq!(
        metric(&comparison, Metric::P99Ms).verdict,
        Verdict::NoChangeFound
    );
    let noise = NoiseRecord::of(&set(&[1.0; 4]), &set(&[1.001; 4]), quick()).unwrap();
    let judged = Comparison::of(&base, &new, Pairing::ByOrder, Some(&noise), quick()).unwrap();
    assert_eq!(metric(&judged, Metric::P99Ms).verdict, Verdict::Worse);
    assert!(judged.notes.is_empty(), "{:?}", judged.notes);
    let elsewhere = NoiseRecord {
        cpu: "Other 1".to_owned(),
        ..noise
    };
    let judged = Comparison::of(&base, &new, Pairing::ByOrder, Some(&elsewhere), quick()).unwrap();
    assert_eq!(
        metric(&judged, Metric::P99Ms).verdict,
        Verdict::NoChangeFound
    );
    assert!(judged.notes[0].contains("another machine or kernel"));
}

#[test]
fn what_was_measured_differently_is_not_compared() {
    let scenario = obstacle(|report| report["steps"][0]["concurrency"] = json!(50));
    assert_eq!(scenario, "other scenario: agents 500 and 50");
    let scenario = obstacle_of(|detail| detail["workload"]["model"] = json!("closed"));
    assert_eq!(scenario, "other scenario: model open and closed");
    let machine = obstacle(|report| report["env"]["cores"] = json!(64));
    assert_eq!(machine, "other machine: cores 2 and 64");
    let window = obstacle(|report| report["steps"][0]["test_duration_secs"] = json!(3.0));
    assert_eq!(window, "other window: 20.0 s and 3.0 s");
    let missing = obstacle(|report| report["steps"] = json!([]));
    assert_eq!(missing, "other scenario: a run lacks this step");
    let twice = obstacle(|report| report["steps"] = json!([step(1.0), step(1.0)]));
    assert!(twice.ends_with("not unique"));
}

#[test]
fn steps_of_the_new_side_alone_are_told() {
    let new = changed(&[1.0; 6], |_, report| {
        let mut added = step(1.0);
        added["step_name"] = json!("added");
        report["steps"] = json!([step(1.0), added]);
    });
    let comparison = compare(&set(&[1.0; 6]), &new, Pairing::None);
    assert_eq!(comparison.steps[1].step_name, "added");
    assert!(
        comparison
            .to_text()
            .contains("only the new side has this step")
    );
}

#[test]
fn too_few_runs_show_the_ratio_and_no_verdict() {
    let comparison = compare(&set(&[1.0]), &set(&[2.0]), Pairing::None);
    let p99 = metric(&comparison, Metric::P99Ms);
    assert_eq!(p99.ratio.unwrap().ratio, 2.0);
    assert_eq!(p99.verdict, Verdict::NotComparable);
    assert_eq!(
        p99.obstacle,
        Some(Obstacle::TooFewRuns {
            base: 1,
            new: 1,
            needed: 4
        })
    );
    assert_eq!(comparison.judged(), 0);
    assert!(comparison.to_text().ends_with("nothing could be judged\n"));
}

#[test]
fn lost_messages_make_the_tail_infinite_and_worse() {
    let new = changed(&[1.0; 6], |_, report| {
        report["steps"][0]["lost"] = json!(200_000);
        report["steps"][0]["detail"]["times"]["scheduled"]["p99"] = json!({"state": "infinite"});
        report["steps"][0]["problems"] = json!(["200,000 messages lost"]);
    });
    let comparison = compare(&set(&[1.0; 6]), &new, Pairing::None);
    let p99 = metric(&comparison, Metric::P99Ms);
    assert_eq!(
        (p99.verdict, p99.new.unwrap().median),
        (Verdict::Worse, f64::INFINITY)
    );
    assert_eq!(metric(&comparison, Metric::LossPct).verdict, Verdict::Worse);
    assert_eq!(
        metric(&comparison, Metric::P90Ms).verdict,
        Verdict::NoChangeFound
    );
    assert!(comparison.steps[0].notes[0].starts_with("6 of 6 runs of the new side"));
    let json = serde_json::to_value(&comparison).unwrap();
    let written = &json["steps"][0]["metrics"][2];
    assert_eq!(written["metric"], "p99_ms");
    assert_eq!(written["ratio"]["ratio"], "inf");
    assert_eq!(written["verdict"], "worse");
}

#[test]
fn percentiles_of_too_few_messages_and_figures_nobody_took_have_no_verdict() {
    let new = changed(&[1.0; 6], |_, report| {
        let detail = &mut report["steps"][0]["detail"];
        detail["times"]["scheduled"]["p99"] =
            json!({"state": "too_few", "samples": 999, "needed": 1_000});
        detail["cost"]["server_ns_per_message"] = Value::Null;
    });
    let comparison = compare(&set(&[1.0; 6]), &new, Pairing::None);
    let reason = |which| metric(&comparison, which).obstacle.clone();
    assert_eq!(reason(Metric::P99Ms), Some(Obstacle::TooFewSamples));
    assert_eq!(reason(Metric::P90Ms), None);
    assert_eq!(reason(Metric::ServerCpuNs), Some(Obstacle::NotMeasured));
    let remote = changed(&[1.0; 6], |_, report| {
        report["steps"][0]["server"]["rss_bytes_max"] = Value::Null;
    });
    let comparison = compare(&remote, &remote, Pairing::None);
    let metrics = &comparison.steps[0].metrics;
    assert!(
        metrics
            .iter()
            .all(|one| one.metric != Metric::ServerMemoryBytes)
    );
}

#[test]
fn costs_doubts_and_disturbances_of_a_report_are_used() {
    let side = |factor: f64| set(&[factor; 6]);
    let comparison = compare(&side(1.0), &side(1.2), Pairing::None);
    let p999 = metric(&comparison, Metric::P999Ms);
    assert_eq!(
        (p999.verdict, p999.base.unwrap().median),
        (Verdict::Worse, 8.0)
    );
    let server = metric(&comparison, Metric::ServerCpuNs);
    assert_eq!(server.new.unwrap().median, 600.0);

    let doubted = |key: &str| {
        let new = changed(&[1.0; 6], |_, report| {
            let verdict = &mut report["steps"][0]["detail"]["verdict"];
            verdict[key] = json!(["the client was busy"]);
        });
        compare(&side(1.0), &new, Pairing::None).steps.remove(0)
    };
    let obstacle = doubted("reasons").obstacle.unwrap().to_string();
    assert_eq!(obstacle, "a run is INVALID: the client was busy");
    let disturbed = doubted("disturbances");
    assert_eq!(disturbed.obstacle, None);
    assert!(
        disturbed.notes[0].ends_with("the first: the client was busy"),
        "{disturbed:?}"
    );

    let smaller = obstacle_of(|detail| detail["workload"]["payload_bytes"] = json!(64));
    assert_eq!(smaller, "other scenario: payload_bytes 28 and 64");
}

/// Why six runs are not comparable with six of which the fourth had other details.
fn obstacle_of(change: impl Fn(&mut Value)) -> String {
    obstacle(|report| change(&mut report["steps"][0]["detail"]))
}

/// A report merged from several, each with this share of the whole's rate.
fn merged(rate_share: f64, factor: f64) -> RunSet {
    let known = |ms: f64| json!({"state": "known", "ms": ms * factor});
    let run = json!({
        "run": 1, "send_tps": 2_000.0 * rate_share, "receive_tps": 1e6 * rate_share, "expected": 1_000_000, "lost": 0,
        "p50": known(1.0), "p99": known(4.0), "p999": known(8.0),
        "server_ns_per_message": 500.0, "valid": true,
    });
    let mut merged = step(1.0);
    merged["detail"] = detail(factor);
    merged["detail"]["runs"] = json!([run, run, run, run, run, run]);
    RunSet {
        runs: runs(report_of(&json!([merged]))),
        ..RunSet::default()
    }
}

#[test]
fn a_report_of_several_runs_is_several_and_one_of_several_parts_is_one() {
    let (base, new) = (merged(1.0, 1.0), merged(1.0, 1.3));
    assert_eq!((base.len(), new.len()), (6, 6));
    assert!((base.runs[0].steps[0].secs - 20.0 / 6.0).abs() < 1e-9);
    let comparison = compare(&base, &new, Pairing::None);
    assert_eq!(metric(&comparison, Metric::P99Ms).verdict, Verdict::Worse);
    assert_eq!(
        metric(&comparison, Metric::ReceiveTps).verdict,
        Verdict::NoChangeFound
    );
    assert_eq!(merged(1.0 / 6.0, 1.0).len(), 1);
}

#[test]
fn pairs_need_partners_and_sides_need_runs() {
    let error = |base: &RunSet, new: &RunSet, pairing| {
        Comparison::of(base, new, pairing, None, quick()).unwrap_err()
    };
    let (six, five) = (set(&[1.0; 6]), set(&[1.0; 5]));
    assert_eq!(
        error(&six, &five, Pairing::ByOrder),
        CompareError::Unpaired { base: 6, new: 5 }
    );
    assert_eq!(
        error(&six, &RunSet::default(), Pairing::None),
        CompareError::Empty
    );
}

#[test]
fn noise_comes_from_enough_pairs_and_survives_its_file() {
    let quiet = set(&[1.0; 3]);
    assert_eq!(NoiseRecord::of(&quiet, &quiet, quick()), None);
    let lossy = changed(&[1.0; 4], |_, report| {
        let times = &mut report["steps"][0]["detail"]["times"]["scheduled"];
        times["p99"] = json!({"state": "infinite"});
    });
    let record = NoiseRecord::of(&set(&[1.0; 4]), &lossy, quick()).unwrap();
    assert_eq!(
        record.share("steady", 500, Metric::P99Ms),
        Some(f64::INFINITY)
    );
    assert_eq!(record.share("steady", 500, Metric::P50Ms), Some(0.0));
    assert_eq!(record.share("steady", 50, Metric::P50Ms), None);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("noise.json");
    std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
    assert_eq!(NoiseRecord::read(&path).unwrap(), record);
    std::fs::write(&path, "{}").unwrap();
    assert!(matches!(
        NoiseRecord::read(&path),
        Err(NoiseError::NotARecord { .. })
    ));
    assert!(matches!(
        NoiseRecord::read(&directory.path().join("none")),
        Err(NoiseError::Read { .. })
    ));
}

#[test]
fn committed_reports_are_read_file_by_file_and_as_a_directory() {
    let results = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../bench-results/2026-11-22-epyc-2core");
    let text = std::fs::read_to_string(results.join("24m-1.json")).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    let one = RunSet::read(&results.join("24m-1.json")).unwrap();
    assert_eq!(
        one.runs[0].steps[0].figure(Metric::P99Ms),
        Ok(report.steps[0].latency.unwrap().p99_ms)
    );

    let directory = tempfile::tempdir().unwrap();
    for (place, name) in [("b", "24m-2.json"), ("a", "24m-1.json")] {
        let place = directory.path().join(place);
        std::fs::create_dir(&place).unwrap();
        std::fs::copy(results.join(name), place.join("report.json")).unwrap();
    }
    std::fs::write(directory.path().join("noise.json"), "{}").unwrap();
    let both = RunSet::read(directory.path()).unwrap();
    assert_eq!(both.len(), 2);
    assert_eq!(
        both.runs[0].steps[0].figure(Metric::P99Ms),
        Ok(report.steps[0].latency.unwrap().p99_ms)
    );
}

#[test]
fn what_is_no_report_is_a_typed_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        RunSet::read(&path)
    };
    assert!(matches!(read("{"), Err(RunSetError::NotAReport { .. })));
    let newer = format!("{{\"schema_version\": {}}}", SCHEMA_VERSION + 1);
    assert!(matches!(read(&newer), Err(RunSetError::Version { .. })));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(
        RunSet::read(directory.path()),
        Err(RunSetError::Empty { .. })
    ));
    assert!(matches!(RunSet::read(&path), Err(RunSetError::Read { .. })));
}

#[test]
fn stopped_runs_are_left_out_and_told() {
    let directory = tempfile::tempdir().unwrap();
    let mut set = set(&[1.0; 6]);
    let path = directory.path().join("report.json");
    let mut stopped = report_of(&json!([]));
    stopped["status"] = json!("interrupted");
    std::fs::write(&path, stopped.to_string()).unwrap();
    set.add_file(&path).unwrap();
    let comparison = compare(&set, &set, Pairing::None);
    assert_eq!(comparison.base.runs, 6);
    assert!(comparison.notes[0].starts_with("1 stopped runs of the base side"));
}

/// Runs that vary by 2 % need this many pairs for a change of 5 %; at 1.5 %, six would do.
const PAIRS: usize = 8;
