//! Requests that are answered by futures, on an executor of the application.
//!
//! A lane polls no futures. Each request becomes a future that owns its payload and the token of its answer, and goes
//! to the executor of the application. The answer comes back through the lane's mailbox, like every deferred answer.
//! So this library needs no runtime, and a runtime's threads need not know of lanes.
//!
//! Rejected: an executor in the lane, because its timers and sockets would not work with the libraries that
//! applications await. Rejected: a trait with async methods, because `&mut self` cannot be borrowed across an await
//! while other requests need it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use tidewire_io::clock::now_ns;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;
use tidewire_proto::message::Message;

use super::error::LoggedError;
use super::{Context, Deferred, HandlerError, HandlerResult, Service};
use crate::observe::QuietLog;
use crate::session::SessionId;

/// A future for an executor. It yields nothing, because the answer is sent from within.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A service that answers every request with a future, on any executor. `spawn` gets each future and must ensure that
/// it is polled to its end.
///
/// All clones together have at most [`Self::in_flight_max`] requests in flight. Further requests are refused with
/// [`ErrorCode::LimitReached`]. A future that panics, or is dropped before its end, answers with
/// [`ErrorCode::Internal`]. A future whose caller has cancelled or disconnected is dropped when the executor polls it
/// next. With a codec that has ids, answers are sent in the order in which futures end; otherwise in the order of the
/// requests. One-way messages are refused, except with codecs whose messages have no kinds, where each one is
/// answered.
///
/// A handler that returns an error answers with its code and text; see [`HandlerError`]. `?` works on every error.
/// The details of foreign errors are not sent to the peer: they are logged and counted in [`Self::failures`].
///
/// A service that also has other methods holds one of these and calls its `on_request`. The example `async_handlers`
/// uses tokio. Here a thread for each request is the executor:
///
/// ```
/// use tidewire::{AsyncRequest, AsyncService, Client, HandlerError, Server};
/// # use tidewire_testkit::block_on;
///
/// async fn shout(request: AsyncRequest) -> Result<Vec<u8>, HandlerError> {
///     let text = String::from_utf8(request.into_payload())?;
///     Ok(text.to_uppercase().into_bytes())
/// }
///
/// let service = AsyncService::new(|task| drop(std::thread::spawn(|| block_on(task))), shout);
/// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(service.clone())?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"HELLO");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AsyncService<Spawn, Handler> {
    spawn: Spawn,
    handler: Handler,
    in_flight_max: usize,
    ledger: Arc<Ledger>,
}

/// A request, with everything that its future needs. [`AsyncService`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncRequest {
    /// The session that asks.
    pub session: SessionId,
    /// The name of the method; empty if there is none.
    pub name: String,
    /// The alias of the method, or 0.
    pub channel: u16,
    /// The payload.
    pub payload: Vec<u8>,
}

/// The counters that all clones of a service share.
#[derive(Debug, Default)]
struct Ledger {
    in_flight: AtomicUsize,
    failures: AtomicU64,
    log: Mutex<QuietLog>,
}

/// One request in flight. Dropping it reduces the count, on any thread.
struct InFlight(Arc<Ledger>);

impl AsyncRequest {
    /// Returns the payload, for a handler that needs nothing else.
    #[must_use]
    pub fn into_payload(self) -> Vec<u8> {
        self.payload
    }
}

impl<Spawn, Handler> AsyncService<Spawn, Handler> {
    /// Creates a service. `handler` makes a future of each request, and `spawn` runs it. Both are called on the
    /// lane's thread and must not block. With tokio, `spawn` is `move |task| drop(handle.spawn(task))`, where
    /// `handle` is the handle of a runtime.
    #[must_use]
    pub fn new(spawn: Spawn, handler: Handler) -> Self {
        Self {
            spawn,
            handler,
            in_flight_max: IN_FLIGHT_MAX,
            ledger: Arc::default(),
        }
    }

    /// Sets how many requests may be in flight at once. Default 1,024.
    #[must_use]
    pub fn in_flight_max(mut self, requests: usize) -> Self {
        self.in_flight_max = requests;
        self
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ledger.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the number of requests whose handlers failed with an error whose details were not sent to the peer.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.ledger.failures.load(Ordering::Relaxed)
    }
}

impl<Spawn, Handler, Answer, Bytes> Service for AsyncService<Spawn, Handler>
where
    Spawn: FnMut(Task) + Send + 'static,
    Handler: FnMut(AsyncRequest) -> Answer + Send + 'static,
    Answer: Future<Output = Result<Bytes, HandlerError>> + Send + 'static,
    Bytes: AsRef<[u8]> + Send + 'static,
{
    fn on_request(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let Some(in_flight) = self.ledger.enter(self.in_flight_max) else {
            return Err(HandlerError::new(ErrorCode::LimitReached, TOO_MANY));
        };
        let future = (self.handler)(AsyncRequest {
            session: cx.id(),
            name: message.name.to_owned(),
            channel: message.channel,
            payload: message.payload.to_vec(),
        });
        (self.spawn)(Box::pin(answer(cx.defer(), future, in_flight)));
        Ok(())
    }

    fn on_one_way(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if cx.codec().format().has_ids() {
            return Err(HandlerError::new(ErrorCode::Unsupported, NO_ONE_WAY));
        }
        self.on_request(cx, message)
    }
}

async fn answer<Bytes: AsRef<[u8]>>(
    deferred: Deferred,
    future: impl Future<Output = Result<Bytes, HandlerError>>,
    in_flight: InFlight,
) {
    let session = deferred.session();
    let mut future = pin!(future);
    let until_cancelled = poll_fn(|cx| {
        if deferred.is_cancelled() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    });
    match until_cancelled.await {
        Some(Ok(bytes)) => {
            if let Err(error) = deferred.reply(bytes.as_ref()) {
                tracing::debug!(%session, %error, "cannot send an answer");
            }
        }
        Some(Err(error)) => {
            in_flight.0.note_failure(session, &error);
            deferred.refuse(error.code(), error.text());
        }
        None => drop(deferred),
    }
}

impl Ledger {
    fn enter(self: &Arc<Self>, in_flight_max: usize) -> Option<InFlight> {
        let entered = InFlight(Arc::clone(self));
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        (before < in_flight_max).then_some(entered)
    }

    fn note_failure(&self, session: SessionId, error: &HandlerError) {
        let Some(cause) = error.cause() else { return };
        self.failures.fetch_add(1, Ordering::Relaxed);
        let cause = LoggedError(cause);
        // A panic in the log leaves the earlier entries intact.
        let log = self.log.lock();
        let may_log = log
            .unwrap_or_else(PoisonError::into_inner)
            .may_log(now_ns());
        match may_log {
            Some(unlogged) => {
                tracing::warn!(%session, unlogged, "an async handler failed: {cause}");
            }
            None => tracing::debug!(%session, "an async handler failed: {cause}"),
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<Spawn, Handler> fmt::Debug for AsyncService<Spawn, Handler> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AsyncService")
            .field("in_flight", &self.in_flight())
            .field("in_flight_max", &self.in_flight_max)
            .finish_non_exhaustive()
    }
}

/// The default of deferred requests per session, so that a single busy client can use all of them.
const IN_FLIGHT_MAX: usize = 1_024;

const TOO_MANY: &str = "too many requests are under way; try again later";

const NO_ONE_WAY: &str = "this service takes requests only";
