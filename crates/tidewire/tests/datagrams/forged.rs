//! Datagrams with a forged source address, where the codec does not validate addresses.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use tidewire::{Endpoint, Server};
use tidewire_io::datagram::{DatagramOptions, DatagramSocket};
use tidewire_testkit::{DEADLINE, TestServer, wait_until};

use crate::{arrived, codec, echo, limited, one_way, payloads, port_of, received, unknown_peer};

/// A socket that sends from `source`, a port of a server with several lanes, and receives no datagrams of this port.
fn forger(source: SocketAddr) -> UdpSocket {
    let mut options = DatagramOptions::default();
    options.reuse_port = true;
    let socket = DatagramSocket::bind(&source, &options).unwrap();
    let socket = UdpSocket::from(socket.as_fd().try_clone_to_owned().unwrap());
    // A connected socket receives only from its peer.
    let elsewhere = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(elsewhere.local_addr().unwrap()).unwrap();
    socket
}

/// Regression: after one datagram with its own address as the source, an echo server answered itself for ever and used
/// a whole core.
#[test]
fn a_server_never_answers_itself() {
    for name in ["raw", "delimited", "length-field", "lines", "srmp", "uvrpc"] {
        let codec = codec(name);
        let builder = Server::builder().lanes(2).listen("udp://0.0.0.0:0");
        let server = TestServer::over_udp(builder.unwrap(), &codec, |_| echo);
        let bound = port_of(&server);
        let Endpoint::Udp(anywhere) = server.server().addresses()[0] else {
            panic!("not over UDP");
        };
        let wildcard = SocketAddr::new([127, 0, 0, 1].into(), anywhere.port());
        let mut forged = 0;
        for source in [
            bound,
            wildcard,
            SocketAddr::new([127, 9, 9, 9].into(), anywhere.port()),
        ] {
            let socket = forger(source);
            for target in [bound, wildcard] {
                socket
                    .send_to(&one_way(&codec, b"for ever"), target)
                    .unwrap();
                forged += 1;
            }
        }
        let metrics = server.wait_for("all are dropped", |metrics| {
            // A lane counts dropped datagrams before received ones.
            metrics.datagrams_dropped_by("own_address") == forged && metrics.datagrams_in == forged
        });
        assert_eq!(
            (metrics.datagrams_in, metrics.datagrams_out),
            (forged, 0),
            "{name}"
        );
        // Other peers are served.
        let honest = unknown_peer(bound);
        honest.send(&one_way(&codec, b"hello")).unwrap();
        assert_eq!(payloads(&codec, &received(&honest)), [b"hello"], "{name}");
        assert_eq!(server.stop().sessions_opened, 1);
    }
}

/// Regression: two echo servers answered each other for ever after one forged datagram.
#[test]
fn two_servers_that_answer_each_other_come_to_rest() {
    const FORGED: u64 = 20;
    let codec = codec("raw");
    let serve = || TestServer::over_udp(Server::builder().lanes(2), &codec, |_| echo);
    let (one, two) = (serve(), serve());
    let socket = forger(port_of(&two));
    for number in 0..FORGED {
        let payload = format!("forged {}", number % 5);
        socket.send_to(payload.as_bytes(), port_of(&one)).unwrap();
    }
    // Counters are read one after another, so they agree only when no datagram moves any more.
    let first = wait_until("all that went round is dropped", || {
        let (first, second) = (one.metrics(), two.metrics());
        let ended = [&first, &second]
            .map(|metrics| metrics.datagrams_dropped_by("loop") + metrics.kernel_drops);
        let lost = first.kernel_drops + second.kernel_drops;
        let received = first.datagrams_in + second.datagrams_in;
        let is_conserved = received + lost == first.datagrams_out + second.datagrams_out + FORGED;
        // Each forged datagram was dropped once.
        (ended[0] + ended[1] == FORGED && is_conserved).then_some(first)
    });
    assert!(first.datagrams_out > FORGED, "it did go round: {first:#?}");
    one.stop();
    two.stop();
}

#[test]
fn a_client_with_many_under_way_loses_nothing_to_the_loop_breaker() {
    const UNDER_WAY: usize = 64;
    const ROUNDS: usize = 400;
    let codec = codec("raw");
    let server = TestServer::over_udp(Server::builder(), &codec, |_| echo);
    let socket = unknown_peer(port_of(&server));
    for round in 0..ROUNDS {
        for number in 0..UNDER_WAY {
            // Equal but for the end.
            let payload = format!(
                "a message like all others, number {:08}",
                round * UNDER_WAY + number
            );
            socket.send(payload.as_bytes()).unwrap();
        }
        let replies: HashSet<_> = (0..UNDER_WAY).map(|_| received(&socket)).collect();
        assert_eq!(replies.len(), UNDER_WAY);
    }
    let metrics = server.stop();
    assert_eq!(metrics.datagrams_out, (UNDER_WAY * ROUNDS) as u64);
    assert_eq!(metrics.datagrams_dropped_by("loop"), 0);
}

/// Regression: 65,536 forged addresses used up all sessions for as long as a session may be silent, and new peers were
/// refused.
#[test]
fn forged_addresses_lock_no_newcomer_out() {
    const PLACES: usize = 8;
    const ADDRESSES: usize = 100;
    let codec = codec("raw");
    let builder = limited(|limits| {
        limits.udp.set_unvalidated_max(PLACES);
        limits.udp.set_unvalidated_timeout(DEADLINE);
    });
    let server = TestServer::over_udp(builder, &codec, |_| echo);
    let sockets: Vec<_> = (0..ADDRESSES)
        .map(|_| unknown_peer(port_of(&server)))
        .collect();
    for socket in &sockets {
        socket.send(b"hello").unwrap();
        assert_eq!(received(socket), b"hello", "a newcomer is served");
    }
    let metrics = server.wait_for("the oldest made room", |metrics| {
        metrics.closed_by("evicted") == (ADDRESSES - PLACES) as u64
    });
    assert_eq!(
        (metrics.sessions_refused, metrics.sessions_opened),
        (0, ADDRESSES as u64)
    );
    // A peer with an evicted session begins a new session, without any notice.
    sockets[0].send(b"again").unwrap();
    assert_eq!(received(&sockets[0]), b"again");
    assert_eq!(server.stop().sessions_opened, ADDRESSES as u64 + 1);
}

#[test]
fn an_address_that_falls_silent_at_once_is_forgotten_without_a_word() {
    let codec = codec("delimited");
    let builder = limited(|limits| {
        limits
            .udp
            .set_unvalidated_timeout(Duration::from_millis(50));
    });
    let server = TestServer::over_udp(builder, &codec, |_| echo);
    let socket = unknown_peer(port_of(&server));
    for round in 1..=2 {
        socket.send(&one_way(&codec, b"hello")).unwrap();
        assert_eq!(payloads(&codec, &received(&socket)), [b"hello"]);
        server.wait_for("it is forgotten", |metrics| {
            metrics.closed_by("unvalidated") == round
        });
    }
    let metrics = server.stop();
    assert_eq!(arrived(&socket), Vec::<Vec<u8>>::new(), "not even an end");
    assert_eq!(
        (metrics.sessions_opened, metrics.closed_by("unvalidated")),
        (2, 2)
    );
}
