//! WebSocket beyond the conformance suite: peers of another maker, handshakes and frames that must be refused, origins.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod ends;
mod foreign;
mod forwarded;
mod outgoing;
mod page;
mod quiet;
mod refused;

use tidewire::{Client, Server, ServerBuilder};
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::{codec, echo};

/// An echo server of this codec, at the path `/test`.
fn serve(name: &str) -> TestServer {
    serve_as(Server::builder(), name)
}

fn serve_as(builder: ServerBuilder, name: &str) -> TestServer {
    TestServer::over_websocket(builder, &codec(name), |_| echo)
}

fn ask(client: &Client, text: &[u8]) {
    assert_eq!(client.request(text).wait().unwrap().payload(), text);
}
