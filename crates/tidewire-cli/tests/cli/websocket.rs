//! `serve --bind ws://` and the commands that connect to it.

use std::io::{Read, Write};
use std::net::TcpStream;

use tempfile::TempDir;
use tidewire_testkit::wait_until;

use crate::process::{Process, command};

#[test]
fn commands_take_websocket_addresses() {
    let (_server, address) = Process::server_at("ws://127.0.0.1:0/rpc", &["--app", "rpc"]);
    assert!(address.starts_with("ws://127.0.0.1:"), "{address}");
    assert!(address.ends_with("/rpc"), "{address}");
    let called = command(&["call", &address, "add", "2 40"])
        .output()
        .unwrap();
    assert!(called.status.success(), "{called:?}");
    assert_eq!(called.stdout, b"42\n");
    let other = address.replace("/rpc", "/other");
    let refused = command(&["call", &other, "add", "2 40"]).output().unwrap();
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("HTTP status 404"), "{text}");
}

#[test]
fn wss_takes_the_certificates_of_tls() {
    let directory = TempDir::new().unwrap();
    let out = directory.path().to_str().unwrap();
    let made = command(&["cert", "dev", "--out", out]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let path = |name: &str| format!("{out}/{name}");
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(path);
    let flags = ["--app", "rpc", "--tls-cert", &cert, "--tls-key", &key];
    let (_server, address) = Process::server_at("wss://127.0.0.1:0/", &flags);
    assert!(address.starts_with("wss://127.0.0.1:"), "{address}");
    let call = ["call", &address, "add", "2 40", "--ca", &ca];
    let called = command(&call).output().unwrap();
    assert!(called.status.success(), "{called:?}");
}

/// The rule of `serve` holds: other machines reach it only with encryption and users.
#[test]
fn an_open_websocket_needs_protection() {
    let serve = ["serve", "--bind", "ws://0.0.0.0:0/chat"];
    let refused = command(&serve).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        text.contains("no encryption and users") && text.contains("wss://"),
        "{text}"
    );
}

#[test]
fn a_chat_page_is_served_at_the_path_of_its_websocket() {
    let (mut server, address) = Process::server_at("ws://127.0.0.1:0", &["--web"]);
    let place = address.trim_start_matches("ws://").trim_end_matches('/');
    let told = format!("the chat page is at http://{place}/");
    wait_until("the page is named", || server.has_line(&told).then_some(()));
    let mut answer = String::new();
    let mut stream = TcpStream::connect(place).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("script-src 'sha256-"), "{answer}");
    assert!(answer.contains("<title>Tidewire chat</title>"));
    // The page loads nothing from elsewhere.
    assert!(!answer.contains("src=") && !answer.contains("https://"));
    // The WebSocket is at the same path. This returns when its member is in the room.
    let _chat = Process::chat(&address, "ann");
}

#[test]
fn a_page_without_a_chat_server_is_refused() {
    for (flags, remedy) in [
        (
            &["--app", "rpc", "--bind", "ws://127.0.0.1:0"][..],
            "--app chat",
        ),
        (
            &["--codec", "lines", "--bind", "ws://127.0.0.1:0"],
            "--codec tw1",
        ),
        (&["--bind", "tcp://127.0.0.1:0"], "--bind ws://"),
    ] {
        let arguments = [&["serve", "--web"], flags].concat();
        let refused = command(&arguments).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(text.contains(remedy), "{text}");
    }
}
