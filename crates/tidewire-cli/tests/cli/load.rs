//! The load test from the shell: its output for programs, and servers that it cannot test.

use std::io::{Read, Write};
use std::path::Path;

use serde_json::Value;

use crate::process::{Process, command};

#[test]
fn a_server_without_rooms_is_refused_before_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("report").display().to_string();
    for app in ["echo", "pubsub", "rpc", "sink"] {
        let (_server, address) = Process::server(&["--app", app]);
        let ended = Process::start(&["load", "--target", &address, "--out", &out]).wait();
        let text = ended.text();
        assert_eq!(ended.status.code(), Some(4), "{text}");
        assert!(text.contains("has no rooms"), "{text}");
        assert!(text.contains("remedy: test a chat server"), "{text}");
    }
}

#[test]
fn programs_read_steps_and_the_verdict() {
    let directory = tempfile::tempdir().unwrap();
    let scenario = directory.path().join("tiny.toml");
    std::fs::write(
        &scenario,
        "host = \"127.0.0.1\"\nport = 1\n[[steps]]\nname = \"tiny\"\nconcurrency = 2\nduration_secs = 0.2\n\
         think_time_ms = [5, 10]\n",
    )
    .unwrap();
    let output = command(&["load", "--serve", "--json"])
        .arg(&scenario)
        .arg("--out")
        .arg(directory.path().join("report"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!(
        (&lines[0]["event"], &lines[0]["step"]["step_name"]),
        (&"step".into(), &"tiny".into())
    );
    assert_eq!(
        (&lines[1]["event"], &lines[1]["status"]),
        (&"report".into(), &"COMPLETED".into())
    );
    assert_eq!(lines[1]["conclusion"], "passed");
    // A busy machine may disturb the measurement. The report says so, and the verdict stays.
    let disturbances = &lines[0]["step"]["detail"]["verdict"]["disturbances"];
    let is_disturbed = disturbances.as_array().is_some_and(|all| !all.is_empty());
    assert_eq!(
        (
            &lines[1]["valid"],
            &lines[1]["verdict"],
            &lines[1]["disturbed"]
        ),
        (&true.into(), &"passed".into(), &is_disturbed.into())
    );
    for form in ["json", "markdown", "html"] {
        assert!(std::fs::exists(lines[1][form].as_str().unwrap()).unwrap());
    }
}

#[test]
fn a_scenario_of_steps_alone_is_run_against_a_server_of_our_own() {
    let directory = tempfile::tempdir().unwrap();
    let scenario = directory.path().join("steps.toml");
    let steps = "[[steps]]\nname = \"tiny\"\nconcurrency = 2\nduration_secs = 0.2\nthink_time_ms = [5, 10]\n";
    std::fs::write(&scenario, steps).unwrap();
    let out = directory.path().join("report");
    let run = |more: &[&str]| {
        let mut command = command(&["load", "--plain"]);
        command.arg(&scenario).arg("--out").arg(&out).args(more);
        command.output().unwrap()
    };
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read(out.join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(report["status"], "COMPLETED");
    assert_eq!(report["steps"][0]["total_send_errors"], 0);
    // Each share would have its own server.
    let output = run(&["--segment", "1/2"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--target"));
}

/// One request at a time, so that the cost of each is known.
const ONE_BY_ONE: &str =
    "pattern = \"request\"\nduration_secs = 1\n[guard]\non_violation = \"warn\"\n";

#[test]
fn a_report_has_the_cost_of_a_message_on_each_side_if_known() {
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(directory.path(), ONE_BY_ONE);
    let run = |name: &str, server: &[&str]| -> (Value, String) {
        let out = directory.path().join(name).display().to_string();
        let arguments = [&["load", &file, "--out", &out], server].concat();
        let ended = Process::start(&arguments).wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
        let report = std::fs::read(directory.path().join(name).join("report.json")).unwrap();
        let report: Value = serde_json::from_slice(&report).unwrap();
        let step = &report["steps"][0];
        assert_eq!(step["total_sent"], step["total_received"], "{step}");
        (step["detail"]["cost"].clone(), ended.text())
    };
    let (cost, text) = run("ours", &["--serve"]);
    for side in ["client_lanes", "server_lanes"] {
        let lanes = &cost[side];
        let figure = |name: &str| lanes[name].as_f64().unwrap();
        assert!(figure("system_calls_per_message") > 0.0, "{cost}");
        assert!(figure("allocations_per_message") >= 0.0, "{cost}");
        assert!(figure("allocated_bytes_per_message") >= 0.0, "{cost}");
    }
    assert!(
        text.contains("server cost") && !text.contains("not known"),
        "{text}"
    );

    let (_server, address) = Process::server(&["--app", "echo"]);
    let (cost, text) = run("theirs", &["--target", &address]);
    assert!(
        cost["client_lanes"].is_object() && cost["server_lanes"].is_null(),
        "{cost}"
    );
    assert!(
        text.lines()
            .any(|line| line.trim_start().starts_with("server cost")
                && line.ends_with("  not known")),
        "{text}"
    );
}

/// Writes a scenario of version 2 with one step of these lines.
fn scenario(directory: &Path, lines: &str) -> String {
    let path = directory.join("scenario.toml");
    let text = format!(
        "version = 2\ntarget = \"tcp://127.0.0.1:1\"\n[[steps]]\nname = \"tiny\"\nconcurrency = 2\nwarmup_secs = \
         0\n{lines}"
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

const REQUESTS: &str = "pattern = \"request\"\nmodel = \"open\"\nrate = 200\nduration_secs = 0.3\n\
                        [guard]\non_violation = \"warn\"\n";

#[test]
fn repeated_runs_and_merged_parts_are_one_report_that_can_be_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(directory.path(), REQUESTS);
    let out = |name: &str| directory.path().join(name).display().to_string();
    let report = |name: &str| -> Value {
        let text = std::fs::read(directory.path().join(name).join("report.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    };
    let run = |arguments: &[&str]| {
        let ended = Process::start(arguments).wait();
        assert_eq!(
            ended.status.code(),
            Some(0),
            "{arguments:?}: {}",
            ended.text()
        );
    };
    run(&[
        "load",
        &file,
        "--serve",
        "--repeat",
        "2",
        "--out",
        &out("whole"),
    ]);
    let whole = report("whole");
    assert_eq!(whole["steps"][0]["total_sent"], 120);
    assert_eq!(
        whole["steps"][0]["detail"]["runs"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    let (_server, address) = Process::server(&["--app", "echo"]);
    for part in ["1/2", "2/2"] {
        let name = part.replace('/', "-of-");
        run(&[
            "load",
            &file,
            "--target",
            &address,
            "--segment",
            part,
            "--out",
            &out(&name),
        ]);
    }
    let parts = [out("1-of-2"), out("2-of-2")].map(|part| format!("{part}/report.json"));
    run(&["merge", &parts[0], &parts[1], "--out", &out("merged")]);
    assert_eq!(report("merged")["steps"][0]["total_sent"], 60);
    let ended = Process::start(&["merge", &parts[0], "--out", &out("half")]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(
        ended.text().contains("1 were given of 2"),
        "{}",
        ended.text()
    );

    let merged = format!("{}/report.json", out("merged"));
    run(&["report", &merged, "--out", &out("again")]);
    assert_eq!(report("again"), report("merged"));
    for file in [
        "report.html",
        "report.md",
        "report.csv",
        "report.junit.xml",
        "report.hlog",
    ] {
        assert!(directory.path().join("again").join(file).exists(), "{file}");
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "machines that start together know no other clock"
)]
fn parts_that_start_together_are_one_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(directory.path(), REQUESTS);
    let (_server, address) = Process::server(&["--app", "echo"]);
    // The time is enough for the logins on a busy machine; a part that is late would fail.
    let start = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    let start = start.duration_since(std::time::UNIX_EPOCH).unwrap();
    let start = start.as_secs_f64().to_string();
    let outs = ["1", "2"].map(|part| directory.path().join(part).display().to_string());
    let parts = [("1/2", &outs[0]), ("2/2", &outs[1])].map(|(segment, out)| {
        #[rustfmt::skip]
        let arguments = [
            "load", &file, "--target", &address, "--segment", segment, "--start-at", &start, "--out", out,
        ];
        Process::start(&arguments)
    });
    for part in parts {
        let ended = part.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    }
    let reports = outs.map(|out| format!("{out}/report.json"));
    let whole = directory.path().join("whole");
    let out = whole.display().to_string();
    let ended = Process::start(&["merge", &reports[0], &reports[1], "--out", &out]).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    let text = std::fs::read(whole.join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&text).unwrap();
    let step = &report["steps"][0];
    assert_eq!(
        (&step["total_sent"], &step["total_received"]),
        (&60.into(), &60.into())
    );
    assert_eq!(step["lost"], 0);
}

#[test]
fn a_running_test_answers_scrapes() {
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(
        directory.path(),
        &REQUESTS.replace("duration_secs = 0.3", "duration_secs = 3"),
    );
    let out = directory.path().join("report").display().to_string();
    let mut load = Process::start(&[
        "load",
        &file,
        "--serve",
        "--out",
        &out,
        "--prometheus",
        "localhost:0",
    ]);
    let line = load.expect("metrics at http://");
    let address = line.split('/').nth(2).unwrap().to_owned();
    let ask = |request: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    // The figures are those of a printed line, or later ones.
    load.expect("steady  sent");
    let answer = ask("GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    let value = |name: &str| -> f64 {
        let line = answer.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in {answer}"))
            .trim()
            .parse()
            .unwrap()
    };
    let (sent, received) = (
        value("tidewire_load_sent_total "),
        value("tidewire_load_received_total "),
    );
    assert!(
        sent > 0.0 && received > 0.0 && received <= 600.0,
        "{answer}"
    );
    assert_eq!(value("tidewire_load_agents "), 2.0);
    assert!(value("tidewire_load_latency_seconds{quantile=\"0.99\"} ") > 0.0);
    assert!(value("tidewire_load_offered_rate ") > 0.0);
    assert!(ask("GET /other HTTP/1.1\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(
        ask("POST /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 405 ")
    );
    let ended = load.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    let text = std::fs::read_to_string(format!("{out}/report.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    let step = &report["steps"][0];
    assert_eq!(
        (&step["total_sent"], &step["lost"]),
        (&600.into(), &0.into())
    );

    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    let ended = Process::start(&["load", &file, "--serve", "--prometheus", &taken]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("cannot answer scrapes"));
}

#[test]
fn an_ingest_is_confirmed_by_the_count_of_our_own_server() {
    let directory = tempfile::tempdir().unwrap();
    for codec in ["tw1", "srmp"] {
        let lines = format!(
            "pattern = \"ingest\"\ncodec = \"{codec}\"\nmodel = \"open\"\nrate = 1000\nduration_secs = 0.2\n\
             [guard]\non_violation = \"warn\"\n"
        );
        let file = scenario(directory.path(), &lines);
        let out = directory.path().join(codec);
        let out_name = out.display().to_string();
        let ended = Process::start(&["load", &file, "--serve", "--out", &out_name]).wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
        let text = std::fs::read_to_string(out.join("report.json")).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        let step = &report["steps"][0];
        assert_eq!(
            (&step["total_sent"], &step["lost"]),
            (&200.into(), &0.into())
        );
        assert_eq!(step["total_received"], 200);
        assert!(!text.contains("the server does not count"), "{text}");
    }
}

#[test]
fn a_signal_of_the_system_has_its_own_exit_code_and_ends_the_run_with_a_report() {
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(
        directory.path(),
        &REQUESTS.replace("duration_secs = 0.3", "duration_secs = 60"),
    );
    let out = directory.path().join("report").display().to_string();
    let mut load = Process::start(&["load", &file, "--serve", "--plain", "--out", &out]);
    load.expect("steady  sent");
    // Until then no other run writes there.
    let other = Process::start(&["load", &file, "--serve", "--out", &out]).wait();
    assert_eq!(other.status.code(), Some(2), "{}", other.text());
    assert!(
        other.text().contains("another run writes its report"),
        "{}",
        other.text()
    );
    load.signal(rustix::process::Signal::TERM);
    let ended = load.wait();
    assert_eq!(ended.status.code(), Some(143), "{}", ended.text());
    let junit = std::fs::read_to_string(format!("{out}/report.junit.xml")).unwrap();
    assert!(
        junit.contains("<error message=\"the run was interrupted"),
        "{junit}"
    );
}

#[test]
fn invalid_measurements_and_broken_limits_have_exit_codes_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("report").display().to_string();
    let overdriven = "pattern = \"echo\"\nmodel = \"open\"\nrate = 20000000\nduration_secs = 0.01\nmax_in_flight = \
        10000000\n";
    let broken = format!("{REQUESTS}[steps.slo]\np50_ms = 0.000001\n");
    let unknown = "patern = \"echo\"\n";
    for (lines, code, told) in [
        (overdriven, 90, "INVALID measurement"),
        (&broken, 99, "limit broken"),
        (
            unknown,
            2,
            "scenario.toml:7: unknown key `steps[0].patern`; did you mean `pattern`?",
        ),
    ] {
        let file = scenario(directory.path(), lines);
        let ended = Process::start(&["load", &file, "--serve", "--out", &out]).wait();
        assert_eq!(ended.status.code(), Some(code), "{}", ended.text());
        assert!(ended.text().contains(told), "{}", ended.text());
    }
}
