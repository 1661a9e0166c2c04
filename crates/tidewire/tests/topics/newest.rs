//! Subscriptions with a wildcard that begin with the newest messages of each topic.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tidewire::{Backoff, Client, History, Limits, PubSub, Server, Subscription, TopicEvent};
use tidewire_testkit::{DEADLINE, TestServer};

use crate::{heard, tw1};

fn keeping(builder: tidewire::ServerBuilder) -> TestServer {
    TestServer::over_tcp(builder, &tw1(), |_| {
        PubSub::new().history("px.>", History::last(3))
    })
}

fn pair(topic: &str, text: &str) -> (String, String) {
    (topic.to_owned(), text.to_owned())
}

/// Ends a subscription, and waits until the server has ended it.
fn end(client: &Client, subscription: Subscription) {
    drop(subscription);
    client.flush().wait().unwrap();
}

#[test]
fn a_subscriber_of_a_wildcard_begins_with_the_last_value_of_each_topic() {
    const SYMBOLS: usize = 1_000;
    let server = keeping(Server::builder());
    let client = Client::connect(&server.url()).wait().unwrap();
    let symbol = |number: usize| format!("px.s{number:04}.eur");
    for round in 0..2 {
        for number in 0..SYMBOLS {
            let text = format!("{round}.{number}");
            client.publish(&symbol(number), text.as_bytes()).unwrap();
        }
    }
    client.publish("px.other", b"no").unwrap();
    client.publish("free.s0001.eur", b"not kept").unwrap();
    client.flush().wait().unwrap();
    let subscription = client.subscribe("*.*.eur").last(1).wait().unwrap();
    client.publish("px.s0500.eur", b"live").unwrap();
    for number in 0..SYMBOLS {
        let text = format!("1.{number}");
        assert_eq!(heard(&subscription), pair(&symbol(number), &text));
    }
    assert_eq!(heard(&subscription), pair("px.s0500.eur", "live"));
    end(&client, subscription);
    // More than one of each, and none without being asked.
    let subscription = client.subscribe("px.s0500.*").last(2).wait().unwrap();
    for text in ["1.500", "live"] {
        assert_eq!(heard(&subscription), pair("px.s0500.eur", text));
    }
    end(&client, subscription);
    let subscription = client.subscribe("px.>").wait().unwrap();
    client.publish("px.s0007.eur", b"new").unwrap();
    assert_eq!(heard(&subscription), pair("px.s0007.eur", "new"));
    end(&client, subscription);
    client.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.history_replayed, SYMBOLS as u64 + 2);
    assert_eq!((metrics.room_offered, metrics.room_delivered), (2, 2));
}

/// A publisher of another lane may look its topic up before the subscription, and record its message after the
/// subscriber has read the histories. The message must still come.
#[test]
fn no_message_is_missing_between_the_newest_and_the_live_ones() {
    const TOPICS: usize = 8;
    const ROUNDS: usize = 60;
    let server = keeping(Server::builder().lanes(4));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let publishers: Vec<_> = (0..3)
            .map(|publisher| {
                let (server, is_over) = (&server, &is_over);
                scope.spawn(move || {
                    let client = Client::connect(&server.url()).wait().unwrap();
                    let mut number = 0_u64;
                    while !is_over.load(Ordering::Relaxed) {
                        number += 1;
                        for topic in 0..TOPICS {
                            let topic = format!("px.{publisher}.{topic}");
                            let text = number.to_string();
                            client.publish(&topic, text.as_bytes()).unwrap();
                        }
                        client.flush().wait().unwrap();
                    }
                    client.close().wait();
                })
            })
            .collect();
        let client = Client::connect(&server.url()).wait().unwrap();
        // One pattern has a subscriber all the time, so that its messages are on their way to all lanes.
        let other = Client::connect(&server.url()).wait().unwrap();
        let held = other.subscribe("px.0.*").wait().unwrap();
        for round in 0..ROUNDS {
            let pattern = format!("px.{}.*", round % 3);
            let subscription = client.subscribe(&pattern).last(1).wait().unwrap();
            // The first and the greatest number of each topic.
            let mut seen = BTreeMap::<String, (u64, u64)>::new();
            for _ in 0..TOPICS * 20 {
                let (topic, text) = heard(&subscription);
                let number: u64 = text.parse().unwrap();
                let (first, greatest) = seen.entry(topic).or_insert((number, number));
                // A message that was on its way between lanes comes once more.
                if number > *first {
                    assert_eq!(number, *greatest + 1, "round {round}, first {first}");
                    *greatest = number;
                }
            }
            end(&client, subscription);
        }
        drop(held);
        other.close().wait();
        is_over.store(true, Ordering::Relaxed);
        for publisher in publishers {
            publisher.join().unwrap();
        }
        client.close().wait();
    });
    let metrics = server.stop();
    let dropped: u64 = metrics.room_dropped.iter().sum();
    assert_eq!(metrics.room_offered, metrics.room_delivered + dropped);
}

/// They were refused, which ended a subscription that was resumed, after a stranger had published long messages.
#[test]
fn newest_messages_that_do_not_fit_an_output_are_told_as_missing_and_live_ones_come() {
    let mut limits = Limits::default();
    limits.connections.set_queue_bytes_max(16 * 1024);
    let server = keeping(Server::builder().limits(limits));
    let client = Client::connect(&server.url()).wait().unwrap();
    for number in 0..20 {
        let topic = format!("px.{number}");
        client.publish(&topic, &[b'x'; 1_000]).unwrap();
        client.flush().wait().unwrap();
    }
    let subscription = client.subscribe("px.>").last(1).wait().unwrap();
    client.publish("px.1", b"live").unwrap();
    let told = subscription.next_event().wait_for(DEADLINE);
    assert_eq!(told, Some(TopicEvent::Recovered { missing: None }));
    assert_eq!(heard(&subscription), pair("px.1", "live"));
    end(&client, subscription);
    client.close().wait();
    let metrics = server.stop();
    assert_eq!((metrics.room_offered, metrics.room_delivered), (1, 1));
}

#[test]
fn after_a_reconnect_the_newest_messages_come_again() {
    // The server ends the connection of a client that publishes to this topic.
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| {
        let service = PubSub::new().history("px.>", History::last(3));
        service.on_publish(|cx, topic, _| {
            if topic == "cut" {
                cx.close();
            }
            Ok(())
        })
    });
    let publisher = Client::connect(&server.url()).wait().unwrap();
    for (topic, text) in [("px.a", "1"), ("px.b", "2")] {
        publisher.publish(topic, text.as_bytes()).unwrap();
    }
    publisher.flush().wait().unwrap();
    let client = Client::builder()
        .reconnect(Backoff::default())
        .connect(&server.url())
        .wait()
        .unwrap();
    let subscription = client.subscribe("px.*").last(1).wait().unwrap();
    for (topic, text) in [("px.a", "1"), ("px.b", "2")] {
        assert_eq!(heard(&subscription), pair(topic, text));
    }
    publisher.publish("px.a", b"3").unwrap();
    assert_eq!(heard(&subscription), pair("px.a", "3"));
    client.publish("cut", b"").unwrap();
    let mut next = || subscription.next_event().wait_for(DEADLINE).unwrap();
    let events: Vec<_> = std::iter::repeat_with(&mut next).take(4).collect();
    assert!(
        matches!(events[0], TopicEvent::Interrupted { .. }),
        "{events:?}"
    );
    assert!(matches!(events[1], TopicEvent::Resumed), "{events:?}");
    assert!(
        matches!(events[2], TopicEvent::Recovered { missing: None }),
        "{events:?}"
    );
    assert!(
        matches!(&events[3], TopicEvent::Message(it) if &*it.topic == "px.a" && it.payload == b"3"),
        "{events:?}"
    );
    assert_eq!(heard(&subscription), pair("px.b", "2"));
    drop((subscription, publisher));
    client.close().wait();
    server.stop();
}
