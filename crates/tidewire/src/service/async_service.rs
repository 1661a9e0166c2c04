//! Requests answered by futures, on an executor of the user's.
//!
//! A lane polls no futures: each request becomes one that owns what it needs and the duty to answer, and goes to whatever
//! executor the user has. The answer comes back by the lane's mailbox, as every deferred one. So this library needs no
//! runtime, and a runtime's threads need not know of lanes.
//!
//! Rejected: an executor in the lane (its timers and sockets would be of another kind than those of the libraries that
//! people await), and a trait with async methods (`&mut self` cannot be borrowed across an await that another request
//! must not wait for).

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

use super::error::Described;
use super::{Context, Deferred, HandlerError, HandlerResult, Service};
use crate::observe::QuietLog;
use crate::session::SessionId;

/// A future for an executor. It yields nothing: the answer goes its own way. [`AsyncService`] has an example.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A service that answers every request with a future, on any executor: `spawn` is given each future and must see that it is
/// polled to its end.
///
/// At most [`Self::in_flight_max`] requests are under way, of all clones together; those above are refused with
/// [`ErrorCode::LimitReached`]. A future that is dropped before its end, or panics, answers with [`ErrorCode::Internal`]. One
/// whose caller has cancelled, or is gone, is dropped when the executor polls it next. Answers go back in the order in which
/// futures end, where the codec has ids, and in the order of the requests elsewhere. One-way messages are refused, but for
/// codecs whose messages have no kinds, where each is answered.
///
/// A handler that returns an error answers with its code and text, see [`HandlerError`]: `?` works on every error, and
/// details of foreign ones are logged and counted ([`Self::failures`]) instead of told.
///
/// A service with other methods, too, holds one of these and calls its `on_request`. The example `async_handlers` uses tokio;
/// here a thread for each request is the executor:
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
/// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| service.clone())?;
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

/// A request with all that its future needs. [`AsyncService`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncRequest {
    /// The session that asks.
    pub session: SessionId,
    /// The name of the method, or nothing.
    pub name: String,
    /// The alias of the method, or 0.
    pub channel: u16,
    /// The rest of the message.
    pub payload: Vec<u8>,
}

/// What all clones of a service count.
#[derive(Debug, Default)]
struct Ledger {
    in_flight: AtomicUsize,
    failures: AtomicU64,
    log: Mutex<QuietLog>,
}

/// One request under way. Counts itself out when it is dropped, wherever that is.
struct InFlight(Arc<Ledger>);

impl AsyncRequest {
    /// The payload, for a handler that needs nothing else.
    #[must_use]
    pub fn into_payload(self) -> Vec<u8> {
        self.payload
    }
}

impl<Spawn, Handler> AsyncService<Spawn, Handler> {
    /// A service that has `handler` make a future of each request, and `spawn` run it. Both are called on the lane's thread
    /// and must not block. With tokio `spawn` is `move |task| drop(handle.spawn(task))`, with the handle of a runtime.
    #[must_use]
    pub fn new(spawn: Spawn, handler: Handler) -> Self {
        Self {
            spawn,
            handler,
            in_flight_max: IN_FLIGHT_MAX,
            ledger: Arc::default(),
        }
    }

    /// How many requests may be under way at once. Default 1,024.
    #[must_use]
    pub fn in_flight_max(mut self, requests: usize) -> Self {
        self.in_flight_max = requests;
        self
    }

    /// Requests under way now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ledger.in_flight.load(Ordering::Relaxed)
    }

    /// Requests whose handlers failed with an error that the peer was told no details of.
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
            session: cx.session(),
            name: message.name.to_owned(),
            channel: message.channel,
            payload: message.payload.to_vec(),
        });
        (self.spawn)(Box::pin(answer(cx.defer(), future, in_flight)));
        Ok(())
    }

    fn on_one_way(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if cx.codec().has_ids() {
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
        let cause = Described(cause);
        // A log that panicked has kept what it had.
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

/// As many as one session may have deferred by default, so that a single busy client can use all of them.
const IN_FLIGHT_MAX: usize = 1_024;

const TOO_MANY: &str = "too many requests are under way; try again later";

const NO_ONE_WAY: &str = "this service takes requests only";
