//! Close codes: the code for each end, and the client's text for each code.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use tidewire::auth::{AuthFailure, AuthOutcome, AuthRequest, Authenticate, Token};
use tidewire::websocket::WebSocketFault;
use tidewire::{
    Client, CloseReason, ConnectError, Context, Event, GoAwayCode, HandlerResult, Limits, Message,
    Server,
};
use tidewire_proto::layer::LayerError;
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::codec;
use tungstenite::protocol::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message as WebMessage, WebSocket};

use super::foreign::connect;
use super::serve_as;

/// Sends bytes, and returns what [`close_of`] does.
fn end_of(server: &TestServer, protocol: &'static str, sent: &[u8]) -> (CloseCode, Vec<u8>) {
    let mut socket = connect(server, protocol);
    if !sent.is_empty() {
        socket.send(WebMessage::binary(sent.to_vec())).unwrap();
    }
    close_of(&mut socket)
}

/// Reads until the close frame. Returns its code, and the bytes before it.
fn close_of(socket: &mut WebSocket<TcpStream>) -> (CloseCode, Vec<u8>) {
    let mut before = Vec::new();
    loop {
        match socket.read().unwrap() {
            WebMessage::Close(close) => return (close.unwrap().code, before),
            message => before.extend_from_slice(&message.into_data()),
        }
    }
}

/// Answers, and closes.
fn answer_and_close(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    cx.reply(message.payload)?;
    cx.close();
    Ok(())
}

#[test]
fn a_server_tells_by_the_close_code_why_it_ends() {
    let name = "length-field";
    let server = TestServer::over_websocket(Server::builder(), &codec(name), |_| answer_and_close);
    let (code, answer) = end_of(&server, name, b"\x01\0a");
    assert_eq!((code, &answer[..]), (CloseCode::Normal, &b"\x01\0a"[..]));
    server.stop();

    let mut limits = Limits::default();
    limits.connections.set_frame_bytes_max(1_024);
    let server = serve_as(Server::builder().limits(limits), name);
    assert_eq!(end_of(&server, name, b"\xff\xff").0, CloseCode::Size);
    server.stop();

    // A hello that is none.
    let server = serve_as(Server::builder(), "tw1");
    let (code, _) = end_of(&server, "tw1", b"\x04\0\0\0\xff\0\0\0");
    assert_eq!(code, CloseCode::Protocol);
    server.stop();
}

#[test]
fn a_server_that_fails_is_overloaded_or_retires_a_connection_says_so_by_the_close_code() {
    let name = "length-field";
    let panics = |_: &mut Context<'_>, _: Message<'_>| -> HandlerResult { panic!("told to") };
    let server = TestServer::over_websocket(Server::builder(), &codec(name), |_| panics);
    assert_eq!(end_of(&server, name, b"\x01\0a").0, CloseCode::Error);
    let stopped = server.stop_unchecked();
    assert_eq!(stopped.metrics.closed_by("handler_panicked"), 1);

    let server = serve_as(Server::builder(), "length-field:size=4");
    let mut socket = connect(&server, name);
    let half_a_frame = [&1_000_000_u32.to_le_bytes()[..], &[7; 900_000]].concat();
    socket.send(WebMessage::binary(half_a_frame)).unwrap();
    server.wait_for("it is read", |metrics| metrics.bytes_in > 900_000);
    let mut limits = Limits::default();
    limits.memory.set_bytes_max(1 << 20);
    server.server().change_limits(&limits).unwrap();
    assert_eq!(close_of(&mut socket).0, CloseCode::Again);
    drop(socket);
    server.wait_for("it is counted", |metrics| {
        metrics.closed_by("memory_limit") == 1
    });
    server.stop();

    let short = Duration::from_millis(20);
    let builder = Server::builder().connection_age_max(short, short);
    let server = serve_as(builder, name);
    assert_eq!(end_of(&server, name, b"").0, CloseCode::Away);
    assert_eq!(server.stop().connections_retired, 1);
}

/// A server of `tungstenite` that sends a frame and a close frame together. Returns the reason that a client sees.
fn reason_of(code: u16, last_frame: &'static [u8]) -> (Vec<u8>, CloseReason) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut socket = tungstenite::accept(listener.accept().unwrap().0).unwrap();
        // The client's request.
        socket.read().unwrap();
        let close = CloseFrame {
            code: code.into(),
            reason: "".into(),
        };
        socket.write(WebMessage::binary(last_frame)).unwrap();
        socket.write(WebMessage::Close(Some(close))).unwrap();
        // Until the client's answer.
        while socket.flush().is_ok() && socket.read().is_ok() {}
    });
    let client = Client::builder().codec(codec("length-field"));
    let client = client.connect(&format!("ws://{address}/")).wait().unwrap();
    let reply = client.request(b"anything").wait();
    let payload = reply.map(|reply| reply.payload().to_vec());
    let closed = loop {
        if let Event::Closed { reason, .. } = client.next_event().wait() {
            break reason;
        }
    };
    client.close().wait();
    server.join().unwrap();
    (payload.unwrap_or_default(), closed)
}

#[test]
fn a_client_shows_the_code_of_the_server_after_its_last_frames() {
    let fault = |code| CloseReason::Layer(LayerError::WebSocket(WebSocketFault::Closed(code)));
    for code in [1008, 1011, 1013, 4_001] {
        let (last, reason) = reason_of(code, b"\x04\0last");
        assert_eq!(last, b"last", "{code}");
        assert_eq!(reason, fault(code));
        assert!(reason.to_string().contains(&code.to_string()), "{reason}");
    }
    for code in [1000, 1001] {
        let (last, reason) = reason_of(code, b"\x04\0last");
        assert_eq!((&last[..], reason), (&b"last"[..], CloseReason::PeerClosed));
    }
}

/// Refuses all peers.
struct Closed;

impl Authenticate for Closed {
    fn authenticate(&self, _: &mut AuthRequest<'_>) -> AuthOutcome {
        AuthOutcome::Refused(AuthFailure::Wrong)
    }
}

/// The go-away of TW1 says more than the close code after it.
#[test]
fn a_go_away_before_the_close_code_is_the_reason() {
    let server = serve_as(Server::builder().authenticate(Closed), "tw1");
    let client = Client::builder().credentials(Token::new("any").unwrap());
    match client.connect(&server.url()).wait() {
        Err(ConnectError::Refused { reason, .. }) => {
            assert_eq!(reason, CloseReason::GoAway(GoAwayCode::Unauthenticated));
        }
        other => panic!("{other:?}"),
    }
    server.stop();
}
