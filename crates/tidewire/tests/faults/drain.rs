//! What is on its way when a server drains.

use std::thread;
use std::time::Duration;

use tidewire::{Kind, Message, PubSub};
use tidewire_proto::body::SubscribeBody;
use tidewire_testkit::{Peer, TestServer, assert_conserved};

use crate::{limited, tw1};

/// Lanes reach the deadline of a drain one after another. What a lane had for one that had ended was lost, confirmed and
/// not counted.
fn publications_between_lanes_are_accounted_for(lanes: usize, drain: Duration) {
    let builder = limited(|limits| {
        limits.lag_bytes_max = u64::MAX;
        limits.lag_messages_max = u64::MAX;
    });
    let server = TestServer::over_tcp(builder.lanes(lanes), &tw1(), |_| PubSub::new());
    // Connections go to the lanes in turn, so each lane has one subscriber and one publisher.
    let mut peers: Vec<Peer> = (0..lanes).map(|_| subscriber(&server)).collect();
    let mut publishers: Vec<Peer> = (0..lanes).map(|_| server.peer()).collect();
    let metrics = thread::scope(|scope| {
        for peer in &mut peers {
            // It does not care for the go-away, but reads to the end.
            scope.spawn(|| while peer.receive().is_some() {});
        }
        for peer in &mut publishers {
            scope.spawn(|| publish_to_the_end(peer));
        }
        server.wait_for("messages are on their way", |metrics| {
            metrics.published > 1_000
        });
        let stopped = server.shutdown(drain);
        assert_conserved(&stopped);
        stopped.metrics
    });
    // What a lane that has ended is sent counts once, and every lane has one subscriber.
    assert_eq!(
        metrics.published * lanes as u64,
        metrics.room_offered + metrics.mail_undelivered,
        "{metrics:#?}"
    );
    let cut_off = metrics.sessions_cut_off + metrics.mail_undelivered;
    assert!(
        cut_off > 0 || metrics.room_offered == metrics.room_delivered,
        "{metrics:#?}"
    );
}

fn subscriber(server: &TestServer) -> Peer {
    let mut peer = server.peer();
    let mut body = Vec::new();
    let subscribe = SubscribeBody {
        policy: None,
        pattern: "news",
    };
    subscribe.encode(&mut body);
    peer.send(&Message::with_id(Kind::Subscribe, 0, 1, &body));
    assert_eq!(peer.receive().unwrap().kind, Kind::Reply);
    peer
}

/// Publishes in blocks, each confirmed, until the server is gone, whatever it says.
fn publish_to_the_end(peer: &mut Peer) {
    let mut block = Vec::new();
    for _ in 0..50 {
        let message = Message::new(Kind::Publish, 0, b"told").with_name("news");
        tw1_frame(&message, &mut block);
    }
    loop {
        let mut frames = block.clone();
        frames.extend(peer.request_frame(&[]));
        if peer.try_write(&frames).is_err() {
            return;
        }
        loop {
            match peer.receive() {
                None => return,
                Some(message) if message.kind == Kind::Reply => break,
                Some(message) if message.kind == Kind::Error && message.id > 0 => break,
                Some(_) => {}
            }
        }
    }
}

fn tw1_frame(message: &Message<'_>, out: &mut Vec<u8>) {
    use tidewire::proto::codec::Codec;
    tw1().encode(message, out).unwrap();
}

#[test]
fn confirmed_publications_are_not_lost_between_two_lanes_at_the_drain_deadline() {
    for _ in 0..5 {
        publications_between_lanes_are_accounted_for(2, Duration::ZERO);
    }
    publications_between_lanes_are_accounted_for(2, Duration::from_millis(50));
}

#[test]
fn confirmed_publications_are_not_lost_between_four_lanes_at_the_drain_deadline() {
    for _ in 0..5 {
        publications_between_lanes_are_accounted_for(4, Duration::ZERO);
    }
    publications_between_lanes_are_accounted_for(4, Duration::from_millis(50));
}
