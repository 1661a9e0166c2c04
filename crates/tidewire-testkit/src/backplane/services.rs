//! The suite, second part: messages for one session, and requests to services of other nodes.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tidewire::backplane::NodeSettings;
use tidewire::metrics::Metrics;
use tidewire::upstream::Upstream;
use tidewire::{
    AnyCodec, Client, Context, Deferred, ErrorCode, HandlerError, Message, RequestError, Router,
    Server, SessionAddress,
};
use tidewire_proto::message::Kind;

use super::Engine;
use super::suite::settings;
use crate::harness::TestServer;
use crate::wait::{DEADLINE, wait_until};

/// A node with services, and the requests that its handler holds.
#[derive(Debug)]
pub struct Worker {
    /// The server.
    pub server: TestServer,
    held: Receiver<Deferred>,
}

impl Worker {
    /// Waits for a request to `hold`, and gives the duty to answer it.
    pub fn held(&self) -> Deferred {
        self.held.recv_timeout(DEADLINE).expect("a held request")
    }

    /// Waits until the other nodes know the requests in work at this node: two heartbeats, observed by the measured
    /// time of an answer.
    pub fn beat_twice(&self) {
        for _ in 0..2 {
            let lag = || self.server.server().inspector().node()?.peers.first()?.lag;
            let before = lag();
            wait_until("a heartbeat", || (lag() != before).then_some(()));
        }
    }
}

/// Starts a node that has services: `echo`, `refuse`, `forget` and `hold`.
pub fn worker<E: Engine>(engine: &E, id: &str) -> Worker {
    let (sender, held) = channel();
    let mut settings = settings(id);
    settings.services = ["echo", "refuse", "forget", "hold"]
        .map(String::from)
        .into();
    let builder = Server::builder().lanes(2);
    let builder = builder.backplane(engine.backplane(), settings);
    let server = TestServer::over_tcp(builder, &AnyCodec::default(), move |_| methods(&sender));
    Worker { server, held }
}

fn methods(held: &Sender<Deferred>) -> Router {
    let held = held.clone();
    Router::new()
        .on("echo", |cx, message| cx.reply(message.payload))
        .on("refuse", |_, _| {
            Err(HandlerError::new(ErrorCode::Forbidden, "not you"))
        })
        .on("forget", |_, _| Ok(()))
        .on("hold", move |cx, _| {
            // The test may be over.
            let _ = held.send(cx.defer());
            Ok(())
        })
}

/// Starts a node without services, that passes all requests of its clients on.
pub fn front<E: Engine>(engine: &E, id: &str, timeout: Duration) -> TestServer {
    front_of(engine, settings(id), timeout)
}

/// Starts a node without services, with these settings.
pub fn front_of<E: Engine>(engine: &E, settings: NodeSettings, timeout: Duration) -> TestServer {
    let nodes = Upstream::nodes().timeout(timeout);
    let builder = Server::builder().lanes(2);
    let builder = builder.backplane(engine.backplane(), settings);
    TestServer::over_tcp(builder, &AnyCodec::default(), move |_| {
        let nodes = nodes.clone();
        Router::new().otherwise(move |cx, message| cx.forward(&nodes, &message))
    })
}

fn client(server: &TestServer) -> Client {
    Client::connect(&server.url()).wait().expect("a connection")
}

/// Asks, and waits for longer than any node does.
///
/// # Errors
/// Those of the request.
pub fn ask(client: &Client, method: &str) -> Result<Vec<u8>, RequestError> {
    let request = client.request(b"payload").method(method);
    let reply = request.timeout(2 * DEADLINE).wait()?;
    Ok(reply.payload().to_vec())
}

/// Asks, and returns the text of the refusal.
pub fn refusal(client: &Client, method: &str) -> (ErrorCode, String) {
    match ask(client, method) {
        Err(RequestError::Refused { code, text, .. }) => (code, text),
        other => panic!("{other:?}"),
    }
}

/// Checks that every request to another node ends in exactly one way.
pub fn assert_requests_conserved(asking: &Metrics) {
    let fates = asking.backplane_answered
        + asking.backplane_unserved
        + asking.backplane_orphaned
        + asking.backplane_unasked
        + asking.backplane_timed_out
        + asking.backplane_abandoned;
    assert_eq!(asking.backplane_asked, fates, "{asking:#?}");
}

/// Stops a node that answered requests, and returns how many it took.
fn stop_worker(worker: Worker) -> u64 {
    let metrics = worker.server.stop();
    let fates = metrics.backplane_served + metrics.backplane_unserving;
    assert_eq!(metrics.backplane_taken, fates);
    metrics.backplane_taken
}

/// Each request goes to one of the nodes that have the method, and each is answered.
pub fn a_request_goes_to_one_of_the_nodes_that_have_the_service<E: Engine>(engine: &mut E) {
    const REQUESTS: u64 = 200;
    let workers = ["one", "two"].map(|id| worker(engine, id));
    let front = front(engine, "front", DEADLINE);
    let client = client(&front);
    for _ in 0..REQUESTS {
        assert_eq!(ask(&client, "echo").expect("an answer"), b"payload");
    }
    drop(client);
    let metrics = front.stop();
    assert_requests_conserved(&metrics);
    assert_eq!(metrics.backplane_answered, REQUESTS);
    let taken = workers.map(stop_worker);
    assert_eq!(taken[0] + taken[1], REQUESTS, "each by one of them");
    assert!(taken[0] > 0 && taken[1] > 0, "{taken:?}");
}

/// A handler on another node refuses, answers later, or drops the request: the caller always receives an answer.
pub fn every_way_to_answer_crosses_nodes<E: Engine>(engine: &mut E) {
    let worker = worker(engine, "one");
    let front = front(engine, "front", DEADLINE);
    let client = client(&front);
    let (code, text) = refusal(&client, "refuse");
    assert_eq!((code, &*text), (ErrorCode::Forbidden, "not you"));
    let (code, text) = refusal(&client, "forget");
    assert_eq!(code, ErrorCode::Internal);
    assert!(text.contains("without an answer"), "{text}");
    let waiting = client.request(b"").method("hold").timeout(DEADLINE).send();
    let held = worker.held();
    assert!(!held.is_cancelled());
    held.reply(b"later").expect("a short reply");
    assert_eq!(waiting.wait().expect("an answer").payload(), b"later");
    drop(client);
    assert_requests_conserved(&front.stop());
    assert_eq!(stop_worker(worker), 3);
}

/// A request goes to other nodes only, also if the own node has the method.
pub fn a_node_does_not_ask_itself<E: Engine>(engine: &mut E) {
    let mut own = settings("both");
    own.services = vec!["echo".to_owned()];
    let both = front_of(engine, own, DEADLINE);
    let client = client(&both);
    assert_eq!(refusal(&client, "echo").0, ErrorCode::MethodNotFound);
    let worker = worker(engine, "one");
    wait_until("the service is there", || ask(&client, "echo").ok());
    for _ in 0..20 {
        assert!(ask(&client, "echo").is_ok());
    }
    drop(client);
    let metrics = both.stop();
    assert_requests_conserved(&metrics);
    assert_eq!(metrics.backplane_taken, 0);
    assert!(stop_worker(worker) > 20);
}

/// A method that no other node has is an error at once.
pub fn a_request_that_no_node_serves_fails_at_once<E: Engine>(engine: &mut E) {
    let front = front(engine, "front", DEADLINE);
    let client = client(&front);
    let (code, text) = refusal(&client, "echo");
    assert_eq!(code, ErrorCode::MethodNotFound);
    assert!(text.contains("no node"), "{text}");
    let worker = worker(engine, "one");
    wait_until("the service is there", || ask(&client, "echo").ok());
    assert_eq!(refusal(&client, "missing").0, ErrorCode::MethodNotFound);
    assert!(stop_worker(worker) >= 1);
    wait_until("the service is gone", || ask(&client, "echo").err());
    drop(client);
    let metrics = front.stop();
    assert_requests_conserved(&metrics);
    assert!(metrics.backplane_unserved >= 2);
}

/// A request ends at its deadline, there and here, and when its caller goes.
pub fn a_request_ends_at_its_deadline_or_with_its_caller<E: Engine>(engine: &mut E) {
    let worker = worker(engine, "one");
    let hasty = front(engine, "hasty", Duration::from_millis(300));
    let patient = front(engine, "patient", DEADLINE);
    let asking = client(&hasty);
    let (code, text) = refusal(&asking, "hold");
    assert_eq!(code, ErrorCode::Internal);
    assert!(text.contains("in time"), "{text}");
    let late = worker.held();
    wait_until("the other node gives up", || {
        late.is_cancelled().then_some(())
    });
    assert!(late.reply(b"too late").is_ok());
    let leaving = client(&patient);
    let waiting = leaving.request(b"").method("hold").timeout(DEADLINE).send();
    let held = worker.held();
    worker.beat_twice();
    for session in patient.server().sessions().list() {
        session.close().expect("it is open");
    }
    wait_until("the other node is told", || {
        held.is_cancelled().then_some(())
    });
    drop((held, asking, waiting, leaving));
    let metrics = hasty.stop();
    assert_requests_conserved(&metrics);
    assert_eq!(metrics.backplane_timed_out, 1);
    let metrics = patient.stop();
    assert_requests_conserved(&metrics);
    assert_eq!(metrics.backplane_abandoned, 1);
    assert_eq!(stop_worker(worker), 2);
}

/// A node that ends with requests in its hands does not keep their callers waiting.
pub fn requests_of_a_node_that_is_gone_fail<E: Engine>(engine: &mut E) {
    let worker = worker(engine, "one");
    let front = front(engine, "front", DEADLINE);
    let client = client(&front);
    let waiting = client.request(b"").method("hold").timeout(DEADLINE).send();
    let held = worker.held();
    worker.beat_twice();
    worker.server.stop();
    match waiting.wait() {
        Err(RequestError::Refused { text, .. }) => assert!(text.contains("is gone"), "{text}"),
        other => panic!("{other:?}"),
    }
    // The token has no caller to answer.
    held.reply(b"too late").expect("a short reply");
    drop(client);
    let metrics = front.stop();
    assert_requests_conserved(&metrics);
    assert_eq!(metrics.backplane_orphaned, 1);
}

/// A node that is cut off refuses requests to other nodes, and continues when it is back.
pub fn a_node_that_is_cut_off_asks_no_other<E: Engine>(engine: &mut E) {
    let worker = worker(engine, "one");
    let front = front(engine, "front", Duration::from_secs(2));
    let client = client(&front);
    assert!(ask(&client, "echo").is_ok());
    engine.cut();
    wait_until("requests are refused", || {
        let (_, text) = refusal(&client, "echo");
        text.contains("cut off").then_some(())
    });
    engine.mend();
    wait_until("requests are answered", || ask(&client, "echo").ok());
    drop(client);
    let metrics = front.stop();
    assert_requests_conserved(&metrics);
    assert!(metrics.backplane_unasked >= 1);
    stop_worker(worker);
}

/// Starts a node that tells clients the address of their session.
fn telling<E: Engine>(engine: &E, id: &str) -> TestServer {
    let builder = Server::builder().lanes(2);
    let builder = builder.backplane(engine.backplane(), settings(id));
    TestServer::over_tcp(builder, &AnyCodec::default(), |_| {
        |cx: &mut Context<'_>, _: Message<'_>| {
            let address = cx
                .sessions()
                .address(cx.id())
                .expect("a session of a node")
                .to_string();
            cx.reply(address.as_bytes())
        }
    })
}

/// Messages for a session of another node arrive in their order, and each is counted.
pub fn messages_for_a_session_cross_nodes<E: Engine>(engine: &mut E) {
    const MESSAGES: u64 = 100;
    let [one, two] = ["one", "two"].map(|id| telling(engine, id));
    let mut peer = one.peer();
    peer.ask(b"who am I?");
    let address: SessionAddress = String::from_utf8(peer.answer().payload)
        .expect("text")
        .parse()
        .expect("an address");
    assert_eq!(address.node(), "one");
    let peers = || two.server().inspector().node().expect("a node").peers;
    wait_until("they meet", || (!peers().is_empty()).then_some(()));
    for number in 0..MESSAGES {
        let payload = number.to_string();
        let message = Message::with_id(Kind::OneWay, 7, 0, payload.as_bytes());
        let sessions = two.server().sessions();
        sessions.send_to_address(&address, &message).expect("room");
    }
    for number in 0..MESSAGES {
        let message = peer.receive().expect("a message, not the end");
        assert_eq!((message.kind, message.channel), (Kind::OneWay, 7));
        assert_eq!(message.payload, number.to_string().as_bytes());
    }
    // A server that does not exist, and an earlier run of an existing server.
    let message = Message::new(Kind::OneWay, 0, b"to nobody");
    for wrong in [
        "three.1.1".to_owned(),
        format!("one.1.{}", address.session()),
    ] {
        let wrong: SessionAddress = wrong.parse().expect("an address");
        let sessions = two.server().sessions();
        sessions.send_to_address(&wrong, &message).expect("room");
    }
    drop(peer);
    let metrics = two.stop();
    assert_eq!(
        metrics.backplane_sent + metrics.backplane_unsent,
        MESSAGES + 2
    );
    assert_eq!(metrics.backplane_unsent, 2);
    let metrics = one.stop();
    assert_eq!(
        metrics.backplane_received + metrics.backplane_dropped,
        MESSAGES
    );
}
