//! Flags, help, exit codes, and the form of error messages.

use std::net::TcpListener;
use std::process::{Output, Stdio};

use crate::process::{Ended, Process, command};

fn run(arguments: &[&str]) -> Ended {
    Process::start(arguments).wait()
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [
        &["--help"][..],
        &["serve", "--help"],
        &["chat", "--help"],
        &["call", "--help"],
        &["pub", "--help"],
        &["sub", "--help"],
        &["load", "--help"],
        &["compare", "--help"],
        &["ab", "--help"],
        &["doctor", "--help"],
        &["merge", "--help"],
        &["report", "--help"],
        &["cert", "--help"],
        &["cert", "dev", "--help"],
        &["completions", "--help"],
        &["man", "--help"],
    ] {
        let ended = run(arguments);
        assert_eq!(ended.status.code(), Some(0), "{arguments:?}");
        assert!(ended.text().contains("Examples:"), "{}", ended.text());
    }
    let ended = run(&["--version"]);
    assert_eq!(ended.status.code(), Some(0));
    let text = ended.text();
    assert!(
        text.starts_with(concat!("tidewire ", env!("CARGO_PKG_VERSION"), " (")),
        "{text}"
    );
}

#[test]
fn wrong_flags_and_values_are_refused_with_the_right_ones() {
    let cases: [(&[&str], &str); 10] = [
        (&["serve", "--codec", "xml"], "tw1, lines"),
        (
            &["serve", "--poller", "kqueue"],
            "auto, epoll, poll, select or uring",
        ),
        (&["serve", "--slow-subscriber", "shout"], "drop_oldest"),
        (&["serve", "--coalesce-ms-max", "-1"], "is not a time"),
        (&["serve", "--coalesce-ms-max", "soon"], "is not a time"),
        (&["serve", "--lanes", "0"], "use 1 to 62"),
        (
            &["serve", "--bind", "http://localhost:1"],
            "tcp://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH, udp://HOST:PORT, ipc://PATH \
             or inproc://NAME",
        ),
        (
            &["serve", "--bind", "inproc://chat"],
            "use --bind ipc://PATH",
        ),
        (
            &["serve", "--bind", "ipc:///nowhere/at/all.sock"],
            "create it first",
        ),
        (&["dance"], "unrecognized subcommand"),
    ];
    for (arguments, remedy) in cases {
        let ended = run(arguments);
        let text = ended.text();
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains("2: error: "), "{text}");
        assert!(text.contains(remedy), "{arguments:?}: {text}");
    }
}

#[test]
fn the_poller_may_come_from_the_environment_and_the_flag_wins() {
    let with = |arguments: &[&str], value: &str| {
        let mut all = vec!["serve", "--bind", "tcp://127.0.0.1:0"];
        all.extend_from_slice(arguments);
        Process::spawn(command(&all).env("TIDEWIRE_POLLER", value))
    };
    with(&[], "poll").expect("poller=poll");
    with(&[], "").expect("poller=epoll");
    with(&["--poller", "select"], "poll").expect("poller=select");
    let ended = with(&[], "kqueue").wait();
    assert_eq!(ended.status.code(), Some(2));
}

#[test]
fn a_port_in_use_is_named_with_its_remedy() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", holder.local_addr().unwrap());
    let ended = run(&["serve", "--bind", &address]);
    assert_eq!(ended.status.code(), Some(2));
    let text = ended.text();
    assert!(
        text.contains(&format!("cannot listen on {address}: it is in use")),
        "{text}"
    );
    assert!(
        text.contains("2:   remedy: listen elsewhere with --bind"),
        "{text}"
    );
}

#[test]
fn an_unreachable_server_has_a_code_of_its_own() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let ended = run(&["chat", &format!("127.0.0.1:{port}"), "--name", "al"]);
    assert_eq!(ended.status.code(), Some(3));
    assert_eq!(
        ended.transcript,
        [
            format!(
                "2: error: cannot connect to tcp://127.0.0.1:{port}: connection refused; is the server running?"
            ),
            "2:   remedy: start a server with `tidewire serve`, or check the address".to_owned(),
        ]
    );
    let ended = run(&["chat", "inproc://elsewhere", "--name", "al"]);
    assert_eq!(ended.status.code(), Some(3));
    assert!(ended.text().contains("per process"), "{}", ended.text());
    let ended = run(&["chat", "127.0.0.1:nonsense", "--name", "al"]);
    assert_eq!(ended.status.code(), Some(2));
}

/// A full disk is a failure, unlike a reader that has enough.
#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let (_rpc, rpc) = Process::rpc_server(&[]);
    let (_topics, topics) = Process::server(&["--app", "pubsub"]);
    for arguments in [
        &["call", &rpc, "methods"][..],
        &["pub", &topics, "a", "x", "--json"],
        &["completions", "bash"],
    ] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = command(arguments).stdout(full).output().unwrap();
        assert_unwritten(arguments, &output);
    }
}

fn assert_unwritten(arguments: &[&str], output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
    assert!(
        text.contains("cannot write to standard output"),
        "{arguments:?}: {text}"
    );
}

/// Regression: `load --json >/dev/full` ended with 0, like all commands that measure or judge.
#[test]
fn a_measurement_whose_result_cannot_be_printed_is_a_failure_and_leaves_its_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let scenario = path("tiny.toml");
    std::fs::write(
        &scenario,
        "host = \"127.0.0.1\"\nport = 1\n[[steps]]\nname = \"tiny\"\nconcurrency = 2\nduration_secs = 0.2\n\
         think_time_ms = [5, 10]\n",
    )
    .unwrap();
    let (out, again, man) = (path("out"), path("again"), path("man"));
    let report = path("out/report.json");
    for arguments in [
        &["load", &scenario, "--serve", "--json", "--out", &out][..],
        &["load", &scenario, "--serve", "--out", &out],
        &["report", &report, "--out", &again],
        &["compare", &report, &report],
        &["compare", &report, &report, "--json"],
        &["doctor", "--json"],
        &["man", "--out", &man],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let output = command(arguments).stdout(full.unwrap()).output().unwrap();
        assert_unwritten(arguments, &output);
        assert!(std::fs::exists(&report).unwrap(), "{arguments:?}");
    }
    assert!(std::fs::exists(path("again/report.html")).unwrap());
}

#[test]
fn a_server_that_cannot_say_where_it_listens_serves_and_fails_in_the_end() {
    let arguments = [
        "serve",
        "--bind",
        "tcp://127.0.0.1:0",
        "--json",
        "--exit-with-stdin",
    ];
    let full = std::fs::File::options().write(true).open("/dev/full");
    let output = command(&arguments)
        .stdin(Stdio::null())
        .stdout(full.unwrap())
        .output()
        .unwrap();
    assert_unwritten(&arguments, &output);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("listening on tcp://127.0.0.1:"), "{text}");
}
