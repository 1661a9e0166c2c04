//! Requests on a shared server: pairing, refusals, windows, cancels, replies without a request.

use std::time::Duration;

use tidewire::{Event, RequestError, WhenWindowFull};
use tidewire_proto::codec::Codec;

use super::echo::payload_of;
use super::shared::{Cell, DEFERRED_MAX};
use crate::wait::wait_until;

/// Makes a command with a text that is different for every number.
fn command(command: u8, number: usize) -> Vec<u8> {
    let mut payload = vec![command];
    payload.extend(payload_of(number, number * 7 % 60));
    payload.extend_from_slice(number.to_string().as_bytes());
    payload
}

/// The server answers some at once, and the others later in reverse order. When replies keep their order, all wait for
/// the first held reply, so the test sends fewer requests than the server holds.
pub(super) fn replies_of_any_order_find_their_requests(cell: &Cell<'_>) {
    const REQUESTS: usize = 40;
    const COMMANDS: [u8; 3] = [b'=', b'<', b'<'];
    let client = cell.client();
    let payload = |number: usize| command(COMMANDS[number % 3], number);
    let requests: Vec<_> = (0..REQUESTS)
        .map(|number| cell.ask(&client, &payload(number)))
        .collect();
    cell.release(&client);
    for (number, request) in requests.into_iter().enumerate() {
        let reply = request.wait().expect("a reply");
        assert!(
            reply.payload() == &payload(number)[1..],
            "request {number} got another's reply"
        );
    }
    assert_eq!(client.metrics().replies_unmatched, 0);
    client.close().wait();
}

pub(super) fn refusals_find_their_requests(cell: &Cell<'_>) {
    const REQUESTS: usize = 40;
    const COMMANDS: [u8; 4] = [b'=', b'!', b'<', b'~'];
    let client = cell.client();
    let payload = |number: usize| command(COMMANDS[number % 4], number);
    let requests: Vec<_> = (0..REQUESTS)
        .map(|number| cell.ask(&client, &payload(number)))
        .collect();
    cell.release(&client);
    for (number, request) in requests.into_iter().enumerate() {
        let payload = payload(number);
        let expected = &payload[1..];
        match (payload[0], request.wait()) {
            (b'=' | b'<', Ok(reply)) => assert!(reply.payload() == expected, "request {number}"),
            (b'!', Err(RequestError::Refused { text, .. })) => {
                assert_eq!(text.as_bytes(), expected, "request {number}");
            }
            (b'~', Err(RequestError::Refused { text, .. })) => {
                assert!(text.contains("without an answer"), "{number}: {text}");
            }
            (_, result) => panic!("request {number}: {result:?}"),
        }
    }
    assert_eq!(client.metrics().replies_unmatched, 0);
    client.close().wait();
}

/// A message without a request is counted as a reply or delivered as a message, and shifts no later reply.
pub(super) fn replies_to_nothing_match_nothing(cell: &Cell<'_>) {
    let client = cell.client();
    // The answer to this request has passed, so no reply is pending for the next message.
    let before = cell.ask(&client, b"=before").wait().expect("a reply");
    assert_eq!(before.payload(), b"before");
    client.send(b"x").expect("a place in the queue");
    if cell.setup.codec().format().has_ids() {
        wait_until("the stray reply is counted", || {
            (client.metrics().replies_unmatched == 1).then_some(())
        });
    } else {
        let stray = loop {
            match client.next_event().wait() {
                Event::Message(message) => break message.payload,
                Event::Opened { .. } => {}
                other => panic!("waiting for a message: {other:?}"),
            }
        };
        assert_eq!(stray, b"stray");
    }
    let after = cell.ask(&client, b"=after").wait().expect("a reply");
    assert_eq!(after.payload(), b"after");
    client.close().wait();
}

/// The client's window: a request that does not fit is refused, or waits for its turn, as its caller chose.
pub(super) fn a_full_window_refuses_or_lets_wait(cell: &Cell<'_>) {
    let control = cell.client();
    let client = cell.connect(cell.setup.client().pending_max(2));
    let before = cell.server.metrics().deferred;
    let held = [b"<a", b"<b"].map(|payload| cell.ask(&client, payload));
    let refused = cell.ask(&client, b"=c").wait();
    assert_eq!(refused, Err(RequestError::WindowFull));
    let waiting = client
        .request(b"=d")
        .method(cell.setup.codec.method())
        .when_window_full(WhenWindowFull::Wait)
        .send();
    cell.server
        .wait_for("both are held", |metrics| metrics.deferred == before + 2);
    cell.release(&control);
    for (request, expected) in held.into_iter().zip([b"a", b"b"]) {
        assert_eq!(request.wait().expect("a reply").payload(), expected);
    }
    assert_eq!(waiting.wait().expect("a reply").payload(), b"d");
    client.close().wait();
    control.close().wait();
}

/// The server's window: a session with too many unanswered requests is not read, and none of its messages is lost.
pub(super) fn a_server_with_its_hands_full_reads_no_more(cell: &Cell<'_>) {
    const REQUESTS: usize = DEFERRED_MAX + 10;
    let control = cell.client();
    let client = cell.client();
    let before = cell.server.metrics();
    let requests: Vec<_> = (0..REQUESTS)
        .map(|number| cell.ask(&client, &command(b'<', number)))
        .collect();
    let paused = cell.server.wait_for("reading pauses", |metrics| {
        metrics.reads_paused > before.reads_paused
    });
    assert_eq!(paused.deferred, before.deferred + DEFERRED_MAX as u64);
    cell.release(&control);
    cell.server.wait_for("the others are read", |metrics| {
        metrics.deferred == before.deferred + REQUESTS as u64
    });
    cell.release(&control);
    for (number, request) in requests.into_iter().enumerate() {
        let reply = request.wait().expect("a reply");
        assert!(reply.payload() == &command(b'<', number)[1..], "{number}");
    }
    client.close().wait();
    control.close().wait();
}

pub(super) fn cancelled_requests_are_not_answered(cell: &Cell<'_>) {
    let control = cell.client();
    let client = cell.client();
    let before = cell.server.metrics();
    let request = cell.ask(&client, b"<unwanted");
    cell.server.wait_for("it is held", |metrics| {
        metrics.deferred == before.deferred + 1
    });
    drop(request);
    cell.server.wait_for("the cancel arrives", |metrics| {
        metrics.requests_cancelled == before.requests_cancelled + 1
    });
    cell.release(&control);
    cell.server.wait_for("the answer is dropped", |metrics| {
        metrics.deferred_undelivered == before.deferred_undelivered + 1
    });
    let next = cell.ask(&client, b"=wanted").wait().expect("a reply");
    assert_eq!(next.payload(), b"wanted");
    assert_eq!(client.metrics().replies_unmatched, 0);
    client.close().wait();
    control.close().wait();
}

pub(super) fn late_replies_are_counted(cell: &Cell<'_>) {
    let control = cell.client();
    let client = cell.client();
    let before = cell.server.metrics().deferred;
    let impatient = client
        .request(b"<late")
        .method(cell.setup.codec.method())
        .timeout(Duration::from_millis(1))
        .wait();
    assert_eq!(impatient, Err(RequestError::TimedOut));
    let patient = cell.ask(&client, b"<in time");
    cell.server
        .wait_for("both are held", |metrics| metrics.deferred == before + 2);
    cell.release(&control);
    assert_eq!(patient.wait().expect("a reply").payload(), b"in time");
    wait_until("the late reply is counted", || {
        (client.metrics().replies_unmatched == 1).then_some(())
    });
    client.close().wait();
    control.close().wait();
}
