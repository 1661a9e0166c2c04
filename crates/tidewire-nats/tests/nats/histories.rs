//! Histories in streams of JetStream: their limits, and what happens without space.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use tidewire::{Client, History, TopicEvent};
use tidewire_testkit::backplane::Engine;
use tidewire_testkit::backplane::kept::{Reader, kept_topics, publish};
use tidewire_testkit::{DEADLINE, NatsServer, wait_until};

use crate::NatsEngine;

/// A topic that JetStream has no space for refuses its subscribers. What is published waits, and arrives when there is space.
#[test]
fn a_topic_without_space_refuses_subscribers_and_keeps_what_is_published() {
    const MESSAGES: usize = 5;
    let streams = |bytes| format!("jetstream {{ store_dir: streams, max_file_store: {bytes} }}");
    let Some(server) = NatsServer::start(&streams("300KB")) else {
        return;
    };
    let mut engine = NatsEngine { server, user: "" };
    // The stream of a topic takes some 170 KB.
    let one = kept_topics(&engine, "one", History::last(100));
    let two = kept_topics(&engine, "two", History::last(100));
    let first = Reader::subscribe(&one, "state.first", None);
    let client = Client::connect(&two.url()).wait().unwrap();
    let error = client.subscribe("state.second").wait().unwrap_err();
    assert!(error.to_string().contains("storage"), "{error}");
    for number in 0..MESSAGES {
        publish(&client, "state.second", &number.to_string());
    }
    publish(&client, "state.first", "unharmed");
    let mut first = first;
    assert_eq!(first.hear(), "unharmed");
    assert!(client.subscribe("state.second").wait().is_err());
    engine.cut();
    engine.server.configure(&streams("10MB"));
    engine.mend();
    let subscription = wait_until("there is space", || {
        client.subscribe("state.second").wait().ok()
    });
    for number in 0..MESSAGES {
        match subscription.next_event().wait_for(DEADLINE) {
            Some(TopicEvent::Message(message)) => {
                assert_eq!(message.payload, number.to_string().as_bytes());
            }
            other => panic!("{other:?}"),
        }
    }
    drop((first, client, subscription));
    let metrics = two.stop();
    assert_eq!((metrics.backplane_unsent, metrics.backplane_lost), (0, 0));
    one.stop();
}

/// Asks NATS without a node.
fn with_jetstream<T>(engine: &NatsEngine, work: impl AsyncFnOnce(Context) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let client = async_nats::connect(engine.server.address()).await;
        work(jetstream::new(client.expect("NATS"))).await
    })
}

/// Regression: the clock of the node alone decided where a stream begins, so that one that was made again by a node with a slow
/// clock began below the one before.
#[test]
fn a_new_stream_begins_above_those_of_a_node_whose_clock_is_ahead() {
    let Some(engine) = NatsEngine::start_with_streams() else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "no interval is measured")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let in_an_hour = now.expect("a clock") + Duration::from_secs(3_600);
    let ahead = (in_an_hour.as_millis() as u64) << 10;
    with_jetstream(&engine, async |context| {
        let config = Config {
            name: "tidewire=topic=state=2Eahead".into(),
            subjects: vec!["tidewire.stored.topic.state=2Eahead".into()],
            first_sequence: Some(ahead),
            ..Config::default()
        };
        context.create_stream(config).await.expect("a stream");
    });
    let server = kept_topics(&engine, "one", History::last(100));
    let mut reader = Reader::subscribe(&server, "lobby", None);
    reader.say("first");
    assert_eq!(reader.hear(), "first");
    let offset = reader.position.map_or(0, |it| it.offset);
    assert!(offset > ahead, "{offset} and {ahead}");
    drop(reader);
    assert_eq!(server.stop().backplane_lost, 0);
}
