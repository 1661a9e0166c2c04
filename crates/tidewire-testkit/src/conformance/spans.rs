//! Rooms that span lanes: nothing is lost, and what each speaker says stays in order.

use std::collections::HashMap;

use tidewire::Chat;

use super::Setup;
use crate::peer::Peer;

pub(super) fn rooms_span_two_lanes(setup: &Setup) {
    rooms_span_lanes(setup, 2);
}

pub(super) fn rooms_span_three_lanes(setup: &Setup) {
    rooms_span_lanes(setup, 3);
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
    // Everybody speaks and listens at once, on a thread of its own.
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
                    let (from, payload) = peer.hear_said();
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
    assert_eq!(metrics.said, (MEMBERS * MESSAGES) as u64);
    assert_eq!(metrics.sends_refused, 0);
}
