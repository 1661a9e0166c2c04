//! TLS beyond the conformance suite: any bytes, records and cuts, refused certificates, identities, reloads, foreign
//! peers.

#![expect(clippy::print_stdout, reason = "a check that is skipped says so")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod foreign;
mod identity;
mod intake;
mod outgoing;
mod records;
mod refused;
mod relay;
mod reload;
mod settings;
mod storm;

use std::sync::OnceLock;

use tidewire::tls::{ClientTls, ServerTls, TlsFault};
use tidewire::{Client, CloseReason, ConnectError, Server, ServerBuilder};
use tidewire_proto::layer::LayerError;
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::{echo, tw1};
use tidewire_testkit::logs::Logs;

/// The log of this process from the first call on. All tests share it, so search for lines that only one test can
/// cause.
fn logs() -> &'static Logs {
    static LOGS: OnceLock<Logs> = OnceLock::new();
    LOGS.get_or_init(Logs::capture)
}

/// An echo server with these TLS settings.
fn serve(tls: ServerTls) -> TestServer {
    serve_as(Server::builder(), tls)
}

fn serve_as(builder: ServerBuilder, tls: ServerTls) -> TestServer {
    TestServer::over_tls(builder.tls(tls), &tw1(), |_| echo)
}

fn connect(server: &TestServer, tls: ClientTls) -> Result<Client, ConnectError> {
    Client::builder().tls(tls).connect(&server.url()).wait()
}

/// The fault of TLS for which a connection failed.
fn fault(outcome: Result<Client, ConnectError>) -> TlsFault {
    match outcome {
        Err(ConnectError::Closed(CloseReason::Layer(LayerError::Tls(fault)))) => fault,
        other => panic!("TLS did not fail: {other:?}"),
    }
}

fn ask(client: &Client, text: &[u8]) {
    assert_eq!(client.request(text).wait().unwrap().payload(), text);
}
