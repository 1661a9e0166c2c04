//! `compare`, `ab` and `doctor`: their output, their files, and their exit codes.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tidewire_testkit::write_script;

use crate::process::{Ended, Process, command};

fn run(arguments: &[&str]) -> Ended {
    Process::start(arguments).wait()
}

/// Returns a committed report with every latency multiplied by `factor`.
fn report(factor: f64) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../bench-results/2026-11-22-epyc-2core/24m-1.json");
    let mut report: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    for step in report["steps"].as_array_mut().unwrap() {
        for name in ["p50", "p90", "p99", "p999"] {
            let value = &mut step["detail"]["times"]["scheduled"][name]["ms"];
            *value = (value.as_f64().unwrap() * factor).into();
        }
    }
    report.to_string()
}

/// Makes a directory with this many runs.
fn runs(directory: &Path, name: &str, factor: f64, count: usize) -> String {
    let side = directory.join(name);
    for run in 0..count {
        let directory = side.join(run.to_string());
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("report.json"), report(factor)).unwrap();
    }
    side.display().to_string()
}

/// Returns a committed file of the benchmark with every figure of Tidewire multiplied by `factor`.
fn bench(directory: &Path, name: &str, factor: f64) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../bench-results/2026-11-22-epyc-2core/bench/rpc/bench.json");
    let mut bench: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    for suite in bench["suites"].as_array_mut().unwrap() {
        suite["elapsed_secs"] = json!(1.0);
        for row in suite["rows"].as_array_mut().unwrap() {
            for run in row["runs"].as_array_mut().unwrap() {
                *run = (run.as_f64().unwrap() * factor).into();
            }
        }
    }
    let path = directory.join(name);
    fs::write(&path, bench.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn files_of_the_benchmark_are_compared_row_by_row_and_not_with_other_reports() {
    let directory = tempfile::tempdir().unwrap();
    let base = bench(directory.path(), "base.json", 1.0);
    let new = bench(directory.path(), "new.json", 0.01);
    let same = run(&["compare", &base, &base, "--fail-on", "change"]);
    assert_eq!(same.status.code(), Some(0), "{}", same.text());
    let worse = run(&["compare", &base, &new, "--fail-on", "regression"]);
    assert_eq!(worse.status.code(), Some(99), "{}", worse.text());
    for expected in [
        "rpc: tcp, 1 × 5 clients, 64 in flight",
        "of the limit",
        "WORSE",
    ] {
        assert!(
            worse.text().contains(expected),
            "{expected}: {}",
            worse.text()
        );
    }
    let load = runs(directory.path(), "load", 1.0, 1);
    let mixed = run(&["compare", &base, &load]);
    assert_eq!(mixed.status.code(), Some(2), "{}", mixed.text());
    assert!(
        mixed
            .text()
            .contains("benchmarks cannot be compared with load tests"),
        "{}",
        mixed.text()
    );
    fs::copy(&base, directory.path().join("load/bench.json")).unwrap();
    let mixed = run(&["compare", &load, &load]);
    assert_eq!(mixed.status.code(), Some(2), "{}", mixed.text());
    assert!(
        mixed.text().contains("directories of their own"),
        "{}",
        mixed.text()
    );
}

/// Writes a program that acts like `load`: it records its letter and leaves a report.
fn program(directory: &Path, letter: &str, factor: f64) -> String {
    let kept = directory.join(format!("{letter}.json"));
    fs::write(&kept, report(factor)).unwrap();
    let journal = directory.join("journal");
    script(
        &directory.join(letter),
        &format!(
            "printf {letter} >> '{}'\n\
             while [ \"$1\" != --out ]; do shift; done\n\
             cp '{}' \"$2/report.json\"\nexit 1\n",
            journal.display(),
            kept.display()
        ),
    )
}

fn script(path: &Path, body: &str) -> String {
    write_script(path, body).display().to_string()
}

#[test]
fn a_regression_fails_when_asked_and_an_improvement_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let base = runs(directory.path(), "base", 1.0, 4);
    let slow = runs(directory.path(), "slow", 1.2, 4);
    let shown = run(&["compare", &base, &slow]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(
        shown.text().contains("4 worse, 0 better"),
        "{}",
        shown.text()
    );
    let failed = run(&["compare", &base, &slow, "--fail-on", "regression"]);
    assert_eq!(failed.status.code(), Some(99));
    let faster = run(&["compare", &slow, &base, "--fail-on", "regression"]);
    assert_eq!(faster.status.code(), Some(0));
    let changed = run(&["compare", &slow, &base, "--fail-on", "change"]);
    assert_eq!(changed.status.code(), Some(99));
}

#[test]
fn json_says_the_same_to_programs() {
    let directory = tempfile::tempdir().unwrap();
    let base = runs(directory.path(), "base", 1.0, 4);
    let slow = runs(directory.path(), "slow", 1.2, 4);
    let ended = run(&["compare", &base, &slow, "--json"]);
    let json: Value = serde_json::from_str(&ended.text()).unwrap();
    let p99 = &json["steps"][0]["metrics"][2];
    assert_eq!(p99["metric"], "p99_ms");
    assert_eq!(p99["verdict"], "worse");
    assert!((p99["ratio"]["ratio"].as_f64().unwrap() - 1.2).abs() < 1e-9);
    assert_eq!(json["base"]["runs"], 4);
}

#[test]
fn a_report_that_load_has_just_written_is_understood() {
    let directory = tempfile::tempdir().unwrap();
    let scenario = directory.path().join("scenario.toml");
    let text = "host = \"127.0.0.1\"\nport = 1\n[[steps]]\nname = \"tiny\"\nconcurrency = 4\n\
                duration_secs = 0.5\nthink_time_ms = [5, 10]\n";
    fs::write(&scenario, text).unwrap();
    let out = directory.path().join("out");
    let [scenario, out_text] = [&scenario, &out].map(|path| path.display().to_string());
    // On a busy machine the run may be invalid, which its report then says.
    let load = run(&["load", &scenario, "--serve", "--out", &out_text]);
    assert!(out.join("report.json").is_file(), "{}", load.text());
    let report = out.join("report.json").display().to_string();
    let ended = run(&["compare", &report, &out_text, "--json"]);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    let json: Value = serde_json::from_str(&ended.text()).unwrap();
    assert_eq!(json["steps"][0]["step_name"], "tiny");
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    if let Some(sent) = json["steps"][0]["metrics"]
        .as_array()
        .unwrap()
        .iter()
        .find(|compared| compared["metric"] == "send_tps")
    {
        assert_eq!(
            sent["base"]["median"],
            report["steps"][0]["steady"]["send_tps"]
        );
        assert_eq!(sent["obstacle"]["reason"], "too_few_runs");
    } else {
        assert_eq!(json["steps"][0]["obstacle"]["reason"], "invalid");
    }
}

#[test]
fn one_run_of_each_is_shown_and_cannot_pass_a_gate() {
    let directory = tempfile::tempdir().unwrap();
    let [old, new] = ["old.json", "new.json"].map(|name| {
        let path = directory.path().join(name);
        fs::write(&path, report(1.0)).unwrap();
        path.display().to_string()
    });
    let shown = run(&["compare", &old, &new]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(shown.text().contains("too few runs: 1 and 1, 4 of each"));
    let gated = run(&["compare", &old, &new, "--fail-on", "regression"]);
    assert_eq!(gated.status.code(), Some(2));
    assert!(gated.text().contains("2: error: nothing could be judged"));
}

#[test]
fn reports_that_cannot_be_compared_are_refused_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let base = runs(directory.path(), "base", 1.0, 4);
    let more = runs(directory.path(), "more", 1.0, 6);
    let other = directory.path().join("other.json");
    fs::write(&other, "{\"schema_version\": 99}").unwrap();
    let other = other.display().to_string();
    let cases: [(&[&str], &str); 5] = [
        (
            &["compare", &base, "nowhere.json"],
            "cannot read nowhere.json",
        ),
        (&["compare", &base, &other], "use the version that wrote it"),
        (&["compare", &base, &more, "--paired"], "not 4 and 6"),
        (
            &["compare", &base, &more, "--noise", &other],
            "is no noise record",
        ),
        (&["compare", &base], "<NEW>"),
    ];
    for (arguments, text) in cases {
        let ended = run(arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}");
        assert!(ended.text().contains(text), "{}", ended.text());
    }
}

#[test]
fn ab_runs_in_turns_records_the_noise_and_finds_the_change() {
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (
        program(directory.path(), "A", 1.0),
        program(directory.path(), "B", 1.1),
    );
    let scenario = directory.path().join("scenario.toml");
    fs::write(&scenario, "").unwrap();
    let out = directory.path().join("out");
    let [scenario, out_text] = [&scenario, &out].map(|path| path.display().to_string());
    let arguments = [
        "ab",
        "--a",
        &a,
        "--b",
        &b,
        "--pairs",
        "6",
        "--noise-pairs",
        "4",
        "--out",
        &out_text,
        "--fail-on",
        "regression",
        &scenario,
        "--",
        "--quick",
    ];
    let ended = run(&arguments);
    assert_eq!(ended.status.code(), Some(99), "{}", ended.text());
    let journal = fs::read_to_string(directory.path().join("journal")).unwrap();
    assert_eq!(journal, "AAAAAAAA".to_owned() + "ABBAABBAABBA");
    assert!(ended.text().contains("in pairs"), "{}", ended.text());

    let noise: Value =
        serde_json::from_str(&fs::read_to_string(out.join("noise.json")).unwrap()).unwrap();
    assert_eq!(noise["pairs"], 4);
    assert_eq!(noise["steps"][0]["shares"]["p99_ms"], 0.0);
    let comparison: Value =
        serde_json::from_str(&fs::read_to_string(out.join("comparison.json")).unwrap()).unwrap();
    assert_eq!(comparison["base"]["runs"], 6);
    assert_eq!(comparison["notes"], json!([]));

    // The files that were left give the same result, and a second run into the same directory is refused.
    let [a_runs, b_runs, noise] =
        ["a", "b", "noise.json"].map(|name| out.join(name).display().to_string());
    let again = run(&[
        "compare", &a_runs, &b_runs, "--paired", "--noise", &noise, "--json",
    ]);
    let again: Value = serde_json::from_str(&again.text()).unwrap();
    assert_eq!(again, comparison);
    let second = run(&arguments);
    assert_eq!(second.status.code(), Some(2));
    assert!(second.text().contains("remedy: name another directory"));
}

/// A name without a slash is a file in the present directory, and not one of the search path.
#[test]
fn ab_takes_noise_from_a_file_and_binaries_by_bare_names() {
    let directory = tempfile::tempdir().unwrap();
    program(directory.path(), "A", 1.0);
    let report: Value = serde_json::from_str(&report(1.0)).unwrap();
    let (env, step) = (&report["env"], &report["steps"][0]);
    let noise = json!({
        "cpu": env["cpu"], "cores": env["cores"], "kernel": env["kernel"], "pairs": 8,
        "steps": [{
            "step_name": step["step_name"], "concurrency": step["concurrency"], "shares": {"p99_ms": 0.01},
        }],
    });
    fs::write(directory.path().join("noise.json"), noise.to_string()).unwrap();
    fs::write(directory.path().join("scenario.toml"), "").unwrap();
    let arguments = [
        "ab",
        "--a",
        "A",
        "--b",
        "A",
        "--noise",
        "noise.json",
        "--out",
        "out",
        "--fail-on",
        "change",
        "scenario.toml",
    ];
    let ended = Process::spawn(command(&arguments).current_dir(directory.path())).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    let journal = fs::read_to_string(directory.path().join("journal")).unwrap();
    assert_eq!(journal, "A".repeat(16));
    let kept = fs::read_to_string(directory.path().join("out/noise.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), noise);
    assert!(ended.text().contains("  1.0 %  "), "{}", ended.text());
}

#[test]
fn a_run_without_a_report_ends_the_comparison_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let broken = script(
        &directory.path().join("broken"),
        "echo 'error: no such scenario' >&2\nexit 2\n",
    );
    let scenario = directory.path().join("scenario.toml");
    fs::write(&scenario, "").unwrap();
    let scenario = scenario.display().to_string();
    let out = directory.path().join("out").display().to_string();
    let ended = run(&[
        "ab", "--a", &broken, "--b", &broken, "--out", &out, &scenario,
    ]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.text().contains("error: no such scenario"),
        "{}",
        ended.text()
    );
    let nothing = directory.path().join("nothing").display().to_string();
    let out = directory.path().join("other").display().to_string();
    let ended = run(&[
        "ab", "--a", &nothing, "--b", &broken, "--out", &out, &scenario,
    ]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.text().contains("remedy: name two tidewire binaries"));
    let ended = run(&[
        "ab",
        "--a",
        &broken,
        "--b",
        &broken,
        "--out",
        &out,
        "nowhere.toml",
    ]);
    assert_eq!(ended.status.code(), Some(2));
}

#[test]
fn a_run_that_hangs_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let hanging = script(&directory.path().join("hanging"), "exec sleep 600\n");
    let scenario = directory.path().join("scenario.toml");
    fs::write(&scenario, "").unwrap();
    let scenario = scenario.display().to_string();
    let out = directory.path().join("out").display().to_string();
    let ended = run(&[
        "ab",
        "--a",
        &hanging,
        "--b",
        &hanging,
        "--run-secs-max",
        "1",
        "--out",
        &out,
        &scenario,
    ]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.text().contains("did not end in time"),
        "{}",
        ended.text()
    );
}

#[test]
fn an_interrupt_ends_the_run_in_progress() {
    let directory = tempfile::tempdir().unwrap();
    let hanging = script(&directory.path().join("hanging"), "exec sleep 600\n");
    let scenario = directory.path().join("scenario.toml");
    fs::write(&scenario, "").unwrap();
    let scenario = scenario.display().to_string();
    let out = directory.path().join("out").display().to_string();
    let mut process = Process::start(&[
        "ab", "--a", &hanging, "--b", &hanging, "--out", &out, &scenario,
    ]);
    process.expect("noise 1/8, noise-1: running");
    process.signal(rustix::process::Signal::INT);
    assert_eq!(process.wait().status.code(), Some(130));
}

#[test]
fn the_doctor_tells_people_and_programs() {
    let people = run(&["doctor"]);
    assert_eq!(people.status.code(), Some(0));
    assert!(
        people.text().contains("to fix before measuring"),
        "{}",
        people.text()
    );
    let programs = run(&["doctor", "--json"]);
    let json: Value = serde_json::from_str(&programs.text()).unwrap();
    assert_eq!(json["findings"].as_array().unwrap().len(), 11);
    assert!(json["facts"]["clock"]["resolution_ns"].as_u64().unwrap() > 0);
}
