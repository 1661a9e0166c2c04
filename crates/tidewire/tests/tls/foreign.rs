//! Peers of other makers: `openssl s_client`, Python's `ssl` and Go's `crypto/tls`. If a program is missing, the output
//! says so. With `TIDEWIRE_PEERS_REQUIRED`, which `.ci/run` sets on machines of continuous integration, the test fails.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;
use tidewire::tls::ServerTls;
use tidewire::{Backoff, Client, Server};
use tidewire_testkit::certificates::{Authority, usual};
use tidewire_testkit::fixtures::{echo, lines};
use tidewire_testkit::{TestServer, wait_until};

/// A program that talks in lines. It is killed when the value is dropped.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Starts it, or says that it is not installed.
    fn start(command: &mut Command) -> Option<Self> {
        let name = command.get_program().to_owned();
        let spawned = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn();
        let Ok(mut child) = spawned else {
            missing(&name.display().to_string());
            return None;
        };
        Some(Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        })
    }

    fn line(&mut self) -> String {
        self.output.next().unwrap().unwrap()
    }

    /// Ends its input, and checks that it ends well.
    fn finish(mut self) {
        self.input.take();
        assert!(self.child.wait().unwrap().success());
    }

    /// Checks that lines come back from the server, and that the program ends well.
    fn echoes(mut self) {
        for number in 0..100 {
            let text = format!("line {number}");
            writeln!(self.input.as_mut().unwrap(), "{text}").unwrap();
            assert_eq!(self.line(), text);
        }
        self.finish();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The call fails if the program has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says that a program is not installed.
pub(crate) fn missing(name: &str) {
    let is_required = std::env::var_os("TIDEWIRE_PEERS_REQUIRED").is_some();
    assert!(!is_required, "{name} is not installed");
    println!("SKIPPED: {name} is not installed");
}

/// The files of an authority, a server and a client, and settings of a server that requires such clients.
fn files() -> (TempDir, ServerTls) {
    let directory = TempDir::new().unwrap();
    let (authority, server) = usual();
    let clients = Authority::new("clients");
    let client = clients.sign_client("ann");
    for (name, content) in [
        ("ca.pem", authority.text()),
        ("server.pem", &server.chain),
        ("server.key", &server.key),
        ("client.pem", &client.chain),
        ("client.key", &client.key),
    ] {
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    let tls = server.server().require_clients_of(clients.pem());
    (directory, tls)
}

/// An echo server of lines.
fn serve(tls: ServerTls) -> (TestServer, String) {
    let server = TestServer::over_tls(Server::builder().tls(tls), &lines(), |_| echo);
    let port = server.url().rsplit(':').next().unwrap().to_owned();
    (server, port)
}

/// The program `peer.go`. It is compiled once, because two compilations at the same time would both compile Go's
/// library.
fn go(directory: &TempDir, arguments: &[&str]) -> Option<Program> {
    static IS_INSTALLED: OnceLock<bool> = OnceLock::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/peer.go");
    let peer = concat!(env!("CARGO_TARGET_TMPDIR"), "/go-peer");
    let is_installed = IS_INSTALLED.get_or_init(|| {
        let mut command = Command::new("go");
        command.args(["build", "-o", peer, source]);
        command.current_dir(directory.path()).envs([
            ("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache")),
            ("GOFLAGS", "-mod=mod"),
            ("GOPROXY", "off"),
            ("GOTOOLCHAIN", "local"),
        ]);
        let compiled = command.status();
        assert!(compiled.as_ref().map_or(true, ExitStatus::success), "go");
        compiled.is_ok()
    });
    if !is_installed {
        missing("go");
        return None;
    }
    Program::start(
        Command::new(peer)
            .current_dir(directory.path())
            .args(arguments),
    )
}

#[test]
fn openssl_talks_to_a_server() {
    let (directory, tls) = files();
    let (server, port) = serve(tls);
    let mut command = Command::new("openssl");
    command.current_dir(directory.path()).args([
        "s_client",
        "-quiet",
        "-no_ign_eof",
        "-verify_return_error",
        "-CAfile",
        "ca.pem",
        "-cert",
        "client.pem",
        "-key",
        "client.key",
        "-servername",
        "localhost",
        "-alpn",
        "lines",
        "-connect",
        &format!("127.0.0.1:{port}"),
    ]);
    if let Some(program) = Program::start(&mut command) {
        program.echoes();
    }
    server.stop();
}

#[test]
fn python_talks_to_a_server() {
    const SCRIPT: &str = "
import socket, ssl, sys
context = ssl.create_default_context(cafile='ca.pem')
context.load_cert_chain('client.pem', 'client.key')
plain = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
sealed = context.wrap_socket(plain, server_hostname='localhost')
assert sealed.version() == 'TLSv1.3'
lines = sealed.makefile('rwb')
for line in sys.stdin.buffer:
    lines.write(line)
    lines.flush()
    sys.stdout.buffer.write(lines.readline())
    sys.stdout.buffer.flush()
sealed.unwrap()
";
    let (directory, tls) = files();
    let (server, port) = serve(tls);
    let mut command = Command::new("python3");
    command.current_dir(directory.path());
    if let Some(program) = Program::start(command.args(["-c", SCRIPT, &port])) {
        program.echoes();
    }
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("peer_reset"), 0, "it ends in order");
}

#[test]
fn go_talks_to_a_server_with_a_certificate_and_resumes_without_one() {
    let (directory, tls) = files();
    let (server, port) = serve(tls);
    if let Some(program) = go(&directory, &["client", &port]) {
        program.echoes();
    }
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("peer_reset"), 0, "it ends in order");

    let (server, port) = serve(usual().1.server());
    if let Some(mut program) = go(&directory, &["resume", &port]) {
        assert_eq!(program.line(), "resumed false");
        assert_eq!(program.line(), "resumed true");
        program.finish();
    }
    server.stop();
}

#[test]
fn a_client_talks_to_a_server_of_go_and_resumes_when_it_reconnects() {
    let (directory, _) = files();
    let Some(mut program) = go(&directory, &["server"]) else {
        return;
    };
    let address = format!("tls://localhost:{}", program.line());
    let builder = Client::builder().codec(lines()).tls(usual().0.client());
    let builder = builder.reconnect(Backoff::default());
    let client = builder.connect(&address).wait().unwrap();
    assert_eq!(program.line(), "resumed false lines localhost");
    let ask = |text: &[u8]| client.request(text).wait().map(|it| it.payload().to_vec());
    for text in [&b"hello"[..], &[b'x'; 8_000][..]] {
        assert_eq!(ask(text).unwrap(), text);
    }
    client.send(b"end").unwrap();
    assert_eq!(program.line(), "ended in order");
    let again = wait_until("the client is back", || ask(b"again").ok());
    assert_eq!(again, b"again");
    assert_eq!(program.line(), "resumed true lines localhost");
    client.close().wait();
    assert_eq!(program.line(), "ended in order");
    program.finish();
}
