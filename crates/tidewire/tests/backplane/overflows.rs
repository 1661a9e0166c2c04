//! Engines that drop packets for a node with a full inbox, with or without a report.

use tidewire::History;
use tidewire_testkit::backplane::InprocEngine;
use tidewire_testkit::backplane::histories::HistoryKind;
use tidewire_testkit::backplane::suite::{chat, member};
use tidewire_testkit::wait_until;

use crate::next_with_gaps;

/// Each overflow is counted, and each message arrives or is reported as missing.
#[test]
fn overflows_are_counted_and_their_losses_reported() {
    const OVERFLOWS: u64 = 5;
    let engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    let (mut offered, mut delivered, mut told) = (0, 0, 0);
    for overflow in 1..=OVERFLOWS {
        engine.lose(1);
        // A packet that is lost may tell a position alone, which loses no message.
        wait_until("a packet is lost", || {
            ann.say(b"dropped or not");
            offered += 1;
            engine.has_lost_all().then_some(())
        });
        engine.tell_overflow();
        for server in [&one, &two] {
            server.wait_for("the overflow is counted", |metrics| {
                metrics.backplane_overflows == overflow
            });
        }
        ann.say(b"last");
        offered += 1;
        loop {
            let (lost, payload) = next_with_gaps(&mut bob);
            told += lost;
            delivered += 1;
            if payload == b"last" {
                break;
            }
        }
    }
    assert_eq!(delivered + told, offered);
    drop((ann, bob));
    let sent = one.stop();
    assert_eq!(
        (sent.backplane_sent, sent.backplane_overflows),
        (offered, OVERFLOWS)
    );
    let metrics = two.stop();
    assert_eq!(metrics.backplane_overflows, OVERFLOWS);
    assert_eq!(
        (metrics.backplane_received, metrics.backplane_lost),
        (delivered, told)
    );
}

/// After an overflow a node reads its streams. So the node receives the last message, although no later message shows
/// the loss.
#[test]
fn messages_that_an_overflow_dropped_are_read_from_the_stream() {
    const MESSAGES: usize = 5;
    for kind in [HistoryKind::Room, HistoryKind::Topic] {
        let engine = InprocEngine::default();
        let servers = ["one", "two"].map(|id| kind.serve(&engine, id, History::last(100)));
        let author = kind.reader(&servers[0], "ann", None);
        let mut readers = [0, 1].map(|it| kind.reader(&servers[it], ["bob", "carl"][it], None));
        for number in 0..MESSAGES {
            // A message of a topic also goes directly to nodes with a wildcard.
            engine.lose(if kind == HistoryKind::Topic { 2 } else { 1 });
            author.say(&number.to_string());
            wait_until("it is lost", || engine.has_lost_all().then_some(()));
            engine.tell_overflow();
            for reader in &mut readers {
                assert_eq!(reader.hear(), number.to_string());
            }
        }
        assert_eq!(readers.each_ref().map(|reader| reader.lost), [0, 0]);
        drop((author, readers));
        for server in servers {
            let metrics = server.stop();
            assert_eq!(metrics.backplane_overflows, MESSAGES as u64);
            assert_eq!((metrics.backplane_lost, metrics.backplane_unsent), (0, 0));
        }
    }
}

/// Regression: a node did not detect the loss of the last message, for example between two servers of NATS, until the
/// next message. Now a node reads streams that are silent.
#[test]
fn the_last_message_of_a_kept_room_or_topic_that_is_lost_in_silence_is_read_from_the_stream() {
    for kind in [HistoryKind::Room, HistoryKind::Topic] {
        let engine = InprocEngine::default();
        let servers = ["one", "two"].map(|id| kind.serve(&engine, id, History::last(100)));
        let author = kind.reader(&servers[0], "ann", None);
        let mut readers = [0, 1].map(|it| kind.reader(&servers[it], ["bob", "carl"][it], None));
        // A message of a topic also goes directly to nodes with a wildcard.
        engine.lose(if kind == HistoryKind::Topic { 2 } else { 1 });
        author.say("last");
        for reader in &mut readers {
            assert_eq!((reader.hear(), reader.lost), ("last".into(), 0));
        }
        drop((author, readers));
        for server in servers {
            let metrics = server.stop();
            assert_eq!((metrics.backplane_lost, metrics.backplane_unsent), (0, 0));
        }
    }
}
