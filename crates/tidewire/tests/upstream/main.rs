//! Servers that send requests to other servers: answers, slow, absent or dying backends, and the conservation of
//! requests.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod failing;
mod forwarding;
mod security;

use tidewire::metrics::Metrics;
use tidewire::upstream::Upstream;
use tidewire::{AnyCodec, Client, Context, HandlerResult, Message, Server, Service};
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::tw1;

/// Forwards every request.
fn gateway(upstream: &Upstream) -> impl Service + use<> {
    let upstream = upstream.clone();
    move |cx: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
        cx.forward(&upstream, &message)
    }
}

fn serve<S: Service>(codec: &AnyCodec, make: impl FnMut(usize) -> S) -> TestServer {
    TestServer::over_tcp(Server::builder(), codec, make)
}

fn client(codec: &AnyCodec, server: &TestServer) -> Client {
    let builder = Client::builder().codec(codec.clone());
    builder.connect(&server.url()).wait().unwrap()
}

/// Checks that every request to an upstream has exactly one outcome.
fn assert_conserved(metrics: &Metrics) {
    let resolved = metrics.upstream_answered
        + metrics.upstream_failed
        + metrics.upstream_timed_out
        + metrics.upstream_cancelled;
    assert_eq!(metrics.upstream_requests, resolved, "{metrics:#?}");
}
