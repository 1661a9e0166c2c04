//! Upstreams: other servers that handlers send requests to.
//!
//! Problem: a gateway answers most requests by asking another server, and must not block its lane meanwhile.
//! Approach: each lane has its own connection to an upstream, opened by its first request. So a request and its
//! answer stay on one thread and need no lock. A table matches requests and answers as the codec does, with
//! deadlines.
//!
//! - **While a connection is made**, requests wait for it, at most until their deadline.
//! - **While the upstream is down**, from a failed attempt until the next one is allowed, requests fail at once:
//!   waiting for an upstream that is known to be down would only fill tables. The first request after the pause makes
//!   the next attempt.
//! - **When the connection ends**, requests that were sent fail, because their effect is unknown.
//! - **Names, credentials and files of TLS** are looked up on a thread of their own, while requests wait as for a
//!   connection.
//! - **Attempts** are those of [`dial`](crate::dial): a client has the same dialer.
//! - **When the session that asked ends**, its requests are dropped, and the upstream gets a cancel if the codec has
//!   one.
//!
//! Rejected: a client with its own lane for each upstream, because its answers cross threads twice. Rejected: repeating
//! requests on the next connection, because only the caller can decide that. Rejected: a codec for each upstream. A
//! lane frames, reads, limits and traces all sessions with one codec, in some thirty places, and its frame templates
//! are of that codec. A choice for each session would slow every message down. If codecs differ, bytes must be
//! rewritten anyway, and a client beside the server does that for two thread crossings.

mod ask;
mod link;
mod nodes;
mod table;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::error::EncodeError;
use tidewire_proto::text::escaped;

pub(crate) use table::{
    UpstreamSessions, end_idle_upstreams, forget_asker, handle_node_answer, handle_upstream_end,
    handle_upstream_found, handle_upstream_timer, run_answers,
};

use link::Then;

use crate::address::{Address, AddressError};
use crate::auth::Credentials;
use crate::dial::Target;
use crate::session::{CloseReason, SessionId};
use crate::tls::{ClientConfigs, ClientTls, Connector, TlsError};

/// Another server that handlers send requests to, by [`Context::request`](crate::Context::request) and
/// [`Context::forward`](crate::Context::forward). It must speak the codec of this server, because a lane has one
/// codec for all its connections. An [`AsyncService`](crate::AsyncService) can ask a server with another codec
/// through its own client: see below.
///
/// The first request of a lane opens its connection. A clone is the same upstream, and every lane that uses it has
/// its own connection.
///
/// ```
/// use tidewire::upstream::Upstream;
/// use tidewire::{Client, Context, Message, Server};
///
/// let backend = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
/// let upstream = Upstream::new(&backend.to_string())?;
/// let gateway = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(move |cx: &mut Context<'_>, message: Message<'_>| cx.forward(&upstream, &message))?;
///
/// let client = Client::connect(&gateway.to_string()).wait()?;
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A server for line clients, in front of a server that speaks `tw1`:
///
/// ```
/// use std::sync::Arc;
/// use tidewire::{AnyCodec, AsyncRequest, AsyncService, Client, Context, HandlerError, Message, Server};
/// # use tidewire_testkit::block_on;
///
/// let backend = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
/// let upstream = Arc::new(Client::builder().connect_lazy(&backend.to_string())?);
/// let ask = move |request: AsyncRequest| {
///     let upstream = Arc::clone(&upstream);
///     async move {
///         let reply = upstream.request(&request.payload).send().await?;
///         Ok::<_, HandlerError>(reply.payload().to_vec())
///     }
/// };
/// // A runtime would poll these futures; here each has a thread.
/// let service = AsyncService::new(|task| drop(std::thread::spawn(|| block_on(task))), ask);
/// let lines = AnyCodec::by_name("lines")?;
/// let server = Server::builder()
///     .codec(lines.clone())
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(service.clone())?;
///
/// let client = Client::builder().codec(lines).connect(&server.to_string()).wait()?;
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Upstream(Arc<Shared>);

/// The state that the clones of an upstream share.
struct Shared {
    /// The identity of the upstream; two upstreams may have the same address.
    number: u64,
    /// `None` for the other nodes of the cluster.
    target: Option<Target>,
    terms: Terms,
}

#[derive(Clone)]
struct Terms {
    timeout: Duration,
    in_flight_max: usize,
    pause_max: Duration,
    /// Makes the layers of TLS. `None` without TLS, and where the authorities of the system cannot be read.
    tls: Option<Connector>,
    credentials: Option<Credentials>,
}

/// The reason why an upstream did not answer a request. As a [`HandlerError`](crate::HandlerError) it has the
/// upstream's own code and text if the upstream refused; otherwise [`ErrorCode::LimitReached`],
/// [`ErrorCode::Draining`], [`ErrorCode::MethodNotFound`] or [`ErrorCode::Internal`], and a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The upstream refused the request. The code says whether a retry makes sense.
    #[error("{}", escaped(text.as_bytes()))]
    Refused {
        /// The code, for programs.
        code: ErrorCode,
        /// The text, for people.
        text: String,
    },
    /// No answer came within the [timeout](Upstream::timeout). The request may have had its effect.
    #[error("the upstream did not answer in time")]
    TimedOut,
    /// The connection ended before the answer came. The request may have had its effect.
    #[error("the connection to the upstream ended before the answer: {0}")]
    Closed(CloseReason),
    /// The upstream cannot be reached, and the next attempt is not due yet. Nothing was sent.
    #[error("the upstream is down; try again later")]
    Down,
    /// This lane already has [as many](Upstream::in_flight_max) pending requests as allowed, or more than
    /// [`ConnectionLimits::queue_bytes_max`](crate::limits::ConnectionLimits::queue_bytes_max) bytes wait to be sent.
    /// Nothing was sent.
    #[error("too many requests wait for the upstream; try again later")]
    TooMany,
    /// The codec cannot express the request. Nothing was sent.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// This server is shutting down. Nothing was sent.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// No other node of the cluster has this method, or the server has no backplane. Nobody got the request. See
    /// [`Upstream::nodes`].
    #[error("no node has this method")]
    NoNode,
    /// The node that worked on the request has died. The request may have had its effect.
    #[error("the node that worked on the request is gone")]
    NodeGone,
    /// This node is cut off from the others. Nothing was sent.
    #[error("this server is cut off from the other nodes; try again later")]
    CutOff,
}

impl Upstream {
    /// Creates an upstream at this address, with the default settings. A `tls://` or `wss://` address reads the
    /// authorities of the system, so call it where the service is made and not in a handler.
    ///
    /// The host's name is looked up for the first request, and again after an attempt has failed with each of its
    /// addresses. The addresses are tried as a [client](crate::ClientBuilder::connect) tries them.
    ///
    /// # Errors
    /// See [`AddressError`]. Whether a server listens there is known only after the first request.
    pub fn new(address: &str) -> Result<Self, AddressError> {
        let address: Address = address.parse()?;
        if address.is_udp() {
            return Err(AddressError::Datagrams);
        }
        if address.codec().is_some() || address.framing().is_some() {
            let parameters = address.parameters().to_string();
            return Err(AddressError::UpstreamCodec { parameters });
        }
        let terms = Terms::new(
            connector(&address, &ClientTls::new()).unwrap_or_else(|error| {
                // A CA file may follow.
                tracing::debug!(%error, "no authorities of the system for an upstream");
                None
            }),
        );
        Ok(Self(Arc::new(Shared {
            number: next_number(),
            target: Some(Target::of(address)?),
            terms,
        })))
    }

    /// Creates an upstream that stands for the other nodes of this server's cluster. A request goes to one of the nodes
    /// that have its method among their [services](crate::backplane::NodeSettings::services), and its answer comes from
    /// there. It ends in an error if no node has the method, if the node that works on it dies, and at its
    /// [timeout](Upstream::timeout) in any case. No request is repeated, and a request of another node is not passed on
    /// to a third one.
    ///
    /// ```
    /// use tidewire::backplane::NodeSettings;
    /// use tidewire::upstream::Upstream;
    /// use tidewire::{Client, Router, Server};
    /// # let engine = tidewire_testkit::backplane::InprocEngine::default();
    /// # use tidewire_testkit::backplane::Engine;
    ///
    /// let mut worker = NodeSettings::new("worker-1")?;
    /// worker.services = vec!["upper".into()];
    /// let worker = Server::builder().backplane(engine.backplane(), worker).start_one(
    ///     Router::new().on("upper", |cx, message| cx.reply(&message.payload.to_ascii_uppercase()))
    /// )?;
    ///
    /// let nodes = Upstream::nodes();
    /// let front = Server::builder()
    ///     .listen("tcp://127.0.0.1:0")?
    ///     .backplane(engine.backplane(), NodeSettings::new("front-1")?)
    ///     .start_one(Router::new().otherwise(move |cx, message| cx.forward(&nodes, &message)))?;
    ///
    /// let client = Client::connect(&front.to_string()).wait()?;
    /// assert_eq!(client.request(b"hello").method("upper").wait()?.payload(), b"HELLO");
    /// assert!(client.request(b"hello").method("lower").wait().is_err());
    /// # drop(worker);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn nodes() -> Self {
        Self(Arc::new(Shared {
            number: next_number(),
            target: None,
            terms: Terms::new(None),
        }))
    }

    /// Sets the longest time of a request, including the wait for the connection. Default 5 s, with a precision of
    /// about 10 ms.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|terms| terms.timeout = timeout)
    }

    /// Sets how many requests may be pending on each lane. Default 1,024, and at least 1. A codec with 8-bit ids has
    /// at most 255 requests in flight; the others wait to be sent.
    #[must_use]
    pub fn in_flight_max(self, requests: usize) -> Self {
        self.with(|terms| terms.in_flight_max = requests.max(1))
    }

    /// Sets the longest pause between two attempts to connect. The first pause is 100 ms, or this value if it is
    /// shorter. Each further pause is twice as long, with a random part of up to a half. Default 5 s.
    #[must_use]
    pub fn pause_max(self, pause: Duration) -> Self {
        self.with(|terms| terms.pause_max = pause)
    }

    /// Sets whom to trust at a `tls://` address, and which certificate to show. Default: the authorities of the system,
    /// and none. It reads files, so call it where the service is made and not in a handler.
    ///
    /// ```no_run
    /// use tidewire::auth::{Credentials, Token};
    /// use tidewire::tls::ClientTls;
    /// use tidewire::upstream::Upstream;
    ///
    /// let upstream = Upstream::new("tls://backend.example.com:8443")?
    ///     .tls(ClientTls::new().only_ca("ca.pem"))?
    ///     .credentials(Credentials::provider(|| Ok(Token::new(&std::fs::read_to_string("token")?)?)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`TlsError`].
    #[expect(
        clippy::needless_pass_by_value,
        reason = "settings are passed as to a client"
    )]
    pub fn tls(self, settings: ClientTls) -> Result<Self, TlsError> {
        let target = self.0.target.as_ref();
        let connector = target.map(|target| connector(target.address(), &settings));
        let connector = connector.transpose()?.flatten();
        Ok(self.with(|terms| terms.tls = connector))
    }

    /// Sets the credentials by which the upstream knows this server: a [`Token`](crate::auth::Token), or a
    /// [provider](Credentials::provider) of tokens. A provider is asked for each connection, on a thread of its own.
    /// When the credentials of a connection expire, the upstream ends it, and the next request makes another one. Only
    /// `tw1` has a place for them. They go to another machine only over `tls://`, unless the server has
    /// [`allow_plaintext_credentials`](crate::ServerBuilder::allow_plaintext_credentials).
    #[must_use]
    pub fn credentials(self, credentials: impl Into<Credentials>) -> Self {
        self.with(|terms| terms.credentials = Some(credentials.into()))
    }

    /// Returns the upstream with other settings. Existing clones keep the old settings, and are then another
    /// upstream.
    fn with(self, change: impl FnOnce(&mut Terms)) -> Self {
        let mut target = Arc::unwrap_or_clone(self.0);
        change(&mut target.terms);
        Self(Arc::new(target))
    }
}

impl Terms {
    fn new(tls: Option<Connector>) -> Self {
        Self {
            timeout: TIMEOUT,
            in_flight_max: IN_FLIGHT_MAX,
            pause_max: PAUSE_MAX,
            tls,
            credentials: None,
        }
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Some(target) => target.address().fmt(formatter),
            None => formatter.write_str("other nodes"),
        }
    }
}

impl Clone for Shared {
    /// Creates another upstream at the same address.
    fn clone(&self) -> Self {
        Self {
            number: next_number(),
            target: self.target.clone(),
            terms: self.terms.clone(),
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Upstream")
            .field("address", &self.0.to_string())
            .field("timeout", &self.0.terms.timeout)
            .field("in_flight_max", &self.0.terms.in_flight_max)
            .finish_non_exhaustive()
    }
}

impl UpstreamError {
    /// Calls `tell` with the code and the text for the caller of the request.
    pub(super) fn with_words<T>(&self, tell: impl FnOnce(ErrorCode, &str) -> T) -> T {
        match self {
            Self::Refused { code, text } => tell(*code, text),
            Self::TooMany => tell(ErrorCode::LimitReached, &self.to_string()),
            Self::ShuttingDown => tell(ErrorCode::Draining, &self.to_string()),
            Self::NoNode => tell(ErrorCode::MethodNotFound, &self.to_string()),
            _ => tell(ErrorCode::Internal, &self.to_string()),
        }
    }
}

/// Makes the layers of TLS for this address, if it asks for TLS. The codec's name is not known yet.
fn connector(address: &Address, settings: &ClientTls) -> Result<Option<Connector>, TlsError> {
    let configs = address.is_tls().then(|| ClientConfigs::load(settings));
    Connector::to(address, configs.transpose()?.as_ref())
}

fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Default timeout of a request: longer than a healthy server needs, and shorter than a person waits.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Default of pending requests of one lane. At 1 ms each they make a million requests a second.
const IN_FLIGHT_MAX: usize = 1024;

/// Shortest and longest pause between attempts to connect.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A request, sent or still waiting.
#[derive(Debug)]
struct UpstreamRequest {
    asker: SessionId,
    channel: u16,
    deadline_ns: u64,
    then: Then,
}

#[cfg(test)]
mod tests;
