//! Two nodes with the same id after a partition of the engine.

use tidewire_testkit::backplane::InprocEngine;
use tidewire_testkit::backplane::suite::{chat, member};
use tidewire_testkit::logs::Logs;
use tidewire_testkit::wait_until;

/// Both count and log it. A third node takes packets only of the node that came last, and counts the dropped packets of
/// the other.
#[test]
fn of_two_nodes_with_one_id_the_others_hear_the_one_that_came_last() {
    let logs = Logs::capture();
    let engine = InprocEngine::default();
    let third = chat(&engine, "third");
    let mut carl = member(&third, "carl");
    let first = chat(&engine, "twin");
    let mut ann = member(&first, "ann");
    carl.hear_of("ann");
    engine.silence("twin", true);
    let second = chat(&engine, "twin");
    let mut eve = member(&second, "eve");
    carl.hear_of("eve");
    engine.silence("twin", false);
    for server in [&first, &second, &third] {
        server.wait_for("the duplicate is counted", |metrics| {
            metrics.backplane_duplicates > 0
        });
    }
    ann.say(b"former");
    first.wait_for("it leaves", |metrics| metrics.backplane_sent == 1);
    eve.say(b"current");
    assert_eq!(carl.next_message(), ("eve".into(), b"current".to_vec()));
    carl.say(b"to all");
    for peer in [&mut ann, &mut eve] {
        assert_eq!(peer.next_message(), ("carl".into(), b"to all".to_vec()));
    }
    let told = || {
        let text = logs.text();
        let lines = text
            .lines()
            .filter(|line| line.contains("another node has this id"));
        lines.filter(|line| line.contains("twin")).count()
    };
    wait_until("both log it", || (told() == 2).then_some(()));
    drop((ann, carl, eve));
    for server in [first, second] {
        let metrics = server.stop();
        assert_eq!((metrics.backplane_sent, metrics.backplane_received), (1, 1));
    }
    let metrics = third.stop();
    assert_eq!((metrics.backplane_received, metrics.backplane_lost), (1, 0));
    assert_eq!(told(), 2, "once each");
}
