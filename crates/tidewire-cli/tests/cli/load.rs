//! The load test from the shell: its output for programs, and servers it is no use with.

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
    let ended = Process::start(&["load", "--codec", "srmp"]).wait();
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.text().contains("codec srmp has no rooms"));
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
        (&"report".into(), &"passed".into())
    );
    assert!(std::fs::exists(lines[1]["json"].as_str().unwrap()).unwrap());
}
