//! Rooms that span lanes: nothing is lost, and the messages of each author stay in order.

use std::collections::HashMap;

use tidewire::Chat;
use tidewire_proto::body::RoomCall;

use super::Setup;
use crate::peer::{Peer, RoomEvent};

pub(super) fn rooms_span_two_lanes(setup: &Setup) {
    rooms_span_lanes(setup, 2);
}

pub(super) fn rooms_span_three_lanes(setup: &Setup) {
    rooms_span_lanes(setup, 3);
}

pub(super) fn whispers_cross_lanes(setup: &Setup) {
    let server = setup.serve_with(setup.builder().lanes(2), |_| Chat::new());
    // The server gives two sessions in a row to two lanes.
    let mut ada = server.peer();
    ada.join("lobby", "ada").expect("a free name");
    let mut bob = server.peer();
    bob.join("lobby", "bob").expect("a free name");
    bob.hear_of("ada");
    ada.hear_of("bob");
    for number in 0..20_u8 {
        let text = [b'a' + number];
        let whisper = RoomCall::Whisper {
            to: "bob",
            text: &text,
        };
        ada.call(&whisper).expect("bob is here");
        let private = RoomEvent::Message {
            from: "ada".to_owned(),
            payload: text.to_vec(),
            private: true,
        };
        assert_eq!(bob.hear(), Some(private));
    }
    drop((ada, bob));
    assert_eq!(server.stop().sends_refused, 0);
}

fn rooms_span_lanes(setup: &Setup, lanes: usize) {
    const MEMBERS: usize = 7;
    const MESSAGES: usize = 60;
    let server = setup.serve_with(setup.builder().lanes(lanes), |_| Chat::new());
    let mut peers: Vec<Peer> = Vec::new();
    for member in 0..MEMBERS {
        let mut peer = server.peer();
        peer.join("lobby", &format!("m{member}"))
            .expect("a free name");
        for (index, earlier) in peers.iter_mut().enumerate() {
            earlier.hear_of(&format!("m{member}"));
            peer.hear_of(&format!("m{index}"));
        }
        peers.push(peer);
    }
    // Every member sends and receives at the same time, on its own thread.
    let threads: Vec<_> = peers
        .into_iter()
        .enumerate()
        .map(|(index, mut peer)| {
            std::thread::spawn(move || {
                for message in 0..MESSAGES {
                    peer.say(message.to_string().as_bytes());
                }
                let mut next: HashMap<String, usize> = HashMap::new();
                for _ in 0..MESSAGES * (MEMBERS - 1) {
                    let (from, payload) = peer.next_message();
                    assert_ne!(from, format!("m{index}"), "heard itself");
                    let next = next.entry(from).or_default();
                    assert_eq!(String::from_utf8_lossy(&payload), next.to_string());
                    *next += 1;
                }
                assert_eq!(next.len(), MEMBERS - 1);
                peer
            })
        })
        .collect();
    let peers: Vec<Peer> = threads
        .into_iter()
        .map(|thread| thread.join().expect("everything was heard in order"))
        .collect();
    drop(peers);
    let metrics = server.stop();
    assert_eq!(metrics.chat_messages, (MEMBERS * MESSAGES) as u64);
    assert_eq!(metrics.sends_refused, 0);
}
