//! Foreign codecs through a whole lane, byte for byte.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tidewire::{
    AnyCodec, Client, Context, HandlerError, HandlerResult, Kind, Message, ServeError, Server,
};
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;
use tidewire_testkit::fixtures::echo;
use tidewire_testkit::logs::Logs;

fn refuse(_cx: &mut Context<'_>, _message: Message<'_>) -> HandlerResult {
    Err(HandlerError::new(ErrorCode::Internal, "told to"))
}

type Handler = fn(&mut Context<'_>, Message<'_>) -> HandlerResult;

/// Returns all bytes that a server answers to `sent`, up to its end of the stream.
fn exchange(codec: &str, handler: Handler, sent: &[u8]) -> Vec<u8> {
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .codec(AnyCodec::by_name(codec).unwrap())
        .start(|_| handler)
        .unwrap();
    let address = server.to_string();
    let mut stream = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    let stopped = server.shutdown(Duration::from_secs(5));
    assert_eq!(stopped.metrics.sessions_closed(), 1);
    received
}

#[test]
fn an_srmp_request_is_answered_under_its_sequence() {
    let sent = b"\x01\x01\x04\x00Open\x01\x02\x02\x00hi";
    let received = exchange("srmp", echo, sent);
    assert_eq!(received, b"\x81\x01\x04\x00Open\x81\x02\x02\x00hi");
}

#[test]
fn length_field_answers_come_in_order() {
    let sent = b"\x05\x00hello\x02\x00hi\x00\x00";
    assert_eq!(exchange("length-field", echo, sent), sent);
    let sent = b"\x00\x00\x00\x01\x00\x00\x00\x02hi";
    let netbox = "length-field:size=-4,header=00000001";
    // The constant header is before the length.
    assert_eq!(exchange(netbox, echo, sent), sent);
}

/// Regression: every refusal was sent in the native protocol's layout, which a foreign peer cannot read.
#[test]
fn a_refusal_has_the_layout_of_its_codec() {
    let received = exchange("srmp", refuse, b"\x01\x07\x02\x00hi");
    assert_eq!(
        received[..2],
        [0xC0, 0x07],
        "reply and error bits, a string, the same sequence"
    );
    assert!(received.ends_with(b"told to"), "{received:02x?}");
    let one_way = exchange("srmp", refuse, b"\x40\x05\x02\x00hi");
    assert!(
        one_way.is_empty(),
        "nobody waits for an answer to a one-way message"
    );
}

/// A codec without ids and without errors cannot skip an answer: the next reply would match the wrong request.
#[test]
fn a_refusal_that_cannot_be_said_ends_a_session_that_matches_by_order() {
    let received = exchange("length-field", refuse, b"\x02\x00hi\x02\x00hi");
    assert!(received.is_empty(), "{received:02x?}");
}

/// A call of `echo` with "hi", as the original sends it over Unix sockets, and the answer. Over TCP a length precedes
/// it.
const UVRPC_REQUEST: &[u8] =
    b"\x04\0\0\0\xDC\xFF\xFF\xFF\x01\0\0\0\x08\0\0\0\x10\0\0\0\x04\0\0\0echo\0\0\0\0\
    \x02\0\0\0hi\0\0\x0C\0\x10\0\0\0\x04\0\x08\0\x0C\0";
const UVRPC_ANSWER: &[u8] =
    b"\x04\0\0\0\xE8\xFF\xFF\xFF\x01\0\0\0\x01\0\0\0\x04\0\0\0\x02\0\0\0hi\0\0\
    \x0C\0\x10\0\x04\0\x08\0\0\0\x0C\0";

fn with_length(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

/// Sends, and reads the expected number of bytes.
fn ask(stream: &mut (impl Read + Write), sent: &[u8], expected: &[u8]) {
    stream.write_all(sent).unwrap();
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(received, expected);
}

fn uvrpc_server(codec: &str, addresses: &[&str]) -> Server {
    let mut builder = Server::builder().codec(AnyCodec::by_name(codec).unwrap());
    for address in addresses {
        builder = builder.listen(address).unwrap();
    }
    builder.lanes(2).start(|_| echo as Handler).unwrap()
}

/// Regression: the codec set for all addresses whether a length precedes each frame. The original sends a length over
/// TCP and none over Unix sockets.
#[test]
fn one_server_serves_uvrpc_peers_over_tcp_and_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let ipc = format!("ipc://{}", path.display());
    let unframed = format!("{ipc}?framing=none");
    for (codec, addresses) in [
        ("uvrpc", ["tcp://127.0.0.1:0", &unframed]),
        (
            "uvrpc:legacy_unframed",
            ["tcp://127.0.0.1:0?framing=length", &ipc],
        ),
    ] {
        let server = uvrpc_server(codec, &addresses);
        let tcp = server.addresses()[0].to_string();
        let timeout = Some(Duration::from_secs(20));
        let mut over_tcp = TcpStream::connect(tcp.trim_start_matches("tcp://")).unwrap();
        over_tcp.set_read_timeout(timeout).unwrap();
        let mut over_ipc = UnixStream::connect(&path).unwrap();
        over_ipc.set_read_timeout(timeout).unwrap();
        for count in [1, 100] {
            let (sent, expected) = (UVRPC_REQUEST.repeat(count), UVRPC_ANSWER.repeat(count));
            ask(&mut over_ipc, &sent, &expected);
            let (sent, expected) = (with_length(UVRPC_REQUEST), with_length(UVRPC_ANSWER));
            ask(&mut over_tcp, &sent.repeat(count), &expected.repeat(count));
        }
        // Both formats get the broadcast, which is framed once.
        let notice = Message::new(Kind::Deliver, 0, b"hi");
        let broadcast = server.sessions().broadcast_where(|_| true, notice);
        assert_eq!(broadcast.unwrap().wait().queued, 2);
        let mut frame = Vec::new();
        let legacy = AnyCodec::by_name("uvrpc:legacy_unframed").unwrap();
        legacy.encode(&notice, &mut frame).unwrap();
        ask(&mut over_ipc, b"", &frame);
        ask(&mut over_tcp, b"", &with_length(&frame));

        let client = |address: &str| {
            let uvrpc = AnyCodec::by_name("uvrpc").unwrap();
            Client::builder()
                .codec(uvrpc)
                .connect(address)
                .wait()
                .unwrap()
        };
        let large = vec![7; 500_000];
        for address in [&unframed, &tcp] {
            let client = client(address);
            let reply = client.request(&large).method("echo").wait().unwrap();
            assert_eq!(reply.payload(), large);
            client.close().wait();
        }
        drop((over_tcp, over_ipc));
        let metrics = server.shutdown(Duration::from_secs(5)).metrics;
        assert_eq!(metrics.frames_in, 2 * (1 + 100) + 2);
        assert_eq!(metrics.sessions_closed(), 4);
    }
    let refused = Server::builder()
        .listen("tcp://127.0.0.1:0?framing=none")
        .unwrap()
        .start(|_| echo as Handler);
    assert!(matches!(refused, Err(ServeError::Framing { codec: "tw1" })));
}

/// Regression: the log did not say why a peer with another framing was refused.
#[test]
fn a_peer_that_frames_in_the_other_way_is_warned_of_once() {
    let logs = Logs::capture();
    let addresses = ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0?framing=none"];
    let server = uvrpc_server("uvrpc", &addresses);
    for (endpoint, sent, hint) in [
        (0, UVRPC_REQUEST.to_vec(), "?framing=none "),
        (1, with_length(UVRPC_REQUEST), "?framing=length "),
    ] {
        let address = server.addresses()[endpoint].to_string();
        let is_hint = |line: &&str| line.contains(&address) && line.contains("WARN");
        // The first input is another protocol.
        for sent in [&b"GET / HTTP/1.1\r\n\r\n"[..], &sent, &sent] {
            let mut stream = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
            stream.write_all(sent).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            // The end, or a reset if bytes were unread.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        let text = logs.text();
        let hints: Vec<&str> = text.lines().filter(is_hint).collect();
        assert_eq!(hints.len(), 1, "{text}");
        assert!(hints[0].contains(hint), "{text}");
    }
    let stopped = server.shutdown(Duration::from_secs(5));
    assert_eq!(stopped.metrics.sessions_closed(), 6);
}

/// Over Unix sockets the original sends its frames without any length.
#[test]
fn unframed_uvrpc_calls_over_a_unix_socket_are_answered_each() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let server = Server::builder()
        .listen(&format!("ipc://{}", path.display()))
        .unwrap()
        .codec(AnyCodec::by_name("uvrpc:legacy_unframed").unwrap())
        .start(|_| echo)
        .unwrap();
    let (request, answer) = (UVRPC_REQUEST, UVRPC_ANSWER);
    let mut stream = UnixStream::connect(&path).unwrap();
    let timeout = Some(Duration::from_secs(20));
    stream.set_read_timeout(timeout).unwrap();
    // One read for each frame, and then several frames in one read, which the original loses.
    let mut received = Vec::new();
    for count in [1, 3] {
        stream.write_all(&request.repeat(count)).unwrap();
        let before = received.len();
        received.resize(before + count * answer.len(), 0);
        stream.read_exact(&mut received[before..]).unwrap();
    }
    assert_eq!(received, answer.repeat(4));
    drop(stream);
    let stopped = server.shutdown(Duration::from_secs(5));
    assert_eq!(stopped.metrics.frames_in, 4);
}
