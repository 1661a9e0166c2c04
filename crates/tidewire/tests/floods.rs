//! Floods of connections that begin a handshake and never finish it, and of clients that come back all at once. They
//! need most descriptors of a process, so they have a process of their own, and run one at a time.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidewire::metrics::Metrics;
use tidewire::system::raise_descriptor_limit;
use tidewire::{Backoff, Client, Endpoint, Limits};
use tidewire_testkit::certificates::usual;
use tidewire_testkit::fixtures::{echo, limited, tw1};
use tidewire_testkit::{TestServer, connect_from, wait_until};

/// Returns how many connections a flood has: 10,000, or what the descriptors of this process allow. Each takes two of
/// them, because the server is in this process. The guard ends the turn of a test.
fn flood() -> (usize, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = raise_descriptor_limit().unwrap_or(1_024);
    let free = usize::try_from(limit)
        .unwrap_or(usize::MAX)
        .saturating_sub(200);
    (10_000.min(free / 2), turn)
}

fn serve(change: impl FnOnce(&mut Limits)) -> TestServer {
    let builder = limited(change).tls(usual().1.server());
    TestServer::over_tls(builder, &tw1(), |_| echo)
}

fn port(server: &TestServer) -> SocketAddr {
    match *server.address() {
        Endpoint::Tls(address) => address,
        ref other => panic!("not an address of TLS: {other}"),
    }
}

fn connect(server: &TestServer) -> Client {
    let builder = Client::builder().tls(usual().0.client());
    builder.connect(&server.url()).wait().unwrap()
}

fn ask(client: &Client) {
    assert_eq!(client.request(b"hello").wait().unwrap().payload(), b"hello");
}

/// Begins so many handshakes from an address of this machine with these bytes. Between them, others are served.
fn begin(
    server: &TestServer,
    source: u8,
    count: usize,
    bytes: &[u8],
    mut meanwhile: impl FnMut(&Metrics),
) -> Vec<TcpStream> {
    let source = IpAddr::from(Ipv4Addr::new(127, 0, 0, source));
    let port = port(server);
    let begin = |number: usize| {
        let mut peer = connect_from(source, port).unwrap();
        // The server may have closed it already.
        let _ = peer.write_all(bytes);
        if number.is_multiple_of(100) {
            meanwhile(&server.metrics());
        }
        peer
    };
    (0..count).map(begin).collect()
}

/// The first byte of a record, and the beginning of a long ClientHello.
const BEGINNINGS: [&[u8]; 2] = [&[22], &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]];

#[test]
fn ten_thousand_handshakes_that_are_never_finished_end_at_their_deadline_and_others_are_served() {
    let (count, _turn) = flood();
    for bytes in BEGINNINGS {
        let server = serve(|limits| {
            limits
                .connections
                .set_handshake_timeout(Duration::from_secs(3));
        });
        let early = connect(&server);
        let mut peak = 0;
        let peers = begin(&server, 2, count, bytes, |metrics| {
            peak = peak.max(metrics.memory_bytes);
            ask(&early);
        });
        ask(&connect(&server));
        let metrics = server.wait_for("all have ended", |metrics| {
            metrics.closed_by("handshake_timeout") == count as u64
        });
        assert!(peak > 1 << 20, "handshakes are in the account: {peak}");
        // 16 KiB each and the sessions themselves, some of which have ended before others began.
        assert!(peak < count as u64 * (20 << 10) + (4 << 20), "{peak}");
        assert_eq!(metrics.sessions_refused, 0);
        ask(&early);
        drop((early, peers));
        server.wait_for("memory is free again", |metrics| {
            metrics.memory_bytes < 1 << 20
        });
        server.stop();
    }
}

#[test]
fn an_address_holds_a_bounded_memory_with_its_handshakes_and_other_addresses_are_not_harmed() {
    const HELD_MAX: u64 = 8 << 20;
    let (count, _turn) = flood();
    for bytes in BEGINNINGS {
        let server = serve(|limits| {
            limits
                .handshakes
                .set_bytes_per_address_max(HELD_MAX as usize);
            limits
                .connections
                .set_handshake_timeout(Duration::from_secs(20));
        });
        let early = connect(&server);
        let peers = begin(&server, 2, count, bytes, |metrics| {
            assert!(metrics.memory_bytes < 2 * HELD_MAX, "{metrics:?}");
            ask(&early);
            // Newcomers of other addresses are served, too.
            ask(&connect(&server));
        });
        drop(early);
        let limited = server.wait_for("the others are closed", |metrics| {
            let held = HELD_MAX / (16 << 10) + 1;
            metrics.closed_by("handshake_limit") + held >= count as u64
        });
        assert_eq!(limited.closed_by("memory_limit"), 0);
        assert_eq!(limited.sessions_refused, 0);
        drop(peers);
        let ended = |metrics: &Metrics| {
            let names = ["handshake_limit", "handshake_timeout", "peer_reset"];
            names
                .map(|name| metrics.closed_by(name))
                .iter()
                .sum::<u64>()
        };
        let before = server.wait_for("all have ended", |metrics| ended(metrics) >= count as u64);
        // All memory of the address is free for its next handshakes.
        let again = begin(&server, 2, 100, bytes, |_| {});
        drop(again);
        let metrics = server.stop();
        let of_limit = |metrics: &Metrics| metrics.closed_by("handshake_limit");
        assert_eq!(of_limit(&metrics), of_limit(&before));
    }
}

#[test]
fn many_addresses_bring_the_server_to_its_limit_and_lose_their_handshakes() {
    const MEMORY_MAX: u64 = 48 << 20;
    let (count, _turn) = flood();
    let server = serve(|limits| {
        limits.memory.set_bytes_max(MEMORY_MAX as usize);
        limits
            .connections
            .set_handshake_timeout(Duration::from_secs(60));
    });
    let early = connect(&server);
    let mut peers = Vec::new();
    for source in 2..10 {
        peers.extend(begin(
            &server,
            source,
            count / 8,
            BEGINNINGS[1],
            |metrics| {
                assert!(metrics.memory_bytes < MEMORY_MAX, "{metrics:?}");
                ask(&early);
            },
        ));
    }
    let shed = server.wait_for("the server sheds them", |metrics| {
        metrics.closed_by("memory_limit") + metrics.memory_refused_sessions > 0
    });
    assert!(shed.memory_pressure_changes > 0);
    ask(&early);
    drop((early, peers));
    server.wait_for("memory is free again", |metrics| {
        metrics.memory_bytes < 1 << 20
    });
    server.stop();
}

#[test]
fn an_address_that_begins_handshakes_too_fast_is_refused_and_others_are_not() {
    let (_, _turn) = flood();
    let server = serve(|limits| {
        limits.sessions.set_per_address_max(20);
        limits.handshakes.set_per_address_per_second_max(1);
        limits
            .connections
            .set_handshake_timeout(Duration::from_millis(500));
    });
    let peers = begin(&server, 2, 50, BEGINNINGS[0], |_| {});
    let metrics = server.wait_for("they are counted", |metrics| {
        metrics.sessions_opened + metrics.sessions_refused == 50
    });
    assert!(metrics.handshakes_refused > 0, "{metrics:?}");
    assert!(metrics.handshakes_refused <= metrics.sessions_refused);
    ask(&connect(&server));
    drop(peers);
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("handshake_limit"), 0);
}

/// A benchmark does this with 10,000 clients. Here each client has a thread.
#[test]
fn clients_that_reconnect_all_at_once_all_come_back_and_resume_their_sessions() {
    const CLIENTS: usize = 200;
    let (_, _turn) = flood();
    let server = serve(|_| {});
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|_| {
            let builder = Client::builder().tls(usual().0.client());
            let builder = builder.reconnect(Backoff::default());
            builder.connect(&server.url()).wait().unwrap()
        })
        .collect();
    clients.iter().for_each(ask);
    for session in server.server().sessions().list() {
        session.close().unwrap();
    }
    for client in &clients {
        wait_until("a client is back", || client.request(b"back").wait().ok());
    }
    let metrics = server.metrics();
    assert!(metrics.sessions_opened >= 2 * CLIENTS as u64);
    assert_eq!(metrics.sessions_refused + metrics.closed_by("layer"), 0);
    drop(clients);
    server.stop();
}
