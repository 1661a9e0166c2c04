//! Peers that send nothing, or stop in the middle.

use std::time::{Duration, Instant};

use tidewire::{AnyCodec, Chat, Client, Kind};
use tidewire_proto::body::GoAwayCode;
use tidewire_testkit::{Peer, TestServer, hello_frame, wait_until};

use crate::{echo, last_words, limited, lines, told_why, tw1};

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_handshake_that_never_comes_times_out() {
    let builder = limited(|limits| {
        limits.connections.set_handshake_timeout(SHORT);
    });
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
    let builder = limited(|limits| {
        limits.connections.set_frame_timeout(SHORT);
    });
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

/// Regression: every byte restarted the timeout of a frame, so a byte from time to time kept a session for ever.
#[test]
fn a_frame_that_comes_byte_by_byte_times_out_in_every_codec() {
    for (name, beginning) in [
        ("srmp", &b"\x01\x01\x00\x10"[..]),
        ("srmp-rpc", b"\x01\x01\x00\x10"),
        ("length-field", b"\x00\x10"),
        ("delimited", b"no end"),
        ("lines", b"no end"),
        ("uvrpc", b"\x00\x00\x10\x00"),
        ("tw1", b"\x00\x10\x00\x00\x01\x00\x00\x00"),
    ] {
        let codec = AnyCodec::by_name(name).unwrap();
        let builder = limited(|limits| {
            limits.connections.set_frame_timeout(SHORT * 4);
            limits.handshakes.set_login_timeout(SHORT * 4);
        });
        let server = TestServer::over_tcp(builder, &codec, |_| echo);
        let mut peer = server.peer();
        peer.write(beginning);
        // The peer sends all the time.
        let mut last = Instant::now();
        wait_until("the frame took too long", || {
            if last.elapsed() > SHORT / 10 {
                last = Instant::now();
                // The session may have been closed just now.
                let _ = peer.try_write(b"x");
            }
            (server.metrics().closed_by("frame_timeout") == 1).then_some(())
        });
        drop(peer);
        assert_eq!(server.stop().closed_by("frame_timeout"), 1, "{name}");
    }
}

#[test]
fn a_long_frame_has_more_time_than_a_short_one() {
    let builder = limited(|limits| {
        limits.connections.set_frame_timeout(SHORT);
        limits.connections.set_frame_bytes_per_second_min(1);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut peer = server.peer();
    let payload = vec![b'x'; 1_000];
    let frame = peer.request_frame(&payload);
    let (beginning, end) = frame.split_at(500);
    peer.write(beginning);
    let since = Instant::now();
    server.wait_for("the time of a short frame has passed", |_| {
        since.elapsed() > SHORT * 4
    });
    peer.write(end);
    assert_eq!(peer.answer().payload, payload);
    drop(peer);
    assert_eq!(server.stop().closed_by("frame_timeout"), 0);
}

/// Regression: only the idle timeout of twenty minutes ended such a session.
#[test]
fn a_person_who_gives_no_name_is_closed_after_the_time_for_a_login() {
    let builder = limited(|limits| {
        limits.handshakes.set_login_timeout(SHORT * 4);
    });
    let server = TestServer::over_tcp(builder, &lines(), |_| Chat::new());
    let mut silent = server.peer();
    silent.expect_text("Enter username: ");
    // A refused name does not count as a login.
    let mut nameless = Peer::silent(server.wire(), &lines());
    nameless.write(b"\n");
    for peer in [&mut silent, &mut nameless] {
        let said = peer.drain();
        let words = String::from_utf8_lossy(&said[said.len() - 1].payload).into_owned();
        assert!(words.contains("login"), "{words}");
    }
    drop((silent, nameless));
    assert_eq!(server.stop().closed_by("handshake_timeout"), 2);
}

#[test]
fn a_named_person_may_listen_for_longer_than_a_login_takes() {
    // Long enough for a login on a busy machine.
    const LOGIN: Duration = Duration::from_secs(3);
    let builder = limited(|limits| {
        limits.handshakes.set_login_timeout(LOGIN);
    });
    let server = TestServer::over_tcp(builder, &lines(), |_| Chat::new());
    let since = Instant::now();
    let mut ada = server.peer();
    ada.join("lobby", "ada").unwrap();
    server.wait_for("the time for a login has passed", |_| {
        since.elapsed() > LOGIN
    });
    let mut bob = server.peer();
    bob.join("lobby", "bob").unwrap();
    ada.hear_of("bob");
    drop((ada, bob));
    assert_eq!(server.stop().closed_by("handshake_timeout"), 0);
}

/// Regression: a person who typed key by key was cut off within the name.
#[test]
fn a_person_who_types_a_line_key_by_key_is_not_cut_off() {
    let builder = limited(|limits| {
        limits.connections.set_frame_timeout(SHORT);
    });
    let server = TestServer::over_tcp(builder, &lines(), |_| Chat::new());
    let mut person = server.peer();
    person.expect_text("Enter username: \n");
    person.write(b"ad");
    let since = Instant::now();
    server.wait_for("the time of other frames has passed", |_| {
        since.elapsed() > SHORT * 4
    });
    person.write(b"a\n");
    person.expect_text("Welcome, ada!");
    drop(person);
    assert_eq!(server.stop().closed_by("frame_timeout"), 0);
}

#[test]
fn half_a_line_then_silence_times_out() {
    let builder = limited(|limits| {
        limits.connections.set_frame_timeout(SHORT);
        limits.handshakes.set_login_timeout(SHORT);
    });
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
        limits.connections.set_heartbeat(SHORT);
        limits.connections.set_idle_timeout(SHORT * 6);
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
        limits.connections.set_heartbeat(SHORT);
        limits.connections.set_idle_timeout(idle_timeout);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let client = Client::connect(&server.url()).wait().unwrap();
    assert_eq!(client.request(b"hello").wait().unwrap().payload(), b"hello");
    let quiet_since = Instant::now();
    server.wait_for("pongs for longer than the idle timeout", |_| {
        quiet_since.elapsed() > idle_timeout * 3 / 2
    });
    assert_eq!(
        server.metrics().sessions_closed(),
        0,
        "the pongs kept it open"
    );
    assert_eq!(client.request(b"again").wait().unwrap().payload(), b"again");
    client.close().wait();
    let metrics = server.stop();
    // A hello, two requests, and a pong for each of at least a few pings.
    assert!(metrics.frames_in > 6, "{metrics:#?}");
}

#[test]
fn a_person_who_types_nothing_is_closed_after_the_long_timeout() {
    let builder = limited(|limits| {
        limits
            .connections
            .set_heartbeat(SHORT / 5)
            .set_idle_timeout(SHORT / 5);
        limits.connections.set_idle_timeout_without_heartbeat(SHORT);
    });
    let server = TestServer::over_tcp(builder, &lines(), |_| Chat::new());
    let mut person = server.peer();
    person.expect_text("Enter username: \n");
    told_why(&mut person, "idle timeout");
    assert_eq!(person.receive(), None);
    drop(person);
    assert_eq!(server.stop().closed_by("idle_timeout"), 1);
}
