//! Publish/subscribe over real sockets: deliveries, refusals, slow subscribers, reconnects.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod delivery;
mod groups;
mod newest;
mod reconnect;
mod refusal;
mod slow;
mod stalled;
mod unread;

use tidewire::{Kind, Message, OwnedMessage, Policy, Server, Subscription, TopicEvent};
use tidewire_proto::body::{ErrorBody, ErrorCode, SubscribeBody};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{Peer, TestServer};

fn serve(lanes: usize) -> TestServer {
    let builder = Server::builder().lanes(lanes);
    TestServer::over_tcp(builder, &tw1(), |_| tidewire::PubSub::new())
}

/// Waits for the next message of a subscription. Returns its topic and text.
fn heard(subscription: &Subscription) -> (String, String) {
    match subscription.next_event().wait() {
        TopicEvent::Message(message) => (
            message.topic.to_string(),
            String::from_utf8(message.payload).unwrap(),
        ),
        other => panic!("no message: {other:?}"),
    }
}

/// Subscribes as a raw peer. Returns the alias, or the code of the refusal.
fn subscribe(peer: &mut Peer, pattern: &str, policy: Option<Policy>) -> Result<u16, ErrorCode> {
    let mut body = Vec::new();
    SubscribeBody {
        policy,
        pattern,
        group: None,
    }
    .encode(&mut body);
    ask(peer, Kind::Subscribe, 0, &body).map(|reply| reply.channel)
}

/// Sends a frame that expects an answer. Returns the answer or the refusal.
fn ask(
    peer: &mut Peer,
    kind: Kind,
    channel: u16,
    payload: &[u8],
) -> Result<OwnedMessage, ErrorCode> {
    peer.send(&Message::with_id(kind, channel, 1, payload));
    let answer = peer.receive().expect("an answer, not the end");
    assert_eq!(answer.id, 1, "{answer:?}");
    match answer.kind {
        Kind::Reply => Ok(answer),
        Kind::Error => Err(ErrorBody::decode(&answer.payload).unwrap().code),
        other => panic!("neither a reply nor an error: {other:?}"),
    }
}

fn publish(peer: &mut Peer, topic: &str, payload: &[u8]) {
    peer.send(&Message::new(Kind::Publish, 0, payload).with_name(topic));
}
