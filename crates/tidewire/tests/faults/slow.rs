//! A subscriber that stops reading among many: its policy acts and is counted, and other subscribers are not affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tidewire::metrics::Metrics;
use tidewire::{AnyCodec, Chat, Limits, Server, ServerBuilder};
use tidewire_proto::room::Policy;
use tidewire_testkit::{Peer, RoomEvent, TestServer, wait_until};

use crate::{lines, tw1};

const MESSAGES: usize = 4000;
/// Far less than a stall of this test amounts to, and far more than [`CHUNK`], so only a stall can exceed it.
const LAG_MESSAGES_MAX: u64 = 400;
/// Largest distance of the publisher from the slowest reader.
const CHUNK: usize = 100;

/// The setup of a scene.
#[derive(Clone)]
struct Stage {
    over_tcp: bool,
    codec: AnyCodec,
    lanes: usize,
    /// Number of readers beside the stalled reader.
    readers: usize,
    message_bytes: usize,
}

/// Many readers over a Unix socket: its buffer is small and fixed, so a stall takes effect soon.
fn unix() -> Stage {
    Stage {
        over_tcp: false,
        codec: tw1(),
        lanes: 1,
        readers: 60,
        message_bytes: 400,
    }
}

/// Few readers over TCP: its buffers grow to megabytes, so the messages are large.
fn tcp() -> Stage {
    Stage {
        over_tcp: true,
        readers: 10,
        message_bytes: 2000,
        ..unix()
    }
}

/// Readers on separate threads, one subscriber that does not read yet, and a publisher.
struct Scene {
    server: TestServer,
    readers: Vec<JoinHandle<()>>,
    heard: Vec<Arc<AtomicUsize>>,
    stalled: Peer,
    publisher: Peer,
    message_bytes: usize,
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.rooms.set_lag_messages_max(LAG_MESSAGES_MAX);
    // Long enough that only a test of the deadline itself reaches it.
    limits.rooms.set_block_deadline(Duration::from_secs(600));
    // Presence would add to the losses of a subscriber, and has its own test.
    limits.rooms.set_presence_members_max(0);
    // Readers answer no pings, and a very busy machine may take longer than a heartbeat.
    limits.connections.set_heartbeat(Duration::ZERO);
    limits.connections.set_idle_timeout(Duration::MAX);
    limits
}

fn message(number: usize, bytes: usize) -> Vec<u8> {
    let mut text = format!("{number}:").into_bytes();
    text.resize(bytes, b'.');
    text
}

fn number_of(payload: &[u8]) -> usize {
    let text = String::from_utf8_lossy(payload);
    let (number, rest) = text.split_once(':').expect("a numbered message");
    // A kilobyte at once: byte by byte it takes half the processor time of all these tests.
    let dots = [b'.'; 1024];
    let mut pieces = rest.as_bytes().chunks(dots.len());
    assert!(
        pieces.all(|piece| piece == &dots[..piece.len()]),
        "a whole message"
    );
    number.parse().expect("a number")
}

impl Scene {
    fn set(stage: &Stage, policy: Policy, limits: Limits) -> Self {
        let builder = Server::builder().limits(limits);
        Self::of(stage, builder, &Chat::new().policy(policy))
    }

    fn of(stage: &Stage, builder: ServerBuilder, chat: &Chat) -> Self {
        let (builder, chat) = (builder.lanes(stage.lanes), chat.clone());
        let make = move |_| chat.clone();
        let server = if stage.over_tcp {
            TestServer::over_tcp(builder, &stage.codec, make)
        } else {
            TestServer::over_ipc(builder, &stage.codec, make)
        };
        let mut publisher = server.peer();
        publisher.join("lobby", "publisher").unwrap();
        let (mut readers, mut heard) = (Vec::new(), Vec::new());
        for index in 0..stage.readers {
            let mut peer = server.peer();
            peer.join("lobby", &format!("reader{index}")).unwrap();
            let count = Arc::new(AtomicUsize::new(0));
            heard.push(Arc::clone(&count));
            readers.push(std::thread::spawn(move || {
                for number in 0..MESSAGES {
                    let (_, payload) = peer.next_message();
                    assert_eq!(number_of(&payload), number, "reader {index}");
                    count.store(number + 1, Ordering::SeqCst);
                }
            }));
        }
        let mut stalled = server.narrow_peer();
        stalled.join("lobby", "stalled").unwrap();
        Self {
            server,
            readers,
            heard,
            stalled,
            publisher,
            message_bytes: stage.message_bytes,
        }
    }

    /// Publishes messages and waits for the readers after each chunk, so that a busy machine makes none of them slow.
    fn publish(&mut self, numbers: std::ops::Range<usize>) {
        let mut number = numbers.start;
        while number < numbers.end {
            let end = (number + CHUNK).min(numbers.end);
            let frames: Vec<u8> = (number..end)
                .flat_map(|number| {
                    self.publisher
                        .say_frame(&message(number, self.message_bytes))
                })
                .collect();
            self.publisher.write(&frames);
            number = end;
            wait_until("all readers hear the chunk", || {
                let all = self
                    .heard
                    .iter()
                    .all(|count| count.load(Ordering::SeqCst) >= end);
                all.then_some(())
            });
        }
    }

    /// Ends everything and returns the counters. All readers have then received everything.
    fn end(self) -> Metrics {
        for reader in self.readers {
            reader
                .join()
                .expect("a reader that heard everything in order");
        }
        drop((self.stalled, self.publisher));
        self.server.stop()
    }
}

/// Resumes reading as the stalled subscriber, and checks that every gap is announced with its exact size. Returns the
/// number of received and of lost messages, and the number of the last message.
fn catch_up(peer: &mut Peer, total: usize) -> (usize, usize, usize) {
    let (mut heard, mut lost, mut last) = (0, 0, 0);
    while heard + lost < total {
        match peer.hear() {
            Some(RoomEvent::Message { payload, .. }) => {
                assert_eq!(
                    number_of(&payload),
                    heard + lost,
                    "a hole that was not announced"
                );
                last = number_of(&payload);
                heard += 1;
            }
            Some(RoomEvent::Gap(count)) => lost += count as usize,
            other => panic!("neither a message nor a gap: {other:?}"),
        }
    }
    assert_eq!(heard + lost, total);
    (heard, lost, last)
}

/// The common part of the dropping policies: the stalled subscriber gets the exact number of lost messages.
fn drops_and_tells(stage: &Stage, policy: Policy) -> (usize, usize, usize) {
    drops_and_tells_in(Scene::set(stage, policy, limits()))
}

fn drops_and_tells_in(mut scene: Scene) -> (usize, usize, usize) {
    scene.publish(0..MESSAGES);
    let (heard, lost, last) = catch_up(&mut scene.stalled, MESSAGES);
    assert!(lost > 0, "the policy fired");
    let metrics = scene.end();
    assert_eq!(
        metrics.room_dropped_by("policy"),
        lost as u64,
        "counted as the policy's"
    );
    assert_eq!(metrics.closed_by("slow_subscriber"), 0);
    assert!(metrics.gaps_announced > 0);
    (heard, lost, last)
}

/// Regression: a chat without a policy disconnected slow members, with any policy of its server.
#[test]
fn a_chat_without_a_policy_has_that_of_its_server() {
    let builder = Server::builder().limits(limits());
    let builder = builder.slow_subscribers(Policy::DropOldest);
    drops_and_tells_in(Scene::of(&unix(), builder, &Chat::new()));
}

#[test]
fn a_slow_subscriber_is_disconnected_and_the_others_hear_everything() {
    disconnects(&unix());
}

#[test]
fn a_slow_subscriber_over_tcp_is_disconnected_and_the_others_hear_everything() {
    disconnects(&tcp());
}

fn disconnects(stage: &Stage) {
    let mut scene = Scene::set(stage, Policy::Disconnect, limits());
    scene.publish(0..MESSAGES);
    let server = &scene.server;
    server.wait_for("the policy fires", |metrics| {
        metrics.closed_by("slow_subscriber") == 1
    });
    // Messages in the kernel's buffer can still be read. Then the end comes.
    let mut next = 0;
    while let Some(heard) = scene.stalled.hear() {
        match heard {
            RoomEvent::Message { payload, .. } => {
                assert_eq!(number_of(&payload), next);
                next += 1;
            }
            other => panic!("neither a message nor the end: {other:?}"),
        }
    }
    assert!(next < MESSAGES);
    let metrics = scene.end();
    assert_eq!(metrics.closed_by("slow_subscriber"), 1);
    assert!(
        metrics.room_dropped_by("closed") > LAG_MESSAGES_MAX,
        "counted as its close's"
    );
}

#[test]
fn drop_oldest_keeps_the_newest_and_tells_the_loss() {
    let (heard, _, last) = drops_and_tells(&unix(), Policy::DropOldest);
    assert_eq!(last, MESSAGES - 1, "the newest is kept");
    assert!(heard as u64 >= LAG_MESSAGES_MAX);
}

#[test]
fn drop_oldest_tells_the_loss_over_tcp_and_in_lines() {
    let (_, _, last) = drops_and_tells(&tcp(), Policy::DropOldest);
    assert_eq!(last, MESSAGES - 1);
    let lines = Stage {
        codec: lines(),
        ..unix()
    };
    let (_, _, last) = drops_and_tells(&lines, Policy::DropOldest);
    assert_eq!(last, MESSAGES - 1);
}

#[test]
fn drop_newest_keeps_waiting_messages_and_reports_the_loss() {
    let (heard, _, last) = drops_and_tells(&unix(), Policy::DropNewest);
    assert!(heard as u64 >= LAG_MESSAGES_MAX);
    assert_eq!(
        last,
        heard - 1,
        "all that is kept is older than all that is lost"
    );
}

#[test]
fn conflate_keeps_the_last_and_tells_the_loss() {
    let (_, _, last) = drops_and_tells(&unix(), Policy::Conflate);
    assert_eq!(last, MESSAGES - 1, "the newest is kept");
}

#[test]
fn block_holds_the_publisher_until_the_subscriber_reads_and_loses_nothing() {
    block_loses_nothing(&unix());
}

#[test]
fn block_holds_publishers_of_other_lanes_too() {
    block_loses_nothing(&Stage { lanes: 3, ..unix() });
}

fn block_loses_nothing(stage: &Stage) {
    let Scene {
        server,
        readers,
        mut stalled,
        publisher,
        message_bytes,
        ..
    } = Scene::set(stage, Policy::Block, limits());
    // The publisher sends without waiting: it would send everything at once if it were not paused.
    let publishing = std::thread::spawn(move || {
        let mut publisher = publisher;
        for number in 0..MESSAGES {
            publisher.say(&message(number, message_bytes));
        }
        publisher
    });
    server.wait_for("the publisher is held", |metrics| {
        metrics.publishers_held > 0
    });
    assert!(server.metrics().chat_messages < MESSAGES as u64);
    let (heard, lost, _) = catch_up(&mut stalled, MESSAGES);
    assert_eq!((heard, lost), (MESSAGES, 0));
    for reader in readers {
        reader
            .join()
            .expect("a reader that heard everything in order");
    }
    drop((publishing.join().expect("the publisher"), stalled));
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("slow_subscriber"), 0);
    assert_eq!(metrics.room_dropped_total(), 0, "{metrics:#?}");
}

#[test]
fn block_gives_up_on_the_subscriber_at_its_deadline() {
    let mut limits = limits();
    // Long enough that the publisher publishes within it on a busy machine, and so is paused.
    limits.rooms.set_block_deadline(Duration::from_secs(1));
    let mut scene = Scene::set(&unix(), Policy::Block, limits);
    scene.publish(0..MESSAGES);
    let metrics = scene.end();
    assert!(metrics.publishers_held > 0);
    assert_eq!(metrics.closed_by("slow_subscriber"), 1);
}

/// Regression: the kernel kept the bytes for a closed slow subscriber for minutes, as long as its peer lived.
#[test]
fn the_connection_of_a_slow_subscriber_is_soon_gone_from_the_kernel() {
    let builder = Server::builder().limits(limits());
    let server = TestServer::over_tcp(builder, &tw1(), |_| Chat::new());
    let mut stalled = server.narrow_peer();
    stalled.join("room", "stalled").unwrap();
    let mut publisher = server.peer();
    publisher.join("room", "publisher").unwrap();
    let text = message(0, 60_000);
    let metrics = server.wait_for("it is closed", |metrics| {
        publisher.say(&text);
        metrics.closed_by("slow_subscriber") == 1
    });
    assert_eq!(metrics.sessions_closed(), 1);
    let url = server.url();
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    let local = format!(":{port:04X}");
    // The peer lives and does not read.
    wait_until("the kernel has no unfinished end at this port", || {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let mut rows = table
            .lines()
            .map(|row| row.split_whitespace().collect::<Vec<_>>());
        let is_left =
            rows.any(|row| row.len() > 3 && row[1].ends_with(&local) && row[3] == FIN_WAIT_1);
        (!is_left).then_some(())
    });
    drop(stalled);
}

/// The state of a connection that has ended on this side, with bytes that the peer has not taken.
const FIN_WAIT_1: &str = "04";
