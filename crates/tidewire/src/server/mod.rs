//! Starts, watches and stops a server.

use crate::config::{Config, Policies, PolicyError};
mod authentication;
mod bind;
mod tls;
mod wait;
mod websocket;

use std::fmt;
use std::time::Duration;

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use thiserror::Error;
use tidewire_io::clock::now_ns;
use tidewire_io::datagram::{DatagramBindError, DatagramOptions};
use tidewire_io::poller::{self, PollerChoice, PollerKind};
use tidewire_io::socket::{BindError, SocketOptions};
use tidewire_io::waker::LaneWaker;
use tidewire_proto::codec::{AnyCodec, Codec, Tw1};
use tidewire_proto::connection::Rules;
use tidewire_proto::layer::Layer;
use tidewire_proto::room::Policy;

use crate::address::{Address, AddressError, Endpoint};
use crate::auth::{Guard, SharedAuthenticator};
use crate::engine::{Core, Outgoing, Shared};
use crate::lane::{Lane, LaneError, LaneThread, Spin};
use crate::limits::{Limits, RateLimit, RateLimitError, RoomDefaults, nanoseconds};
use crate::mailbox::{LaneMessage, Mailbox};
use crate::observe::{LaneCounters, Metrics, MetricsReader};
use crate::room::LANES_MAX;
use crate::service::Sessions;
use crate::service::{Service, SharedService};
use crate::tls::{ClientTls, ServerTls, TlsError, TlsReloader};
use crate::transport::inproc::{self, InprocBindError};
use crate::transport::{LayerFactory, Layers};
use crate::websocket::Origins;
use bind::{Bound, default_datagram_options};
pub(crate) use bind::{adapt, frame};

/// A running server: its lanes, its addresses, its counters. Dropping it stops it at once. If one of its own lanes
/// drops it, that lane ends after its turn. [`serve`](crate::serve) or a [`ServerBuilder`] makes it; the crate's
/// [first page](crate) has examples of both.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    lanes: Vec<Arc<Mailbox>>,
    threads: Vec<LaneThread>,
    addresses: Vec<Endpoint>,
    /// In-process names. They become free when the server stops.
    names: Vec<inproc::Bound>,
    metrics: MetricsReader,
    poller: PollerKind,
    tls: Option<TlsReloader>,
}

/// The settings of a server before it runs. [`Server::builder`] makes them.
///
/// ```
/// use std::time::Duration;
/// use tidewire::{Client, Context, Limits, Message, Policy, Server};
///
/// let server = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .listen("inproc://orders")?
///     .lanes(2)
///     .slow_subscribers(Policy::DropOldest)
///     .limits(Limits { sessions_max: 10_000, ..Limits::default() })
///     .start(|_lane| |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
/// let client = Client::connect("inproc://orders").wait()?;
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
/// let stopped = server.shutdown(Duration::from_secs(5));
/// assert!(stopped.failures.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    addresses: Vec<Address>,
    codec: AnyCodec,
    lanes: usize,
    poller: PollerChoice,
    limits: Limits,
    rooms: RoomDefaults,
    rate_limit: Option<RateLimit>,
    sockets: SocketOptions,
    spin_us: Option<u32>,
    datagrams: DatagramOptions,
    trusts_datagram_peers: bool,
    agent: Option<String>,
    /// The layers of connections that the server accepts.
    layers: Option<LayerFactory>,
    /// The layers of connections that its lanes make.
    outgoing_layers: Option<Layers>,
    tls: Option<ServerTls>,
    outgoing_tls: Option<ClientTls>,
    allow_plaintext_credentials: bool,
    /// The pages that may open a WebSocket.
    origins: Origins,
    authenticator: Option<SharedAuthenticator>,
}

/// A server could not start. No part of it runs. An error of [`serve`](crate::serve) and [`ServerBuilder`].
///
/// ```
/// use tidewire::{Context, InprocBindError, Message, ServeError};
///
/// let ignore = |_: &mut Context<'_>, _: Message<'_>| Ok(());
/// let first = tidewire::serve("inproc://orders", ignore)?;
/// let second = tidewire::serve("inproc://orders", ignore);
/// assert!(matches!(second, Err(ServeError::Inproc(InprocBindError::InUse { .. }))));
/// # drop(first);
/// # Ok::<(), ServeError>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An address is malformed or unknown.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// An address could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A UDP port could not be bound.
    #[error(transparent)]
    Datagram(#[from] DatagramBindError),
    /// The codec frames datagrams differently from streams, and a server has one codec.
    #[error(
        "the codec {codec} frames udp:// in another way than streams; start one server for udp:// and another for the \
         rest"
    )]
    MixedFraming {
        /// Name of the codec.
        codec: &'static str,
    },
    /// An address sets the framing of streams, and the codec has no such choice.
    #[error(
        "the codec {codec} leaves no choice of framing; leave ?framing= out, or use the codec uvrpc"
    )]
    Framing {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The codec does not support the policy for slow subscribers.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Layers were requested for a transport that cannot have them.
    #[error(
        "cannot add layers such as TLS at {address}: they need tcp:// or ipc://, and frames with lengths if the listeners \
         differ in ?framing=; make none for this address, or start another server for it"
    )]
    Layers {
        /// The address.
        address: Address,
    },
    /// The TLS settings of a server or client cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address asks for TLS, and the server has no certificate.
    #[error("cannot listen on {address} without a certificate: give the server one, with its key")]
    NoCertificate {
        /// The address.
        address: Address,
    },
    /// An in-process name is not available.
    #[error(transparent)]
    Inproc(#[from] InprocBindError),
    /// A lane could not start.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// The rate limit allows nothing, or limits nothing.
    #[error(transparent)]
    RateLimit(#[from] RateLimitError),
    /// The number of lanes is 0, or larger than the bits of a room's lane mask.
    #[error("{0} lanes are not possible; use 1 to {LANES_MAX}")]
    LaneCount(usize),
}

/// The outcome of a server that has ended. [`Server::wait`] and [`Server::shutdown`] return it; [`ServerBuilder`] has
/// an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stopped {
    /// The final counters. All sessions are closed.
    pub metrics: Metrics,
    /// Errors of lanes that failed, as text.
    pub failures: Vec<String>,
}

/// Serves `service` on one address until the returned server is dropped or shut down. This is the shortest way to a
/// server.
///
/// ```
/// let server = tidewire::serve("tcp://127.0.0.1:0", |cx: &mut tidewire::Context<'_>, message: tidewire::Message<'_>| {
///     cx.reply(message.payload)
/// })?;
/// let client = tidewire::Client::connect(&server.addresses()[0].to_string()).wait()?;
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// See [`ServeError`].
pub fn serve<S>(address: &str, service: S) -> Result<Server, ServeError>
where
    S: Service + Clone,
{
    Server::builder()
        .listen(address)?
        .start(move |_| service.clone())
}

impl Server {
    /// Returns the settings of a server with the native protocol, one lane and the default limits.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Returns the addresses it listens on, with the real port in place of port 0.
    #[must_use]
    pub fn addresses(&self) -> &[Endpoint] {
        &self.addresses
    }

    /// Returns the kind of its lanes' poller.
    #[must_use]
    pub fn poller(&self) -> PollerKind {
        self.poller
    }

    /// Returns the number of its lanes.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Returns its open sessions, to find, send to and close them from any thread.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        Sessions::new(Arc::clone(&self.shared))
    }

    /// Returns the current counters of all lanes.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.read()
    }

    /// Returns a reader of the counters that outlives the server.
    #[must_use]
    pub fn metrics_reader(&self) -> MetricsReader {
        self.metrics.clone()
    }

    /// The waker of a lane. Another thread wakes the lane after it has left work for a service's
    /// [`on_turn`](crate::Service::on_turn).
    ///
    /// # Panics
    /// There is no such lane.
    #[must_use]
    pub fn waker(&self, lane: usize) -> Arc<LaneWaker> {
        Arc::clone(&self.lanes[lane].waker)
    }

    /// Whether every lane still runs. A lane ends early only if its poller fails, its service panics, or its service
    /// stops it.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.threads.iter().any(LaneThread::is_finished)
    }

    /// Stops accepting, sends every peer a go-away, lets sessions finish until `deadline`, and ends. If it is called
    /// on one of the server's own lanes, it does not wait for that lane, which ends after its turn.
    #[must_use]
    pub fn shutdown(mut self, deadline: Duration) -> Stopped {
        let deadline_ns = now_ns().saturating_add(nanoseconds(deadline));
        self.stop(&|| LaneMessage::Drain { deadline_ns })
    }

    /// Binds the in-process names. The first lane accepts their connections.
    fn take_names(&mut self) -> Result<(), InprocBindError> {
        for address in &self.addresses {
            if let Endpoint::Inproc(name) = address {
                self.names.push(inproc::bind(name, &self.lanes[0].party())?);
            }
        }
        Ok(())
    }

    fn stop(&mut self, message: &dyn Fn() -> LaneMessage) -> Stopped {
        self.names.clear();
        for index in self.threads.len()..self.lanes.len() {
            // The server ends because this lane did not start.
            self.shared.lanes.silent.note(index);
        }
        for (index, (lane, thread)) in self.lanes.iter().zip(&self.threads).enumerate() {
            if thread.is_current() {
                // This lane continues after this call, which waits for the other lanes.
                self.shared.lanes.silent.note(index);
                lane.post_to_itself(message());
            } else if !thread.is_finished() {
                lane.post_waiting(message());
            }
        }
        let failures = self.threads.drain(..).filter_map(LaneThread::join);
        let failures = failures.collect();
        Stopped {
            metrics: self.metrics.read(),
            failures,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped = self.stop(&|| LaneMessage::Stop);
        for failure in stopped.failures {
            tracing::error!(failure, "a lane ended with an error");
        }
    }
}

impl Default for ServerBuilder {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            codec: AnyCodec::Tw1(Tw1),
            lanes: 1,
            poller: PollerChoice::default(),
            limits: Limits::default(),
            rooms: RoomDefaults::default(),
            rate_limit: None,
            sockets: SocketOptions::default(),
            spin_us: None,
            datagrams: default_datagram_options(),
            trusts_datagram_peers: false,
            agent: None,
            layers: None,
            outgoing_layers: None,
            outgoing_tls: None,
            allow_plaintext_credentials: false,
            tls: None,
            origins: Origins::default(),
            authenticator: None,
        }
    }
}

impl ServerBuilder {
    /// Adds an address to listen on.
    ///
    /// # Errors
    /// [`AddressError`] if the text is not an address.
    pub fn listen(mut self, address: &str) -> Result<Self, AddressError> {
        self.addresses.push(address.parse()?);
        Ok(self)
    }

    /// Sets the codec of all sessions. Default: the native protocol.
    #[must_use]
    pub fn codec(mut self, codec: AnyCodec) -> Self {
        self.codec = codec;
        self
    }

    /// Sets the number of lanes; each lane is a thread. Default 1.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// Sets the poller. Default: the fastest one that works on this system.
    #[must_use]
    pub fn poller(mut self, choice: PollerChoice) -> Self {
        self.poller = choice;
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how much each session may send in a second, and the action when it sends more. Default: no limit.
    #[must_use]
    pub fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.rate_limit = Some(limit);
        self
    }

    /// Sets the longest time that a room's message waits to share a write with others. Default 5 ms.
    #[must_use]
    pub fn coalesce_max(mut self, delay: Duration) -> Self {
        self.rooms.coalesce_max = delay;
        self
    }

    /// Sets the policy for slow subscribers, unless a subscriber or a service chooses another one. Default:
    /// disconnect.
    ///
    /// If the codec cannot announce losses to subscribers, dropped messages are only counted; the log warns about
    /// that when the server starts. With [`Policy::ConflateByTopic`] and a codec whose deliveries have no topics, the
    /// server does not start.
    #[must_use]
    pub fn slow_subscribers(mut self, policy: Policy) -> Self {
        self.rooms.policy = policy;
        self
    }

    /// Sets the options of listening sockets, of accepted connections, and of the connections that handlers
    /// [make](crate::Context::connect).
    #[must_use]
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.sockets = options;
        self
    }

    /// Sets how long an idle lane spins before it sleeps, in microseconds. Spinning means to look for work without
    /// sleeping. The setting applies to all transports and every wait; with 0 the lane sleeps at once.
    ///
    /// Waking a sleeping thread takes 5 to 40 µs on either side of a connection. A lane that spins avoids that.
    ///
    /// By default the lane decides. It spins only for in-process connections that it has just read from, because that
    /// needs no system call, for at most 50 µs, and only while most spins find work. After spins that found no work it
    /// sleeps at once for the next 1, 3, 7 and finally 1,023 times. It does not spin for sockets. On a machine with a
    /// single core it sleeps at once.
    ///
    /// A setting of about 20 suits single requests and replies over a few sockets. It costs processor time: up to this
    /// much at the end of every busy period, and a whole core if such periods follow each other closely. Between two
    /// checks the lane yields its core to other threads. With many connections it gains nothing, because every check
    /// finds work.
    ///
    /// [`Metrics::spins`](crate::Metrics::spins) counts the spins, and [`spins_found`](crate::Metrics::spins_found)
    /// those that found work.
    #[must_use]
    pub fn spin_us(mut self, microseconds: u32) -> Self {
        self.spin_us = Some(microseconds);
        self
    }

    /// Sets the spin time of another builder; `None` lets the lane decide.
    pub(crate) fn spin_as(mut self, microseconds: Option<u32>) -> Self {
        self.spin_us = microseconds;
        self
    }

    /// Sets the options of UDP sockets. The server sets `reuse_port` itself: on with several lanes, which have a
    /// socket each, and off with one.
    #[must_use]
    pub fn datagram_options(mut self, options: DatagramOptions) -> Self {
        self.datagrams = options;
        self
    }

    /// Sets whether UDP peers that cannot validate their address are trusted. Default no: such an address is sent no
    /// more bytes than came from it, so that a forged address cannot make the server flood another host. It can
    /// neither join rooms nor subscribe. Codecs that validate addresses need no trust. Turn it on in closed networks
    /// only, for codecs whose replies are larger than their requests.
    #[must_use]
    pub fn trust_datagram_peers(mut self, trusted: bool) -> Self {
        self.trusts_datagram_peers = trusted;
        self
    }

    /// Sets the server's agent name in its welcome to clients. Default: `tidewire/VERSION lanes=N poller=P`.
    #[must_use]
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Adds layers such as TLS between the sockets and the codec. `make` is called for every accepted connection,
    /// with the address that was listened on. It returns the layers of that connection; the first one is next to the
    /// network. For an address without layers it returns none. It is also called once for each address when the
    /// server starts.
    ///
    /// Connections that handlers [make](crate::Context::connect) do not have them. Counters of bytes count plaintext.
    /// Bytes that a layer has accepted count as written.
    #[must_use]
    pub fn layers(
        mut self,
        make: impl Fn(&Address) -> Vec<Box<dyn Layer>> + Send + Sync + 'static,
    ) -> Self {
        self.layers = Some(LayerFactory::new(make));
        self
    }

    /// Sets the layers of connections that the lanes make.
    pub(crate) fn outgoing_layers(mut self, layers: Option<Layers>) -> Self {
        self.outgoing_layers = layers;
        self
    }

    /// Binds the addresses, starts the lanes with one shared service, and returns when they are about to serve.
    ///
    /// # Errors
    /// See [`ServeError`]. After an error nothing runs.
    pub fn start_shared<S: SharedService>(self, service: S) -> Result<Server, ServeError> {
        let service = Arc::new(service);
        self.start(|_| Arc::clone(&service))
    }

    /// Binds the addresses, starts the lanes, and returns when they are about to serve. `make` is called once for
    /// each lane, with the lane's index, and returns the lane's own service. [`ServerBuilder::start_shared`] gives
    /// all lanes the same service.
    ///
    /// # Errors
    /// See [`ServeError`]. After an error nothing runs.
    pub fn start<S: Service>(self, mut make: impl FnMut(usize) -> S) -> Result<Server, ServeError> {
        self.start_with(|lane| Ok(make(lane)))
    }

    fn start_with<S: Service>(
        mut self,
        mut make: impl FnMut(usize) -> Result<S, ServeError>,
    ) -> Result<Server, ServeError> {
        if self.lanes == 0 || self.lanes > LANES_MAX {
            return Err(ServeError::LaneCount(self.lanes));
        }
        self.rate_limit.as_ref().map(RateLimit::rate).transpose()?;
        let is_udp: Vec<bool> = self.addresses.iter().map(Address::is_udp).collect();
        self.codec = frame(&mut self.addresses, self.codec)?;
        self.codec = adapt(&is_udp, self.codec, &mut self.limits)?;
        self.check_policy()?;
        self.accept_websockets();
        let acceptor = self.secure()?;
        let outgoing = self.outgoing()?;
        let bound = Bound::bind(
            &self.addresses,
            &self.codec,
            self.lanes,
            &self.sockets,
            &self.datagrams,
            self.layers.as_ref(),
        )?;
        // The first lane chooses the poller and logs it; the others use the same.
        let first = poller::open(self.poller).map_err(LaneError::from)?;
        let kind = first.kind();
        let mut pollers = vec![first];
        while pollers.len() < self.lanes {
            let next = poller::open(PollerChoice::Only(kind)).map_err(LaneError::from)?;
            pollers.push(next);
        }
        let shared = Arc::new(self.share(kind, outgoing));
        let counters: Vec<Arc<CachePadded<LaneCounters>>> =
            (0..self.lanes).map(|_| Arc::default()).collect();
        let mut mailboxes = Vec::new();
        for counters in &counters {
            mailboxes.push(Mailbox::new(Arc::clone(counters)).map_err(LaneError::from)?);
        }
        shared.lanes.set(mailboxes.clone());
        let mut server = Server {
            shared: Arc::clone(&shared),
            lanes: mailboxes.clone(),
            threads: Vec::new(),
            addresses: bound.addresses,
            names: Vec::new(),
            metrics: MetricsReader::new(counters.clone(), Arc::clone(&shared.memory)),
            poller: kind,
            tls: acceptor.map(|acceptor| TlsReloader::new(acceptor, Arc::clone(&counters[0]))),
        };
        server.take_names()?;
        let mut listeners = bound.listeners;
        for (index, (((poller, ports), mailbox), counters)) in pollers
            .into_iter()
            .zip(bound.ports)
            .zip(mailboxes)
            .zip(counters)
            .enumerate()
        {
            let mut core = Core::new(index, Arc::clone(&shared), mailbox, poller, counters);
            for listener in listeners.drain(..) {
                core.add_listener(listener).map_err(LaneError::from)?;
            }
            for socket in ports {
                core.add_port(socket).map_err(LaneError::from)?;
            }
            let lane = Lane::new(core, make(index)?, Spin::chosen(self.spin_us));
            server.threads.push(LaneThread::start(index, lane)?);
        }
        Ok(server)
    }

    /// Checks that the codec supports the policy for slow subscribers, and warns if it cannot announce losses.
    fn check_policy(&self) -> Result<(), PolicyError> {
        let (policies, policy) = (Policies::of(&self.codec), self.rooms.policy);
        policies.check_default(policy)?;
        if policies.is_silent(policy) {
            tracing::warn!(
                codec = self.codec.name(),
                %policy,
                "the codec cannot announce losses to slow subscribers; dropped messages are only counted"
            );
        }
        Ok(())
    }

    /// Starts a single lane with the one service that `take` contains.
    pub(crate) fn start_one<S: Service>(
        self,
        mut take: impl FnMut() -> Option<S>,
    ) -> Result<Server, ServeError> {
        let lanes = self.lanes;
        let mut service = take();
        self.lanes(1)
            .start_with(|_| service.take().ok_or(ServeError::LaneCount(lanes)))
    }

    pub(crate) fn share(&self, kind: PollerKind, outgoing: Outgoing) -> Shared {
        let agent = self.agent.clone().unwrap_or_else(|| {
            format!(
                "tidewire/{} lanes={} poller={kind}",
                env!("CARGO_PKG_VERSION"),
                self.lanes
            )
        });
        tracing::debug!(codec = self.codec.name(), agent, "starting lanes");
        let config = Config {
            codec: self.codec.clone(),
            limits: self.limits.clone(),
            shared_frame_bytes_max: self
                .limits
                .frame_bytes_max
                .saturating_sub(self.codec.delivery_header_bytes_max()),
            rules: Rules {
                authenticates: self.authenticator.is_some(),
                ..self.limits.rules(&self.codec)
            },
            rate: self.rate_limit.and_then(|limit| limit.rate().ok()),
            room_defaults: self.rooms,
            policies: Policies::of(&self.codec),
            agent,
            trusts_datagram_peers: self.trusts_datagram_peers,
            socket_options: self.sockets.clone(),
            datagram_options: self.datagrams.clone(),
        };
        let guard = self
            .authenticator
            .clone()
            .map(|it| Arc::new(Guard::new(it)));
        Shared::new(config, outgoing, guard, self.lanes)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.addresses.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(formatter, "{separator}{address}")?;
        }
        Ok(())
    }
}
