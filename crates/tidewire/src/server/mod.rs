//! Starting, watching and stopping a server.

use crate::config::{Config, Policies, PolicyError};
mod bind;
mod wait;

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
use tidewire_proto::layer::Layer;
use tidewire_proto::room::Policy;

use crate::address::{Address, AddressError, Endpoint};
use crate::engine::{Core, Shared};
use crate::lane::{Lane, LaneError, LaneThread, Spin};
use crate::limits::{Limits, RateLimit, RateLimitError, RoomDefaults, nanoseconds};
use crate::mailbox::{LaneMessage, Mailbox};
use crate::observe::{LaneCounters, Metrics, MetricsReader};
use crate::room::LANES_MAX;
use crate::service::Sessions;
use crate::service::{Service, SharedService};
use crate::transport::inproc::{self, InprocBindError};
use crate::transport::{LayerFactory, Layers};
use bind::{Bound, default_datagram_options};
pub(crate) use bind::{adapt, frame};

/// A running server: its lanes, its addresses, its counters. Dropping it stops it at once; on one of its own lanes, without
/// waiting for that one.
/// Made by [`serve`](crate::serve) or a [`ServerBuilder`]; the crate's [first page](crate) has examples of both.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    lanes: Vec<Arc<Mailbox>>,
    threads: Vec<LaneThread>,
    addresses: Vec<Endpoint>,
    /// In-process names, free again when it stops.
    names: Vec<inproc::Bound>,
    metrics: MetricsReader,
    poller: PollerKind,
}

/// The settings of a server before it runs. Made by [`Server::builder`].
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
    /// Over the connections that it accepts.
    layers: Option<LayerFactory>,
    /// Over the connections that its lanes make.
    outgoing_layers: Option<Layers>,
}

/// A server could not start. Nothing of it runs. An error of [`serve`](crate::serve) and [`ServerBuilder`].
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
    /// The codec frames datagrams in another way than streams, and a server has one codec.
    #[error(
        "the codec {codec} frames udp:// in another way than streams; start one server for udp:// and another for the \
         rest"
    )]
    MixedFraming {
        /// Name of the codec.
        codec: &'static str,
    },
    /// An address says how streams are framed, and the codec leaves no choice.
    #[error(
        "the codec {codec} leaves no choice of framing; leave ?framing= out, or use the codec uvrpc"
    )]
    Framing {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The codec cannot do what the policy for slow subscribers needs.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Layers were asked for where they cannot be.
    #[error(
        "layers such as TLS are not possible at {address}: they need tcp:// or ipc://, and where listeners differ in \
         ?framing=, the one with lengths; make none for this address, or start another server for it"
    )]
    Layers {
        /// The address.
        address: Address,
    },
    /// An in-process name could not be taken.
    #[error(transparent)]
    Inproc(#[from] InprocBindError),
    /// A lane could not start.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// The rate limit lets nothing through, or limits nothing.
    #[error(transparent)]
    RateLimit(#[from] RateLimitError),
    /// More lanes than the bits of a room's lane mask, or none.
    #[error("{0} lanes are not possible; use 1 to {LANES_MAX}")]
    LaneCount(usize),
}

/// The outcome of a server that has ended. Given by [`Server::wait`] and [`Server::shutdown`]; [`ServerBuilder`] has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stopped {
    /// The counters at the end, all sessions closed.
    pub metrics: Metrics,
    /// Lanes that ended with an error, as text.
    pub failures: Vec<String>,
}

/// Serves `service` on one address until the returned server is dropped or shut down: the shortest way.
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
    /// A server with the native protocol, one lane and the default limits.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// The addresses it listens on, with the real port where port 0 was asked for.
    #[must_use]
    pub fn addresses(&self) -> &[Endpoint] {
        &self.addresses
    }

    /// The poller its lanes use.
    #[must_use]
    pub fn poller(&self) -> PollerKind {
        self.poller
    }

    /// How many lanes it has.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Its open sessions, to be found, sent to and closed from any thread.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        Sessions::new(Arc::clone(&self.shared))
    }

    /// The counters of all lanes, now.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.read()
    }

    /// A reader of the counters that outlives the server.
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

    /// Whether every lane still runs. A lane ends early only if its poller fails or its service panics.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.threads.iter().any(LaneThread::is_finished)
    }

    /// Stops accepting, tells every peer, lets them finish until `deadline`, and ends. On one of its own lanes it does not
    /// wait for that lane, which ends after its turn.
    #[must_use]
    pub fn shutdown(mut self, deadline: Duration) -> Stopped {
        let deadline_ns = now_ns().saturating_add(nanoseconds(deadline));
        self.stop(&|| LaneMessage::Drain { deadline_ns })
    }

    /// Listens on its in-process names, as whose lane the first one takes up what comes.
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
                // It goes on when this call returns, which waits for the other lanes.
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
        }
    }
}

impl ServerBuilder {
    /// Also listens on `address`.
    ///
    /// # Errors
    /// [`AddressError`] if the text is not an address.
    pub fn listen(mut self, address: &str) -> Result<Self, AddressError> {
        self.addresses.push(address.parse()?);
        Ok(self)
    }

    /// The codec of all sessions. Default: the native protocol.
    #[must_use]
    pub fn codec(mut self, codec: AnyCodec) -> Self {
        self.codec = codec;
        self
    }

    /// How many lanes, that is threads. Default 1.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// The poller. Default: the best that works here.
    #[must_use]
    pub fn poller(mut self, choice: PollerChoice) -> Self {
        self.poller = choice;
        self
    }

    /// The limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How much each session may send in a second, and what happens to one that sends more. Default: no limit.
    #[must_use]
    pub fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.rate_limit = Some(limit);
        self
    }

    /// Longest time a room's message waits for others to share its write. Default 5 ms.
    #[must_use]
    pub fn coalesce_max(mut self, delay: Duration) -> Self {
        self.rooms.coalesce_max = delay;
        self
    }

    /// The policy for slow subscribers, unless they or a service choose another one. Default: disconnect.
    ///
    /// If the codec cannot tell subscribers of losses, dropped messages are only counted; the log warns when the server starts.
    /// With [`Policy::ConflateByTopic`] and a codec whose deliveries show no topics, the server does not start.
    #[must_use]
    pub fn slow_subscribers(mut self, policy: Policy) -> Self {
        self.rooms.policy = policy;
        self
    }

    /// Options of the listening sockets, of what they accept, and of the connections that handlers
    /// [make](crate::Context::connect).
    #[must_use]
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.sockets = options;
        self
    }

    /// How long a lane that has nothing to do looks for work before it sleeps, in microseconds, everywhere and every time;
    /// with 0 it sleeps at once.
    ///
    /// Waking a sleeper takes some 5 µs on either side of a connection, which a lane that still looks is spared.
    ///
    /// By default the lane decides: it looks only at in-process connections that it has just read from, where that takes
    /// no system call, for at most 10 µs, and only as long as there is mostly something to find; after looks in vain it
    /// sleeps at once for the next 1, 3, 7 and finally 1,023 times. At sockets it never looks. On a machine with a single
    /// core it sleeps at once.
    ///
    /// With a time of your own, about 20 suits an exchange of single requests and replies on a few sockets. It costs
    /// processor time: up to this much at the end of every busy moment, and a whole core where such moments follow each
    /// other as closely. Between two looks the lane gives its core to whoever else wants it. With many connections it
    /// gains nothing, because there is work at every look.
    ///
    /// [`Metrics::spins`](crate::Metrics::spins) counts the looks, and
    /// [`spins_found`](crate::Metrics::spins_found) those that were worth it.
    #[must_use]
    pub fn spin_us(mut self, microseconds: u32) -> Self {
        self.spin_us = Some(microseconds);
        self
    }

    /// As [`Self::spin_us`], of another builder: nothing leaves it to the lane.
    pub(crate) fn spin_as(mut self, microseconds: Option<u32>) -> Self {
        self.spin_us = microseconds;
        self
    }

    /// Options of the UDP sockets. `reuse_port` is the server's own business: it is on with several lanes, of which each
    /// has a socket, and off with one.
    #[must_use]
    pub fn datagram_options(mut self, options: DatagramOptions) -> Self {
        self.datagrams = options;
        self
    }

    /// Whether UDP peers that cannot prove their address are trusted not to lie about it. Default no: such an address is
    /// sent no more bytes than came from it, so that nobody can make the server flood somebody else, and it can
    /// neither join rooms nor subscribe. Codecs that prove addresses need no trust. Turn it
    /// on in closed networks only, for codecs whose replies are larger than their requests.
    #[must_use]
    pub fn trust_datagram_peers(mut self, trusted: bool) -> Self {
        self.trusts_datagram_peers = trusted;
        self
    }

    /// The server's name for itself in its welcome to clients. Default: `tidewire/VERSION lanes=N poller=P`.
    #[must_use]
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Puts layers such as TLS between the sockets and the codec. `make` is called for every connection that is accepted, with
    /// the address that was listened on; it returns the layers of that connection, of which the first is next to the network.
    /// For an address without layers it returns none. It is called once more for each address when the server starts.
    ///
    /// Connections that handlers [make](crate::Context::connect) have no layers. Counters of bytes count plaintext, and what a
    /// layer has accepted counts as written.
    #[must_use]
    pub fn layers(
        mut self,
        make: impl Fn(&Address) -> Vec<Box<dyn Layer>> + Send + Sync + 'static,
    ) -> Self {
        self.layers = Some(LayerFactory::new(make));
        self
    }

    /// Puts layers over the connections that the lanes make.
    pub(crate) fn outgoing_layers(mut self, layers: Option<Layers>) -> Self {
        self.outgoing_layers = layers;
        self
    }

    /// Binds, starts the lanes, and returns when they are about to serve, all of them with the same service.
    ///
    /// # Errors
    /// See [`ServeError`]; nothing is left running.
    pub fn start_shared<S: SharedService>(self, service: S) -> Result<Server, ServeError> {
        let service = Arc::new(service);
        self.start(|_| Arc::clone(&service))
    }

    /// Binds, starts the lanes, and returns when they are about to serve. `make` is called once per lane, with the
    /// lane's index, for a service of its own; see [`ServerBuilder::start_shared`] for one that all lanes share.
    ///
    /// # Errors
    /// See [`ServeError`]; nothing is left running.
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
        let bound = Bound::bind(
            &self.addresses,
            &self.codec,
            self.lanes,
            &self.sockets,
            &self.datagrams,
            self.layers.as_ref(),
        )?;
        // The first one decides; the others follow it without saying so again.
        let first = poller::open(self.poller).map_err(LaneError::from)?;
        let kind = first.kind();
        let mut pollers = vec![first];
        while pollers.len() < self.lanes {
            let next = poller::open(PollerChoice::Only(kind)).map_err(LaneError::from)?;
            pollers.push(next);
        }
        let shared = Arc::new(self.share(kind));
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

    /// Checks that the codec can do what the policy for slow subscribers needs, and says what it cannot tell them.
    fn check_policy(&self) -> Result<(), PolicyError> {
        let (policies, policy) = (Policies::of(&self.codec), self.rooms.policy);
        policies.check_default(policy)?;
        if policies.is_silent(policy) {
            tracing::warn!(
                codec = self.codec.name(),
                %policy,
                "the codec cannot tell slow subscribers what is dropped for them; it is only counted"
            );
        }
        Ok(())
    }

    /// Starts a single lane with the one service that `take` has.
    pub(crate) fn start_one<S: Service>(
        self,
        mut take: impl FnMut() -> Option<S>,
    ) -> Result<Server, ServeError> {
        let lanes = self.lanes;
        let mut service = take();
        self.lanes(1)
            .start_with(|_| service.take().ok_or(ServeError::LaneCount(lanes)))
    }

    pub(crate) fn share(&self, kind: PollerKind) -> Shared {
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
            rules: self.limits.rules(&self.codec),
            rate: self.rate_limit.and_then(|limit| limit.rate().ok()),
            room_defaults: self.rooms,
            policies: Policies::of(&self.codec),
            agent,
            trusts_datagram_peers: self.trusts_datagram_peers,
            socket_options: self.sockets.clone(),
            datagram_options: self.datagrams.clone(),
        };
        Shared::new(config, self.outgoing_layers.clone(), self.lanes)
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
