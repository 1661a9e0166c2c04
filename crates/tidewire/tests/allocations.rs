//! What a lane allocates: nothing per message in the steady state, little per idle session.
//!
//! Only the lanes' own threads are counted, and only one test runs at a time, since the counters are the process's.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidewire::io::allocation::{
    CountingAllocator, bytes_held, mark_this_thread, marked_allocations,
};
use tidewire::proto::body::SubscribeBody;
use tidewire::proto::codec::Codec;
use tidewire::{
    AnyCodec, Chat, Client, CloseReason, Context, DropReason, HandlerResult, Kind, Limits, Message,
    Metrics, PubSub, Request, Server, Service,
};
use tidewire_testkit::{Peer, TestServer, Wire, wait_until};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// A service whose lane is counted.
#[derive(Clone)]
struct Counted<S>(S);

impl<S: Service> Service for Counted<S> {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        mark_this_thread();
        self.0.on_open(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.payload == HOLD {
            IS_HELD.store(true, Ordering::SeqCst);
            drop(GATE.lock().unwrap_or_else(PoisonError::into_inner));
            IS_HELD.store(false, Ordering::SeqCst);
        }
        self.0.on_message(cx, message)
    }

    fn on_close(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        self.0.on_close(cx, reason);
    }
}

fn echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    cx.reply(message.payload)
}

fn deferred_echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    Ok(cx.defer().reply(message.payload)?)
}

fn wasteful_echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    let copy = message.payload.to_vec();
    cx.reply(&copy)
}

fn tw1() -> AnyCodec {
    AnyCodec::by_name("tw1").unwrap()
}

/// On a very busy machine a test may take longer than a heartbeat, and a ping is not what is counted.
fn without_pings() -> Limits {
    Limits {
        heartbeat: Duration::ZERO,
        idle_timeout: Duration::MAX,
        ..Limits::default()
    }
}

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that stops its lane for as long as the test holds [`GATE`].
const HOLD: &[u8] = b"hold";
static GATE: Mutex<()> = Mutex::new(());
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// Stops the lane while `work` runs, so that it finds everything that `work` did at once.
fn while_held(holder: &mut Peer, work: impl FnOnce()) {
    let gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    holder.ask(HOLD);
    wait_until("the lane is held", || {
        IS_HELD.load(Ordering::SeqCst).then_some(())
    });
    work();
    drop(gate);
    assert_eq!(holder.answer().payload, HOLD);
}

/// Echoes rounds of `batch` requests on each of several connections. Returns how many messages and allocations the
/// rounds after the warm-up made.
fn echo_rounds<S: Service + Clone>(service: &S, batch: usize, rounds: usize) -> (usize, u64) {
    let server = TestServer::over_tcp(Server::builder().limits(without_pings()), &tw1(), |_| {
        Counted(service.clone())
    });
    echo_rounds_on(server, batch, rounds)
}

fn echo_rounds_on(server: TestServer, batch: usize, rounds: usize) -> (usize, u64) {
    const SESSIONS: usize = 8;
    let mut wires: Vec<(Wire, Vec<u8>)> = (0..SESSIONS)
        .map(|_| {
            let mut peer = server.peer();
            let frames = (0..batch)
                .flat_map(|number| peer.request_frame(&[number as u8; 32]))
                .collect();
            (peer.into_wire(), frames)
        })
        .collect();
    // The most buffers are in use when all sessions are ready in the same turn, which chance may bring about late.
    let mut holder = server.peer();
    for _ in 0..3 {
        while_held(&mut holder, || write_all(&mut wires));
        read_all(&mut wires);
    }
    let before = marked_allocations();
    for _ in 0..rounds {
        write_all(&mut wires);
        read_all(&mut wires);
    }
    let allocations = marked_allocations() - before;
    drop(holder);
    drop(wires);
    server.stop();
    (SESSIONS * batch * rounds, allocations)
}

fn write_all(wires: &mut [(Wire, Vec<u8>)]) {
    for (wire, frames) in wires {
        wire.write_all(frames).unwrap();
    }
}

fn read_all(wires: &mut [(Wire, Vec<u8>)]) {
    let mut replies = Vec::new();
    for (wire, frames) in wires {
        // A reply is as long as its request and ends in the same payload.
        replies.resize(frames.len(), 0);
        wire.read_exact(&mut replies).unwrap();
        assert!(replies.ends_with(&frames[frames.len() - 32..]));
    }
}

#[test]
fn echo_allocates_nothing_per_message() {
    let _alone = alone();
    let (messages, allocations) = echo_rounds(&echo, 50, 250);
    assert_eq!((messages, allocations), (100_000, 0));
}

#[test]
fn echo_allocates_nothing_with_one_message_at_a_time() {
    let _alone = alone();
    let (messages, allocations) = echo_rounds(&echo, 1, 1000);
    assert_eq!((messages, allocations), (8_000, 0));
}

#[test]
fn echo_within_the_process_allocates_nothing() {
    let _alone = alone();
    for (batch, rounds) in [(50, 100), (1, 1000)] {
        let builder = Server::builder().limits(without_pings());
        let server = TestServer::over_inproc(builder, &tw1(), |_| Counted(echo));
        let (messages, allocations) = echo_rounds_on(server, batch, rounds);
        assert_eq!((messages, allocations), (8 * batch * rounds, 0));
    }
}

#[test]
fn echo_over_udp_allocates_nothing() {
    let _alone = alone();
    for (batch, rounds) in [(50, 100), (1, 1000)] {
        let builder = Server::builder().limits(without_pings());
        let server = TestServer::over_udp(builder, &tw1(), |_| Counted(echo));
        let (messages, allocations) = echo_rounds_on(server, batch, rounds);
        assert_eq!((messages, allocations), (8 * batch * rounds, 0));
    }
}

/// Tokens and frames are used again; what is left is the queue's blocks, one for 31 answers.
#[test]
fn deferred_answers_allocate_a_block_for_dozens() {
    let _alone = alone();
    let (messages, allocations) = echo_rounds(&deferred_echo, 50, 100);
    assert_eq!(messages, 40_000);
    assert!(allocations <= messages as u64 / 30, "{allocations}");
}

/// Both sides of a client, with many requests on their way and with one at a time.
#[test]
fn a_client_allocates_nothing_per_request() {
    const WARM_UP: usize = 1_000;
    const REQUESTS: usize = 10_000;
    let _alone = alone();
    let server = tidewire::serve("tcp://127.0.0.1:0", echo).unwrap();
    let client = Client::builder()
        .limits(without_pings())
        .connect(&server.to_string())
        .unwrap();
    let payload = &[7; 32][..];
    let mut waiting: VecDeque<Request> = VecDeque::with_capacity(100);
    mark_this_thread();
    for in_flight in [100, 1] {
        let mut exchange = |rounds: usize| {
            let mut replies = 0;
            for number in 0..rounds {
                let call = client.prepare(payload).method(["a", "b"][number % 2]);
                waiting.push_back(call.send());
                if waiting.len() == in_flight {
                    let reply = waiting.pop_front().unwrap().wait().unwrap();
                    assert_eq!(reply.payload(), payload);
                    replies += 1;
                }
            }
            for request in waiting.drain(..) {
                assert_eq!(request.wait().unwrap().payload(), payload);
                replies += 1;
            }
            assert_eq!(replies, rounds, "none lost, none left");
        };
        exchange(WARM_UP);
        let before = (marked_allocations(), client.metrics().allocations);
        exchange(REQUESTS);
        // The lists of commands and answers double until they hold all that comes at once: dozens at most, and none per
        // request.
        let application = marked_allocations() - before.0;
        let lane = client.metrics().allocations - before.1;
        assert!(
            application <= 20 && lane <= 20,
            "{application} and {lane} with {in_flight} in flight"
        );
    }
    // And the hello.
    assert_eq!(
        server.metrics().frames_in,
        1 + 2 * (WARM_UP + REQUESTS) as u64
    );
}

/// The negative control: the counter sees a service that allocates once per message.
#[test]
fn the_counter_sees_an_allocating_service() {
    let _alone = alone();
    let (messages, allocations) = echo_rounds(&wasteful_echo, 50, 20);
    assert_eq!(allocations, messages as u64);
}

/// Says `chunks` of messages to a room whose members read on threads of their own, never further ahead of them than
/// a chunk. Returns how many messages were delivered and how many allocations that made, after a warm-up.
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
    assert_eq!(metrics.said, said);
    (READERS * chunk * chunks, allocations)
}

/// Publishes to a topic whose subscribers each came by an exact pattern and by a wildcard; the publisher is none of
/// them. Returns what [`fan_out`] returns.
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
                SubscribeBody { policy, pattern }.encode(&mut body);
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

/// One that speaks and many that listen, each on a thread of its own.
struct Spread {
    server: TestServer,
    publisher: Peer,
    /// One message of the publisher.
    frame: Vec<u8>,
    peers: Vec<Peer>,
    /// What becomes of it at each peer.
    frame_bytes: usize,
}

impl Spread {
    /// Sends chunks of messages, never further ahead of the readers than a chunk. Returns the counters at the end, how
    /// many messages there were with the warm-up, and how many allocations they made after it.
    fn measure(self, chunk: usize, chunks: usize) -> (Metrics, u64, u64) {
        let Self {
            server,
            mut publisher,
            frame,
            peers,
            frame_bytes,
        } = self;
        let messages = chunk * chunks;
        // Enough to fill several segments of the log, so that those in use are as large as they get.
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
        assert_eq!(metrics.room_dropped[DropReason::Policy as usize], 0);
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
    // One at a time, so that the number of batches on their way between the lanes is the same from the start.
    assert_eq!(fan_out(2, 1, 500), (10_000, 0));
}

#[test]
fn fan_out_over_udp_allocates_nothing_per_message() {
    let _alone = alone();
    let builder = Server::builder().limits(without_pings());
    let server = TestServer::over_udp(builder, &tw1(), |_| Counted(Chat::new()));
    assert_eq!(fan_out_on(server, 100, 60), (120_000, 0));
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

/// Members of a room that is spoken to.
const READERS: usize = 20;

/// Measured with the clients in a process of their own, which is this test again: neither their memory nor their
/// descriptors count.
#[test]
fn an_idle_session_costs_at_most_4_kib() {
    const SESSIONS: u64 = 10_000;
    const FIRST: u64 = 100;
    const LIMIT_BYTES: i64 = 4096;
    tidewire::io::descriptors::raise_descriptor_limit().unwrap();
    if let Ok(path) = std::env::var(CHILD_VARIABLE) {
        return hold_sessions(&path, SESSIONS as usize);
    }
    let _alone = alone();
    let server = TestServer::over_ipc(Server::builder().limits(without_pings()), &tw1(), |_| {
        Counted(echo)
    });
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "an_idle_session_costs_at_most_4_kib",
            "--nocapture",
        ])
        .env(CHILD_VARIABLE, server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The first sessions bring what the lane keeps for all of them.
    let welcomed = |count: u64| {
        server.wait_for("the sessions are open", |metrics| {
            metrics.frames_in >= count
        });
        bytes_held()
    };
    let before = welcomed(FIRST);
    let after = welcomed(SESSIONS);
    let metrics = server.metrics();
    assert_eq!(
        metrics.sessions_opened - metrics.sessions_closed(),
        SESSIONS
    );
    let each = (after - before) / (SESSIONS - FIRST) as i64;
    let report = format!("{each} bytes of user memory per idle session, at {SESSIONS} sessions\n");
    std::io::stderr().write_all(report.as_bytes()).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    server.stop();
    assert!(each <= LIMIT_BYTES, "{report}");
}

/// The other process: opens sessions and holds them until its input ends.
fn hold_sessions(address: &str, count: usize) {
    let path = address.strip_prefix("ipc://").unwrap();
    let address = std::path::PathBuf::from(path).into();
    let peers: Vec<Peer> = (0..count)
        .map(|_| Peer::greet(Wire::connect(&address).unwrap(), &tw1()))
        .collect();
    let read = std::io::stdin().read(&mut [0]).unwrap();
    assert_eq!((read, peers.len()), (0, count));
}

#[test]
fn sessions_give_their_memory_back() {
    let _alone = alone();
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Counted(Chat::new()));
    let round = |number: usize| {
        let mut peers: Vec<Peer> = (0..50).map(|_| server.peer()).collect();
        for (index, peer) in peers.iter_mut().enumerate() {
            peer.join("lobby", &format!("m{number}.{index}")).unwrap();
            peer.send(&Message::new(Kind::Say, peer.room(), &[b'x'; 1000]));
        }
        drop(peers);
        server.wait_for("the sessions are closed", |metrics| {
            metrics.sessions_closed() == 50 * (number as u64 + 1)
        });
    };
    for number in 0..5 {
        round(number);
    }
    let before = bytes_held();
    for number in 5..25 {
        round(number);
    }
    // Whatever is kept is kept once, not per session: a leak of a hundred bytes each would be 100,000.
    let grown = bytes_held() - before;
    assert!(grown < 50_000, "{grown} bytes more after 1,000 sessions");
    server.stop();
}

const CHILD_VARIABLE: &str = "TIDEWIRE_TEST_HOLD_SESSIONS";
