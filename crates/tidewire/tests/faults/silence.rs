//! Peers that say nothing, or stop in the middle.

use std::time::{Duration, Instant};

use tidewire::proto::body::GoAwayCode;
use tidewire::{Chat, Client, Kind};
use tidewire_testkit::{Peer, TestServer, hello_frame};

use crate::{echo, last_words, limited, lines, told_why, tw1};

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_handshake_that_never_comes_times_out() {
    let builder = limited(|limits| limits.handshake_timeout = SHORT);
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut mute = Peer::silent(server.wire(), &tw1());
    assert_eq!(
        last_words(&mute.drain()),
        Some(GoAwayCode::HandshakeTimeout)
    );
    let mut slow = Peer::silent(server.wire(), &tw1());
    slow.write(&hello_frame()[..20]);
    assert_eq!(
        last_words(&slow.drain()),
        Some(GoAwayCode::HandshakeTimeout)
    );
    drop((mute, slow));
    assert_eq!(server.stop().closed_by("handshake_timeout"), 2);
}

#[test]
fn half_a_frame_then_silence_times_out() {
    let builder = limited(|limits| limits.frame_timeout = SHORT);
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut peer = server.peer();
    peer.ask(b"whole");
    assert_eq!(peer.answer().payload, b"whole");
    let frame = peer.request_frame(b"cut short");
    peer.write(&frame[..frame.len() - 1]);
    assert_eq!(last_words(&peer.drain()), Some(GoAwayCode::IdleTimeout));
    drop(peer);
    assert_eq!(server.stop().closed_by("frame_timeout"), 1);
}

#[test]
fn half_a_line_then_silence_times_out() {
    let builder = limited(|limits| limits.frame_timeout = SHORT);
    let server = TestServer::over_ipc(builder, &lines(), |_| echo);
    let mut peer = server.peer();
    peer.write(b"no end");
    told_why(&mut peer, "did not end in time");
    assert_eq!(peer.receive(), None);
    drop(peer);
    assert_eq!(server.stop().closed_by("frame_timeout"), 1);
}

#[test]
fn a_peer_that_answers_no_ping_is_idle_and_closed() {
    let builder = limited(|limits| {
        limits.heartbeat = SHORT;
        limits.idle_timeout = SHORT * 6;
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut peer = server.peer();
    let frames = peer.drain();
    assert_eq!(last_words(&frames), Some(GoAwayCode::IdleTimeout));
    assert!(
        frames.iter().any(|frame| frame.kind == Kind::Ping),
        "it was asked first"
    );
    drop(peer);
    assert_eq!(server.stop().closed_by("idle_timeout"), 1);
}

#[test]
fn a_heartbeat_keeps_a_quiet_client_alive() {
    let idle_timeout = Duration::from_secs(1);
    let builder = limited(|limits| {
        limits.heartbeat = SHORT;
        limits.idle_timeout = idle_timeout;
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let client = Client::connect(&server.url()).unwrap();
    assert_eq!(
        client.request_blocking(b"hello").unwrap().payload(),
        b"hello"
    );
    let quiet_since = Instant::now();
    server.wait_for("pongs for longer than the idle timeout", |_| {
        quiet_since.elapsed() > idle_timeout * 3 / 2
    });
    assert_eq!(
        server.metrics().sessions_closed(),
        0,
        "the pongs kept it open"
    );
    assert_eq!(
        client.request_blocking(b"again").unwrap().payload(),
        b"again"
    );
    client.close();
    let metrics = server.stop();
    // Hello, two requests, and a pong for each of at least a few pings.
    assert!(metrics.frames_in > 6, "{metrics:#?}");
}

#[test]
fn a_person_who_types_nothing_is_closed_after_the_long_timeout() {
    let builder = limited(|limits| {
        limits.idle_timeout = SHORT / 5;
        limits.idle_timeout_without_heartbeat = SHORT;
    });
    let server = TestServer::over_tcp(builder, &lines(), |_| Chat::new());
    let mut person = server.peer();
    person.expect_text("Enter username: ");
    told_why(&mut person, "idle timeout");
    assert_eq!(person.receive(), None);
    drop(person);
    assert_eq!(server.stop().closed_by("idle_timeout"), 1);
}
