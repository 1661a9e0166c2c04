//! Sessions reached from outside their lane: messages arrive, and broadcasts reach the selected sessions.

use std::sync::mpsc::{Receiver, Sender, channel};

use tidewire::{Context, HandlerResult, Message, SendError, Service, SessionHandle, SessionId};
use tidewire_proto::message::Kind;

use super::{Setup, Transport};
use crate::harness::TestServer;
use crate::peer::Peer;
use crate::wait::wait_until;

struct Number(u64);

/// Numbers sessions in the order in which they send a message, and reports them to the test.
struct Numbering {
    seen: Sender<SessionId>,
}

impl Service for Numbering {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let digit = message.payload.first().copied().unwrap_or_default();
        cx.set_state(Number(u64::from(digit - b'0')));
        self.seen.send(cx.id()).expect("the test listens");
        cx.reply(message.payload)
    }
}

/// Starts a server of two lanes with this many peers, each with its number as its state.
fn scene(setup: &Setup, peers: u8) -> (TestServer, Vec<(Peer, SessionHandle)>) {
    let (seen, ids): (_, Receiver<SessionId>) = channel();
    let server = setup.serve_with(setup.builder().lanes(2), |_| Numbering {
        seen: seen.clone(),
    });
    let sessions = server.server().sessions();
    let peers = (0..peers)
        .map(|number| {
            let mut peer = server.peer();
            peer.ask(&[b'0' + number]);
            peer.answer();
            let id = ids.recv().expect("a session that spoke");
            (peer, sessions.find(id).expect("an open session"))
        })
        .collect();
    (server, peers)
}

pub(super) fn messages_of_threads_arrive(setup: &Setup) {
    const MESSAGES: usize = 300;
    let (server, peers) = scene(setup, 4);
    let lanes: Vec<usize> = peers.iter().map(|(_, session)| session.lane()).collect();
    // Over UDP the kernel chooses the lane, by a hash of the addresses.
    assert!(
        setup.transport == Transport::Udp || lanes.iter().sum::<usize>() == 2,
        "two on each lane: {lanes:?}"
    );
    let senders: Vec<_> = peers
        .iter()
        .map(|(_, session)| {
            let session = session.clone();
            std::thread::spawn(move || {
                for number in 0..MESSAGES {
                    let text = number.to_string();
                    let message = Message::new(Kind::OneWay, 0, text.as_bytes());
                    let outcome = wait_until("there is room", || {
                        let outcome = session.send(message);
                        (outcome != Err(SendError::QueueFull)).then_some(outcome)
                    });
                    outcome.expect("an open session");
                }
                session.close().expect("an open session");
            })
        })
        .collect();
    for (mut peer, _) in peers {
        for number in 0..MESSAGES {
            hear(&mut peer, &number.to_string());
        }
        hear_the_end(&mut peer);
    }
    for sender in senders {
        sender.join().expect("a sender");
    }
    let metrics = server.stop();
    assert_eq!(metrics.sends_taken, 4 * MESSAGES as u64);
    assert_eq!(metrics.sends_undelivered, 0);
    assert_eq!(metrics.closed_by("service"), 4);
}

pub(super) fn broadcasts_reach_the_chosen_sessions(setup: &Setup) {
    const ROUNDS: u64 = 40;
    let (server, mut peers) = scene(setup, 6);
    let sessions = server.server().sessions();
    for round in 0..ROUNDS {
        let text = round.to_string();
        let message = Message::new(Kind::OneWay, 0, text.as_bytes());
        let is_chosen = move |number: &Number| number.0 % 3 == round % 3;
        let chosen = sessions.broadcast_where(
            move |session| session.state().is_some_and(is_chosen),
            message,
        );
        let report = chosen.expect("room for a broadcast").wait();
        assert_eq!((report.matched, report.queued), (2, 2));
    }
    for (tag, (peer, session)) in (0..).zip(&mut peers) {
        for round in (0..ROUNDS).filter(|round| round % 3 == tag % 3) {
            hear(peer, &round.to_string());
        }
        session.close().expect("an open session");
        hear_the_end(peer);
    }
    drop(peers);
    let metrics = server.stop();
    assert_eq!(metrics.broadcast_matched, 2 * ROUNDS);
    assert_eq!(
        metrics.broadcast_matched,
        metrics.broadcast_queued
            + metrics.broadcast_full
            + metrics.broadcast_too_large
            + metrics.broadcast_inexpressible
    );
}

/// Checks the next message, except for heartbeats.
pub(super) fn hear(peer: &mut Peer, text: &str) {
    let message = std::iter::from_fn(|| peer.receive()).find(|message| message.kind != Kind::Ping);
    let message = message.expect("a message, not the end");
    // UVRPC sends it as a request with an ignored answer.
    let is_one_way =
        message.kind == Kind::OneWay || (message.kind == Kind::Request && message.id == 0);
    assert!(is_one_way, "{message:?}");
    assert_eq!(String::from_utf8_lossy(&message.payload), text);
}

/// Checks that only the end follows.
fn hear_the_end(peer: &mut Peer) {
    let frames = peer.drain();
    assert!(
        frames.iter().all(|frame| frame.kind == Kind::Ping),
        "{frames:?}"
    );
}
