//! What the in-process ring and the datagram sockets reach on this machine, in a few seconds.
//!
//! `cargo run --release -p tidewire-io --example ring_and_datagram_limits`
//!
//! Two threads, on two cores where there are two. The figures are those of the parts alone: frames of 32
//! bytes with a length prefix are looked at one by one, and nothing else is done with them. Every case checks
//! that nothing was lost, except one-way UDP, which says how much was.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that measures, and ends at the first failure"
)]

use std::hint::spin_loop;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidewire_io::affinity::{available_cores, pin_to_core};
use tidewire_io::datagram::{DatagramBatch, DatagramOptions, DatagramSocket};
use tidewire_io::poller::{Events, Interest, Poller, PollerChoice, Token, open};
use tidewire_io::ring::RingStream;

fn main() {
    println!("32-byte messages, two threads, {} cores\n", CORES.len());
    for chunk in [1, 64, 512] {
        ring_one_way(chunk, true);
    }
    ring_one_way(512, false);
    ring_echo(1, true);
    ring_echo(1, false);
    ring_echo(128, true);
    ring_echo(128, false);
    println!();
    for offload in [true, false] {
        datagrams_one_way(offload);
        for outstanding in [1, 64] {
            datagrams_echo(outstanding, offload);
        }
    }
}

const MESSAGE_BYTES: usize = 32;
const CAPACITY: usize = 256 * 1_024;
const SPAN: Duration = Duration::from_millis(700);

/// Asked for once, since a pinned thread, and those it starts, see no core but theirs.
static CORES: LazyLock<Vec<usize>> = LazyLock::new(available_cores);

fn pin(thread: usize) {
    let cores = &*CORES;
    pin_to_core(cores[thread % cores.len()]).unwrap();
}

fn report(what: &str, messages: u64, elapsed: Duration, remark: &str) {
    let rate = messages as f64 / elapsed.as_secs_f64();
    println!("{what:<58} {:>10.3} M/s  {remark}", rate / 1e6);
}

/// One end, with the poller it sleeps on, or none while it spins.
struct End {
    stream: RingStream,
    poller: Option<Box<dyn Poller>>,
    events: Events,
}

impl End {
    fn new(mut stream: RingStream, spins: bool) -> Self {
        let poller = if spins {
            stream.set_interest(Interest::NONE);
            None
        } else {
            let mut poller = open(PollerChoice::Auto).unwrap();
            poller
                .add(stream.as_fd(), Token(0), Interest::READ)
                .unwrap();
            Some(poller)
        };
        Self {
            stream,
            poller,
            events: Events::with_capacity(1),
        }
    }

    fn wait(&mut self, interest: Interest) {
        match &mut self.poller {
            None => spin_loop(),
            Some(poller) => {
                self.stream.set_interest(interest);
                poller.wait(&mut self.events, None).unwrap();
                self.stream.poll_ready();
            }
        }
    }

    /// Counts the messages that are there and checks them; none at the end.
    fn take(&mut self, next: &mut u64) -> Option<u64> {
        loop {
            match self.stream.readable() {
                Ok([]) => return None,
                Ok(bytes) => {
                    let whole = bytes.len() - bytes.len() % MESSAGE_BYTES;
                    for message in bytes[..whole].chunks_exact(MESSAGE_BYTES) {
                        let number = u64::from_le_bytes(message[..8].try_into().unwrap());
                        assert_eq!(number, *next, "lost or out of order");
                        *next += 1;
                    }
                    self.stream.consume(whole);
                    return Some((whole / MESSAGE_BYTES) as u64);
                }
                Err(cause) => {
                    assert_eq!(cause.kind(), ErrorKind::WouldBlock);
                    self.wait(Interest::READ);
                }
            }
        }
    }

    /// Writes this many messages, in pieces if there is no room for all.
    fn put(&mut self, next: &mut u64, count: u64) {
        let mut left = count as usize * MESSAGE_BYTES;
        while left > 0 {
            match self.stream.writable() {
                Ok(room) => {
                    let length = room.len().min(left) / MESSAGE_BYTES * MESSAGE_BYTES;
                    for message in room[..length].chunks_exact_mut(MESSAGE_BYTES) {
                        message[..8].copy_from_slice(&next.to_le_bytes());
                        *next += 1;
                    }
                    self.stream.commit(length);
                    left -= length;
                }
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => self.wait(Interest::WRITE),
                // Nobody waits for the last answers.
                Err(_) => return,
            }
        }
    }
}

fn ring_one_way(chunk: u64, spins: bool) {
    let (near, far) = RingStream::pair(CAPACITY).unwrap();
    let reader = thread::spawn(move || {
        pin(1);
        let mut end = End::new(far, spins);
        let mut next = 0;
        while end.take(&mut next).is_some() {}
        next
    });
    pin(0);
    let mut end = End::new(near, spins);
    let mut next = 0;
    let start = Instant::now();
    while next % 65_536 != 0 || start.elapsed() < SPAN {
        end.put(&mut next, chunk);
    }
    drop(end);
    let read = reader.join().unwrap();
    let elapsed = start.elapsed();
    assert_eq!(read, next);
    let how = if spins { "spinning" } else { "sleeping" };
    report(
        &format!("ring, one way, {chunk} messages a commit, {how}"),
        read,
        elapsed,
        "",
    );
}

fn ring_echo(outstanding: u64, spins: bool) {
    let (near, far) = RingStream::pair(CAPACITY).unwrap();
    let answerer = thread::spawn(move || {
        pin(1);
        let mut end = End::new(far, spins);
        let (mut next, mut answered) = (0, 0);
        while let Some(count) = end.take(&mut next) {
            end.put(&mut answered, count);
        }
    });
    pin(0);
    let mut end = End::new(near, spins);
    let (mut asked, mut answered) = (0, 0);
    let start = Instant::now();
    end.put(&mut asked, outstanding);
    while start.elapsed() < SPAN {
        for _ in 0..64 {
            let count = end.take(&mut answered).unwrap();
            end.put(&mut asked, count);
        }
    }
    let elapsed = start.elapsed();
    drop(end);
    answerer.join().unwrap();
    let how = if spins { "spinning" } else { "sleeping" };
    let round_trip_us = elapsed.as_secs_f64() * 1e6 * outstanding as f64 / answered as f64;
    report(
        &format!("ring, request/reply, {outstanding} outstanding, {how}"),
        answered,
        elapsed,
        &format!("{round_trip_us:.2} us a round trip"),
    );
}

fn socket(offload: bool) -> DatagramSocket {
    let mut options = DatagramOptions::default();
    options.segmentation_offload = offload;
    options.receive_buffer_bytes = Some(4 << 20);
    options.send_buffer_bytes = Some(4 << 20);
    DatagramSocket::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap()
}

/// Takes what is there, sleeping until something is.
fn receive(
    socket: &DatagramSocket,
    poller: &mut dyn Poller,
    events: &mut Events,
    batch: &mut DatagramBatch,
    timeout: Option<Duration>,
) -> usize {
    loop {
        match socket.receive(batch) {
            Ok(count) => return count,
            Err(cause) => assert_eq!(cause.kind(), ErrorKind::WouldBlock),
        }
        poller.wait(events, timeout).unwrap();
        if events.is_empty() && timeout.is_some() {
            return 0;
        }
    }
}

fn poller_of(socket: &DatagramSocket) -> (Box<dyn Poller>, Events) {
    let mut poller = open(PollerChoice::Auto).unwrap();
    poller
        .add(socket.as_fd(), Token(0), Interest::READ)
        .unwrap();
    (poller, Events::with_capacity(1))
}

fn with_offload(offload: bool) -> &'static str {
    if offload {
        "with offload"
    } else {
        "without offload"
    }
}

/// The sender stays at most this many datagrams ahead, so that it measures speed rather than loss.
const AHEAD_MAX: u64 = 4_096;

fn datagrams_one_way(offload: bool) {
    static RECEIVED: AtomicU64 = AtomicU64::new(0);
    RECEIVED.store(0, Ordering::Relaxed);
    let receiver = socket(offload);
    let peer = receiver.local_address();
    let reader = thread::spawn(move || {
        pin(1);
        let (mut poller, mut events) = poller_of(&receiver);
        let mut batch = DatagramBatch::new(DatagramBatch::SLOTS_MAX);
        let mut bytes = 0;
        loop {
            let pause = Some(Duration::from_millis(300));
            let count = receive(&receiver, poller.as_mut(), &mut events, &mut batch, pause);
            if count == 0 {
                return (bytes, receiver.kernel_drops().unwrap());
            }
            bytes += batch
                .iter()
                .map(|datagram| datagram.bytes.len())
                .sum::<usize>();
            RECEIVED.fetch_add(count as u64, Ordering::Relaxed);
        }
    });
    pin(0);
    let sender = socket(offload);
    let run = [7; MESSAGE_BYTES * 64];
    let mut sent = 0;
    let start = Instant::now();
    while start.elapsed() < SPAN {
        while sent - RECEIVED.load(Ordering::Relaxed) > AHEAD_MAX && start.elapsed() < SPAN {
            spin_loop();
        }
        sent += sender.send(peer, MESSAGE_BYTES, &run).unwrap() as u64;
    }
    let elapsed = start.elapsed();
    let (bytes, drops) = reader.join().unwrap();
    let received = (bytes / MESSAGE_BYTES) as u64;
    report(
        &format!("udp, one way, {}", with_offload(offload)),
        received,
        elapsed,
        &format!("{} lost, {drops} dropped by the kernel", sent - received),
    );
}

fn datagrams_echo(outstanding: usize, offload: bool) {
    let server = socket(offload);
    let address = server.local_address();
    let answerer = thread::spawn(move || {
        pin(1);
        let (mut poller, mut events) = poller_of(&server);
        let mut batch = DatagramBatch::new(DatagramBatch::SLOTS_MAX);
        let mut answers = Vec::with_capacity(65_536);
        loop {
            receive(&server, poller.as_mut(), &mut events, &mut batch, None);
            answers.clear();
            for datagram in &batch {
                if datagram.bytes.is_empty() {
                    return;
                }
                answers.extend_from_slice(datagram.bytes);
            }
            let peer = batch.iter().next().unwrap().peer;
            server.send(peer, MESSAGE_BYTES, &answers).unwrap();
        }
    });
    pin(0);
    let client = socket(offload);
    let (mut poller, mut events) = poller_of(&client);
    let mut batch = DatagramBatch::new(DatagramBatch::SLOTS_MAX);
    let run = vec![7; MESSAGE_BYTES * outstanding];
    let mut answered = 0;
    let start = Instant::now();
    client.send(address, MESSAGE_BYTES, &run).unwrap();
    while start.elapsed() < SPAN {
        let count = receive(&client, poller.as_mut(), &mut events, &mut batch, None);
        answered += count as u64;
        client
            .send(address, MESSAGE_BYTES, &run[..MESSAGE_BYTES * count])
            .unwrap();
    }
    let elapsed = start.elapsed();
    client.send(address, MESSAGE_BYTES, b"").unwrap();
    answerer.join().unwrap();
    report(
        &format!(
            "udp, echo, {outstanding} outstanding, {}",
            with_offload(offload)
        ),
        answered,
        elapsed,
        "",
    );
}
