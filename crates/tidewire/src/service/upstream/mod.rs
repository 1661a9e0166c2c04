//! Other servers that handlers ask.
//!
//! Problem: a gateway answers most requests by asking somebody else, and must not block its lane meanwhile. Approach: each
//! lane has a connection of its own to an upstream, made by its first request. So a request and its answer stay on one thread,
//! and need no lock. Requests wait for their answers in a table that matches them as the codec does, with deadlines.
//!
//! - **While a connection is made**, requests wait for it, at most until their deadline.
//! - **While the upstream is down**, which is from a failed attempt until the next one is allowed, requests fail at once:
//!   waiting for what is known to be down would only fill tables. The first request after that pause makes the next attempt.
//! - **When the connection ends**, requests that were sent fail, because nobody knows if they had their effect.
//! - **When the session that asked ends**, its requests are taken back, and the upstream is told if the codec can.
//!
//! Rejected: a client with a lane of its own for each upstream, whose answers cross threads twice; repeating requests
//! on the next connection, which only the asker can decide; and a codec for each upstream. A lane frames, reads, paces and
//! traces all sessions by one codec, in some thirty places, and its frame templates are of that codec: a choice for each
//! session would be paid for by every message. Where codecs differ, bytes must be rewritten anyway, and a client beside the
//! server does that at the price of two thread crossings.

mod ask;
mod link;
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
    UpstreamSessions, end_idle_upstreams, forget_asker, handle_upstream_end, handle_upstream_timer,
    run_answers,
};

use crate::address::{Address, AddressError, Endpoint};
use crate::session::CloseReason;

/// Another server that handlers ask, by [`Context::request`](crate::Context::request) and
/// [`Context::forward`](crate::Context::forward). It speaks the codec of the server that asks, because a lane has one codec for all
/// its connections. An [`AsyncService`](crate::AsyncService) can ask a server with another codec, by a client of its own: see below.
///
/// Nothing is connected before the first request of a lane. A clone is the same upstream; every lane that uses it has a
/// connection of its own.
///
/// ```
/// use tidewire::{Client, Context, Message, Server, Upstream};
///
/// let backend = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start(|_| |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
/// let upstream = Upstream::new(&backend.to_string())?;
/// let gateway = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| {
///     let upstream = upstream.clone();
///     move |cx: &mut Context<'_>, message: Message<'_>| cx.forward(&upstream, &message)
/// })?;
///
/// let client = Client::connect(&gateway.to_string()).wait()?;
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// People with a line client in front, `tw1` behind:
///
/// ```
/// use std::sync::Arc;
/// use tidewire::{AnyCodec, AsyncRequest, AsyncService, Client, Context, HandlerError, Message, Server};
/// # use tidewire_testkit::block_on;
///
/// let backend = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start(|_| |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
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
///     .start(|_| service.clone())?;
///
/// let client = Client::builder().codec(lines).connect(&server.to_string()).wait()?;
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Upstream(Arc<Target>);

struct Target {
    /// Told apart by this; addresses may be equal.
    number: u64,
    address: Address,
    endpoints: Vec<Endpoint>,
    terms: Terms,
}

#[derive(Clone, Copy, Debug)]
struct Terms {
    timeout: Duration,
    in_flight_max: usize,
    pause_max: Duration,
}

/// A text is no address of an upstream. An error of [`Upstream::new`]; [`Upstream`] has an example.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UpstreamAddressError {
    /// The text is not an address, or its host is unknown.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Datagrams may be lost, and nobody would repeat a request. Use `tcp://`, `ipc://` or `inproc://`.
    #[error("an upstream cannot be asked over udp://; use tcp://, ipc:// or inproc://")]
    Datagrams,
}

/// Why an upstream did not answer a request. As a [`HandlerError`](crate::HandlerError) it is a refusal by the upstream's own code and text, or
/// [`ErrorCode::LimitReached`] or [`ErrorCode::Internal`] with a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The upstream refused the request. Whether to try again depends on the code.
    #[error("{}", escaped(text.as_bytes()))]
    Refused {
        /// Why, for programs.
        code: ErrorCode,
        /// Why, for people.
        text: String,
    },
    /// No answer within the [timeout](Upstream::timeout). The request may have had its effect.
    #[error("the upstream did not answer in time")]
    TimedOut,
    /// The connection ended before the answer. The request may have had its effect.
    #[error("the connection to the upstream ended before the answer: {0}")]
    Closed(CloseReason),
    /// The upstream cannot be reached, and the next attempt is not due yet. Nothing was sent.
    #[error("the upstream is down")]
    Down,
    /// As many requests as [allowed](Upstream::in_flight_max) wait for their answers on this lane, or more bytes than
    /// [`Limits::queue_bytes_max`](crate::Limits::queue_bytes_max) wait to be sent. Nothing was sent.
    #[error("too many requests wait for the upstream")]
    TooMany,
    /// The codec cannot express the request. Nothing was sent.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The server that asks is shutting down. Nothing was sent.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl Upstream {
    /// The upstream at this address, with the default terms. Resolves the host's name, which blocks; do it where the service is
    /// made and not in a handler.
    ///
    /// # Errors
    /// See [`UpstreamAddressError`]. Whether somebody listens there shows with the first request.
    pub fn new(address: &str) -> Result<Self, UpstreamAddressError> {
        let address: Address = address.parse()?;
        if address.is_udp() {
            return Err(UpstreamAddressError::Datagrams);
        }
        let terms = Terms {
            timeout: TIMEOUT,
            in_flight_max: IN_FLIGHT_MAX,
            pause_max: PAUSE_MAX,
        };
        Ok(Self(Arc::new(Target {
            number: next_number(),
            endpoints: address.resolve_all()?,
            address,
            terms,
        })))
    }

    /// How long a request may take, the connection it may wait for included. Default 5 s; exact to some 10 ms.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|terms| terms.timeout = timeout)
    }

    /// How many requests may wait for their answers on each lane. Default 1,024, and at least 1. A codec whose ids have 8 bits
    /// has 255 on their way at once; the others wait to be sent.
    #[must_use]
    pub fn in_flight_max(self, requests: usize) -> Self {
        self.with(|terms| terms.in_flight_max = requests.max(1))
    }

    /// The longest pause between two attempts to connect. The first is 100 ms, or this if it is less, each next one twice as
    /// long, with a random part of up to a half. Default 5 s.
    #[must_use]
    pub fn pause_max(self, pause: Duration) -> Self {
        self.with(|terms| terms.pause_max = pause)
    }

    /// The same upstream on other terms. Whoever has a clone keeps the ones from before, and counts as another upstream.
    fn with(self, change: impl FnOnce(&mut Terms)) -> Self {
        let mut target = Arc::unwrap_or_clone(self.0);
        change(&mut target.terms);
        Self(Arc::new(target))
    }
}

impl Clone for Target {
    /// Another upstream at the same address.
    fn clone(&self) -> Self {
        let (address, endpoints) = (self.address.clone(), self.endpoints.clone());
        Self {
            number: next_number(),
            address,
            endpoints,
            terms: self.terms,
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Upstream")
            .field("address", &self.0.address.to_string())
            .field("terms", &self.0.terms)
            .finish()
    }
}

impl UpstreamError {
    /// What whoever asked for the request is told.
    pub(super) fn with_words<T>(&self, tell: impl FnOnce(ErrorCode, &str) -> T) -> T {
        match self {
            Self::Refused { code, text } => tell(*code, text),
            Self::TooMany => tell(ErrorCode::LimitReached, &self.to_string()),
            Self::ShuttingDown => tell(ErrorCode::Draining, &self.to_string()),
            _ => tell(ErrorCode::Internal, &self.to_string()),
        }
    }
}

fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// How long a request may take: longer than a healthy server needs, shorter than a person waits.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Requests of one lane on their way: at 1 ms each they are a million a second.
const IN_FLIGHT_MAX: usize = 1024;

/// Pauses between attempts to connect.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
