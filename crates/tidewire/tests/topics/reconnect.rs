//! A client that loses its server. The conformance suite tests the resumed subscriptions.

use tidewire::{Client, PubSub, Server, TopicEvent};
use tidewire_testkit::TestServer;

use crate::tw1;

#[test]
fn without_reconnecting_a_subscription_ends_with_its_connection() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let client = Client::connect(&server.url()).wait().unwrap();
    let subscription = client.subscribe("a").wait().unwrap();
    server.stop();
    assert!(matches!(
        subscription.next_event().wait(),
        TopicEvent::Interrupted { .. }
    ));
    assert_eq!(subscription.next_event().wait(), TopicEvent::Ended);
    assert_eq!(subscription.next_event().wait(), TopicEvent::Ended);
}
