//! A request on its way: a future for any executor, with a blocking twin.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use thiserror::Error;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::error::EncodeError;
use tidewire_proto::topic::TopicError;

use super::HandOverError;
use super::link::Link;
use super::queue::Command;
use crate::session::CloseReason;

/// The answer to a request.
///
/// The memory it is in serves another request once it is dropped.
#[derive(Debug)]
pub struct Reply {
    channel: u16,
    payload: Vec<u8>,
    origin: Option<Origin>,
}

impl Reply {
    /// The channel the answer came on; for a join, the room's alias.
    #[must_use]
    pub fn channel(&self) -> u16 {
        self.channel
    }

    /// What the server answered.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// What the server answered, owned.
    #[must_use]
    pub fn into_payload(mut self) -> Vec<u8> {
        std::mem::take(&mut self.payload)
    }
}

impl Clone for Reply {
    fn clone(&self) -> Self {
        Self {
            channel: self.channel,
            payload: self.payload.clone(),
            origin: None,
        }
    }
}

impl PartialEq for Reply {
    fn eq(&self, other: &Self) -> bool {
        (self.channel, &self.payload) == (other.channel, &other.payload)
    }
}

impl Eq for Reply {}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(Origin { pending, link }) = self.origin.take() {
            link.spare.put(pending, std::mem::take(&mut self.payload));
        }
    }
}

/// Why a request has no reply.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The server refused it. Whether to try again depends on the code.
    #[error("{text}")]
    Refused {
        /// Why, for programs.
        code: ErrorCode,
        /// Why, for people.
        text: String,
    },
    /// No reply within the deadline. The request may have had its effect.
    #[error("no reply within the deadline")]
    TimedOut,
    /// The connection ended first. The request may have had its effect.
    #[error("the connection ended before the reply: {0}")]
    Closed(CloseReason),
    /// There is no connection now; nothing was sent.
    #[error("not connected")]
    NotConnected,
    /// As many requests wait as allowed; nothing was sent. Try again after a reply.
    #[error("too many requests are waiting for their replies")]
    WindowFull,
    /// Replies of the codec are matched by their order, and over UDP one may be lost: the next would be taken for it.
    /// Nothing was sent.
    #[error(
        "replies without ids cannot be matched over UDP; use tcp:// or a codec with ids (tw1, srmp, srmp-rpc, uvrpc)"
    )]
    CannotMatch,
    /// The codec cannot express the request; nothing was sent.
    #[error("the codec cannot express the request")]
    Encode(#[from] EncodeError),
    /// The text is not a pattern; nothing was sent. Correct it.
    #[error(transparent)]
    Pattern(#[from] TopicError),
    /// The reply was not what this kind of request answers with.
    #[error("the reply is malformed")]
    MalformedReply,
    /// The client was shut down.
    #[error("the client was shut down")]
    Shutdown,
}

/// A request that was handed to the client's lane. Await it, or [`Request::wait`] for it.
///
/// Dropped before its reply it is given up, and the server is told where the codec can say it.
#[derive(Debug)]
#[must_use = "a request does nothing useful unless its reply is awaited"]
pub struct Request {
    /// Until its result was taken.
    pending: Option<Arc<Pending>>,
    /// Where its memory came from, and the way to the lane for a request that is let go of.
    link: Option<Arc<Link>>,
}

/// Where a reply's memory goes back to.
#[derive(Debug)]
struct Origin {
    pending: Arc<Pending>,
    link: Arc<Link>,
}

/// Where the lane leaves the answer.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct State {
    result: Option<Result<u16, RequestError>>,
    /// A result was left, and perhaps taken since.
    finished: bool,
    /// The application let go of the request.
    abandoned: bool,
    /// A thread is blocked: waking where nobody waits would be a system call per reply.
    is_awaited: bool,
    /// Its id, while it is on its way.
    id: Option<u32>,
    waker: Option<Waker>,
    /// The reply's payload, or memory for the next request.
    spare: Spare,
}

/// Memory of a request and its reply, to be filled again.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    pub(crate) payload: Vec<u8>,
    pub(crate) name: String,
}

/// Requests that are over, to be used again, the oldest first: in the steady state nothing is allocated for one.
#[derive(Debug, Default)]
pub(crate) struct PendingPool {
    free: Mutex<VecDeque<Arc<Pending>>>,
}

impl PendingPool {
    /// One that nobody else holds, with its memory emptied.
    pub(crate) fn take(&self) -> (Arc<Pending>, Spare) {
        let mut free = self.lock();
        let Some(mut pending) = free.pop_front() else {
            return <(Arc<Pending>, Spare)>::default();
        };
        let Some(unshared) = Arc::get_mut(&mut pending) else {
            // The lane has left the answer and not yet let go.
            free.push_back(pending);
            return <(Arc<Pending>, Spare)>::default();
        };
        let state = unshared.state.get_mut();
        let state = std::mem::take(state.unwrap_or_else(PoisonError::into_inner));
        let mut spare = state.spare;
        spare.payload.clear();
        spare.name.clear();
        (pending, spare)
    }

    pub(crate) fn put(&self, pending: Arc<Pending>, payload: Vec<u8>) {
        let bytes = {
            let mut state = pending.lock();
            state.spare.payload = payload;
            state.spare.payload.capacity() + state.spare.name.capacity()
        };
        let mut free = self.lock();
        if bytes <= SPARE_BYTES_MAX && free.len() < SPARES_MAX {
            free.push_back(pending);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Pending>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<HandOverError> for RequestError {
    fn from(error: HandOverError) -> Self {
        match error {
            HandOverError::QueueFull => Self::WindowFull,
            HandOverError::Ended => Self::Shutdown,
            HandOverError::Encode(error) => Self::Encode(error),
        }
    }
}

impl Request {
    pub(crate) fn new() -> (Self, Arc<Pending>) {
        let pending = Arc::new(Pending::default());
        let request = Self {
            pending: Some(Arc::clone(&pending)),
            link: None,
        };
        (request, pending)
    }

    /// A request whose memory came from the link, and goes back to it.
    pub(crate) fn pooled(link: &Arc<Link>, pending: &Arc<Pending>) -> Self {
        Self {
            pending: Some(Arc::clone(pending)),
            link: Some(Arc::clone(link)),
        }
    }

    /// Blocks this thread until the reply came or the request failed. Never call it on a lane.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn wait(mut self) -> Result<Reply, RequestError> {
        let Some(pending) = self.pending.take() else {
            return Err(RequestError::Shutdown);
        };
        let mut state = pending.lock();
        loop {
            if let Some(result) = state.result.take() {
                let payload = std::mem::take(&mut state.spare.payload);
                drop(state);
                return self.finish(pending, result, payload);
            }
            state.is_awaited = true;
            state = pending
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(
        &mut self,
        pending: Arc<Pending>,
        result: Result<u16, RequestError>,
        payload: Vec<u8>,
    ) -> Result<Reply, RequestError> {
        let origin = self.link.take().map(|link| Origin { pending, link });
        // A failure's memory goes back with a reply that nobody sees.
        let mut reply = Reply {
            channel: 0,
            payload,
            origin,
        };
        result.map(|channel| {
            reply.channel = channel;
            reply
        })
    }
}

impl Future for Request {
    type Output = Result<Reply, RequestError>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let pending = self
            .pending
            .take()
            .expect("a request is not polled after it was ready");
        let mut state = pending.lock();
        if let Some(result) = state.result.take() {
            let payload = std::mem::take(&mut state.spare.payload);
            drop(state);
            return Poll::Ready(self.finish(pending, result, payload));
        }
        state.waker = Some(cx.waker().clone());
        drop(state);
        self.pending = Some(pending);
        Poll::Pending
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let Some(id) = pending.abandon() else {
            return;
        };
        if let Some(link) = &self.link {
            // If the queue is full, the request's deadline will give it up.
            let _ = link.push(Command::Abandon { id, pending });
        }
    }
}

impl Pending {
    /// Notes the id under which the request is being sent. Returns whether anyone still wants it.
    pub(crate) fn begin(&self, id: u32) -> bool {
        let mut state = self.lock();
        state.id = Some(id);
        !state.abandoned
    }

    /// The request is not on its way any more, and not answered either.
    pub(crate) fn suspend(&self) {
        self.lock().id = None;
    }

    /// Nobody wants the answer. Returns the id of a request on its way.
    fn abandon(&self) -> Option<u32> {
        let mut state = self.lock();
        state.abandoned = true;
        state.id.filter(|_| !state.finished)
    }

    /// Leaves the answer, on the channel given, and wakes whoever waits.
    pub(crate) fn complete(
        self: Arc<Self>,
        result: Result<u16, RequestError>,
        payload: Vec<u8>,
        name: String,
    ) {
        let (is_awaited, waker) = {
            let mut state = self.lock();
            state.result = Some(result);
            state.finished = true;
            state.spare = Spare { payload, name };
            (state.is_awaited, state.waker.take())
        };
        if is_awaited {
            self.ready.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Leaves the reason why there will be no answer.
    pub(crate) fn fail(self: Arc<Self>, error: RequestError) {
        self.complete(Err(error), Vec::new(), String::new());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests kept to be used again: as many as may wait for their replies.
const SPARES_MAX: usize = 4096;

/// Largest memory that is kept with one of them, and of a request for its reply, in bytes: of larger ones 4,096 would be
/// too much to hold.
pub(super) const SPARE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_future_is_woken_once_and_then_ready() {
        let (mut request, pending) = Request::new();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        assert!(Pin::new(&mut request).poll(&mut cx).is_pending());
        pending.fail(RequestError::TimedOut);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(
            Pin::new(&mut request).poll(&mut cx),
            Poll::Ready(Err(RequestError::TimedOut))
        );
    }

    #[test]
    fn a_blocked_thread_is_woken() {
        let (request, pending) = Request::new();
        let thread = std::thread::spawn(move || request.wait());
        pending.complete(Ok(3), vec![1], String::new());
        let reply = thread.join().unwrap().unwrap();
        assert_eq!((reply.channel(), reply.payload()), (3, &[1][..]));
    }
}
