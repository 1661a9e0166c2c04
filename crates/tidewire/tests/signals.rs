//! A server in a child process that ends by a signal.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed unwrap is a failed test, and a child process tells its parent by its output"
)]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tidewire::{Client, Context, Endpoint, Message, Server};

/// The environment variable that is set for the server's process.
const IS_SERVER: &str = "TIDEWIRE_TEST_SIGNALS";

/// Not a test: the child process of the other tests runs it.
#[test]
fn the_server_of_a_child_process() {
    let Ok(kind) = std::env::var(IS_SERVER) else {
        return;
    };
    let server = Server::builder().lanes(2).listen("tcp://127.0.0.1:0");
    let mut kept = Vec::new();
    let (sender, taken) = std::sync::mpsc::channel();
    let server = server.unwrap().start(|_| {
        let sender = sender.clone();
        move |cx: &mut Context<'_>, message: Message<'_>| {
            if message.payload == b"stop" {
                cx.stop_lane();
            }
            if message.payload == b"keep" {
                sender.send(cx.defer()).unwrap();
                return Ok(());
            }
            cx.reply(message.payload)
        }
    });
    let server = server.unwrap();
    println!("address {server}");
    let Endpoint::Tcp(address) = server.addresses()[0] else {
        panic!("a TCP address");
    };
    let answers = std::thread::spawn(move || {
        for deferred in taken {
            println!("kept");
            if kind == "hold" {
                kept.push(deferred);
                continue;
            }
            // The drain has begun when connecting fails.
            while TcpStream::connect(address).is_ok() {
                std::thread::yield_now();
            }
            deferred.reply(b"kept").unwrap();
        }
    });
    let metrics = server.wait_for_signals(Duration::from_secs(600)).unwrap();
    println!("stopped {}", metrics.closed_by("lane_failed"));
    drop(answers);
    std::process::exit(0);
}

/// SIGTERM in the mask of signals that `/proc` shows. Its handler is installed last.
const SIGTERM_BIT: u64 = 1 << 14;

/// The environment variable with the address for the client's process.
const SERVER: &str = "TIDEWIRE_TEST_SIGNALS_SERVER";

/// Not a test: the client of `a_process_that_stops_and_gets_signals_during_a_wait_goes_on`.
#[test]
fn the_client_of_a_child_process() {
    let Ok(address) = std::env::var(SERVER) else {
        return;
    };
    let client = Client::connect(&address).wait().unwrap();
    // A handler, so that a signal interrupts the wait in the poller.
    let noted = std::sync::Arc::default();
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, noted).unwrap();
    let reply = client.request(b"keep").wait().unwrap();
    println!("answered {}", String::from_utf8_lossy(reply.payload()));
    client.close().wait();
    std::process::exit(0);
}

struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(kind: &str) -> Self {
        Self::run("the_server_of_a_child_process", IS_SERVER, kind)
    }

    fn run(function: &str, variable: &str, value: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", function, "--nocapture"])
            .env(variable, value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let lines = BufReader::new(stdout).lines();
        Self { child, lines }
    }

    /// Returns the rest of the next line with this beginning. The test harness may have printed text before it.
    fn line(&mut self, beginning: &str) -> String {
        loop {
            let line = self.lines.next().expect("the line comes").unwrap();
            if let Some(at) = line.find(beginning) {
                return line[at + beginning.len()..].trim().to_owned();
            }
        }
    }

    /// Sends a signal after the server has printed its address: before, the signal would end the process.
    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        tidewire_testkit::wait_until("the signals are handled", || {
            let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
            (caught & SIGTERM_BIT != 0).then_some(())
        });
        self.send(name);
    }

    fn send(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(sent.success());
    }

    fn end(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn a_signal_ends_a_server_in_order() {
    for signal in ["-INT", "-TERM"] {
        let mut process = Process::start("drain");
        let client = Client::connect(&process.line("address ")).wait().unwrap();
        let request = client.request(b"keep").send();
        process.line("kept");
        process.signal(signal);
        assert_eq!(request.wait().unwrap().payload(), b"kept");
        assert_eq!(process.line("stopped "), "0");
        process.end();
    }
}

/// The thread that waits is in the poller of its client: a signal and a stop interrupt it there.
#[test]
fn a_process_that_stops_and_gets_signals_during_a_wait_goes_on() {
    let (sender, kept) = std::sync::mpsc::channel();
    let server = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let server = server.start(|_| {
        let sender = sender.clone();
        move |cx: &mut Context<'_>, _: Message<'_>| {
            sender.send(cx.defer()).unwrap();
            Ok(())
        }
    });
    let server = server.unwrap();
    let mut process = Process::run("the_client_of_a_child_process", SERVER, &server.to_string());
    let deferred: tidewire::Deferred = kept.recv().unwrap();
    for _ in 0..20 {
        process.send("-USR1");
        process.send("-STOP");
        process.send("-CONT");
    }
    process.send("-STOP");
    deferred.reply(b"while it slept").unwrap();
    process.send("-CONT");
    assert_eq!(process.line("answered "), "while it slept");
    process.end();
    assert!(server.shutdown(Duration::from_secs(10)).failures.is_empty());
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut process = Process::start("hold");
    let client = Client::connect(&process.line("address ")).wait().unwrap();
    let request = client.request(b"keep").send();
    process.line("kept");
    process.signal("-TERM");
    // The drain waits for an answer that never comes. A refused request shows that the first signal has arrived.
    while client.request(b"new work").wait().is_ok() {}
    process.signal("-TERM");
    assert!(request.wait().is_err());
    assert_eq!(process.line("stopped "), "0");
    process.end();
}

#[test]
fn a_server_whose_lanes_end_by_themselves_is_waited_for() {
    let mut process = Process::start("drain");
    let address = process.line("address ");
    // One session for each lane.
    let clients = [(); 2].map(|()| Client::connect(&address).wait().unwrap());
    for client in &clients {
        assert_eq!(client.request(b"stop").wait().unwrap().payload(), b"stop");
    }
    assert_eq!(process.line("stopped "), "0");
    process.end();
}
