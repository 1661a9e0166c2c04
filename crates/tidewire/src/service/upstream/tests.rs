use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

use super::*;
use crate::Message;
use crate::address::Endpoint;
use crate::client::Client;
use crate::server::Server;
use crate::service::Context;

/// An upstream whose host has a name.
fn named(resolver: fn(&Address) -> Result<Vec<Endpoint>, AddressError>) -> Upstream {
    let address = "tcp://server.example:7000".parse().unwrap();
    let target = Some(Target::new(address, Some(resolver), Vec::new()));
    let (number, terms) = (next_number(), Terms::new(None));
    Upstream(Arc::new(Shared {
        number,
        target,
        terms,
    }))
}

fn backend() -> Server {
    let echo = |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload);
    crate::serve("tcp://127.0.0.1:0", echo).unwrap()
}

/// A server that forwards all requests, and its client.
fn gateway(upstream: &Upstream) -> (Server, Client) {
    let upstream = upstream.clone();
    let forward = move |cx: &mut Context<'_>, message: Message<'_>| cx.forward(&upstream, &message);
    let server = crate::serve("tcp://127.0.0.1:0", forward).unwrap();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    (server, client)
}

/// Asks until there is an answer.
fn ask(client: &Client) {
    while client.request(b"?").wait().is_err() {
        std::thread::yield_now();
    }
}

/// Stops the gateway, and checks that each request to the upstream has one outcome.
fn finish(gateway: Server, client: &Client) -> crate::observe::Metrics {
    client.close().wait();
    let metrics = gateway.shutdown(Duration::from_secs(10)).metrics;
    let resolved = metrics.upstream_answered
        + metrics.upstream_failed
        + metrics.upstream_timed_out
        + metrics.upstream_cancelled;
    assert_eq!(metrics.upstream_requests, resolved, "{metrics:#?}");
    metrics
}

/// Regression: an upstream resolved its name once, and never found a backend that had moved. A name that was unknown at
/// the start could not be used at all.
#[test]
fn an_upstream_looks_its_name_up_again_after_no_address_answered() {
    static FOUND: Mutex<Vec<Endpoint>> = Mutex::new(Vec::new());
    let find = |endpoints: Vec<Endpoint>| *FOUND.lock().unwrap() = endpoints;
    let upstream = named(|address| match &FOUND.lock().unwrap()[..] {
        [] => Err(AddressError::Unresolved {
            host: address.to_string(),
            detail: "unknown".to_owned(),
        }),
        found => Ok(found.to_vec()),
    });
    let upstream = upstream.pause_max(Duration::from_millis(1));
    let (server, client) = gateway(&upstream);
    assert!(client.request(b"?").wait().is_err(), "it has no address");
    let before = backend();
    find(vec![before.addresses()[0].clone()]);
    ask(&client);
    let after = backend();
    find(vec![after.addresses()[0].clone()]);
    drop(before);
    ask(&client);
    let metrics = finish(server, &client);
    assert!(metrics.upstream_answered >= 2);
}

/// Regression: while the first address was silent, requests failed at their deadlines, though the second address
/// served. After each restart of the backend they failed again.
#[test]
fn a_silent_first_address_does_not_keep_an_upstream_from_the_second() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    static FOUND: Mutex<Vec<Endpoint>> = Mutex::new(Vec::new());
    let server = backend();
    let endpoints = [
        Endpoint::from(silent.local_addr().unwrap()),
        server.addresses()[0].clone(),
    ];
    *FOUND.lock().unwrap() = endpoints.to_vec();
    let upstream = named(|_| Ok(FOUND.lock().unwrap().clone()));
    // The requests would fail, or never be answered.
    let upstream = upstream.timeout(Duration::from_secs(3_600));
    let (gateway, client) = gateway(&upstream);
    assert_eq!(client.request(b"?").wait().unwrap().payload(), b"?");
    let metrics = finish(gateway, &client);
    assert_eq!(
        (metrics.upstream_answered, metrics.upstream_connections),
        (1, 1)
    );
}

/// Regression: a pause never began, and each request dialled a backend that accepts and closes.
#[test]
fn requests_do_not_dial_a_backend_that_accepts_and_closes_again_and_again() {
    const REQUESTS: u64 = 200;
    let closing = |cx: &mut Context<'_>, _: Message<'_>| {
        cx.close();
        Ok(())
    };
    let backend = crate::serve("tcp://127.0.0.1:0", closing).unwrap();
    let upstream = Upstream::new(&backend.to_string()).unwrap();
    let (gateway, client) = gateway(&upstream);
    for _ in 0..REQUESTS {
        assert!(client.request(b"?").wait().is_err());
    }
    let metrics = finish(gateway, &client);
    // Two at once, and then with pauses that double from 100 ms.
    assert!(metrics.upstream_connections >= 2);
    assert!(
        metrics.upstream_connections <= REQUESTS / 10,
        "{} dials",
        metrics.upstream_connections
    );
}

/// Regression: where the authorities of the system could not be read, an upstream at a `wss://` address sent its
/// credentials and requests in plain text.
#[test]
fn an_upstream_without_authorities_sends_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    for scheme in ["wss", "tls"] {
        let address = format!("{scheme}://127.0.0.1:{port}").parse().unwrap();
        let upstream = Upstream(Arc::new(Shared {
            number: next_number(),
            target: Some(Target::of(address).unwrap()),
            terms: Terms::new(None),
        }));
        let (gateway, client) = gateway(&upstream);
        let refused = client.request(b"?").timeout(Duration::from_secs(60)).wait();
        let text = refused.unwrap_err().to_string();
        assert_eq!(text, UpstreamError::Down.to_string());
        assert!(listener.accept().is_err(), "nothing is dialled");
        assert_eq!(finish(gateway, &client).upstream_connections, 0);
    }
}

#[test]
fn the_next_address_begins_at_once_when_one_fails() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    static FOUND: Mutex<Vec<Endpoint>> = Mutex::new(Vec::new());
    let server = backend();
    let dead = std::net::SocketAddr::from((Ipv4Addr::new(127, 0, 0, 99), port));
    *FOUND.lock().unwrap() = vec![dead.into(), server.addresses()[0].clone()];
    let upstream = named(|_| Ok(FOUND.lock().unwrap().clone()));
    let (gateway, client) = gateway(&upstream);
    assert_eq!(client.request(b"?").wait().unwrap().payload(), b"?");
    assert_eq!(finish(gateway, &client).upstream_failed, 0);
}
