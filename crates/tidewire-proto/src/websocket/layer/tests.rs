//! Two layers that talk, and the bytes of a layer on the wire.

use std::io;

use super::*;
use crate::layer::{Ending, RECORD_BYTES_MAX, Stack};

fn server(kind: MessageKind) -> Stack {
    let terms = ServerTerms::new("/chat", "tw1", kind);
    Stack::from(Box::new(WebSocketLayer::accepting(Arc::new(terms))) as Box<dyn Layer>)
}

fn client(kind: MessageKind) -> Stack {
    let terms = ClientTerms::new("localhost:1", "/chat", "tw1", kind).unwrap();
    let layer = WebSocketLayer::connecting(Arc::new(terms), Masks::new([1, 2]));
    Stack::from(Box::new(layer) as Box<dyn Layer>)
}

/// Moves bytes in pieces of this size until none are left.
fn pass(from: &mut Stack, to: &mut Stack, piece: usize) -> Result<(), LayerError> {
    while !from.unsent().is_empty() {
        let count = from.unsent().len().min(piece);
        let bytes = from.unsent()[..count].to_vec();
        from.advance(count);
        to.receive(&bytes)?;
    }
    Ok(())
}

fn open(kind: MessageKind, piece: usize) -> (Stack, Stack) {
    let (mut server, mut client) = (server(kind), client(kind));
    server.start().unwrap();
    client.start().unwrap();
    pass(&mut client, &mut server, piece).unwrap();
    pass(&mut server, &mut client, piece).unwrap();
    assert!(server.is_ready() && client.is_ready());
    (server, client)
}

fn read(stack: &mut Stack) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 1_000]);
    loop {
        match stack.read(&mut buffer).unwrap() {
            0 => return all,
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
}

/// A server after the handshake of a foreign client.
fn accepted(kind: MessageKind) -> Stack {
    let (mut server, _) = open(kind, usize::MAX);
    server.advance(server.unsent().len());
    server
}

/// A client's frame with an empty mask.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first, 0x80 | payload.len() as u8, 0, 0, 0, 0];
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn two_sides_agree_and_talk_however_bytes_are_cut() {
    for kind in [MessageKind::Binary, MessageKind::Text] {
        for piece in [1, 7, 1_000] {
            let (mut server, mut client) = open(kind, piece);
            for round in 0..3 {
                let text = format!("line {round} ä\n").repeat(100);
                let (front, back) = text.as_bytes().split_at(50);
                for (from, to) in [(&mut server, true), (&mut client, false)] {
                    let accepted = from
                        .write(&[IoSlice::new(front), IoSlice::new(back)])
                        .unwrap();
                    assert_eq!(accepted, text.len());
                    let _ = to;
                }
                pass(&mut server, &mut client, piece).unwrap();
                pass(&mut client, &mut server, piece).unwrap();
                assert_eq!(read(&mut client), text.as_bytes());
                assert_eq!(read(&mut server), text.as_bytes());
            }
            client.close(Ending::InOrder).unwrap();
            pass(&mut client, &mut server, piece).unwrap();
            assert!(server.has_ended() && !client.has_ended());
            server.close(Ending::InOrder).unwrap();
            pass(&mut server, &mut client, piece).unwrap();
            assert!(client.has_ended());
        }
    }
}

/// A write is one message: a header, then the unchanged bytes.
#[test]
fn a_write_is_one_message() {
    let mut server = accepted(MessageKind::Binary);
    let slices = [IoSlice::new(b"output"), IoSlice::new(b"room log")];
    let mut written = Vec::new();
    let outcome = server.write_through(&slices, |slices| {
        assert_eq!(slices.len(), 3, "the plaintext stays where it lies");
        slices
            .iter()
            .for_each(|slice| written.extend_from_slice(slice));
        Ok(written.len())
    });
    assert_eq!(outcome.unwrap().unwrap(), 14);
    assert_eq!(written, b"\x82\x0Eoutputroom log");
    assert!(server.unsent().is_empty());
    // By way of a copy the bytes are the same.
    assert_eq!(server.write(&slices).unwrap(), 14);
    assert_eq!(server.unsent(), written);
}

#[test]
fn the_stack_keeps_bytes_that_a_socket_does_not_take() {
    for taken in 1..=15 {
        let mut server = accepted(MessageKind::Binary);
        let slices = [IoSlice::new(b"output"), IoSlice::new(b"room log")];
        let outcome = server.write_through(&slices, |_| Ok(taken));
        assert_eq!(outcome.unwrap().unwrap(), 14, "all is accepted");
        assert_eq!(server.unsent(), &b"\x82\x0Eoutputroom log"[taken..]);
        assert!(
            server.write_through(&slices, |_| Ok(1)).is_none(),
            "in order"
        );
    }
    let mut server = accepted(MessageKind::Binary);
    let blocked = server.write_through(&[IoSlice::new(b"a")], |_| {
        Err(io::ErrorKind::WouldBlock.into())
    });
    assert!(
        blocked.unwrap().is_err() && server.unsent().is_empty(),
        "none is accepted"
    );
}

#[test]
fn a_line_that_is_cut_goes_on_in_a_fragment() {
    let mut server = accepted(MessageKind::Text);
    let mut write = |bytes: &[u8]| {
        assert_eq!(server.write(&[IoSlice::new(bytes)]).unwrap(), bytes.len());
        let sent = server.unsent().to_vec();
        server.advance(sent.len());
        sent
    };
    assert_eq!(write(b"one\ntwo\n"), b"\x81\x08one\ntwo\n");
    assert_eq!(write(b"thr\xC3"), b"\x01\x03thr");
    assert_eq!(write(b"\xA4"), b"\x00\x02\xC3\xA4");
    assert_eq!(write(b"e\n"), b"\x80\x02e\n");
    // Foreign bytes never become an invalid text.
    assert_eq!(write(b"a\xFF\n"), b"\x81\x05a\xEF\xBF\xBD\n");
    assert_eq!(write(b"\xE6"), b"");
    assert_eq!(write(b"\n"), b"\x81\x04\xEF\xBF\xBD\n");
}

#[test]
fn a_text_without_a_line_end_gets_one() {
    let mut server = accepted(MessageKind::Text);
    for (frame, line) in [
        (frame(0x81, b"hello"), &b"hello\n"[..]),
        (frame(0x81, b"hello\n"), b"hello\n"),
        (frame(0x81, b""), b"\n"),
        ([frame(0x01, b"a\n"), frame(0x80, b"")].concat(), b"a\n"),
        ([frame(0x01, b"a\n"), frame(0x80, b"b")].concat(), b"a\nb\n"),
        ([frame(0x81, b"a"), frame(0x81, b"b")].concat(), b"a\nb\n"),
    ] {
        server.receive(&frame).unwrap();
        assert_eq!(read(&mut server), line, "{frame:x?}");
    }
}

#[test]
fn faults_are_told_to_the_peer_by_their_code() {
    use WebSocketFault as Fault;
    for (kind, bytes, fault, code) in [
        (
            MessageKind::Binary,
            b"\x82\x01a".to_vec(),
            Fault::Unmasked,
            1002_u16,
        ),
        (
            MessageKind::Binary,
            frame(0xC2, b"a"),
            Fault::ReservedBits,
            1002,
        ),
        (
            MessageKind::Binary,
            frame(0x81, b"a"),
            Fault::UnexpectedText,
            1003,
        ),
        (
            MessageKind::Text,
            frame(0x81, b"\xFF"),
            Fault::BadText,
            1007,
        ),
        (
            MessageKind::Text,
            frame(0x88, &1011_u16.to_be_bytes()),
            Fault::Closed(1011),
            1011,
        ),
    ] {
        let mut server = accepted(kind);
        assert_eq!(server.receive(&bytes), Err(fault.into()));
        let [high, low] = code.to_be_bytes();
        assert_eq!(server.unsent(), [0x88, 2, high, low]);
    }
    let mut server = accepted(MessageKind::Binary);
    let too_long = [0x82, 0xFF, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(server.receive(&too_long), Err(Fault::MessageTooLong.into()));
    assert_eq!(server.unsent(), [0x88, 2, 3, 0xF1], "1009");
}

#[test]
fn a_close_frame_is_answered_with_its_code() {
    for (close, answer) in [
        (frame(0x88, b""), &b"\x88\x02\x03\xE8"[..]),
        (frame(0x88, &1001_u16.to_be_bytes()), b"\x88\x02\x03\xE9"),
    ] {
        let mut server = accepted(MessageKind::Binary);
        server.receive(&close).unwrap();
        assert!(server.has_ended() && server.handle_network_end().is_ok());
        // The side that is left may still answer, and closes then.
        assert_eq!(server.write(&[IoSlice::new(b"last")]).unwrap(), 4);
        server.close(Ending::InOrder).unwrap();
        assert_eq!(server.unsent(), [b"\x82\x04last", answer].concat());
    }
}

/// Each ping of a flood is answered only while the peer takes the answers.
#[test]
fn a_ping_flood_that_is_not_read_ends() {
    let mut server = accepted(MessageKind::Binary);
    let ping = frame(0x89, &[7; 125]);
    let mut pings = 0;
    let error = loop {
        match server.receive(&ping) {
            Ok(()) => pings += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, LayerError::Flood);
    assert!((500..600).contains(&pings), "{pings}");
}

#[test]
fn many_pings_at_once_are_a_flood_and_some_are_not() {
    let pings = |count: usize| frame(0x89, b"?").repeat(count);
    let mut server = accepted(MessageKind::Binary);
    server.receive(&pings(256)).unwrap();
    let outcome = server.receive(&pings(257));
    assert_eq!(outcome, Err(WebSocketFault::ControlFlood.into()));
}

#[test]
fn half_a_handshake_is_no_end_and_its_headers_are_bounded() {
    let mut server = server(MessageKind::Binary);
    server.start().unwrap();
    server.receive(b"GET /chat HTTP/1.1\r\nHost: a").unwrap();
    assert!(!server.is_ready() && server.unsent().is_empty());
    assert_eq!(server.handle_network_end(), Err(LayerError::Truncated));
    assert!(HeadLimits::default().bytes_max <= RECORD_BYTES_MAX);
    let headers = vec![b'a'; 64 << 10];
    let outcome = server.receive(&headers);
    assert_eq!(outcome, Err(WebSocketFault::HeadersTooLong.into()));
    let text = String::from_utf8_lossy(server.unsent()).into_owned();
    assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
    assert!(!server.is_ready());
}

#[test]
fn bytes_that_are_not_http_are_refused_at_the_first_byte() {
    for first in [b"\x16", b"T", b"\0"] {
        let mut server = server(MessageKind::Binary);
        server.start().unwrap();
        let outcome = server.receive(first);
        let is_refused = outcome == Err(WebSocketFault::NotHttp.into());
        assert_eq!(
            is_refused,
            first != b"T",
            "a method may begin with a letter"
        );
    }
    let mut client = client(MessageKind::Binary);
    client.start().unwrap();
    assert_eq!(
        client.receive(b"\x15\x03"),
        Err(WebSocketFault::NotHttp.into())
    );
}

#[test]
fn a_refusal_is_understood_by_the_other_side() {
    let terms = ServerTerms::new("/other", "tw1", MessageKind::Binary);
    let mut server =
        Stack::from(Box::new(WebSocketLayer::accepting(Arc::new(terms))) as Box<dyn Layer>);
    let mut client = client(MessageKind::Binary);
    server.start().unwrap();
    client.start().unwrap();
    let refused = pass(&mut client, &mut server, 1_000);
    assert_eq!(refused, Err(WebSocketFault::OtherPath.into()));
    let answered = pass(&mut server, &mut client, 1_000);
    assert_eq!(answered, Err(WebSocketFault::Status(404).into()));
    assert!(!client.is_ready());
}

/// Frames that come with the last bytes of the handshake are not lost.
#[test]
fn frames_after_the_request_are_read() {
    let (mut server, mut client) = (server(MessageKind::Binary), client(MessageKind::Binary));
    client.start().unwrap();
    let bytes = [client.unsent(), &frame(0x82, b"early")].concat();
    server.receive(&bytes).unwrap();
    assert_eq!(read(&mut server), b"early");
}

/// Each session has a layer. Allocators have blocks of 192, 224 and 256 bytes.
#[test]
fn a_layer_fits_a_block_of_192_bytes() {
    assert!(size_of::<WebSocketLayer>() <= 192);
}

/// Regression: the log did not name the other origin of a page.
#[test]
fn a_refused_handshake_shows_what_was_refused() {
    let refused = |lines: &str| {
        let mut server = server(MessageKind::Binary);
        server.start().unwrap();
        let request = format!(
            "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{lines}\r\n\r\n"
        );
        server.receive(request.as_bytes()).unwrap_err();
        server.refused_part().map(str::to_owned)
    };
    let origin = refused("Origin: https://app.example/");
    assert_eq!(origin.as_deref(), Some("https://app.example/"));
    let hostile = refused("Origin: https://\u{9b}2J.example").unwrap();
    assert_eq!(hostile, "https://\\u{9b}2J.example");
    let long = refused(&format!("Origin: https://{}", "a".repeat(4_000))).unwrap();
    assert!(long.len() < 200, "{long}");
    let cookie = refused(&format!("A: b\r\nCookie: {}", "a".repeat(20_000))).unwrap();
    assert!(cookie.contains("Cookie with 2000"), "{cookie}");
    assert_eq!(
        refused("Sec-WebSocket-Protocol: lines").as_deref(),
        Some("lines")
    );
    assert_eq!(refused("Content-Length: 5"), None);
}
