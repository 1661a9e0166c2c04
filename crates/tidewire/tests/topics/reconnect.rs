//! A client whose server goes and comes back.

use std::time::Duration;

use tidewire::{Backoff, Client, CloseReason, PubSub, RequestError, Server, TopicEvent};
use tidewire_testkit::TestServer;

use crate::{heard, tw1};

const SOON: Backoff = Backoff {
    first: Duration::from_millis(1),
    max: Duration::from_millis(20),
};

#[test]
fn subscriptions_are_made_again_on_a_new_connection() {
    let server = TestServer::over_ipc(Server::builder(), &tw1(), |_| PubSub::new());
    let address = server.url();
    let client = Client::builder().reconnect(SOON).connect(&address).unwrap();
    let exact = client.subscribe("a.b").unwrap();
    let wildcard = client.subscribe("a.>").unwrap();
    let dropped = client.subscribe("c").unwrap();
    client.publish("a.b", b"before").unwrap();
    assert_eq!(heard(&exact).1, "before");
    assert_eq!(heard(&wildcard).1, "before");
    drop(dropped);

    let directory = server.stop_for_restart();
    for subscription in [&exact, &wildcard] {
        assert!(matches!(
            subscription.next(),
            TopicEvent::Interrupted {
                reason: CloseReason::GoAway(_) | CloseReason::PeerClosed
            }
        ));
    }
    let again = Server::builder().listen(&address).unwrap();
    let again = again.start(|_| PubSub::new()).unwrap();
    for subscription in [&exact, &wildcard] {
        assert_eq!(subscription.next(), TopicEvent::Resumed);
    }
    client.publish("a.b", b"after").unwrap();
    assert_eq!(heard(&exact).1, "after");
    assert_eq!(heard(&wildcard), ("a.b".to_owned(), "after".to_owned()));
    client.close();
    assert_eq!(exact.next(), TopicEvent::Ended);
    assert!(matches!(
        client.subscribe("late"),
        Err(RequestError::Shutdown)
    ));
    let stopped = again.shutdown(Duration::from_secs(5));
    tidewire_testkit::assert_conserved(&stopped);
    drop(directory);
}

#[test]
fn without_reconnecting_a_subscription_ends_with_its_connection() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let client = Client::connect(&server.url()).unwrap();
    let subscription = client.subscribe("a").unwrap();
    server.stop();
    assert!(matches!(
        subscription.next(),
        TopicEvent::Interrupted { .. }
    ));
    assert_eq!(subscription.next(), TopicEvent::Ended);
    assert_eq!(subscription.next(), TopicEvent::Ended);
}
