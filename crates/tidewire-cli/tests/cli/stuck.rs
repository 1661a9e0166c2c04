//! Commands whose output nobody reads end all the same when they are told to.

use std::io::{BufRead, BufReader, PipeReader, Read, Write, pipe};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidewire::Kind;
use tidewire::io::descriptors::wait_writable;

use crate::process::command;

/// A pipe that is full, with both of its ends.
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

    /// Waits until it ends, for ever if it does not: the test runner says so then.
    fn code(mut self) -> Option<i32> {
        let status = self.0.wait().unwrap();
        assert_eq!(status.signal(), None, "it ended by itself");
        status.code()
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The address that a server says on stdout while its stderr is stuck.
fn ready(server: &mut Stuck) -> String {
    let stdout = server.0.stdout.take().unwrap();
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let first = lines.next().unwrap();
    assert!(lines.next().unwrap().starts_with("ready codec="));
    // The rest is read until the end, so that stdout never breaks.
    std::thread::spawn(move || lines.for_each(drop));
    first.trim_start_matches("listening on ").to_owned()
}

/// The main thread waited for stderr, which the log's thread held, and every lane for room in the log.
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
            let client = tidewire::Client::connect(&address).unwrap();
            client.close();
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
    // It is let in and never closes, so the drain waits for it.
    let mut holder = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    holder.write_all(&tidewire_testkit::hello_frame()).unwrap();
    assert_eq!(next_kind(&mut holder), Kind::Welcome);
    server.signal(Signal::TERM);
    // From now on the second cannot be taken for the first.
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

/// It waited for whoever should read its output, until a second signal came.
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
    let publisher = tidewire::Client::connect(&server.url()).unwrap();
    server.wait_for("it has something to print", |metrics| {
        publisher.publish("news", b"told").unwrap();
        publisher.flush().wait().unwrap();
        metrics.room_delivered > 100
    });
    sub.signal(Signal::TERM);
    // 0 if the signal came before the first line.
    assert!(matches!(sub.code(), Some(0 | 143)));
    drop(reader);
    publisher.close();
    server.stop();
}
