//! Histories in streams of JetStream: their limits, and what happens without space.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::stream::{Config, Info};
use async_nats::jetstream::{self, Context};
use futures_util::{StreamExt, TryStreamExt};
use tidewire::{Client, History, PubSub, Server, TopicEvent};
use tidewire_testkit::backplane::Engine;
use tidewire_testkit::backplane::histories::{
    Reader, chat_with_history, publish, topics_with_history,
};
use tidewire_testkit::{DEADLINE, TestServer, wait_until};

use tidewire_testkit::fixtures::tw1;

use crate::{NatsEngine, settings};

/// JetStream with this space. The stream of a room or topic with 100 messages takes some 170 KB.
fn space(bytes: &str) -> String {
    format!("jetstream {{ store_dir: streams, max_file_store: {bytes} }}")
}

/// A room that JetStream has no space for refuses joins with the reason, harms no other, and can be joined when there
/// is space.
#[test]
fn a_room_without_space_refuses_joins_until_there_is_space() {
    let Some(mut engine) = NatsEngine::start(&space("300KB")) else {
        return;
    };
    let server = chat_with_history(&engine, "one", History::last(100));
    let (ann, mut near) = ["ann", "near"]
        .map(|name| Reader::join(&server, name, None))
        .into();
    let client = Client::connect(&server.url()).wait().unwrap();
    for _ in 0..2 {
        let error = client.join("other").named("bob").wait().unwrap_err();
        assert!(error.to_string().contains("storage"), "{error}");
    }
    ann.say("unharmed");
    assert_eq!(near.hear(), "unharmed");
    engine.cut();
    engine.server.configure(&space("10MB"));
    engine.mend();
    let joined = wait_until("there is space", || {
        client.join("other").named("bob").wait().ok()
    });
    client.room(joined.id()).say(b"stored").unwrap();
    wait_until("it is stored", || {
        let stored = ("tidewire=room=other".to_owned(), 1);
        streams(&engine).contains(&stored).then_some(())
    });
    drop((ann, near, client));
    let metrics = server.stop();
    assert_eq!((metrics.backplane_sent, metrics.backplane_lost), (2, 0));
    assert_eq!(metrics.backplane_unsent, 0);
}

/// A topic without space in JetStream refuses its subscribers. Published messages wait, and arrive when there is space.
#[test]
fn a_topic_without_space_refuses_subscribers_and_keeps_publications() {
    const MESSAGES: usize = 5;
    let Some(mut engine) = NatsEngine::start(&space("300KB")) else {
        return;
    };
    let one = topics_with_history(&engine, "one", History::last(100));
    let two = topics_with_history(&engine, "two", History::last(100));
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
    engine.server.configure(&space("10MB"));
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

/// The streams of NATS, with the numbers of their messages.
fn streams(engine: &NatsEngine) -> Vec<(String, u64)> {
    let all = with_jetstream(engine, async |context| {
        context.streams().try_collect::<Vec<Info>>().await
    });
    let all = all.expect("streams").into_iter();
    let mut all: Vec<_> = all.map(|it| (it.config.name, it.state.messages)).collect();
    all.sort();
    all
}

/// JetStream removes messages by their age. A client that reconnects is told how many.
#[test]
fn messages_beyond_their_age_are_removed_and_told_as_missing() {
    let Some(engine) = NatsEngine::start_with_streams() else {
        return;
    };
    let history = History {
        age_max: Some(Duration::from_secs(1)),
        ..History::last(100)
    };
    let one = topics_with_history(&engine, "one", history);
    let mut near = Reader::subscribe(&one, "lobby", None);
    near.say("first");
    assert_eq!(near.hear(), "first");
    let first = near.position;
    for text in ["second", "third"] {
        near.say(text);
        assert_eq!(near.hear(), text);
    }
    wait_until("NATS removes them", || {
        let is_empty = streams(&engine) == [("tidewire=topic=lobby".to_owned(), 0)];
        is_empty.then_some(())
    });
    let two = topics_with_history(&engine, "two", history);
    let mut late = Reader::subscribe(&two, "lobby", first);
    near.say("live");
    assert_eq!((near.hear(), late.hear()), ("live".into(), "live".into()));
    assert_eq!(
        (late.recovered, late.position),
        (Some(Some(2)), near.position)
    );
    drop((near, late));
    for server in [one, two] {
        assert_eq!(server.stop().backplane_unsent, 0);
    }
}

/// A stream has room for more bytes than a history. Every node keeps to the exact limit.
#[test]
fn a_node_that_reads_a_stream_keeps_the_exact_limit_of_bytes() {
    const MESSAGES: usize = 10;
    let Some(engine) = NatsEngine::start_with_streams() else {
        return;
    };
    // Each message takes 13 bytes more.
    let history = History {
        bytes_max: 3 * (300 + 13),
        ..History::last(100)
    };
    let one = topics_with_history(&engine, "one", history);
    let mut near = Reader::subscribe(&one, "lobby", None);
    let texts: Vec<String> = (0..MESSAGES).map(|it| format!("{it:0300}")).collect();
    near.say(&texts[0]);
    assert_eq!(near.hear(), texts[0]);
    let first = near.position;
    texts[1..].iter().for_each(|text| near.say(text));
    let taken = near.take(MESSAGES - 1);
    assert!(taken.iter().map(|(_, text)| text).eq(&texts[1..]));
    assert_eq!(streams(&engine)[0].1, MESSAGES as u64);
    let two = topics_with_history(&engine, "two", history);
    for (server, since, recovered) in [
        (&two, None, None),
        (&one, first, Some(Some(6))),
        (&two, first, Some(Some(6))),
    ] {
        let mut late = Reader::subscribe(server, "lobby", since);
        assert_eq!(late.take(3), taken[MESSAGES - 4..]);
        assert_eq!((late.recovered, late.position), (recovered, near.position));
    }
    drop(near);
    for server in [one, two] {
        assert_eq!(server.stop().backplane_unsent, 0);
    }
}

/// Beyond the names of a history NATS loses the stream that was silent for the longest time. A client that returns is
/// told, and the new stream begins above the removed stream.
#[test]
fn the_most_silent_stream_beyond_the_names_is_removed_and_told() {
    let Some(engine) = NatsEngine::start_with_streams() else {
        return;
    };
    let history = History {
        names_max: 2,
        ..History::last(100)
    };
    let servers = ["one", "two", "three"].map(|id| topics_with_history(&engine, id, history));
    // A node may follow two of them.
    let client = Client::connect(&servers[2].url()).wait().unwrap();
    let mut positions = Vec::new();
    for (server, topic) in [(0, "state.a"), (0, "state.b"), (1, "state.c")] {
        let mut reader = Reader::subscribe(&servers[server], topic, None);
        publish(&client, topic, topic);
        assert_eq!(reader.hear(), topic);
        positions.push(reader.leave());
    }
    let named = |last: char| (format!("tidewire=topic=state=2E{last}"), 1);
    assert_eq!(streams(&engine), [named('b'), named('c')]);
    let mut late = Reader::subscribe(&servers[2], "state.a", Some(positions[0]));
    publish(&client, "state.a", "again");
    assert_eq!(late.hear(), "again");
    assert_eq!((late.recovered, late.lost), (Some(None), 0));
    let again = late.position.expect("a position");
    assert_ne!(again.epoch, positions[0].epoch);
    assert!(
        again.offset > positions[2].offset,
        "{again:?} {positions:?}"
    );
    assert_eq!(streams(&engine), [named('a'), named('c')]);
    drop((late, client));
    for server in servers {
        let metrics = server.stop();
        assert_eq!((metrics.backplane_unsent, metrics.backplane_lost), (0, 0));
    }
}

/// Regression: JetStream refused the name of the stream of a long topic. Its messages then waited for ever, and beyond
/// 4 MiB of them the node refused messages of all rooms and topics.
#[test]
fn the_longest_topics_keep_their_messages_apart() {
    let Some(engine) = NatsEngine::start_with_streams() else {
        return;
    };
    let server = topics_with_history(&engine, "one", History::last(10));
    let client = Client::connect(&server.url()).wait().unwrap();
    let topics = ["ж", "з"].map(|last| format!("state.{}{last}", "ж".repeat(123)));
    for topic in &topics {
        publish(&client, topic, topic);
    }
    client.flush().wait().expect("both are stored");
    for topic in &topics {
        let mut reader = Reader::subscribe(&server, topic, None);
        assert_eq!(reader.hear(), *topic);
        reader.leave();
    }
    assert_eq!(streams(&engine).len(), 2);
    drop(client);
    assert_eq!(server.stop().backplane_unsent, 0);
}

/// Regression: a new stream counted as used, so a client that subscribed to topics without messages removed the
/// messages of all others.
#[test]
fn a_stream_without_messages_makes_room_before_one_with_messages() {
    let Some(engine) = NatsEngine::start_with_streams() else {
        return;
    };
    let history = History {
        names_max: 2,
        ..History::last(10)
    };
    let server = topics_with_history(&engine, "one", history);
    let client = Client::connect(&server.url()).wait().unwrap();
    publish(&client, "state.kept", "a value");
    client.flush().wait().expect("it is stored");
    // Each subscription ends before the next begins, because a node follows two streams.
    for topic in ["state.x", "state.y", "state.z"] {
        let subscribe = || client.subscribe(topic).wait().ok();
        drop(wait_until("the node follows no other one", subscribe));
    }
    let kept = ("tidewire=topic=state=2Ekept".to_owned(), 1);
    assert!(streams(&engine).contains(&kept), "{:?}", streams(&engine));
    drop(client);
    assert_eq!(server.stop().backplane_unsent, 0);
}

/// Regression: the clock of the node alone decided where a stream begins, so a node with a slow clock made a stream
/// again that began below the former stream.
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
    let server = topics_with_history(&engine, "one", History::last(100));
    let mut reader = Reader::subscribe(&server, "lobby", None);
    reader.say("first");
    assert_eq!(reader.hear(), "first");
    let offset = reader.position.map_or(0, |it| it.offset);
    assert!(offset > ahead, "{offset} and {ahead}");
    drop(reader);
    assert_eq!(server.stop().backplane_lost, 0);
}

/// Regression: a node with other limits also reverted an operator's changes of a stream, such as its replicas.
#[test]
fn a_node_with_other_limits_changes_only_these_of_a_stream() {
    const NAME: &str = "tidewire=topic=lobby";
    let Some(engine) = NatsEngine::start_with_streams() else {
        return;
    };
    let one = topics_with_history(&engine, "one", History::last(100));
    let mut near = Reader::subscribe(&one, "lobby", None);
    near.say("kept");
    assert_eq!(near.hear(), "kept");
    let config = with_jetstream(&engine, async |context| {
        let stream = context.get_stream(NAME).await.expect("a stream");
        let mut config = stream.cached_info().config.clone();
        config.description = Some("of the operator".into());
        context.update_stream(&config).await.expect("a change");
        config
    });
    assert_eq!(config.max_messages, 100);
    let two = topics_with_history(&engine, "two", History::last(50));
    let mut far = Reader::subscribe(&two, "lobby", None);
    assert_eq!(far.hear(), "kept");
    let changed = with_jetstream(&engine, async |context| {
        let stream = context.get_stream(NAME).await.expect("a stream");
        stream.cached_info().config.clone()
    });
    assert_eq!(changed.max_messages, 50);
    assert_eq!(changed.description, config.description);
    drop((near, far));
    for server in [one, two] {
        assert_eq!(server.stop().backplane_lost, 0);
    }
}

/// Starts a node with a topic whose history has this many copies. Returns whether a client could subscribe to it.
fn subscribe_with_replicas(engine: &NatsEngine, count: usize) -> bool {
    let mut settings = settings("one");
    settings.keeps_histories = true;
    let nats = engine.nats().stream_replicas(count);
    let builder = Server::builder().backplane(nats, settings);
    let topic = format!("copies-{count}");
    let topics = PubSub::new().history(&topic, History::last(10));
    let server = TestServer::over_tcp(builder, &tw1(), move |_| topics.clone());
    let reader = Client::connect(&server.url()).wait().expect("the server");
    let is_subscribed = reader.subscribe(&topic).wait().is_ok();
    drop(reader);
    server.stop();
    is_subscribed
}

/// A single server of NATS cannot keep several copies, and the request has the number of copies.
#[test]
fn a_node_asks_for_as_many_replicas_of_a_stream_as_it_is_told() {
    let Some(engine) = NatsEngine::start_with_streams() else {
        return;
    };
    // More than JetStream knows are cut.
    for (asked, told) in [(1, 1), (3, 3), (9, 5)] {
        let request = with_jetstream(&engine, async |context| {
            let client = context.client();
            let mut requests = client
                .subscribe("$JS.API.STREAM.CREATE.>")
                .await
                .expect("a subscription");
            client.flush().await.expect("NATS");
            // A node has its own runtime, on another thread.
            std::thread::scope(|scope| {
                let node = scope.spawn(|| subscribe_with_replicas(&engine, asked));
                assert_eq!(node.join().expect("no panic"), asked == 1);
            });
            requests.next().await.expect("a request").payload
        });
        let request = String::from_utf8_lossy(&request);
        let wanted = format!("\"num_replicas\":{told},");
        assert!(request.contains(&wanted), "{request}");
    }
}
