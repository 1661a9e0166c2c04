//! A client with an application that does not take events: the kept and dropped events, and the traffic that continues.

use std::time::Duration;

use tidewire::limits::ConnectionLimits;
use tidewire::{
    Client, ClientBuilder, Limits, Policy, RequestError, Server, Subscription, TopicEvent,
    WhenEventsFull,
};
use tidewire_testkit::{Peer, TestServer, wait_until};

use super::{publish, serve, tw1};

const PAYLOAD_BYTES: usize = 1_000;
const EVENT_BYTES_MAX: usize = 100_000;
pub(super) const PUBLISHED: u64 = 20_000;

/// A server that drops the oldest messages of a subscriber that is a little behind.
pub(super) fn impatient() -> TestServer {
    let mut limits = Limits::default();
    limits.rooms.set_lag_bytes_max(1 << 20);
    let builder = Server::builder()
        .limits(limits)
        .slow_subscribers(Policy::DropOldest);
    TestServer::over_tcp(builder, &tw1(), |_| tidewire::PubSub::new())
}

fn client(server: &TestServer, change: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Client {
    let builder = Client::builder().event_bytes_max(EVENT_BYTES_MAX);
    change(builder).connect(&server.url()).wait().unwrap()
}

pub(super) fn wait_for(what: &str, mut fact: impl FnMut() -> bool) {
    wait_until(what, || fact().then_some(()));
}

/// Publishes more than the sockets between server and client hold, and waits until the server has handled it.
pub(super) fn flood(peer: &mut Peer, topic: &str) {
    for _ in 0..PUBLISHED / 100 {
        for _ in 0..100 {
            publish(peer, topic, &[7; PAYLOAD_BYTES]);
        }
        super::ask(peer, tidewire::Kind::Request, 0, b"").unwrap();
    }
}

/// Takes events until a whole flood is accounted for. Returns the numbers of messages that were delivered, dropped by
/// the server, and dropped by the client.
pub(super) fn account(subscription: &Subscription) -> [u64; 3] {
    let mut counts = [0; 3];
    while counts.iter().sum::<u64>() < PUBLISHED {
        match subscription.next_event().wait() {
            TopicEvent::Message(_) => counts[0] += 1,
            TopicEvent::Gap { lost } => counts[1] += lost,
            TopicEvent::Lost { count } => counts[2] += count,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(counts.iter().sum::<u64>(), PUBLISHED);
    counts
}

/// Regression: a stalled subscriber's client kept everything in memory, up to 65,536 messages of any size.
#[test]
fn a_client_that_pauses_reading_leaves_it_to_the_servers_policy() {
    let server = impatient();
    let client = client(&server, |builder| {
        builder.when_events_full(WhenEventsFull::PauseReading)
    });
    let subscription = client.subscribe("a.b").wait().unwrap();
    flood(&mut server.peer(), "a.b");
    wait_for("reading pauses", || client.metrics().reads_paused > 0);
    // No reply is read then, as the policy documents.
    let short = Duration::from_millis(50);
    let unread = client.request(b"").timeout(short).wait().unwrap_err();
    assert_eq!(unread, RequestError::TimedOut);
    let [_, gaps, lost] = account(&subscription);
    assert!(gaps > 0, "the server dropped nothing");
    assert_eq!((lost, client.metrics().events_dropped), (0, 0));
    client.request(b"").wait().unwrap();
    client.close().wait();
}

/// If a client paused reading by default, a thread that waits for a reply before it takes events would wait for ever.
#[test]
fn by_default_replies_come_while_events_wait() {
    let server = serve(1);
    let client = client(&server, |builder| builder);
    let subscription = client.subscribe("a.b").wait().unwrap();
    flood(&mut server.peer(), "a.b");
    // The welcome and the reply to the subscription are frames too. Frames after them would find the room that taking
    // events makes.
    let frames = PUBLISHED + 2;
    wait_for("all has come", || client.metrics().frames_in >= frames);
    assert!(client.metrics().events_dropped > 0);
    client.request(b"").wait().unwrap();
    let [delivered, _, lost] = account(&subscription);
    assert_eq!(client.metrics().events_dropped, lost);
    assert!(delivered * (PAYLOAD_BYTES as u64) <= EVENT_BYTES_MAX as u64);
    client.close().wait();
}

#[test]
fn a_full_subscription_that_is_dropped_lets_its_client_read_on() {
    let server = impatient();
    let client = client(&server, |builder| {
        builder.when_events_full(WhenEventsFull::PauseReading)
    });
    let [full, other] = ["a.b", "c.d"].map(|pattern| client.subscribe(pattern).wait().unwrap());
    flood(&mut server.peer(), "a.b");
    wait_for("reading pauses", || client.metrics().reads_paused > 0);
    drop(full);
    publish(&mut server.peer(), "c.d", b"heard");
    assert_eq!(super::heard(&other), ("c.d".into(), "heard".into()));
    client.close().wait();
}

/// Regression: silence ended a session that its own client did not read.
#[test]
fn a_client_that_pauses_reading_does_not_take_the_silence_for_the_servers() {
    let server = impatient();
    let mut limits = ConnectionLimits::default();
    limits
        .set_idle_timeout(Duration::from_millis(100))
        .set_heartbeat(Duration::from_millis(20));
    let client = client(&server, |builder| {
        builder
            .when_events_full(WhenEventsFull::PauseReading)
            .limits(limits)
    });
    let subscription = client.subscribe("a.b").wait().unwrap();
    flood(&mut server.peer(), "a.b");
    wait_for("reading pauses", || client.metrics().reads_paused > 0);
    let before = server.metrics().frames_in;
    wait_for("pings go on for longer than the idle timeout", || {
        server.metrics().frames_in >= before + 10
    });
    account(&subscription);
    client.request(b"").wait().unwrap();
    client.close().wait();
}
