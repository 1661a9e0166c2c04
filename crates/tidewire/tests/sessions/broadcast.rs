//! One message for all sessions that a predicate selects.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};

use tidewire::{
    Broadcast, Context, HandlerResult, Kind, Message, SendError, Server, Service, SessionHandle,
    SessionId, TransportKind,
};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire_testkit::{Peer, block_on, wait_until};

use crate::{
    Scene, TRANSPORTS, Tag, assert_broadcasts_conserved, news, next_news, patient, serve, tw1,
};

#[test]
fn a_broadcast_reaches_exactly_its_sessions_on_all_lanes() {
    const ROUNDS: u8 = 50;
    for transport in TRANSPORTS {
        let scene = Scene::set(transport, 3, patient());
        let sessions = scene.server.server().sessions();
        let mut peers: Vec<Peer> = (0..9_u8)
            .map(|tag| {
                let (mut peer, _) = scene.peer();
                peer.ask(&[tag]);
                peer.answer();
                peer
            })
            .collect();
        for round in 0..ROUNDS {
            let wanted = round % 2;
            let broadcast = sessions.broadcast_where(
                move |session| session.state().is_some_and(|tag: &Tag| tag.0 % 2 == wanted),
                news(&[round]),
            );
            let report = broadcast.unwrap().wait();
            let expected = if wanted == 0 { 5 } else { 4 };
            assert_eq!((report.matched, report.queued), (expected, expected));
            assert_eq!(
                (report.full, report.too_large, report.lanes_ended),
                (0, 0, 0)
            );
        }
        for (tag, peer) in peers.iter_mut().enumerate() {
            for round in (0..ROUNDS).filter(|round| usize::from(*round) % 2 == tag % 2) {
                assert_eq!(next_news(peer).unwrap(), [round], "of tag {tag}");
            }
        }
        drop(peers);
        let metrics = scene.server.stop();
        assert_broadcasts_conserved(&metrics);
        assert_eq!(metrics.broadcast_queued, 25 * 5 + 25 * 4);
    }
}

/// Sends a member's message to one half of a room, and passes the broadcast's report to the test.
struct Halves {
    reports: Sender<Broadcast>,
}

impl Service for Halves {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match (message.kind, message.payload) {
            (Kind::Request, name) => {
                let name = String::from_utf8_lossy(name).into_owned();
                let joined = cx.rooms().join("halves", &name)?;
                cx.set_state(joined.room);
                cx.reply(b"welcome")
            }
            (_, text) => {
                let (room, half, author) = (*cx.state().unwrap(), text[0], cx.id());
                let broadcast = cx.broadcast_where(
                    move |session| {
                        let of_half = |name: &str| name.as_bytes()[0] == half;
                        session.is_in(room)
                            && session.name().is_some_and(of_half)
                            && (session.id() != author || text_includes_author(half))
                    },
                    news(text),
                )?;
                self.reports.send(broadcast).unwrap();
                Ok(())
            }
        }
    }
}

/// Members in the half `a` receive their own messages.
fn text_includes_author(half: u8) -> bool {
    half == b'a'
}

#[test]
fn a_handler_broadcasts_by_room_and_name_to_itself_and_others() {
    for transport in TRANSPORTS {
        let (reports, received) = channel();
        let mut limits = patient();
        limits.rooms.set_presence_members_max(0);
        let builder = Server::builder().lanes(2).limits(limits);
        let server = serve(transport, builder, |_| Halves {
            reports: reports.clone(),
        });
        let mut peers: Vec<Peer> = Vec::new();
        for name in ["a1", "a2", "a3", "b1", "b2", "b3"] {
            let mut peer = server.peer();
            peer.ask(name.as_bytes());
            assert_eq!(peer.answer().payload, b"welcome");
            peers.push(peer);
        }
        // This session is in no room.
        let mut outsider = server.peer();
        for text in ["a: all of us", "b: all of you", "a: again"] {
            peers[0].send(&news(text.as_bytes()));
            let report = received.recv().unwrap().wait();
            assert_eq!((report.matched, report.queued), (3, 3), "{text}");
        }
        peers[3].send(&news(b"b: my half but me"));
        assert_eq!(received.recv().unwrap().wait().matched, 2);

        for (index, peer) in peers.iter_mut().enumerate() {
            let expected: &[&str] = match index {
                0..3 => &["a: all of us", "a: again"],
                3 => &["b: all of you"],
                _ => &["b: all of you", "b: my half but me"],
            };
            for text in expected {
                assert_eq!(next_news(peer).unwrap(), text.as_bytes(), "peer {index}");
            }
            peer.finish_writing();
            assert_eq!(next_news(peer), None, "and nothing else");
        }
        outsider.finish_writing();
        assert_eq!(next_news(&mut outsider), None);
        drop((peers, outsider));
        let metrics = server.stop();
        assert_broadcasts_conserved(&metrics);
        assert_eq!(metrics.broadcast_queued, 11);
    }
}

#[test]
fn full_sessions_are_counted_and_the_others_get_everything() {
    for transport in TRANSPORTS {
        let mut limits = patient();
        limits.connections.set_queue_bytes_max(64 * 1024);
        let scene = Scene::set(transport, 2, limits);
        let sessions = scene.server.server().sessions();
        let (mut stalled, stalled_id) = scene.narrow_peer();
        let (mut reading, _) = scene.peer();
        let (mut sent, mut full) = (0_u64, 0);
        while full < 3 {
            let broadcast = sessions.broadcast_where(|_| true, news(&[1; 1000]));
            let report = broadcast.unwrap().wait();
            assert_eq!(report.matched, 2);
            assert_eq!(report.queued + report.full, 2);
            sent += 1;
            full += report.full;
            // One at a time, so that only the peer that never reads can be full.
            assert!(next_news(&mut reading).is_some());
        }
        for _ in 0..sent - full {
            assert_eq!(next_news(&mut stalled).unwrap(), [1; 1000]);
        }
        assert!(
            sessions.find(stalled_id).is_some(),
            "full is no reason to go"
        );
        drop((stalled, reading));
        let metrics = scene.server.stop();
        assert_broadcasts_conserved(&metrics);
        assert_eq!(metrics.broadcast_full, full, "{transport}");
        assert_eq!(metrics.broadcast_queued, 2 * sent - full);
    }
}

#[test]
fn sessions_that_take_smaller_frames_only_are_counted() {
    let scene = Scene::set(TransportKind::Tcp, 1, patient());
    let mut small = Peer::silent(scene.server.wire(), &tw1());
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: 1024,
        credentials: &[],
        agent: "small",
    };
    let mut frame = Vec::new();
    hello.encode_frame(&mut frame).unwrap();
    small.write(&frame);
    assert_eq!(small.receive().unwrap().kind, Kind::Welcome);
    let (mut large, _) = scene.peer();
    let sessions = scene.server.server().sessions();
    let report = sessions.broadcast_where(|_| true, news(&[0; 2000]));
    let report = report.unwrap().wait();
    assert_eq!((report.matched, report.queued, report.too_large), (2, 1, 1));
    assert_eq!(next_news(&mut large).unwrap(), [0; 2000]);
    drop((small, large));
    assert_broadcasts_conserved(&scene.server.stop());
}

/// Blocks its lane until the test continues it.
struct Holding {
    barrier: Arc<Barrier>,
}

impl Service for Holding {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.payload == b"hold" {
            self.barrier.wait();
            self.barrier.wait();
        }
        cx.reply(message.payload)
    }
}

#[test]
fn broadcasts_under_way_are_bounded_and_their_reports_can_be_awaited() {
    let barrier = Arc::new(Barrier::new(2));
    let mut limits = patient();
    limits.memory.set_broadcast_bytes_max(10_000);
    let builder = Server::builder().lanes(2).limits(limits);
    let server = serve(TransportKind::Inproc, builder, |_| Holding {
        barrier: Arc::clone(&barrier),
    });
    let (mut held, mut free) = (server.peer(), server.peer());
    held.ask(b"hold");
    barrier.wait();
    let sessions = server.server().sessions();
    let mut under_way = Vec::new();
    let refused = loop {
        match sessions.broadcast_where(|_| true, news(&[2; 1000])) {
            Ok(broadcast) => under_way.push(broadcast),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, SendError::QueueFull);
    assert!((5..10).contains(&under_way.len()), "{}", under_way.len());
    for broadcast in &under_way {
        // The free lane does its part.
        wait_until("half of it is done", || {
            let (report, is_complete) = broadcast.report();
            assert!(!is_complete);
            (report.queued == 1).then_some(())
        });
    }
    barrier.wait();
    let count = under_way.len() as u64;
    for broadcast in under_way {
        assert_eq!(block_on(broadcast).queued, 2);
    }
    let again = wait_until("there is room again", || {
        sessions.broadcast_where(|_| false, news(b"nobody")).ok()
    });
    assert_eq!(again.wait().matched, 0);
    for peer in [&mut held, &mut free] {
        for _ in 0..count {
            assert_eq!(next_news(peer).unwrap(), [2; 1000]);
        }
    }
    drop((held, free));
    let metrics = server.stop();
    assert_broadcasts_conserved(&metrics);
    assert_eq!(metrics.broadcast_queued, 2 * count);
}

/// Panics on request, and answers any other request with the session's number.
struct Fragile;

impl Service for Fragile {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        assert!(message.payload != b"panic", "told to");
        cx.reply(&cx.id().number().to_le_bytes())
    }

    /// Ends the lane.
    fn on_panic(&mut self, _: &mut Context<'_>) {
        panic!("told to");
    }
}

fn number_of(peer: &mut Peer) -> SessionId {
    peer.ask(b"who am I?");
    let number = peer.answer().payload;
    SessionId::from_number(u64::from_le_bytes(number[..].try_into().unwrap()))
}

/// A lane of either index ends: sends to its sessions are refused, a broadcast reports it and reaches the others, and
/// new connections are accepted. The test covers every transport.
#[test]
fn a_lane_that_ended_is_told_of_and_the_server_stays_reachable() {
    for transport in TRANSPORTS {
        for victim in [0, 1] {
            let server = serve(transport, Server::builder().lanes(2), |_| Fragile);
            let sessions = server.server().sessions();
            let mut peers = [server.peer(), server.peer()];
            let ids = peers.each_mut().map(number_of);
            let handles: [SessionHandle; 2] = ids.map(|id| sessions.find(id).unwrap());
            let dead = usize::from(handles[1].lane() == victim);
            peers[dead].send(&news(b"panic"));
            peers[dead].drain();
            assert_eq!(handles[dead].send(news(b"late")), Err(SendError::NotOpen));
            let broadcast = sessions.broadcast_where(|_| true, news(b"alive?"));
            let report = broadcast.unwrap().wait();
            assert_eq!((report.queued, report.lanes_ended), (1, 1));
            assert_eq!(next_news(&mut peers[1 - dead]).unwrap(), b"alive?");
            let mut late = server.peer();
            assert_eq!(
                sessions.find(number_of(&mut late)).unwrap().lane(),
                1 - victim
            );
            drop((peers, late));
            let stopped = server.stop_unchecked();
            assert_eq!(stopped.failures.len(), 1);
            let metrics = stopped.metrics;
            assert_broadcasts_conserved(&metrics);
            assert_eq!(metrics.sessions_opened, metrics.sessions_closed());
        }
    }
}
