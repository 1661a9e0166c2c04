//! Bugs of the threaded client.

use tidewire::{Client, Context, Event, Kind, Message, Server};
use tidewire_testkit::TestServer;

use crate::tw1;

/// Regression: the thread that closed the client took the events, and the thread that reads events lost them.
#[test]
fn closing_a_client_takes_no_events() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| {
        |cx: &mut Context<'_>, message: Message<'_>| {
            cx.send(Message::new(Kind::OneWay, 0, b"news"))?;
            cx.reply(message.payload)
        }
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    client.request(b"").wait().unwrap();
    client.close().wait();
    let mut seen = Vec::new();
    loop {
        match client.next_event().wait() {
            Event::Ended => break,
            Event::Message(message) => seen.push(message.payload),
            Event::Opened { .. } | Event::Closed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, [b"news"]);
    server.stop();
}

/// Regression: such a message lost its name when it became an event.
#[test]
fn a_message_for_a_method_keeps_its_name_among_the_events() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| {
        |cx: &mut Context<'_>, message: Message<'_>| {
            cx.send(Message::new(Kind::OneWay, 0, b"21.5").with_name("sensor"))?;
            cx.reply(message.payload)
        }
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    client.request(b"").wait().unwrap();
    let message = loop {
        if let Event::Message(message) = client.next_event().wait() {
            break message;
        }
    };
    assert_eq!(
        (&message.name[..], &message.payload[..]),
        ("sensor", &b"21.5"[..])
    );
    client.close().wait();
    server.stop();
}
