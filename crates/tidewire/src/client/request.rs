//! A request on its way: a future for any executor, with a blocking twin.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use thiserror::Error;
use tidewire_io::doorbell::Doorbell;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::error::EncodeError;
use tidewire_proto::topic::TopicError;

use super::HandOverError;
use super::service::{Command, Link};
use crate::session::CloseReason;

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub(crate) channel: u16,
    pub(crate) payload: Vec<u8>,
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
    pub fn into_payload(self) -> Vec<u8> {
        self.payload
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
    pending: Arc<Pending>,
    canceller: Option<Canceller>,
}

/// The way to the client's lane, for a request that is let go of.
#[derive(Debug)]
pub(crate) struct Canceller {
    pub(crate) link: Arc<Link>,
    pub(crate) doorbell: Arc<Doorbell>,
}

/// Where the lane leaves the answer.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct State {
    result: Option<Result<Reply, RequestError>>,
    /// A result was left, and perhaps taken since.
    finished: bool,
    /// The application let go of the request.
    abandoned: bool,
    /// Its id, while it is on its way.
    id: Option<u32>,
    waker: Option<Waker>,
}

impl From<HandOverError> for RequestError {
    fn from(error: HandOverError) -> Self {
        match error {
            HandOverError::QueueFull => Self::WindowFull,
            HandOverError::Ended => Self::Shutdown,
        }
    }
}

impl Request {
    pub(crate) fn new(canceller: Option<Canceller>) -> (Self, Arc<Pending>) {
        let pending = Arc::new(Pending::default());
        (
            Self {
                pending: Arc::clone(&pending),
                canceller,
            },
            pending,
        )
    }

    /// Blocks this thread until the reply came or the request failed. Never call it on a lane.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn wait(self) -> Result<Reply, RequestError> {
        let mut state = self.pending.lock();
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            state = self
                .pending
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Future for Request {
    type Output = Result<Reply, RequestError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.pending.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(id) = self.pending.abandon() else {
            return;
        };
        if let Some(Canceller { link, doorbell }) = &self.canceller {
            let command = Command::Abandon {
                id,
                pending: Arc::clone(&self.pending),
            };
            // If the queue is full, the request's deadline will give it up.
            if link.push(command).is_ok() {
                doorbell.ring();
            }
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

    /// Leaves the answer and wakes whoever waits.
    pub(crate) fn complete(&self, result: Result<Reply, RequestError>) {
        let waker = {
            let mut state = self.lock();
            state.result = Some(result);
            state.finished = true;
            state.waker.take()
        };
        self.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
        let (mut request, pending) = Request::new(None);
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        assert!(Pin::new(&mut request).poll(&mut cx).is_pending());
        pending.complete(Err(RequestError::TimedOut));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(
            Pin::new(&mut request).poll(&mut cx),
            Poll::Ready(Err(RequestError::TimedOut))
        );
    }

    #[test]
    fn a_blocked_thread_is_woken() {
        let (request, pending) = Request::new(None);
        let thread = std::thread::spawn(move || request.wait());
        let reply = Reply {
            channel: 3,
            payload: vec![1],
        };
        pending.complete(Ok(reply.clone()));
        assert_eq!(thread.join().unwrap(), Ok(reply));
    }
}
