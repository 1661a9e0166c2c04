//! The page of a server: it arrives completely at any speed of reading, within the limits of a handshake.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidewire::socket::SocketOptions;
use tidewire::websocket::{PAGE_BYTES_MAX, WebPage};
use tidewire::{Limits, Server, ServerBuilder};
use tidewire_testkit::{DEADLINE, TestServer};

use super::{ask, serve_as};

const REQUEST: &[u8] = b"GET /test HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";

fn page() -> Vec<u8> {
    b"0123456789abcde\n".repeat(PAGE_BYTES_MAX / 16)
}

/// A server of the longest page, with sockets that take a part of the page at once.
fn builder() -> ServerBuilder {
    let sockets = SocketOptions {
        send_buffer_bytes: Some(4 << 10),
        ..SocketOptions::default()
    };
    Server::builder()
        .socket_options(sockets)
        .websocket_page(WebPage::html(page(), "default-src 'none'").unwrap())
}

fn request(server: &TestServer, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address().socket_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

fn assert_is_page(answer: &[u8]) {
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    assert!(answer[end + 4..] == page(), "the page is whole");
}

#[test]
fn a_slow_reader_gets_the_whole_page_and_the_websocket_beside_it_works() {
    let server = serve_as(builder(), "lines");
    for count in 1..=3 {
        let mut stream = request(&server, REQUEST);
        let (mut answer, mut piece) = (Vec::new(), [0; 1_000]);
        loop {
            match stream.read(&mut piece).unwrap() {
                0 => break,
                bytes => answer.extend_from_slice(&piece[..bytes]),
            }
        }
        assert_is_page(&answer);
        server.wait_for("it is counted", |metrics| {
            metrics.closed_by("page_served") == count
        });
    }
    let client = tidewire::Client::builder().codec(tidewire_testkit::fixtures::codec("lines"));
    let client = client.connect(&server.url()).wait().unwrap();
    ask(&client, b"beside it");
    client.close().wait();
    server.stop();
}

#[test]
fn a_page_that_is_not_read_ends_at_the_timeout_of_handshakes() {
    let mut limits = Limits::default();
    limits
        .connections
        .set_handshake_timeout(Duration::from_millis(100));
    let server = serve_as(builder().limits(limits), "lines");
    let mut stream = request(&server, REQUEST);
    // Bytes that follow are neither answered nor kept.
    let flood = loop {
        if let Err(error) = stream.write_all(&[b'x'; 1 << 16]) {
            break error.kind();
        }
    };
    assert!(
        matches!(flood, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        "{flood:?}"
    );
    server.wait_for("it timed out", |metrics| {
        metrics.closed_by("handshake_timeout") + metrics.closed_by("page_served") == 1
    });
    server.stop();
}

#[test]
fn other_requests_are_refused_and_counted() {
    let server = serve_as(builder(), "lines");
    for (line, status) in [
        ("POST /test", "405 "),
        ("GET /", "404 "),
        ("GET /test/../../etc/passwd", "404 "),
        ("HEAD /other", "404 "),
    ] {
        let request_text = format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut answer = String::new();
        let mut stream = request(&server, request_text.as_bytes());
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(&answer["HTTP/1.1 ".len()..][..4], status, "{line}");
    }
    server.wait_for("all are counted", |metrics| {
        metrics.websocket_handshakes_refused == 4 && metrics.closed_by("page_served") == 0
    });
    server.stop();
}
