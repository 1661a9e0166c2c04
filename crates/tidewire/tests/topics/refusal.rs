//! Refused patterns, topics, policies and numbers, each with its code, on a connection that continues.

use tidewire::{
    AnyCodec, Client, Context, Kind, Limits, Message, NameError, Policy, PubSub, RequestError,
    RoomError, ServeError, Server,
};
use tidewire_proto::body::{ErrorBody, ErrorCode};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire_testkit::{Peer, TestServer, wait_until};

use crate::{ask, heard, publish, serve, subscribe, tw1};

#[test]
fn broken_patterns_and_topics_are_refused_by_name() {
    let server = serve(1);
    let mut peer = server.peer();
    let long = "n".repeat(256);
    let deep = ["s"; 17].join(".");
    for (pattern, code) in [
        ("", ErrorCode::NameEmpty),
        ("a..b", ErrorCode::NameInvalid),
        ("a.>.b", ErrorCode::NameInvalid),
        ("a.b*", ErrorCode::NameInvalid),
        ("a b c", ErrorCode::NameInvalid),
        (&long, ErrorCode::NameInvalid),
        (&deep, ErrorCode::NameInvalid),
    ] {
        assert_eq!(subscribe(&mut peer, pattern, None), Err(code), "{pattern}");
    }
    // An unknown policy, and an empty body.
    for payload in [&b"\x09a"[..], b""] {
        let refusal = ask(&mut peer, Kind::Subscribe, 0, payload);
        assert_eq!(refusal.unwrap_err(), ErrorCode::MalformedBody);
    }
    // A publication has no id, so its refusal has none either.
    for topic in ["a.*", "a..b", ""] {
        publish(&mut peer, topic, b"x");
        let refusal = peer.receive().unwrap();
        assert_eq!((refusal.kind, refusal.id), (Kind::Error, 0), "{topic}");
        let code = ErrorBody::decode(&refusal.payload).unwrap().code;
        assert!(
            matches!(code, ErrorCode::NameInvalid | ErrorCode::NameEmpty),
            "{topic}: {code:?}"
        );
    }
    assert!(subscribe(&mut peer, "a.b", None).is_ok());
    drop(peer);
    let metrics = server.stop();
    assert_eq!((metrics.refused, metrics.published), (12, 0));
}

#[test]
fn a_client_refuses_what_is_broken_before_it_sends_it() {
    let server = serve(1);
    let client = Client::connect(&server.url()).wait().unwrap();
    assert_eq!(
        client.subscribe("a.>.b").wait().unwrap_err(),
        RequestError::Pattern(NameError::WildcardMisplaced)
    );
    assert_eq!(
        client.publish("a.*", b"x"),
        Err(RoomError::Topic(NameError::WildcardInTopic))
    );
    client.close().wait();
    assert_eq!(server.stop().refused, 0);
}

#[test]
fn a_pattern_twice_a_strange_alias_and_a_policy_not_allowed_are_refused() {
    let server = serve(1);
    let mut peer = server.peer();
    let alias = subscribe(&mut peer, "a.*", None).unwrap();
    assert_eq!(
        subscribe(&mut peer, "a.*", Some(Policy::Conflate)),
        Err(ErrorCode::AlreadyJoined)
    );
    assert_eq!(
        subscribe(&mut peer, "b", Some(Policy::Block)),
        Err(ErrorCode::Unsupported)
    );
    let mut leave = |alias| ask(&mut peer, Kind::Unsubscribe, alias, &[]).map(drop);
    assert_eq!(leave(alias + 1), Err(ErrorCode::NotJoined));
    assert_eq!(leave(alias), Ok(()));
    assert_eq!(leave(alias), Err(ErrorCode::NotJoined));
    drop(peer);
    server.stop();
}

#[test]
fn limits_of_sessions_and_of_the_server_hold_and_are_freed_by_unsubscribing() {
    let mut limits = Limits::default();
    limits.topics.set_per_session_max(2);
    limits.topics.set_max(3);
    let builder = Server::builder().limits(limits);
    let server = TestServer::over_tcp(builder, &tw1(), |_| PubSub::new());
    let (mut one, mut two) = (server.peer(), server.peer());
    let first = subscribe(&mut one, "a", None).unwrap();
    assert!(subscribe(&mut one, "b", None).is_ok());
    let full = Err(ErrorCode::LimitReached);
    assert_eq!(subscribe(&mut one, "c", None), full, "two of two");
    assert!(subscribe(&mut two, "c", None).is_ok());
    assert_eq!(subscribe(&mut two, "d", None), full, "three of three");
    assert!(subscribe(&mut two, "b", None).is_ok(), "it exists already");
    assert!(ask(&mut one, Kind::Unsubscribe, first, &[]).is_ok());
    assert!(subscribe(&mut one, "d", None).is_ok());
    drop((one, two));
    server.stop();
}

/// A server with these limits, with two clients of one address and one that has no address.
fn serve_addresses(limits: Limits) -> (TestServer, [Client; 3]) {
    let directory = tempfile::tempdir().unwrap();
    let path = format!("ipc://{}", directory.path().join("s").display());
    let builder = Server::builder().limits(limits).listen(&path).unwrap();
    let server = TestServer::over_tcp(builder, &tw1(), |_| PubSub::new());
    let port = server.server().addresses()[1].to_string();
    // The last client is connected, so the path is needed no more.
    let clients = [&port, &port, &path].map(|address| Client::connect(address).wait().unwrap());
    (server, clients)
}

/// The text of the refusal of a subscription that reaches a limit.
fn refusal(client: &Client, pattern: &str) -> String {
    match client.subscribe(pattern).wait() {
        Err(RequestError::Refused { code, text, .. }) => {
            assert_eq!(code, ErrorCode::LimitReached);
            text
        }
        other => panic!("not refused: {other:?}"),
    }
}

/// Regression: 64 connections of one address took all patterns of the server.
#[test]
fn one_address_cannot_take_the_patterns_of_all() {
    let mut limits = Limits::default();
    limits.topics.set_per_session_max(2);
    limits.topics.set_per_address_max(3);
    limits.topics.set_max(4);
    let (server, [one, two, other]) = serve_addresses(limits);
    let _held = [
        one.subscribe("a").wait().unwrap(),
        one.subscribe("b").wait().unwrap(),
    ];
    let text = refusal(&one, "c");
    assert!(text.contains("subscriptions_per_session_max"), "{text}");
    let third = two.subscribe("c").wait().unwrap();
    let text = refusal(&two, "d");
    assert!(text.contains("topics_per_address_max"), "{text}");
    let _last = other.subscribe("d").wait().unwrap();
    let text = refusal(&other, "e");
    assert!(text.contains("topics_max"), "{text}");
    // A dropped subscription frees its pattern.
    drop(third);
    // The last place is for addresses with few patterns.
    wait_until("it is unsubscribed from", || {
        other.subscribe("e").wait().ok()
    });
    for client in [one, two, other] {
        client.close().wait();
    }
    server.stop();
}

/// A publication costs a look-up for each shape of patterns, so neither a session nor an address takes all shapes.
#[test]
fn shapes_of_patterns_are_limited_and_freed_by_unsubscribing() {
    let mut limits = Limits::default();
    limits.topics.set_shapes_per_session_max(2);
    limits.topics.set_shapes_per_address_max(3);
    limits.topics.set_shapes_max(4);
    let (server, [one, two, other]) = serve_addresses(limits);
    let held = [
        one.subscribe("a.*.c").wait().unwrap(),
        one.subscribe("*.b").wait().unwrap(),
    ];
    let text = refusal(&one, "*.*.c");
    assert!(text.contains("topic_shapes_per_session_max"), "{text}");
    // Wildcards at the end, and patterns of a shape in use, are not counted.
    let _free = ["x.*.z", "*.y", "*", ">", "a.*", "a.b.>", "a.b.c"]
        .map(|pattern| one.subscribe(pattern).wait().unwrap());
    let third = two.subscribe("*.*.c").wait().unwrap();
    let text = refusal(&two, "*.>");
    assert!(text.contains("topic_shapes_per_address_max"), "{text}");
    let _fourth = other.subscribe("*.>").wait().unwrap();
    let text = refusal(&other, "a.*.>");
    assert!(text.contains("topic_shapes_max"), "{text}");
    // A shape is free when its last pattern has ended, also if another session had that pattern.
    drop(third);
    two.flush().wait().unwrap();
    let [middle, _first] = held;
    drop(middle);
    one.flush().wait().unwrap();
    let _fifth = other.subscribe("a.*.>").wait().unwrap();
    let _same = two.subscribe("q.*.r").wait().unwrap();
    let text = refusal(&two, "*.*.c");
    assert!(text.contains("(topic_shapes_max)"), "{text}");
    for client in [one, two, other] {
        client.close().wait();
    }
    server.stop();
}

#[test]
fn a_message_too_large_for_a_frame_is_refused_and_others_pass() {
    let mut limits = Limits::default();
    limits.connections.set_frame_bytes_max(1024);
    let builder = Server::builder().limits(limits);
    let server = TestServer::over_tcp(builder, &tw1(), |_| PubSub::new());
    let client = Client::connect(&server.url()).wait().unwrap();
    let subscription = client.subscribe("a.>").wait().unwrap();
    // With its topic the delivery is larger than the publication, by the size of the id. So this message fits only
    // without the topic.
    let mut peer = server.peer();
    publish(&mut peer, "a.b", &[b'x'; 1024 - 12]);
    let refusal = peer.receive().unwrap();
    let code = ErrorBody::decode(&refusal.payload).unwrap().code;
    assert_eq!(code, ErrorCode::LimitReached);
    publish(&mut peer, "a.b", &[b'x'; 1024 - 16]);
    assert_eq!(heard(&subscription).1.len(), 1024 - 16);
    drop((subscription, client, peer));
    server.stop();
}

/// A publication is framed once for all subscribers, so it could exceed the limit of a connection with smaller frames.
#[test]
fn a_connection_with_smaller_frames_may_publish_but_not_subscribe() {
    let server = serve(1);
    let mut peer = Peer::silent(server.wire(), &tw1());
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: 4096,
        credentials: &[],
        agent: "small",
    };
    let mut frame = Vec::new();
    hello.encode_frame(&mut frame).unwrap();
    peer.write(&frame);
    assert_eq!(peer.receive().unwrap().kind, Kind::Welcome);
    assert_eq!(
        subscribe(&mut peer, "a", None),
        Err(ErrorCode::LimitReached)
    );
    let client = Client::connect(&server.url()).wait().unwrap();
    let subscription = client.subscribe("a").wait().unwrap();
    publish(&mut peer, "a", b"small");
    assert_eq!(heard(&subscription).1, "small");
    drop((subscription, client, peer));
    server.stop();
}

#[test]
fn other_services_and_other_requests_are_refused() {
    let server = serve(1);
    let mut peer = server.peer();
    assert!(ask(&mut peer, Kind::Request, 0, &[]).is_ok(), "a flush");
    let refusal = ask(&mut peer, Kind::Request, 0, b"dance");
    assert_eq!(refusal.unwrap_err(), ErrorCode::Unsupported);
    drop(peer);
    server.stop();

    let chat = TestServer::over_tcp(Server::builder(), &tw1(), |_| tidewire::Chat::new());
    let mut peer = chat.peer();
    assert_eq!(subscribe(&mut peer, "a", None), Err(ErrorCode::Unsupported));
    peer.send(&Message::new(Kind::Publish, 0, b"x").with_name("a"));
    assert_eq!(peer.receive().unwrap().kind, Kind::Error);
    drop(peer);
    chat.stop();
}

#[test]
fn a_policy_that_the_codec_cannot_announce_is_refused() {
    let uvrpc = AnyCodec::by_name("uvrpc").unwrap();
    let server = TestServer::over_tcp(Server::builder(), &uvrpc, |_| {
        |cx: &mut Context<'_>, message: Message<'_>| {
            let policy = message.name.parse().expect("a policy");
            let subscribed = cx.topics().policy(policy).subscribe("a.*").map(drop);
            let joined = cx.rooms().policy(policy).join("lobby", "ada").map(drop);
            if policy.drops() {
                let codec = "uvrpc";
                let error = RoomError::GapsUnannounced { policy, codec };
                assert_eq!(subscribed, Err(error));
                assert_eq!(joined, Err(error));
            }
            cx.reply(if subscribed.is_ok() { b"ok" } else { b"no" })
        }
    });
    let client = Client::builder().codec(uvrpc);
    for policy in Policy::ALL {
        let client = client.clone().connect(&server.url()).wait().unwrap();
        let reply = client.request(b"").method(policy.name()).wait().unwrap();
        let expected: &[u8] = if policy.drops() { b"no" } else { b"ok" };
        assert_eq!(reply.payload(), expected, "{policy}");
        client.close().wait();
    }
    server.stop();
}

#[test]
fn a_server_does_not_start_with_a_policy_that_needs_topics_which_the_codec_hides() {
    let builder = |policy| {
        let codec = AnyCodec::by_name("srmp").unwrap();
        let builder = Server::builder().codec(codec).slow_subscribers(policy);
        builder.start(|_| PubSub::new()).map(drop)
    };
    let failed = builder(Policy::ConflateByTopic);
    assert!(
        matches!(
            failed,
            Err(ServeError::Policy(RoomError::TopicsHidden {
                codec: "srmp"
            }))
        ),
        "{failed:?}"
    );
    // The operator chose to lose messages: losses are counted, and the log says that subscribers get no notice.
    assert!(builder(Policy::DropOldest).is_ok());
}
