//! After the reply to their join, members receive messages and presence of other nodes.

use tidewire_proto::body::RoomCall;
use tidewire_proto::message::PresenceEvent;

use super::Engine;
use super::suite::{announcement, chat, member};
use crate::peer::{Peer, RoomEvent};

/// Regression: the reply to the first join of a room on a node came before the engine had the node's subscription, so
/// messages of other nodes were missing without a notice.
pub fn members_get_messages_of_another_node_after_their_join<E: Engine>(engine: &mut E) {
    const ROUNDS: u64 = 100;
    let [one, two] = ["one", "two"].map(|id| chat(engine, id));
    let mut ann = member(&one, "ann");
    for round in 0..ROUNDS {
        // Bob leaves each time, so his node has no subscription in between.
        let mut bob = member(&two, &format!("bob{round}"));
        let text = format!("message {round}");
        ann.say(text.as_bytes());
        assert_eq!(bob.next_message().1, text.as_bytes());
        bob.leave().expect("a member");
    }
    drop(ann);
    let sent = one.stop().backplane_sent;
    let metrics = two.stop();
    assert_eq!(sent, ROUNDS);
    assert_eq!(
        (metrics.backplane_received, metrics.backplane_lost),
        (ROUNDS, 0)
    );
}

/// Joins do not wait for an unreachable engine. New members are told about it, also members that join after the others
/// were told.
pub fn members_that_join_a_cut_off_node_are_told<E: Engine>(engine: &mut E) {
    let server = chat(engine, "one");
    let mut ann = member(&server, "ann");
    engine.cut();
    assert!(announcement(&mut ann).contains("cut off"));
    for (room, name) in [("lobby", "bob"), ("new", "cleo")] {
        let mut peer = server.peer();
        peer.join(room, name).expect("a free name");
        let text = announcement(&mut peer);
        assert!(text.contains("cut off"), "{text}");
        assert!(peer.call(&RoomCall::List).is_ok());
    }
    engine.mend();
    let mut dora = server.peer();
    dora.join("later", "dora").expect("a free name");
    while !announcement(&mut ann).contains("again") {}
    drop((ann, dora));
    let metrics = server.stop();
    assert!(metrics.backplane_reconnects >= 1);
}

/// Returns the events about presence up to the message with this text.
fn presence_until(peer: &mut Peer, text: &str) -> Vec<(PresenceEvent, String)> {
    let mut told = Vec::new();
    loop {
        match peer.hear().expect("an event, not the end") {
            RoomEvent::Presence(event, name) => told.push((event, name)),
            RoomEvent::Message { payload, .. } if payload == text.as_bytes() => return told,
            RoomEvent::Message { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// When the engine is back, a join at one node and a leave at the other during the cut are each announced once. Then
/// the lists agree.
pub fn joins_and_leaves_during_a_cut_are_told_once_behind_it<E: Engine>(engine: &mut E) {
    let [one, two] = ["one", "two"].map(|id| chat(engine, id));
    let mut ann = member(&one, "ann");
    let mut eva = member(&one, "eva");
    let mut bob = member(&two, "bob");
    ann.hear_of("bob");
    // The events may come in any order.
    ann.say(b"hello");
    presence_until(&mut bob, "hello");
    engine.cut();
    for peer in [&mut ann, &mut bob] {
        assert!(announcement(peer).contains("cut off"));
    }
    eva.leave().expect("a member");
    let mut cleo = member(&two, "cleo");
    engine.mend();
    let joined = (PresenceEvent::Joined, "cleo".to_owned());
    let left = (PresenceEvent::Left, "eva".to_owned());
    for peer in [&mut ann, &mut bob] {
        // The event of the own node was sent at once, but may come from another lane, after the event of the other
        // node.
        let mut told = Vec::new();
        while told.len() < 2 {
            if let RoomEvent::Presence(event, name) = peer.hear().expect("an event, not the end") {
                told.push((event, name));
            }
        }
        assert!(told.contains(&joined) && told.contains(&left), "{told:?}");
    }
    ann.say(b"from one");
    bob.say(b"from two");
    assert_eq!(presence_until(&mut bob, "from one"), []);
    assert_eq!(presence_until(&mut ann, "from two"), []);
    for peer in [&mut ann, &mut bob, &mut cleo] {
        let listed = peer.call(&RoomCall::List).expect("a list").payload;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let is_listed = ["ann", "bob", "cleo", "eva"].map(|name| listed.contains(name));
        assert_eq!(is_listed, [true, true, true, false], "{listed}");
    }
    drop((ann, bob, cleo, eva));
    for server in [one, two] {
        let metrics = server.stop();
        assert_eq!((metrics.backplane_lost, metrics.backplane_unsent), (0, 0));
    }
}
