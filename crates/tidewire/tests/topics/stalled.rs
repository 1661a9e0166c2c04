//! Events after a stall of the application, by the policy of the client or of the subscription.

use std::collections::HashMap;

use tidewire::{Client, Policy, Subscription, TopicEvent, WhenEventsFull};
use tidewire_testkit::TestServer;

use super::unread::{PUBLISHED, account, flood, impatient, wait_for};
use super::{publish, serve};

const TOPICS: u64 = 100;
const ROUNDS: u64 = 50;

/// The events of a subscription after the client has received all frames.
struct ReceivedEvents {
    /// Topic and number, in the order of their delivery.
    messages: Vec<(String, u64)>,
    gaps: u64,
    lost: u64,
}

/// Publishes the numbers of the rounds to every topic, and waits until the client has received all of them for each of
/// its `subscriptions`.
fn publish_rounds(server: &TestServer, client: &Client, subscriptions: u64) {
    let before = client.metrics().frames_in;
    let mut peer = server.peer();
    for round in 1..=ROUNDS {
        for topic in 0..TOPICS {
            publish(&mut peer, &format!("s.{topic}"), &round.to_le_bytes());
        }
        super::ask(&mut peer, tidewire::Kind::Request, 0, b"").unwrap();
    }
    let frames = before + TOPICS * ROUNDS * subscriptions;
    wait_for("all has come", || client.metrics().frames_in >= frames);
    // The reply comes after the messages, so the messages are in their queues.
    client.request(b"").wait().unwrap();
}

/// Takes all waiting events. Conservation gives the end: each published message is delivered or reported as missing.
fn hear(subscription: &Subscription) -> ReceivedEvents {
    let mut heard = ReceivedEvents {
        messages: Vec::new(),
        gaps: 0,
        lost: 0,
    };
    while heard.messages.len() as u64 + heard.gaps + heard.lost < TOPICS * ROUNDS {
        match subscription.next_event().wait() {
            TopicEvent::Message(message) => {
                let number = message.payload.try_into().map(u64::from_le_bytes);
                heard
                    .messages
                    .push((message.topic.to_string(), number.unwrap()));
            }
            TopicEvent::Gap { lost } => heard.gaps += lost,
            TopicEvent::Lost { count } => heard.lost += count,
            other => panic!("{other:?}"),
        }
    }
    let all = heard.messages.len() as u64 + heard.gaps + heard.lost;
    assert_eq!(all, TOPICS * ROUNDS, "delivered + told as missing");
    heard
}

/// Regression: the queue kept its oldest events, so a reader that came back got old messages for a long time.
#[test]
fn after_a_stall_drop_oldest_gives_the_newest_and_how_many_are_missing() {
    let server = serve(1);
    let client = Client::connect(&server.url()).wait().unwrap();
    let subscription = client.subscribe("s.>").events_max(250);
    let subscription = subscription.wait().unwrap();
    publish_rounds(&server, &client, 1);
    let first = subscription.next_event().wait();
    let missing = TOPICS * ROUNDS - 250;
    assert_eq!(first, TopicEvent::Lost { count: missing });
    for place in missing..TOPICS * ROUNDS {
        let (topic, round) = (format!("s.{}", place % TOPICS), place / TOPICS + 1);
        let TopicEvent::Message(message) = subscription.next_event().wait() else {
            panic!("no message at {place}");
        };
        assert_eq!(
            (&*message.topic, &message.payload[..]),
            (&*topic, &round.to_le_bytes()[..])
        );
    }
    assert_eq!(client.metrics().events_dropped, missing);
    client.close().wait();
}

/// Regression: a client read all input, so the server never noticed that the application was slow, and its policy never
/// acted.
#[test]
fn pausing_reading_has_the_server_conflate() {
    let server = impatient();
    let client = Client::connect(&server.url()).wait().unwrap();
    let subscription = client
        .subscribe("a.b")
        .policy(Policy::Conflate)
        .when_events_full(WhenEventsFull::PauseReading)
        .event_bytes_max(100_000);
    let subscription = subscription.wait().unwrap();
    flood(&mut server.peer(), "a.b");
    wait_for("reading pauses", || client.metrics().reads_paused > 0);
    let [delivered, gaps, lost] = account(&subscription);
    assert!(gaps > 0, "the server did not conflate");
    assert_eq!((delivered + gaps, lost), (PUBLISHED, 0));
    // The client's other queue, with the default policy, did not pause reading.
    client.request(b"").wait().unwrap();
    client.close().wait();
}

#[test]
fn after_a_stall_conflation_gives_the_latest_of_each_topic() {
    let server = serve(1);
    let client = Client::connect(&server.url()).wait().unwrap();
    let subscription = client
        .subscribe("s.>")
        .when_events_full(WhenEventsFull::ConflateByTopic)
        .events_max(150);
    let subscription = subscription.wait().unwrap();
    publish_rounds(&server, &client, 1);
    let heard = hear(&subscription);
    assert!(heard.lost > 0);
    assert_eq!(client.metrics().events_dropped, heard.lost);
    let mut latest = HashMap::new();
    for (topic, round) in heard.messages {
        let before = latest.insert(topic, round);
        assert!(before < Some(round), "a topic went back");
    }
    assert_eq!(latest.len() as u64, TOPICS);
    assert!(latest.values().all(|round| *round == ROUNDS));
    client.close().wait();
}

#[test]
fn each_subscription_has_its_own_policy_and_bounds() {
    let server = serve(1);
    let client = Client::builder()
        .events_max(10)
        .when_events_full(WhenEventsFull::DropOldest);
    let client = client.connect(&server.url()).wait().unwrap();
    let usual = client.subscribe("s.>").wait().unwrap();
    let first = client
        .subscribe("s.*")
        .when_events_full(WhenEventsFull::DropNewest)
        .events_max(20);
    let first = first.wait().unwrap();
    let all = client.subscribe(">").events_max(1 << 20).wait().unwrap();
    publish_rounds(&server, &client, 3);
    let rounds = |heard: ReceivedEvents| {
        let rounds: Vec<u64> = heard.messages.iter().map(|(_, round)| *round).collect();
        (rounds, heard.lost)
    };
    let total = TOPICS * ROUNDS;
    assert_eq!(rounds(hear(&usual)), (vec![ROUNDS; 10], total - 10));
    assert_eq!(rounds(hear(&first)), (vec![1; 20], total - 20));
    let (heard, lost) = rounds(hear(&all));
    assert_eq!((heard.len() as u64, lost), (total, 0));
    client.close().wait();
}
