//! Messages without a reply: their confirmation by a flush, and their fate at the drop of a client.

use std::time::Duration;

use tidewire::{
    Backoff, Chat, Client, ErrorCode, Event, HandlerError, PubSub, RequestError, Server,
    Subscription, TopicEvent,
};
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message};
use tidewire_testkit::fixtures::{echo, tw1};
use tidewire_testkit::{DEADLINE, TestServer, wait_until};

use super::relay::Relay;

const MESSAGES: u64 = 10;
const PAYLOAD: &[u8] = b"lost or not";

fn persistent(url: &str) -> Client {
    let backoff = Backoff {
        first: Duration::from_millis(1),
        max: Duration::from_millis(1),
    };
    Client::builder()
        .reconnect(backoff)
        .connect(url)
        .wait()
        .unwrap()
}

/// Waits until the client has opened its connection number `count`.
fn wait_for_open(client: &Client, count: usize) {
    let mut opened = 0;
    while opened < count {
        let event = client.next_event().wait_for(DEADLINE).unwrap();
        opened += usize::from(matches!(event, Event::Opened { .. }));
    }
}

/// Takes messages until there are `count`.
fn take(subscription: &Subscription, count: u64) {
    let mut taken = 0;
    while taken < count {
        match subscription.next_event().wait_for(DEADLINE).unwrap() {
            TopicEvent::Message(message) => {
                assert_eq!(message.payload, PAYLOAD);
                taken += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Loses messages with a connection, and checks that one flush on the next connection reports the loss.
fn lose(relay: &Relay, client: &Client, sample: &Message<'_>, send: impl Fn()) {
    wait_for_open(client, 1);
    let mut frame = Vec::new();
    tw1().encode(sample, &mut frame).unwrap();
    relay.swallow();
    for _ in 0..MESSAGES {
        send();
    }
    let all = frame.len() * MESSAGES as usize;
    wait_until("all messages are lost", || {
        (relay.swallowed() >= all).then_some(())
    });
    relay.cut();
    wait_for_open(client, 1);
    let told = client.flush().wait().unwrap_err();
    assert_eq!(told, RequestError::MayBeLost { messages: MESSAGES });
    assert!(told.to_string().contains("up to 10 messages may be lost"));
    client.flush().wait().expect("it is told once");
}

/// Regression: `Ok`, `Ok`, and the subscriber had nothing.
#[test]
fn a_flush_on_the_next_connection_reports_messages_lost_with_the_last() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let relay = Relay::to(&server.url());
    let subscriber = Client::connect(&server.url()).wait().unwrap();
    let subscription = subscriber.subscribe("t").wait().unwrap();
    let client = persistent(&relay.url());
    let sample = Message::new(Kind::Publish, 0, PAYLOAD).with_name("t");
    let publish = || client.publish("t", PAYLOAD).unwrap();
    lose(&relay, &client, &sample, publish);
    for _ in 0..MESSAGES {
        publish();
    }
    client
        .flush()
        .wait()
        .expect("all went over this connection");
    take(&subscription, MESSAGES);
    drop((client, subscription, subscriber));
    let metrics = server.stop();
    assert_eq!(metrics.room_delivered, MESSAGES);
}

#[test]
fn a_flush_tells_of_lost_one_way_messages() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let relay = Relay::to(&server.url());
    let client = persistent(&relay.url());
    let sample = Message::new(Kind::OneWay, 0, PAYLOAD);
    lose(&relay, &client, &sample, || {
        client.send(PAYLOAD).unwrap();
    });
}

#[test]
fn a_flush_reports_lost_messages_to_a_room() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Chat::new());
    let relay = Relay::to(&server.url());
    let client = persistent(&relay.url());
    let room = client.join("lobby").named("ann").wait().unwrap();
    let sample = Message::new(Kind::Say, room.id().0, PAYLOAD);
    lose(&relay, &client, &sample, || {
        room.say(PAYLOAD).unwrap();
    });
}

/// A flush that fails with its connection reports the loss, so the next flush does not.
#[test]
fn a_loss_that_a_pending_flush_has_told_is_not_told_again() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let relay = Relay::to(&server.url());
    let client = persistent(&relay.url());
    wait_for_open(&client, 1);
    relay.swallow();
    client.publish("t", PAYLOAD).unwrap();
    let pending = client.flush();
    let mut frames = Vec::new();
    let publish = Message::new(Kind::Publish, 0, PAYLOAD).with_name("t");
    tw1().encode(&publish, &mut frames).unwrap();
    let flush = Message::with_id(Kind::Request, 0, 1, b"");
    tw1().encode(&flush, &mut frames).unwrap();
    wait_until("both are lost", || {
        (relay.swallowed() >= frames.len()).then_some(())
    });
    relay.cut();
    let told = pending.wait().unwrap_err();
    assert!(matches!(told, RequestError::Closed(_)), "{told}");
    wait_for_open(&client, 1);
    client.flush().wait().expect("it is told once");
}

/// Regression: a flush was `Ok` although the publication before it was refused.
#[test]
fn a_flush_tells_that_a_publication_before_it_was_refused() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| {
        PubSub::new().on_publish(|_, topic, _| match topic {
            "secret" => Err(HandlerError::new(ErrorCode::Forbidden, "no")),
            _ => Ok(()),
        })
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    client.publish("open", PAYLOAD).unwrap();
    client.flush().wait().unwrap();
    client.publish("secret", PAYLOAD).unwrap();
    match client.flush().wait() {
        Err(RequestError::Refused { code, text, .. }) => {
            assert_eq!(code, ErrorCode::Forbidden);
            assert!(
                text.starts_with("a message before this flush was refused: "),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
    client.flush().wait().expect("it is told once");
}

/// Regression: the lane ended before it had connected. All was lost in 17 of 20 runs.
#[test]
fn a_lazy_client_that_is_dropped_at_once_has_sent_its_messages() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let subscriber = Client::connect(&server.url()).wait().unwrap();
    let subscription = subscriber.subscribe("t").wait().unwrap();
    for count in [1, 1_000] {
        let client = Client::builder()
            .linger(DEADLINE)
            .connect_lazy(&server.url())
            .unwrap();
        for _ in 0..count {
            client.publish("t", PAYLOAD).unwrap();
        }
        drop(client);
        take(&subscription, count);
    }
    drop((subscription, subscriber));
    let metrics = server.stop();
    assert_eq!(metrics.room_delivered, 1_001);
}

/// Without a wait, unread input resets the connection, and bytes that the server has not read are lost.
#[test]
fn a_dropped_client_has_sent_more_than_the_socket_takes_at_once() {
    const LARGE: usize = 10_000;
    const COUNT: usize = 500;
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let subscriber = Client::connect(&server.url()).wait().unwrap();
    let subscription = subscriber.subscribe("t").wait().unwrap();
    let client = Client::builder().linger(DEADLINE);
    let client = client.connect(&server.url()).wait().unwrap();
    let own = client.subscribe("t").wait().unwrap();
    for _ in 0..COUNT {
        while client.publish("t", &[7; LARGE]).is_err() {
            std::thread::yield_now();
        }
    }
    drop((own, client));
    for _ in 0..COUNT {
        match subscription.next_event().wait_for(DEADLINE).unwrap() {
            TopicEvent::Message(message) => assert_eq!(message.payload.len(), LARGE),
            other => panic!("{other:?}"),
        }
    }
    drop((subscription, subscriber));
    let _conserved = server.stop();
}

/// If the drop waited, it would wait for ever.
#[test]
fn a_drop_waits_neither_for_confirmed_messages_nor_without_a_linger() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let relay = Relay::to(&server.url());
    let connect = |linger| {
        let builder = Client::builder().linger(linger);
        builder.connect(&relay.url()).wait().unwrap()
    };
    let confirmed = connect(Duration::MAX);
    confirmed.publish("t", PAYLOAD).unwrap();
    confirmed.flush().wait().unwrap();
    let hasty = connect(Duration::ZERO);
    relay.swallow();
    hasty.publish("t", PAYLOAD).unwrap();
    drop((confirmed, hasty));
    relay.cut();
    let _conserved = server.stop();
}
