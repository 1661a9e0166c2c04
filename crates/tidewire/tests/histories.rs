//! Bad luck of nodes that keep histories in streams, which the engine within the process makes on demand.

use std::thread;

use tidewire::backplane::RoomOrTopic;
use tidewire::{
    Client, History, Kind, Message, Position, PubSub, Router, Server, TopicEvent, WhenEventsFull,
};
use tidewire_proto::backplane::{Entry, NodeLife, SequenceKind, SequencePoint, encode_sequence};
use tidewire_testkit::backplane::histories::{HistoryKind, Reader, publish, topics_with_history};
use tidewire_testkit::backplane::suite::settings;
use tidewire_testkit::backplane::{Engine, InprocEngine};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::logs::Logs;
use tidewire_testkit::{DEADLINE, TestServer, wait_until};

fn topic(name: &str) -> RoomOrTopic {
    RoomOrTopic::Topic(name.into())
}

fn servers(engine: &InprocEngine, kind: HistoryKind, history: History) -> [TestServer; 2] {
    ["one", "two"].map(|id| kind.serve(engine, id, history))
}

fn stop(servers: [TestServer; 2]) {
    for server in servers {
        let metrics = server.stop();
        assert_eq!((metrics.backplane_lost, metrics.backplane_unsent), (0, 0));
    }
}

/// Returns the payload of a message of this size, which begins with its number.
fn numbered(number: usize, bytes: usize) -> String {
    format!("{number:0bytes$}")
}

/// When the stream is lost during a replay, the subscriber receives the messages until then, is told that an unknown
/// number is missing, and continues with the new stream.
#[test]
fn an_epoch_that_ends_during_a_replay_is_told_and_the_new_one_follows() {
    end_epoch_during_a_replay(InprocEngine::lose_streams);
    // Regression: an epoch with lower sequences was not told.
    end_epoch_during_a_replay(|engine| engine.begin_streams_lower());
}

fn end_epoch_during_a_replay(end: impl FnOnce(&mut InprocEngine)) {
    const MESSAGES: usize = 1_000;
    const BYTES: usize = 16 * 1024;
    let mut engine = InprocEngine::default();
    let history = History {
        bytes_max: 2 * MESSAGES * BYTES,
        ..History::last(MESSAGES)
    };
    let server = topics_with_history(&engine, "one", history);
    let mut near = Reader::subscribe(&server, "lobby", None);
    for number in 0..MESSAGES {
        near.say(&numbered(number, BYTES));
        assert_eq!(near.hear(), numbered(number, BYTES));
    }
    let client = Client::connect(&server.url()).wait().expect("a server");
    let slow = client
        .subscribe("lobby")
        .events_max(4)
        .when_events_full(WhenEventsFull::PauseReading)
        .wait()
        .expect("a subscription");
    // The rest does not fit the sockets, so it is still in the history.
    end(&mut engine);
    near.say("after");
    assert_eq!(near.hear(), "after");
    assert_eq!((near.recovered, near.lost), (Some(None), 0));
    let (mut got, mut is_told) = (0, false);
    loop {
        match slow.next_event().wait_for(DEADLINE).expect("an event") {
            TopicEvent::Message(message) if message.payload == b"after" => {
                assert_eq!(message.position, near.position);
                break;
            }
            TopicEvent::Message(message) => {
                assert!(!is_told);
                assert_eq!(message.payload, numbered(got, BYTES).as_bytes());
                got += 1;
            }
            TopicEvent::Recovered { missing } => {
                assert_eq!(missing, None);
                is_told = true;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(is_told && got < MESSAGES, "{got}");
    drop((client, slow, near));
    server.stop();
}

/// Regression: a message that was lost on its way to the stream came after later messages. All are appended again, and
/// each comes once, in order.
#[test]
fn appends_that_are_lost_are_tried_again_and_come_once_in_order() {
    for kind in [HistoryKind::Room, HistoryKind::Topic] {
        let engine = InprocEngine::default();
        let servers = servers(&engine, kind, History::last(100));
        let author = kind.reader(&servers[0], "ann", None);
        let mut far = kind.reader(&servers[1], "bob", None);
        engine.lose_appended(1);
        author.say("0");
        wait_until("it is lost", || engine.has_lost_all().then_some(()));
        author.say("1");
        author.say("2");
        let texts: Vec<String> = far.take(3).into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            (texts, far.lost),
            (vec!["0".into(), "1".into(), "2".into()], 0)
        );
        drop((author, far));
        stop(servers);
    }
}

/// Regression: own messages that a stream removed before the node saw them delayed all later publications.
#[test]
fn own_messages_that_were_removed_unseen_hold_up_no_others() {
    let engine = InprocEngine::default();
    let server = topics_with_history(&engine, "one", History::last(1));
    let client = Client::connect(&server.url()).wait().unwrap();
    let name = topic("lobby");
    // A node that is slow gives a message to the stream twice, so the number of losses is not known.
    engine.lose(usize::MAX);
    publish(&client, "lobby", "a");
    publish(&client, "lobby", "b");
    wait_until("both are stored", || {
        (engine.appended(&name) == 2).then_some(())
    });
    engine.lose(0);
    let mut reader = HistoryKind::Topic.reader(&server, "lobby", None);
    assert_eq!(reader.hear(), "b");
    publish(&client, "lobby", "c");
    assert_eq!(reader.hear(), "c");
    drop((reader, client));
    wait_until("the node leaves the stream", || {
        (engine.followers(&name) == 0).then_some(())
    });
    server.stop();
}

/// Regression: a node that ended did not append messages that waited for the stream to return earlier messages.
#[test]
fn a_node_that_ends_appends_all_that_waits() {
    const MESSAGES: usize = 400;
    let engine = InprocEngine::default();
    let [first, second] = servers(&engine, HistoryKind::Topic, History::last(2 * MESSAGES));
    let client = Client::connect(&first.url()).wait().unwrap();
    let mut far = HistoryKind::Topic.reader(&second, "lobby", None);
    // The stream does not return its stored messages. Each message also goes directly to nodes with a wildcard.
    engine.lose(2 * MESSAGES);
    for number in 0..MESSAGES {
        publish(&client, "lobby", &numbered(number, 200));
    }
    first.wait_for("the lane has all", |metrics| {
        metrics.published == MESSAGES as u64
    });
    client.close().wait();
    assert_eq!(first.stop().backplane_unsent, 0);
    engine.lose(0);
    far.say("end");
    let taken = far.take(MESSAGES + 1).into_iter().map(|(_, text)| text);
    let expected = (0..MESSAGES).map(|number| numbered(number, 200));
    assert!(taken.eq(expected.chain(["end".to_owned()])));
    drop(far);
    assert_eq!(second.stop().backplane_lost, 0);
}

/// Regression: a stream that a node with a slow clock made again began below the messages that were known. Other nodes
/// took its messages for late messages, and no subscriber was told that they were missing.
#[test]
fn a_stream_that_begins_again_with_lower_sequences_is_followed() {
    const MESSAGES: usize = 20;
    for kind in [HistoryKind::Room, HistoryKind::Topic] {
        let engine = InprocEngine::default();
        let servers = servers(&engine, kind, History::last(100));
        let author = kind.reader(&servers[0], "ann", None);
        let mut readers = [0, 1].map(|it| kind.reader(&servers[it], ["bob", "carl"][it], None));
        for round in 0..3 {
            let expected: Vec<String> = (0..MESSAGES).map(|it| format!("{round} {it}")).collect();
            expected.iter().for_each(|text| author.say(text));
            let taken = readers.each_mut().map(|reader| reader.take(MESSAGES));
            assert_eq!(taken[0], taken[1]);
            assert!(taken[0].iter().map(|(_, text)| text).eq(&expected));
            for reader in &readers {
                let told = (round > 0).then_some(None);
                assert_eq!((reader.recovered, reader.lost), (told, 0));
            }
            engine.begin_streams_lower();
        }
        drop((author, readers));
        stop(servers);
    }
}

/// A forged sequence makes a node read the stream again, and does not change the messages of its clients.
#[test]
fn forged_sequences_neither_skip_nor_repeat_messages() {
    for kind in [HistoryKind::Room, HistoryKind::Topic] {
        let engine = InprocEngine::default();
        let servers = servers(&engine, kind, History::last(100));
        let author = kind.reader(&servers[0], "ann", None);
        let mut far = kind.reader(&servers[1], "bob", None);
        let (name, sequence) = match kind {
            HistoryKind::Room => (RoomOrTopic::Room("lobby".into()), SequenceKind::Room),
            HistoryKind::Topic => (topic("lobby"), SequenceKind::Topic),
        };
        let mut packet = Vec::new();
        encode_sequence(
            NodeLife::new("evil", 7),
            (sequence, "lobby"),
            SequencePoint::default(),
            &mut packet,
        );
        Entry::Published { payload: b"evil" }.encode(&mut packet);
        author.say("first");
        assert_eq!(far.hear(), "first");
        let offset = far.position.map_or(0, |Position { offset, .. }| offset);
        for at in [0, offset, offset + 100, u64::MAX - 1, u64::MAX] {
            engine.inject_appended(&name, at, &packet);
            engine.inject_appended(&name, at, b"no packet");
            author.say("next");
            assert_eq!(far.hear(), "next");
        }
        let last = far.position.map_or(0, |Position { offset, .. }| offset);
        assert_eq!((last, far.lost), (offset + 5, 0));
        drop((author, far));
        stop(servers);
    }
}

/// A node leaves a stream when its last reader has gone, and the stream stays.
#[test]
fn streams_are_left_with_their_last_reader() {
    for kind in [HistoryKind::Room, HistoryKind::Topic] {
        let engine = InprocEngine::default();
        let servers = servers(&engine, kind, History::last(100));
        let name = match kind {
            HistoryKind::Room => RoomOrTopic::Room("lobby".into()),
            HistoryKind::Topic => topic("lobby"),
        };
        let followers = |count| {
            wait_until("the nodes follow or leave the stream", || {
                (engine.followers(&name) == count).then_some(())
            });
        };
        for round in 0..3 {
            let readers = [0, 1].map(|it| kind.reader(&servers[it], ["ann", "bob"][it], None));
            followers(2);
            let [mut one, mut two] = readers;
            assert_eq!(one.take(round).len(), round);
            one.say("more");
            two.take(round + 1);
            if kind == HistoryKind::Topic {
                one.hear();
            }
            drop(one);
            followers(1);
            drop(two);
            followers(0);
        }
        stop(servers);
    }
}

/// A topic without a stream keeps publications until there is space, and other topics continue.
#[test]
fn a_topic_without_space_keeps_its_messages_and_harms_no_other() {
    const MESSAGES: usize = 10;
    let engine = InprocEngine::default();
    let servers = servers(&engine, HistoryKind::Topic, History::last(100));
    let mut other = Reader::subscribe(&servers[0], "lobby", None);
    engine.run_out_of_space(true);
    let client = Client::connect(&servers[0].url()).wait().unwrap();
    let expected: Vec<String> = (0..MESSAGES).map(|it| it.to_string()).collect();
    for text in &expected {
        publish(&client, "state.full", text);
        let error = client.subscribe("state.full").wait().unwrap_err();
        assert!(error.to_string().contains("no space"), "{error}");
        other.say(text);
        assert_eq!(&other.hear(), text);
    }
    engine.run_out_of_space(false);
    let mut far = Reader::subscribe(&servers[1], "state.full", None);
    let texts: Vec<String> = far
        .take(MESSAGES)
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    assert_eq!(texts, expected);
    drop((client, other, far));
    stop(servers);
}

/// Regression: a subscriber without positions that a handler subscribed received each message of its own node twice: at
/// once, and from the stream.
#[test]
fn a_subscriber_of_a_handler_gets_the_messages_of_a_kept_topic_once() {
    const MESSAGES: usize = 50;
    let engine = InprocEngine::default();
    let mut settings = settings("one");
    settings.keeps_histories = true;
    let builder = Server::builder().backplane(engine.backplane(), settings);
    let server = TestServer::over_tcp(builder, &tw1(), |_| {
        let topics = PubSub::new().history("state.>", History::last(10));
        Router::new().with(topics).on("follow", |cx, _| {
            cx.topics().subscribe("state.door")?;
            cx.reply(b"")
        })
    });
    let mut peer = server.peer();
    peer.send(&Message::with_id(Kind::Request, 0, 1, b"").with_name("follow"));
    assert_eq!(peer.answer().kind, Kind::Reply);
    let client = Client::connect(&server.url()).wait().unwrap();
    for number in 0..MESSAGES {
        let text = number.to_string();
        publish(&client, "state.door", &text);
        let message = std::iter::from_fn(|| peer.receive()).find(|it| it.kind == Kind::Deliver);
        assert_eq!(message.expect("a message").payload, text.as_bytes());
        // The stream gives it back in the meantime.
        client.flush().wait().unwrap();
    }
    drop((peer, client));
    let metrics = server.stop();
    assert_eq!(metrics.room_delivered, MESSAGES as u64);
}

/// While NATS is gone, messages wait up to a limit. Beyond it publishers are refused, and no accepted message is lost.
#[test]
fn messages_that_wait_for_a_stream_are_bounded_and_arrive() {
    const BYTES: usize = 32 * 1024;
    let mut engine = InprocEngine::default();
    let history = History {
        bytes_max: 64 << 20,
        ..History::last(10_000)
    };
    let servers = servers(&engine, HistoryKind::Topic, history);
    let client = Client::connect(&servers[0].url()).wait().unwrap();
    engine.cut();
    let published = |server: &TestServer| server.metrics().published;
    let mut offered = 0_u64;
    wait_until("a message is refused", || {
        publish(&client, "state.full", &numbered(offered as usize, BYTES));
        offered += 1;
        servers[0].wait_for("it is taken or refused", |metrics| {
            metrics.published + metrics.refused == offered
        });
        (published(&servers[0]) < offered).then_some(())
    });
    let taken = published(&servers[0]);
    assert!(taken * BYTES as u64 >= 4 << 20, "{taken}");
    engine.mend();
    let mut far = Reader::subscribe(&servers[1], "state.full", None);
    for number in 0..taken {
        assert_eq!(far.hear(), numbered(number as usize, BYTES));
    }
    assert_eq!(far.lost, 0);
    drop((client, far));
    let [one, two] = servers;
    // The packets for wildcards of other nodes could not leave.
    let metrics = one.stop();
    assert_eq!(
        (metrics.backplane_unsent, metrics.backplane_lost),
        (taken, 0)
    );
    two.stop();
}

/// Many topics that are only published to are each followed for a moment, and all messages are in their streams.
#[test]
fn many_topics_are_published_to_from_several_threads() {
    const TOPICS: usize = 200;
    const THREADS: usize = 4;
    let engine = InprocEngine::default();
    let servers = servers(&engine, HistoryKind::Topic, History::last(THREADS));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let server = &servers[thread % 2];
            scope.spawn(move || {
                let client = Client::connect(&server.url()).wait().unwrap();
                for number in 0..TOPICS {
                    publish(&client, &format!("state.{number}"), &thread.to_string());
                }
                client.flush().wait().unwrap();
            });
        }
    });
    for number in 0..TOPICS {
        let name = format!("state.{number}");
        wait_until("no node follows it", || {
            (engine.followers(&topic(&name)) == 0).then_some(())
        });
        let mut reader = Reader::subscribe(&servers[number % 2], &name, None);
        let mut texts: Vec<String> = reader.take(THREADS).into_iter().map(|it| it.1).collect();
        texts.sort();
        assert_eq!(texts, ["0", "1", "2", "3"]);
    }
    stop(servers);
}

/// Regression: messages that the engine did not store waited without a line in the log.
#[test]
fn a_stream_that_stores_nothing_is_logged_once_and_waiting_messages_arrive() {
    let logs = Logs::capture();
    let engine = InprocEngine::default();
    let server = topics_with_history(&engine, "one", History::last(100));
    let mut reader = Reader::subscribe(&server, "state.late", None);
    let client = Client::connect(&server.url()).wait().unwrap();
    engine.lose_appended(3);
    publish(&client, "state.late", "waits");
    assert_eq!(reader.hear(), "waits");
    assert!(engine.has_lost_all());
    let text = logs.text();
    let told = text.lines().filter(|line| {
        line.contains("does not give back the messages") && line.contains("state.late")
    });
    assert_eq!(told.count(), 1, "{text}");
    drop((client, reader));
    let metrics = server.stop();
    assert_eq!((metrics.published, metrics.backplane_unsent), (1, 0));
}
