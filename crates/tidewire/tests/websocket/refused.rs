//! Handshakes and frames that a server or client must refuse: the peer receives the reason, and the counters have it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use tidewire::socket::SocketOptions;
use tidewire::websocket::WebSocketFault;
use tidewire::{Client, CloseReason, ConnectError, Event, Server};
use tidewire_proto::layer::LayerError;
use tidewire_testkit::fixtures::codec;
use tidewire_testkit::logs::Logs;
use tidewire_testkit::{DEADLINE, TestServer, wait_until};
use tungstenite::Message as WebMessage;
use tungstenite::protocol::frame::Frame;
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};

use super::{ask, serve, serve_as};

const REQUEST: &str = "GET /test HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

fn connect(server: &TestServer) -> TcpStream {
    let stream = TcpStream::connect(server.address().socket_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends bytes, and returns all that the server sends until it closes.
fn answer(server: &TestServer, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(server);
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// Opens a WebSocket by hand.
pub(crate) fn open(server: &TestServer) -> TcpStream {
    let mut stream = connect(server);
    stream
        .write_all(format!("{REQUEST}\r\n").as_bytes())
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
    stream
}

/// A server continues after all bytes that peers may send.
fn assert_serves(server: &TestServer) {
    let client = Client::builder().codec(codec("lines"));
    let client = client.connect(&server.url()).wait().unwrap();
    ask(&client, b"still here");
    client.close().wait();
}

/// The fault for which a connection failed.
fn fault(outcome: Result<Client, ConnectError>) -> WebSocketFault {
    match outcome {
        Err(ConnectError::Closed(CloseReason::Layer(LayerError::WebSocket(fault)))) => fault,
        other => panic!("WebSocket did not fail: {other:?}"),
    }
}

#[test]
fn handshakes_are_refused_with_a_status_and_counted() {
    let server = serve("lines");
    let replaced = |part: &str, by: &str| format!("{}\r\n", REQUEST.replace(part, by));
    let with = |line: &str| format!("{REQUEST}{line}\r\n\r\n");
    let cases = [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 426),
        (replaced("Version: 13", "Version: 12"), 426),
        (
            replaced("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
            400,
        ),
        (replaced("/test", "/../etc/passwd"), 404),
        (replaced("/test", "/test/../../etc/passwd"), 404),
        (replaced("GET", "POST"), 405),
        (with("Transfer-Encoding: chunked"), 400),
        // A proxy could see a different end of the request, and another request after it.
        (with("Content-Length: 5\r\n\r\nGET /"), 400),
        (with("Content-Length: 0\r\nContent-Length: 5"), 400),
        (with("Content-Length: 0\r\nTransfer-Encoding: chunked"), 400),
        (with(" Folded: line"), 400),
        (with("Host: b"), 400),
        (with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), 400),
        (replaced("HTTP/1.1", "HTTP/1.0"), 400),
        (replaced("GET /test", "GET http://h/test"), 404),
        (replaced("/test", "/test\r\nX-Injected: yes"), 400),
        (with("Sec-WebSocket-Protocol: mqtt"), 400),
        (with("X: a\0b"), 400),
        ("\x16\x03\x01".to_owned(), 400),
    ];
    for (request, status) in &cases {
        let answer = answer(&server, request.as_bytes());
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {answer}"
        );
        assert!(
            !["passwd", "mqtt", "Injected"]
                .iter()
                .any(|it| answer.contains(it)),
            "{answer}"
        );
    }
    let page = answer(&server, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(String::from_utf8_lossy(&page).contains("connect to ws://"));
    let refused = cases.len() as u64 + 1;
    server.wait_for("refusals are counted", |metrics| {
        metrics.websocket_handshakes_refused == refused && metrics.closed_by("layer") == refused
    });
    assert_serves(&server);
    server.stop();
}

#[test]
fn foreign_origins_are_refused_and_listed_ones_are_not() {
    let builder = Server::builder()
        .websocket_origins(["https://app.example"])
        .unwrap();
    let server = serve_as(builder, "lines");
    for (origin, is_allowed) in [
        ("https://app.example", true),
        ("http://127.0.0.1", true),
        ("https://evil.example", false),
        ("null", false),
    ] {
        let request = format!("{REQUEST}Origin: {origin}\r\n\r\n");
        let mut stream = connect(&server);
        stream.write_all(request.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        let expected = if is_allowed {
            b"HTTP/1.1 101"
        } else {
            b"HTTP/1.1 403"
        };
        assert_eq!(&status, expected, "{origin}");
    }
    server.wait_for("they are counted", |metrics| {
        metrics.websocket_origins_refused == 2
    });
    assert_serves(&server);
    server.stop();
}

/// The server answers before it has read all, and does not keep what it read.
#[test]
fn headers_of_64_kib_are_refused() {
    let server = serve("lines");
    let mut stream = connect(&server);
    let request = format!("{REQUEST}Cookie: {}\r\n\r\n", "a".repeat(64 << 10));
    // The server may close while this is being written.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    server.wait_for("it is counted", |metrics| {
        metrics.websocket_handshakes_refused == 1
    });
    assert_serves(&server);
    server.stop();
}

#[test]
fn half_a_handshake_ends_at_its_timeout() {
    let mut limits = tidewire::Limits::default();
    limits
        .connections
        .set_handshake_timeout(std::time::Duration::from_millis(50));
    let server = serve_as(Server::builder().limits(limits), "lines");
    let rest = answer(&server, REQUEST.as_bytes());
    assert_eq!(rest, b"", "nothing was agreed on");
    server.wait_for("it timed out", |metrics| {
        metrics.closed_by("handshake_timeout") == 1
    });
    server.stop();
}

#[test]
fn bad_frames_end_a_session_with_a_close_code_and_are_counted() {
    let server = serve("lines");
    let cases: [(&[u8], u16); 11] = [
        // A second request after the first.
        (b"GET / HTTP/1.1\r\n\r\n", 1002),
        (b"\x81\x02hi", 1002),
        (b"\xC1\x80abcd", 1002),
        (b"\x83\x80abcd", 1002),
        (b"\x89\xFE\x00\x7Eabcd", 1002),
        (b"\x09\x80abcd", 1002),
        (b"\x80\x80abcd", 1002),
        (b"\x82\xFF\x80\0\0\0\0\0\0\0abcd", 1002),
        (b"\x82\xFF\0\0\0\0\x10\0\0\0abcd", 1009),
        (b"\x81\x81\0\0\0\0\xFF", 1007),
        // A character that is split across fragments, and never whole.
        (b"\x01\x81\0\0\0\0\xE6\x80\x81\0\0\0\0a", 1007),
    ];
    for (frame, code) in cases {
        let mut stream = open(&server);
        stream.write_all(frame).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let [high, low] = code.to_be_bytes();
        assert_eq!(answer, [0x88, 2, high, low], "{frame:x?}");
    }
    let count = cases.len() as u64;
    server.wait_for("they are counted", |metrics| {
        metrics.websocket_frames_refused == count && metrics.closed_by("layer") == count
    });
    assert_serves(&server);
    server.stop();
}

/// A text for a codec of bytes is refused; the page forgot to set the kind of its messages.
#[test]
fn text_for_a_binary_codec_is_refused() {
    let server = serve("length-field");
    let mut stream = open(&server);
    stream.write_all(b"\x81\x82\0\0\0\0hi").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [0x88, 2, 3, 0xEB], "1003");
    drop(stream);
    server.stop();
}

#[test]
fn a_ping_flood_ends_the_session() {
    let server = serve("lines");
    let mut stream = open(&server);
    let ping = [&[0x89, 0xFD, 0, 0, 0, 0][..], &[7; 125]].concat();
    let flood = ping.repeat(1_000);
    while stream.write_all(&flood).is_ok() {}
    server.wait_for("it is counted", |metrics| {
        metrics.websocket_frames_refused == 1
    });
    drop(stream);
    assert_serves(&server);
    server.stop();
}

/// Regression: a session that ended for its unread pongs was neither logged nor counted as refused.
#[test]
fn unread_pongs_end_the_session_with_a_counter_and_a_log_line() {
    let logs = Logs::capture();
    // The small buffer keeps each read below the number of pings that is a flood by itself.
    let sockets = SocketOptions {
        send_buffer_bytes: Some(8 * 1024),
        receive_buffer_bytes: Some(8 * 1024),
        ..SocketOptions::default()
    };
    let server = serve_as(Server::builder().socket_options(sockets), "lines");
    let mut stream = open(&server);
    let ping = [&[0x89, 0xFD, 0, 0, 0, 0][..], &[7; 125]].concat();
    while stream.write_all(&ping).is_ok() {}
    server.wait_for("it is counted", |metrics| {
        metrics.closed_by("layer") == 1 && metrics.websocket_frames_refused == 1
    });
    let line = "WebSocket failed: the peer requests answers and does not read them";
    wait_until("it is logged", || logs.text().contains(line).then_some(()));
    drop(stream);
    assert_serves(&server);
    server.stop();
}

#[test]
fn clients_hear_why_a_server_refuses() {
    let server = serve("lines");
    let connect = |url: &str, name: &str| Client::builder().codec(codec(name)).connect(url).wait();
    let other_path = server.url().replace("/test", "/other");
    assert_eq!(
        fault(connect(&other_path, "lines")),
        WebSocketFault::Status(404)
    );
    assert_eq!(
        fault(connect(&server.url(), "length-field")),
        WebSocketFault::Status(400)
    );
    let tcp = server.url().replace("ws://", "tcp://").replace("/test", "");
    let plain = connect(&tcp, "tw1");
    assert!(plain.is_err(), "{plain:?}");
    assert_serves(&server);
    server.stop();
}

/// The fault of a client after these bytes of a server.
fn answer_of(reply: &'static [u8]) -> WebSocketFault {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(reply).unwrap();
        // Until the client closes.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let client = Client::builder().codec(codec("length-field"));
    let fault = fault(client.connect(&format!("ws://{address}/")).wait());
    server.join().unwrap();
    fault
}

#[test]
fn clients_refuse_servers_that_are_none() {
    assert_eq!(
        answer_of(b"HTTP/1.1 200 OK\r\n\r\n"),
        WebSocketFault::Status(200)
    );
    assert_eq!(answer_of(b"SSH-2.0-OpenSSH\r\n"), WebSocketFault::NotHttp);
    let forged = b"HTTP/1.1 101 OK\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    assert_eq!(answer_of(forged), WebSocketFault::BadAnswer);
}

#[test]
fn a_client_refuses_masked_frames_of_a_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut socket = tungstenite::accept(listener.accept().unwrap().0).unwrap();
        // The client's request.
        socket.read().unwrap();
        let payload = b"\x04\0last".to_vec();
        let mut frame = Frame::message(payload, OpCode::Data(Data::Binary), true);
        frame.header_mut().mask = Some([1, 2, 3, 4]);
        socket.send(WebMessage::Frame(frame)).unwrap();
        socket.read().unwrap()
    });
    let client = Client::builder().codec(codec("length-field"));
    let client = client.connect(&format!("ws://{address}/")).wait().unwrap();
    let reply = client.request(b"anything").wait();
    assert!(reply.is_err(), "{reply:?}");
    let reason = loop {
        if let Event::Closed { reason, .. } = client.next_event().wait() {
            break reason;
        }
    };
    let masked = LayerError::WebSocket(WebSocketFault::Masked);
    assert_eq!(reason, CloseReason::Layer(masked));
    let WebMessage::Close(Some(close)) = server.join().unwrap() else {
        panic!("the server is not told why");
    };
    assert_eq!(close.code, CloseCode::Protocol);
    client.close().wait();
}
