//! One-way messages, and calls without an answer.

use std::time::Duration;

use tidewire::{Event, Kind, Message};
use tidewire_testkit::DEADLINE;

use crate::{CalculatorClient, Running, everywhere};

#[test]
fn one_way_calls_arrive_in_order_and_nothing_comes_back() {
    everywhere(|place, running| {
        let client = running.client();
        let calculator = CalculatorClient::new(client.clone());
        let lines: Vec<String> = (0..50).map(|number| format!("line {number}")).collect();
        for line in &lines {
            calculator.note(line.clone()).unwrap();
        }
        // The answer to a later request: any answer to the notes would be here before it.
        assert_eq!(calculator.notes().wait().unwrap(), lines, "{place}");
        while let Some(event) = client.next_event().wait_for(Duration::ZERO) {
            assert!(matches!(event, Event::Opened { .. }), "{place}: {event:?}");
        }
        assert_eq!(running.finish(&client).refused, 0, "{place}");
    });
}

/// A peer that sends a request receives an answer.
#[test]
fn a_one_way_method_called_as_a_request_is_acknowledged() {
    everywhere(|place, running| {
        let client = running.client();
        let note = CalculatorClient::METHODS[6];
        let reply = client.request(b"\x02hi").method(note).wait().unwrap();
        assert_eq!(reply.payload(), b"", "{place}");
        let calculator = CalculatorClient::new(client.clone());
        assert_eq!(calculator.notes().wait().unwrap(), ["hi"], "{place}");
        running.finish(&client);
    });
}

/// The method runs, but the caller would take its answer for a message.
#[test]
fn a_method_called_one_way_runs_and_does_not_answer() {
    everywhere(|place, running| {
        let client = running.client();
        let calculator = CalculatorClient::new(client.clone());
        client
            .send(Message::one_way(b"\x03Ada").with_name(CalculatorClient::METHODS[1]))
            .unwrap();
        client
            .send(Message::one_way(b"\x0C").with_name(CalculatorClient::METHODS[5]))
            .unwrap();
        calculator.ping().wait().unwrap();
        let (number, reply) = running.held.recv_timeout(DEADLINE).unwrap();
        assert_eq!(number, 12);
        assert!(reply.is_cancelled(), "nobody waits for it");
        assert_eq!(reply.session(), tidewire::SessionId::NONE);
        reply.reply(Ok(vec![])).unwrap();
        calculator.ping().wait().unwrap();
        while let Some(event) = client.next_event().wait_for(Duration::ZERO) {
            assert!(matches!(event, Event::Opened { .. }), "{place}: {event:?}");
        }
        assert_eq!(running.finish(&client).deferred, 0, "{place}");
    });
}

/// The caller gets no error, so only a counter shows it.
#[test]
fn a_one_way_call_that_cannot_be_read_is_counted() {
    let running = Running::start("tcp", "tw1");
    let mut peer = running.server.peer();
    let note = CalculatorClient::METHODS[6];
    peer.send(&Message::new(Kind::OneWay, 0, b"\xFF").with_name(note));
    let notes = CalculatorClient::METHODS[7];
    peer.send(&Message::with_id(Kind::Request, 0, 5, b"").with_name(notes));
    let answer = peer.receive().unwrap();
    assert_eq!(
        (answer.kind, answer.id, &answer.payload[..]),
        (Kind::Reply, 5, &b"\0"[..])
    );
    drop(peer);
    assert_eq!(running.server.stop().refused, 1);
}
