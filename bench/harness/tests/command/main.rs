//! The program from the shell: its runs, files and output.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

#[allow(dead_code, reason = "the tests of `tidewire` use the rest")]
#[path = "../../../../crates/tidewire-cli/tests/cli/process.rs"]
mod process;

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Ended, Process, command};

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_tidewire-bench");

fn run(arguments: &[&str], directory: &Path) -> Ended {
    let out = directory.join("out").display().to_string();
    let mut all = vec!["--out", &out];
    all.extend_from_slice(arguments);
    Process::start(&all).wait()
}

fn results(directory: &Path) -> Value {
    let text = std::fs::read(directory.join("out/bench.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn a_quick_run_is_verified_written_and_can_be_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let peers = directory.path().join("no-peers").display().to_string();
    let arguments = [
        "echo",
        "--quick",
        "--repeat",
        "1",
        "--peers",
        "all",
        "--peers-dir",
        &peers,
    ];
    let ended = run(&arguments, directory.path());
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    // The estimate of the duration, in all and by suite, is printed before the benchmark begins.
    let estimate = ended.text();
    assert!(
        estimate.contains("about ") && estimate.contains(" s: echo "),
        "{estimate}"
    );
    // Without peers it goes on, and names the missing ones and how to get them.
    assert!(ended.text().contains("peers/setup"), "{}", ended.text());
    assert!(
        // A mark may follow its name: a busy machine is no fault.
        ended.text().contains("| tcp tw1, 1 × 1 in flight"),
        "{}",
        ended.text()
    );
    let results = results(directory.path());
    assert_eq!(results["schema_version"], 1);
    assert_eq!(results["env"]["missing_peers"].as_array().unwrap().len(), 1);
    for row in results["suites"][0]["rows"].as_array().unwrap() {
        assert_eq!(
            (&row["verified"], &row["lost"]),
            (&true.into(), &0.into()),
            "{row}"
        );
        assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["limit_ratio"].as_f64().unwrap() > 0.0, "{row}");
        assert!(
            row["client_cpu_ns_per_msg"].as_f64().unwrap() > 0.0,
            "{row}"
        );
        assert!(row["rss_bytes_max"].as_u64().unwrap() > 0, "{row}");
    }
    let again = directory.path().join("again").display().to_string();
    let json = directory
        .path()
        .join("out/bench.json")
        .display()
        .to_string();
    let ended = Process::start(&["report", &json, "--out", &again]).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    for name in ["bench.json", "bench.md", "bench.html"] {
        let [first, second] =
            ["out", "again"].map(|place| std::fs::read(directory.path().join(place).join(name)));
        assert_eq!(first.unwrap(), second.unwrap(), "{name}");
    }
}

#[test]
fn a_peer_that_is_named_and_not_there_ends_the_benchmark_before_it_begins() {
    let directory = tempfile::tempdir().unwrap();
    for peers in ["no-peers", "."] {
        let peers = directory.path().join(peers).display().to_string();
        let ended = run(
            &["echo", "--quick", "--peers", "nope", "--peers-dir", &peers],
            directory.path(),
        );
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(ended.text().contains("peers/setup"), "{}", ended.text());
    }
    assert!(!directory.path().join("out/bench.json").exists());
}

#[test]
fn limits_are_measured_alone() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "ingest", "--quick", "--repeat", "1", "--limits", "--pin", "off",
    ];
    let ended = run(&arguments, directory.path());
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    assert!(ended.text().contains("not pinned"), "{}", ended.text());
    for row in results(directory.path())["suites"][0]["rows"]
        .as_array()
        .unwrap()
    {
        assert!(
            row["median"].is_null() && row["limit_ratio"].is_null(),
            "{row}"
        );
        assert!(row["limit"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["limit"]["verified"], true, "{row}");
    }
}

#[test]
fn an_interrupt_keeps_what_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out").display().to_string();
    let mut bench = Process::start(&["echo", "--quick", "--repeat", "1000", "--out", &out]);
    // A row has a thousand rounds, so the signal interrupts this row.
    bench.expect("echo tcp tw1, 1 × 1 in flight");
    bench.signal(Signal::INT);
    let ended = bench.wait();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.text());
    assert_eq!(results(directory.path())["env"]["interrupted"], true);
}

#[test]
fn suites_are_listed_and_mistyped_ones_corrected() {
    let directory = tempfile::tempdir().unwrap();
    let ended = run(&["--list"], directory.path());
    assert_eq!(ended.status.code(), Some(0));
    for expected in [
        "# echo: ",
        "# ingest: ",
        "tidewire bench echo --row 'tcp tw1, 1024 × 128 in flight'",
        // A shell takes it as one word.
        "the seed'\\''s step",
    ] {
        assert!(
            ended.text().contains(expected),
            "{expected}: {}",
            ended.text()
        );
    }
    for (name, remedy) in [("ehco", "did you mean `echo`?"), ("xyzzy", "choose from ")] {
        let ended = run(&[name], directory.path());
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(ended.text().contains(remedy), "{}", ended.text());
    }
    assert!(
        !directory.path().join("out").exists(),
        "nothing was measured"
    );
}

#[test]
fn rows_are_chosen_by_their_names() {
    let directory = tempfile::tempdir().unwrap();
    // A full name matches no longer name.
    let named = run(&["--list", "--row", "4 M/s to 500"], directory.path());
    assert_eq!(
        named.transcript[1..],
        ["tidewire bench fanout --row '4 M/s to 500'"]
    );
    let listed = run(&["--list", "--row", "tw1, 16 × 128"], directory.path());
    assert_eq!(listed.status.code(), Some(0), "{}", listed.text());
    let rows = &listed.transcript;
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert!(rows[0].starts_with("# echo: "));
    assert!(rows[1..].iter().all(|row| row.contains("tw1, 16 × 128")));

    let arguments = [
        "echo",
        "--quick",
        "--repeat",
        "1",
        "--row",
        "ipc tw1, 1 × 128",
    ];
    let ended = run(&arguments, directory.path());
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    let results = results(directory.path());
    assert_eq!(results["suites"].as_array().unwrap().len(), 1);
    assert_eq!(results["suites"][0]["rows"].as_array().unwrap().len(), 1);

    let ended = run(&["--row", "no such row"], directory.path());
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.text().contains("--list"), "{}", ended.text());
}

#[test]
fn a_place_that_cannot_be_written_is_found_before_anything_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("out"), "a file").unwrap();
    let ended = run(&["echo", "--quick"], directory.path());
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("--out"), "{}", ended.text());
    assert!(!ended.text().contains("left"), "{}", ended.text());
}

#[test]
fn a_program_of_ours_says_what_it_cannot_do() {
    let described = Process::start(&["program", "bare", "describe"]).wait();
    assert!(
        described.text().contains("\"name\":\"bare\""),
        "{}",
        described.text()
    );
    for (arguments, expected) in [
        (
            ["program", "bare", "serve", "{"],
            "cannot understand the work",
        ),
        (
            ["program", "bare", "serve", r#"{"suite":"x"}"#],
            "there is no suite `x`",
        ),
        (
            [
                "program",
                "tidewire",
                "serve",
                r#"{"suite":"echo","transport":"tcp","codec":"morse"}"#,
            ],
            "there is no codec morse",
        ),
    ] {
        let ended = Process::start(&arguments).wait();
        assert!(!ended.status.success());
        assert!(ended.text().contains(expected), "{}", ended.text());
    }
}

#[test]
fn a_damaged_benchmark_is_not_taken_for_a_load_test() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("bench.json");
    // A full disk leaves a file like this.
    std::fs::write(
        &json,
        r#"{"schema_version":1,"env":{"cpu":"AMD"},"suites":[{"na"#,
    )
    .unwrap();
    let out = directory.path().join("again").display().to_string();
    let ended = Process::start(&["report", &json.display().to_string(), "--out", &out]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(
        ended.text().contains("is no bench.json: "),
        "{}",
        ended.text()
    );
    assert!(!Path::new(&out).exists());
}

#[test]
fn help_version_completions_and_pages_are_no_errors() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("man").display().to_string();
    for (arguments, expected) in [
        (&["--help"][..], "Examples:"),
        (&["report", "--help"], "bench.json"),
        (&["completions", "bash"], "--peers-dir"),
        (&["man", "--out", &out], "4 pages in "),
        (
            &["--version"],
            concat!("tidewire-bench ", env!("CARGO_PKG_VERSION"), " ("),
        ),
    ] {
        let ended = Process::start(arguments).wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
        assert!(ended.text().contains(expected), "{}", ended.text());
    }
    let page = std::fs::read_to_string(Path::new(&out).join("tidewire-bench.1")).unwrap();
    assert!(
        page.contains("peers\\-dir") && page.contains("Exit codes"),
        "{page}"
    );
}

/// A full disk is a failure, unlike a reader that has enough.
#[test]
fn a_list_that_cannot_be_printed_is_a_failure() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let output = command(&["--list"]).stdout(full.unwrap()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write to standard output"), "{text}");
}

/// They need hours or rivals. `--help` is reached only if all flags before it are right.
#[test]
fn commands_of_the_documents_have_flags_that_exist() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut count = 0;
    for page in [
        "docs/bench.md",
        "docs/bench-suites.md",
        "docs/performance.md",
        "CONTRIBUTING.md",
    ] {
        let text = std::fs::read_to_string(repository.join(page)).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("tidewire bench "));
        for line in lines {
            let arguments = line.split("  ").next().unwrap();
            let script = format!("exec \"$0\" {arguments} --help");
            let output = Command::new("sh")
                .args(["-c", &script, PROGRAM])
                .output()
                .unwrap();
            assert!(output.status.success(), "{page}: {line}: {output:?}");
            count += 1;
        }
    }
    assert!(count > 5, "only {count} commands were found");
}
