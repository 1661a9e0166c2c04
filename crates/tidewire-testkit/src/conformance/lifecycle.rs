//! Draining and coming back.

use std::time::Duration;

use tidewire::{Backoff, CloseReason, Event, Limits, Server};
use tidewire_proto::body::GoAwayCode;
use tidewire_proto::message::Kind;

use super::echo::{echo, payload_of};
use super::{CodecKind, Setup};
use crate::harness::{DEADLINE, assert_conserved};

pub(super) fn draining_answers_what_was_accepted(setup: &Setup) {
    const REQUESTS: usize = 500;
    let server = setup.serve(|_| echo);
    let mut peer = server.peer();
    let seen = server.metrics().bytes_in;
    let frames: Vec<u8> = (0..REQUESTS)
        .flat_map(|seed| peer.request_frame(&payload_of(seed, 50)))
        .collect();
    peer.write(&frames);
    server.wait_for("everything is read", |metrics| {
        metrics.bytes_in == seen + frames.len() as u64
    });
    let stopping = std::thread::spawn(move || server.stop_unchecked());
    let (mut answers, mut told) = (0, false);
    while let Some(message) = peer.receive() {
        if message.kind == Kind::GoAway {
            told = true;
            // A polite peer ends its side; whatever it still sends is read until then.
            peer.finish_writing();
        } else {
            assert!(
                message.payload == payload_of(answers, 50),
                "answer {answers}"
            );
            answers += 1;
        }
    }
    assert_eq!(answers, REQUESTS);
    assert_eq!(
        told,
        setup.codec == CodecKind::Tw1,
        "lines just see the end"
    );
    drop(peer);
    let stopped = stopping.join().expect("the server stops");
    assert_conserved(&stopped);
}

pub(super) fn clients_reconnect_after_a_restart(setup: &Setup) {
    let server = setup.serve(|_| echo);
    let address = server.url();
    let client = setup
        .client()
        .request_timeout(DEADLINE)
        .reconnect(Backoff {
            first: Duration::from_millis(1),
            max: Duration::from_millis(20),
        })
        .connect(&address)
        .expect("the server welcomes the client");
    assert_eq!(
        client
            .request_blocking(b"before")
            .expect("an answer")
            .payload(),
        b"before"
    );
    expect_event(&client, "opened", |event| {
        matches!(event, Event::Opened { .. })
    });

    let directory = server.stop_for_restart();
    let reason = match setup.codec {
        CodecKind::Tw1 => CloseReason::GoAway(GoAwayCode::Shutdown),
        CodecKind::Lines => CloseReason::PeerClosed,
    };
    expect_event(&client, "closed", |event| {
        *event == Event::Closed { reason }
    });
    expect_event(&client, "reconnecting", |event| {
        matches!(event, Event::Reconnecting { .. })
    });
    let restarted = Server::builder()
        .codec(setup.codec())
        .limits(Limits::default())
        .listen(&address)
        .expect("the same address")
        .start(|_| echo)
        .expect("the address is free again");
    expect_event(&client, "opened again", |event| {
        matches!(event, Event::Opened { .. })
    });
    assert_eq!(
        client
            .request_blocking(b"after")
            .expect("an answer")
            .payload(),
        b"after"
    );
    client.close();
    assert_conserved(&restarted.shutdown(DEADLINE));
    drop(directory);
}

/// Takes events until one fits, passing over further attempts to reconnect.
fn expect_event(client: &tidewire::Client, what: &str, fits: impl Fn(&Event) -> bool) {
    loop {
        let event = client
            .next_event_within(DEADLINE)
            .unwrap_or_else(|| panic!("no event in time: {what}"));
        if fits(&event) {
            return;
        }
        assert!(
            matches!(event, Event::Reconnecting { .. }),
            "waiting for {what}: {event:?}"
        );
    }
}
