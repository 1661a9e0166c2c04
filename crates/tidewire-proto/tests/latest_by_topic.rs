//! Seeded tests of the policy `conflate_by_topic` against an oracle: subscribers of one log stall and continue, and
//! messages come for many topics.
//!
//! The output of a subscriber is parsed. Its messages must be in the order of the log, each the newest of its topic at
//! the time it was sent. The sum of delivered messages and announced losses must be exactly the number of published
//! messages.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of a test fail loudly, and a failing seed must be printed"
)]

use std::collections::HashMap;

use fastrand::Rng;
use tidewire_proto::room::{LagLimits, LatestPiece, Policy, RoomLog, Subscriber, Verdict};

const ROOMY: LagLimits = LagLimits {
    bytes_max: 1 << 20,
    messages_max: 10_000,
};

/// A frame of the test: length u16, number u32, topic of three digits, filler.
fn frame(topic: usize, number: u32, filler: usize) -> Vec<u8> {
    let mut bytes = u16::try_from(9 + filler).unwrap().to_le_bytes().to_vec();
    bytes.extend(number.to_le_bytes());
    bytes.extend(format!("{topic:03}").bytes());
    bytes.resize(9 + filler, b'.');
    bytes
}

fn topic_of(frame: &[u8]) -> &str {
    str::from_utf8(&frame[6..9]).unwrap()
}

fn number_of(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[2..6].try_into().unwrap())
}

/// A log, and the topic of each message in it.
#[derive(Default)]
struct Feed {
    log: RoomLog,
    topics: Vec<usize>,
}

impl Feed {
    fn publish(&mut self, topic: usize, filler: usize) {
        let bytes = frame(topic, self.topics.len() as u32, filler);
        self.topics.push(topic);
        let encode = |out: &mut Vec<u8>| {
            out.extend_from_slice(&bytes);
            Ok::<(), ()>(())
        };
        self.log.append_with(bytes.len(), encode).unwrap();
    }
}

/// A subscriber with a simulated socket.
struct Peer {
    subscriber: Subscriber,
    attached_at: usize,
    output: Vec<u8>,
    socket: Vec<u8>,
    /// The number of announced losses.
    lost: u64,
    /// The number according to the policy.
    delivered: u64,
    dropped: u64,
    is_stalled: bool,
}

impl Peer {
    fn new(feed: &mut Feed, limits: LagLimits) -> Self {
        Self {
            attached_at: feed.topics.len(),
            subscriber: Subscriber::attach(&mut feed.log, Policy::ConflateByTopic, limits),
            output: Vec::new(),
            socket: Vec::new(),
            lost: 0,
            delivered: 0,
            dropped: 0,
            is_stalled: false,
        }
    }

    /// Runs a sweep that finds the socket full.
    fn enforce(&mut self, feed: &mut Feed) {
        match self.subscriber.enforce(&mut feed.log, true, |_| ()) {
            Verdict::Conflate => self.subscriber.conflate(&mut feed.log, topic_of),
            verdict => assert_eq!(verdict, Verdict::Keep { dropped: 0 }),
        }
    }

    /// Runs one write of at most `room` bytes, like a lane.
    fn flush(&mut self, feed: &mut Feed, mut room: usize, step: usize) {
        let log = &mut feed.log;
        if self.subscriber.is_off_log() {
            self.subscriber.conflate(log, topic_of);
            if self.output.len() < step {
                let (lost, output) = (&mut self.lost, &mut self.output);
                let told = self.subscriber.tell_latest(log, step, |piece| match piece {
                    LatestPiece::Gap(gap) => *lost += gap,
                    LatestPiece::Frame(frame) => output.extend_from_slice(frame),
                });
                self.delivered += told.messages;
                self.dropped += told.lost;
            }
        }
        self.lost += self.subscriber.take_gap();
        let own = room.min(self.output.len());
        self.socket.extend(self.output.drain(..own));
        room -= own;
        if !self.output.is_empty() {
            return;
        }
        let mut written = 0;
        self.subscriber.gather(log, |slice| {
            let part = slice.len().min(room - written);
            self.socket.extend_from_slice(&slice[..part]);
            written += part;
            written < room
        });
        let advance = self.subscriber.advance(log, written, &mut self.output);
        self.delivered += advance.messages;
    }

    fn drain(&mut self, feed: &mut Feed) {
        while self.subscriber.messages_behind(&feed.log) > 0 || !self.output.is_empty() {
            self.flush(feed, 4_000, 1_000);
        }
        self.flush(feed, 0, 1_000);
    }

    /// Returns the numbers of the received messages, which rise.
    fn heard(&self) -> Vec<usize> {
        let mut heard = Vec::new();
        let mut rest = &self.socket[..];
        while !rest.is_empty() {
            let length = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
            heard.push(number_of(&rest[..length]) as usize);
            rest = &rest[length..];
        }
        assert!(heard.is_sorted_by(|one, next| one < next), "{heard:?}");
        heard
    }

    /// Checks that each message published since the start is delivered or announced as lost, and that the newest of
    /// each topic arrived.
    fn check(&self, feed: &Feed, has_evicted: bool) {
        let heard = self.heard();
        let published = (feed.topics.len() - self.attached_at) as u64;
        assert_eq!(heard.len() as u64, self.delivered);
        assert_eq!(self.lost, self.dropped);
        assert_eq!(self.delivered + self.lost, published, "conservation");
        if has_evicted {
            return;
        }
        let newest = |numbers: &mut dyn Iterator<Item = usize>| {
            let pairs = numbers.map(|number| (feed.topics[number], number));
            pairs.collect::<HashMap<_, _>>()
        };
        let expected = newest(&mut (self.attached_at..feed.topics.len()));
        assert_eq!(newest(&mut heard.into_iter()), expected);
    }
}

fn run(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let is_tight = random.bool();
    let limits = match is_tight {
        true => LagLimits {
            bytes_max: random.u64(100..4_000),
            messages_max: random.u64(1..100),
        },
        false => ROOMY,
    };
    let topics = random.usize(1..300);
    let mut feed = Feed::default();
    let mut peers: Vec<Peer> = (0..4).map(|_| Peer::new(&mut feed, limits)).collect();
    for _ in 0..3_000 {
        let topic = random.usize(..topics).min(random.usize(..topics));
        feed.publish(topic, random.usize(..100));
        for peer in &mut peers {
            match random.u8(..) {
                0..6 => peer.is_stalled = !peer.is_stalled,
                6..60 if peer.is_stalled => peer.enforce(&mut feed),
                6..60 => {
                    let room = random.usize(..9_000);
                    peer.flush(&mut feed, room, 1 + random.usize(..3_000));
                }
                60 if seed.is_multiple_of(3) => {
                    peer.dropped += peer.subscriber.drop_all(&mut feed.log);
                }
                _ => {}
            }
        }
        if random.u16(..) < 60 {
            let mut peer = Peer::new(&mut feed, limits);
            std::mem::swap(&mut peer, &mut peers[0]);
            let undelivered = peer.subscriber.detach(&mut feed.log);
            let known = peer.delivered + peer.dropped + undelivered;
            let seen = feed.topics.len() - peer.attached_at;
            assert_eq!(known, seen as u64, "conservation of one that left");
        }
    }
    let is_lossy = is_tight || seed.is_multiple_of(3);
    for mut peer in peers {
        peer.drain(&mut feed);
        peer.check(&feed, is_lossy);
        assert_eq!(peer.subscriber.detach(&mut feed.log), 0);
    }
    assert!(feed.log.held_bytes() < 4 << 20, "nobody is left");
}

#[test]
fn the_newest_of_each_topic_arrives_and_all_else_is_told_as_lost() {
    for seed in 0..200 {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn topics_come_in_the_order_of_their_last_updates() {
    let mut feed = Feed::default();
    let mut peer = Peer::new(&mut feed, ROOMY);
    for topic in [1, 2, 3, 1, 4, 2] {
        feed.publish(topic, 0);
    }
    peer.enforce(&mut feed);
    // Two more messages, which no sweep has seen when the socket takes bytes again.
    feed.publish(3, 0);
    feed.publish(5, 0);
    peer.drain(&mut feed);
    let heard = peer.heard().into_iter().map(|number| feed.topics[number]);
    assert_eq!(heard.collect::<Vec<_>>(), [1, 4, 2, 3, 5]);
    assert_eq!((peer.lost, peer.delivered), (3, 5));
    assert!(!peer.subscriber.is_off_log());
    assert_eq!(peer.subscriber.detach(&mut feed.log), 0);
}

/// However far behind a subscriber is, the log and the table hold no more than a few times the live entries.
#[test]
fn memory_is_bounded_by_topics_and_not_by_messages() {
    const TOPICS: usize = 500;
    const FILLER: usize = 100;
    let mut feed = Feed::default();
    let mut stalled = [(); 3].map(|()| Peer::new(&mut feed, ROOMY));
    let mut most = 0;
    for number in 0..200_000 {
        feed.publish(number * 7 % TOPICS, FILLER);
        if number % 100 == 99 {
            // The third one falls behind when the others are far behind.
            let behind = if number > 100_000 { 3 } else { 2 };
            stalled[..behind]
                .iter_mut()
                .for_each(|peer| peer.enforce(&mut feed));
            if behind == 2 {
                stalled[2].flush(&mut feed, usize::MAX, 1);
            }
            most = most.max(feed.log.held_bytes());
        }
    }
    assert!(most < 8 * TOPICS * (FILLER + 9) + (256 << 10), "{most}");
    for mut peer in stalled {
        let held_back = peer.subscriber.held_back_bytes(&feed.log) as usize;
        assert!(held_back >= TOPICS * FILLER, "{held_back}");
        peer.drain(&mut feed);
        peer.check(&feed, false);
        peer.subscriber.detach(&mut feed.log);
    }
}

/// A flood of topics, each used once, meets the limits. The losses are announced.
#[test]
fn topics_beyond_the_limits_are_evicted_and_told_as_lost() {
    let limits = LagLimits {
        bytes_max: 1 << 20,
        messages_max: 10,
    };
    let mut feed = Feed::default();
    let mut peers = [(); 2].map(|()| Peer::new(&mut feed, limits));
    for topic in 0..500 {
        feed.publish(topic, 0);
        peers[0].enforce(&mut feed);
    }
    // Its backlog is older than the evicted topics.
    peers[1].enforce(&mut feed);
    for mut peer in peers {
        peer.drain(&mut feed);
        assert_eq!(peer.heard(), (490..500).collect::<Vec<_>>());
        assert_eq!(peer.lost, 490);
        peer.subscriber.detach(&mut feed.log);
    }
}
