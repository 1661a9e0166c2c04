//! Bytes that violate the protocol.

use tidewire::{AnyCodec, Chat, Client, ConnectError, Kind, Message, Server};
use tidewire_proto::body::GoAwayCode;
use tidewire_testkit::{Peer, RoomEvent, TestServer, hello_frame};

use crate::{echo, last_words, limited, lines, told_why, tw1, whole_story};

#[test]
fn garbage_instead_of_a_hello_ends_the_session_and_nothing_else() {
    const PEERS: u64 = 200;
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let mut bystander = server.peer();
    for seed in 0..PEERS {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = vec![0; random.usize(1..5000)];
        random.fill(&mut bytes);
        let mut peer = Peer::silent(server.wire(), &tw1());
        // The server may end the connection before all bytes are written.
        let _ = peer.try_write(&bytes);
        let _ = peer.wire().finish_writing();
        peer.drain();
        bystander.ask(b"still there?");
        assert_eq!(bystander.answer().payload, b"still there?", "seed {seed}");
    }
    drop(bystander);
    let metrics = server.stop();
    assert_eq!(metrics.sessions_opened, PEERS + 1);
    assert!(metrics.closed_by("handshake") > PEERS / 2, "{metrics:#?}");
}

#[test]
fn garbage_after_the_hello_is_a_counted_protocol_error() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    // An unknown kind, a length below the header, and a length without the id.
    for (count, bytes) in [
        &[4, 0, 0, 0, 31, 0, 0, 0][..],
        &[3, 0, 0, 0, 7, 0, 0, 0],
        &[7, 0, 0, 0, 3, 0, 0, 0],
    ]
    .into_iter()
    .enumerate()
    {
        let mut peer = server.peer();
        peer.ask(b"before");
        peer.write(bytes);
        assert_eq!(peer.answer().payload, b"before");
        assert_eq!(last_words(&peer.drain()), Some(GoAwayCode::ProtocolError));
        server.wait_for("the close is counted", |metrics| {
            metrics.closed_by("decode") == count as u64 + 1
        });
    }
    server.stop();
}

#[test]
fn a_frame_over_the_limit_is_refused_before_its_payload_comes() {
    let builder = limited(|limits| {
        limits.connections.set_frame_bytes_max(4096);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut peer = server.peer();
    let most = vec![b'x'; 4096 - 12];
    peer.ask(&most);
    assert_eq!(peer.answer().payload, most, "a frame of exactly the limit");
    // A frame of 4,097 bytes with the length field. Only the header is sent.
    peer.write(&[0xFD, 0x0F, 0, 0, Kind::OneWay as u8, 0, 0, 0]);
    assert_eq!(last_words(&peer.drain()), Some(GoAwayCode::ProtocolError));
    drop(peer);
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("decode"), 1);
}

#[test]
fn a_line_without_an_end_is_refused_at_the_limit() {
    let server = TestServer::over_tcp(Server::builder(), &lines(), |_| echo);
    let mut peer = server.peer();
    peer.write(&vec![b'x'; 8192]);
    told_why(&mut peer, "exceeds the limit of 8192 bytes");
    assert_eq!(peer.receive(), None);
    drop(peer);
    let metrics = server.stop();
    assert_eq!((metrics.closed_by("decode"), metrics.frames_in), (1, 0));
}

#[test]
fn a_peer_that_vanishes_is_counted_and_its_room_is_told() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Chat::new());
    let mut ada = server.peer();
    ada.join("lobby", "ada").unwrap();
    let mut bob = server.peer();
    bob.join("lobby", "bob").unwrap();
    ada.hear_of("bob");
    bob.into_wire().vanish().unwrap();
    let left = tidewire_proto::message::PresenceEvent::Left;
    assert_eq!(
        ada.hear(),
        Some(RoomEvent::Presence(left, "bob".to_owned()))
    );
    drop(ada);
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("peer_reset"), 1, "{metrics:#?}");
}

#[test]
fn a_second_hello_is_a_protocol_error() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let mut peer = server.peer();
    peer.write(&hello_frame());
    assert_eq!(last_words(&peer.drain()), Some(GoAwayCode::ProtocolError));
    drop(peer);
    assert_eq!(server.stop().closed_by("decode"), 1);
}

#[test]
fn a_request_before_the_hello_is_refused() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let mut peer = Peer::silent(server.wire(), &tw1());
    peer.ask(b"let me in");
    assert_eq!(last_words(&peer.drain()), Some(GoAwayCode::ProtocolError));
    drop(peer);
    assert_eq!(server.stop().closed_by("handshake"), 1);
}

#[test]
fn a_flood_of_control_frames_ends_the_session() {
    const LIMIT: usize = 10;
    for kind in [Kind::Ping, Kind::Pong] {
        let builder = limited(|limits| {
            limits
                .connections
                .set_control_frames_per_second_max(LIMIT as u32);
        });
        let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
        let mut peer = server.peer();
        // Far more than two seconds' worth, in one write: a test on a slow machine must flood as well.
        let mut flood = Vec::new();
        for _ in 0..LIMIT * 20 {
            flood.extend_from_slice(&[4, 0, 0, 0, kind as u8, 0, 0, 0]);
        }
        peer.write(&flood);
        let frames = peer.drain();
        assert_eq!(
            last_words(&frames),
            Some(GoAwayCode::LimitReached),
            "{kind:?}"
        );
        drop(peer);
        let metrics = server.stop();
        assert_eq!(metrics.closed_by("control_flood"), 1, "{kind:?}");
    }
}

#[test]
fn a_ping_comes_back_with_its_payload_unless_that_is_large() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let mut peer = server.peer();
    peer.send(&Message::new(Kind::Ping, 0, b"are you there?"));
    let pong = peer.receive().unwrap();
    assert_eq!(
        (pong.kind, &pong.payload[..]),
        (Kind::Pong, &b"are you there?"[..])
    );
    peer.send(&Message::new(Kind::Ping, 0, &[0; 65]));
    assert_eq!(last_words(&peer.drain()), Some(GoAwayCode::LimitReached));
    drop(peer);
    assert_eq!(server.stop().closed_by("control_flood"), 1);
}

#[test]
fn a_native_client_of_a_lines_server_is_told_which_flag_to_look_at() {
    let server = TestServer::over_tcp(Server::builder(), &lines(), |_| Chat::new());
    let error = Client::connect(&server.url()).wait().unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::Refused { .. } | ConnectError::Closed(_)
        ),
        "{error:?}"
    );
    let story = whole_story(&error);
    assert!(story.contains("--codec lines"), "{story}");
    server.stop();
}

/// Regression: `curl` and `redis-cli` hung at a port of srmp, because their first bytes were taken for the beginning of
/// a long frame.
#[test]
fn a_foreign_program_at_an_srmp_port_is_told_at_once() {
    for name in ["srmp", "srmp-rpc"] {
        let codec = AnyCodec::by_name(name).unwrap();
        let builder = limited(|limits| {
            limits
                .connections
                .set_frame_timeout(std::time::Duration::MAX);
        });
        let server = TestServer::over_tcp(builder, &codec, |_| echo);
        let words: [&[u8]; 3] = [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"\x16\x03\x01",
        ];
        for words in words {
            let mut program = Peer::silent(server.wire(), &codec);
            program.write(words);
            program.drain();
        }
        let metrics = server.stop();
        // The first bytes of other protocols are recognised, and named in the log.
        let closed = ["handshake", "layer"].map(|reason| metrics.closed_by(reason));
        assert_eq!((closed, metrics.frames_in), ([2, 1], 0));
    }
}

/// Regression: a broken frame in the middle of a connection was taken for another protocol if it began like it.
#[test]
fn words_of_another_protocol_after_a_frame_are_a_broken_frame() {
    let codec = AnyCodec::by_name("lines").unwrap();
    let builder = limited(|limits| {
        limits.connections.set_frame_bytes_max(600);
    });
    let server = TestServer::over_tcp(builder, &codec, |_| echo);
    let mut person = Peer::silent(server.wire(), &codec);
    person.write(b"hello\n");
    assert_eq!(person.receive().unwrap().payload, b"hello"[..]);
    person.write(format!("GET {}\n", "x".repeat(700)).as_bytes());
    person.drain();
    drop(person);
    let metrics = server.stop();
    assert_eq!((metrics.closed_by("decode"), metrics.frames_in), (1, 1));
}

#[test]
fn text_to_a_native_server_is_named_as_text() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let mut person = Peer::silent(server.wire(), &tw1());
    person.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let frames = person.drain();
    assert_eq!(last_words(&frames), Some(GoAwayCode::ProtocolError));
    let words = String::from_utf8_lossy(&frames[0].payload[2..]).into_owned();
    assert!(words.contains("look like HTTP"), "{words}");
    drop(person);
    let mut person = Peer::silent(server.wire(), &tw1());
    person.write(b"good morning\n");
    let frames = person.drain();
    let words = String::from_utf8_lossy(&frames[0].payload[2..]).into_owned();
    assert!(words.contains("--codec lines"), "{words}");
    drop(person);
    assert_eq!(server.stop().closed_by("handshake"), 2);
}
