//! Beginning and end of sessions.

use std::time::Duration;

use tidewire::{Chat, Client, Event, ServeError, Server};
use tidewire_testkit::{DEADLINE, TestServer, wait_until};

use crate::{codec, echo, limited, one_way, payloads, port_of, received, unknown_peer};

#[test]
fn an_empty_datagram_ends_a_session_and_silence_does_too() {
    let raw = codec("raw");
    let builder = limited(|limits| {
        limits
            .connections
            .set_idle_timeout_without_heartbeat(Duration::from_millis(50));
    });
    let server = TestServer::over_udp(builder, &raw, |_| echo);
    let (polite, silent) = (
        unknown_peer(port_of(&server)),
        unknown_peer(port_of(&server)),
    );
    for socket in [&polite, &silent] {
        socket.send(b"hello").unwrap();
        assert_eq!(received(socket), b"hello");
    }
    polite.send(&[]).unwrap();
    for socket in [&polite, &silent] {
        assert_eq!(received(socket), b"", "each is told of its end");
    }
    let metrics = server.wait_for("both end", |metrics| metrics.sessions_closed() == 2);
    // The other session may have been silent for too long before its end was read.
    assert!(metrics.closed_by("idle_timeout") >= 1, "{metrics:#?}");
    // The next datagram begins another session.
    silent.send(b"again").unwrap();
    assert_eq!(received(&silent), b"again");
    let metrics = server.stop();
    assert!(metrics.sessions_opened >= 3, "{metrics:#?}");
}

#[test]
fn being_sent_something_does_not_keep_a_silent_subscriber() {
    let lines = codec("lines");
    let builder = limited(|limits| {
        limits
            .connections
            .set_idle_timeout_without_heartbeat(Duration::from_millis(200));
    });
    let server = TestServer::over_udp(builder.trust_datagram_peers(true), &lines, |_| Chat::new());
    let (talker, listener) = (
        unknown_peer(port_of(&server)),
        unknown_peer(port_of(&server)),
    );
    talker.send(b"ada\n").unwrap();
    listener.send(b"bob\n").unwrap();
    wait_until("the listener expires", || {
        talker.send(b"are you there?\n").unwrap();
        (server.metrics().closed_by("idle_timeout") > 0).then_some(())
    });
    server.stop();
}

#[test]
fn peers_that_go_without_a_word_are_forgotten_by_heartbeats() {
    let tw1 = codec("tw1");
    let builder = limited(|limits| {
        limits.connections.set_heartbeat(Duration::from_millis(20));
        limits
            .connections
            .set_idle_timeout(Duration::from_millis(100));
    });
    let server = TestServer::over_udp(builder, &tw1, |_| echo);
    server.peer().into_wire().vanish().unwrap();
    server.wait_for("the session ends", |metrics| {
        metrics.closed_by("idle_timeout") == 1
    });
    server.stop();
}

#[test]
fn every_lane_has_its_share_of_the_port_and_all_are_served() {
    const CLIENTS: usize = 24;
    let server = Server::builder()
        .lanes(3)
        .listen("udp://127.0.0.1:0")
        .unwrap()
        .start(|_| echo)
        .unwrap();
    let address = server.to_string();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| Client::connect(&address).wait().unwrap())
        .collect();
    for (index, client) in clients.iter().enumerate() {
        let text = index.to_string();
        let reply = client.request(text.as_bytes()).wait().unwrap();
        assert_eq!(reply.payload(), text.as_bytes());
    }
    // A port that the lanes of a server share is not shared with another server.
    let taken = Server::builder()
        .lanes(2)
        .listen(&address)
        .unwrap()
        .start(|_| echo)
        .unwrap_err();
    assert!(matches!(taken, ServeError::Socket(_)), "{taken:?}");
    for client in &clients {
        client.close().wait();
    }
    let stopped = server.shutdown(DEADLINE);
    tidewire_testkit::assert_conserved(&stopped);
    assert_eq!(stopped.metrics.sessions_opened, CLIENTS as u64);
}

#[test]
fn both_families_and_all_addresses_are_served() {
    for (bind, connect) in [
        ("udp://[::1]:0", "udp://[::1]"),
        ("udp://*:0", "udp://127.0.0.1"),
        ("udp://[::]:0", "udp://127.0.0.1"),
    ] {
        let server = Server::builder()
            .listen(bind)
            .unwrap()
            .start(|_| echo)
            .unwrap();
        let address = server.to_string();
        let (_, port) = address.rsplit_once(':').unwrap();
        let client = Client::connect(&format!("{connect}:{port}"))
            .wait()
            .unwrap();
        let reply = client.request(b"hello").wait().unwrap();
        assert_eq!(reply.payload(), b"hello", "{bind}");
        client.close().wait();
        tidewire_testkit::assert_conserved(&server.shutdown(DEADLINE));
    }
}

#[test]
fn a_draining_server_refuses_newcomers_and_tells_its_sessions() {
    let tw1 = codec("tw1");
    let server = TestServer::over_udp(Server::builder(), &tw1, |_| echo);
    let inspector = server.server().inspector();
    let client = Client::connect(&server.url()).wait().unwrap();
    assert!(matches!(client.next_event().wait(), Event::Opened { .. }));
    let metrics = server.stop();
    assert!(matches!(client.next_event().wait(), Event::Closed { .. }));
    assert_eq!(metrics.sessions_closed(), 1);
    assert_eq!(inspector.metrics(), metrics);
}

#[test]
fn datagrams_and_streams_of_one_codec_share_a_server_however_it_frames_them() {
    for name in ["tw1", "uvrpc", "srmp"] {
        let server = Server::builder()
            .codec(tidewire::AnyCodec::by_name(name).unwrap())
            .listen("udp://127.0.0.1:0")
            .unwrap()
            .listen("tcp://127.0.0.1:0")
            .unwrap()
            .start(|_| echo)
            .unwrap();
        for address in server.addresses() {
            let address = format!("{address}?codec={name}");
            let client = Client::connect(&address).wait().unwrap();
            let reply = client.request(b"hi").wait().unwrap();
            assert_eq!(reply.payload(), b"hi");
            client.close().wait();
        }
        tidewire_testkit::assert_conserved(&server.shutdown(DEADLINE));
    }
}

#[test]
fn messages_for_a_paused_session_are_counted() {
    // Each request pauses the session until it is answered, which never happens.
    let codec = codec("length-field");
    let builder = limited(|limits| {
        limits.connections.set_deferred_max(1);
    });
    let (tokens, held) = std::sync::mpsc::channel();
    let server = TestServer::over_udp(builder, &codec, |_| {
        let tokens = tokens.clone();
        move |cx: &mut tidewire::Context<'_>, message: tidewire::Message<'_>| {
            let sent = tokens.send((cx.defer(), message.payload.to_vec()));
            assert!(sent.is_ok());
            Ok(())
        }
    });
    let socket = unknown_peer(port_of(&server));
    let mut datagram = one_way(&codec, b"one");
    datagram.extend(one_way(&codec, b"two"));
    socket.send(&datagram).unwrap();
    server.wait_for("reading pauses", |metrics| metrics.reads_paused == 1);
    socket.send(&one_way(&codec, b"lost")).unwrap();
    server.wait_for("it is dropped", |metrics| {
        metrics.datagrams_dropped_by("paused") == 1
    });
    // The rest of the first datagram was accepted, and is handled after the answers.
    for expected in [b"one", b"two"] {
        let (token, payload) = held.recv_timeout(DEADLINE).unwrap();
        assert_eq!(payload, expected);
        token.reply(&payload).unwrap();
        assert_eq!(payloads(&codec, &received(&socket)), [expected]);
    }
    socket.send(&[]).unwrap();
    let metrics = server.stop();
    assert_eq!(metrics.frames_in, 2);
}
