//! Commands without a reader of their output end when they are told to.

use std::io::{BufRead, BufReader, PipeReader, Read, Write, pipe};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidewire::Kind;
use tidewire_io::descriptors::wait_writable;

use crate::process::command;

/// Makes a full pipe, with both of its ends.
fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, mut writer) = pipe().unwrap();
    while wait_writable(writer.as_fd(), Duration::ZERO).unwrap() {
        writer.write_all(&[b'x'; 4096]).unwrap();
    }
    (reader, Stdio::from(OwnedFd::from(writer)))
}

/// A process that is killed if the test fails.
struct Stuck(Child);

impl Stuck {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Waits until it ends. If it never does, the test runner reports it.
    fn code(mut self) -> Option<i32> {
        let status = self.0.wait().unwrap();
        assert_eq!(status.signal(), None, "it ended by itself");
        status.code()
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the address that a server prints on stdout while its stderr is blocked.
fn ready(server: &mut Stuck) -> String {
    let stdout = server.0.stdout.take().unwrap();
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let first = lines.next().unwrap();
    assert!(lines.next().unwrap().starts_with("ready codec="));
    // The rest is read until the end, so that stdout never breaks.
    std::thread::spawn(move || lines.for_each(drop));
    first.trim_start_matches("listening on ").to_owned()
}

/// Regression: the main thread waited for stderr, which the log's thread held, and every lane for room in the log.
#[test]
fn a_server_with_a_blocked_stderr_ends_by_a_signal() {
    for lossy in [false, true] {
        let (reader, stderr) = full_pipe();
        let lossy = format!("--log-lossy={lossy}");
        let arguments = [
            "serve",
            "--bind",
            "tcp://127.0.0.1:0",
            "--log-level",
            "trace",
            &lossy,
        ];
        let mut server = Stuck::start(command(&arguments).stdout(Stdio::piped()).stderr(stderr));
        let address = ready(&mut server);
        for _ in 0..3 {
            let client = tidewire::Client::connect(&address).wait().unwrap();
            client.close().wait();
        }
        server.signal(Signal::TERM);
        assert_eq!(server.code(), Some(0), "{lossy}");
        drop(reader);
    }
}

#[test]
fn a_second_signal_ends_a_server_with_a_blocked_stderr() {
    let (reader, stderr) = full_pipe();
    let arguments = [
        "serve",
        "--bind",
        "tcp://127.0.0.1:0",
        "--drain-ms",
        "3600000",
    ];
    let mut server = Stuck::start(command(&arguments).stdout(Stdio::piped()).stderr(stderr));
    let address = ready(&mut server);
    // The connection is accepted and never closes, so the drain waits for it.
    let mut holder = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    holder.write_all(&tidewire_testkit::hello_frame()).unwrap();
    assert_eq!(next_kind(&mut holder), Kind::Welcome);
    server.signal(Signal::TERM);
    // From now on the second signal cannot be mistaken for the first.
    assert_eq!(next_kind(&mut holder), Kind::GoAway);
    server.signal(Signal::TERM);
    assert_eq!(server.code(), Some(143));
    drop(reader);
}

/// The kind of the next frame.
fn next_kind(stream: &mut TcpStream) -> Kind {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    Kind::ALL
        .into_iter()
        .find(|kind| *kind as u8 == frame[0])
        .unwrap()
}

/// Regression: it waited for a reader of its output, until a second signal came.
#[test]
fn a_subscriber_with_a_blocked_stdout_ends_by_a_signal() {
    let server = tidewire_testkit::TestServer::over_tcp(
        tidewire::Server::builder(),
        &tidewire::AnyCodec::by_name("tw1").unwrap(),
        |_| tidewire::PubSub::new(),
    );
    let (reader, stdout) = full_pipe();
    let mut sub = command(&["sub", &server.url(), "news"]);
    let sub = Stuck::start(sub.stdout(stdout).stderr(Stdio::null()));
    let publisher = tidewire::Client::connect(&server.url()).wait().unwrap();
    server.wait_for("it has something to print", |metrics| {
        publisher.publish("news", b"told").unwrap();
        publisher.flush().wait().unwrap();
        metrics.room_delivered > 100
    });
    sub.signal(Signal::TERM);
    // The code is 0 if the signal came before the first line.
    assert!(matches!(sub.code(), Some(0 | 143)));
    drop(reader);
    publisher.close().wait();
    server.stop();
}

/// Regression: the run waited for the reader of its progress and did not see that it was told to end.
#[test]
fn a_load_test_without_a_reader_of_its_output_ends_by_a_signal() {
    let server = tidewire_testkit::TestServer::over_tcp(
        tidewire::Server::builder(),
        &tidewire::AnyCodec::by_name("tw1").unwrap(),
        |_| tidewire::Chat::new(),
    );
    let directory = tempfile::tempdir().unwrap();
    let (out_reader, stdout) = full_pipe();
    let (error_reader, stderr) = full_pipe();
    let out = directory.path().to_str().unwrap();
    // The scenario has one agent, and lasts longer than the test may take.
    let scenario = directory.path().join("scenario.toml");
    std::fs::write(&scenario, SCENARIO).unwrap();
    let scenario = scenario.to_str().unwrap();
    let target = server.url();
    let arguments = [
        "load", scenario, "--target", &target, "--out", out, "--plain",
    ];
    let load = Stuck::start(command(&arguments).stdout(stdout).stderr(stderr));
    // The signal handler is installed before the first text, which is blocked.
    while !caught(load.0.id(), Signal::INT) {
        std::thread::yield_now();
    }
    load.signal(Signal::INT);
    // The run does not end by its time limit, which writes no report. The output cannot be written, which is an error.
    assert_eq!(load.code(), Some(1));
    assert!(directory.path().join("report.json").is_file());
    drop((out_reader, error_reader));
    server.stop();
}

/// Whether a process has its own handler for this signal.
fn caught(pid: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(!status.contains("State:\tZ"), "it ended by itself");
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    mask & (1 << (signal.as_raw() - 1)) != 0
}

const SCENARIO: &str = "version = 2\ntarget = \"tcp://127.0.0.1:1\"\n[[steps]]\nname = \"one\"\npattern = \
    \"chat\"\nmodel = \"open\"\nrate = 10\n\
                        concurrency = 2\nduration_secs = 3600\n";
