//! Sending to sessions from other threads, and closing them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewire::{Context, Message, SendError, Server, SessionHandle, SessionId, TransportKind};
use tidewire_proto::error::EncodeError;
use tidewire_testkit::{Peer, wait_until};

use crate::{Scene, TRANSPORTS, news, next_news, patient, serve};

/// Sends, and waits for room. Returns the number of waits.
fn send_patiently(session: &SessionHandle, payload: &[u8]) -> u64 {
    let mut refused = 0;
    wait_until("there is room", || match session.send(news(payload)) {
        Ok(()) => Some(()),
        Err(SendError::QueueFull) => {
            refused += 1;
            None
        }
        Err(error) => panic!("{error}"),
    });
    refused
}

#[test]
fn messages_of_threads_arrive_once_and_in_their_order() {
    const THREADS: u8 = 3;
    const MESSAGES: u32 = 3000;
    for transport in TRANSPORTS {
        let mut limits = patient();
        // A small limit, which the senders reach.
        limits.connections.set_queue_bytes_max(4096);
        let scene = Scene::set(transport, 2, limits);
        let peers: Vec<(Peer, SessionId)> = (0..4).map(|_| scene.peer()).collect();
        let sessions = scene.server.server().sessions();
        let senders: Vec<_> = (0..THREADS)
            .map(|thread| {
                let targets: Vec<SessionHandle> = peers
                    .iter()
                    .map(|(_, id)| sessions.find(*id).unwrap())
                    .collect();
                std::thread::spawn(move || {
                    for number in 0..MESSAGES {
                        let mut payload = vec![thread];
                        payload.extend_from_slice(&number.to_le_bytes());
                        for session in &targets {
                            send_patiently(session, &payload);
                        }
                    }
                })
            })
            .collect();
        let readers: Vec<_> = peers
            .into_iter()
            .map(|(mut peer, _)| {
                std::thread::spawn(move || {
                    let mut next = [0_u32; THREADS as usize];
                    for _ in 0..u32::from(THREADS) * MESSAGES {
                        let payload = next_news(&mut peer).expect("a message, not the end");
                        let number = u32::from_le_bytes(payload[1..].try_into().unwrap());
                        let expected = &mut next[usize::from(payload[0])];
                        assert_eq!(number, *expected, "of thread {}", payload[0]);
                        *expected += 1;
                    }
                    peer
                })
            })
            .collect();
        for sender in senders {
            sender.join().unwrap();
        }
        for reader in readers {
            drop(reader.join().unwrap());
        }
        let metrics = scene.server.stop();
        let offered = u64::from(THREADS) * u64::from(MESSAGES) * 4;
        assert_eq!(metrics.sends_taken, offered, "{transport}");
        assert_eq!(metrics.sends_undelivered, 0);
    }
}

#[test]
fn a_session_that_takes_nothing_is_full_until_it_reads() {
    const LIMIT_BYTES: usize = 64 * 1024;
    for transport in TRANSPORTS {
        let mut limits = patient();
        limits.connections.set_queue_bytes_max(LIMIT_BYTES);
        let scene = Scene::set(transport, 1, limits);
        let (mut peer, id) = scene.narrow_peer();
        let session = scene.server.server().sessions().find(id).unwrap();
        let payload = [7; 1000];
        let mut accepted = 0_u64;
        // The kernel's buffer fills first. A busy lane also makes its sessions look full, so the test waits for the
        // lane.
        wait_until("it is full although its lane is not behind", || {
            let is_settled = scene.server.metrics().sends_taken == accepted;
            match session.send(news(&payload)) {
                Ok(()) => {
                    accepted += 1;
                    None
                }
                Err(error) => {
                    assert_eq!(error, SendError::QueueFull);
                    is_settled.then_some(())
                }
            }
        });
        for _ in 0..accepted {
            assert_eq!(next_news(&mut peer).unwrap(), payload);
        }
        // The peer read everything, so there is room again, for as much as before.
        send_patiently(&session, b"the last");
        assert_eq!(next_news(&mut peer).unwrap(), b"the last");
        drop(peer);
        let metrics = scene.server.stop();
        assert_eq!(metrics.sends_taken, accepted + 1, "{transport}");
        assert_eq!(metrics.sends_undelivered, 0);
    }
}

#[test]
fn a_message_that_fits_no_frame_is_an_error_of_its_sender() {
    let scene = Scene::set(TransportKind::Tcp, 1, patient());
    let (peer, id) = scene.peer();
    let session = scene.server.server().sessions().find(id).unwrap();
    let large = vec![0; patient().connections.frame_bytes_max() + 1];
    let refused = session.send(news(&large)).unwrap_err();
    assert!(
        matches!(
            refused,
            SendError::Encode(EncodeError::PayloadTooLarge { .. })
        ),
        "{refused:?}"
    );
    drop(peer);
    assert_eq!(scene.server.stop().sends_taken, 0);
}

#[test]
fn a_close_comes_after_the_messages_of_the_same_thread() {
    for transport in TRANSPORTS {
        let scene = Scene::set(transport, 2, patient());
        for _ in 0..2 {
            let (mut peer, id) = scene.peer();
            let session = scene.server.server().sessions().find(id).unwrap();
            for number in 0..100_u8 {
                session.send(news(&[number])).unwrap();
            }
            session.close().unwrap();
            for number in 0..100_u8 {
                assert_eq!(next_news(&mut peer).unwrap(), [number]);
            }
            assert_eq!(next_news(&mut peer), None, "the end");
        }
        let metrics = scene.server.stop();
        assert_eq!(metrics.closed_by("service"), 2, "{transport}");
        assert_eq!((metrics.sends_taken, metrics.sends_undelivered), (200, 0));
    }
}

/// Sessions end while threads send to them: each accepted message reached the output or is counted as lost.
#[test]
fn sends_to_sessions_that_end_are_taken_or_counted() {
    for transport in TRANSPORTS {
        let scene = Scene::set(transport, 2, patient());
        let sessions = scene.server.server().sessions();
        let accepted = Arc::new(AtomicU64::new(0));
        for _ in 0..20 {
            let peers: Vec<(Peer, SessionId)> = (0..2).map(|_| scene.peer()).collect();
            let senders: Vec<_> = peers
                .iter()
                .map(|(_, id)| {
                    let session = sessions.find(*id).unwrap();
                    let accepted = Arc::clone(&accepted);
                    std::thread::spawn(move || {
                        loop {
                            match session.send(news(b"are you there?")) {
                                Ok(()) => accepted.fetch_add(1, Ordering::Relaxed),
                                Err(SendError::NotOpen) => return,
                                Err(_) => 0,
                            };
                        }
                    })
                })
                .collect();
            for (mut peer, _) in peers {
                next_news(&mut peer);
                drop(peer);
            }
            for sender in senders {
                sender.join().unwrap();
            }
        }
        let metrics = scene.server.stop();
        assert_eq!(
            accepted.load(Ordering::Relaxed),
            metrics.sends_taken + metrics.sends_undelivered,
            "{transport}"
        );
    }
}

#[test]
fn a_server_that_stops_takes_or_counts_sent_messages() {
    for transport in TRANSPORTS {
        let scene = Scene::set(transport, 2, patient());
        let peers: Vec<(Peer, SessionId)> = (0..2).map(|_| scene.peer()).collect();
        let sessions = scene.server.server().sessions();
        let senders: Vec<_> = peers
            .iter()
            .map(|(_, id)| {
                let session = sessions.find(*id).unwrap();
                std::thread::spawn(move || {
                    let mut accepted = 0_u64;
                    loop {
                        match session.send(news(b"still there?")) {
                            Ok(()) => accepted += 1,
                            Err(SendError::NotOpen) => return accepted,
                            Err(_) => {}
                        }
                    }
                })
            })
            .collect();
        let readers: Vec<_> = peers
            .into_iter()
            .map(|(mut peer, _)| {
                std::thread::spawn(move || {
                    next_news(&mut peer);
                    peer.finish_writing();
                    while next_news(&mut peer).is_some() {}
                })
            })
            .collect();
        for reader in readers {
            reader.join().unwrap();
        }
        let inspector = scene.server.server().inspector();
        scene.server.stop();
        let accepted: u64 = senders
            .into_iter()
            .map(|sender| sender.join().unwrap())
            .sum();
        let metrics = inspector.metrics();
        assert_eq!(
            accepted,
            metrics.sends_taken + metrics.sends_undelivered,
            "{transport}"
        );
    }
}

/// Regression: only the frames counted, so small messages to a busy lane took a hundred times the limit.
#[test]
fn small_messages_to_a_busy_lane_are_bounded_by_their_memory() {
    const LIMIT_BYTES: u32 = 64 * 1024;
    let mut limits = patient();
    limits.connections.set_queue_bytes_max(LIMIT_BYTES as usize);
    let builder = Server::builder().limits(limits);
    let server = serve(TransportKind::Ipc, builder, |_| {
        |cx: &mut Context<'_>, _: Message<'_>| {
            // The lane runs this handler, and takes no messages during it.
            let session = cx.sessions().find(cx.id()).unwrap();
            let mut accepted = 0_u32;
            while session.send(news(b"x")).is_ok() {
                accepted += 1;
            }
            cx.reply(&accepted.to_le_bytes())
        }
    });
    let mut peer = server.peer();
    for _ in 0..3 {
        peer.ask(b"how many?");
        let reply = peer.answer().payload;
        let accepted = u32::from_le_bytes(reply.try_into().unwrap());
        assert!(
            (100..=LIMIT_BYTES / 64 + 1).contains(&accepted),
            "{accepted}"
        );
        for _ in 0..accepted {
            assert_eq!(next_news(&mut peer).unwrap(), b"x");
        }
    }
    drop(peer);
    let metrics = server.stop();
    assert_eq!(metrics.sends_undelivered, 0);
}
