//! Allocations of rooms and topics: one sender, many receivers.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidewire::metrics::Metrics;
use tidewire::{Chat, Kind, Message, PubSub, Server};
use tidewire_io::allocation::marked_allocations;
use tidewire_proto::body::SubscribeBody;
use tidewire_proto::codec::Codec;
use tidewire_testkit::{Peer, TestServer, Wire, wait_until};

use crate::{Counted, alone, tw1, without_pings};

/// Sends `chunks` of messages to a room. Its members read on their own threads, at most one chunk behind. Returns the
/// number of delivered messages and of allocations after the warm-up.
fn fan_out(lanes: usize, chunk: usize, chunks: usize) -> (usize, u64) {
    let builder = Server::builder().lanes(lanes).limits(without_pings());
    let server = TestServer::over_tcp(builder, &tw1(), |_| Counted(Chat::new()));
    fan_out_on(server, chunk, chunks)
}

fn fan_out_on(server: TestServer, chunk: usize, chunks: usize) -> (usize, u64) {
    let payload = [b'x'; 400];
    let frame_bytes = 12 + payload.len();
    let mut peers: Vec<Peer> = Vec::new();
    for index in 0..=READERS {
        let mut peer = server.peer();
        let name = format!("member{index}");
        peer.join("lobby", &name).unwrap();
        for (earlier, other) in peers.iter_mut().enumerate() {
            other.hear_of(&name);
            peer.hear_of(&format!("member{earlier}"));
        }
        peers.push(peer);
    }
    let publisher = peers.pop().unwrap();
    let frame = publisher.say_frame(&payload);
    let spread = Spread {
        server,
        publisher,
        frame,
        peers,
        frame_bytes,
    };
    let (metrics, said, allocations) = spread.measure(chunk, chunks);
    assert_eq!(metrics.chat_messages, said);
    (READERS * chunk * chunks, allocations)
}

/// Publishes to a topic. Some subscribers use an exact pattern, some a wildcard; the publisher is not one of them.
/// Returns the same numbers as [`fan_out`].
fn publish_out(lanes: usize, chunk: usize, chunks: usize) -> (usize, u64) {
    const TOPIC: &str = "load.test";
    let builder = Server::builder().lanes(lanes).limits(without_pings());
    let server = TestServer::over_tcp(builder, &tw1(), |_| Counted(PubSub::new()));
    let peers: Vec<Peer> = (0..READERS)
        .map(|_| {
            let mut peer = server.peer();
            for pattern in [TOPIC, "load.*"] {
                let mut body = Vec::new();
                let policy = None;
                SubscribeBody {
                    policy,
                    pattern,
                    group: None,
                }
                .encode(&mut body);
                peer.send(&Message::with_id(Kind::Subscribe, 0, 1, &body));
                assert_eq!(peer.answer().kind, Kind::Reply);
            }
            peer
        })
        .collect();
    let payload = [b'x'; 400];
    let mut frame = Vec::new();
    let message = Message::new(Kind::Publish, 0, &payload).with_name(TOPIC);
    tw1().encode(&message, &mut frame).unwrap();
    let exact_bytes = 12 + payload.len();
    let spread = Spread {
        publisher: server.peer(),
        server,
        frame,
        peers,
        frame_bytes: exact_bytes + (exact_bytes + 1 + TOPIC.len()),
    };
    let (metrics, published, allocations) = spread.measure(chunk, chunks);
    assert_eq!(metrics.published, published);
    assert_eq!(metrics.room_delivered, published * 2 * READERS as u64);
    (READERS * chunk * chunks, allocations)
}

/// One publisher and many readers, each on its own thread.
struct Spread {
    server: TestServer,
    publisher: Peer,
    /// An encoded message of the publisher.
    frame: Vec<u8>,
    peers: Vec<Peer>,
    /// Size of the frame that each reader receives.
    frame_bytes: usize,
}

impl Spread {
    /// Sends chunks of messages, at most one chunk ahead of the readers. Returns the counters at the end, the number of
    /// messages including the warm-up, and the number of allocations after it.
    fn measure(self, chunk: usize, chunks: usize) -> (Metrics, u64, u64) {
        let Self {
            server,
            mut publisher,
            frame,
            peers,
            frame_bytes,
        } = self;
        let messages = chunk * chunks;
        // Enough messages to fill several segments of the log, so that the segments reach their largest size.
        let warm_up = 1_000;
        let mut heard = Vec::new();
        let mut threads = Vec::new();
        for peer in peers {
            let count = Arc::new(AtomicUsize::new(0));
            heard.push(Arc::clone(&count));
            let mut wire = peer.into_wire();
            threads.push(std::thread::spawn(move || {
                let mut buffer = vec![0; 64 * 1024];
                let mut bytes = 0;
                while bytes < (warm_up + messages) * frame_bytes {
                    bytes += wire.read(&mut buffer).unwrap();
                    count.store(bytes / frame_bytes, Ordering::SeqCst);
                }
                wire
            }));
        }
        let frames = frame.repeat(chunk);
        let mut said = 0;
        let mut run = |count: usize| {
            let end = said + count;
            while said < end {
                publisher.write(&frames);
                said += chunk;
                wait_until("all members hear the chunk", || {
                    let all = heard
                        .iter()
                        .all(|count| count.load(Ordering::SeqCst) >= said);
                    all.then_some(())
                });
            }
        };
        run(warm_up);
        let before = marked_allocations();
        run(messages);
        let allocations = marked_allocations() - before;
        let wires: Vec<Wire> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        drop((wires, publisher));
        let metrics = server.stop();
        assert_eq!(metrics.room_dropped_by("policy"), 0);
        (metrics, (warm_up + messages) as u64, allocations)
    }
}

#[test]
fn fan_out_allocates_nothing_per_message() {
    let _alone = alone();
    assert_eq!(fan_out(1, 100, 60), (120_000, 0));
}

#[test]
fn fan_out_over_lanes_allocates_nothing_per_message() {
    let _alone = alone();
    // One message at a time, so that the number of batches between the lanes is constant from the start.
    assert_eq!(fan_out(2, 1, 500), (10_000, 0));
}

#[test]
fn fan_out_over_udp_allocates_nothing_per_message() {
    let _alone = alone();
    let builder = Server::builder().limits(without_pings());
    let server = TestServer::over_udp(builder, &tw1(), |_| Counted(Chat::new()));
    let (messages, allocations) = fan_out_on(server, 100, 60);
    assert_eq!(messages, 120_000);
    // The size of a sweep depends on the arrival of datagrams. The lane's only buffer for them doubles if a sweep is
    // larger than all before.
    assert!(allocations <= 2, "{allocations}");
}

#[test]
fn publishing_allocates_nothing_per_message() {
    let _alone = alone();
    assert_eq!(publish_out(1, 100, 60), (120_000, 0));
}

#[test]
fn publishing_over_lanes_allocates_nothing_per_message() {
    let _alone = alone();
    assert_eq!(publish_out(2, 1, 500), (10_000, 0));
}

/// Number of members of the room.
const READERS: usize = 20;
