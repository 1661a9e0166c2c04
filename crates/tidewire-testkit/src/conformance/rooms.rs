//! Rooms on one lane: receivers, names, presence, lists, private messages, leaving.

use std::thread;

use tidewire::{Chat, Kind, Message};
use tidewire_proto::body::{RoomCall, Roster};
use tidewire_proto::message::PresenceEvent;

use super::Setup;
use crate::harness::TestServer;
use crate::peer::{Peer, RoomEvent};

/// Makes peers in one room that know each other.
fn room_of(server: &TestServer, names: &[&str]) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let mut peer = server.peer();
        peer.join("lobby", name).expect("a free name");
        for earlier in &names[..index] {
            peer.hear_of(earlier);
        }
        for earlier in &mut peers {
            earlier.hear_of(name);
        }
        peers.push(peer);
    }
    peers
}

pub(super) fn everyone_but_the_sender_hears(setup: &Setup) {
    const NAMES: [&str; 4] = ["ada", "bob", "cleo", "dan"];
    const ROUNDS: usize = 25;
    let server = setup.serve(|_| Chat::new());
    let mut peers = room_of(&server, &NAMES);
    for round in 0..ROUNDS {
        for (index, peer) in peers.iter_mut().enumerate() {
            peer.say(format!("{index} says {round}").as_bytes());
        }
    }
    for (index, peer) in peers.iter_mut().enumerate() {
        // The messages of each author come in order. A member's own message would be one too many.
        let mut next = [0; NAMES.len()];
        for _ in 0..ROUNDS * (NAMES.len() - 1) {
            let (from, payload) = peer.next_message();
            let speaker = NAMES
                .iter()
                .position(|name| *name == from)
                .expect("a member");
            assert_ne!(speaker, index, "heard itself");
            let expected = format!("{speaker} says {}", next[speaker]);
            assert_eq!(String::from_utf8_lossy(&payload), expected);
            next[speaker] += 1;
        }
    }
    drop(peers);
    let metrics = server.stop();
    assert_eq!(metrics.chat_messages, (ROUNDS * NAMES.len()) as u64);
    // All deliveries of messages, and the six of presence.
    let heard = ROUNDS * NAMES.len() * (NAMES.len() - 1) + 6;
    assert!(metrics.room_delivered >= heard as u64, "{metrics:#?}");
}

pub(super) fn names_are_unique_and_may_be_retried(setup: &Setup) {
    let server = setup.serve(|_| Chat::new());
    let mut ada = server.peer();
    ada.join("lobby", "ada").expect("a free name");
    let mut other = server.peer();
    let empty = other.join("lobby", "").expect_err("an empty name");
    assert!(empty.contains("empty"), "{empty}");
    thread::scope(|scope| {
        // A session that does not answer would be replaced. With codecs without pings, reading answers pings of
        // WebSocket.
        let answering = scope.spawn(|| {
            while let Some(message) = ada.receive() {
                match message.kind {
                    Kind::Ping => ada.send(&Message::new(Kind::Pong, 0, &message.payload)),
                    _ if message.payload.windows(3).any(|it| it == b"eve") => return,
                    _ => {}
                }
            }
        });
        let taken = other.join("lobby", "ada").expect_err("a name in use");
        assert!(taken.contains("taken"), "{taken}");
        let long = other
            .join("lobby", &"n".repeat(65))
            .expect_err("a name too long");
        assert!(long.contains("longer"), "{long}");
        other.join("lobby", "eve").expect("a free name at last");
        answering.join().expect("no panic");
    });
    // The name is free again when its session has ended.
    ada.finish_writing();
    ada.drain();
    server.wait_for("ada's session ends", |metrics| {
        metrics.sessions_closed() == 1
    });
    let mut third = server.peer();
    third.join("lobby", "ada").expect("the name is free again");
    drop((ada, other, third));
    server.stop();
}

pub(super) fn presence_tells_who_comes_and_goes(setup: &Setup) {
    let server = setup.serve(|_| Chat::new());
    let mut ada = server.peer();
    ada.join("lobby", "ada").expect("a free name");
    let mut bob = server.peer();
    bob.join("lobby", "bob").expect("a free name");
    let here = RoomEvent::Presence(PresenceEvent::Here, "ada".to_owned());
    assert_eq!(bob.hear(), Some(here));
    let joined = RoomEvent::Presence(PresenceEvent::Joined, "bob".to_owned());
    assert_eq!(ada.hear(), Some(joined));
    bob.finish_writing();
    assert_eq!(bob.hear(), None);
    let left = RoomEvent::Presence(PresenceEvent::Left, "bob".to_owned());
    assert_eq!(ada.hear(), Some(left));
    drop((ada, bob));
    server.stop();
}

pub(super) fn members_are_listed(setup: &Setup) {
    let server = setup.serve(|_| Chat::new());
    let mut peers = room_of(&server, &["ada", "bob", "王小明"]);
    let reply = peers[1].call(&RoomCall::List).expect("a list");
    let roster = Roster::decode(&reply.payload).expect("a roster");
    let names: Vec<_> = roster.entries().map(|(_, name)| name).collect();
    assert_eq!(names, ["ada", "bob", "王小明"]);
    drop(peers);
    server.stop();
}

pub(super) fn whispers_reach_one_member(setup: &Setup) {
    let server = setup.serve(|_| Chat::new());
    let mut peers = room_of(&server, &["ada", "bob", "cleo"]);
    let whisper = |to| RoomCall::Whisper { to, text: b"psst" };
    peers[0].call(&whisper("bob")).expect("bob is here");
    let private = RoomEvent::Message {
        from: "ada".to_owned(),
        payload: b"psst".to_vec(),
        private: true,
    };
    assert_eq!(peers[1].hear(), Some(private));
    let nobody = peers[0]
        .call(&whisper("nobody"))
        .expect_err("no member has that name");
    assert!(nobody.contains("no member has that name"), "{nobody}");
    // Cleo's next message is the public one: she did not receive the private one.
    peers[0].say(b"aloud");
    assert_eq!(
        peers[2].next_message(),
        ("ada".to_owned(), b"aloud".to_vec())
    );
    drop(peers);
    server.stop();
}

pub(super) fn leaving_ends_delivery(setup: &Setup) {
    let server = setup.serve(|_| Chat::new());
    let mut peers = room_of(&server, &["ada", "bob", "cleo"]);
    peers[1].leave().expect("bob is in the room");
    let left = RoomEvent::Presence(PresenceEvent::Left, "bob".to_owned());
    assert_eq!(peers[0].hear(), Some(left));
    peers[0].say(b"is bob gone?");
    assert_eq!(peers[2].next_message().1, b"is bob gone?");
    // Bob receives the answer to his own request next, and no earlier message of the room.
    let again = peers[1].leave().expect_err("bob has left");
    assert!(again.contains("not in"), "{again}");
    peers[1].say(b"may I?");
    assert!(matches!(peers[1].hear(), Some(RoomEvent::Refused(_))));
    peers[1].join("lobby", "bob").expect("bob may come back");
    peers[0].hear_of("bob");
    peers[0].say(b"welcome back");
    peers[1].hear_of("cleo");
    assert_eq!(peers[1].next_message().1, b"welcome back");
    drop(peers);
    server.stop();
}

pub(super) fn members_that_close_have_left(setup: &Setup) {
    let server = setup.serve(|_| Chat::new());
    let mut peers = room_of(&server, &["ada", "bob", "cleo"]);
    // A message sent before closing is delivered, and then the notice that its author has left.
    let mut bob = peers.remove(1);
    bob.say(b"bye");
    bob.finish_writing();
    for peer in &mut peers {
        assert_eq!(peer.next_message(), ("bob".to_owned(), b"bye".to_vec()));
        let left = RoomEvent::Presence(PresenceEvent::Left, "bob".to_owned());
        assert_eq!(peer.hear(), Some(left));
    }
    drop((peers, bob));
    server.stop();
}
