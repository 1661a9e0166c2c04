//! A server to test against, and the conservation check.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tidewire::{Endpoint, Metrics, Server, ServerBuilder, Service, Stopped};
use tidewire_proto::codec::AnyCodec;

use crate::peer::Peer;
use crate::wait::{DEADLINE, wait_until};
use crate::wire::Wire;

/// A running server with one address, and the directory of its socket file if it has one.
#[derive(Debug)]
pub struct TestServer {
    server: Server,
    codec: AnyCodec,
    /// Test layers over each connection.
    layers: u8,
    /// Held so that the socket's directory lives as long as the server.
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

    /// Starts on a Unix socket in a directory of its own.
    pub fn over_ipc<S: Service>(
        builder: ServerBuilder,
        codec: &AnyCodec,
        make: impl FnMut(usize) -> S,
    ) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let address = format!("ipc://{}", directory.path().join("s").display());
        Self::start(builder, codec, &address, Some(directory), make)
    }

    /// Starts on a name of this process that no other test has.
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

    fn start<S: Service>(
        builder: ServerBuilder,
        codec: &AnyCodec,
        address: &str,
        directory: Option<TempDir>,
        make: impl FnMut(usize) -> S,
    ) -> Self {
        let server = builder
            .codec(codec.clone())
            .listen(address)
            .expect("a well-formed address")
            .start(make)
            .expect("the server starts");
        Self {
            server,
            codec: codec.clone(),
            layers: 0,
            directory,
        }
    }

    /// Its raw peers put so many test layers over their connections.
    #[must_use]
    pub fn with_layers(mut self, layers: u8) -> Self {
        self.layers = layers;
        self
    }

    /// The server itself.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Endpoint {
        &self.server.addresses()[0]
    }

    /// Where it listens, as a client takes it.
    #[must_use]
    pub fn url(&self) -> String {
        self.address().to_string()
    }

    /// Its counters, now.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.server.metrics()
    }

    /// A connection on which nothing was said yet.
    #[must_use]
    pub fn wire(&self) -> Wire {
        let wire = Wire::connect(self.address()).expect("the server accepts");
        wire.layered(self.layers).expect("the layers agree")
    }

    /// A raw peer that has shaken hands, if its codec begins with hello.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer::greet(self.wire(), &self.codec)
    }

    /// A raw peer whose kernel takes little before it reads.
    #[must_use]
    pub fn narrow_peer(&self) -> Peer {
        let wire = Wire::connect_narrow(self.address(), NARROW_BYTES).expect("the server accepts");
        let wire = wire.layered(self.layers).expect("the layers agree");
        Peer::greet(wire, &self.codec)
    }

    /// Blocks until the counters satisfy `fact`.
    ///
    /// # Panics
    /// They do not within the deadline; `what` says what was waited for.
    pub fn wait_for(&self, what: &str, mut fact: impl FnMut(&Metrics) -> bool) -> Metrics {
        wait_until(what, || {
            let metrics = self.metrics();
            fact(&metrics).then_some(metrics)
        })
    }

    /// Drains and stops the server, and checks that every session and every room frame is accounted for.
    ///
    /// # Panics
    /// Something is not.
    pub fn stop(self) -> Metrics {
        let stopped = self.server.shutdown(DEADLINE);
        assert_conserved(&stopped);
        stopped.metrics
    }

    /// Drains, stops and checks the server like [`TestServer::stop`], but keeps the directory of its socket, so that
    /// another server can take its address.
    ///
    /// # Panics
    /// Something is unaccounted for.
    #[must_use]
    pub fn stop_for_restart(self) -> Option<TempDir> {
        let stopped = self.server.shutdown(DEADLINE);
        assert_conserved(&stopped);
        self.directory
    }

    /// Drains and stops the server without any check, by a deadline of the test's own.
    #[must_use]
    pub fn shutdown(self, deadline: Duration) -> Stopped {
        self.server.shutdown(deadline)
    }

    /// Drains and stops the server without any check.
    #[must_use]
    pub fn stop_unchecked(self) -> Stopped {
        self.server.shutdown(DEADLINE)
    }
}

/// Checks the ledger of a server that has stopped: every session that was opened was closed, and every room frame
/// offered to a subscriber was delivered or dropped for a counted reason.
///
/// # Panics
/// Something is unaccounted for, or a lane failed.
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

/// The receive buffer of a peer that should be felt soon when it stops reading.
const NARROW_BYTES: usize = 64 * 1024;
