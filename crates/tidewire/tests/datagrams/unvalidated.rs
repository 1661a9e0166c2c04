//! Datagrams of peers without a session, and the limit on bytes to an unvalidated address.

use tidewire::{AnyCodec, CloseReason, Context, HandlerResult, Kind, Message, Server};
use tidewire_proto::codec::Codec;
use tidewire_testkit::{Peer, RoomEvent, TestServer, challenge_answer, hello_frame};

use crate::{
    arrived, codec, echo, frame, limited, one_way, payloads, port_of, received, unknown_peer,
};

#[test]
fn datagrams_of_unvalidated_addresses_make_no_session_and_are_answered_by_nothing_but_an_end() {
    let tw1 = codec("tw1");
    let server = TestServer::over_udp(Server::builder(), &tw1, |_| echo);
    let mut bystander = server.peer();
    let request = frame(&tw1, &Message::with_id(Kind::Request, 0, 1, b"let me in"));
    let tiny_hello = frame(&tw1, &Message::new(Kind::Hello, 0, &[]));
    let strays: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &request,
        &[0; 1_000],
        b"\n",
        &[0xFF; 4],
    ];
    let socket = unknown_peer(port_of(&server));
    for stray in strays {
        socket.send(stray).unwrap();
        assert_eq!(received(&socket), b"", "an end");
    }
    // The server answers neither an end nor a datagram that is too small for a challenge.
    socket.send(&[]).unwrap();
    socket.send(&tiny_hello).unwrap();
    bystander.ask(b"unharmed");
    assert_eq!(bystander.answer().payload, b"unharmed");
    assert_eq!(arrived(&socket), Vec::<Vec<u8>>::new());
    drop(bystander);
    let metrics = server.stop();
    assert_eq!(metrics.sessions_opened, 1);
    assert_eq!(metrics.datagrams_dropped_by("unvalidated_address"), 7);
    assert_eq!(metrics.challenges, 1, "the bystander's");
}

#[test]
fn an_address_that_does_not_answer_its_challenge_costs_nothing_and_gets_no_more_than_it_sent() {
    const HELLOS: usize = 200;
    let tw1 = codec("tw1");
    let builder = limited(|limits| {
        limits.sessions.set_max(1);
    });
    let server = TestServer::over_udp(builder, &tw1, |_| echo);
    let socket = unknown_peer(port_of(&server));
    let (mut sent, mut got) = (0, 0);
    for number in 0..HELLOS {
        let mut datagram = hello_frame();
        if number % 2 == 1 {
            // A guessed cookie.
            datagram = challenge_answer(&(number as u64).to_le_bytes());
        }
        sent += socket.send(&datagram).unwrap();
        let challenge = received(&socket);
        assert_eq!(payloads(&tw1, &challenge)[0].len(), 8);
        got += challenge.len();
        assert!(got <= sent, "{got} bytes for {sent}");
    }
    // The one session is still free.
    let mut peer = server.peer();
    peer.ask(b"in");
    assert_eq!(peer.answer().payload, b"in");
    drop(peer);
    let metrics = server.stop();
    assert_eq!((metrics.sessions_opened, metrics.sessions_refused), (1, 0));
    assert_eq!(metrics.challenges, HELLOS as u64 + 1);
}

#[test]
fn a_cookie_is_of_no_use_to_another_address() {
    let tw1 = codec("tw1");
    let server = TestServer::over_udp(Server::builder(), &tw1, |_| echo);
    let (honest, thief) = (
        unknown_peer(port_of(&server)),
        unknown_peer(port_of(&server)),
    );
    honest.send(&hello_frame()).unwrap();
    let cookie = payloads(&tw1, &received(&honest)).remove(0);
    thief.send(&challenge_answer(&cookie)).unwrap();
    let own = payloads(&tw1, &received(&thief)).remove(0);
    assert_ne!(own, cookie, "a challenge of its own instead of a welcome");
    // There is one session, however often the answer comes.
    for _ in 0..3 {
        honest.send(&challenge_answer(&cookie)).unwrap();
        let welcome = received(&honest);
        assert_eq!(welcome[4], Kind::Welcome as u8);
    }
    honest.send(&[]).unwrap();
    let metrics = server.stop();
    assert_eq!(metrics.sessions_opened, 1);
    assert_eq!(metrics.closed_by("peer_closed"), 1);
}

/// Answers with twenty times the request.
fn amplify(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    cx.reply(&message.payload.repeat(20))
}

#[test]
fn replies_beyond_the_bytes_of_an_unproven_address_are_dropped_and_counted() {
    const REQUESTS: usize = 100;
    let codec = codec("raw");
    for is_trusted in [false, true] {
        let builder = Server::builder().trust_datagram_peers(is_trusted);
        let server = TestServer::over_udp(builder, &codec, |_| amplify);
        let socket = unknown_peer(port_of(&server));
        let mut sent = 0;
        for _ in 0..REQUESTS {
            sent += socket.send(b"fifteen letters").unwrap();
        }
        let metrics = server.wait_for("all is handled", |metrics| {
            metrics.frames_in == REQUESTS as u64
                && metrics.datagrams_out + metrics.datagrams_dropped_by("over_budget")
                    == REQUESTS as u64
        });
        let replies = arrived(&socket);
        let got: usize = replies.iter().map(Vec::len).sum();
        assert_eq!(replies.len() as u64, metrics.datagrams_out);
        if is_trusted {
            assert_eq!(replies.len(), REQUESTS);
        } else {
            assert!(got <= sent && got > 0, "{got} bytes for {sent}");
            assert!(metrics.datagrams_dropped_by("over_budget") > 0);
        }
        server.stop();
    }
}

/// The bytes of a datagram on the network, with the headers of IP and UDP.
fn on_the_network(payload: usize) -> usize {
    payload + 28
}

#[test]
fn no_codec_sends_an_unproven_address_more_than_came_from_it() {
    let mut random = fastrand::Rng::with_seed(1);
    let noise = |length: usize, random: &mut fastrand::Rng| -> Vec<u8> {
        (0..length).map(|_| random.u8(..)).collect()
    };
    for name in AnyCodec::NAMES {
        let codec = codec(name);
        let server = TestServer::over_udp(Server::builder(), &codec, |_| amplify);
        let socket = unknown_peer(port_of(&server));
        let mut datagrams = vec![b"GET / HTTP/1.1\r\n\r\n".to_vec(), hello_frame()];
        for kind in [Kind::Hello, Kind::Request, Kind::OneWay, Kind::Subscribe] {
            let (mut frame, message) = (Vec::new(), Message::with_id(kind, 0, 1, b"small"));
            if codec.encode(&message, &mut frame).is_ok() {
                datagrams.push(frame);
            }
        }
        datagrams.extend([1, 2, 3, 8, 40, 1_200].map(|length| noise(length, &mut random)));
        let (mut sent, mut got, mut count) = (0, 0, 0);
        let mut measure = || {
            let replies = arrived(&socket);
            got += replies
                .iter()
                .map(|it| on_the_network(it.len()))
                .sum::<usize>();
            got
        };
        for round in 0..20 {
            for datagram in &datagrams {
                sent += on_the_network(socket.send(datagram).unwrap());
                count += 1;
                server.wait_for("it was read", |metrics| metrics.datagrams_in == count);
            }
            let got = measure();
            assert!(got <= sent, "{name}, round {round}: {got} bytes for {sent}");
        }
        // The end of a session, if any. Without it the drain waits for the peer's answer to its go-away.
        sent += on_the_network(socket.send(&[]).unwrap());
        server.stop();
        let got = measure();
        assert!(got <= sent, "{name}: {got} bytes for {sent}");
    }
}

#[test]
fn unrequested_messages_go_to_proven_or_trusted_addresses_only() {
    let lines = codec("lines");
    for is_trusted in [false, true] {
        let builder = Server::builder().trust_datagram_peers(is_trusted);
        let server = TestServer::over_udp(builder, &lines, |_| tidewire::Chat::new());
        let socket = unknown_peer(port_of(&server));
        socket
            .send(b"ada_who_has_a_very_long_name_indeed\n")
            .unwrap();
        if is_trusted {
            let text = String::from_utf8(received(&socket)).unwrap();
            assert!(text.contains("Welcome"), "{text}");
        } else {
            // The refusal itself is too long to be sent.
            server.wait_for("the refusal is dropped", |metrics| {
                metrics.datagrams_dropped_by("over_budget") == 1
            });
            assert_eq!(arrived(&socket), Vec::<Vec<u8>>::new());
        }
        server.stop();
    }
}

#[test]
fn floods_of_addresses_meet_the_limits_of_sessions() {
    const SESSIONS: usize = 8;
    const PEERS: usize = 50;
    let codec = codec("length-field");
    let builder = limited(|limits| {
        limits.sessions.set_per_address_max(SESSIONS);
    });
    let server = TestServer::over_udp(builder, &codec, |_| echo);
    let sockets: Vec<_> = (0..PEERS).map(|_| unknown_peer(port_of(&server))).collect();
    let (mut served, mut refused) = (Vec::new(), 0);
    for socket in &sockets {
        socket.send(&one_way(&codec, b"hello")).unwrap();
        match &received(socket)[..] {
            b"" => refused += 1,
            reply => {
                assert_eq!(payloads(&codec, reply), [b"hello"]);
                served.push(socket);
            }
        }
    }
    assert_eq!((served.len(), refused), (SESSIONS, PEERS - SESSIONS));
    // An ended session makes room for another.
    served[0].send(&[]).unwrap();
    server.wait_for("a place is free", |metrics| {
        metrics.closed_by(CloseReason::PeerClosed.name()) == 1
    });
    let late = unknown_peer(port_of(&server));
    late.send(&one_way(&codec, b"at last")).unwrap();
    assert_eq!(payloads(&codec, &received(&late)), [b"at last"]);
    let metrics = server.stop();
    assert_eq!(metrics.sessions_opened, SESSIONS as u64 + 1);
    assert_eq!(metrics.sessions_refused, refused as u64);
    assert_eq!(metrics.datagrams_dropped_by("refused"), refused as u64);
}

#[test]
fn a_full_server_answers_proven_addresses() {
    let tw1 = codec("tw1");
    let builder = limited(|limits| {
        limits.sessions.set_max(1);
    });
    let server = TestServer::over_udp(builder, &tw1, |_| echo);
    let first = server.peer();
    let mut second = Peer::silent(server.wire(), &tw1);
    second.write(&hello_frame());
    let challenge = second.receive().unwrap();
    second.write(&challenge_answer(&challenge.payload));
    assert_eq!(second.hear(), Some(RoomEvent::GoingAway));
    assert_eq!(second.receive(), None);
    drop((first, second));
    assert_eq!(server.stop().sessions_refused, 1);
    assert!(tw1.format().proves_addresses());
}
