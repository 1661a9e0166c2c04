//! The permissions of an identity.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidewire::auth::Access;
use tidewire::limits::{RateLimit, WhenExceeded};
use tidewire::{Chat, Event, Kind, PubSub, Router, Service};
use tidewire_proto::body::{JoinBody, SubscribeBody};
use tidewire_proto::codec::Codec;
use tidewire_testkit::{DEADLINE, Peer, TestServer};

use super::*;

fn access(allow: &[&'static str], deny: &[&'static str]) -> Access {
    Access::new(allow.iter().copied(), deny.iter().copied()).unwrap()
}

/// A server with methods, topics and rooms, for one user with a token.
fn serve(permissions: Permissions, limits: IdentityLimits) -> (Server, Token) {
    let tokens = TokenFolder::new();
    let token = tokens.add("ann");
    let mut known = Users::new(permissions);
    known.add("ann", None, limits).unwrap();
    let server = Server::builder()
        .authenticate(tokens.chain(known))
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| {
            Router::new()
                .on("open.add", |cx, message| cx.reply(message.payload))
                .on("admin.stop", |cx, message| cx.reply(message.payload))
                .with(Chat::new())
                .with(PubSub::new())
        })
        .unwrap();
    (server, token)
}

#[test]
fn only_allowed_methods_are_called() {
    let call = Permissions {
        call: access(&[">"], &["admin.>"]),
        ..Permissions::nothing()
    };
    let (server, token) = serve(call, IdentityLimits::default());
    let client = connect(&server, Some(&token)).unwrap();
    for _ in 0..3 {
        client.request(b"x").method("open.add").wait().unwrap();
        let outcome = client.request(b"x").method("admin.stop").wait();
        assert_eq!(code(outcome), ErrorCode::Forbidden);
    }
    assert_eq!(server.metrics().forbidden, 3);
}

/// Regression guard: frames with equal headers are served by a template, and must not carry another message past the
/// check.
#[test]
fn a_burst_of_allowed_and_forbidden_messages_is_told_apart() {
    let permissions = Permissions {
        publish: access(&["a.>"], &["a.no"]),
        subscribe: Access::everything(),
        ..Permissions::nothing()
    };
    let (server, token) = serve(permissions, IdentityLimits::default());
    let client = connect(&server, Some(&token)).unwrap();
    let subscription = client.subscribe("a.>").wait().unwrap();
    for _ in 0..50 {
        for topic in ["a.ya", "a.ya", "a.no", "a.no", "a.ya"] {
            client.publish(topic, b"1").unwrap();
        }
    }
    client.request(b"").wait().unwrap();
    let mut heard = 0;
    while let Some(event) = subscription.next_event().wait_for(Duration::ZERO) {
        match event {
            tidewire::TopicEvent::Message(message) => assert_eq!(&*message.topic, "a.ya"),
            other => panic!("{other:?}"),
        }
        heard += 1;
    }
    let metrics = server.metrics();
    assert_eq!(
        (heard, metrics.published, metrics.forbidden),
        (150, 150, 100)
    );
}

#[test]
fn a_subscription_needs_permission_for_every_topic_of_its_pattern() {
    let permissions = Permissions {
        subscribe: access(&["dev.{name}.>", "news.*"], &["news.secret"]),
        ..Permissions::nothing()
    };
    let (server, token) = serve(permissions, IdentityLimits::default());
    let client = connect(&server, Some(&token)).unwrap();
    for pattern in ["dev.ann.>", "dev.ann.a.b", "news.today"] {
        client.subscribe(pattern).wait().unwrap();
    }
    for pattern in [">", "dev.>", "dev.bob.a", "news.*", "news.secret"] {
        let outcome = client.subscribe(pattern).wait();
        assert_eq!(code(outcome.map(drop)), ErrorCode::Forbidden, "{pattern}");
    }
}

#[test]
fn rooms_are_joined_and_spoken_in_by_permission_under_ones_own_name() {
    let permissions = Permissions {
        join: access(&["lobby", "read-only"], &[]),
        say: access(&["lobby"], &[]),
        ..Permissions::nothing()
    };
    let (server, token) = serve(permissions, IdentityLimits::default());
    let client = connect(&server, Some(&token)).unwrap();
    assert_eq!(
        code(client.join("secret").named("ann").wait()),
        ErrorCode::Forbidden
    );
    assert_eq!(
        code(client.join("lobby").named("bob").wait()),
        ErrorCode::Forbidden
    );
    let lobby = client.join("lobby").named("").wait().unwrap();
    let silent = client.join("read-only").named("ann").wait().unwrap();
    silent.members().wait().unwrap();
    // A list and a whisper have the same header. Only the list is free.
    let whisper = silent.whisper("ann", b"x").wait();
    assert_eq!(code(whisper), ErrorCode::Forbidden);
    lobby.say(b"hello").unwrap();
    silent.say(b"hello").unwrap();
    loop {
        let event = client
            .next_event()
            .wait_for(DEADLINE)
            .expect("the refusal comes");
        if let Event::Refused { channel, .. } = event {
            assert_eq!(channel, silent.id().0);
            break;
        }
    }
    assert_eq!(server.metrics().chat_messages, 1);
}

#[test]
fn no_peer_takes_the_name_of_an_identity() {
    let tokens = TokenFolder::new();
    let ann = tokens.add("ann1");
    let everything = Permissions::everything();
    let known = users(&[("ann1", everything.clone()), ("anonymous", everything)]);
    let server = serve_with(tokens.chain(known), |_| Chat::new());
    let eve = connect(&server, None).unwrap();
    for name in ["ann1", "annl"] {
        assert_eq!(
            code(eve.join("lobby").named(name).wait()),
            ErrorCode::NameTaken,
            "{name}"
        );
    }
    eve.join("lobby").named("eve").wait().unwrap();
    let ann = connect(&server, Some(&ann)).unwrap();
    assert_eq!(
        ann.join("lobby").named("").wait().unwrap().size_at_join(),
        Some(2)
    );
}

#[test]
fn a_line_client_joins_and_speaks_by_permission() {
    use std::io::{BufRead, BufReader, Write};
    for (join, say) in [(true, true), (true, false), (false, true)] {
        let pick = |is: bool| {
            if is {
                Access::everything()
            } else {
                Access::default()
            }
        };
        let permissions = Permissions {
            join: pick(join),
            say: pick(say),
            ..Permissions::nothing()
        };
        let server = Server::builder()
            .codec(AnyCodec::by_name("lines").unwrap())
            .authenticate(anonymous(permissions))
            .listen("tcp://127.0.0.1:0")
            .unwrap()
            .start(|_| Chat::new())
            .unwrap();
        let address = server.to_string().replace("tcp://", "");
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.write_all(b"eve\nhello\n").unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "Enter username: ");
        let second = lines.next().unwrap().unwrap();
        match (join, say) {
            (true, true) => {
                assert!(second.starts_with("Welcome"), "{second}");
                until("it is said", || server.metrics().chat_messages == 1);
            }
            (true, false) => {
                assert!(second.starts_with("Welcome"), "{second}");
                until("it is refused", || server.metrics().forbidden == 1);
                assert_eq!(server.metrics().chat_messages, 0);
            }
            _ => assert!(second.contains("you may not join lobby"), "{second}"),
        }
    }
}

/// Regression: on a server with users a malformed pattern had the code of a handler that failed, and was counted as
/// one.
#[test]
fn malformed_names_have_the_same_codes_with_users_as_without() {
    let tw1 = AnyCodec::by_name("tw1").unwrap();
    let mut messages: Vec<(Kind, Vec<u8>)> = Vec::new();
    for pattern in ["a.>.b", "", "a..b", ">.b", "a\tb", "a.b c d"] {
        let (mut body, policy) = (Vec::new(), None);
        SubscribeBody {
            pattern,
            policy,
            group: None,
        }
        .encode(&mut body);
        messages.push((Kind::Subscribe, body));
    }
    for room in ["", &*"x".repeat(65), "a\nb"] {
        let mut body = Vec::new();
        JoinBody { room, name: "ann" }.encode(&mut body).unwrap();
        messages.push((Kind::Join, body));
    }
    let codes = |builder| -> Vec<u16> {
        let make = |_| Router::new().with(Chat::new()).with(PubSub::new());
        let server = TestServer::over_tcp(builder, &tw1, make);
        let mut peer = Peer::greet(server.wire(), &tw1);
        let codes = messages.iter().enumerate().map(|(index, (kind, body))| {
            peer.send(&Message::with_id(*kind, 0, index as u32 + 1, body));
            let answer = peer.receive().unwrap();
            assert_eq!(answer.kind, Kind::Error);
            u16::from_le_bytes([answer.payload[0], answer.payload[1]])
        });
        let codes = codes.collect();
        drop(peer);
        let metrics = server.stop();
        assert_eq!((metrics.handler_failures, metrics.forbidden), (0, 0));
        codes
    };
    let some = || access(&["a.>"], &[]);
    let permissions = Permissions {
        subscribe: some(),
        join: some(),
        ..Permissions::nothing()
    };
    let without = codes(Server::builder());
    let with = codes(Server::builder().authenticate(anonymous(permissions)));
    assert_eq!(with, without);
}

#[test]
fn limits_of_an_identity_hold_for_each_of_its_sessions() {
    let rate = RateLimit::new(WhenExceeded::Refuse)
        .messages_per_second(1)
        .burst(Duration::from_secs(9));
    let limits = IdentityLimits {
        subscriptions_max: Some(1),
        rooms_max: Some(1),
        rate: Some(rate),
        ..IdentityLimits::default()
    };
    limits.check().unwrap();
    let (server, token) = serve(Permissions::everything(), limits);
    let client = connect(&server, Some(&token)).unwrap();
    let _kept = client.subscribe("a").wait().unwrap();
    assert_eq!(
        code(client.subscribe("b").wait().map(drop)),
        ErrorCode::LimitReached
    );
    client.join("a").named("").wait().unwrap();
    assert_eq!(
        code(client.join("b").named("").wait()),
        ErrorCode::LimitReached
    );
    let outcomes = (0..20).map(|_| client.request(b"").method("open.add").wait());
    let refused = outcomes.filter(Result::is_err).count();
    assert!(refused > 0);
    assert_eq!(server.metrics().rate_refused, refused as u64);
}

#[test]
fn a_limit_of_bytes_refuses_larger_messages() {
    let rate = RateLimit::new(WhenExceeded::Refuse)
        .bytes_per_second(1)
        .burst(Duration::from_secs(4_000));
    let limits = IdentityLimits {
        rate: Some(rate),
        ..IdentityLimits::default()
    };
    limits.check().unwrap();
    let (server, token) = serve(Permissions::everything(), limits);
    let client = connect(&server, Some(&token)).unwrap();
    let payload = [0; 1_000];
    let outcomes: Vec<_> = (0..10)
        .map(|_| client.request(&payload).method("open.add").wait())
        .collect();
    let refused = outcomes.iter().filter(|it| it.is_err()).count();
    assert!((6..10).contains(&refused), "{refused}");
    assert_eq!(server.metrics().rate_refused, refused as u64);
}

/// Counts its messages of all kinds.
struct Counting(Arc<AtomicUsize>);

impl Service for Counting {
    fn on_message(&mut self, _: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Sends a frame of each kind to a service that ignores kinds, as a peer without any permission.
fn send_each_kind(server: TestServer) {
    let tw1 = AnyCodec::by_name("tw1").unwrap();
    let mut peers = Vec::new();
    for kind in Kind::ALL {
        for (channel, name) in [(0, ""), (3, ""), (0, "some.name")] {
            let mut frame = Vec::new();
            let message = Message::with_id(kind, channel, 0, b"x").with_name(name);
            if tw1.encode(&message, &mut frame).is_err() {
                continue;
            }
            let mut peer = Peer::greet(server.wire(), &tw1);
            peer.write(&frame);
            peer.finish_writing();
            peers.push(peer);
        }
    }
    peers.iter_mut().for_each(|peer| drop(peer.drain()));
    server.stop();
}

/// Regression: kinds of frames that only servers send needed no permission, and a closure ignores kinds. In a service
/// type, kinds that end something, malformed bodies, and messages for no room needed no permission.
#[test]
fn no_kind_of_frame_reaches_a_handler_without_permission() {
    let called = Arc::new(AtomicUsize::new(0));
    let nobody = || Server::builder().authenticate(anonymous(Permissions::nothing()));
    let tw1 = AnyCodec::by_name("tw1").unwrap();
    let counter = Arc::clone(&called);
    send_each_kind(TestServer::over_tcp(nobody(), &tw1, move |_| {
        let mut counting = Counting(Arc::clone(&counter));
        move |cx: &mut Context<'_>, message: Message<'_>| counting.on_message(cx, message)
    }));
    let counter = Arc::clone(&called);
    send_each_kind(TestServer::over_tcp(nobody(), &tw1, move |_| {
        Counting(Arc::clone(&counter))
    }));
    assert_eq!(called.load(Ordering::Relaxed), 0);
}

/// Regression: a member of one room could whisper to the members of all rooms, and learn who is there.
#[test]
fn a_whisper_stays_in_its_room() {
    let tokens = TokenFolder::new();
    let [eve, staff] = ["eve", "staff"].map(|name| tokens.add(name));
    let lobby = Permissions {
        join: access(&["lobby"], &[]),
        say: access(&["lobby"], &[]),
        ..Permissions::nothing()
    };
    let known = users(&[("eve", lobby), ("staff", Permissions::everything())]);
    let server = Server::builder()
        .lanes(2)
        .authenticate(tokens.chain(known))
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| Chat::new())
        .unwrap();
    let [eve, staff] = [eve, staff].map(|token| connect(&server, Some(&token)).unwrap());
    let lobby = eve.join("lobby").named("").wait().unwrap();
    staff.join("staff").named("").wait().unwrap();
    let whisper = lobby.whisper("staff", b"psst").wait();
    assert_eq!(code(whisper), ErrorCode::NotFound);
    staff.join("lobby").named("").wait().unwrap();
    lobby.whisper("staff", b"psst").wait().unwrap();
}

/// Regression: a message that was allowed in a room was still allowed when its channel no longer meant the room.
#[test]
fn permissions_of_a_room_are_checked_again_after_it() {
    let permissions = Permissions {
        join: Access::everything(),
        say: Access::everything(),
        ..Permissions::nothing()
    };
    let builder = Server::builder().authenticate(anonymous(permissions));
    let tw1 = AnyCodec::by_name("tw1").unwrap();
    let server = TestServer::over_tcp(builder, &tw1, |_| {
        Router::new()
            .with(Chat::new())
            .otherwise(|cx: &mut Context<'_>, _: Message<'_>| cx.reply(b"called"))
    });
    let mut peer = Peer::greet(server.wire(), &tw1);
    peer.join("room", "ann").unwrap();
    let room = peer.room();
    // Twice, so that the header is known.
    for _ in 0..2 {
        peer.say(b"hello");
    }
    peer.leave().unwrap();
    peer.send(&Message::new(Kind::Say, room, b"hello"));
    peer.send(&Message::with_id(Kind::Request, room, 8, b"hello"));
    let mut refused = Vec::new();
    while refused.len() < 2 {
        let message = peer.receive().expect("both are answered");
        assert_ne!(message.payload, b"called");
        if message.kind == Kind::Error {
            refused.push(message.id);
        }
    }
    assert_eq!(refused, [0, 8]);
    drop(peer);
    server.stop();
}
