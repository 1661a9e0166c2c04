//! The settings of a client before it connects.

use std::sync::Arc;
use std::time::Duration;

use tidewire_io::clock::coarse_tick_ns;
use tidewire_io::poller::PollerChoice;
use tidewire_io::socket::SocketOptions;
use tidewire_proto::codec::{AnyCodec, Codec, RequestIds};
use tidewire_proto::layer::Layer;

use super::dialing::Dialing;
use super::event_queue::{EventBounds, WhenEventsFull};
use super::link::Link;
use super::moving::Mover;
use super::operation::Connecting;
use super::service::ClientService;
use super::submissions::WhenWindowFull;
use super::table::RequestTable;
use super::{Client, Inner};
use crate::address::Address;
use crate::auth::Credentials;
use crate::dial::{Backoff, Dialer, Target};
use crate::limits::{CLIENT_LINGER_DEFAULT, ConnectionLimits, Limits, nanoseconds};
use crate::server::{ServeError, Server, framed, limit_frames};
use crate::tls::{ClientConfigs, ClientTls, Connector};
use crate::transport::{ConnectError, LayerFactory, Layers};

/// The settings of a client before it connects. Made by [`Client::builder`].
///
/// ```
/// use std::time::Duration;
/// use tidewire::{Backoff, Client, WhenEventsFull, WhenWindowFull};
/// # let server = tidewire::serve("tcp://127.0.0.1:0", |_, _| Ok(()))?;
///
/// let client = Client::builder()
///     .request_timeout(Duration::from_secs(2))
///     .pending_max(256)
///     .when_window_full(WhenWindowFull::Wait)
///     .event_bytes_max(1 << 20)
///     .when_events_full(WhenEventsFull::PauseReading)
///     .reconnect(Backoff::default())
///     .connect(&server.to_string())
///     .wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    codec: AnyCodec,
    poller: PollerChoice,
    limits: ConnectionLimits,
    request_timeout: Duration,
    close_timeout: Duration,
    linger: Duration,
    pending_max: usize,
    when_window_full: WhenWindowFull,
    event_bounds: EventBounds,
    backoff: Option<Backoff>,
    wait_for_server: bool,
    sockets: SocketOptions,
    spin_us: Option<u32>,
    layers: Option<LayerFactory>,
    tls: ClientTls,
    credentials: Option<Credentials>,
    allow_plaintext_credentials: bool,
    follow_moves: bool,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            codec: AnyCodec::default(),
            poller: PollerChoice::default(),
            limits: ConnectionLimits::default(),
            request_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(5),
            linger: CLIENT_LINGER_DEFAULT,
            pending_max: 4096,
            when_window_full: WhenWindowFull::default(),
            event_bounds: EventBounds::default(),
            backoff: None,
            wait_for_server: false,
            sockets: SocketOptions::default(),
            spin_us: None,
            layers: None,
            tls: ClientTls::default(),
            credentials: None,
            allow_plaintext_credentials: false,
            follow_moves: false,
        }
    }
}

impl ClientBuilder {
    /// Sets the codec. Default: the native protocol.
    #[must_use]
    pub fn codec(mut self, codec: AnyCodec) -> Self {
        self.codec = codec;
        self
    }

    /// Sets the credentials by which a server knows this client: a [`Token`](crate::auth::Token), or a
    /// [provider](Credentials::provider) of tokens. They are sent in the hello of `tw1`; other codecs have no place for
    /// them. They are never logged, and never sent to another machine without TLS: connecting fails with
    /// [`ConnectError::PlaintextCredentials`](crate::ConnectError::PlaintextCredentials).
    #[must_use]
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = Some(credentials.into());
        self
    }

    /// Sends the credentials also to another machine without `tls://`, where others may read and use them. For a closed
    /// network, or for [layers](Self::layers) that encrypt.
    #[must_use]
    pub fn allow_plaintext_credentials(mut self) -> Self {
        self.allow_plaintext_credentials = true;
        self
    }

    /// Sets the poller. Default: the best one that works on this system.
    #[must_use]
    pub fn poller(mut self, choice: PollerChoice) -> Self {
        self.poller = choice;
        self
    }

    /// Sets the limits. [`handshake_timeout`](ConnectionLimits::handshake_timeout) bounds the time to connect to all
    /// addresses of the server together.
    #[must_use]
    pub fn limits(mut self, limits: ConnectionLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how long a request waits for its reply. Default 10 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets the longest time for which [`Client::close`] waits until the server has accepted the queued messages.
    /// Default 5 s.
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Sets the longest wait of the drop of the last clone until the server has its messages: publications, one-way
    /// messages and messages to rooms. Default 1 s. With 0 the drop ends the client at once, and unwritten messages are
    /// lost. The drop does not wait if all messages are [confirmed](Client::flush) or none was sent. A drop on a lane
    /// does not wait either: the client continues in the background for this time.
    #[must_use]
    pub fn linger(mut self, longest: Duration) -> Self {
        self.linger = longest;
        self
    }

    /// Sets how many requests may wait for their replies. Default 4,096, or 255 where ids have 8 bits.
    #[must_use]
    pub fn pending_max(mut self, requests: usize) -> Self {
        self.pending_max = requests;
        self
    }

    /// Sets the policy for a request that finds the window full, with as many pending as allowed. Default: refuse.
    #[must_use]
    pub fn when_window_full(mut self, choice: WhenWindowFull) -> Self {
        self.when_window_full = choice;
        self
    }

    /// Sets the size of each event queue in bytes. A payload counts its length, and each event counts 128 more. Default
    /// 8 MiB. The client's own events have a queue, and each [`Subscription`](super::Subscription) has a queue, perhaps
    /// with [its own bounds](super::Subscribe::event_bytes_max). An empty queue takes any event, however large it is.
    #[must_use]
    pub fn event_bytes_max(mut self, bytes: usize) -> Self {
        self.event_bounds.bytes_max = bytes;
        self
    }

    /// Sets how many events each queue holds. Default 65,536.
    #[must_use]
    pub fn events_max(mut self, events: usize) -> Self {
        self.event_bounds.events_max = events;
        self
    }

    /// Sets the policy for an event queue that reaches one of its bounds. Default: the oldest event is dropped.
    #[must_use]
    pub fn when_events_full(mut self, choice: WhenEventsFull) -> Self {
        self.event_bounds.when_full = choice;
        self
    }

    /// Reconnects by itself when an open connection ends. Topics are subscribed to again. Only requests marked as
    /// [idempotent](super::Call::idempotent) are repeated. Rooms are not joined again: join them at each
    /// [`Event::Opened`](super::Event::Opened).
    #[must_use]
    pub fn reconnect(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Sets whether the client follows a draining server's go-away to another address: the next connection is to that
    /// address, if it has the same transport: `tcp://`, `tls://`, `ws://` or `wss://`. At `tls://` and `wss://` the
    /// certificate must be valid for the new host. Credentials go there as they go to an address of your own. Default:
    /// no, and the client connects to the same address again.
    ///
    /// The client stays with the new server until an attempt to connect there fails, and then returns. It needs
    /// [`reconnect`](Self::reconnect) or [`connect_lazy`](Self::connect_lazy). A client with its own
    /// [`layers`](Self::layers) does not follow. Only `tw1` and `json` have such addresses. The client ignores other
    /// addresses, with a warning in the log.
    #[must_use]
    pub fn follow_moves(mut self, follow: bool) -> Self {
        self.follow_moves = follow;
        self
    }

    /// Waits for the server of an `inproc://` name that is not bound yet, up to
    /// [`ConnectionLimits::handshake_timeout`], instead of failing at once. It is for threads of one process that start
    /// in any order. For a server in another process use [`connect_lazy`](Self::connect_lazy), which tries again at
    /// each use. With any other address connecting fails with
    /// [`ConnectError::CannotWait`](crate::ConnectError::CannotWait).
    #[must_use]
    pub fn wait_for_server(mut self) -> Self {
        self.wait_for_server = true;
        self
    }

    /// Sets the options of the connection's socket.
    #[must_use]
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.sockets = options;
        self
    }

    /// Sets how long the client's lane polls for work before it sleeps, in microseconds; see
    /// [`ServerBuilder::spin_us`](crate::ServerBuilder::spin_us).
    #[must_use]
    pub fn spin_us(mut self, microseconds: u32) -> Self {
        self.spin_us = Some(microseconds);
        self
    }

    /// Puts layers such as TLS between the socket and the codec. `make` is called for every connection, with the
    /// server's address as it was given, host name included. `make` returns the layers. The first layer is next to the
    /// network.
    #[must_use]
    pub fn layers(
        mut self,
        make: impl Fn(&Address) -> Vec<Box<dyn Layer>> + Send + Sync + 'static,
    ) -> Self {
        self.layers = Some(LayerFactory::new(make));
        self
    }

    /// Sets whom the client trusts at a `tls://` or `wss://` address, and which certificate it shows. Default: it
    /// trusts the authorities of the system, and shows none.
    #[must_use]
    pub fn tls(mut self, settings: ClientTls) -> Self {
        self.tls = settings;
        self
    }

    /// Connects. A host name may have several addresses: the client begins with the address of its last connection,
    /// begins the next after 250 ms or as soon as an attempt fails, and keeps the first that accepts. Await the client,
    /// or [`wait`](Connecting::wait) for it. This call does not block: a separate thread looks up the host name. It
    /// looks up the name again after all addresses have failed.
    ///
    /// # Errors
    /// See [`ConnectError`]. If several addresses fail, the error is of an address with a server that answered, else of
    /// the last address. The first attempt is never repeated.
    pub fn connect(self, address: &str) -> Connecting {
        Connecting::new(self.start(address, false))
    }

    /// Creates a client that connects at its first use: a request, a message or a subscription. This call does not
    /// block, and the server need not run yet.
    ///
    /// Submissions wait while the client connects, requests within their deadlines. If the attempt fails, the requests
    /// fail with [`RequestError::CannotConnect`](crate::RequestError::CannotConnect), and
    /// [`Event::Lost`](crate::Event::Lost) has the number of lost messages. The next request tries again. If the server
    /// does not answer, requests fail with [`RequestError::TimedOut`](crate::RequestError::TimedOut) at their
    /// deadlines.
    ///
    /// The client stays when its connection ends. It connects again at its next use and resumes its subscriptions. With
    /// [`reconnect`](Self::reconnect) it connects without waiting for a use. The client ends when it is closed or
    /// dropped, or when a server refuses it [for good](crate::CloseReason::is_final), which
    /// [`Event::Closed`](crate::Event::Closed) reports.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidewire::{Client, RequestError};
    ///
    /// let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?; // the port has no listener any more
    /// let backend = Client::builder().connect_lazy(&format!("tcp://{free}"))?;
    /// let down = backend.request(b"anybody?").timeout(Duration::from_secs(1)).wait();
    /// assert!(matches!(down, Err(RequestError::CannotConnect { .. })));
    ///
    /// # // Another process may have taken the port.
    /// # let Ok(_server) = tidewire::serve(&format!("tcp://{free}"), |cx, message| {
    /// #     cx.reply(message.payload)
    /// # }) else { return Ok(()) };
    /// // The server starts, and the next request finds it.
    /// assert_eq!(backend.request(b"anybody?").wait()?.payload(), b"anybody?");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ConnectError::Address`] if the text is no address. [`ConnectError::Start`] if the address does not allow
    /// layers or the client's own lane cannot start.
    pub fn connect_lazy(self, address: &str) -> Result<Client, ConnectError> {
        self.start(address, true)
    }

    fn start(mut self, address: &str, is_lazy: bool) -> Result<Client, ConnectError> {
        let address: Address = address.parse()?;
        self.codec = address.codec().unwrap_or(self.codec);
        self.codec = framed(&address, self.codec)?;
        self.start_to(Target::of(address)?, is_lazy)
    }

    pub(super) fn start_to(
        mut self,
        target: Target,
        is_lazy: bool,
    ) -> Result<Client, ConnectError> {
        let address = target.address();
        // The program's layers may belong to this server, so a client with layers does not follow.
        let may_move =
            self.layers.is_none() && address.is_stream_socket() && address.host().is_some();
        let tls = address.is_tls().then(|| ClientConfigs::load(&self.tls));
        let tls = tls.transpose().map_err(ServeError::from)?;
        let mover = (self.follow_moves && may_move).then(|| Mover {
            tls: tls.clone(),
            codec: self.codec.clone(),
        });
        let connector = Connector::to(address, tls.as_ref()).map_err(ServeError::from)?;
        let layers = Layers::to(address, connector.as_ref(), &self.codec, self.layers.take());
        if layers.is_some() && !address.is_stream_socket() {
            let address = address.clone();
            return Err(ServeError::Layers { address }.into());
        }
        let is_udp = address.is_udp();
        limit_frames(&[is_udp], &mut self.limits);
        if is_udp {
            self.codec = self.codec.for_datagrams();
        }
        let is_single = is_udp && self.codec.format().fills_datagrams();
        let ids = self.codec.format().ids;
        let table = RequestTable::new(self.limits.queue_bytes_max(), is_single);
        let link = Arc::new(Link::new(table, self.event_bounds));
        let codec = self.codec;
        let follows_moves = mover.is_some();
        let (backoff, timeout) = (
            self.backoff.unwrap_or_default(),
            self.limits.handshake_timeout(),
        );
        let dialer = Dialer::new(target, self.credentials, tls, backoff, timeout);
        let dialing = Dialing::new(dialer, mover, self.wait_for_server, is_lazy);
        let (pending_max, reconnects) = (self.pending_max, self.backoff.is_some());
        let service = ClientService::new(Arc::clone(&link), dialing, ids, pending_max, reconnects);
        let limits = Limits {
            connections: self.limits,
            ..Limits::default()
        };
        let agent = concat!("tidewire/", env!("CARGO_PKG_VERSION"));
        let lane = Server::builder()
            .codec(codec.clone())
            .poller(self.poller)
            .limits(limits)
            .socket_options(self.sockets)
            .agent(agent)
            .for_client(
                Arc::clone(link.lane().tasks()),
                layers,
                self.spin_us,
                self.allow_plaintext_credentials,
                follows_moves,
            )
            .start_one(service)?;
        link.set_lane(&lane);
        Ok(Client {
            inner: Arc::new(Inner {
                link,
                codec,
                matches_replies: !is_udp || ids != RequestIds::None,
                request_timeout_ns: nanoseconds(self.request_timeout),
                close_timeout: self.close_timeout,
                linger: self.linger,
                when_window_full: self.when_window_full,
                coarse_tick_ns: coarse_tick_ns(),
                lane,
            }),
        })
    }
}
