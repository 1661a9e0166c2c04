//! A client with a server that reads nothing: requests that wait in the client keep their deadlines.

use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use tidewire::limits::ConnectionLimits;
use tidewire::{AnyCodec, Client, Event, RequestError, SendError};

const QUEUE_BYTES_MAX: usize = 100_000;
const MESSAGE_BYTES: usize = 10_000;

/// Returns a client with no more room for one-way messages, its server, which reads nothing, and the number of accepted
/// messages.
fn backed_up(name: &str) -> (Client, UnixStream, u64) {
    // A Unix socket, because its buffer has a fixed size. A TCP buffer takes a little more now and then.
    let name = format!("tidewire-{name}-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap());
    let listener = listener.unwrap();
    let mut limits = ConnectionLimits::default();
    limits.set_queue_bytes_max(QUEUE_BYTES_MAX);
    // Without the deadlines, this timeout would end the wait.
    limits.set_idle_timeout_without_heartbeat(Duration::from_secs(60));
    let client = Client::builder()
        .codec(AnyCodec::by_name("length-field").unwrap())
        .limits(limits)
        .close_timeout(Duration::from_millis(20))
        .connect(&format!("ipc://@{name}"))
        .wait()
        .unwrap();
    let (server, _) = listener.accept().unwrap();
    let (mut accepted, mut refused_in_a_row) = (0, 0);
    // The lane may have taken the queue just now, so a single refusal is not enough.
    while refused_in_a_row < 5_000 {
        match client.send(&[7; MESSAGE_BYTES]) {
            Ok(()) => (accepted, refused_in_a_row) = (accepted + 1, 0),
            Err(SendError::QueueFull) => {
                refused_in_a_row += 1;
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
    (client, server, accepted)
}

/// Regression: deadlines started when a request was sent, so a request that waited for a full output had no limit. An
/// earlier deadline after a later deadline must work, too.
#[test]
fn requests_that_wait_for_a_full_output_fail_at_their_deadlines() {
    let (client, server, _) = backed_up("deadlines");
    let patient = client
        .request(b"patient")
        .timeout(Duration::from_secs(3600))
        .send();
    for _ in 0..3 {
        let hasty = client.request(b"hasty").timeout(Duration::from_millis(20));
        assert_eq!(hasty.wait().unwrap_err(), RequestError::TimedOut);
    }
    // The request's own deadline is far, so the end of the connection ends its wait.
    drop(server);
    let error = patient.wait().unwrap_err();
    assert_ne!(error, RequestError::TimedOut);
}

/// Regression: closing waited for as long as a session may be silent, which is twenty minutes without heartbeats.
#[test]
fn a_server_that_takes_nothing_holds_up_a_closing_client_only_so_long() {
    let (client, mut server, accepted) = backed_up("closing");
    drop(client.close());
    let mut lost = 0;
    loop {
        match client.next_event().wait() {
            Event::Lost { count } => lost += count,
            Event::Ended => break,
            _ => {}
        }
    }
    assert!(lost > 0, "all of {accepted} messages fitted the socket");
    // Messages that left the queue are in the socket, except those in the session's output.
    let mut taken = Vec::new();
    server.read_to_end(&mut taken).unwrap();
    let frame_bytes = MESSAGE_BYTES + 4;
    let given_up = accepted - lost - (taken.len() / frame_bytes) as u64;
    // One batch of the queue may go into an output that is not full yet.
    let output_bytes_max = 2 * (QUEUE_BYTES_MAX + frame_bytes);
    assert!(
        given_up as usize * frame_bytes <= output_bytes_max,
        "{given_up} are missing"
    );
}
