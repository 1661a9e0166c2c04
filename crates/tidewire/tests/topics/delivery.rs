//! Delivery: which subscribers get a message, how often, and in which order.

use tidewire::{
    Client, Context, HandlerResult, Kind, Message, Moment, RoomError, RoomId, Server, Service,
    SubscriptionId,
};
use tidewire_testkit::TestServer;

use crate::{heard, publish, serve, subscribe, tw1};

fn pair(topic: &str, text: &str) -> (String, String) {
    (topic.to_owned(), text.to_owned())
}

#[test]
fn each_subscription_that_matches_gets_a_message_once_even_of_one_session() {
    let server = serve(1);
    let client = Client::connect(&server.url()).wait().unwrap();
    let exact = client.subscribe("a.b").wait().unwrap();
    let one = client.subscribe("a.*").wait().unwrap();
    let more = client.subscribe("a.>").wait().unwrap();
    let all = client.subscribe(">").wait().unwrap();
    for (topic, text) in [("a.b", "1"), ("a.b.c", "2"), ("b", "3"), ("a.c", "4")] {
        client.publish(topic, text.as_bytes()).unwrap();
    }
    client.publish("a.b", b"end").unwrap();
    let end = pair("a.b", "end");
    let expected = [
        (&exact, vec![pair("a.b", "1")]),
        (&one, vec![pair("a.b", "1"), pair("a.c", "4")]),
        (
            &more,
            vec![pair("a.b", "1"), pair("a.b.c", "2"), pair("a.c", "4")],
        ),
        (
            &all,
            vec![
                pair("a.b", "1"),
                pair("a.b.c", "2"),
                pair("b", "3"),
                pair("a.c", "4"),
            ],
        ),
    ];
    for (subscription, mut messages) in expected {
        messages.push(end.clone());
        for message in messages {
            assert_eq!(heard(subscription), message, "{}", subscription.pattern());
        }
    }
    drop((exact, one, more, all));
    client.close().wait();
    let metrics = server.stop();
    // 4 for a.b, 2 for a.b.c, 1 for b, 3 for a.c, 4 for the last.
    assert_eq!((metrics.published, metrics.room_offered), (5, 14));
    assert_eq!(metrics.room_delivered, 14);
}

#[test]
fn a_publisher_gets_its_own_messages_only_if_it_subscribes() {
    let server = serve(1);
    let listener = Client::connect(&server.url()).wait().unwrap();
    let speaker = Client::connect(&server.url()).wait().unwrap();
    let news = listener.subscribe("news").wait().unwrap();
    speaker.publish("news", b"from afar").unwrap();
    assert_eq!(heard(&news), pair("news", "from afar"));
    listener.publish("news", b"my own").unwrap();
    assert_eq!(heard(&news), pair("news", "my own"));
    drop((news, listener, speaker));
    server.stop();
}

#[test]
fn after_unsubscribing_nothing_comes_until_one_subscribes_again() {
    let server = serve(1);
    let client = Client::connect(&server.url()).wait().unwrap();
    // Another client keeps the pattern, and so its alias, alive.
    let other = Client::connect(&server.url()).wait().unwrap();
    let _kept = other.subscribe("a").wait().unwrap();
    let first = client.subscribe("a").wait().unwrap();
    drop(first);
    client.publish("a", b"unheard").unwrap();
    let second = client.subscribe("a").wait().unwrap();
    client.publish("a", b"heard").unwrap();
    assert_eq!(heard(&second), pair("a", "heard"));
    client.flush().wait().unwrap();
    drop((second, client, _kept, other));
    let metrics = server.stop();
    assert_eq!(metrics.published, 2);
}

/// Every lane has subscribers and publishers. Each message arrives at all subscribers once and in order.
#[test]
fn topics_span_lanes_in_order_and_nothing_is_lost() {
    const LANES: usize = 3;
    const CLIENTS: usize = 9;
    const MESSAGES: usize = 200;
    let server = serve(LANES);
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|_| Client::connect(&server.url()).wait().unwrap())
        .collect();
    let subscriptions: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(index, client)| {
            let pattern = ["count.*", "count.>", ">"][index / LANES];
            client.subscribe(pattern).wait().unwrap()
        })
        .collect();
    for number in 0..MESSAGES {
        for (index, client) in clients.iter().enumerate() {
            let text = number.to_string();
            client
                .publish(&format!("count.{index}"), text.as_bytes())
                .unwrap();
        }
    }
    for subscription in &subscriptions {
        let mut next = [0; CLIENTS];
        for _ in 0..CLIENTS * MESSAGES {
            let (topic, text) = heard(subscription);
            let from: usize = topic.strip_prefix("count.").unwrap().parse().unwrap();
            assert_eq!(text, next[from].to_string(), "of {topic}");
            next[from] += 1;
        }
        assert_eq!(next, [MESSAGES; CLIENTS]);
    }
    drop((subscriptions, clients));
    let metrics = server.stop();
    assert_eq!(metrics.published, (CLIENTS * MESSAGES) as u64);
    assert_eq!(
        metrics.room_delivered,
        (CLIENTS * CLIENTS * MESSAGES) as u64
    );
}

/// The publisher's lane has no subscriber, so it only passes the message on.
#[test]
fn a_message_reaches_subscribers_that_are_all_on_another_lane() {
    let server = serve(2);
    let mut one = server.peer();
    let mut two = server.peer();
    let alias = subscribe(&mut one, "far.*", None).unwrap();
    publish(&mut two, "far.away", b"hello");
    let message = one.receive().unwrap();
    assert_eq!(
        (message.kind, message.channel, message.id, &*message.payload),
        (Kind::Deliver, alias, 0, &b"hello"[..])
    );
    drop((one, two));
    server.stop();
}

/// A service with rooms and topics, which publishes the payloads of messages.
#[derive(Clone, Default)]
struct Both {
    turns: usize,
}

impl Service for Both {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let topic = cx.topics().subscribe("clock.>")?;
        let room = cx.rooms().join("lobby", "ada")?.room;
        assert_ne!(topic.0, room.0);
        let not_a_room = RoomId(topic.0);
        assert_eq!(cx.rooms().say(not_a_room, b"x"), Err(RoomError::NotJoined));
        assert_eq!(cx.rooms().leave(not_a_room), Err(RoomError::NotJoined));
        assert!(cx.topics().unsubscribe(SubscriptionId(room.0)).is_err());
        cx.topics().publish("clock.second", message.payload)?;
        cx.topics().unsubscribe(topic)?;
        cx.topics().subscribe("clock.second")?;
        cx.topics().publish("clock.second", b"again")?;
        self.turns = 1;
        Ok(())
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if std::mem::take(&mut self.turns) > 0 {
            cx.topics().publish("clock.second", b"of a turn").unwrap();
        }
        None
    }
}

#[test]
fn services_may_subscribe_publish_and_have_rooms_as_well() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Both::default());
    let mut peer = server.peer();
    peer.send(&Message::new(Kind::OneWay, 0, b"tick"));
    for expected in [&b"again"[..], b"of a turn"] {
        let message = peer.receive().unwrap();
        assert_eq!((message.kind, &*message.payload), (Kind::Deliver, expected));
    }
    drop(peer);
    let metrics = server.stop();
    assert_eq!(metrics.published, 3);
    // Unsubscribing dropped the first message before it was written.
    assert_eq!(metrics.room_dropped[2], 1);
}
