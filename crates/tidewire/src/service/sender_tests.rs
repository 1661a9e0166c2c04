//! Tests: a sender sends the same bytes as single sends, and leaves its session intact.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tidewire_proto::codec::{AnyCodec, Decoded, Delimited, Format};
use tidewire_proto::error::DecodeError;
use tidewire_proto::message::Kind;

use super::*;
use crate::lane::{lane, received};
use crate::limits::Limits;
use crate::mailbox::BatchEntry;
use crate::server::Server;
use crate::session::{CloseReason, Output};
use tidewire_proto::connection::Phase;

/// Few messages, so that their frames fill less than a block in every codec.
const MESSAGES: usize = 500;

/// Makes messages of all shapes. Many are like the one before, and some cannot be expressed by any codec.
fn messages(payload: &[u8]) -> Vec<Message<'_>> {
    let mut random = fastrand::Rng::with_seed(5);
    let mut messages: Vec<Message<'_>> = Vec::new();
    for _ in 0..MESSAGES {
        let next = match messages.last() {
            Some(last) if random.u8(..) < 160 => Message {
                id: last.id + u32::from(random.bool()),
                ..*last
            },
            _ => {
                let kinds = [Kind::OneWay, Kind::Request, Kind::Reply, Kind::Say];
                let length = random.usize(0..45);
                let at = random.usize(0..payload.len() - length);
                Message {
                    kind: kinds[random.usize(0..4)],
                    flags: random.u8(0..3) << 2,
                    channel: random.u16(0..3),
                    // Some of these ids exceed an 8-bit id.
                    id: [random.u32(0..5), random.u32(250..260)][random.usize(0..2)],
                    name: ["", "", "method"][random.usize(0..3)],
                    payload: &payload[at..at + length],
                }
            }
        };
        messages.push(next);
    }
    messages
}

#[test]
fn every_message_is_framed_as_its_codec_frames_it() {
    let payload: Vec<u8> = (0..=255).collect();
    for name in AnyCodec::NAMES {
        let codec = AnyCodec::by_name(name).unwrap();
        let mut lane = lane(&Server::builder().codec(codec.clone()));
        let (slot, _far) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        for is_current in [false, true] {
            let mut expected = Vec::new();
            let mut cx = context(&mut lane.core, id, is_current);
            let mut sender = SessionSender::open(&mut cx, id).unwrap();
            let (mut taken, mut refused) = (0, 0);
            for message in messages(&payload) {
                let encoded = codec.encode(&message, &mut expected);
                *(if encoded.is_ok() {
                    &mut taken
                } else {
                    &mut refused
                }) += 1;
                assert_eq!(sender.send(&message), encoded.map_err(SendError::from));
            }
            assert!(taken > 0 && taken + refused == MESSAGES, "{name}");
            drop(sender);
            drop(cx);
            let sessions = &mut lane.core.sessions;
            assert!(sessions.outputs.of(slot).unsent() == expected, "{name}");
            assert!(sessions.is_listed(slot), "{name}");
            sessions.replace_output(slot, Output::default());
        }
    }
}

#[test]
fn limits_hold_message_by_message() {
    let mut limits = Limits::default();
    limits.connections.set_queue_bytes_max(100);
    let mut lane = lane(&Server::builder().limits(limits));
    let (slot, _far) = lane.open_session();
    lane.core.sessions[slot]
        .connection
        .handshake_mut()
        .limit_frames(40);
    lane.core.sessions[slot]
        .connection
        .output_mut()
        .handle_blocked();
    let id = lane.core.sessions[slot].id;
    let mut cx = lane.core.context_without_session();
    let mut sender = SessionSender::open(&mut cx, id).unwrap();
    let (small, large) = ([1; 24], [2; 33]);
    let large = Message::new(Kind::OneWay, 0, &large);
    let small = Message::new(Kind::OneWay, 0, &small);
    let too_large = EncodeError::PayloadTooLarge {
        bytes: 41,
        limit: 40,
    };
    let sent = [small, small, large, small, small, small, small];
    let results = sent.map(|message| sender.send(&message));
    drop(sender);
    drop(cx);
    // The fourth small message exceeds the limit, and no message is accepted after it.
    let full = Err(SendError::QueueFull);
    let expected = [
        Ok(()),
        Ok(()),
        Err(too_large.into()),
        Ok(()),
        Ok(()),
        full,
        full,
    ];
    assert_eq!(results, expected);
    assert_eq!(lane.core.sessions.outputs.of(slot).len(), 4 * 32);
    assert_eq!(lane.core.counters.sends_refused.read(), 2);
    assert_eq!(lane.core.counters.sends_too_large.read(), 1);

    lane.core.sessions.table.close(slot, CloseReason::Service);
    let mut cx = lane.core.context_without_session();
    assert_eq!(
        SessionSender::open(&mut cx, id).unwrap_err(),
        SendError::NotOpen
    );
    let nobody = SessionSender::open(&mut cx, SessionId::NONE).unwrap_err();
    assert_eq!(nobody, SendError::NotOpen);
}

/// Regression: a sender held the output, so nothing was written before it ended, and it refused messages beyond the
/// queue.
#[test]
fn a_burst_beyond_the_queue_is_written_and_not_refused() {
    const MESSAGES: usize = 500;
    let mut limits = Limits::default();
    limits.connections.set_queue_bytes_max(1_000);
    let mut lane = lane(&Server::builder().limits(limits));
    let (slot, mut far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    let message = Message::new(Kind::OneWay, 0, &[7; 24]);
    let mut cx = lane.core.context_without_session();
    let mut sender = SessionSender::open(&mut cx, id).unwrap();
    for _ in 0..MESSAGES {
        sender.send(&message).unwrap();
    }
    drop(sender);
    drop(cx);
    assert!(lane.core.sessions.outputs.of(slot).len() <= 1_000 + 32);
    lane.core.sessions.flush_dirty();
    let (mut bytes, mut arrived) = (vec![0; 1 << 16], 0);
    while let Ok(count) = far.read(&mut bytes) {
        arrived += count;
    }
    assert_eq!(arrived, MESSAGES * 32);

    // A peer that reads nothing is still refused. Bytes of its output that were sent do not count.
    let output = Output::partly_sent(vec![0; 1_500], 600);
    lane.core.sessions.replace_output(slot, output);
    let session = &mut lane.core.sessions[slot];
    session.connection.output_mut().handle_blocked();
    let mut cx = lane.core.context_without_session();
    let mut sender = SessionSender::open(&mut cx, id).unwrap();
    let taken = (0..MESSAGES).take_while(|_| sender.send(&message).is_ok());
    assert_eq!(taken.count(), (600 + 1_000 - 1_500) / 32 + 1);
    assert_eq!(sender.send(&message), Err(SendError::QueueFull));
    drop(sender);
    drop(cx);
    let left = lane.core.sessions.outputs.of(slot).len();
    assert_eq!(left, 1_500 + 4 * 32 - 600);
    assert_eq!(lane.core.counters.sends_refused.read(), 2);
}

#[test]
fn a_session_that_ends_while_its_queue_is_written_takes_no_more() {
    let mut limits = Limits::default();
    limits.connections.set_queue_bytes_max(100);
    let mut lane = lane(&Server::builder().limits(limits));
    let (slot, _far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    let mut cx = lane.core.context_without_session();
    let mut sender = SessionSender::open(&mut cx, id).unwrap();
    let message = Message::new(Kind::OneWay, 0, &[7; 124]);
    sender.send(&message).unwrap();
    let reason = CloseReason::SlowSubscriber;
    sender.destination.core.sessions.table.close(slot, reason);
    for _ in 0..2 {
        assert_eq!(sender.send(&message), Err(SendError::NotOpen));
    }
    drop(sender);
    drop(cx);
    lane.core.sessions.flush_dirty();
    assert_eq!(
        lane.core.sessions[slot].connection.phase(),
        Phase::Closed(reason)
    );
    assert_eq!(lane.core.counters.sends_refused.read(), 2);
}

#[test]
fn a_block_is_written_at_once_and_less_at_the_end_of_the_turn() {
    const BLOCK: usize = 2_048;
    let mut lane = lane(&Server::builder());
    let (slot, mut far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    let send = |core: &mut Core, count: usize| {
        let mut cx = core.context_without_session();
        let mut sender = SessionSender::open(&mut cx, id).unwrap();
        for number in 0..count as u64 {
            let payload = [number; 3].map(u64::to_le_bytes);
            let message = Message::new(Kind::OneWay, 0, payload.as_flattened());
            sender.send(&message).unwrap();
        }
    };
    let mut bytes = vec![0; 2 * BLOCK * 32];
    send(&mut lane.core, BLOCK - 1);
    assert!(far.read(&mut bytes).is_err(), "nothing was written yet");
    lane.core.sessions.flush_dirty();
    assert_eq!(far.read(&mut bytes).unwrap(), (BLOCK - 1) * 32);
    send(&mut lane.core, BLOCK);
    assert_eq!(far.read(&mut bytes).unwrap(), BLOCK * 32);
    assert!(lane.core.sessions.outputs.of(slot).is_empty());
    // The session's last frames may still have to be written.
    lane.core.sessions[slot]
        .connection
        .output_mut()
        .half_close();
    send(&mut lane.core, BLOCK);
    assert!(far.read(&mut bytes).is_err());
    assert_eq!(lane.core.sessions.outputs.of(slot).len(), BLOCK * 32);
}

#[test]
fn what_waits_for_a_session_can_be_asked_for_wherever_it_is() {
    let mut limits = Limits::default();
    limits.connections.set_queue_bytes_max(100);
    let mut lane = lane(&Server::builder().limits(limits));
    let ids = [(); 2].map(|()| {
        let (slot, _far) = lane.open_session();
        // The socket counts as full, so that messages wait.
        lane.core.sessions[slot]
            .connection
            .output_mut()
            .handle_blocked();
        lane.core.sessions[slot].id
    });
    let message = Message::new(Kind::OneWay, 0, &[7; 24]);
    let mut cx = lane.core.context(ids[0]);
    for sent in 1..=4 {
        for id in ids {
            cx.send_to(id, &message).unwrap();
            let found = (cx.queued_bytes(id), cx.is_full(id));
            assert_eq!(found, (sent * 32, sent * 32 > 100));
        }
    }
    for unknown in [SessionId::NONE, SessionId::new(1, 7, 1)] {
        assert_eq!((cx.queued_bytes(unknown), cx.is_full(unknown)), (0, false));
    }
}

#[test]
fn frames_for_other_lanes_are_as_if_sent_one_by_one() {
    let mut lane = lane(&Server::builder());
    let codec = lane.core.config.codecs.main().clone();
    let elsewhere = [1, 2].map(|lane| SessionId::new(lane, 7, 1));
    let payloads = [&[1; 20][..], &[2; 20], &[3; 50], &[4; 150], &[5; 20]];
    let messages = payloads.map(|payload| Message::new(Kind::OneWay, 0, payload));
    let mut cx = lane.core.context_without_session();
    let [one_by_one, together] = elsewhere;
    let mut sender = SessionSender::open(&mut cx, together).unwrap();
    for message in &messages {
        sender.send(message).unwrap();
    }
    drop(sender);
    for message in &messages {
        cx.send_to(one_by_one, message).unwrap();
    }
    drop(cx);
    let mut batches = [1, 2].map(|lane_of| &lane.core.exchange.batches[lane_of][..]);
    for message in &messages {
        let mut frame = Vec::new();
        codec.encode(message, &mut frame).unwrap();
        let entries = batches.each_mut().map(BatchEntry::decode);
        for (entry, id) in entries.into_iter().zip(elsewhere) {
            assert_eq!(entry, Some(BatchEntry::Session { id, frame: &frame }));
        }
    }
    assert_eq!(batches, [&[] as &[u8]; 2]);
}

/// Makes a context of this session, or of none.
fn context(core: &mut Core, id: SessionId, is_current: bool) -> Context<'_> {
    match is_current {
        false => core.context_without_session(),
        true => core.context(id),
    }
}

#[test]
fn datagrams_are_those_of_messages_sent_one_by_one() {
    let payload: Vec<u8> = (0..=255).collect();
    let mut random = fastrand::Rng::with_seed(9);
    for (name, datagram_bytes_max) in AnyCodec::NAMES.iter().zip([40, 100, 300].iter().cycle()) {
        let codec = AnyCodec::by_name(name).unwrap().for_datagrams();
        let mut limits = Limits::default();
        limits
            .connections
            .set_datagram_bytes_max(*datagram_bytes_max);
        let mut lane = lane(&Server::builder().codec(codec.clone()).limits(limits));
        let ends = [(); 2].map(|()| lane.open_datagram_session());
        let [one_by_one, together] = [0, 1].map(|end| lane.core.sessions[ends[end].0].id);
        let (mut frames, mut delivered_bytes, mut left) = (Vec::new(), 0, &*messages(&payload));
        while !left.is_empty() {
            // Consecutive senders append to the same output.
            for is_current in [false, true] {
                let count = random.usize(0..10).min(left.len());
                let (some, rest) = left.split_at(count);
                left = rest;
                let times = random.usize(1..10);
                let repeated = || some.iter().flat_map(|each| (0..times).map(move |_| each));
                let mut cx = context(&mut lane.core, one_by_one, is_current);
                let expected: Vec<_> = repeated()
                    .map(|each| cx.send_to(one_by_one, each))
                    .collect();
                drop(cx);
                let mut cx = context(&mut lane.core, together, is_current);
                let mut sender = SessionSender::open(&mut cx, together).unwrap();
                let results: Vec<_> = repeated().map(|each| sender.send(each)).collect();
                drop(sender);
                drop(cx);
                assert_eq!(results, expected, "{name}");
                for each in repeated() {
                    let _ = codec.encode(each, &mut frames);
                }
            }
            lane.core.sessions.flush_dirty();
            let bytes = frames.len() - delivered_bytes;
            let [expected, sent] =
                [0, 1].map(|end| received(&ends[end].1, |all| all.concat().len() >= bytes));
            assert_eq!(sent, expected, "{name}");
            delivered_bytes += sent.concat().len();
        }
        assert!(!frames.is_empty());
        assert_eq!(delivered_bytes, frames.len(), "{name}");
    }
}

/// Panics in the middle of a frame.
struct Panicking(Delimited);

impl Codec for Panicking {
    fn format(&self) -> &'static Format {
        const FORMAT: Format = Format::new("panicking");
        &FORMAT
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        self.0.decode(input, limit)
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.0.encode(message, out)?;
        assert!(message.payload != b"panic", "told to");
        Ok(())
    }
}

/// Regression: a panicking codec lost the bytes that waited for the session, and the session then ended.
#[test]
fn a_codec_that_panics_costs_a_sender_its_message_and_nothing_else() {
    let (whole, panics) = (&b"whole"[..], &b"panic"[..]);
    let [whole, panics] = [whole, panics].map(|it| Message::new(Kind::OneWay, 0, it));
    for is_current in [false, true] {
        let codec = AnyCodec::custom(Panicking(Delimited::new()));
        let mut lane = lane(&Server::builder().codec(codec));
        let (slot, mut far) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        let mut cx = context(&mut lane.core, id, is_current);
        let mut send = |messages: &[Message<'_>]| {
            cx.with_sender(id, |sender| {
                messages.iter().try_for_each(|message| sender.send(message))
            })
        };
        assert_eq!(send(&[whole]), Ok(Ok(())));
        assert!(catch_unwind(AssertUnwindSafe(|| send(&[whole, panics]))).is_err());
        assert_eq!(send(&[whole]), Ok(Ok(())));
        drop(cx);
        lane.core.sessions.flush_dirty();
        let mut arrived = [0; 100];
        let count = far.read(&mut arrived).unwrap();
        let expected = b"whole\r\n".repeat(3);
        assert_eq!(
            String::from_utf8_lossy(&arrived[..count]),
            String::from_utf8_lossy(&expected)
        );
    }
}

/// A sender whose codec panicked has returned the output to the session, so it refuses further messages.
#[test]
fn a_sender_whose_codec_panicked_refuses_what_comes_then() {
    let codec = AnyCodec::custom(Panicking(Delimited::new()));
    let mut lane = lane(&Server::builder().codec(codec));
    let (slot, _far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    let mut cx = lane.core.context_without_session();
    let refused = cx.with_sender(id, |sender| {
        let panics = Message::new(Kind::OneWay, 0, b"panic");
        assert!(catch_unwind(AssertUnwindSafe(|| sender.send(&panics))).is_err());
        sender.send(&Message::new(Kind::OneWay, 0, b"whole"))
    });
    assert_eq!(refused, Ok(Err(SendError::NotOpen)));
    drop(cx);
    assert!(lane.core.sessions.outputs.of(slot).is_empty());
}
