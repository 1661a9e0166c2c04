//! A client whose server takes nothing: what waits in the client keeps its deadlines.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use tidewire::{AnyCodec, Client, HandOverError, Limits, RequestError};

/// A client with no more room for one-way messages, and its server, which reads nothing.
fn backed_up() -> (Client, UnixStream) {
    // A Unix socket, whose buffer has one size; that of TCP takes a little more now and then.
    let name = format!("tidewire-backed-up-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap());
    let listener = listener.unwrap();
    let limits = Limits {
        queue_bytes_max: 100_000,
        // Without the deadlines, this would end the waiting.
        idle_timeout_without_heartbeat: Duration::from_secs(60),
        ..Limits::default()
    };
    let client = Client::builder()
        .codec(AnyCodec::by_name("length-field").unwrap())
        .limits(limits)
        .connect(&format!("ipc://@{name}"))
        .unwrap();
    let (server, _) = listener.accept().unwrap();
    let mut refused_in_a_row = 0;
    // The lane may have taken what waited just now, so one refusal alone says little.
    while refused_in_a_row < 5_000 {
        match client.try_send(&[7; 10_000]) {
            Ok(()) => refused_in_a_row = 0,
            Err(HandOverError::QueueFull) => {
                refused_in_a_row += 1;
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
    (client, server)
}

/// Deadlines began to count when a request was sent, so that one which waited behind a full output waited as long as
/// the server liked. Earlier deadlines behind later ones count, too.
#[test]
fn requests_behind_a_full_output_fail_at_their_deadlines() {
    let (client, server) = backed_up();
    let patient = client
        .prepare(b"patient")
        .timeout(Duration::from_secs(3600))
        .send();
    for _ in 0..3 {
        let hasty = client.prepare(b"hasty").timeout(Duration::from_millis(20));
        assert_eq!(hasty.wait().unwrap_err(), RequestError::TimedOut);
    }
    // Its own deadline is far, so it is the end of the connection that ends its waiting.
    drop(server);
    let error = patient.wait().unwrap_err();
    assert_ne!(error, RequestError::TimedOut);
}
