//! A server to test against, and the conservation check.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tidewire::metrics::Metrics;
use tidewire::{Endpoint, Server, ServerBuilder, Service, Stopped};
use tidewire_proto::codec::AnyCodec;

use crate::peer::Peer;
use crate::wait::{DEADLINE, wait_until};
use crate::wire::Wire;

/// A running server with one address, and the directory of its socket file, if any.
#[derive(Debug)]
pub struct TestServer {
    server: Server,
    codec: AnyCodec,
    layers: u8,
    /// Kept so that the socket's directory lives as long as the server.
    directory: Option<TempDir>,
}

impl TestServer {
    /// Starts on a free loopback port.
    pub fn over_tcp<S: Service>(
        builder: ServerBuilder,
        codec: &AnyCodec,
        make: impl FnMut(usize) -> S,
    ) -> Self {
        Self::start(builder, codec, "tcp://127.0.0.1:0", None, make)
    }

    /// Starts on a free UDP port of the loopback interface.
    pub fn over_udp<S: Service>(
        builder: ServerBuilder,
        codec: &AnyCodec,
        make: impl FnMut(usize) -> S,
    ) -> Self {
        let codec = codec.clone().for_datagrams();
        Self::start(builder, &codec, "udp://127.0.0.1:0", None, make)
    }

    /// Starts on a free loopback port with TLS. The builder has the certificate; the server's own peers trust the
    /// [usual](crate::certificates::usual) authority.
    pub fn over_tls<S: Service>(
        builder: ServerBuilder,
        codec: &AnyCodec,
        make: impl FnMut(usize) -> S,
    ) -> Self {
        Self::start(builder, codec, "tls://127.0.0.1:0", None, make)
    }

    /// Starts on a free loopback port with WebSocket.
    pub fn over_websocket<S: Service>(
        builder: ServerBuilder,
        codec: &AnyCodec,
        make: impl FnMut(usize) -> S,
    ) -> Self {
        Self::start(builder, codec, "ws://127.0.0.1:0/test", None, make)
    }

    /// Starts on a free loopback port with WebSocket over TLS. The builder has the certificate.
    pub fn over_secure_websocket<S: Service>(
        builder: ServerBuilder,
        codec: &AnyCodec,
        make: impl FnMut(usize) -> S,
    ) -> Self {
        Self::start(builder, codec, "wss://127.0.0.1:0/test", None, make)
    }

    /// Starts on a Unix socket in a separate directory.
    pub fn over_ipc<S: Service>(
        builder: ServerBuilder,
        codec: &AnyCodec,
        make: impl FnMut(usize) -> S,
    ) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let address = format!("ipc://{}", directory.path().join("s").display());
        Self::start(builder, codec, &address, Some(directory), make)
    }

    /// Starts on a name of this process that no other test uses.
    pub fn over_inproc<S: Service>(
        builder: ServerBuilder,
        codec: &AnyCodec,
        make: impl FnMut(usize) -> S,
    ) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let address = format!("inproc://testkit/{number}");
        Self::start(builder, codec, &address, None, make)
    }

    /// The services are boxed, so that the lane's loops are not compiled again for each service of each test.
    fn start<S: Service>(
        builder: ServerBuilder,
        codec: &AnyCodec,
        address: &str,
        directory: Option<TempDir>,
        mut make: impl FnMut(usize) -> S,
    ) -> Self {
        let server = builder
            .codec(codec.clone())
            .listen(address)
            .expect("a well-formed address")
            .start_boxed(|lane| Box::new(make(lane)))
            .expect("the server starts");
        Self {
            server,
            codec: codec.clone(),
            layers: 0,
            directory,
        }
    }

    /// Makes its raw peers put this many test layers over their connections.
    #[must_use]
    pub fn with_layers(mut self, layers: u8) -> Self {
        self.layers = layers;
        self
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The address of its listener.
    #[must_use]
    pub fn address(&self) -> &Endpoint {
        &self.server.addresses()[0]
    }

    /// The address of its listener, as a string for a client.
    #[must_use]
    pub fn url(&self) -> String {
        self.address().to_string()
    }

    /// The server's present counters.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.server.metrics()
    }

    /// Opens a connection without sending anything.
    #[must_use]
    pub fn wire(&self) -> Wire {
        let wire = Wire::connect_as(self.address(), &self.codec).expect("the server accepts");
        wire.layered(self.layers).expect("the layers agree")
    }

    /// Opens a raw peer, after its handshake if its codec begins with a hello.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer::greet(self.wire(), &self.codec)
    }

    /// Opens a raw peer with a small receive buffer.
    #[must_use]
    pub fn narrow_peer(&self) -> Peer {
        let wire = Wire::connect_narrow(self.address(), &self.codec, NARROW_BYTES);
        let wire = wire.expect("the server accepts");
        let wire = wire.layered(self.layers).expect("the layers agree");
        Peer::greet(wire, &self.codec)
    }

    /// Blocks until the counters satisfy `fact`.
    pub fn wait_for(&self, what: &str, mut fact: impl FnMut(&Metrics) -> bool) -> Metrics {
        wait_until(what, || {
            let metrics = self.metrics();
            fact(&metrics).then_some(metrics)
        })
    }

    /// Drains and stops the server, and checks that every session and every room frame is accounted for.
    pub fn stop(self) -> Metrics {
        let stopped = self.server.shutdown(DEADLINE);
        assert_conserved(&stopped);
        stopped.metrics
    }

    /// Drains, stops and checks the server like [`TestServer::stop`], but keeps the directory of its socket, so that
    /// another server can take its address.
    #[must_use]
    pub fn stop_for_restart(self) -> Option<TempDir> {
        let stopped = self.server.shutdown(DEADLINE);
        assert_conserved(&stopped);
        self.directory
    }

    /// Drains and stops the server without any check, by a deadline of the test's own.
    pub fn shutdown(self, deadline: Duration) -> Stopped {
        self.server.shutdown(deadline)
    }

    /// Drains and stops the server without any check.
    pub fn stop_unchecked(self) -> Stopped {
        self.server.shutdown(DEADLINE)
    }
}

/// Checks the ledger of a server that has stopped: every opened session was closed, and every room frame for a
/// subscriber was delivered or dropped for a counted reason.
pub fn assert_conserved(stopped: &Stopped) {
    let metrics = &stopped.metrics;
    assert!(
        stopped.failures.is_empty(),
        "lanes failed: {:?}",
        stopped.failures
    );
    assert_eq!(
        metrics.sessions_opened,
        metrics.sessions_closed(),
        "sessions opened and closed: {metrics:#?}"
    );
    assert_eq!(
        metrics.room_offered,
        metrics.room_delivered + metrics.room_dropped_total(),
        "room frames offered, delivered and dropped: {metrics:#?}"
    );
}

/// The receive buffer of a peer that should block the server soon when it stops reading.
const NARROW_BYTES: usize = 64 * 1024;
