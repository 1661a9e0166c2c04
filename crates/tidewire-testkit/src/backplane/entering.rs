//! Members get what other nodes send from the reply to their join on.

use tidewire_proto::body::RoomCall;

use super::Engine;
use super::suite::{announcement, chat, member};

/// Regression: the reply to the first join of a room on a node came before the engine had the node's subscription, so that
/// messages of other nodes were missing, and nobody was told.
///
/// # Panics
/// The behaviour differs.
pub fn whoever_has_joined_gets_the_next_message_of_another_node<E: Engine>(engine: &mut E) {
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

/// Joins do not wait for an engine that is gone; the new members are told, also those that come when all others know it.
///
/// # Panics
/// The behaviour differs.
pub fn whoever_joins_a_node_that_is_cut_off_is_told<E: Engine>(engine: &mut E) {
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
