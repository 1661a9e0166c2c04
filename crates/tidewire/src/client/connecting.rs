//! The futures that connect and close a client, each with a blocking twin.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::Client;
use super::blocking::block_on;
use super::error::ConnectError;
use super::event_queue::Waiter;

/// A client that is connecting. Await it, or [`wait`](Self::wait) for it.
///
/// # Cancel safety
/// Dropping it before it is ready cancels the connection attempt.
///
/// ```
/// # use std::task::{Context, Poll, Waker};
/// use tidewire::Client;
/// # let server = tidewire::serve("tcp://127.0.0.1:0", |_: &mut tidewire::Context<'_>, _: tidewire::Message<'_>| Ok(()))?;
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

/// A client that is closing, made by [`Client::close`]. Await the end, or [`wait`](Self::wait) for it. [`Client`] has an
/// example.
///
/// # Cancel safety
/// Dropping it changes nothing: the client goes on closing as long as a clone of it exists.
#[derive(Debug)]
#[must_use = "what was not written yet is lost if the client is dropped before it is awaited or waited for"]
pub struct Closing {
    client: Client,
    waiter: Waiter,
}

impl Connecting {
    pub(super) fn new(started: Result<Client, ConnectError>) -> Self {
        let started = Some(started);
        Self { started }
    }

    /// Blocks until the connection is open. Never call it on a lane.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn wait(self) -> Result<Client, ConnectError> {
        block_on(self)
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
            None => panic!("`Connecting` was polled after it was ready"),
        }
    }
}

impl Closing {
    pub(super) fn new(client: Client) -> Self {
        let waiter = Waiter::default();
        Self { client, waiter }
    }

    /// Blocks until the client has ended. Never call it on a lane.
    pub fn wait(self) {
        block_on(self);
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
