//! Foreign codecs through a whole lane, byte for byte.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tidewire::proto::body::ErrorCode;
use tidewire::{AnyCodec, Context, HandlerError, HandlerResult, Message, Server};

fn echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    cx.reply(message.payload)
}

fn refuse(_cx: &mut Context<'_>, _message: Message<'_>) -> HandlerResult {
    Err(HandlerError::new(ErrorCode::Internal, "told to"))
}

type Handler = fn(&mut Context<'_>, Message<'_>) -> HandlerResult;

/// Everything a server answers to `sent`, up to its end of the stream.
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
    // The constant header stands before the length.
    assert_eq!(exchange(netbox, echo, sent), sent);
}

/// Every refusal used to go out in the native protocol's layout, which no foreign peer can read.
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

/// The original sends its frames over Unix sockets with nothing between them.
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
    let request = b"\x04\0\0\0\xDC\xFF\xFF\xFF\x01\0\0\0\x08\0\0\0\x10\0\0\0\x04\0\0\0echo\0\0\0\0\
        \x02\0\0\0hi\0\0\x0C\0\x10\0\0\0\x04\0\x08\0\x0C\0";
    let answer = b"\x04\0\0\0\xE8\xFF\xFF\xFF\x01\0\0\0\x01\0\0\0\x04\0\0\0\x02\0\0\0hi\0\0\
        \x0C\0\x10\0\x04\0\x08\0\0\0\x0C\0";
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
