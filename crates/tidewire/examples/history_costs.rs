//! Measures histories: `cargo run --release -p tidewire --example history_costs -- [CLIENTS]`
//!
//! It prints the memory of a million kept messages, how fast a history is replayed, and how long live messages take
//! while many clients come back at once and get a history each. 10,000 clients take 20,100 descriptors (`ulimit -n`).

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it prints figures, and ends at its first failure"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidewire::{Client, History, Kind, Limits, Message, PubSub, Server, TopicEvent};
use tidewire_proto::body::SubscribeBody;
use tidewire_proto::codec::{Codec, Tw1};
use tidewire_proto::handshake::{FEATURE_POSITIONS, Hello, PROTOCOL_VERSION};

fn main() {
    let clients = std::env::args().nth(1);
    let clients = clients.map_or(10_000, |text| text.parse().unwrap());
    let many = |messages_max| History {
        messages_max,
        bytes_max: 1 << 30,
        names_max: 20_000,
        ..History::default()
    };
    let mut limits = Limits::default();
    limits.sessions.set_max(50_000);
    limits.sessions.set_per_address_max(50_000);
    limits.topics.set_per_session_max(ROOMS);
    limits.topics.set_per_address_max(2 * ROOMS);
    limits.memory.set_bytes_max(MEMORY_BYTES_MAX);
    let server = Server::builder().limits(limits);
    let server = server.listen("tcp://127.0.0.1:0").unwrap();
    let topics = PubSub::new().history("big", many(MESSAGES));
    let topics = topics.history("storm", many(STORM_MESSAGES));
    let topics = topics.history("room.*", many(MESSAGES / ROOMS));
    let server = server.start(move |_| topics.clone()).unwrap();
    let address = server.to_string();
    let client = Client::connect(&address).wait().unwrap();

    // The buffers of the publishers exist before the first figure is read.
    publish(&client, 20_000, |_| "other".to_owned());
    let before = resident_bytes();
    publish(&client, MESSAGES, |number| {
        format!("room.{}", number % ROOMS)
    });
    let each = (resident_bytes() - before) as f64 / MESSAGES as f64;
    println!(
        "{MESSAGES} messages of {PAYLOAD_BYTES} bytes in {ROOMS} topics: {each:.1} bytes each"
    );

    for readers in [1, 10, 100] {
        let what = format!("{ROOMS} topics to {readers} clients");
        time_replays(&what, || read_all_rooms(&address, readers));
    }
    publish(&client, MESSAGES, |_| "big".to_owned());
    time_replays("one topic to 1 client", || {
        read_history(&mut subscribe(&address, "big"), MESSAGES);
    });

    publish(&client, STORM_MESSAGES, |_| "storm".to_owned());
    let quiet = live_times(&address, || thread::sleep(Duration::from_secs(3)));
    println!("live messages, no one comes back: {quiet}");
    let mut peak = 0;
    let busy = live_times(&address, || {
        let started = Instant::now();
        let mut streams: Vec<TcpStream> =
            (0..clients).map(|_| subscribe(&address, "storm")).collect();
        peak = server.metrics().memory_bytes;
        for stream in &mut streams {
            read_history(stream, STORM_MESSAGES);
            peak = peak.max(server.metrics().memory_bytes);
        }
        let messages = clients * STORM_MESSAGES;
        let seconds = started.elapsed().as_secs_f64();
        println!("{clients} clients got {messages} messages in {seconds:.2} s");
    });
    println!("live messages meanwhile: {busy}");
    let metrics = server.metrics();
    println!(
        "memory of outputs and logs: at most {} of {} MiB; sessions closed {}, dropped {}",
        peak >> 20,
        MEMORY_BYTES_MAX >> 20,
        metrics.sessions_closed(),
        metrics.room_dropped_total()
    );
    client.close().wait();
}

fn publish(client: &Client, messages: usize, topic: impl Fn(usize) -> String) {
    for number in 0..messages {
        client
            .publish(&topic(number), &[b'x'; PAYLOAD_BYTES])
            .unwrap();
        if number % 1_000 == 999 {
            client.flush().wait().unwrap();
        }
    }
    client.flush().wait().unwrap();
}

/// Connects and subscribes, and reads nothing.
fn subscribe(address: &str, topic: &str) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(&subscription(topic, 1)).unwrap();
    stream
}

/// Subscribes to all topics of the million messages with so many clients, each to its share, and reads all of them.
fn read_all_rooms(address: &str, readers: usize) {
    let share = ROOMS / readers;
    let subscribed = |reader: usize| {
        let stream = connect(address);
        let topic = |number: usize| format!("room.{}", reader * share + number);
        let room = |number| subscription(&topic(number), number as u32 + 1);
        let subscriptions: Vec<u8> = (0..share).flat_map(room).collect();
        let mut writing = stream.try_clone().unwrap();
        let write = thread::spawn(move || writing.write_all(&subscriptions).unwrap());
        (stream, write)
    };
    let streams: Vec<_> = (0..readers).map(subscribed).collect();
    for (mut stream, write) in streams {
        read_history(&mut stream, share * (MESSAGES / ROOMS));
        write.join().unwrap();
    }
}

fn subscription(topic: &str, id: u32) -> Vec<u8> {
    let (mut bytes, mut body) = (Vec::new(), Vec::new());
    let (policy, pattern) = (None, topic);
    SubscribeBody {
        policy,
        pattern,
        group: None,
    }
    .encode(&mut body);
    let subscribe = Message::with_id(Kind::Subscribe, 0, id, &body);
    Tw1.encode(&subscribe, &mut bytes).unwrap();
    bytes
}

/// Connects and says hello.
fn connect(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address.replace("tcp://", "")).unwrap();
    let mut bytes = Vec::new();
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: FEATURE_POSITIONS,
        frame_bytes_max: 1 << 20,
        credentials: b"",
        agent: "history_costs",
    };
    hello.encode_frame(&mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
    stream
}

/// Reads as many bytes as the frames of the history have. The welcome and the replies are among them, less than a
/// fiftieth.
fn read_history(stream: &mut TcpStream, messages: usize) {
    let mut bytes = vec![0; 1 << 16];
    let mut left = messages * (PAYLOAD_BYTES + FRAME_BYTES);
    while left > 0 {
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "the server ended the connection");
        left = left.saturating_sub(count);
    }
}

/// Publishes to a topic without history while `work` runs. Returns the times to its subscriber.
fn live_times(address: &str, work: impl FnOnce()) -> String {
    let is_over = AtomicBool::new(false);
    let mut times = Vec::new();
    thread::scope(|scope| {
        let measure = scope.spawn(|| {
            let client = Client::connect(address).wait().unwrap();
            let live = client.subscribe("live").wait().unwrap();
            let mut times = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let started = Instant::now();
                client.publish("live", b"x").unwrap();
                let event = live.next_event().wait();
                assert!(matches!(event, TopicEvent::Message(_)), "{event:?}");
                times.push(started.elapsed());
                thread::sleep(Duration::from_millis(1));
            }
            client.close().wait();
            times
        });
        work();
        is_over.store(true, Ordering::Relaxed);
        times = measure.join().unwrap();
    });
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let (count, half, most, longest) = (times.len(), at(0.5), at(0.99), at(1.0));
    format!("{count} messages, median {half:.1?}, p99 {most:.1?}, longest {longest:.1?}")
}

fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

const MESSAGES: usize = 1_000_000;
const ROOMS: usize = 10_000;
const STORM_MESSAGES: usize = 1_000;
const PAYLOAD_BYTES: usize = 64;
/// Header and offset of a delivery.
const FRAME_BYTES: usize = 20;
const MEMORY_BYTES_MAX: usize = 512 << 20;

/// Prints the rate of three replays of all messages.
fn time_replays(what: &str, replay: impl Fn()) {
    for _ in 0..3 {
        let started = Instant::now();
        replay();
        let rate = MESSAGES as f64 / started.elapsed().as_secs_f64() / 1e6;
        println!("replay of {what}: {rate:.2} M messages/s");
    }
}
