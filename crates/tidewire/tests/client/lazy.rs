//! Clients that connect at their first use, and their errors if the server is not there.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidewire::limits::ConnectionLimits;
use tidewire::{
    Backoff, Client, ConnectError, Context, Event, Message, PubSub, RequestError, SendError,
    Server, TopicEvent,
};
use tidewire_testkit::fixtures::{echo, tw1};
use tidewire_testkit::{DEADLINE, TestServer};

use super::executor::run_one;

/// Returns an address without a listener. No other process can take its port while the returned listener lives.
fn dead_end() -> (TcpListener, String) {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    (holder, format!("tcp://127.0.0.99:{port}"))
}

#[test]
fn a_lazy_client_connects_at_its_first_use() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let unused = Client::builder().connect_lazy(&server.url()).unwrap();
    let client = Client::builder().connect_lazy(&server.url()).unwrap();
    assert_eq!(client.next_event().wait_for(Duration::ZERO), None);
    let reply = run_one(client.request(b"hello").into_future()).unwrap();
    assert_eq!(reply.payload(), b"hello");
    assert!(matches!(client.next_event().wait(), Event::Opened { .. }));
    client.close().wait();
    unused.close().wait();
    assert_eq!(unused.next_event().wait(), Event::Ended);
    assert_eq!(server.stop().sessions_opened, 1, "one was never used");
}

#[test]
fn the_first_request_to_a_dead_address_fails_with_the_cause() {
    let (_held, address) = dead_end();
    let client = Client::builder().connect_lazy(&address).unwrap();
    for _ in 0..3 {
        let requests = [client.request(b"one").send(), client.request(b"two").send()];
        for request in requests {
            match request.wait() {
                Err(RequestError::CannotConnect { cause }) => {
                    assert!(cause.contains("connection refused"), "{cause}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let subscription = client.subscribe("a").wait().unwrap_err();
    assert!(
        matches!(subscription, RequestError::CannotConnect { .. }),
        "{subscription}"
    );
    client.send(b"nobody hears").unwrap();
    assert_eq!(client.next_event().wait(), Event::Lost { count: 1 });
    client.close().wait();
    assert_eq!(client.next_event().wait(), Event::Ended);
}

/// Regression: an attempt that failed within a turn of the lane was used for the next request, too.
#[test]
fn a_request_after_a_failure_is_an_attempt_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}", directory.path().join("s").display());
    for address in ["inproc://lazily-late", &ipc] {
        let client = Client::builder().connect_lazy(address).unwrap();
        for _ in 0..3 {
            let down = client.request(b"?").wait().unwrap_err();
            assert!(matches!(down, RequestError::CannotConnect { .. }), "{down}");
        }
        let server = tidewire::serve(address, echo).unwrap();
        let reply = client.request(b"there?").wait().unwrap();
        assert_eq!(reply.payload(), b"there?");
        client.close().wait();
        drop(server);
    }
}

/// A server that accepts and sends nothing must not delay a request beyond its deadline.
#[test]
fn the_first_request_to_a_silent_address_fails_at_its_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut limits = ConnectionLimits::default();
    limits.set_handshake_timeout(Duration::from_secs(3600));
    let client = Client::builder()
        .limits(limits)
        .connect_lazy(&address)
        .unwrap();
    let request = client.request(b"?").timeout(Duration::from_millis(20));
    assert_eq!(request.wait(), Err(RequestError::TimedOut));
    // Closing does not wait for the attempt, nor for the last request.
    let request = client
        .request(b"?")
        .timeout(Duration::from_secs(3600))
        .send();
    client.close().wait();
    assert!(request.wait().is_err());
    drop(client);
    let client = Client::builder().connect_lazy(&address).unwrap();
    let request = client
        .request(b"?")
        .timeout(Duration::from_secs(3600))
        .send();
    drop(client);
    assert!(request.wait().is_err(), "a dropped client waited");
}

/// Regression: such messages were lost, even if the server appeared soon.
#[test]
fn closing_a_client_that_connects_waits_for_the_messages_it_took() {
    const ROUNDS: usize = 20;
    let delivered: Arc<AtomicUsize> = Arc::default();
    let counter = Arc::clone(&delivered);
    let server = TestServer::over_tcp(Server::builder(), &tw1(), move |_| {
        let counter = Arc::clone(&counter);
        move |_: &mut Context<'_>, _: Message<'_>| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    });
    for _ in 0..ROUNDS {
        let client = Client::builder().connect_lazy(&server.url()).unwrap();
        for payload in [b"one", b"two", b"six"] {
            client.send(payload).unwrap();
        }
        client.close().wait();
        assert!(matches!(client.next_event().wait(), Event::Opened { .. }));
        assert!(matches!(client.next_event().wait(), Event::Closed { .. }));
        assert_eq!(client.next_event().wait(), Event::Ended);
    }
    server.stop();
    assert_eq!(delivered.load(Ordering::Relaxed), 3 * ROUNDS);
}

/// The server refuses the connection, or sends nothing until the close times out.
#[test]
fn closing_a_client_that_cannot_connect_tells_how_many_messages_are_lost() {
    let (_held, dead) = dead_end();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    for address in [dead, silent] {
        let builder = Client::builder().close_timeout(Duration::from_millis(20));
        let client = builder.connect_lazy(&address).unwrap();
        client.send(b"one").unwrap();
        client.send(b"two").unwrap();
        client.close().wait();
        let mut lost = 0;
        loop {
            match client.next_event().wait() {
                Event::Lost { count } => lost += count,
                Event::Ended => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(lost, 2);
    }
}

#[test]
fn a_host_without_an_address_is_the_cause_that_a_client_tells() {
    let unknown = "tcp://nobody.invalid:1";
    let lazy = Client::builder().connect_lazy(unknown).unwrap();
    match lazy.request(b"?").timeout(DEADLINE).wait() {
        Err(RequestError::CannotConnect { cause }) => {
            assert!(cause.contains("nobody.invalid"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    let eager = Client::connect(unknown).wait().unwrap_err();
    assert!(matches!(eager, ConnectError::Address(_)), "{eager}");
    let malformed = Client::builder().connect_lazy("carrier-pigeon://coop");
    assert!(matches!(malformed, Err(ConnectError::Address(_))));
}

#[test]
fn a_lazy_client_connects_again_at_its_next_use() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let address = server.url();
    let client = Client::builder().connect_lazy(&address).unwrap();
    let heard = client.subscribe("a").wait().unwrap();
    server.stop();
    assert!(matches!(
        heard.next_event().wait(),
        TopicEvent::Interrupted { .. }
    ));
    assert!(matches!(client.next_event().wait(), Event::Opened { .. }));
    assert!(matches!(client.next_event().wait(), Event::Closed { .. }));
    let down = client.request(b"").wait().unwrap_err();
    assert!(matches!(down, RequestError::CannotConnect { .. }), "{down}");
    let server = Server::builder().listen(&address).unwrap();
    let server = server.start(|_| PubSub::new()).unwrap();
    client.request(b"").wait().unwrap();
    assert_eq!(heard.next_event().wait(), TopicEvent::Resumed);
    client.publish("a", b"again").unwrap();
    assert!(matches!(heard.next_event().wait(), TopicEvent::Message(_)));
    client.close().wait();
    assert_eq!(client.send(b""), Err(SendError::Ended));
    drop(server);
}

/// While a client waits between attempts, requests that may be repeated wait for the server. All other requests fail at
/// once with the reason.
#[test]
fn a_lazy_client_that_reconnects_goes_on_trying() {
    let (held, address) = dead_end();
    let pause = Duration::from_millis(1);
    let client = Client::builder()
        .reconnect(Backoff {
            first: pause,
            max: pause,
        })
        .connect_lazy(&address)
        .unwrap();
    let down = client.request(b"once").wait().unwrap_err();
    assert!(matches!(down, RequestError::CannotConnect { .. }), "{down}");
    let patient = client
        .request(b"again")
        .idempotent()
        .timeout(DEADLINE)
        .send();
    let there: SocketAddr = address["tcp://".len()..].parse().unwrap();
    drop(held);
    // Another process may have taken the port in between.
    if let Ok(server) = tidewire::serve(&format!("tcp://{there}"), echo) {
        assert_eq!(patient.wait().unwrap().payload(), b"again");
        client.close().wait();
        drop(server);
    }
}
