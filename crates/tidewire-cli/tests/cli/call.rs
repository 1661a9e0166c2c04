//! `serve --app rpc` and `call`: every kind of reply, and the exit code of every failure.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::process::{Output, Stdio};
use std::thread::JoinHandle;

use rustix::process::Signal;
use serde_json::{Value, json};
use tidewire::{AnyCodec, Context, HandlerError, HandlerResult, Kind, Message, Server};
use tidewire_proto::body::{ErrorBody, ErrorCode, GoAwayBody, GoAwayCode};
use tidewire_proto::codec::{Codec, Tw1};

use crate::process::{Process, command};

fn call(arguments: &[&str], input: &[u8]) -> Output {
    let mut all = vec!["call"];
    all.extend_from_slice(arguments);
    let mut child = command(&all)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads no input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn reply(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let output = call(arguments, input);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    output.stdout
}

fn refused(arguments: &[&str], code: i32, text: &str) {
    let output = call(arguments, b"");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    assert!(stderr.contains(text), "{arguments:?}: {stderr}");
}

#[test]
fn every_codec_with_names_calls_every_method() {
    for codec in ["tw1", "srmp-rpc", "uvrpc"] {
        let (_server, address) = Process::rpc_server(&["--codec", codec]);
        let call = |arguments: &[&str], input: &[u8]| {
            let mut all = vec![&*address];
            all.extend_from_slice(arguments);
            all.extend_from_slice(&["--codec", codec]);
            reply(&all, input)
        };
        assert_eq!(call(&["add", "2 40"], b""), b"42\n");
        assert_eq!(call(&["add", "-1 -2"], b""), b"-3\n");
        assert_eq!(call(&["echo"], b""), b"\n");
        assert_eq!(call(&["echo", "-"], b"from\nstdin"), b"from\nstdin\n");
        assert_eq!(
            call(&["echo", "-", "--raw"], b"\xff\x00\x1b"),
            b"\xff\x00\x1b"
        );
        assert_eq!(call(&["sleep", "0"], b""), b"awake\n");
        let methods = String::from_utf8(call(&["methods"], b"")).unwrap();
        assert_eq!(methods.lines().count(), 5, "{methods}");
        let time: u64 = String::from_utf8(call(&["time"], b""))
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert!(time > 1_700_000_000_000);
    }
}

/// UVRPC's `simple_client` sends such a request and expects four bytes.
#[test]
fn a_uvrpc_peer_adds_two_binary_numbers() {
    let (_server, address) = Process::rpc_server(&["--codec", "uvrpc"]);
    let call = [&*address, "Add", "-", "--raw", "--codec", "uvrpc"];
    assert_eq!(reply(&call, b"\x0a\0\0\0\x14\0\0\0"), b"\x1e\0\0\0");
}

#[test]
fn json_tells_the_reply_the_refusal_and_how_long_it_took() {
    let (_server, address) = Process::rpc_server(&[]);
    let object = |output: &[u8]| -> Value { serde_json::from_slice(output).unwrap() };
    let told = object(&reply(&[&address, "echo", "say \"hi\"", "--json"], b""));
    assert_eq!(
        (&told["method"], &told["payload"]),
        (&json!("echo"), &json!("say \"hi\""))
    );
    assert!(told["latency_ms"].as_f64().unwrap() > 0.0);
    let told = object(&reply(&[&address, "echo", "-", "--json"], b"\xff\x00"));
    assert_eq!(told["payload_base64"], "/wA=");
    assert_eq!(told.get("payload"), None);
    let output = call(&[&address, "nothing", "--json"], b"");
    assert_eq!(output.status.code(), Some(4));
    let told = object(&output.stdout);
    assert_eq!(
        told["error"],
        json!({"code": 13, "meaning": "no such method", "text": "no such method"})
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("nothing answered with error 13"),
        "{stderr}"
    );
    // The value has microseconds, and no more digits.
    let micros = told["latency_ms"].as_f64().unwrap() * 1_000.0;
    assert!((micros - micros.round()).abs() < 1e-6, "{told}");
}

/// Regression: codes were texts of this program, in which the original's failures 4, 5 and 7 are one, and HTTP's
/// numbers are lost.
#[test]
fn json_has_the_numbers_that_the_codec_has() {
    for (codec, code, number) in [
        ("tw1", ErrorCode::Draining, 10),
        ("srmp-rpc", ErrorCode::Draining, 503),
        ("srmp-rpc", ErrorCode::NotFound, 404),
        ("srmp-rpc", ErrorCode::MethodNotFound, 404),
        ("uvrpc", ErrorCode::Internal, 4),
        ("uvrpc", ErrorCode::Other(5), 5),
        ("uvrpc", ErrorCode::Draining, 7),
    ] {
        let server = Server::builder()
            .codec(AnyCodec::by_name(codec).unwrap())
            .listen("tcp://127.0.0.1:0")
            .unwrap()
            .start(|_| {
                move |_: &mut Context<'_>, _: Message<'_>| -> HandlerResult {
                    Err(HandlerError::new(code, "no\u{9b}\u{202e}"))
                }
            })
            .unwrap();
        let address = server.addresses()[0].to_string();
        let output = call(&[&address, "any", "--json", "--codec", codec], b"");
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(r#""text":"no\u009b\u202e""#), "{text}");
        let told: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(told["error"]["code"], number, "{codec}: {text}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("no\\u{9b}\\u{202e}"), "{stderr}");
    }
}

/// Answers the hello of one client with these bytes and closes. With no bytes it sends nothing until the client has
/// gone.
fn answer_hello(answer: Vec<u8>) -> (JoinHandle<()>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 16];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&answer).unwrap();
        if !answer.is_empty() {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        // The client ends first, so that a reset discards no written bytes.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (thread, address)
}

/// Every command that connects, with its arguments beside the address.
const CONNECTING: [&[&str]; 4] = [
    &["call", "METHOD"],
    &["pub", "topic", "x"],
    &["sub", "topic"],
    &["chat", "--name", "ann"],
];

fn connect(arguments: &[&str], address: &str) -> Output {
    let mut all = vec![arguments[0], address];
    all.extend_from_slice(&arguments[1..]);
    all.extend_from_slice(&["--timeout", "2"]);
    command(&all).stdin(Stdio::null()).output().unwrap()
}

/// Regression: the error was "the server skipped the handshake", with exit code 3 and without the reason.
#[test]
fn a_refused_hello_shows_the_servers_reason() {
    let (mut error, mut go_away) = (Vec::new(), Vec::new());
    let text = "you are not on the list\u{9b}\u{202e}";
    ErrorBody {
        code: ErrorCode::LimitReached,
        text,
    }
    .encode(&mut error);
    GoAwayBody {
        code: GoAwayCode::LimitReached,
        text,
    }
    .encode(&mut go_away);
    let messages = [
        Message::with_id(Kind::Error, 0, 0, &error),
        Message::new(Kind::GoAway, 0, &go_away),
    ];
    for message in messages {
        let mut frame = Vec::new();
        Tw1.encode(&message, &mut frame).unwrap();
        for arguments in CONNECTING {
            let (server, address) = answer_hello(frame.clone());
            let output = connect(arguments, &address);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(4), "{arguments:?}: {stderr}");
            let told = "the server refused the connection: you are not on the list\\u{9b}\\u{202e}";
            assert!(stderr.contains(told), "{arguments:?}: {stderr}");
            server.join().unwrap();
        }
    }
}

#[test]
fn a_server_that_says_nothing_is_a_time_out() {
    for arguments in CONNECTING {
        let (server, address) = answer_hello(Vec::new());
        let output = connect(arguments, &address);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{arguments:?}: {stderr}");
        assert!(
            stderr.contains("remedy: wait longer with --timeout"),
            "{stderr}"
        );
        server.join().unwrap();
    }
}

#[test]
fn everything_that_goes_wrong_has_its_code() {
    let (_server, address) = Process::rpc_server(&[]);
    refused(&[&address, "nothing"], 4, "because: no such method");
    refused(&[&address, "add", "one"], 4, "add takes whole numbers");
    refused(&[&address, "sleep", "60001"], 4, "from 0 to 60000");
    refused(
        &[&address, "sleep", "60000", "--timeout", "2"],
        5,
        "wait longer with --timeout",
    );
    refused(&[&address, ""], 2, "METHOD");
    refused(
        &[&address, "echo", "x", "--codec", "lines"],
        2,
        "use --codec tw1, or json, or srmp-rpc, or uvrpc",
    );
    refused(
        &[&address, "echo", "x", "--codec", "xml"],
        2,
        "unknown codec",
    );
    refused(
        &[&address, "echo", "x", "--timeout", "-1"],
        2,
        "is not a time",
    );
    refused(&[&address, "echo", "x", "--codec", "uvrpc"], 3, "--codec");
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    refused(&[&free.to_string(), "echo"], 3, "connection refused");
    refused(
        &[&free.to_string(), "echo", "--retry", "--timeout", "0.3"],
        3,
        "connection refused",
    );
    let output = call(&[&address, "echo", "-"], &vec![b'x'; 2 << 20]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("must fit a frame"));
    refused(&["ipc:///nowhere/at/all.sock", "echo"], 3, "does not exist");
    let mut server = Process::start(&["serve", "--app", "rpc", "--codec", "raw"]);
    server.expect("2: error: codec raw has no methods by name, so an rpc server cannot use it");
    assert_eq!(server.wait().status.code(), Some(2));
}

#[test]
fn with_retry_it_waits_for_a_server_and_outlives_one() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("ipc://{}", directory.path().join("rpc.sock").display());
    let serve = || {
        let mut server = Process::start(&["serve", "--app", "rpc", "--bind", &address]);
        server.expect("ready codec=");
        server
    };
    let early = Process::start(&[
        "call",
        &address,
        "echo",
        "early",
        "--retry",
        "--timeout",
        "60",
    ]);
    let server = serve();
    let ended = early.wait();
    assert_eq!(
        (ended.status.code(), ended.text()),
        (Some(0), "early".to_owned())
    );

    let late = Process::start(&[
        "call",
        &address,
        "sleep",
        "300",
        "--retry",
        "--timeout",
        "60",
    ]);
    server.kill();
    let _server = serve();
    let ended = late.wait();
    assert_eq!(
        (ended.status.code(), ended.text()),
        (Some(0), "awake".to_owned())
    );
}

#[test]
fn a_reader_that_is_gone_is_no_failure() {
    let (_server, address) = Process::rpc_server(&[]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(&["call", &address, "methods"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn a_sleeper_does_not_keep_a_server_from_stopping() {
    let (mut server, address) = Process::rpc_server(&["--drain-ms", "50"]);
    let sleeper = Process::start(&["call", &address, "sleep", "60000", "--timeout", "60"]);
    // The server ends, whether it has read the sleeper's request or not.
    let _ = reply(&[&address, "echo", "x"], b"");
    server.signal(Signal::INT);
    let summary = server.expect("served: ");
    // A request that was read has a pending reply, which the end of the drain cuts off.
    let is_cut_off = summary.contains(" cut_off=1");
    let ended = server.wait();
    assert_eq!(
        ended.status.code(),
        Some(i32::from(is_cut_off)),
        "{}",
        ended.text()
    );
    // On a busy machine the sleeper may come when the server is about to end, and is refused.
    let expected = if is_cut_off { 3..=3 } else { 3..=4 };
    let ended = sleeper.wait();
    let code = ended.status.code().unwrap();
    assert!(expected.contains(&code), "{code}: {}", ended.text());
}
