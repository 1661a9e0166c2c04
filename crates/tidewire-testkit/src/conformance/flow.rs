//! Bytes in every kind of piece, and peers that do not read.

use tidewire::{Context, HandlerResult, Kind, Limits, Message};
use tidewire_proto::codec::Codec;

use super::Setup;
use super::echo::payload_of;
use crate::fixtures::echo;

pub(super) fn one_byte_at_a_time(setup: &Setup) {
    const REQUESTS: usize = 10;
    let server = setup.serve(|_| echo);
    let mut peer = server.peer();
    let before = server.metrics().frames_in;
    for seed in 0..REQUESTS {
        for byte in peer.request_frame(&payload_of(seed, seed)) {
            peer.write(&[byte]);
        }
        let answer = peer.receive_in_pieces(1).expect("an answer, not the end");
        assert!(answer.payload == payload_of(seed, seed), "answer {seed}");
    }
    drop(peer);
    let metrics = server.stop();
    assert_eq!(metrics.frames_in - before, REQUESTS as u64);
}

pub(super) fn frames_split_anywhere(setup: &Setup) {
    let server = setup.serve(|_| echo);
    let mut peer = server.peer();
    let sizes = [5, 0, 40];
    let bytes = sizes
        .iter()
        .flat_map(|size| peer.request_frame(&payload_of(0, *size)))
        .count();
    for cut in 1..bytes {
        let frames: Vec<u8> = sizes
            .iter()
            .flat_map(|size| peer.request_frame(&payload_of(cut, *size)))
            .collect();
        let seen = server.metrics().bytes_in;
        peer.write(&frames[..cut]);
        // The rest follows only after the server has read the first part, so that the server meets the cut.
        server.wait_for("the first part is read", |metrics| {
            metrics.bytes_in >= seen + cut as u64
        });
        peer.write(&frames[cut..]);
        for size in sizes {
            assert!(
                peer.answer().payload == payload_of(cut, size),
                "cut at {cut}"
            );
        }
    }
    drop(peer);
    server.stop();
}

/// All messages that a handler sends in one turn leave in one write.
pub(super) fn messages_of_one_turn_share_a_write(setup: &Setup) {
    const MESSAGES: usize = 100;
    // Frames of equal length fill datagrams of equal length, which one write can hold.
    let text = |number: usize| format!("message {number:02}");
    let server = setup.serve(|_| {
        move |cx: &mut Context<'_>, _: Message<'_>| {
            for number in 0..MESSAGES {
                cx.send(Message::new(Kind::OneWay, 0, text(number).as_bytes()))?;
            }
            Ok(())
        }
    });
    let mut peer = server.peer();
    // A write is counted after the peer may have read it.
    let welcomes = u64::from(setup.codec().format().begins_with_hello());
    server.wait_for("the welcome is counted", |metrics| {
        metrics.writes == welcomes
    });
    peer.send(&Message::new(Kind::OneWay, 0, b"go"));
    for number in 0..MESSAGES {
        let message = peer.receive().expect("a message, not the end");
        assert_eq!(String::from_utf8_lossy(&message.payload), text(number));
    }
    // The peer ends the session, so that the server has no farewell to write.
    peer.finish_writing();
    assert_eq!(peer.receive(), None, "nothing but the end follows");
    assert_eq!(server.stop().writes, welcomes + 1);
}

/// Answers a number with a long text that begins with it.
fn amplify(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    let mut reply = message.payload.to_vec();
    reply.extend_from_slice(&[b'.'; REPLY_BYTES][reply.len()..]);
    cx.reply(&reply)
}

pub(super) fn peers_that_read_nothing_are_paused(setup: &Setup) {
    // More bytes than the kernel's buffers hold, however much they grow.
    const REQUESTS: usize = 1000;
    let mut limits = Limits::default();
    limits.connections.set_queue_bytes_max(64 * 1024);
    let server = setup.serve_with(setup.builder().limits(limits), |_| amplify);
    let mut deaf = server.narrow_peer();
    let frames: Vec<u8> = (0..REQUESTS)
        .flat_map(|seed| deaf.request_frame(format!("{seed}:").as_bytes()))
        .collect();
    let mut writer = deaf.wire().try_clone().expect("a descriptor");
    let thread = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &frames));
    server.wait_for("reading pauses", |metrics| metrics.reads_paused > 0);
    // The server serves others at the same time, so the lane could have read more.
    let mut other = server.peer();
    for seed in 0..100 {
        other.ask(&payload_of(seed, 8));
        assert_eq!(other.answer().payload.len(), REPLY_BYTES);
    }
    let metrics = server.metrics();
    assert!(
        metrics.frames_in < REQUESTS as u64,
        "all was read although no reply was taken: {metrics:#?}"
    );
    for seed in 0..REQUESTS {
        let reply = deaf.answer().payload;
        let number = format!("{seed}:");
        assert!(
            reply.starts_with(number.as_bytes()),
            "reply {seed} is another's"
        );
        assert_eq!(reply.len(), REPLY_BYTES);
    }
    thread.join().expect("the writer").expect("all was taken");
    drop((deaf, other));
    server.stop();
}

pub(super) fn dribbling_readers_get_everything(setup: &Setup) {
    const REQUESTS: usize = 60;
    let mut limits = Limits::default();
    limits.connections.set_queue_bytes_max(16 * 1024);
    let server = setup.serve_with(setup.builder().limits(limits), |_| amplify);
    let mut peer = server.narrow_peer();
    let frames: Vec<u8> = (0..REQUESTS)
        .flat_map(|seed| peer.request_frame(format!("{seed}:").as_bytes()))
        .collect();
    peer.write(&frames);
    for seed in 0..REQUESTS {
        let reply = peer.receive_in_pieces(97).expect("a reply, not the end");
        let number = format!("{seed}:");
        assert!(reply.payload.starts_with(number.as_bytes()), "reply {seed}");
        assert_eq!(reply.payload.len(), REPLY_BYTES);
    }
    drop(peer);
    server.stop();
}

/// Bytes of an amplified reply; it fits a line.
const REPLY_BYTES: usize = 8000;
