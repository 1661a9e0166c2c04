//! Calls of a client whose result is not a reply: each is a future with a blocking twin.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::blocking::block_on;
use super::error::RequestError;
use super::reply::Reply;
use super::request::Request;

/// A call that was sent to the server. Its output is made from the reply. Await it with any executor, or
/// [`wait`](Self::wait) for it.
///
/// Every call of a [`Client`](crate::Client) that takes time returns a future with such a `wait`. The call begins when the
/// method is called, not at the first poll.
///
/// # Cancel safety
/// Dropping it before it is ready gives the call up. The server may have processed it or not. The client undoes its effect:
/// it unsubscribes from a subscription, or leaves a room, that the server agrees to later. The same happens after
/// [`RequestError::TimedOut`].
///
/// ```
/// # let server = tidewire::Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| tidewire::Chat::new())?;
/// # let client = tidewire::Client::connect(&server.to_string()).wait()?;
/// let room = client.join("lobby", "ada").wait()?.room;
/// let members = client.list(room); // on its way already
/// assert_eq!(members.wait()?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it is given up unless it is awaited or waited for"]
pub struct Operation<T> {
    /// Declared before `finish`, so that the request is dropped before the values that `finish` owns.
    request: Request,
    finish: Option<Finish<T>>,
}

/// Makes the output from the reply.
type Finish<T> = Box<dyn FnOnce(Reply) -> Result<T, RequestError> + Send>;

impl<T> Operation<T> {
    pub(super) fn new(
        request: Request,
        finish: impl FnOnce(Reply) -> Result<T, RequestError> + Send + 'static,
    ) -> Self {
        Self {
            request,
            finish: Some(Box::new(finish)),
        }
    }

    pub(super) fn failed(error: impl Into<RequestError>) -> Self {
        Self {
            request: Request::failed(error.into()),
            finish: None,
        }
    }

    /// Blocks this thread until the call is done. Never call it on a lane.
    ///
    /// # Errors
    /// Those of the call; see [`RequestError`].
    pub fn wait(self) -> Result<T, RequestError> {
        block_on(self)
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T, RequestError>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.request).poll(cx));
        let finish = self.finish.take();
        Poll::Ready(result.and_then(|reply| match finish {
            Some(finish) => finish(reply),
            // Only a failed request has no `finish`.
            None => Err(RequestError::Shutdown),
        }))
    }
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Operation")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}
