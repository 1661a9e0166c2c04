//! A client for programs that are not lanes: threads, scripts, async tasks.
//!
//! The connection lives on a lane of its own. Calls hand it a command through a bounded queue and wake it only
//! if it sleeps; answers come back in blocks, a turn's at once, as futures that need no particular executor, each with a
//! blocking twin.

mod backoff;
mod call;
mod completions;
mod error;
mod event_queue;
mod events;
mod link;
mod listening;
mod pending;
mod reading;
pub(crate) mod reply;
mod request;
mod request_index;
mod service;
mod slots;
mod submissions;
mod subscription;
mod sync;
mod table;

use std::sync::Arc;
use std::time::Duration;

use tidewire_io::clock::{coarse_tick_ns, now_ns};
use tidewire_io::poller::PollerChoice;
use tidewire_io::socket::SocketOptions;
use tidewire_proto::body::{JoinBody, JoinedBody, RoomCall, Roster};
use tidewire_proto::codec::{AnyCodec, Codec, RequestIds, Tw1};
use tidewire_proto::layer::Layer;
use tidewire_proto::message::{Kind, MemberId, Message};

pub use backoff::Backoff;
pub use call::Call;
pub(crate) use call::Payload;
pub use error::{ConnectError, RequestError};
use event_queue::EventBounds;
pub use event_queue::WhenEventsFull;
pub use events::{Event, OwnedMessage};
pub use reply::Reply;
pub use request::Request;
pub use submissions::WhenWindowFull;
pub use subscription::{Subscription, TopicEvent, TopicMessage};

use crate::address::{Address, Endpoint};
use crate::limits::{Limits, nanoseconds};
use crate::mailbox::HandOverError;
use crate::observe::Metrics;
use crate::room::Joined;
use crate::server::{ServeError, Server, adapt, frame};
use crate::session::encode_within;
use crate::transport::{LayerFactory, Layers};
use link::Link;
use service::ClientService;
use table::RequestTable;

/// A connection to a server, shared by as many threads and tasks as you like.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: Arc<Link>,
    codec: AnyCodec,
    /// Replies find their requests, whatever gets lost.
    matches_replies: bool,
    request_timeout: Duration,
    close_timeout: Duration,
    when_window_full: WhenWindowFull,
    /// How far the coarse clock may be behind.
    coarse_tick_ns: u64,
    /// Dropped last: it joins the lane's thread.
    lane: Server,
}

/// Everything about a client before it connects.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    codec: AnyCodec,
    poller: PollerChoice,
    limits: Limits,
    request_timeout: Duration,
    close_timeout: Duration,
    pending_max: usize,
    when_window_full: WhenWindowFull,
    event_bounds: EventBounds,
    backoff: Option<Backoff>,
    wait_for_server: bool,
    sockets: SocketOptions,
    spin_us: Option<u32>,
    layers: Option<LayerFactory>,
}

impl Client {
    /// Connects with the native protocol and the default limits, and blocks until the connection is open.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(address: &str) -> Result<Self, ConnectError> {
        Self::builder().connect(address)
    }

    /// A client to configure.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Sends a request; the reply is awaited or waited for.
    #[inline]
    pub fn request(&self, payload: &[u8]) -> Request {
        self.call(Kind::Request, 0, payload)
    }

    /// Sends a request and blocks until its reply.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn request_blocking(&self, payload: &[u8]) -> Result<Reply, RequestError> {
        self.request(payload).wait()
    }

    /// Calls the method of this name; the reply is awaited or waited for. Codecs without names refuse it.
    pub fn call_method(&self, name: &str, payload: &[u8]) -> Request {
        self.prepare(payload).method(name).send()
    }

    /// A request with choices of its own: method, channel, deadline, repetition, what a full window does.
    pub fn prepare<'a>(&'a self, payload: &'a [u8]) -> Call<'a> {
        Call::new(self, Kind::Request, Payload::Borrowed(payload))
    }

    /// Sends any kind of frame that is answered, on a channel.
    #[inline]
    pub fn call(&self, kind: Kind, channel: u16, payload: &[u8]) -> Request {
        Call::new(self, kind, Payload::Borrowed(payload))
            .channel(channel)
            .send()
    }

    /// Sends a message that nobody answers: a copy, and no system call while the lane is awake. It is written at the end
    /// of the lane's turn, with its neighbours.
    ///
    /// # Errors
    /// See [`HandOverError`]; with `Ok` it is on its way to the socket. If the connection is down by then, an
    /// [`Event::Lost`] says so.
    pub fn try_send(&self, payload: &[u8]) -> Result<(), HandOverError> {
        self.try_send_method("", payload)
    }

    /// As [`Client::try_send`], for the method of this name.
    ///
    /// # Errors
    /// As [`Client::try_send`]; codecs without names cannot express it.
    pub fn try_send_method(&self, name: &str, payload: &[u8]) -> Result<(), HandOverError> {
        self.send(&Message::new(Kind::OneWay, 0, payload).with_name(name))
    }

    /// Enters a room under a name and blocks until the server agreed.
    ///
    /// # Errors
    /// The name is empty, malformed or taken (try another), or the request failed.
    pub fn join(&self, room: &str, name: &str) -> Result<Joined, RequestError> {
        let mut body = Vec::new();
        JoinBody { room, name }.encode(&mut body)?;
        let reply = self.call(Kind::Join, 0, &body).wait()?;
        let joined =
            JoinedBody::decode(reply.payload()).map_err(|_| RequestError::MalformedReply)?;
        let members = joined.members as usize;
        Ok(Joined {
            room: reply.channel(),
            member: joined.member,
            members,
            presence: true,
        })
    }

    /// Leaves a room and blocks until the server agreed.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn leave(&self, room: u16) -> Result<(), RequestError> {
        self.call(Kind::Leave, room, &[]).wait().map(drop)
    }

    /// Says something to everyone else in a room.
    ///
    /// # Errors
    /// As [`Client::try_send`].
    pub fn say(&self, room: u16, payload: &[u8]) -> Result<(), HandOverError> {
        self.send(&Message::new(Kind::Say, room, payload))
    }

    /// Lists the members of a room.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn list(&self, room: u16) -> Result<Vec<(MemberId, String)>, RequestError> {
        let mut body = Vec::new();
        RoomCall::List.encode(&mut body)?;
        let reply = self.call(Kind::Request, room, &body).wait()?;
        let roster = Roster::decode(reply.payload()).map_err(|_| RequestError::MalformedReply)?;
        Ok(roster
            .entries()
            .map(|(member, name)| (member, name.to_owned()))
            .collect())
    }

    /// Says something to one member only, and blocks until the server passed it on.
    ///
    /// # Errors
    /// Nobody has that name, or the request failed.
    pub fn whisper(&self, room: u16, to: &str, text: &[u8]) -> Result<(), RequestError> {
        let mut body = Vec::new();
        RoomCall::Whisper { to, text }.encode(&mut body)?;
        self.call(Kind::Request, room, &body).wait().map(drop)
    }

    /// The next event, blocking until there is one.
    #[must_use]
    pub fn next_event(&self) -> Event {
        self.inner.link.events.next(None).unwrap_or(Event::Ended)
    }

    /// The next event, or `None` if none came within `timeout`.
    #[must_use]
    pub fn next_event_within(&self, timeout: Duration) -> Option<Event> {
        self.inner.link.events.next(Some(timeout))
    }

    /// The next event, for async tasks.
    pub async fn event(&self) -> Event {
        self.inner.link.events.next_async().await
    }

    /// The counters of this client's lane.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.inner.lane.metrics()
    }

    /// Writes what is waiting, closes the connection and ends the client, at the latest after
    /// [`ClientBuilder::close_timeout`]: what a server has not taken by then is given up, and [`Event::Lost`] says how many
    /// one-way messages of it had not left the client's queue. It takes no events: those that are left, and [`Event::Ended`]
    /// after them, are for whoever takes events otherwise. Dropping the last clone ends the client at once instead.
    pub fn close(&self) {
        if self.begin_close().is_ok() {
            self.inner.link.events.wait_for_end();
        }
    }

    /// As [`Client::close`], without waiting.
    ///
    /// # Errors
    /// The client has ended already.
    pub fn begin_close(&self) -> Result<(), HandOverError> {
        let timeout_ns = nanoseconds(self.inner.close_timeout);
        self.inner
            .link
            .close_by(now_ns().saturating_add(timeout_ns))
    }

    fn send(&self, message: &Message<'_>) -> Result<(), HandOverError> {
        let Inner { link, codec, .. } = &*self.inner;
        let limit = link.table.frame_bytes_max();
        link.table
            .send(|out| encode_within(limit, out, |out| codec.encode(message, out)))
    }
}

impl Drop for Inner {
    /// Some thread may keep a reference to the link beyond this.
    fn drop(&mut self) {
        self.link.events.discard();
        request::drop_shares(&self.link);
    }
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            codec: AnyCodec::Tw1(Tw1),
            poller: PollerChoice::default(),
            limits: Limits::default(),
            request_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(5),
            pending_max: 4096,
            when_window_full: WhenWindowFull::default(),
            event_bounds: EventBounds::default(),
            backoff: None,
            wait_for_server: false,
            sockets: SocketOptions::default(),
            spin_us: None,
            layers: None,
        }
    }
}

impl ClientBuilder {
    /// The codec. Default: the native protocol.
    #[must_use]
    pub fn codec(mut self, codec: AnyCodec) -> Self {
        self.codec = codec;
        self
    }

    /// The poller. Default: the best that works here.
    #[must_use]
    pub fn poller(mut self, choice: PollerChoice) -> Self {
        self.poller = choice;
        self
    }

    /// The limits; `handshake_timeout` bounds the connecting to each address of the server.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How long a request waits for its reply. Default 10 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long [`Client::close`] lets the server take what is waiting. Default 5 s.
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// How many requests may wait for their replies. Default 4,096, or 255 where ids have 8 bits.
    #[must_use]
    pub fn pending_max(mut self, requests: usize) -> Self {
        self.pending_max = requests;
        self
    }

    /// What happens to a request when as many wait for their replies as allowed. Default: it is refused.
    #[must_use]
    pub fn when_window_full(mut self, choice: WhenWindowFull) -> Self {
        self.when_window_full = choice;
        self
    }

    /// Bytes that each queue of events holds for an application that does not take them: payloads, and 128 for each event.
    /// Default 8 MiB. The client's own events have a queue, and each [`Subscription`] has one. A single event is taken
    /// however large it is.
    #[must_use]
    pub fn event_bytes_max(mut self, bytes: usize) -> Self {
        self.event_bounds.bytes_max = bytes;
        self
    }

    /// How many events each queue holds for an application that does not take them. Default 65,536.
    #[must_use]
    pub fn events_max(mut self, events: usize) -> Self {
        self.event_bounds.events_max = events;
        self
    }

    /// What happens when a queue of events reaches one of its bounds. Default: the oldest event is dropped.
    #[must_use]
    pub fn when_events_full(mut self, choice: WhenEventsFull) -> Self {
        self.event_bounds.when_full = choice;
        self
    }

    /// Reconnects by itself after a connection that was open ends. Topics are subscribed to again. Only
    /// requests marked as [idempotent](Call::idempotent) are repeated; rooms are not joined again: an
    /// [`Event::Opened`] says when to.
    #[must_use]
    pub fn reconnect(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Waits for the server of an `inproc://` name that nobody listens on yet, up to
    /// [`Limits::handshake_timeout`], instead of failing at once. With any other address connecting then fails with
    /// [`InprocConnectError::CannotWait`](crate::InprocConnectError::CannotWait).
    #[must_use]
    pub fn wait_for_server(mut self) -> Self {
        self.wait_for_server = true;
        self
    }

    /// Options of the connection's socket.
    #[must_use]
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.sockets = options;
        self
    }

    /// How long the client's lane looks for work before it sleeps; see
    /// [`ServerBuilder::spin_us`](crate::ServerBuilder::spin_us).
    #[must_use]
    pub fn spin_us(mut self, microseconds: u32) -> Self {
        self.spin_us = Some(microseconds);
        self
    }

    /// Puts layers such as TLS between the socket and the codec. `make` is called for every connection with the address of the
    /// server, host name included, as it was given; it returns the layers, of which the first is next to the network.
    #[must_use]
    pub fn layers(
        mut self,
        make: impl Fn(&Address) -> Vec<Box<dyn Layer>> + Send + Sync + 'static,
    ) -> Self {
        self.layers = Some(LayerFactory::new(make));
        self
    }

    /// Connects, and blocks until the connection is open. Of the addresses of a host name, each is tried in turn until
    /// one answers.
    ///
    /// # Errors
    /// See [`ConnectError`]; of several addresses that fail, the last one's. The first attempt is never repeated.
    pub fn connect(mut self, address: &str) -> Result<Client, ConnectError> {
        let address: Address = address.parse()?;
        self.codec = frame(&mut [address.clone()], self.codec)?;
        let layers = self.layers.take();
        let layers = layers.and_then(|factory| factory.layers(&address));
        let endpoints = address.resolve_all()?;
        let is_socket = |endpoint: &Endpoint| matches!(endpoint, Endpoint::Socket(_));
        if layers.is_some() && !endpoints.iter().all(is_socket) {
            return Err(ServeError::Layers { address }.into());
        }
        self.connect_to(endpoints, layers)
    }

    /// Connects to the first of these that answers.
    fn connect_to(
        mut self,
        endpoints: Vec<Endpoint>,
        layers: Option<Layers>,
    ) -> Result<Client, ConnectError> {
        let is_udp: Vec<bool> = endpoints.iter().map(Endpoint::is_udp).collect();
        self.codec = adapt(&is_udp, self.codec, &mut self.limits)?;
        let is_single = is_udp.contains(&true) && self.codec.fills_datagrams();
        let ids = self.codec.ids();
        let matches_replies = !is_udp.contains(&true) || ids != RequestIds::None;
        let table = RequestTable::new(self.limits.queue_bytes_max, is_single);
        let link = Arc::new(Link::new(table, self.event_bounds));
        let codec = self.codec;
        let service = ClientService::new(
            Arc::clone(&link),
            endpoints,
            self.wait_for_server,
            self.backoff,
            ids,
            self.pending_max,
        );
        let mut service = Some(service);
        let agent = concat!("tidewire/", env!("CARGO_PKG_VERSION"));
        let lane = Server::builder()
            .codec(codec.clone())
            .poller(self.poller)
            .limits(self.limits)
            .socket_options(self.sockets)
            .spin_as(self.spin_us)
            .outgoing_layers(layers)
            .agent(agent)
            .start_one(|| service.take())?;
        link.set_doorbell(&lane.doorbell(0));
        link.wait_first()?;
        let request_timeout = self.request_timeout;
        Ok(Client {
            inner: Arc::new(Inner {
                link,
                codec,
                matches_replies,
                request_timeout,
                close_timeout: self.close_timeout,
                when_window_full: self.when_window_full,
                coarse_tick_ns: coarse_tick_ns(),
                lane,
            }),
        })
    }
}
