//! A client whose server takes nothing: what waits in the client keeps its deadlines.

use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use tidewire::{AnyCodec, Client, EnqueueError, Event, Limits, RequestError};

const QUEUE_BYTES_MAX: usize = 100_000;
const MESSAGE_BYTES: usize = 10_000;

/// A client with no more room for one-way messages, its server, which reads nothing, and how many were accepted.
fn backed_up(name: &str) -> (Client, UnixStream, u64) {
    // A Unix socket, whose buffer has one size; that of TCP takes a little more now and then.
    let name = format!("tidewire-{name}-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap());
    let listener = listener.unwrap();
    let limits = Limits {
        queue_bytes_max: QUEUE_BYTES_MAX,
        // Without the deadlines, this would end the waiting.
        idle_timeout_without_heartbeat: Duration::from_secs(60),
        ..Limits::default()
    };
    let client = Client::builder()
        .codec(AnyCodec::by_name("length-field").unwrap())
        .limits(limits)
        .close_timeout(Duration::from_millis(20))
        .connect(&format!("ipc://@{name}"))
        .wait()
        .unwrap();
    let (server, _) = listener.accept().unwrap();
    let (mut accepted, mut refused_in_a_row) = (0, 0);
    // The lane may have taken what waited just now, so one refusal alone says little.
    while refused_in_a_row < 5_000 {
        match client.try_send(&[7; MESSAGE_BYTES]) {
            Ok(()) => (accepted, refused_in_a_row) = (accepted + 1, 0),
            Err(EnqueueError::QueueFull) => {
                refused_in_a_row += 1;
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
    (client, server, accepted)
}

/// Deadlines began to count when a request was sent, so that one which waited behind a full output waited as long as
/// the server liked. Earlier deadlines behind later ones count, too.
#[test]
fn requests_behind_a_full_output_fail_at_their_deadlines() {
    let (client, server, _) = backed_up("deadlines");
    let patient = client
        .request(b"patient")
        .timeout(Duration::from_secs(3600))
        .send();
    for _ in 0..3 {
        let hasty = client.request(b"hasty").timeout(Duration::from_millis(20));
        assert_eq!(hasty.wait().unwrap_err(), RequestError::TimedOut);
    }
    // Its own deadline is far, so it is the end of the connection that ends its waiting.
    drop(server);
    let error = patient.wait().unwrap_err();
    assert_ne!(error, RequestError::TimedOut);
}

/// Closing waited for as long as a session may be silent, which without heartbeats is twenty minutes.
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
    // What left the queue is in the socket, but for what the session's output still held.
    let mut taken = Vec::new();
    server.read_to_end(&mut taken).unwrap();
    let frame_bytes = MESSAGE_BYTES + 4;
    let given_up = accepted - lost - (taken.len() / frame_bytes) as u64;
    // One batch of the queue goes into an output that is not full yet.
    let output_bytes_max = 2 * (QUEUE_BYTES_MAX + frame_bytes);
    assert!(
        given_up as usize * frame_bytes <= output_bytes_max,
        "{given_up} are missing"
    );
}
