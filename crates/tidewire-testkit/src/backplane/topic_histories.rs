//! The behaviours of histories of topics that rooms do not have.

use std::time::Duration;

use tidewire::{Client, History, TopicEvent};

use super::Engine;
use super::histories::{Reader, publish, topics_with_history};
use crate::wait::{DEADLINE, wait_until};

/// A topic that keeps its latest value: a subscriber at any node gets it, and the value is published at any node, too.
pub fn the_last_value_of_a_topic_is_the_same_on_all_nodes<E: Engine>(engine: &mut E) {
    let servers =
        ["one", "two", "three"].map(|id| topics_with_history(engine, id, History::last(1)));
    let clients = servers
        .each_ref()
        .map(|server| Client::connect(&server.url()).wait().expect("a server"));
    let mut near = Reader::subscribe(&servers[0], "state.door", None);
    for round in 0..3 {
        for (index, client) in clients.iter().enumerate() {
            let value = format!("{round} by {index}");
            publish(client, "state.door", &value);
            // The value has its place in the order now, so every later subscriber receives it.
            assert_eq!(near.hear(), value);
            for server in &servers {
                let mut reader = Reader::subscribe(server, "state.door", None);
                assert_eq!(reader.hear(), value);
                assert_eq!(reader.position, near.position);
                assert_eq!(reader.lost, 0);
            }
        }
    }
    drop((near, clients));
    for server in servers {
        assert_eq!(server.stop().backplane_lost, 0);
    }
}

/// Subscribers of a wildcard get each message of a topic with a history once, without a position, on all nodes. A
/// subscriber of the topic itself gets each once, too, from the stream.
pub fn wildcards_get_live_messages_of_kept_topics_once<E: Engine>(engine: &mut E) {
    const MESSAGES: usize = 50;
    let servers = ["one", "two"].map(|id| topics_with_history(engine, id, History::last(100)));
    let author = Client::connect(&servers[0].url()).wait().expect("a server");
    let mut exact = servers
        .each_ref()
        .map(|server| Reader::subscribe(server, "state.door", None));
    let wildcards = servers.each_ref().map(|server| {
        let client = Client::connect(&server.url()).wait().expect("a server");
        let subscription = client.subscribe("state.>").wait().expect("a subscription");
        (client, subscription)
    });
    wait_until("the subscription of the node stands", || {
        publish(&author, "state.probe", "probe");
        let event = wildcards[1].1.next_event();
        event.wait_for(Duration::from_millis(10))
    });
    let expected: Vec<String> = (0..MESSAGES).map(|it| it.to_string()).collect();
    for text in &expected {
        publish(&author, "state.door", text);
    }
    publish(&author, "state.end", "end");
    for (_, subscription) in &wildcards {
        let mut texts = Vec::new();
        loop {
            let event = subscription.next_event().wait_for(DEADLINE);
            let TopicEvent::Message(message) = event.expect("an event in time") else {
                panic!("a gap");
            };
            assert_eq!(message.position, None);
            match &*message.topic {
                "state.probe" => {}
                "state.end" => break,
                _ => texts.push(String::from_utf8(message.payload).expect("text")),
            }
        }
        assert_eq!(texts, expected);
    }
    let taken = exact.each_mut().map(|reader| reader.take(MESSAGES));
    assert_eq!(taken[0], taken[1]);
    let texts: Vec<&String> = taken[0].iter().map(|(_, text)| text).collect();
    assert_eq!(texts, expected.iter().collect::<Vec<_>>());
    drop((author, wildcards, exact));
    for server in servers {
        assert_eq!(server.stop().backplane_lost, 0);
    }
}

/// A node with clients that only publish does not follow the topic, and all messages are in the history.
pub fn a_node_that_only_publishes_keeps_nothing<E: Engine>(engine: &mut E) {
    const MESSAGES: usize = 20;
    let history = History {
        bytes_max: 1 << 20,
        ..History::last(10_000)
    };
    let servers = ["one", "two"].map(|id| topics_with_history(engine, id, history));
    let author = Client::connect(&servers[0].url()).wait().expect("a server");
    for number in 0..MESSAGES {
        publish(&author, "state.door", &number.to_string());
    }
    servers[0].wait_for("the messages leave", |metrics| {
        metrics.backplane_sent >= 2 * MESSAGES as u64
    });
    let mut far = Reader::subscribe(&servers[1], "state.door", None);
    let taken = far.take(MESSAGES);
    assert!(taken.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0));
    // Nothing comes back to the first node any more.
    let other = Client::connect(&servers[1].url()).wait().expect("a server");
    wait_until("the node has left the stream", || {
        let before = servers[0].metrics().backplane_received;
        publish(&other, "state.door", "more");
        far.hear();
        publish(&other, "state.door", "more");
        far.hear();
        (servers[0].metrics().backplane_received == before).then_some(())
    });
    let mut near = Reader::subscribe(&servers[0], "state.door", None);
    assert_eq!(
        near.take(MESSAGES),
        taken,
        "the history is read from its beginning"
    );
    drop((author, other, near, far));
    for server in servers {
        assert_eq!(server.stop().backplane_lost, 0);
    }
}
