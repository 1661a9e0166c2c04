//! Calls with a lasting effect at the server, and callers that give them up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tidewire::{
    Chat, Client, ErrorCode, HandlerResult, Limits, PubSub, RequestError, RoomId, Server,
    TopicEvent,
};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{TestServer, wait_until};

/// Blocks a server's lane in a hook, once, until the test opens the gate.
#[derive(Clone)]
struct Gate {
    was_held: Arc<AtomicBool>,
    opened: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Gate {
    fn new() -> (Self, mpsc::Sender<()>) {
        let (open, opened) = mpsc::channel();
        let gate = Self {
            was_held: Arc::default(),
            opened: Arc::new(Mutex::new(opened)),
        };
        (gate, open)
    }

    fn pass(&self) -> HandlerResult {
        if !self.was_held.swap(true, Ordering::SeqCst) {
            self.opened.lock().unwrap().recv().unwrap();
        }
        Ok(())
    }
}

/// A publish/subscribe server that answers the first subscription late, and allows one pattern at a time.
fn pubsub(gate: &Gate) -> TestServer {
    let mut limits = Limits::default();
    limits.topics.set_max(1);
    let gate = gate.clone();
    TestServer::over_tcp(Server::builder().limits(limits), &tw1(), move |_| {
        let gate = gate.clone();
        PubSub::new().on_subscribe(move |_, _| gate.pass())
    })
}

/// A chat server that answers the first join late.
fn chat(gate: &Gate) -> TestServer {
    let gate = gate.clone();
    TestServer::over_tcp(Server::builder(), &tw1(), move |_| {
        let gate = gate.clone();
        Chat::new().on_join(move |_, _, _| gate.pass())
    })
}

/// A client with short timeouts.
fn hasty(server: &TestServer) -> Client {
    let builder = Client::builder().request_timeout(Duration::from_millis(20));
    builder.connect(&server.url()).wait().unwrap()
}

/// Waits until there are no subscriptions: the server allows one pattern at a time.
fn wait_until_unsubscribed(server: &TestServer) {
    let other = Client::connect(&server.url()).wait().unwrap();
    let taken = wait_until("the pattern is free", || {
        other.subscribe("other").wait().ok()
    });
    drop(taken);
    other.close().wait();
}

/// Waits until this new client is the only member of the lobby.
fn wait_until_alone(server: &TestServer) {
    let other = Client::connect(&server.url()).wait().unwrap();
    let room = other.join("lobby").named("other").wait().unwrap();
    wait_until("the others have left", || {
        (room.members().wait().unwrap().len() == 1).then_some(())
    });
    other.close().wait();
}

/// Regression: the client stayed subscribed at the server as long as the connection lived.
#[test]
fn a_subscription_that_timed_out_is_unsubscribed_from_when_the_server_agrees() {
    let (gate, open) = Gate::new();
    let server = pubsub(&gate);
    let client = hasty(&server);
    let timed_out = client.subscribe("a").wait().unwrap_err();
    assert_eq!(timed_out, RequestError::TimedOut);
    open.send(()).unwrap();
    wait_until_unsubscribed(&server);
    assert_eq!(
        client.metrics().replies_unmatched,
        0,
        "all were listened for"
    );
    client.close().wait();
    server.stop();
}

/// Regression: the server refused it as a duplicate.
#[test]
fn a_subscription_that_timed_out_can_be_made_again() {
    let (gate, open) = Gate::new();
    let server = pubsub(&gate);
    let client = hasty(&server);
    let mut tries = 0;
    let again = loop {
        match client.subscribe("a").wait() {
            Ok(again) => break again,
            Err(error) => assert_eq!(error, RequestError::TimedOut, "{tries}"),
        }
        tries += 1;
        if tries == 3 {
            open.send(()).unwrap();
        }
    };
    client.publish("a", b"news").unwrap();
    match again.next_event().wait() {
        TopicEvent::Message(message) => assert_eq!(message.payload, b"news"),
        other => panic!("{other:?}"),
    }
    drop(again);
    wait_until_unsubscribed(&server);
    client.close().wait();
    server.stop();
}

/// Regression: the first of two subscriptions was dropped, and the server refused the second.
#[test]
fn a_subscription_dropped_while_it_is_made_can_be_made_again_at_once() {
    let (gate, open) = Gate::new();
    open.send(()).unwrap();
    let server = pubsub(&gate);
    let client = Client::connect(&server.url()).wait().unwrap();
    for round in 0..50 {
        drop(client.subscribe("a").send());
        let again = client.subscribe("a").wait();
        assert!(again.is_ok(), "{round}: {again:?}");
    }
    wait_until_unsubscribed(&server);
    client.close().wait();
    server.stop();
}

/// Regression: the client was a member of a room without knowing its number.
#[test]
fn a_join_that_timed_out_is_left_when_the_server_agrees() {
    let (gate, open) = Gate::new();
    let server = chat(&gate);
    let client = hasty(&server);
    let timed_out = client.join("lobby").named("ada").wait().unwrap_err();
    assert_eq!(timed_out, RequestError::TimedOut);
    open.send(()).unwrap();
    wait_until_alone(&server);
    // The name is free again, also for this client.
    let joined = wait_until("it joins again", || {
        match client.join("lobby").named("ada").wait() {
            Ok(joined) => Some(joined),
            Err(RequestError::TimedOut) => None,
            Err(RequestError::Refused {
                code: ErrorCode::AlreadyJoined,
                ..
            }) => None,
            Err(error) => panic!("{error}"),
        }
    });
    // The server may not have removed the client of the last check yet.
    wait_until("it is alone", || {
        let members = client.room(joined.id()).members().wait().ok()?;
        (members.len() == 1).then_some(())
    });
    client.close().wait();
    server.stop();
}

/// The answer may come after the drop, during it, or before it.
#[test]
fn a_join_that_is_dropped_is_left() {
    let (gate, open) = Gate::new();
    let server = chat(&gate);
    let client = Client::connect(&server.url()).wait().unwrap();
    drop(client.join("lobby").named("ada"));
    open.send(()).unwrap();
    wait_until_alone(&server);
    for _ in 0..50 {
        drop(client.join("lobby").named("ada"));
    }
    wait_until_alone(&server);
    let unseen = client.join("lobby").named("ada");
    // Answers come in order, so the answer to the join is there.
    assert!(
        client.room(RoomId(99)).members().wait().is_err(),
        "there is no such room"
    );
    drop(unseen);
    wait_until_alone(&server);
    // The room is left only once: this membership stays.
    let room = client.join("lobby").named("ada").wait().unwrap();
    assert_eq!(room.members().wait().unwrap().len(), 1);
    client.close().wait();
    server.stop();
}
