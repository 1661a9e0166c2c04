//! Frames and datagrams: several frames in one datagram, cut frames, and garbage.

use tidewire::{Chat, Context, HandlerError, HandlerResult, Kind, Message, SendError, Server};
use tidewire_proto::error::EncodeError;
use tidewire_testkit::{TestServer, wait_until};

use crate::{
    arrived, codec, echo, frame, limited, one_way, payloads, port_of, received, unknown_peer,
};

#[test]
fn several_requests_in_a_datagram_are_answered_in_one() {
    let codec = codec("length-field");
    let server = TestServer::over_udp(Server::builder(), &codec, |_| echo);
    let socket = unknown_peer(port_of(&server));
    let expected: Vec<Vec<u8>> = (0..30).map(|size| vec![b'a' + size; size.into()]).collect();
    let datagram: Vec<u8> = expected
        .iter()
        .flat_map(|payload| one_way(&codec, payload))
        .collect();
    socket.send(&datagram).unwrap();
    assert_eq!(payloads(&codec, &received(&socket)), expected);
    let metrics = server.stop();
    assert_eq!((metrics.frames_in, metrics.datagrams_in), (30, 1));
    assert_eq!(metrics.datagrams_out, 1);
}

#[test]
fn a_full_output_is_sent_before_the_rest_of_a_datagram_is_read_and_nothing_is_overtaken() {
    const DATAGRAMS: u32 = 8;
    const FRAMES: u32 = 12;
    let codec = codec("length-field");
    // Each reply fills the output. The replies of a round fit the usual receive buffer.
    let builder = limited(|limits| {
        limits.connections.set_queue_bytes_max(10);
    });
    let server = TestServer::over_udp(builder, &codec, |_| echo);
    let socket = unknown_peer(port_of(&server));
    for round in 0..100_u32 {
        for datagram in 0..DATAGRAMS {
            let frames: Vec<u8> = (0..FRAMES)
                .flat_map(|frame| {
                    let number = (round * DATAGRAMS + datagram) * FRAMES + frame;
                    one_way(&codec, &[&number.to_le_bytes()[..], &[0; 8]].concat())
                })
                .collect();
            socket.send(&frames).unwrap();
        }
        let mut next = round * DATAGRAMS * FRAMES;
        while next < (round + 1) * DATAGRAMS * FRAMES {
            for payload in payloads(&codec, &received(&socket)) {
                assert_eq!(payload[..4], next.to_le_bytes());
                next += 1;
            }
        }
    }
    let metrics = server.stop();
    assert_eq!(metrics.frames_in, u64::from(100 * DATAGRAMS * FRAMES));
    assert!(metrics.reads_paused > 0);
}

#[test]
fn frames_that_only_a_datagram_ends_travel_alone() {
    let raw = codec("raw");
    let answer_thrice = |cx: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
        for _ in 0..3 {
            cx.reply(message.payload)?;
        }
        Ok(())
    };
    let builder = Server::builder().trust_datagram_peers(true);
    let server = TestServer::over_udp(builder, &raw, |_| answer_thrice);
    let socket = unknown_peer(port_of(&server));
    socket.send(b"one message").unwrap();
    for _ in 0..3 {
        assert_eq!(received(&socket), b"one message");
    }
    let metrics = server.stop();
    // The three datagrams have one size, so the kernel can take them in one call.
    assert!(metrics.writes <= 3 && metrics.datagrams_out == 3);
}

#[test]
fn deliveries_of_a_room_are_cut_between_frames_only() {
    const MESSAGES: usize = 400;
    let tw1 = codec("tw1");
    let builder = limited(|limits| {
        limits.connections.set_datagram_bytes_max(300);
    });
    let server = TestServer::over_udp(builder, &tw1, |_| Chat::new());
    let (mut ada, mut bob) = (server.peer(), server.peer());
    ada.join("lobby", "ada").unwrap();
    bob.join("lobby", "bob").unwrap();
    bob.hear_of("ada");
    ada.hear_of("bob");
    let said: Vec<Vec<u8>> = (0..MESSAGES)
        .map(|number| vec![b'a'; number * 7 % 290 + 1])
        .collect();
    let frames: Vec<u8> = said.iter().flat_map(|text| ada.say_frame(text)).collect();
    ada.write(&frames);
    let wire = bob.into_wire();
    let tidewire_testkit::Wire::Udp(datagrams) = &wire else {
        panic!("not over UDP");
    };
    let mut heard = Vec::new();
    while heard.len() < MESSAGES {
        let datagram = received(datagrams.socket());
        let frames = payloads(&tw1, &datagram);
        assert!(
            datagram.len() <= 300 || frames.len() == 1,
            "{} frames in {} bytes",
            frames.len(),
            datagram.len()
        );
        heard.extend(frames);
    }
    assert_eq!(heard, said);
    drop((ada, wire));
    let metrics = server.stop();
    assert_eq!(metrics.chat_messages, MESSAGES as u64);
    assert_eq!(
        metrics.frames_in - 6,
        MESSAGES as u64,
        "two pongs, hellos and joins"
    );
}

#[test]
fn invalid_messages_are_counted_and_the_session_continues() {
    let tw1 = codec("tw1");
    let builder = limited(|limits| {
        limits.connections.set_frame_bytes_max(2_000);
    });
    let server = TestServer::over_udp(builder, &tw1, |_| echo);
    let mut peer = server.peer();
    let request =
        |id, payload: &[u8]| frame(&tw1, &Message::with_id(Kind::Request, 0, id, payload));
    let whole = request(1, b"whole");
    let other = request(2, b"the other half");
    let wire = peer.wire().try_clone().unwrap();
    let tidewire_testkit::Wire::Udp(datagrams) = &wire else {
        panic!("not over UDP");
    };
    let socket = datagrams.socket();
    let (first, second) = other.split_at(9);
    // The first half never joins the second, which is garbage by itself.
    socket.send(&[&whole, first].concat()).unwrap();
    assert_eq!(peer.answer().payload, b"whole");
    socket.send(second).unwrap();
    socket.send(&[&whole[..], &[0xFF; 40]].concat()).unwrap();
    assert_eq!(peer.answer().payload, b"whole");
    // Larger than any frame, so it is dropped without decoding.
    socket.send(&whole.repeat(200)).unwrap();
    socket.send(&whole).unwrap();
    assert_eq!(peer.answer().payload, b"whole");
    drop((peer, wire));
    let metrics = server.stop();
    let dropped = |reason| metrics.datagrams_dropped_by(reason);
    assert_eq!(dropped("unfinished"), 1);
    assert_eq!(dropped("malformed"), 2);
    assert_eq!(dropped("truncated"), 1);
    assert_eq!(metrics.sessions_opened, 1);
    assert_eq!(metrics.closed_by("peer_closed"), 1, "{metrics:#?}");
}

#[test]
fn a_frame_that_no_datagram_holds_is_refused_where_it_is_sent() {
    let codec = codec("length-field:size=4");
    let largest = |cx: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
        let too_large = cx.send(Message::new(Kind::OneWay, 0, &vec![1; 65_504]));
        let limit = 65_507;
        let refused = SendError::Encode(EncodeError::PayloadTooLarge {
            bytes: 65_508,
            limit,
        });
        if too_large != Err(refused) {
            return Err(HandlerError::new(
                tidewire_proto::body::ErrorCode::Internal,
                format!("{too_large:?}"),
            ));
        }
        cx.reply(&message.payload.repeat(65_503))
    };
    let builder = Server::builder().trust_datagram_peers(true);
    let server = TestServer::over_udp(builder, &codec, |_| largest);
    let socket = unknown_peer(port_of(&server));
    socket.send(&one_way(&codec, b"x")).unwrap();
    let reply = received(&socket);
    assert_eq!(reply.len(), 65_507);
    assert_eq!(payloads(&codec, &reply)[0], vec![b'x'; 65_503]);
    let metrics = server.stop();
    assert_eq!((metrics.sends_too_large, metrics.refused), (1, 0));
}

#[test]
fn uvrpc_over_udp_speaks_datagrams_of_one_frame() {
    let uvrpc = codec("uvrpc");
    let builder = Server::builder().trust_datagram_peers(true);
    let server = TestServer::over_udp(builder, &uvrpc, |_| echo);
    let client = tidewire::Client::builder()
        .codec(tidewire::AnyCodec::by_name("uvrpc").unwrap())
        .connect(&server.url())
        .wait()
        .unwrap();
    let requests: Vec<_> = (0..20)
        .map(|number: u8| client.request(&[number]).method("echo").send())
        .collect();
    for (number, request) in requests.into_iter().enumerate() {
        assert_eq!(request.wait().unwrap().payload(), [number as u8]);
    }
    client.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.datagrams_in, 21, "twenty requests and the end");
}

#[test]
fn nothing_is_sent_to_a_peer_that_asked_for_nothing() {
    let codec = codec("length-field");
    let server = TestServer::over_udp(Server::builder(), &codec, |_| {
        |_: &mut Context<'_>, _: Message<'_>| Ok(())
    });
    let socket = unknown_peer(port_of(&server));
    socket.send(&one_way(&codec, b"no answer")).unwrap();
    wait_until("it is taken", || {
        (server.metrics().frames_in == 1).then_some(())
    });
    assert_eq!(arrived(&socket), Vec::<Vec<u8>>::new());
    server.stop();
}

/// Regression: bytes of another protocol ended the open session, so one forged datagram could end it.
#[test]
fn a_datagram_of_another_protocol_ends_no_open_session() {
    for name in ["srmp", "length-field"] {
        let codec = codec(name);
        let server = TestServer::over_udp(Server::builder(), &codec, |_| echo);
        let socket = unknown_peer(port_of(&server));
        for words in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"SSH-2.0-OpenSSH\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",
        ] {
            let request = one_way(&codec, b"still here");
            socket.send(&request).unwrap();
            assert_eq!(payloads(&codec, &received(&socket)), [b"still here"]);
            socket.send(words).unwrap();
        }
        server.wait_for("all are dropped", |metrics| {
            metrics.datagrams_dropped_by("malformed") + metrics.datagrams_dropped_by("unfinished")
                == 3
        });
        let metrics = server.stop();
        assert_eq!((metrics.sessions_opened, metrics.frames_in), (1, 3));
        assert_eq!(
            metrics.closed_by("handshake") + metrics.closed_by("layer"),
            0
        );
    }
}
