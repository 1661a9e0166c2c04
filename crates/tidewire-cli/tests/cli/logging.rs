//! The destination of the log, its format, and its failures.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Process, command};

#[test]
fn a_file_gets_the_log_in_either_format_and_stderr_stays_free() {
    let directory = tempfile::tempdir().unwrap();
    for (format, lossy) in [("text", false), ("json", true)] {
        let path = directory.path().join(format);
        let file = path.display().to_string();
        let mut arguments = vec!["--log-file", &file, "--log-format", format];
        if lossy {
            arguments.push("--log-lossy");
        }
        let (mut server, _) = Process::server(&arguments);
        server.signal(Signal::INT);
        server.expect("2: served: ");
        let ended = server.wait();
        assert_eq!(ended.status.code(), Some(0));
        let on_stderr = |line: &&String| line.starts_with("2: ");
        assert_eq!(ended.transcript.iter().filter(on_stderr).count(), 1);
        let log = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        assert!(lines[0].contains("the log begins"), "{log}");
        assert!(lines.last().unwrap().contains("served: sessions="), "{log}");
        for line in lines {
            let object = serde_json::from_str::<Value>(line);
            assert_eq!(
                object.is_ok_and(|object| object["level"] == "INFO"),
                format == "json",
                "{line}"
            );
        }
    }
}

#[test]
fn a_log_that_cannot_be_written_is_refused_at_the_start() {
    for (file, why) in [
        ("/nowhere/at/all.log", "create it first"),
        ("/dev/full", "the disk is full"),
        ("/", "name a file in it"),
    ] {
        let ended =
            Process::start(&["serve", "--bind", "tcp://127.0.0.1:0", "--log-file", file]).wait();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(ended.text().contains(why), "{}", ended.text());
    }
}

#[test]
fn a_log_that_fails_later_is_counted_and_said_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let file = path.display().to_string();
    // A limit of 1,024 bytes on files replaces a full disk: the first line fits and no other. The signal that comes
    // with the limit is ignored.
    let tidewire = env!("CARGO_BIN_EXE_tidewire");
    let script = format!(
        "trap '' XFSZ; ulimit -f 1; exec {tidewire} serve --bind tcp://127.0.0.1:0 --log-file {file} --log-level trace"
    );
    fs::write(&path, "x".repeat(900)).unwrap();
    let mut server = Process::spawn(std::process::Command::new("bash").args(["-c", &script]));
    let address = server.expect("listening on ");
    server.expect("ready codec=");
    let address = address.trim_start_matches("listening on ");
    for _ in 0..20 {
        let client = tidewire::Client::connect(address).wait().unwrap();
        client.close().wait();
    }
    server.signal(Signal::INT);
    let told = server.expect("2: log: offered=");
    let ended = server.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    let count = |key: &str| -> u64 {
        let (_, rest) = told.split_once(key).unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    assert!(count("failed=") > 0, "{told}");
    assert_eq!(
        count("offered="),
        count("written=") + count("dropped=") + count("failed="),
        "{told}"
    );
    let said = ended
        .transcript
        .iter()
        .filter(|line| line.contains("cannot write to the log file"))
        .count();
    assert_eq!(said, 1, "{}", ended.text());
}

#[test]
fn levels_come_from_the_flag_then_the_variable_then_the_command() {
    let start = |arguments: &[&str], variable: &str| {
        let mut all = vec!["serve", "--bind", "tcp://127.0.0.1:0"];
        all.extend_from_slice(arguments);
        let mut server = Process::spawn(command(&all).env("RUST_LOG", variable));
        server.expect("ready codec=");
        server.signal(Signal::INT);
        server.wait().text()
    };
    assert!(start(&[], "debug").contains("DEBUG"));
    assert!(!start(&["--log-level", "warn"], "debug").contains("DEBUG"));
    assert!(start(&[], "").contains("INFO"));
    let told = start(&[], "a=b=c");
    assert!(
        told.contains("RUST_LOG is ignored") && told.contains("INFO"),
        "{told}"
    );
    let ended = Process::start(&["serve", "--log-level", "inof"]).wait();
    assert_eq!(ended.status.code(), Some(2));
    assert!(
        ended.text().contains("\"inof\" is no level"),
        "{}",
        ended.text()
    );
}

/// Regression: the signal ended the server without a drain, and the server wrote to a moved file for ever.
#[test]
fn a_hangup_opens_the_log_file_again_and_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let [path, moved] = ["log", "log.1"].map(|name| directory.path().join(name));
    let file = path.display().to_string();
    let (mut server, _) = Process::server(&["--log-file", &file]);
    fs::rename(&path, &moved).unwrap();
    server.signal(Signal::HUP);
    tidewire_testkit::wait_until("a new file begins", || {
        let log = fs::read_to_string(&path).unwrap_or_default();
        log.contains("opened again").then_some(())
    });
    server.signal(Signal::INT);
    server.expect("2: served: ");
    assert_eq!(server.wait().status.code(), Some(0));
    let [new, old] = [&path, &moved].map(|path| fs::read_to_string(path).unwrap());
    assert!(
        new.contains("the log begins") && new.contains("draining"),
        "{new}"
    );
    assert!(!old.contains("draining"), "{old}");
}

/// Regression: without a log file the log said that the signal was ignored, although users and certificates were read
/// again.
#[test]
fn a_hangup_without_a_log_file_says_only_that_there_is_none() {
    let (mut server, _) = Process::server(&[]);
    server.signal(Signal::HUP);
    server.expect("SIGHUP: there is no log file to open again");
    server.signal(Signal::INT);
    server.expect("2: served: ");
    let ended = server.wait();
    assert_eq!(ended.status.code(), Some(0));
    assert!(!ended.text().contains("ignored"), "{}", ended.text());
}

/// Regression: the line had the reason in words only, and the table of docs/operating.md is sorted by names.
#[test]
fn the_end_of_a_session_is_logged_with_the_name_of_its_reason() {
    let (mut server, address) = Process::server(&["--log-level", "info,tidewire::engine=debug"]);
    drop(std::net::TcpStream::connect(address.trim_start_matches("tcp://")).unwrap());
    let line = server.expect("session closed: the peer closed the connection");
    assert!(line.contains(" reason=peer_closed"), "{line}");
    assert!(line.contains(" session="), "{line}");
}

/// Regression: a log file began with `the log begins`, and said neither which server it was nor why it did not start.
#[test]
fn a_log_file_begins_with_the_server_and_ends_with_its_counters_or_its_failure() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("serve.log");
    let flag = format!("--log-file={}", log.display());
    let (server, address) = Process::server(&[&flag]);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().status.code(), Some(0));
    let text = fs::read_to_string(&log).unwrap();
    let version = concat!("version=", env!("CARGO_PKG_VERSION"));
    for part in [
        "tidewire serve begins",
        version,
        "pid=",
        "listening",
        &address,
        "sessions=0",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let token = folder.path().join("empty.token");
    fs::write(&token, "").unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let ended = Process::start(&[
        "serve",
        "--bind=tcp://127.0.0.1:0",
        "--admin=127.0.0.1:0",
        &format!("--admin-token-file={}", token.display()),
        &flag,
    ])
    .wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    let text = fs::read_to_string(&log).unwrap();
    let is_told = |line: &str| {
        line.contains("ERROR") && line.contains("empty.token") && line.contains("remedy: ")
    };
    assert!(text.lines().any(is_told), "{text}");
}
