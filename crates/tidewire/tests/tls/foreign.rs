//! Peers of other makers: `openssl s_client` and Python's `ssl`. A program that is not installed is named in the output.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use tidewire::Server;
use tidewire_testkit::TestServer;
use tidewire_testkit::certificates::{Authority, usual};
use tidewire_testkit::fixtures::{echo, lines};

/// An echo server of lines that requires certificates of clients, and its files.
fn serve() -> (TestServer, TempDir) {
    let directory = TempDir::new().unwrap();
    let (authority, server) = usual();
    let clients = Authority::new("clients");
    let client = clients.sign_client("ann");
    for (name, content) in [
        ("ca.pem", authority.text()),
        ("client.pem", &client.chain),
        ("client.key", &client.key),
    ] {
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    let tls = server.server().require_clients_of(clients.pem());
    let builder = Server::builder().tls(tls);
    (TestServer::over_tls(builder, &lines(), |_| echo), directory)
}

/// Runs a program that prints each line which it gets from the server, and checks that lines come back.
fn echoes(command: &mut Command) {
    let program = command.get_program().to_owned();
    let spawned = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn();
    let Ok(mut child) = spawned else {
        println!("SKIPPED: {} is not installed", program.display());
        return;
    };
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    for number in 0..100 {
        writeln!(input, "line {number}").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), format!("line {number}"));
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn openssl_talks_to_a_server() {
    let (server, directory) = serve();
    let address = server.url().replace("tls://", "");
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
        &address,
    ]);
    echoes(&mut command);
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
    let (server, directory) = serve();
    let address = server.url();
    let port = address.rsplit(':').next().unwrap();
    let mut command = Command::new("python3");
    command.current_dir(directory.path());
    echoes(command.args(["-c", SCRIPT, port]));
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("peer_reset"), 0, "it ends in order");
}
