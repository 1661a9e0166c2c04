//! Servers of one process as nodes of a cluster: the conformance suite of backplanes, and losses that only this engine makes on
//! demand.

use std::time::Duration;

use tidewire::Server;
use tidewire_proto::message::PresenceEvent;
use tidewire_testkit::backplane::suite::{chat, chat_of, member, settings};
use tidewire_testkit::backplane::{Engine, InprocEngine};
use tidewire_testkit::{Heard, Peer, wait_until};

tidewire_testkit::backplane_suite!(Some(InprocEngine::default()));

/// Returns the messages that were lost before the next message, and that message.
fn next_with_gaps(peer: &mut Peer) -> (u64, Vec<u8>) {
    let mut lost = 0;
    loop {
        match peer.hear().expect("an event, not the end") {
            Heard::Gap(count) => lost += count,
            Heard::Message { payload, .. } => return (lost, payload),
            _ => {}
        }
    }
}

#[test]
fn lost_packets_are_told_as_gaps_with_the_exact_number() {
    let engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    ann.say(b"0");
    assert_eq!(next_with_gaps(&mut bob), (0, b"0".to_vec()));
    let mut offered = 1;
    let mut told = 0;
    for _ in 0..20 {
        engine.lose(1);
        let lost_from = offered;
        wait_until("a packet is lost", || {
            ann.say(offered.to_string().as_bytes());
            offered += 1;
            engine.has_lost_all().then_some(())
        });
        ann.say(offered.to_string().as_bytes());
        offered += 1;
        loop {
            let (lost, payload) = next_with_gaps(&mut bob);
            told += lost;
            let number: u64 = String::from_utf8(payload).unwrap().parse().unwrap();
            assert!(number >= lost_from);
            if number + 1 == offered {
                break;
            }
        }
    }
    drop((ann, bob));
    let sent = one.stop().backplane_sent;
    let metrics = two.stop();
    assert_eq!(sent, offered);
    assert_eq!(metrics.backplane_lost, told, "every loss was told");
    assert_eq!(
        metrics.backplane_received + told,
        offered,
        "every message is accounted for"
    );
}

#[test]
fn the_loss_of_the_last_message_is_told_without_a_next_one() {
    let engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    ann.say(b"first");
    assert_eq!(next_with_gaps(&mut bob), (0, b"first".to_vec()));
    engine.lose(1);
    ann.say(b"last");
    loop {
        match bob.hear().expect("an event, not the end") {
            Heard::Gap(lost) => break assert_eq!(lost, 1),
            Heard::Message { payload, .. } => assert_ne!(payload, b"last"),
            _ => {}
        }
    }
    drop((ann, bob));
    one.stop();
    two.stop();
}

/// The members of a silent node leave, and come back with it; what it said meanwhile is told as a gap.
#[test]
fn a_dead_node_leaves_with_its_members_and_comes_back_without_a_silent_gap() {
    let engine = InprocEngine::default();
    let quick = |id: &str| {
        let mut settings = settings(id);
        settings.silence_max = Duration::from_millis(500);
        chat_of(Server::builder(), &engine, settings)
    };
    let (one, two) = (quick("one"), quick("two"));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    ann.say(b"before");
    assert_eq!(next_with_gaps(&mut bob), (0, b"before".to_vec()));
    engine.silence("one", true);
    let left = Heard::Presence(PresenceEvent::Left, "ann".to_owned());
    while bob.hear() != Some(left.clone()) {}
    ann.say(b"unheard");
    one.wait_for("the message is lost", |metrics| metrics.backplane_sent == 2);
    engine.silence("one", false);
    let (mut lost, mut is_back) = (0, false);
    while lost == 0 || !is_back {
        match bob.hear().expect("an event, not the end") {
            Heard::Gap(count) => lost += count,
            Heard::Presence(PresenceEvent::Joined, name) => is_back |= name == "ann",
            _ => {}
        }
    }
    assert_eq!(lost, 1);
    drop((ann, bob));
    one.stop();
    two.stop();
}

#[test]
fn a_hundred_rooms_open_and_close_without_a_trace() {
    let mut engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let client = tidewire::Client::connect(&one.url()).wait().unwrap();
    for round in 0..2 {
        for room in 0..100 {
            let joined = client.join(&format!("room{room}"), "ann").wait().unwrap();
            assert_eq!(joined.members, 1, "round {round}");
            client.leave(joined.room).wait().unwrap();
        }
        engine.cut();
        engine.mend();
    }
    drop(client);
    one.stop();
    two.stop();
}
