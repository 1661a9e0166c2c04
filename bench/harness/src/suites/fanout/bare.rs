//! The bare publisher: writes the same bytes to every socket at a fixed interval. They are framed once, into one log in
//! which every receiver has a position, so that one that is behind costs no copies. There are no sessions and no
//! policies: with a log that is full the publisher waits for the slowest.
//!
//! Two things decide how much it can do, so that it has several [loops](LOOPS). A shorter frame is less to copy for the
//! system and less to look at for the reader, which is the slower side. A longer interval saves system calls, and has
//! more bytes under way at once, which a processor's cache may not hold until they are read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidewire::{Kind, Message};
use tidewire_io::clock::now_ns;
use tidewire_io::socket::Listener;
use tidewire_proto::codec::{Codec, Tw1};

use crate::contract::{Account, Work};
use crate::pace::Pace;
use crate::plan::RoleError;
use crate::probes::{Link, or_none, with_link};
use crate::publication::Publication;
use crate::stage::Stage;

/// A way to publish.
#[derive(Clone, Copy, Debug)]
pub(in crate::suites) struct Loop {
    /// The frame: `tw1` as Tidewire writes it, or `length`, four bytes before each payload.
    pub(in crate::suites) codec: &'static str,
    /// Milliseconds from one write to the next.
    pub(in crate::suites) interval_ms: u64,
}

/// A receiver, and how far it is in the log.
struct Receiver<L> {
    stream: L,
    at: u64,
}

/// The bytes under way to the receivers, framed once. Positions count from the first byte that was ever in it.
struct Log {
    bytes: Vec<u8>,
    /// Position of the first byte that is kept.
    start: u64,
}

pub(in crate::suites) fn serve(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let (listener, local) = super::super::listen(work)?;
    let interval = interval(work)?;
    let published = Arc::new(AtomicU64::new(0));
    let publish = with_link!(work, publish);
    // It ends with the process: the runner's last word is the end of our input.
    thread::spawn({
        let (work, published) = (work.clone(), Arc::clone(&published));
        move || publish(&listener, &work, interval, &published)
    });
    stage.serve(&local, || Account {
        messages: Some(published.load(Ordering::Relaxed)),
        ..Account::default()
    })
}

/// Publishes to so many connections until the last one has ended.
fn publish<L: Link>(
    listener: &Listener,
    work: &Work,
    interval: Duration,
    published: &AtomicU64,
) -> io::Result<()> {
    let mut receivers = Vec::with_capacity(work.subscribers);
    while receivers.len() < work.subscribers {
        match listener.accept() {
            Ok(accepted) => {
                let mut stream = L::accept(accepted.stream)?;
                stream.finish_handshake()?;
                receivers.push(Receiver { stream, at: 0 });
            }
            // There is nothing else to do until somebody comes.
            Err(_) => thread::sleep(RETRY),
        }
    }
    let mut pace = Pace::new(work.rate_per_sec, now_ns());
    let mut log = Log {
        bytes: Vec::new(),
        start: 0,
    };
    let mut payload = Vec::new();
    let mut next = Instant::now();
    while !receivers.is_empty() {
        next = (next + interval).max(Instant::now());
        thread::sleep(next - Instant::now());
        // With a full log what is due waits, and is late by as much.
        let is_full = log.bytes.len() >= LOG_BYTES_MAX;
        let due = if is_full { 0..0 } else { pace.take(now_ns()) };
        for sequence in due {
            payload.clear();
            let due_ns = pace.due_ns(sequence);
            Publication { sequence, due_ns }.append(work.message_bytes, &mut payload);
            append(&work.codec, &payload, &mut log.bytes)?;
        }
        receivers.retain_mut(|receiver| receiver.write(&log).is_ok());
        if let Some(slowest) = receivers.iter().map(|receiver| receiver.at).min() {
            log.forget(slowest);
        }
        published.store(pace.taken(), Ordering::Relaxed);
    }
    Ok(())
}

impl<L: Link> Receiver<L> {
    /// Writes what the socket takes of what is new.
    fn write(&mut self, log: &Log) -> io::Result<()> {
        let mut bytes = log.from(self.at);
        while !bytes.is_empty() {
            let count = or_none(self.stream.write(bytes))?;
            if count == 0 {
                break;
            }
            bytes = &bytes[count..];
            self.at += count as u64;
        }
        Ok(())
    }
}

impl Log {
    /// The bytes from a position that is still kept.
    fn from(&self, at: u64) -> &[u8] {
        &self.bytes[(at - self.start) as usize..]
    }

    /// Drops the bytes before a position. It waits until they are the larger part, so that each byte is moved once.
    fn forget(&mut self, until: u64) {
        let count = (until - self.start) as usize;
        if count * 2 >= self.bytes.len() {
            self.bytes.drain(..count);
            self.start = until;
        }
    }
}

impl Loop {
    const fn every(codec: &'static str, interval_ms: u64) -> Self {
        Self { codec, interval_ms }
    }

    /// Name in the tables.
    pub(in crate::suites) fn name(self) -> String {
        format!("{} frames, every {} ms", self.codec, self.interval_ms)
    }

    /// The same work, done like this.
    pub(in crate::suites) fn work(self, work: &Work) -> Work {
        Work {
            codec: self.codec.to_owned(),
            mode: format!("{}{INTERVAL_UNIT}", self.interval_ms),
            ..work.clone()
        }
    }
}

/// Puts a payload into a frame.
fn append(codec: &str, payload: &[u8], log: &mut Vec<u8>) -> io::Result<()> {
    if codec == LENGTH {
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        log.extend_from_slice(&length.to_be_bytes());
        log.extend_from_slice(payload);
        return Ok(());
    }
    // A subscriber of a topic, and not of a pattern, gets it by the number of its channel, without a name.
    let message = Message::new(Kind::Deliver, 1, payload);
    Tw1.encode(&message, log).map_err(io::Error::other)
}

/// The time between two writes that the work's mode names.
fn interval(work: &Work) -> Result<Duration, RoleError> {
    let number = work.mode.strip_suffix(INTERVAL_UNIT);
    let interval_ms = number.and_then(|number| number.parse().ok());
    let unknown = || format!("the bare publisher has no mode `{}`; try `5 ms`", work.mode);
    let interval_ms = interval_ms.ok_or_else(|| RoleError::Unsupported(unknown()))?;
    Ok(Duration::from_millis(interval_ms))
}

/// The loops of the limit. The first one writes what Tidewire writes, as rarely as Tidewire may.
pub(in crate::suites) const LOOPS: [Loop; 4] = [
    Loop::every("tw1", 5),
    Loop::every(LENGTH, 5),
    Loop::every(LENGTH, 2),
    Loop::every(LENGTH, 1),
];

/// The frame with nothing but its length.
const LENGTH: &str = "length";

/// The text behind the number of milliseconds in a work's mode.
const INTERVAL_UNIT: &str = " ms";

/// How long it waits for the next connection.
const RETRY: Duration = Duration::from_millis(1);

/// Most bytes that are kept for the slowest receiver. The publisher waits when the log holds more.
const LOG_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use tidewire::{Client, PubSub, Server};
    use tidewire_proto::body::SubscribeBody;
    use tidewire_proto::codec::Decoded;

    use super::*;
    use crate::probes::echo::push_hello;
    use crate::subscriber::TOPIC;

    /// The bug: the loop put the name of the topic into each frame. Tidewire does that only for subscribers of
    /// patterns, so the loop wrote and its reader read more than Tidewire's.
    #[test]
    fn the_first_loop_writes_the_frames_of_ours() {
        let server = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
        let server = server.start(|_| PubSub::new()).unwrap();
        let address = server.addresses()[0].to_string();
        let client = Client::connect(&address).wait().unwrap();
        let mut stream = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
        let (mut out, mut body, payload) = (Vec::new(), Vec::new(), [7; 32]);
        push_hello("test", &mut out);
        let (policy, pattern) = (None, TOPIC);
        SubscribeBody {
            policy,
            pattern,
            group: None,
        }
        .encode(&mut body);
        let subscribe = Message::with_id(Kind::Subscribe, 0, 1, &body);
        Tw1.encode(&subscribe, &mut out).unwrap();
        stream.write_all(&out).unwrap();
        let mut input = Vec::new();
        loop {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            input.push(byte[0]);
            let Decoded::Frame { message, .. } = Tw1.decode(&input, usize::MAX).unwrap() else {
                continue;
            };
            match message.kind {
                Kind::Reply => client.publish(TOPIC, &payload).unwrap(),
                Kind::Deliver => break,
                _ => {}
            }
            input.clear();
        }
        let mut frame = Vec::new();
        append(LOOPS[0].codec, &payload, &mut frame).unwrap();
        assert_eq!(frame, input);
    }

    #[test]
    fn what_somebody_needs_stays_and_the_rest_goes() {
        let mut log = Log {
            bytes: (0..100).collect(),
            start: 0,
        };
        log.forget(10);
        assert_eq!(log.from(10)[0], 10);
        log.forget(60);
        assert_eq!((log.start, log.bytes.len()), (60, 40));
        log.bytes.push(100);
        assert_eq!((log.from(60)[0], log.from(100)), (60, &[100][..]));
        log.forget(101);
        assert!(log.from(101).is_empty());
    }
}
