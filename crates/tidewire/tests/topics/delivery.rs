//! Delivery: which subscribers get a message, how often, and in which order.

use tidewire::{
    Client, Context, HandlerResult, History, Kind, Message, Moment, PubSub, RoomError, RoomId,
    Server, Service, Subscription, SubscriptionId,
};
use tidewire_testkit::{TestServer, wait_until};

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
fn a_wildcard_may_stand_in_any_place() {
    let server = serve(2);
    let client = Client::connect(&server.url()).wait().unwrap();
    let patterns = ["room.*.heat", "*.7.*", "*.*.>", "*.8.heat", "room.*.>"];
    let subscriptions = patterns.map(|pattern| client.subscribe(pattern).wait().unwrap());
    let topics = [
        "room.7.heat",
        "room.8.heat",
        "room.8",
        "hall.7.light",
        "room.7.heat.max",
    ];
    for topic in topics {
        client.publish(topic, b"x").unwrap();
    }
    client.publish("room.8.heat", b"end").unwrap();
    let expected: [&[usize]; 5] = [&[0, 1], &[0, 3], &[0, 1, 3, 4], &[1], &[0, 1, 4]];
    for (subscription, numbers) in subscriptions.iter().zip(expected) {
        for number in numbers {
            let message = pair(topics[*number], "x");
            assert_eq!(heard(subscription), message, "{}", subscription.pattern());
        }
        if subscription.pattern() != "*.7.*" {
            assert_eq!(heard(subscription), pair("room.8.heat", "end"));
        }
    }
    drop(subscriptions);
    client.close().wait();
    let metrics = server.stop();
    assert_eq!((metrics.published, metrics.room_offered), (6, 16));
    assert_eq!(metrics.room_delivered, 16);
}

/// The subscriptions of a topic are cached. A change of them takes effect at once, for every topic that is cached.
#[test]
fn subscriptions_that_change_take_effect_for_all_cached_topics() {
    const TOPICS: usize = 600;
    let server = serve(1);
    let (publisher, subscriber) = (
        Client::connect(&server.url()).wait().unwrap(),
        Client::connect(&server.url()).wait().unwrap(),
    );
    let topic = |number: usize| format!("t.{number}");
    let publish_all = |round: &str| {
        for number in 0..TOPICS {
            publisher.publish(&topic(number), round.as_bytes()).unwrap();
        }
        publisher.flush().wait().unwrap();
    };
    let hear_all = |subscription: &Subscription, round: &str| {
        for number in 0..TOPICS {
            assert_eq!(heard(subscription), pair(&topic(number), round));
        }
    };
    publish_all("nobody");
    let end = subscriber.subscribe("t.*").wait().unwrap();
    publish_all("one");
    hear_all(&end, "one");
    let middle = subscriber.subscribe("*.*").wait().unwrap();
    publish_all("two");
    hear_all(&end, "two");
    hear_all(&middle, "two");
    drop(end);
    subscriber.flush().wait().unwrap();
    publish_all("three");
    hear_all(&middle, "three");
    for client in [publisher, subscriber] {
        client.close().wait();
    }
    let metrics = server.stop();
    assert_eq!(metrics.room_offered, 4 * TOPICS as u64);
    assert_eq!(metrics.room_delivered, 4 * TOPICS as u64);
}

/// A topic with more matches than a cached one may have is looked up again whenever another one was between.
#[test]
fn a_topic_that_very_many_patterns_match_takes_turns_with_another() {
    let server = serve(1);
    let client = Client::connect(&server.url()).wait().unwrap();
    let deep = ["s"; 16].join(".");
    let prefixes = (0..16).map(|count| [vec!["s"; count], vec![">"]].concat().join("."));
    let patterns: Vec<_> = prefixes.chain([deep.clone()]).collect();
    let subscriptions: Vec<_> = patterns
        .iter()
        .map(|pattern| client.subscribe(pattern).wait().unwrap())
        .collect();
    for round in ["1", "2", "3"] {
        client.publish(&deep, round.as_bytes()).unwrap();
        client.publish("other", round.as_bytes()).unwrap();
    }
    for (number, subscription) in subscriptions.iter().enumerate() {
        for round in ["1", "2", "3"] {
            assert_eq!(heard(subscription), pair(&deep, round));
            if number == 0 {
                assert_eq!(heard(subscription), pair("other", round));
            }
        }
    }
    drop(subscriptions);
    client.close().wait();
    let metrics = server.stop();
    assert_eq!((metrics.room_offered, metrics.room_delivered), (54, 54));
}

/// A refused topic leaves no topic as the recent one. Otherwise the next message of the topic before it would not reach
/// its history.
#[test]
fn a_refused_topic_between_two_messages_of_one_topic_changes_nothing() {
    let builder = Server::builder();
    let server = TestServer::over_tcp(builder, &tw1(), |_| {
        PubSub::new().history("state.>", History::last(10))
    });
    let mut peer = server.peer();
    for (topic, payload) in [("state.a", b"1"), ("state..a", b"x"), ("state.a", b"2")] {
        publish(&mut peer, topic, payload);
    }
    let client = Client::connect(&server.url()).wait().unwrap();
    wait_until("both are published", || {
        (server.server().inspector().metrics().published == 2).then_some(())
    });
    let subscription = client.subscribe("state.a").last(10).wait().unwrap();
    for payload in ["1", "2"] {
        assert_eq!(heard(&subscription), pair("state.a", payload));
    }
    drop((subscription, peer));
    client.close().wait();
    let metrics = server.stop();
    assert_eq!((metrics.published, metrics.refused), (2, 1));
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
