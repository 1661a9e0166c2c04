//! Memory of sessions: held while they are idle, released when they end.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use tidewire::{Chat, Kind, Message, Server};
use tidewire_io::allocation::bytes_held;
use tidewire_testkit::{Peer, TestServer, Wire};

use crate::{Counted, alone, echo, tw1, without_pings};

/// The clients run in another process, which is this test again. So their memory and descriptors do not count.
#[test]
fn an_idle_session_costs_at_most_4_kib() {
    const SESSIONS: u64 = 10_000;
    const FIRST: u64 = 100;
    const LIMIT_BYTES: i64 = 4096;
    tidewire_io::descriptors::raise_descriptor_limit().unwrap();
    if let Ok(path) = std::env::var(CHILD_VARIABLE) {
        return hold_sessions(&path, SESSIONS as usize);
    }
    let _alone = alone();
    let server = TestServer::over_ipc(Server::builder().limits(without_pings()), &tw1(), |_| {
        Counted(echo)
    });
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sessions::an_idle_session_costs_at_most_4_kib",
            "--nocapture",
        ])
        .env(CHILD_VARIABLE, server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The first sessions allocate the memory that all sessions of the lane share.
    let welcomed = |count: u64| {
        server.wait_for("the sessions are open", |metrics| {
            metrics.frames_in >= count
        });
        bytes_held()
    };
    let before = welcomed(FIRST);
    let after = welcomed(SESSIONS);
    let metrics = server.metrics();
    assert_eq!(
        metrics.sessions_opened - metrics.sessions_closed(),
        SESSIONS
    );
    let each = (after - before) / (SESSIONS - FIRST) as i64;
    let report = format!("{each} bytes of user memory per idle session, at {SESSIONS} sessions\n");
    std::io::stderr().write_all(report.as_bytes()).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    server.stop();
    assert!(each <= LIMIT_BYTES, "{report}");
}

/// Runs in the other process: opens sessions and holds them until its input ends.
fn hold_sessions(address: &str, count: usize) {
    let path = address.strip_prefix("ipc://").unwrap();
    let address = std::path::PathBuf::from(path).into();
    let peers: Vec<Peer> = (0..count)
        .map(|_| Peer::greet(Wire::connect(&address).unwrap(), &tw1()))
        .collect();
    let read = std::io::stdin().read(&mut [0]).unwrap();
    assert_eq!((read, peers.len()), (0, count));
}

#[test]
fn sessions_give_their_memory_back() {
    let _alone = alone();
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Counted(Chat::new()));
    let round = |number: usize| {
        let mut peers: Vec<Peer> = (0..50).map(|_| server.peer()).collect();
        for (index, peer) in peers.iter_mut().enumerate() {
            peer.join("lobby", &format!("m{number}.{index}")).unwrap();
            peer.send(&Message::new(Kind::Say, peer.room(), &[b'x'; 1000]));
        }
        drop(peers);
        server.wait_for("the sessions are closed", |metrics| {
            metrics.sessions_closed() == 50 * (number as u64 + 1)
        });
    };
    for number in 0..5 {
        round(number);
    }
    let before = bytes_held();
    for number in 5..25 {
        round(number);
    }
    // Memory is kept once for all sessions, not per session. A leak of a hundred bytes per session would be 100,000
    // bytes.
    let grown = bytes_held() - before;
    assert!(grown < 50_000, "{grown} bytes more after 1,000 sessions");
    server.stop();
}

const CHILD_VARIABLE: &str = "TIDEWIRE_TEST_HOLD_SESSIONS";
