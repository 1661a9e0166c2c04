//! Draining and reconnecting.

use std::time::Duration;

use tidewire::{
    Backoff, Client, CloseReason, Event, PubSub, RequestError, Subscription, TopicEvent,
};
use tidewire_proto::body::GoAwayCode;
use tidewire_proto::message::Kind;

use super::Setup;
use super::echo::payload_of;
use crate::fixtures::echo;
use crate::harness::assert_conserved;
use crate::wait::DEADLINE;

pub(super) fn draining_answers_accepted_requests(setup: &Setup) {
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
            // A polite peer ends its side. The server reads its messages until then.
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
    let can_tell = setup.codec.is_whole();
    assert_eq!(told, can_tell, "the others just see the end");
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
        .reconnect(SOON)
        .connect(&address)
        .wait()
        .expect("the server welcomes the client");
    let ask = |client: &Client, payload: &[u8]| {
        let request = client.request(payload).method(setup.codec.method());
        request.wait().expect("an answer")
    };
    assert_eq!(ask(&client, b"before").payload(), b"before");
    expect_event(&client, "opened", |event| {
        matches!(event, Event::Opened { .. })
    });

    let directory = server.stop_for_restart();
    let reason = match setup.codec.is_whole() {
        true => CloseReason::GoAway(GoAwayCode::Shutdown),
        false => CloseReason::PeerClosed,
    };
    expect_event(
        &client,
        "closed",
        |event| matches!(event, Event::Closed { reason: found, .. } if *found == reason),
    );
    expect_event(&client, "reconnecting", |event| {
        matches!(event, Event::Reconnecting { .. })
    });
    let restarted = setup
        .builder()
        .codec(setup.codec())
        .listen(&address)
        .expect("the same address")
        .start(|_| echo)
        .expect("the address is free again");
    expect_event(&client, "opened again", |event| {
        matches!(event, Event::Opened { .. })
    });
    assert_eq!(ask(&client, b"after").payload(), b"after");
    client.close().wait();
    assert_conserved(&restarted.shutdown(DEADLINE));
    drop(directory);
}

pub(super) fn lazy_clients_connect_at_their_first_use(setup: &Setup) {
    let server = setup.serve(|_| echo);
    let client = setup.client().request_timeout(DEADLINE);
    let client = client.connect_lazy(&server.url()).expect("a client");
    assert_eq!(server.metrics().sessions_opened, 0);
    let request = client.request(b"first").method(setup.codec.method());
    assert_eq!(request.wait().expect("an answer").payload(), b"first");
    client.close().wait();
    assert_eq!(server.stop().sessions_opened, 1);
}

pub(super) fn subscriptions_are_made_again_after_a_restart(setup: &Setup) {
    let server = setup.serve(|_| PubSub::new());
    let address = server.url();
    let client = setup.client().reconnect(SOON).connect(&address).wait();
    let client = client.expect("the server welcomes the client");
    let exact = client.subscribe("a.b").wait().expect("a pattern");
    let wildcard = client.subscribe("a.>").wait().expect("a pattern");
    let dropped = client.subscribe("c").wait().expect("a pattern");
    client.publish("a.b", b"before").expect("a topic");
    assert_eq!(heard(&exact), ("a.b".to_owned(), b"before".to_vec()));
    assert_eq!(heard(&wildcard), ("a.b".to_owned(), b"before".to_vec()));
    drop(dropped);

    let directory = server.stop_for_restart();
    for subscription in [&exact, &wildcard] {
        let event = subscription.next_event().wait_for(DEADLINE);
        let interrupted = matches!(
            event,
            Some(TopicEvent::Interrupted {
                reason: CloseReason::GoAway(_) | CloseReason::PeerClosed,
                ..
            })
        );
        assert!(interrupted, "{event:?}");
    }
    let restarted = setup.builder().codec(setup.codec());
    let restarted = restarted.listen(&address).expect("the same address");
    let restarted = restarted.start(|_| PubSub::new());
    let restarted = restarted.expect("the address is free again");
    for subscription in [&exact, &wildcard] {
        assert_eq!(
            subscription.next_event().wait_for(DEADLINE),
            Some(TopicEvent::Resumed)
        );
    }
    client.publish("a.b", b"after").expect("a topic");
    assert_eq!(heard(&exact), ("a.b".to_owned(), b"after".to_vec()));
    assert_eq!(heard(&wildcard), ("a.b".to_owned(), b"after".to_vec()));
    client.close().wait();
    assert_eq!(exact.next_event().wait(), TopicEvent::Ended);
    let late = client.subscribe("late").wait();
    assert!(matches!(late, Err(RequestError::Shutdown)), "{late:?}");
    assert_conserved(&restarted.shutdown(DEADLINE));
    drop(directory);
}

/// Returns the next message of a subscription, as topic and payload.
fn heard(subscription: &Subscription) -> (String, Vec<u8>) {
    match subscription.next_event().wait_for(DEADLINE) {
        Some(TopicEvent::Message(message)) => (message.topic.to_string(), message.payload),
        other => panic!("no message: {other:?}"),
    }
}

/// Takes events until one fits, and skips further attempts to reconnect.
fn expect_event(client: &Client, what: &str, fits: impl Fn(&Event) -> bool) {
    loop {
        let event = client
            .next_event()
            .wait_for(DEADLINE)
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

/// Pauses between attempts to reconnect.
const SOON: Backoff = Backoff {
    first: Duration::from_millis(1),
    max: Duration::from_millis(20),
};
