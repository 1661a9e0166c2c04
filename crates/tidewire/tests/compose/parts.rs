//! Methods, rooms and topics on one server.

use std::sync::mpsc;

use tidewire::{
    Chat, Client, CloseReason, Context, ErrorCode, HandlerError, HandlerResult, Kind, Limits,
    Message, Part, PubSub, RequestError, Router, Server, Service, TopicEvent,
};
use tidewire_testkit::fixtures::{codec, lines, tw1};
use tidewire_testkit::{DEADLINE, TestServer};

use crate::message;

fn everything(_: usize) -> Router {
    Router::new()
        .on("echo", |cx, message| cx.reply(message.payload))
        .with(Chat::new())
        .with(PubSub::new())
}

fn refused(result: Result<impl Sized, RequestError>) -> ErrorCode {
    match result {
        Err(RequestError::Refused { code, .. }) => code,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[test]
fn one_server_has_methods_rooms_and_topics() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), everything);
    let [ada, bob] = [(); 2].map(|()| Client::connect(&server.url()).wait().unwrap());
    let echoed = ada.request(b"hi").method("echo").wait().unwrap();
    assert_eq!(echoed.payload(), b"hi");
    assert_eq!(
        refused(ada.request(b"").method("none").wait()),
        ErrorCode::MethodNotFound
    );

    let room = ada.join("lobby").named("ada").wait().unwrap();
    bob.join("lobby").named("bob").wait().unwrap();
    room.say(b"hello").unwrap();
    assert_eq!(message(&bob, Kind::Deliver).payload, b"hello");
    assert_eq!(room.members().wait().unwrap().len(), 2);

    let news = bob.subscribe("news.>").wait().unwrap();
    ada.publish("news.today", b"rain").unwrap();
    let TopicEvent::Message(today) = news.next_event().wait_for(DEADLINE).unwrap() else {
        panic!("no message");
    };
    assert_eq!(today.payload, b"rain");
    ada.flush().wait().unwrap();
    // No part handles a request without a name for a room that the session is not in.
    assert_eq!(
        refused(bob.request_on(room.id().0 + 1_000)),
        ErrorCode::MethodNotFound
    );
    ada.close().wait();
    bob.close().wait();
    server.stop();
}

trait RequestOn {
    fn request_on(&self, channel: u16) -> Result<tidewire::Reply, RequestError>;
}

impl RequestOn for Client {
    fn request_on(&self, channel: u16) -> Result<tidewire::Reply, RequestError> {
        self.request(&[1]).channel(channel).wait()
    }
}

#[test]
fn lines_reach_the_chat_of_a_composed_server() {
    let server = TestServer::over_tcp(Server::builder(), &lines(), everything);
    let (mut ada, mut bob) = (server.peer(), server.peer());
    ada.join("lobby", "ada").unwrap();
    bob.join("lobby", "bob").unwrap();
    ada.say(b"hello");
    assert_eq!(bob.next_message(), ("ada".to_owned(), b"hello".to_vec()));
    drop((ada, bob));
    server.stop();
}

/// Over UVRPC a name is a method if the method exists, otherwise a topic.
#[test]
fn methods_come_before_topics_where_both_are_names() {
    let builder = Server::builder().trust_datagram_peers(true);
    let server = TestServer::over_udp(builder, &codec("uvrpc"), everything);
    let builder = Client::builder().codec(codec("uvrpc"));
    let client = builder.connect(&server.url()).wait().unwrap();
    let reply = client.request(b"hi").method("echo").wait().unwrap();
    assert_eq!(reply.payload(), b"hi");
    let reply = client.request(b"rain").method("news").wait().unwrap();
    assert_eq!(reply.payload(), b"", "published");
    client.close().wait();
    assert_eq!(server.stop().published, 1);
}

#[test]
fn middleware_sees_every_message_in_order() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| {
        everything(0)
            .before(|_, message| match message.kind {
                Kind::Join => Err(HandlerError::new(ErrorCode::LimitReached, "first")),
                _ => Ok(()),
            })
            .before(|_, message| match message.kind {
                Kind::Join => Err(HandlerError::new(ErrorCode::Internal, "second")),
                Kind::Subscribe => Err(HandlerError::new(ErrorCode::Unsupported, "second")),
                _ => Ok(()),
            })
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    assert!(client.request(b"").method("echo").wait().is_ok());
    assert_eq!(
        refused(client.join("a").named("ada").wait()),
        ErrorCode::LimitReached
    );
    assert_eq!(
        refused(client.subscribe("a").wait()),
        ErrorCode::Unsupported
    );
    client.close().wait();
    assert_eq!(server.stop().refused, 2);
}

#[test]
fn topics_are_authorized() {
    let forbidden = || HandlerError::new(ErrorCode::Unsupported, "not yours");
    let server = TestServer::over_tcp(Server::builder(), &tw1(), move |_| {
        PubSub::new()
            .on_subscribe(move |_, pattern| match pattern.starts_with("public") {
                true => Ok(()),
                false => Err(forbidden()),
            })
            .on_publish(move |_, topic, payload| {
                match topic == "public.write" && payload != b"bad" {
                    true => Ok(()),
                    false => Err(forbidden()),
                }
            })
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    assert_eq!(
        refused(client.subscribe(">").wait()),
        ErrorCode::Unsupported
    );
    let public = client.subscribe("public.>").wait().unwrap();
    for (topic, payload) in [
        ("public.read", &b"x"[..]),
        ("public.write", b"bad"),
        ("public.write", b"good"),
    ] {
        client.publish(topic, payload).unwrap();
    }
    let TopicEvent::Message(heard) = public.next_event().wait_for(DEADLINE).unwrap() else {
        panic!("no message");
    };
    assert_eq!(heard.payload, b"good");
    client.close().wait();
    let metrics = server.stop();
    assert_eq!((metrics.published, metrics.refused), (1, 3));
}

/// Regression: the hook ran for messages that were then refused.
#[test]
fn the_hook_sees_only_messages_that_will_be_published() {
    let mut limits = Limits::default();
    limits.connections.set_frame_bytes_max(1_000);
    let (sender, seen) = mpsc::channel();
    let service = PubSub::new().on_publish(move |_, topic, _| {
        sender.send(topic.to_owned()).unwrap();
        Ok(())
    });
    let builder = Server::builder().limits(limits);
    let server = TestServer::over_tcp(builder, &tw1(), |_| service.clone());
    let client = Client::connect(&server.url()).wait().unwrap();
    client.publish("too.large", &[b'x'; 980]).unwrap();
    client.publish("good", b"x").unwrap();
    let refused = client.flush().wait().unwrap_err();
    assert!(matches!(refused, RequestError::Refused { .. }), "{refused}");
    client.close().wait();
    let metrics = server.stop();
    assert_eq!((metrics.published, metrics.refused), (1, 1));
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), ["good"]);
}

/// Every part sees sessions open and close, and only one part takes a message.
#[test]
fn parts_are_told_of_sessions_and_take_messages_in_order() {
    struct Counter {
        takes: &'static [u8],
        open: u32,
    }

    impl Service for Counter {
        fn on_open(&mut self, _: &mut Context<'_>) {
            self.open += 1;
        }

        fn on_message(&mut self, cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
            cx.reply(&[self.takes, format!(" {}", self.open).as_bytes()].concat())
        }

        fn on_close(&mut self, _: &mut Context<'_>, _: CloseReason) {
            self.open -= 1;
        }
    }

    impl Part for Counter {
        fn takes(&self, _: &Context<'_>, message: &Message<'_>) -> bool {
            message.payload.starts_with(self.takes)
        }
    }

    let builder = Server::builder().lanes(1);
    let server = TestServer::over_tcp(builder, &tw1(), |_| {
        let part = |takes| Counter { takes, open: 0 };
        Router::new()
            .with(part(b"a"))
            .with(part(b"ab"))
            .with(part(b"b"))
            .otherwise(|cx, _| cx.reply(b"otherwise"))
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    let other = Client::connect(&server.url()).wait().unwrap();
    let ask = |payload: &[u8]| client.request(payload).wait().unwrap().into_payload();
    assert_eq!(ask(b"abc"), b"a 2");
    other.close().wait();
    server.wait_for("it has left", |metrics| metrics.sessions_closed() == 1);
    assert_eq!(ask(b"b"), b"b 1");
    assert_eq!(ask(b"c"), b"otherwise");
    client.close().wait();
    server.stop();
}
