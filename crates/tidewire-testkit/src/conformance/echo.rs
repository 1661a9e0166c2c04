//! Requests and replies: sizes, pipelines, many sessions, half-closed connections.

use tidewire::{Client, Context, HandlerResult, Message};

use super::{CodecKind, Setup};

/// Answers everything with itself.
pub(super) fn echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    cx.reply(message.payload)
}

/// Bytes that depend on their place and on `seed`, and fit a line.
pub(super) fn payload_of(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|place| b'!' + ((seed * 31 + place * 7) % 90) as u8)
        .collect()
}

pub(super) fn of_many_sizes(setup: &Setup) {
    let server = setup.serve(|_| echo);
    let client = connect(setup, &server.url());
    // Around the receive buffer, the direct tail and the frame limit; a line ends at 8 KiB with its terminator.
    let sizes: &[usize] = match setup.codec {
        CodecKind::Tw1 => &[
            0, 1, 2, 11, 12, 13, 255, 4096, 16_371, 16_372, 16_373, 65_536, 262_131, 262_132,
            262_133, 262_144, 1_048_564,
        ],
        CodecKind::Lines => &[0, 1, 2, 31, 32, 33, 255, 4096, 8190, 8191],
    };
    for (seed, size) in sizes.iter().enumerate() {
        let payload = payload_of(seed, *size);
        let reply = client.request_blocking(&payload).expect("an answer");
        assert!(reply.payload() == payload, "{size} bytes came back changed");
    }
    client.close();
    let metrics = server.stop();
    assert_eq!(metrics.sessions_opened, 1);
}

pub(super) fn pipelined_requests_get_their_own_replies(setup: &Setup) {
    const REQUESTS: usize = 1000;
    let server = setup.serve(|_| echo);
    let client = connect(setup, &server.url());
    let payload = |seed: usize| payload_of(seed, seed * 37 % 700);
    let requests: Vec<_> = (0..REQUESTS)
        .map(|seed| client.request(&payload(seed)))
        .collect();
    let mut answered = 0;
    for (seed, request) in requests.into_iter().enumerate() {
        let reply = request.wait().expect("an answer");
        assert!(
            reply.payload() == payload(seed),
            "request {seed} got another's reply"
        );
        answered += 1;
    }
    assert_eq!(answered, REQUESTS);
    assert_eq!(client.metrics().replies_unmatched, 0);
    client.close();
    server.stop();
}

pub(super) fn many_sessions_at_once(setup: &Setup) {
    const SESSIONS: usize = 60;
    const ROUNDS: usize = 5;
    let server = setup.serve(|_| echo);
    let mut peers: Vec<_> = (0..SESSIONS).map(|_| server.peer()).collect();
    for round in 0..ROUNDS {
        for (index, peer) in peers.iter_mut().enumerate() {
            peer.ask(&payload_of(index * ROUNDS + round, index));
        }
        for (index, peer) in peers.iter_mut().enumerate() {
            let expected = payload_of(index * ROUNDS + round, index);
            assert!(peer.answer().payload == expected, "session {index}");
        }
    }
    drop(peers);
    let metrics = server.stop();
    assert_eq!(metrics.sessions_opened, SESSIONS as u64);
}

pub(super) fn half_closed_clients_get_their_answers(setup: &Setup) {
    const REQUESTS: usize = 200;
    let server = setup.serve(|_| echo);
    let mut peer = server.peer();
    let frames: Vec<u8> = (0..REQUESTS)
        .flat_map(|seed| peer.request_frame(&payload_of(seed, 100)))
        .collect();
    peer.write(&frames);
    peer.finish_writing();
    for seed in 0..REQUESTS {
        assert!(
            peer.answer().payload == payload_of(seed, 100),
            "answer {seed}"
        );
    }
    assert_eq!(peer.receive(), None, "nothing but the end follows");
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("peer_closed"), 1, "{metrics:#?}");
}

pub(super) fn connect(setup: &Setup, address: &str) -> Client {
    setup
        .client()
        .request_timeout(crate::DEADLINE)
        .connect(address)
        .expect("the server welcomes the client")
}
