//! Starts, watches and stops a server.

mod authentication;
mod backplane;
mod bind;
mod codecs;
mod error;
mod inspector;
mod operation;
mod start;
mod stopper;
mod tls;
mod wait;
mod websocket;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_io::datagram::DatagramOptions;
use tidewire_io::poller::{PollerChoice, PollerKind};
use tidewire_io::socket::{PassedSocket, SocketOptions};
use tidewire_io::waker::LaneWaker;
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::layer::Layer;
use tidewire_proto::message::Message;
use tidewire_proto::room::Policy;

use crate::address::{Address, AddressError, Endpoint};
use crate::auth::{Network, SharedAuthenticator};
use crate::backplane::BackplaneChoice;
use crate::config::ConnectionAge;
use crate::engine::ServerShared;
use crate::lane::{LaneThread, Lead, Tasks};
use crate::limits::{Limits, RateLimit, RoomDefaults, nanoseconds};
use crate::mailbox::{LaneMessage, Mailbox};
use crate::observe::{Metrics, MetricsReader};
use crate::on_lane;
use crate::service::{Context, HandlerResult, Service, Sessions};
use crate::tls::{ClientTls, ServerTls, TlsAcceptor};
use crate::transport::inproc;
use crate::transport::{LayerFactory, Layers};
use crate::websocket::WebPage;
use backplane::NodeThread;
use bind::default_datagram_options;
pub(crate) use bind::limit_frames;
pub(crate) use codecs::framed;
pub use error::ServeError;
pub use inspector::Inspector;
use operation::Readiness;
pub use stopper::Stopper;
use tidewire_proto::websocket::Origins;

/// A running server: its lanes, its addresses, its counters. Dropping it stops it at once. If one of its own lanes
/// drops it, that lane ends after its turn. [`serve`](crate::serve) or a [`ServerBuilder`] makes it; the crate's
/// [first page](crate) has examples of both.
#[derive(Debug)]
pub struct Server {
    shared: Arc<ServerShared>,
    lanes: Vec<Arc<Mailbox>>,
    threads: Vec<LaneThread>,
    addresses: Vec<Endpoint>,
    metrics: MetricsReader,
    poller: PollerKind,
    node: Option<NodeThread>,
    tls: Option<TlsAcceptor>,
    readiness: Readiness,
    stopper: Stopper,
}

/// The waker of a lane, as one of the standard library.
struct WakesLane(Arc<LaneWaker>);

impl Wake for WakesLane {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

/// The settings of a server before it runs. [`Server::builder`] makes them.
///
/// ```
/// use std::time::Duration;
/// use tidewire::{Client, Context, Limits, Message, Policy, Server};
///
/// let mut limits = Limits::default();
/// limits.sessions.set_max(10_000);
/// let server = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .listen("inproc://orders")?
///     .lanes(2)
///     .slow_subscribers(Policy::DropOldest)
///     .limits(limits)
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
    age: Option<ConnectionAge>,
    sockets: SocketOptions,
    passed_sockets: Vec<PassedSocket>,
    proxies: Vec<Network>,
    forwarders: Vec<Network>,
    spin_us: Option<u32>,
    /// The tasks that wait for the lane of a client. `None` for a server.
    tasks: Option<Arc<Tasks>>,
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
    page: Option<WebPage>,
    authenticator: Option<SharedAuthenticator>,
    /// Whether connections that its lanes make go where a draining server sends them.
    follows_moves: bool,
    backplane: Option<BackplaneChoice>,
}

/// The outcome of a server that has ended. [`Server::shutdown`] returns it; [`ServerBuilder`] has an example.
#[derive(Clone, Debug)]
#[must_use = "lanes may have failed: look at `failures`"]
#[non_exhaustive]
pub struct Stopped {
    /// The final counters. All sessions are closed.
    pub metrics: Metrics,
    /// Errors of lanes that failed, as text.
    pub failures: Vec<String>,
}

/// Serves `handler` on one address until the returned server is dropped or shut down. This is the shortest way to a
/// server.
///
/// ```
/// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| cx.reply(message.payload))?;
/// let client = tidewire::Client::connect(&server.addresses()[0].to_string()).wait()?;
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// See [`ServeError`].
pub fn serve<F>(address: &str, handler: F) -> Result<Server, ServeError>
where
    F: FnMut(&mut Context<'_>, Message<'_>) -> HandlerResult + Send + 'static,
{
    Server::builder().listen(address)?.start_one(handler)
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

    /// Returns its first address of this scheme, `tcp`, `tls`, `ws`, `wss`, `udp`, `ipc` or `inproc`. A server with one
    /// address is its address as text: `server.to_string()`.
    ///
    /// ```
    /// use tidewire::{Chat, Client, Server};
    ///
    /// let server = Server::builder()
    ///     .listen("tcp://127.0.0.1:0")?
    ///     .listen("ws://127.0.0.1:0")?
    ///     .start_one(Chat::new())?;
    /// let browser = server.address("ws").expect("the server listens there").to_string();
    /// let client = Client::connect(&browser).wait()?;
    /// assert!(server.address("udp").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn address(&self, scheme: &str) -> Option<&Endpoint> {
        self.addresses.iter().find(|it| it.scheme() == scheme)
    }

    /// Returns a handle that ends the server from any thread, task or handler.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Returns a future that is ready when all lanes have ended; see [`Stopper::stopped`].
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        self.stopper.stopped()
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

    /// The waker of a lane. Another thread wakes the lane after it has left work for a service's
    /// [`on_turn`](crate::Service::on_turn). The service must say so by [`has_work`](crate::Service::has_work), because
    /// a lane that is awake is not woken, and may have called `on_turn` already.
    ///
    /// # Panics
    /// There is no such lane.
    #[must_use]
    pub fn waker(&self, lane: usize) -> Waker {
        Arc::new(WakesLane(self.lane_waker(lane))).into()
    }

    pub(crate) fn lane_waker(&self, lane: usize) -> Arc<LaneWaker> {
        Arc::clone(&self.lanes[lane].waker)
    }

    /// The seat of the first lane, for threads that wait for it.
    pub(crate) fn seat(&self) -> Option<&Arc<dyn Lead>> {
        self.threads.first().map(LaneThread::seat)
    }

    /// Whether every lane still runs. A lane ends early only if its poller fails, its service panics and cannot go on,
    /// or its service stops it.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.threads.iter().any(LaneThread::is_finished)
    }

    /// Stops accepting, sends every peer a go-away, lets sessions finish until `deadline`, and ends. If it is called
    /// on one of the server's own lanes, it does not wait for that lane, which ends after its turn.
    pub fn shutdown(mut self, deadline: Duration) -> Stopped {
        let deadline_ns = now_ns().saturating_add(nanoseconds(deadline));
        self.stop(&|| LaneMessage::Drain { deadline_ns })
    }

    /// Binds the in-process names. The first lane accepts their connections.
    fn take_names(&self) -> Result<(), ServeError> {
        for address in &self.addresses {
            if let Endpoint::Inproc(name) = address {
                let bound = inproc::bind(name, &self.lanes[0].party());
                let in_use = || ServeError::NameInUse { name: name.clone() };
                self.stopper.keep(bound.ok_or_else(in_use)?);
            }
        }
        Ok(())
    }

    /// Waits for lanes that end by themselves. On a lane of any server it does not wait, because that would hold the
    /// lane's sessions: the lanes go on without this value.
    pub(crate) fn leave(&mut self) {
        if on_lane::is_lane() {
            self.threads.clear();
        }
        for failure in self.threads.drain(..).filter_map(LaneThread::join) {
            tracing::error!(failure, "a lane ended with an error");
        }
    }

    fn stop(&mut self, message: &dyn Fn() -> LaneMessage) -> Stopped {
        if !self.stopper.is_here() {
            return self.forget();
        }
        self.stopper.leave();
        for index in self.threads.len()..self.lanes.len() {
            // The server ends because this lane did not start.
            self.shared.lanes.note_silent(index);
        }
        for (index, (lane, thread)) in self.lanes.iter().zip(&self.threads).enumerate() {
            if thread.is_current() {
                // This lane continues after this call, which waits for the other lanes.
                self.shared.lanes.note_silent(index);
                lane.post_to_itself(message());
            } else if !thread.is_finished() {
                lane.post_waiting(message());
            }
        }
        let failures = self.threads.drain(..).filter_map(LaneThread::join);
        let failures = failures.collect();
        if let Some(node) = self.node.take() {
            node.stop();
        }
        Stopped {
            metrics: self.metrics.read(),
            failures,
        }
    }
}

impl Server {
    /// Ends the server in a child by `fork`, where it has no threads. What belongs to them can be neither ended nor
    /// dropped: it may be locked for ever.
    fn forget(&mut self) -> Stopped {
        self.stopper.forget();
        std::mem::forget(self.node.take());
        let failures = self.threads.drain(..).filter_map(LaneThread::join);
        Stopped {
            failures: failures.collect(),
            metrics: self.metrics.read(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped = self.stop(&|| LaneMessage::Stop);
        if !self.stopper.is_here() {
            return;
        }
        for failure in stopped.failures {
            tracing::error!(failure, "a lane ended with an error");
        }
    }
}

impl Default for ServerBuilder {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            codec: AnyCodec::default(),
            lanes: 1,
            poller: PollerChoice::default(),
            limits: Limits::default(),
            rooms: RoomDefaults::default(),
            rate_limit: None,
            age: None,
            sockets: SocketOptions::default(),
            passed_sockets: Vec::new(),
            proxies: Vec::new(),
            forwarders: Vec::new(),
            spin_us: None,
            tasks: None,
            datagrams: default_datagram_options(),
            trusts_datagram_peers: false,
            agent: None,
            layers: None,
            outgoing_layers: None,
            outgoing_tls: None,
            allow_plaintext_credentials: false,
            tls: None,
            origins: Origins::default(),
            page: None,
            authenticator: None,
            follows_moves: false,
            backplane: None,
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

    /// Sets the policy for slow subscribers, unless a subscriber or a service chooses another one. Default: disconnect.
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
    /// [make](crate::ConnectionActions::connect).
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
    /// [`Metrics::spins`](crate::metrics::Metrics::spins) counts the spins, and
    /// [`spins_found`](crate::metrics::Metrics::spins_found) those that found work.
    #[must_use]
    pub fn spin_us(mut self, microseconds: u32) -> Self {
        self.spin_us = Some(microseconds);
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
    /// Connections that handlers [make](crate::ConnectionActions::connect) do not have them. Counters of bytes count
    /// plaintext. Bytes that a layer has accepted count as written.
    #[must_use]
    pub fn layers(
        mut self,
        make: impl Fn(&Address) -> Vec<Box<dyn Layer>> + Send + Sync + 'static,
    ) -> Self {
        self.layers = Some(LayerFactory::new(make));
        self
    }

    /// Binds the addresses, starts the lanes, and returns when they are about to serve. `make` is called once for
    /// each lane, with the lane's index, and returns the lane's own service. State that all
    /// lanes share is cloned into each of them, as [`Service`] shows.
    ///
    /// # Errors
    /// See [`ServeError`]. After an error nothing runs.
    pub fn start<S: Service>(self, mut make: impl FnMut(usize) -> S) -> Result<Server, ServeError> {
        self.start_with(|lane| Ok(make(lane)))
    }

    /// Starts a server of one lane with this service. A server of several lanes has a service on each: use
    /// [`start`](Self::start).
    ///
    /// ```
    /// use tidewire::{PubSub, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(PubSub::new())?;
    /// # Ok::<(), tidewire::ServeError>(())
    /// ```
    ///
    /// # Errors
    /// See [`ServeError`]. After an error nothing runs.
    pub fn start_one<S: Service>(self, service: S) -> Result<Server, ServeError> {
        if self.lanes > 1 {
            return Err(ServeError::OneService { lanes: self.lanes });
        }
        let mut service = Some(service);
        self.start_with(|_| service.take().ok_or(ServeError::OneService { lanes: 2 }))
    }

    /// Starts like [`ServerBuilder::start`], with services behind pointers, so that lanes may have services of several
    /// types.
    ///
    /// The compiler makes a copy of the lane's loops for each type of service that [`ServerBuilder::start`] gets, in
    /// the crate that calls it, and that takes seconds. The copy for boxed services is compiled once, with this
    /// library. Each message then costs an indirect call, and the loops cannot inline the service.
    ///
    /// ```
    /// use tidewire::{Chat, Client, Context, Message, Server, Service};
    ///
    /// let make = |name: &str| -> Box<dyn Service> {
    ///     match name {
    ///         "chat" => Box::new(Chat::new()),
    ///         _ => Box::new(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload)),
    ///     }
    /// };
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_boxed(|_lane| make("echo"))?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`ServeError`]. After an error nothing runs.
    pub fn start_boxed(
        self,
        mut make: impl FnMut(usize) -> Box<dyn Service>,
    ) -> Result<Server, ServeError> {
        self.start_boxed_with(&mut make)
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
