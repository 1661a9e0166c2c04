//! Streams that lose their newest messages while nodes follow them.

use tidewire_testkit::backplane::InprocEngine;
use tidewire_testkit::backplane::histories::HistoryKind;
use tidewire_testkit::backplane::lost_ends::{Cluster, MESSAGES};
use tidewire_testkit::wait_until;

/// Regression: a stream repeated known sequences without a lost connection, as after an operator replaces it by an
/// older copy. A message that went to the copy is appended again.
#[test]
fn a_stream_that_goes_back_while_nodes_follow_it_begins_again() {
    for kind in [HistoryKind::Room, HistoryKind::Topic] {
        let engine = InprocEngine::default();
        let mut cluster = Cluster::start(&engine, kind);
        for round in 1..4 {
            engine.lose_ends(MESSAGES / 2);
            cluster.say(round, 0..1);
            wait_until("the stream is replaced", || {
                (engine.replaced() == round).then_some(())
            });
            cluster.say(round, 1..MESSAGES);
            cluster.assert_told(round);
        }
        cluster.stop();
    }
}

/// Regression: a stream that was lost and had as many messages again was taken for the known stream.
#[test]
fn a_stream_that_lost_its_end_and_is_as_long_again_begins_again() {
    for kind in [HistoryKind::Room, HistoryKind::Topic] {
        let engine = InprocEngine::default();
        let mut cluster = Cluster::start(&engine, kind);
        engine.lose_ends(1);
        // The nodes do not get it from the stream. A message of a topic also goes directly to nodes with a wildcard.
        engine.lose(if kind == HistoryKind::Topic { 2 } else { 1 });
        cluster.say(1, 0..1);
        wait_until("it is stored", || engine.has_lost_all().then_some(()));
        cluster.say(1, 1..MESSAGES);
        cluster.assert_told(1);
        cluster.stop();
    }
}
