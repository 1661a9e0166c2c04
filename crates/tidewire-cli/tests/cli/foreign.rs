//! Servers of other protocols at the address of a command: the error says which protocol it is, and shows no byte of
//! theirs.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;

use crate::process::{Process, command};

/// Starts a server that answers any input with these bytes and a control sequence, and closes. Returns its address.
fn answering(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The thread ends with the program: the number of connections that a command makes is its own affair.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(bytes);
        }
    });
    address.to_string()
}

/// Runs a command, and returns its exit code and its error.
fn told(arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(arguments).stdin(Stdio::null()).output().unwrap();
    let shown = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(shown).unwrap())
}

/// The first bytes of a server, and the words by which it is named.
const SERVERS: [(&[u8], &str); 7] = [
    (b"HTTP/1.1 400 Bad Request\r\n\x1b[2J\r\n", "look like HTTP"),
    (b"+PONG\r\n\x1b[2J", "look like Redis"),
    (b"-ERR unknown command '\x1b[2J'\r\n", "look like Redis"),
    (b"INFO {\"server_id\":\"\x1b[2J\"}\r\n", "look like NATS"),
    (b"SSH-2.0-OpenSSH_9.2\x1b[2J\r\n", "look like SSH"),
    (b"\x15\x03\x03\x00\x02\x02\x46", "the peer speaks TLS"),
    (
        b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03\x1b[2J",
        "the peer speaks TLS",
    ),
];

/// Regression: a client of JSON was told that the peer does not speak TW1, and to restart it with another codec.
#[test]
fn a_server_of_another_protocol_is_named() {
    for (bytes, name) in SERVERS {
        let address = answering(bytes);
        for codec in ["tw1", "json"] {
            let commands: [&[&str]; 3] = [
                &["call", &address, "add", "2 40"],
                &["pub", &address, "a.b", "text"],
                &["sub", &address, "a.b"],
            ];
            for arguments in commands {
                let (code, shown) = told(&[arguments, &["--codec", codec]].concat());
                let context = format!("{arguments:?} with {codec}: {shown:?}");
                assert_eq!(code, Some(3), "{context}");
                assert!(shown.contains(name), "{context}");
                assert!(!shown.contains(['\x1b', '\r']), "{context}");
                assert!(
                    !shown.contains("TW1") && !shown.contains("--codec"),
                    "{context}"
                );
            }
        }
    }
}

#[test]
fn a_load_test_names_a_server_of_another_protocol() {
    let directory = tempfile::tempdir().unwrap();
    for codec in ["tw1", "json"] {
        let scenario = directory.path().join("scenario.toml");
        let text = format!(
            "version = 2\ntarget = \"tcp://127.0.0.1:0\"\n[[steps]]\nname = \"a\"\npattern = \"request\"\ncodec = \
             \"{codec}\"\nmodel = \"closed\"\n\
             concurrency = 1\nduration_secs = 1\n"
        );
        std::fs::write(&scenario, text).unwrap();
        for (bytes, name) in SERVERS {
            let target = format!("tcp://{}", answering(bytes));
            let out = directory.path().join("out");
            let (scenario, out) = (scenario.to_str().unwrap(), out.to_str().unwrap());
            let (code, shown) = told(&["load", scenario, "--target", &target, "--out", out]);
            assert_eq!(code, Some(3), "{codec}: {shown:?}");
            assert!(shown.contains(name), "{codec}: {shown:?}");
            assert!(!shown.contains(['\x1b', '\r']), "{codec}: {shown:?}");
        }
    }
}

/// Starts a proxy in front of a server, which begins each connection with these bytes. Returns its address.
fn proxy(server: &str, head: &'static [u8]) -> String {
    let server = server.trim_start_matches("tcp://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // A side that is gone ends the other.
    let pump = |mut from: TcpStream, mut to: TcpStream| {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    };
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let mut upstream = TcpStream::connect(&server).unwrap();
            upstream.write_all(head).unwrap();
            let (back, forth) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || pump(forth, upstream));
            thread::spawn(move || pump(back, client));
        }
    });
    address.to_string()
}

/// Regression: with a PROXY header that the server does not accept, or without a required header, the client was only
/// advised to give both sides the same codec.
#[test]
fn a_client_of_a_proxy_learns_about_its_header() {
    let (_plain, plain) = Process::server(&["--app", "rpc"]);
    let (_json, json) = Process::server(&["--app", "rpc", "--codec", "json"]);
    let (_behind, behind) =
        Process::server(&["--app", "rpc", "--proxy-protocol-from", "127.0.0.1"]);
    let version_1 = b"PROXY TCP4 203.0.113.7 192.0.2.1 4000 443\r\n";
    let version_2 =
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x07\xc0\x00\x02\x01\x0f\xa0\x01\xbb";
    let cases: [(&str, &'static [u8], &str, i32, &str); 4] = [
        (
            &plain,
            version_1,
            "tw1",
            4,
            "first bytes are a PROXY header",
        ),
        (
            &plain,
            version_2,
            "tw1",
            4,
            "first bytes are a PROXY header",
        ),
        (
            &json,
            version_1,
            "json",
            4,
            "first bytes are a PROXY header",
        ),
        (
            &behind,
            b"",
            "tw1",
            3,
            "do not agree about the PROXY header",
        ),
    ];
    for (server, head, codec, exit, text) in cases {
        let address = proxy(server, head);
        let (code, shown) = told(&["call", &address, "add", "2 40", "--codec", codec]);
        assert_eq!(code, Some(exit), "{codec}: {shown}");
        assert!(shown.contains(text), "{codec}: {shown}");
    }
}
