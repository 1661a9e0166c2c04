//! Calls of a client with a result other than a reply, such as connecting and closing: each is a future with a blocking
//! `wait`.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::Client;
use super::error::RequestError;
use super::event_queue::Waiter;
use super::reply::Reply;
use super::request::Request;
use crate::on_lane;
use crate::transport::ConnectError;

/// A call that was sent to the server. Its output is made from the reply. Await it with any executor, or
/// [`wait`](Self::wait) for it.
///
/// Every call of a [`Client`](crate::Client) that takes time returns a future with a `wait`. The call begins when the
/// method is called, not at the first poll.
///
/// # Cancel safety
/// Dropping it before it is ready abandons the call. The server may have processed it or not. The client undoes its
/// effect: it leaves the room or ends the subscription if the server agrees later. The same happens after
/// [`RequestError::TimedOut`].
///
/// ```
/// # let server = tidewire::Server::builder().listen("tcp://127.0.0.1:0")?.start_one(tidewire::Chat::new())?;
/// # let client = tidewire::Client::connect(&server.to_string()).wait()?;
/// let room = client.join("lobby").named("ada").wait()?;
/// let members = room.members(); // on its way already
/// assert_eq!(members.wait()?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it is given up unless it is awaited or waited for"]
pub struct Operation<T> {
    /// Declared before `finish`, so that the request is dropped before the values that `finish` owns.
    request: Request,
    finish: Option<Finish<T>>,
}

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

    /// Blocks this thread until the call is done. On a lane it fails at once, with [`RequestError::OnLane`].
    ///
    /// # Errors
    /// Those of the call; see [`RequestError`].
    pub fn wait(self) -> Result<T, RequestError> {
        if on_lane::is_lane() {
            return Err(RequestError::OnLane);
        }
        let Self { request, finish } = self;
        // `finish` may own the last client. It is used and dropped after this thread has left the client's lane.
        finish_with(request.wait(), finish)
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T, RequestError>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.request).poll(cx));
        Poll::Ready(finish_with(result, self.finish.take()))
    }
}

fn finish_with<T>(
    result: Result<Reply, RequestError>,
    finish: Option<Finish<T>>,
) -> Result<T, RequestError> {
    let reply = result?;
    match finish {
        Some(finish) => finish(reply),
        // Only a failed request has no `finish`.
        None => Err(RequestError::Shutdown),
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

/// A client that is connecting. Await it, or [`wait`](Self::wait) for it.
///
/// # Cancel safety
/// Dropping it before it is ready cancels the connection attempt.
///
/// ```
/// # use std::task::{Context, Poll, Waker};
/// use tidewire::Client;
/// # let server = tidewire::serve("tcp://127.0.0.1:0", |_, _| Ok(()))?;
/// # let address = server.to_string();
/// let client = Client::connect(&address).wait()?;
/// // In a task of any executor:
/// let task = async { Client::connect(&address).await };
/// # let mut task = std::pin::pin!(task);
/// # while task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {}
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the connection is given up unless it is awaited or waited for"]
pub struct Connecting {
    /// `None` after it was ready.
    started: Option<Result<Client, ConnectError>>,
}

/// A client that is closing, made by [`Client::close`]. Await the end, or [`wait`](Self::wait) for it. [`Client`] has
/// an example.
///
/// # Cancel safety
/// Dropping it changes nothing: the client continues to close while a clone exists, and then for
/// [`ClientBuilder::linger`](super::ClientBuilder::linger) at most.
#[derive(Debug)]
#[must_use = "if the client is dropped before, nobody learns whether all was written"]
pub struct Closing {
    client: Client,
    waiter: Waiter,
}

impl Connecting {
    pub(super) fn new(started: Result<Client, ConnectError>) -> Self {
        let started = Some(started);
        Self { started }
    }

    /// Blocks until the connection is open. On a lane it fails at once, with [`ConnectError::OnLane`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    ///
    /// # Panics
    /// When it was ready before, as a future.
    pub fn wait(mut self) -> Result<Client, ConnectError> {
        if on_lane::is_lane() {
            return Err(ConnectError::OnLane);
        }
        let Some(started) = self.started.take() else {
            panic!("{TAKEN}");
        };
        let client = started?;
        let link = &client.inner.link;
        // A client that failed is dropped after this thread has left its lane.
        link.lane().block_on(poll_fn(|cx| link.poll_first(cx)))?;
        Ok(client)
    }
}

impl Future for Connecting {
    type Output = Result<Client, ConnectError>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(Ok(client)) = &self.started {
            let outcome = ready!(client.inner.link.poll_first(cx));
            if let Err(error) = outcome {
                self.started = None;
                return Poll::Ready(Err(error));
            }
        }
        match self.started.take() {
            Some(started) => Poll::Ready(started),
            None => panic!("{TAKEN}"),
        }
    }
}

impl Closing {
    pub(super) fn new(client: Client) -> Self {
        let waiter = Waiter::default();
        Self { client, waiter }
    }

    /// Blocks until the client has ended.
    ///
    /// # Panics
    /// On a lane, because it would stop all sessions of the lane. The client closes all the same.
    pub fn wait(self) {
        on_lane::refuse_to_wait();
        let lane = self.client.inner.link.lane().clone();
        lane.block_on(self);
    }
}

impl Future for Closing {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { client, waiter } = self.get_mut();
        client.inner.link.events.poll_end(waiter, cx)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.client.inner.link.events.forget(&mut self.waiter);
    }
}

/// The panic of a future that was used after it was ready.
const TAKEN: &str = "`Connecting` was polled after it was ready";
