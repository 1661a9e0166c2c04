//! The server under systemd: its notices, its watchdog, and the sockets that it gets. A Unix socket plays systemd.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;
use tidewire::Client;

use crate::process::{DEADLINE, Process, command};

/// The service manager's side.
struct Systemd {
    socket: UnixDatagram,
    directory: TempDir,
}

impl Systemd {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        Self { socket, directory }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut all = vec!["serve", "--bind", "tcp://127.0.0.1:0"];
        all.extend_from_slice(arguments);
        let mut command = command(&all);
        command.env("NOTIFY_SOCKET", self.directory.path().join("notify"));
        command
    }

    /// The next notice that has a line which begins with `start`.
    fn expect(&self, start: &str) -> String {
        let mut buffer = [0; 4096];
        loop {
            let count = self.socket.recv(&mut buffer).unwrap();
            let notice = String::from_utf8(buffer[..count].to_vec()).unwrap();
            if notice.lines().any(|line| line.starts_with(start)) {
                return notice;
            }
        }
    }
}

#[test]
fn systemd_is_told_of_the_start_a_reload_and_the_end() {
    let systemd = Systemd::new();
    let mut server = Process::spawn(&mut systemd.command(&["--lanes", "2"]));
    let line = server.expect("listening on ");
    assert_eq!(systemd.expect("READY=1"), "READY=1\n");
    assert_eq!(systemd.expect("STATUS="), "STATUS=sessions: 0\n");
    let client = Client::connect(line.trim_start_matches("listening on "));
    let client = client.wait().unwrap();
    assert_eq!(systemd.expect("STATUS="), "STATUS=sessions: 1\n");
    drop(client);
    server.signal(Signal::HUP);
    let reloading = systemd.expect("RELOADING=1");
    let time = reloading
        .lines()
        .find_map(|line| line.strip_prefix("MONOTONIC_USEC="))
        .unwrap();
    assert!(time.parse::<u64>().unwrap() > 0, "{reloading}");
    systemd.expect("READY=1");
    server.signal(Signal::TERM);
    let stopping = systemd.expect("STOPPING=1");
    assert!(stopping.contains("EXTEND_TIMEOUT_USEC="), "{stopping}");
    server.expect("served: ");
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn the_watchdog_of_an_idle_server_is_fed() {
    let systemd = Systemd::new();
    let mut command = systemd.command(&[]);
    let server = Process::spawn(command.env("WATCHDOG_USEC", "100000"));
    for _ in 0..3 {
        systemd.expect("WATCHDOG=1");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait().status.code(), Some(0));
}

/// A service manager that hangs, or is gone, must not hold up the server.
#[test]
fn a_manager_that_does_not_read_stops_nothing() {
    let systemd = Systemd::new();
    let mut command = systemd.command(&[]);
    // The socket's queue is full soon, because the server feeds every 2 ms.
    let mut server = Process::spawn(command.env("WATCHDOG_USEC", "1000"));
    server.expect("ready codec=");
    server.signal(Signal::HUP);
    server.expect("no log file to open again");
    server.signal(Signal::TERM);
    server.expect("served: ");
    assert_eq!(server.wait().status.code(), Some(0));
    drop(systemd);

    let mut nowhere = command_for_nowhere();
    let mut server = Process::spawn(&mut nowhere);
    server.expect("cannot tell systemd about this server");
    server.signal(Signal::TERM);
    server.expect("served: ");
    assert_eq!(server.wait().status.code(), Some(0));
}

fn command_for_nowhere() -> Command {
    let mut command = command(&["serve", "--bind", "tcp://127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", "/nowhere/at/all");
    command
}

/// Starts a server with this descriptor as the first passed descriptor. `pid` is the process that it is meant for.
fn with_passed(socket: impl Into<OwnedFd>, pid: &str, arguments: &[&str]) -> Process {
    let script = format!(
        "exec 3<&0 </dev/null; export LISTEN_PID={pid} LISTEN_FDS=1; exec {} serve \"$@\"",
        env!("CARGO_BIN_EXE_tidewire")
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash"]).args(arguments);
    Process::spawn_with_stdin(&mut command, Stdio::from(socket.into()))
}

#[test]
fn a_passed_socket_is_taken_by_the_address_that_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("passed.sock");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let websocket = TcpListener::bind("127.0.0.1:0").unwrap();
    let websocket_port = websocket.local_addr().unwrap().port();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp_port = udp.local_addr().unwrap().port();
    let unix = UnixListener::bind(&path).unwrap();
    let sockets: [(OwnedFd, String); 4] = [
        (tcp.into(), format!("tcp://127.0.0.1:{port}")),
        (unix.into(), format!("ipc://{}", path.display())),
        (
            websocket.into(),
            format!("ws://127.0.0.1:{websocket_port}/chat"),
        ),
        (udp.into(), format!("udp://127.0.0.1:{udp_port}")),
    ];
    for (socket, address) in sockets {
        let kept = socket.try_clone().unwrap();
        let mut server = with_passed(socket, "$$", &["--app", "echo", "--bind", &address]);
        assert_eq!(
            server.expect("listening on "),
            format!("listening on {address}")
        );
        server.expect("ready codec=");
        let client = Client::connect(&address).wait().unwrap();
        assert_eq!(client.request(b"hello").wait().unwrap().payload(), b"hello");
        drop(client);
        server.signal(Signal::TERM);
        server.expect("served: ");
        assert_eq!(server.wait().status.code(), Some(0));
        // The next server takes the same socket: nothing was closed or removed.
        let mut server = with_passed(kept, "$$", &["--app", "echo", "--bind", &address]);
        server.expect("ready codec=");
        let client = Client::connect(&address).wait().unwrap();
        assert_eq!(client.request(b"again").wait().unwrap().payload(), b"again");
    }
}

#[test]
fn a_passed_socket_that_no_address_has_or_no_server_can_use_is_refused() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", tcp.local_addr().unwrap());
    let ended = with_passed(tcp, "$$", &["--bind", "tcp://127.0.0.1:0"]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains(&address), "{}", ended.text());

    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp://{}", udp.local_addr().unwrap());
    let ended = with_passed(udp, "$$", &["--lanes", "2", "--bind", &address]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("use one lane"), "{}", ended.text());

    let file = std::fs::File::open("/dev/null").unwrap();
    let ended = with_passed(file, "$$", &["--bind", "tcp://127.0.0.1:0"]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("LISTEN_FDS: "), "{}", ended.text());
}

/// The variables stay in the environment of a service's children, which must not take its sockets.
#[test]
fn sockets_for_another_process_are_left_alone() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut server = with_passed(tcp, "1", &["--bind", "tcp://127.0.0.1:0"]);
    server.expect("ready codec=");
    server.signal(Signal::TERM);
    server.expect("served: ");
    assert_eq!(server.wait().status.code(), Some(0));
}
