//! Handshakes of peers that do not wait for them any more.

use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidewire::{Context, HandlerResult, Limits, Message};
use tidewire_testkit::certificates::usual;
use tidewire_testkit::stacks::stack_of;
use tidewire_testkit::wait_until;

use super::*;

/// A server with one lane that blocks while a request is handled, until the test releases it.
struct Standing {
    server: Server,
    client: Client,
    begun: Receiver<()>,
    go_on: Sender<()>,
}

impl Standing {
    fn new(limits: Limits) -> Self {
        let (authority, identity) = usual();
        let (begin, begun) = channel();
        let (go_on, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let builder = Server::builder()
            .lanes(1)
            .limits(limits)
            .tls(identity.server())
            .listen("tls://127.0.0.1:0")
            .unwrap();
        let server = builder
            .start(|_| {
                let (begin, gate) = (begin.clone(), Arc::clone(&gate));
                move |cx: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
                    begin.send(()).unwrap();
                    gate.lock().unwrap().recv().unwrap();
                    cx.reply(message.payload)
                }
            })
            .unwrap();
        let client = Client::builder().tls(authority.client());
        let client = client.connect(&server.to_string()).wait().unwrap();
        Self {
            server,
            client,
            begun,
            go_on,
        }
    }

    /// Does something while the lane is blocked.
    fn meanwhile<T>(&self, work: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            let client = &self.client;
            let waiting = scope.spawn(|| client.request(b"stand still").wait());
            self.begun.recv().unwrap();
            let done = work();
            self.go_on.send(()).unwrap();
            waiting.join().unwrap().unwrap();
            done
        })
    }

    /// Connects, and sends the first message of TLS.
    fn say_hello(&self) -> TcpStream {
        let (authority, _) = usual();
        let layer = authority.client().layer("localhost", Some("tw1")).unwrap();
        let hello = stack_of(vec![layer]);
        let address = self.server.addresses()[0].to_string();
        let mut stream = TcpStream::connect(address.trim_start_matches("tls://")).unwrap();
        stream.write_all(hello.unsent()).unwrap();
        stream
    }
}

/// Regression: the lane signed for connections of peers that had given up, and after a restart never reached the
/// others.
#[test]
fn hellos_of_closed_connections_cost_no_signature() {
    let standing = Standing::new(Limits::default());
    standing.meanwhile(|| {
        for _ in 0..300 {
            drop(standing.say_hello());
        }
    });
    let metrics = wait_until("all of them are closed", || {
        let metrics = standing.server.metrics();
        (metrics.sessions_closed() == 300).then_some(metrics)
    });
    assert_eq!(metrics.handshakes_abandoned, 300);
    assert_eq!(metrics.handshakes_answered, 1, "that of the client");
    assert_eq!(metrics.closed_by("peer_reset"), 300);
}

#[test]
fn a_hello_that_arrived_too_long_ago_is_left_out_although_it_was_just_accepted() {
    let handshake_timeout = Duration::from_secs(2);
    let mut limits = Limits::default();
    limits.connections.set_handshake_timeout(handshake_timeout);
    let standing = Standing::new(limits);
    let late = standing.meanwhile(|| {
        let late = standing.say_hello();
        // The time of the kernel's buffers cannot be set, so the test takes as long as a client is patient.
        let arrived = Instant::now();
        while arrived.elapsed() < handshake_timeout {
            std::thread::yield_now();
        }
        late
    });
    let metrics = wait_until("the timeout closes it", || {
        let metrics = standing.server.metrics();
        (metrics.sessions_closed() == 1).then_some(metrics)
    });
    assert_eq!(metrics.handshakes_expired, 1);
    assert_eq!(metrics.handshakes_answered, 1, "that of the client");
    assert_eq!(metrics.closed_by("handshake_timeout"), 1);
    drop(late);
}

/// All of them come at once, so some wait for a later turn. None is lost, and the session that was there before is
/// answered.
#[test]
fn a_herd_is_let_in_whole_and_open_sessions_are_answered_meanwhile() {
    let server = serve(usual().1.server());
    let (authority, _) = usual();
    let first = connect(&server, authority.client()).unwrap();
    let attempts: Vec<_> = (0..40)
        .map(|_| {
            Client::builder()
                .tls(authority.client())
                .connect(&server.url())
        })
        .collect();
    ask(&first, b"between the handshakes");
    let clients: Vec<Client> = attempts.into_iter().map(|it| it.wait().unwrap()).collect();
    for client in &clients {
        ask(client, b"here");
    }
    assert_eq!(server.metrics().handshakes_answered, 41);
}
