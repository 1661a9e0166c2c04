//! The answer to a publisher that asks whether its messages are stored: not before, not for others, and never missing.

use std::time::Duration;

use tidewire::metrics::Metrics;
use tidewire::{
    Chat, Client, ErrorCode, History, Kind, Message, PubSub, RequestError, Router, Server,
};
use tidewire_testkit::backplane::histories::{HistoryKind, Reader, publish};
use tidewire_testkit::backplane::suite::settings;
use tidewire_testkit::backplane::{Engine, InprocEngine};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{DEADLINE, TestServer, assert_conserved};

/// Starts a node of one lane. Its rooms and its topics `lobby` and `state.>` keep their messages.
fn serve(engine: &InprocEngine, id: &str, history: History) -> TestServer {
    let mut settings = settings(id);
    settings.keeps_histories = true;
    let builder = Server::builder().backplane(engine.backplane(), settings);
    TestServer::over_tcp(builder, &tw1(), move |_| {
        let topics = PubSub::new()
            .history("lobby", history)
            .history("state.>", history);
        Router::new()
            .with(Chat::new().history(history))
            .with(topics)
    })
}

fn connect(server: &TestServer) -> Client {
    let client = Client::builder().request_timeout(DEADLINE);
    client.connect(&server.url()).wait().expect("a server")
}

/// Returns when the node has handled all earlier messages of the client. Both answers need the node, and the second
/// question leaves the lane after the turn of the first.
fn pass_through_node(client: &Client, name: &str) {
    for part in ["first", "second"] {
        let pattern = format!("{name}.{part}");
        client.subscribe(&pattern).wait().expect("a subscription");
    }
}

/// Stops a server, and checks that each question ended in exactly one way.
fn stop(server: TestServer) -> Metrics {
    let metrics = server.stop();
    assert_eq!(
        metrics.deferred,
        metrics.deferred_answered + metrics.deferred_undelivered
    );
    metrics
}

fn refusal_of(error: RequestError) -> (ErrorCode, String) {
    match error {
        RequestError::Refused { code, text, .. } => (code, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_publisher_is_answered_when_its_messages_are_stored_and_not_before() {
    const EACH: usize = 5;
    for kind in [HistoryKind::Room, HistoryKind::Topic] {
        let mut engine = InprocEngine::default();
        let [one, two] = ["one", "two"].map(|id| serve(&engine, id, History::last(100)));
        let client = connect(&one);
        let join = || client.join("lobby").named("ann").wait().unwrap().id();
        let room = (kind == HistoryKind::Room).then(join);
        let mut sent = Vec::new();
        for round in ["no append arrives", "the engine is gone"] {
            match round {
                "no append arrives" => engine.lose_appended(usize::MAX),
                _ => engine.cut(),
            }
            for number in 0..EACH {
                let text = format!("{round} {number}");
                match room {
                    Some(room) => client.room(room).say(text.as_bytes()).unwrap(),
                    None => publish(&client, "lobby", &text),
                }
                sent.push(text);
            }
            let mut waiting = client.flush();
            pass_through_node(&client, &round.replace(' ', "-"));
            assert!(waiting.try_wait().is_none(), "{kind:?}: {round}");
            engine.lose_appended(0);
            engine.mend();
            waiting.wait().unwrap();
        }
        client.flush().wait().expect("nothing is left to wait for");
        drop(client);
        let metrics = stop(one);
        assert_eq!((metrics.deferred_answered, metrics.deferred), (3, 3));
        let mut reader = kind.reader(&two, "bob", None);
        for text in sent {
            assert_eq!(reader.hear(), text);
        }
        drop(reader);
        assert_eq!(stop(two).backplane_lost, 0);
    }
}

#[test]
fn a_stream_without_space_keeps_only_its_own_publishers_waiting() {
    let engine = InprocEngine::default();
    let server = serve(&engine, "one", History::last(100));
    let [ann, bob] = [0, 1].map(|_| connect(&server));
    publish(&bob, "state.open", "before");
    bob.flush().wait().unwrap();
    engine.run_out_of_space(true);
    publish(&ann, "state.full", "waits");
    let mut waiting = ann.flush();
    pass_through_node(&ann, "ann");
    publish(&bob, "state.open", "meanwhile");
    bob.flush().wait().unwrap();
    assert!(waiting.try_wait().is_none());
    engine.run_out_of_space(false);
    waiting.wait().unwrap();
    for (topic, expected) in [
        ("state.full", &["waits"][..]),
        ("state.open", &["before", "meanwhile"]),
    ] {
        let mut reader = Reader::subscribe(&server, topic, None);
        for text in expected {
            assert_eq!(reader.hear(), *text);
        }
    }
    drop((ann, bob));
    assert_eq!(stop(server).backplane_lost, 0);
}

/// The stream keeps two messages, and removes the others before the node sees them. So it does not know whether they
/// were stored.
#[test]
fn a_message_that_its_stream_does_not_give_back_is_told_once_to_whoever_still_waits() {
    const MESSAGES: usize = 10;
    let mut engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| serve(&engine, id, History::last(2)));
    let [ann, bob] = [&one, &two].map(connect);
    publish(&ann, "state.door", "first");
    ann.flush().wait().unwrap();
    let before = one.metrics().backplane_sent;
    engine.cut();
    for number in 0..MESSAGES {
        publish(&ann, "state.door", &number.to_string());
    }
    drop(ann.flush());
    let waiting = ann.flush();
    pass_through_node(&ann, "ann");
    engine.lose(usize::MAX);
    engine.mend();
    one.wait_for("all are appended", |metrics| {
        metrics.backplane_sent >= before + MESSAGES as u64
    });
    engine.lose(0);
    publish(&bob, "state.door", "next");
    bob.flush().wait().unwrap();
    let (code, text) = refusal_of(waiting.wait().unwrap_err());
    assert_eq!(code, ErrorCode::Internal);
    assert!(text.starts_with("9 messages"), "{text}");
    ann.flush().wait().expect("it is told once");
    drop((ann, bob));
    for server in [one, two] {
        stop(server);
    }
}

#[test]
fn a_session_that_ends_while_it_waits_leaves_its_messages_and_no_question() {
    let engine = InprocEngine::default();
    let server = serve(&engine, "one", History::last(100));
    let mut peer = server.peer();
    engine.lose_appended(usize::MAX);
    peer.send(&Message::new(Kind::Publish, 0, b"left behind").with_name("state.door"));
    peer.ask(b"");
    server.wait_for("the session waits", |metrics| metrics.deferred == 1);
    peer.into_wire().vanish().unwrap();
    server.wait_for("the session ends", |metrics| metrics.sessions_closed() == 1);
    engine.lose_appended(0);
    let mut reader = Reader::subscribe(&server, "state.door", None);
    assert_eq!(reader.hear(), "left behind");
    server.wait_for("the answer comes", |metrics| {
        metrics.deferred_undelivered == 1
    });
    drop(reader);
    assert_eq!(stop(server).backplane_lost, 0);
}

/// The answer of a server that ends may not arrive, because its connections end, too. It is never the confirmation.
#[test]
fn a_server_that_ends_confirms_nothing_that_is_not_stored() {
    let engine = InprocEngine::default();
    let server = serve(&engine, "one", History::last(100));
    let client = connect(&server);
    engine.lose_appended(usize::MAX);
    publish(&client, "state.door", "lost");
    let waiting = client.flush();
    pass_through_node(&client, "client");
    let stopped = server.shutdown(Duration::ZERO);
    assert_conserved(&stopped);
    let metrics = stopped.metrics;
    waiting.wait().unwrap_err();
    assert_eq!((metrics.deferred, metrics.deferred_answered), (1, 0));
}

/// Regression: a node that ended before the engine had opened the stream of a topic never gave it the messages.
#[test]
fn a_node_that_ends_gives_the_engine_the_first_message_of_a_topic() {
    let engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| serve(&engine, id, History::last(10)));
    let client = connect(&one);
    publish(&client, "state.last", "last words");
    client.close().wait();
    assert_eq!(stop(one).backplane_unsent, 0);
    let mut reader = Reader::subscribe(&two, "state.last", None);
    assert_eq!(reader.hear(), "last words");
    drop(reader);
    stop(two);
}
