//! Messages without a request on a shared server: one-way, topics and rooms, in every codec.

use tidewire::Kind;
use tidewire_proto::message::Message;

use super::CodecKind;
use super::shared::Cell;
use crate::peer::Peer;

fn send(peer: &mut Peer, text: &str) {
    peer.send(&Message::new(Kind::OneWay, 0, text.as_bytes()));
}

fn ask(peer: &mut Peer, text: &str, expected: &str) {
    peer.ask(text.as_bytes());
    assert_eq!(String::from_utf8_lossy(&peer.answer().payload), expected);
}

fn counted(cell: &Cell<'_>, client: &tidewire::Client) -> usize {
    let reply = cell.ask(client, b"?").wait().expect("a reply");
    let text = String::from_utf8_lossy(reply.payload()).into_owned();
    text.parse().expect("a number")
}

pub(super) fn one_way_messages_all_arrive_before_later_messages(cell: &Cell<'_>) {
    const MESSAGES: usize = 500;
    let client = cell.client();
    let before = counted(cell, &client);
    for _ in 0..MESSAGES {
        client.send(b"#").expect("a place in the queue");
    }
    assert_eq!(counted(cell, &client), before + MESSAGES);
    client.close().wait();
}

pub(super) fn exact_topics_reach_subscribers(cell: &Cell<'_>) {
    const MESSAGES: usize = 20;
    let mut subscribers = [cell.peer(), cell.peer()];
    for subscriber in &mut subscribers {
        ask(subscriber, "snews", "subscribed");
    }
    let mut other = cell.peer();
    ask(&mut other, "sweather", "subscribed");
    let mut publisher = cell.peer();
    for number in 0..MESSAGES {
        send(&mut publisher, &format!("pnews {number}"));
    }
    send(&mut publisher, "pweather sunny");
    for subscriber in &mut subscribers {
        for number in 0..MESSAGES {
            assert_eq!(delivered(subscriber), number.to_string());
        }
    }
    // This is the first message: the weather news went to others.
    assert_eq!(delivered(&mut other), "sunny");
}

pub(super) fn wildcards_reach_subscribers(cell: &Cell<'_>) {
    let expected: [(&str, &[&str]); 4] = [
        ("a.b", &["1", "end"]),
        ("a.*", &["1", "3", "end"]),
        ("a.>", &["1", "2", "3", "end"]),
        (">", &["1", "2", "3", "4", "end"]),
    ];
    let mut subscribers: Vec<Peer> = expected
        .iter()
        .map(|(pattern, _)| {
            let mut peer = cell.peer();
            ask(&mut peer, &format!("s{pattern}"), "subscribed");
            peer
        })
        .collect();
    let mut publisher = cell.peer();
    for (topic, text) in [
        ("a.b", "1"),
        ("a.b.c", "2"),
        ("a.c", "3"),
        ("b", "4"),
        ("a.b", "end"),
    ] {
        send(&mut publisher, &format!("p{topic} {text}"));
    }
    for (subscriber, (pattern, texts)) in subscribers.iter_mut().zip(expected) {
        for text in texts {
            assert_eq!(delivered(subscriber), *text, "of {pattern}");
        }
    }
}

/// A service's message in a room reaches every member except its author, also in codecs that have no frame for joining.
pub(super) fn rooms_reach_every_codec(cell: &Cell<'_>) {
    const MESSAGES: usize = 20;
    let mut members: Vec<Peer> = ["ada", "bob", "cleo"]
        .iter()
        .map(|name| {
            let mut peer = cell.peer();
            ask(&mut peer, &format!("jroom {name}"), "joined");
            peer
        })
        .collect();
    let hear = |member: &mut Peer| match cell.setup.codec {
        // These codecs also announce members and authors.
        CodecKind::Tw1 | CodecKind::Lines | CodecKind::Json => {
            String::from_utf8_lossy(&member.next_message().1).into_owned()
        }
        _ => delivered(member),
    };
    for number in 0..MESSAGES {
        send(&mut members[number % 2], &format!("y{number}"));
        // Each message is received before the next is sent, so all members have the same order.
        for (index, member) in members.iter_mut().enumerate() {
            if index != number % 2 {
                assert_eq!(hear(member), number.to_string(), "member {index}");
            }
        }
    }
}

fn delivered(peer: &mut Peer) -> String {
    let message = peer.receive().expect("a delivery, not the end");
    assert!(
        matches!(message.kind, Kind::Deliver | Kind::OneWay),
        "{message:?}"
    );
    String::from_utf8_lossy(&message.payload).into_owned()
}
