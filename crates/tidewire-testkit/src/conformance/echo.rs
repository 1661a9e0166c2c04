//! Requests and replies: sizes, pipelines, many sessions, half-closed connections.

use tidewire::{Client, WhenWindowFull};

use super::Setup;
use crate::fixtures::echo;
use crate::wait::DEADLINE;

/// Returns bytes that depend on their position and on `seed`, and fit a line.
pub(super) fn payload_of(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|position| b'!' + ((seed * 31 + position * 7) % 90) as u8)
        .collect()
}

pub(super) fn of_many_sizes(setup: &Setup) {
    let server = setup.serve(|_| echo);
    let client = connect(setup, &server.url());
    for (seed, size) in setup.payload_sizes().into_iter().enumerate() {
        let payload = payload_of(seed, size);
        let request = client.request(&payload).method(setup.codec.method());
        let reply = request.wait().expect("an answer");
        assert!(reply.payload() == payload, "{size} bytes came back changed");
    }
    client.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.sessions_opened, 1);
}

pub(super) fn pipelined_requests_get_their_own_replies(setup: &Setup) {
    const REQUESTS: usize = 1000;
    let server = setup.serve(|_| echo);
    // The number in flight fits the smallest buffers of common systems. Over UDP more would be lost.
    let client = setup
        .client()
        .request_timeout(DEADLINE)
        .pending_max(100)
        .when_window_full(WhenWindowFull::Wait)
        .connect(&server.url())
        .wait()
        .expect("the server welcomes the client");
    let payload = |seed: usize| payload_of(seed, seed * 37 % 700);
    let requests: Vec<_> = (0..REQUESTS)
        .map(|seed| {
            let payload = payload(seed);
            let request = client.request(&payload).method(setup.codec.method());
            // The ids of some codecs are too few for all requests at once.
            request.when_window_full(WhenWindowFull::Wait).send()
        })
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
    client.close().wait();
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

/// Bytes without frames come back in order, in any pieces.
pub(super) fn streams_come_back_whole(setup: &Setup) {
    const BYTES: usize = 1_000_000;
    let server = setup.serve(|_| echo);
    let mut peer = server.peer();
    let sent = payload_of(7, BYTES);
    let mut writer = peer.wire().try_clone().expect("a descriptor");
    let stream = sent.clone();
    let thread = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &stream));
    let mut received = Vec::with_capacity(BYTES);
    while received.len() < BYTES {
        received.extend(peer.receive().expect("a piece, not the end").payload);
    }
    thread.join().expect("the writer").expect("all was taken");
    assert!(received == sent, "what came back differs");
    peer.finish_writing();
    assert_eq!(peer.receive(), None, "nothing but the end follows");
    drop(peer);
    let metrics = server.stop();
    assert_eq!(
        (metrics.bytes_in, metrics.bytes_out),
        (BYTES as u64, BYTES as u64)
    );
}

pub(super) fn connect(setup: &Setup, address: &str) -> Client {
    setup
        .client()
        .request_timeout(DEADLINE)
        .connect(address)
        .wait()
        .expect("the server welcomes the client")
}
