//! Peers made with `tungstenite`, on both sides.

use std::net::{TcpListener, TcpStream};
use std::thread;

use tidewire::tls::ServerTls;
use tidewire::{Chat, Client, Server};
use tidewire_proto::codec::{Codec, Decoded};
use tidewire_testkit::fixtures::{codec, tw1};
use tidewire_testkit::{DEADLINE, TestServer};
use tungstenite::client::IntoClientRequest;
use tungstenite::handshake::server::{Request, Response};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

use super::{ask, serve, serve_as};

/// Connects to a server, and offers its codec as subprotocol.
pub(crate) fn connect(server: &TestServer, protocol: &'static str) -> WebSocket<TcpStream> {
    let mut request = server.url().into_client_request().unwrap();
    let headers = request.headers_mut();
    headers.insert("Sec-WebSocket-Protocol", protocol.parse().unwrap());
    let stream = TcpStream::connect(server.address().socket_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let (socket, response) = tungstenite::client(request, stream).unwrap();
    assert_eq!(response.headers()["Sec-WebSocket-Protocol"], protocol);
    socket
}

fn read_text(socket: &mut WebSocket<TcpStream>) -> String {
    match socket.read().unwrap() {
        Message::Text(text) => text.to_string(),
        other => panic!("no text: {other:?}"),
    }
}

#[test]
fn tungstenite_talks_to_a_server_of_lines() {
    let server = serve("lines");
    let mut socket = connect(&server, "lines");
    for number in 0..100 {
        let line = format!("line {number} ä");
        // With and without a line end.
        socket.send(Message::text(line.clone())).unwrap();
        assert_eq!(read_text(&mut socket), format!("{line}\n"));
    }
    socket.send(Message::text("one\ntwo\nthree")).unwrap();
    assert_eq!(
        read_text(&mut socket),
        "one\ntwo\nthree\n",
        "a write is one message"
    );
    socket
        .send(Message::Ping(b"are you there"[..].into()))
        .unwrap();
    assert_eq!(
        socket.read().unwrap(),
        Message::Pong(b"are you there"[..].into())
    );
    socket.close(None).unwrap();
    let closed = socket.read().unwrap();
    assert!(closed.is_close(), "{closed:?}");
    drop(socket);
    server.stop();
}

#[test]
fn tungstenite_talks_to_a_server_of_frames() {
    let server = serve("length-field");
    let mut socket = connect(&server, "length-field");
    // Three frames in one message, then one frame in two messages.
    socket
        .send(Message::binary(b"\x01\0a\x02\0bc\x01\0d".to_vec()))
        .unwrap();
    let answer = socket.read().unwrap();
    assert_eq!(answer, Message::binary(b"\x01\0a\x02\0bc\x01\0d".to_vec()));
    socket.send(Message::binary(b"\x03\0x".to_vec())).unwrap();
    socket.send(Message::binary(b"yz".to_vec())).unwrap();
    assert_eq!(
        socket.read().unwrap(),
        Message::binary(b"\x03\0xyz".to_vec())
    );
    drop(socket);
    server.stop();
}

/// A member over WebSocket receives messages of a member over TCP, from the same log.
#[test]
fn a_room_is_shared_by_tcp_and_websocket() {
    let chat = Chat::new();
    let builder = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let server = TestServer::over_websocket(builder, &codec("lines"), move |_| chat.clone());
    let tcp = &server.server().addresses()[0];
    let websocket = server.server().addresses()[1].clone();
    let mut ann =
        std::io::BufReader::new(TcpStream::connect(tcp.socket_address().unwrap()).unwrap());
    ann.get_ref().set_read_timeout(Some(DEADLINE)).unwrap();
    let stream = TcpStream::connect(websocket.socket_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let (mut bob, _) = tungstenite::client(websocket.to_string(), stream).unwrap();
    let mut heard = String::new();
    let mut hear = |part: &str| {
        while !heard.contains(part) {
            heard.push_str(&read_text(&mut bob));
        }
        heard.clear();
    };
    hear("name");
    {
        use std::io::{BufRead, Write};
        ann.get_mut().write_all(b"ann\n").unwrap();
        let mut line = String::new();
        while !line.contains("ann") && !line.contains("Welcome") && !line.contains("room") {
            line.clear();
            ann.read_line(&mut line).unwrap();
        }
    }
    bob.send(Message::text("bob")).unwrap();
    let mut hear = |part: &str| {
        let mut heard = String::new();
        while !heard.contains(part) {
            heard.push_str(&read_text(&mut bob));
        }
    };
    hear("ann");
    {
        use std::io::Write;
        ann.get_mut().write_all("grüße\n".as_bytes()).unwrap();
    }
    hear("[ann]: grüße\n");
    drop((ann, bob));
    server.stop();
}

/// A server of `tungstenite` would echo a client's hello, which is no welcome, so the test uses length-field.
#[test]
fn a_client_talks_to_a_server_of_tungstenite() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let echo = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        #[expect(clippy::result_large_err, reason = "the type is tungstenite's")]
        let choose = |request: &Request, mut response: Response| {
            assert_eq!(request.uri().path(), "/echo");
            let protocol = request.headers()["Sec-WebSocket-Protocol"].clone();
            response
                .headers_mut()
                .insert("Sec-WebSocket-Protocol", protocol);
            Ok(response)
        };
        let mut socket = tungstenite::accept_hdr(stream, choose).unwrap();
        socket
            .send(Message::Ping(b"first".as_slice().into()))
            .unwrap();
        let mut pongs = 0;
        loop {
            match socket.read() {
                Ok(message @ Message::Binary(_)) => {
                    let Message::Binary(bytes) = &message else {
                        return pongs;
                    };
                    // In pieces, as another server may answer.
                    for piece in bytes.chunks(3) {
                        socket.send(Message::binary(piece.to_vec())).unwrap();
                    }
                }
                Ok(Message::Pong(content)) if *content == b"first"[..] => pongs += 1,
                Ok(message) if message.is_close() => {}
                Ok(other) => panic!("{other:?}"),
                Err(tungstenite::Error::ConnectionClosed) => return pongs,
                Err(error) => panic!("{error}"),
            }
        }
    });
    let client = Client::builder().codec(codec("length-field"));
    let client = client
        .connect(&format!("ws://{address}/echo"))
        .wait()
        .unwrap();
    for length in [1, 100, 60_000] {
        ask(&client, &vec![7; length]);
    }
    client.close().wait();
    assert_eq!(echo.join().unwrap(), 1, "the ping was answered");
}

#[test]
fn fragments_and_pings_between_them_are_read() {
    use tungstenite::protocol::frame::Frame;
    use tungstenite::protocol::frame::coding::{Data, OpCode};
    let server = serve("lines");
    let mut socket = connect(&server, "lines");
    let (front, back) = "wörter".as_bytes().split_at(2);
    let first = Frame::message(front.to_vec(), OpCode::Data(Data::Text), false);
    let last = Frame::message(back.to_vec(), OpCode::Data(Data::Continue), true);
    socket.write(Message::Frame(first)).unwrap();
    socket.write(Message::Ping(b"between"[..].into())).unwrap();
    socket.write(Message::Frame(last)).unwrap();
    socket.flush().unwrap();
    assert_eq!(socket.read().unwrap(), Message::Pong(b"between"[..].into()));
    assert_eq!(read_text(&mut socket), "wörter\n");
    drop(socket);
    server.stop();
}

/// A server that goes away closes each WebSocket in order.
#[test]
fn a_drain_ends_with_a_close_frame() {
    let server = serve("length-field");
    let mut socket = connect(&server, "length-field");
    socket.send(Message::binary(b"\x01\0a".to_vec())).unwrap();
    assert!(socket.read().unwrap().is_binary());
    let stopping = thread::spawn(move || server.stop());
    let Message::Close(Some(close)) = socket.read().unwrap() else {
        panic!("no close frame");
    };
    assert_eq!(close.code, CloseCode::Away);
    // The answer, and the end.
    while socket.read().is_ok() {}
    stopping.join().unwrap();
}

#[test]
fn clients_of_this_library_speak_the_native_protocol_over_both() {
    let (authority, identity) = tidewire_testkit::certificates::usual();
    let server = serve("tw1");
    let client = Client::connect(&server.url()).wait().unwrap();
    ask(&client, b"over ws");
    client.close().wait();
    server.stop();
    let tls: ServerTls = identity.server();
    let builder = Server::builder().tls(tls);
    let server =
        TestServer::over_secure_websocket(builder, &tw1(), |_| tidewire_testkit::fixtures::echo);
    assert!(
        server.url().starts_with("wss://127.0.0.1:"),
        "{}",
        server.url()
    );
    let client = Client::builder().tls(authority.client());
    let client = client.connect(&server.url()).wait().unwrap();
    ask(&client, b"over wss");
    client.close().wait();
    server.stop();
}

/// A codec decodes a server's bytes with any boundaries of messages: a write of many frames is one message.
#[test]
fn a_write_of_many_frames_is_one_message() {
    let server = serve_as(Server::builder(), "length-field");
    let mut socket = connect(&server, "length-field");
    let frames = b"\x02\0ab".repeat(1_000);
    socket.send(Message::binary(frames.clone())).unwrap();
    let (mut received, mut messages) = (Vec::new(), 0);
    while received.len() < frames.len() {
        let message = socket.read().unwrap();
        received.extend_from_slice(&message.into_data());
        messages += 1;
    }
    assert!(received == frames);
    assert!(messages < 10, "{messages} messages");
    let decoded = codec("length-field");
    let first = decoded.decode(&received, 1_000).unwrap();
    assert!(matches!(first, Decoded::Frame { consumed: 4, .. }));
    drop(socket);
    server.stop();
}
