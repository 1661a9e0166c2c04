//! Deterministic pair tests of the room log: seeded publishers, slow cursors and partial writes against an oracle.
//!
//! Every subscriber owns a simulated socket that takes a random number of bytes. The bytes are parsed and must be
//! exactly the others' messages in order, with every hole announced by a gap of the right size.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of a test fail loudly, and a failing seed must be printed"
)]

use fastrand::Rng;
use tidewire_proto::room::{LagLimits, Policy, RoomLog, Subscriber, Verdict};

const GAP_MARK: u8 = 0xFF;
const SENDERS: usize = 5;

/// A frame of the test: length u16, sender u8, number u32, filler.
fn frame(sender: u8, number: u32, filler: usize) -> Vec<u8> {
    let mut bytes = u16::try_from(7 + filler).unwrap().to_le_bytes().to_vec();
    bytes.push(sender);
    bytes.extend(number.to_le_bytes());
    bytes.resize(7 + filler, sender);
    bytes
}

struct Peer {
    subscriber: Option<Subscriber>,
    output: Vec<u8>,
    /// The bytes that the socket took. The log counts messages of others in `output`, torn or spilled, as delivered
    /// before the socket takes them.
    socket: Vec<u8>,
    delivered: u64,
    dropped: u64,
    own: u64,
    stalled: bool,
    attached_at: u64,
}

impl Peer {
    fn new(log: &mut RoomLog, policy: Policy, limits: LagLimits) -> Self {
        Self {
            attached_at: log.head_message(),
            subscriber: Some(Subscriber::attach(log, policy, limits)),
            output: Vec::new(),
            socket: Vec::new(),
            delivered: 0,
            dropped: 0,
            own: 0,
            stalled: false,
        }
    }

    /// Runs one write of at most `room` bytes, like a lane: gap notice, own output, then the log.
    fn flush(&mut self, log: &mut RoomLog, room: usize) {
        let Some(subscriber) = self.subscriber.as_mut() else {
            return;
        };
        let gap = subscriber.take_gap();
        if gap > 0 {
            self.output.extend(13_u16.to_le_bytes());
            self.output.push(GAP_MARK);
            self.output.extend([0; 2]);
            self.output.extend(gap.to_le_bytes());
        }
        let mut room = room;
        let from_output = room.min(self.output.len());
        self.socket.extend(self.output.drain(..from_output));
        room -= from_output;
        if !self.output.is_empty() {
            return;
        }
        let mut written = 0;
        subscriber.gather(log, |slice| {
            let part = slice.len().min(room - written);
            self.socket.extend_from_slice(&slice[..part]);
            written += part;
            written < room
        });
        self.delivered += subscriber.advance(log, written, &mut self.output).messages;
    }

    fn enforce(&mut self, log: &mut RoomLog) -> bool {
        let Some(subscriber) = self.subscriber.as_mut() else {
            return true;
        };
        let before = subscriber.messages_behind(log);
        let (is_empty, output) = (self.output.is_empty(), &mut self.output);
        match subscriber.enforce(log, is_empty, |frame| output.extend_from_slice(frame)) {
            Verdict::Keep { dropped } => {
                self.dropped += dropped;
                self.delivered += before - subscriber.messages_behind(log) - dropped;
                true
            }
            Verdict::Disconnect | Verdict::Block | Verdict::Conflate | Verdict::Replay { .. } => {
                false
            }
        }
    }

    /// Parses the bytes of the socket and checks order and announced holes. Returns (messages, gaps).
    fn verify(&self, me: u8, log_of_all: &[(u8, u32)], attached_at: usize) -> (u64, u64) {
        let mut expected = log_of_all[attached_at..]
            .iter()
            .filter(|(sender, _)| *sender != me)
            .copied();
        let (mut messages, mut lost) = (0, 0);
        let mut rest = &self.socket[..];
        while rest.len() >= 2 {
            let length = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
            if rest.len() < length {
                break;
            }
            let (frame, after) = rest.split_at(length);
            rest = after;
            if frame[2] == GAP_MARK {
                let gap = u64::from_le_bytes(frame[5..13].try_into().unwrap());
                lost += gap;
                for _ in 0..gap {
                    assert!(expected.next().is_some(), "a gap larger than what was said");
                }
                continue;
            }
            let number = u32::from_le_bytes(frame[3..7].try_into().unwrap());
            assert_eq!(
                Some((frame[2], number)),
                expected.next(),
                "order or hole not announced"
            );
            assert!(
                frame[7..].iter().all(|byte| *byte == frame[2]),
                "torn payload"
            );
            messages += 1;
        }
        (messages, lost)
    }
}

/// A room with its subscribers, all messages so far, and the seeded random numbers.
struct World {
    random: Rng,
    policy: Policy,
    limits: LagLimits,
    log: RoomLog,
    said: Vec<(u8, u32)>,
    numbers: [u32; SENDERS],
    peers: Vec<Peer>,
}

impl World {
    fn new(seed: u64, policy: Policy) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut log = RoomLog::new();
        let limits = LagLimits {
            bytes_max: random.u64(500..20_000),
            messages_max: random.u64(5..400),
        };
        let peers = (0..SENDERS)
            .map(|_| Peer::new(&mut log, policy, limits))
            .collect();
        Self {
            random,
            policy,
            limits,
            log,
            said: Vec::new(),
            numbers: [0; SENDERS],
            peers,
        }
    }

    fn say(&mut self) {
        let sender = self.random.usize(..SENDERS);
        if self.random.u8(..) >= 200 {
            return;
        }
        self.numbers[sender] += 1;
        let bytes = frame(sender as u8, self.numbers[sender], self.random.usize(..300));
        let (position, length) = self
            .log
            .append_with::<()>(bytes.len(), |out| {
                out.extend_from_slice(&bytes);
                Ok(())
            })
            .unwrap();
        self.said.push((sender as u8, self.numbers[sender]));
        let peer = &mut self.peers[sender];
        peer.own += 1;
        if let Some(subscriber) = peer.subscriber.as_mut() {
            subscriber.skip_own(&self.log, position, length);
        }
    }

    fn write_some(&mut self) {
        for index in 0..SENDERS {
            let peer = &mut self.peers[index];
            if self.random.u8(..) < 4 {
                peer.stalled = !peer.stalled;
            }
            if self.random.u8(..) >= 100 {
                continue;
            }
            if !peer.stalled {
                let small = self.random.bool();
                let room = self.random.usize(..if small { 60 } else { 9000 });
                peer.flush(&mut self.log, room);
            } else if !peer.enforce(&mut self.log) && self.policy == Policy::Disconnect {
                self.replace(index);
            }
        }
    }

    /// Replaces a subscriber that the policy disconnects: its accounts must close, and a new one joins.
    fn replace(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let undelivered = peer.subscriber.take().unwrap().detach(&mut self.log);
        let seen = self.log.head_message() - peer.attached_at;
        let known = peer.delivered + peer.dropped + peer.own + undelivered;
        assert_eq!(seen, known, "conservation");
        peer.verify(index as u8, &self.said, peer.attached_at as usize);
        *peer = Peer::new(&mut self.log, self.policy, self.limits);
    }

    fn drain(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        while peer.subscriber.as_ref().unwrap().messages_behind(&self.log) > 0
            || !peer.output.is_empty()
        {
            peer.flush(&mut self.log, 1 + self.random.usize(..5000));
        }
        peer.flush(&mut self.log, 100);
        let (messages, lost) = peer.verify(index as u8, &self.said, peer.attached_at as usize);
        assert_eq!(
            messages, peer.delivered,
            "every message given out reached the socket whole"
        );
        assert_eq!(lost, peer.dropped, "every drop was announced");
        let seen = self.log.head_message() - peer.attached_at;
        assert_eq!(
            seen,
            peer.delivered + peer.dropped + peer.own,
            "conservation"
        );
        if matches!(self.policy, Policy::Block | Policy::Disconnect) {
            assert_eq!(peer.dropped, 0);
        }
    }
}

fn run(seed: u64, policy: Policy) {
    let mut world = World::new(seed, policy);
    for _ in 0..3000 {
        world.say();
        world.write_some();
    }
    for index in 0..SENDERS {
        world.drain(index);
    }
    for peer in world.peers {
        assert_eq!(peer.subscriber.unwrap().detach(&mut world.log), 0);
    }
    assert!(
        world.log.held_bytes() < 4 << 20,
        "no cursor is left, so almost nothing is held"
    );
}

fn run_seeds(policy: Policy) {
    for seed in 0..60 {
        let result = std::panic::catch_unwind(|| run(seed, policy));
        if let Err(panic) = result {
            eprintln!("policy {policy}, seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn disconnect_loses_nothing_in_silence() {
    run_seeds(Policy::Disconnect);
}

#[test]
fn drop_oldest_announces_every_hole() {
    run_seeds(Policy::DropOldest);
}

#[test]
fn drop_newest_announces_every_hole() {
    run_seeds(Policy::DropNewest);
}

#[test]
fn conflate_announces_every_hole() {
    run_seeds(Policy::Conflate);
}

#[test]
fn block_drops_nothing() {
    run_seeds(Policy::Block);
}

#[test]
fn conflate_keeps_only_the_newest_of_others() {
    let mut log = RoomLog::new();
    let limits = LagLimits {
        bytes_max: 1 << 20,
        messages_max: 1000,
    };
    let mut peer = Peer::new(&mut log, Policy::Conflate, limits);
    for number in 0..10 {
        let bytes = frame(1, number, 10);
        log.append_with::<()>(bytes.len(), |out| {
            out.extend(&bytes);
            Ok(())
        })
        .unwrap();
    }
    assert!(peer.enforce(&mut log));
    assert_eq!(
        (
            peer.dropped,
            peer.subscriber.as_ref().unwrap().messages_behind(&log)
        ),
        (9, 1)
    );
    peer.flush(&mut log, 1000);
    assert_eq!(peer.delivered, 1);
    assert_eq!(peer.delivered + peer.dropped, log.head_message());
}
