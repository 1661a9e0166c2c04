//! Subscribers with different headers share one log, however their writes are cut.

use fastrand::Rng;

use super::*;
use crate::room::{LagLimits, Policy, Verdict};

/// Appends the length of the body and the number of the subscriber.
fn push_header(number: u32, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[body.len() as u8, number as u8]);
}

/// A subscriber, and the bytes that it was sent.
struct Receiver {
    number: u32,
    subscriber: Subscriber,
    output: Vec<u8>,
    stream: Vec<u8>,
    delivered: u64,
    dropped: u64,
}

impl Receiver {
    fn attach(log: &mut RoomLog, number: u32, policy: Policy) -> Self {
        let limits = LagLimits {
            bytes_max: 300,
            messages_max: 20,
        };
        Self {
            number,
            subscriber: Subscriber::attach(log, policy, limits),
            output: Vec::new(),
            stream: Vec::new(),
            delivered: 0,
            dropped: 0,
        }
    }

    fn gather(&self, log: &RoomLog, deliveries: &mut Deliveries) {
        deliveries.gather(&self.subscriber, log, |body, out| {
            push_header(self.number, body, out);
        });
    }

    /// Writes at most `room` bytes of the own output and of the log, like a lane.
    fn write(&mut self, log: &mut RoomLog, deliveries: &mut Deliveries, room: usize) {
        let own = room.min(self.output.len());
        self.stream.extend(self.output.drain(..own));
        deliveries.clear();
        self.gather(log, deliveries);
        let rest = (room - own).min(deliveries.bytes().len());
        if self.output.is_empty() {
            self.stream.extend_from_slice(&deliveries.bytes()[..rest]);
            let mut taken = deliveries.taken(rest);
            let advance = taken.advance(&mut self.subscriber, log, &mut self.output);
            assert_eq!(advance.torn, !self.output.is_empty());
            self.delivered += advance.messages;
        }
    }

    /// The numbered bodies that arrived.
    fn received(&self) -> Vec<&[u8]> {
        let mut rest = &self.stream[..];
        let mut bodies = Vec::new();
        while let [length, number, behind @ ..] = rest {
            assert_eq!(u32::from(*number), self.number, "another's header");
            let (body, behind) = behind.split_at(usize::from(*length));
            bodies.push(body);
            rest = behind;
        }
        assert!(rest.is_empty(), "half a header");
        bodies
    }
}

fn append(log: &mut RoomLog, body: &[u8]) -> (u64, usize) {
    let result = log.append_with::<()>(body.len(), |out| {
        out.extend_from_slice(body);
        Ok(())
    });
    result.unwrap()
}

#[test]
fn a_write_may_end_after_every_byte() {
    let bodies: [&[u8]; 4] = [b"a", b"", b"bcd", &[7; 50]];
    let bodies = bodies.map(|body| [b"x", body].concat());
    let all: usize = bodies.iter().map(|body| body.len() + 2).sum();
    for cut in 0..=all {
        let mut log = RoomLog::new();
        let mut receivers =
            [3, 200].map(|number| Receiver::attach(&mut log, number, Policy::Block));
        for body in &bodies {
            append(&mut log, body);
        }
        let mut deliveries = Deliveries::default();
        for receiver in &mut receivers {
            receiver.write(&mut log, &mut deliveries, cut);
            receiver.write(&mut log, &mut deliveries, all);
            assert_eq!(receiver.received(), bodies, "cut {cut}");
            assert_eq!(receiver.delivered, bodies.len() as u64);
            assert_eq!(receiver.subscriber.messages_behind(&log), 0);
        }
    }
}

/// One write carries all subscriptions of a session and is cut after every byte.
#[test]
fn a_write_of_several_subscriptions_may_end_after_every_byte() {
    let bodies: Vec<Vec<u8>> = (0..4_u8).map(|number| vec![number; 3]).collect();
    let all = 2 * 4 * 5;
    for cut in 0..=all {
        let mut logs = [RoomLog::new(), RoomLog::new(), RoomLog::new()];
        let mut receivers: Vec<Receiver> = (1..)
            .zip(&mut logs)
            .map(|(number, log)| Receiver::attach(log, number, Policy::Block))
            .collect();
        for body in &bodies {
            append(&mut logs[0], body);
            append(&mut logs[2], body);
        }
        let (mut deliveries, mut output) = (Deliveries::default(), Vec::new());
        for (receiver, log) in receivers.iter().zip(&logs) {
            receiver.gather(log, &mut deliveries);
        }
        assert_eq!(deliveries.bytes().len(), all);
        let mut stream = deliveries.bytes()[..cut].to_vec();
        let mut taken = deliveries.taken(cut);
        let mut messages = 0;
        for (receiver, log) in receivers.iter_mut().zip(&mut logs) {
            messages += taken
                .advance(&mut receiver.subscriber, log, &mut output)
                .messages;
        }
        assert_eq!(messages as usize, cut.div_ceil(5), "a torn one counts");
        stream.append(&mut output);
        deliveries.clear();
        for (receiver, log) in receivers.iter().zip(&logs) {
            receiver.gather(log, &mut deliveries);
        }
        stream.extend_from_slice(deliveries.bytes());
        let frames: Vec<_> = stream.chunks(5).map(|frame| (frame[1], frame[2])).collect();
        let expected = [1, 3].map(|number| (0..4).map(move |body| (number, body)));
        assert!(expected.into_iter().flatten().eq(frames), "cut {cut}");
    }
}

#[test]
fn every_message_is_delivered_dropped_or_behind_under_every_policy() {
    let policies = [
        Policy::DropOldest,
        Policy::DropNewest,
        Policy::Conflate,
        Policy::Block,
    ];
    for (seed, policy) in (0..400).zip(policies.into_iter().cycle()) {
        let mut random = Rng::with_seed(seed);
        let mut log = RoomLog::new();
        let mut receivers = [1, 2].map(|number| Receiver::attach(&mut log, number, policy));
        let (mut deliveries, mut offered, mut own) = (Deliveries::default(), 0, 0);
        let mut sent: Vec<Vec<u8>> = Vec::new();
        for _ in 0..200 {
            let mut body = (sent.len() as u32).to_le_bytes().to_vec();
            body.resize(4 + random.usize(..60), 0xA5);
            let (position, bytes) = append(&mut log, &body);
            sent.push(body);
            offered += 1;
            if random.u8(..4) == 0 {
                // The first receiver published this message.
                receivers[0].subscriber.skip_own(&log, position, bytes);
                own += 1;
            }
            for receiver in &mut receivers {
                if random.u8(..3) > 0 {
                    let room = random.usize(..90);
                    receiver.write(&mut log, &mut deliveries, room);
                }
                let is_empty = receiver.output.is_empty();
                let number = receiver.number;
                let before = receiver.subscriber.messages_behind(&log);
                let output = &mut receiver.output;
                let verdict = receiver.subscriber.enforce(&mut log, is_empty, |body| {
                    push_header(number, body, output);
                    output.extend_from_slice(body);
                });
                if let Verdict::Keep { dropped } = verdict {
                    let behind = receiver.subscriber.messages_behind(&log);
                    receiver.delivered += before - behind - dropped;
                    receiver.dropped += dropped;
                }
                assert_eq!(
                    receiver.subscriber.take_gap() > 0,
                    matches!(verdict, Verdict::Keep { dropped: 1.. })
                );
            }
        }
        for (receiver, offered) in receivers.iter_mut().zip([offered - own, offered]) {
            let behind = receiver.subscriber.messages_behind(&log);
            assert_eq!(receiver.delivered + receiver.dropped + behind, offered);
            receiver.write(&mut log, &mut deliveries, usize::MAX);
            let received = receiver.received();
            assert_eq!(received.len() as u64, receiver.delivered, "{policy}");
            let mut sent = sent.iter();
            assert!(received.iter().all(|body| sent.any(|it| it == body)));
        }
    }
}
