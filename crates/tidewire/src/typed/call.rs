//! The client's side of typed calls: a call with its settings, and its pending answer.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidewire_proto::message::Message;

use super::format::Cause;
use super::{CallError, Format};
use crate::client::reply::{give_back, take_memory_to_write};
use crate::client::{Call, Client, Payload, Request, WhenWindowFull};

/// A call of a typed method that is not sent yet. Await it, [`wait`](TypedCall::wait) for it, or
/// [`send`](TypedCall::send) it and take the answer later. Its settings are those of [`Call`].
#[must_use = "nothing is sent before `send`, `wait` or `.await`"]
pub struct TypedCall<'a, T, E = Infallible> {
    method: &'static str,
    call: Result<Call<'a>, Cause>,
    decode: Decode<T, E>,
}

/// A typed call that was sent: a future for any executor, with a blocking twin. Made by [`TypedCall::send`];
/// [`CallError`] has an example.
///
/// Dropping it before its answer abandons the call. The server gets a cancel if the codec can express one.
#[must_use = "a request does nothing useful unless its answer is awaited"]
pub struct TypedRequest<T, E = Infallible> {
    method: &'static str,
    /// The error, if the call could not be encoded. It is taken when the future is ready.
    request: Result<Request, Option<Cause>>,
    decode: Decode<T, E>,
}

type Decode<T, E> = fn(&[u8]) -> Result<Result<T, E>, Cause>;

impl<'a, T, E> TypedCall<'a, T, E> {
    /// Sets the longest time for the call, waits and repetitions included. Default: that of the client.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|call| call.timeout(timeout))
    }

    /// Declares that the call may be processed twice; see [`Call::idempotent`].
    pub fn idempotent(self) -> Self {
        self.with(Call::idempotent)
    }

    /// Sets the policy for a full window: as many requests wait for their replies as allowed. Default:
    /// [`ClientBuilder::when_window_full`](crate::ClientBuilder::when_window_full).
    pub fn when_window_full(self, choice: WhenWindowFull) -> Self {
        self.with(|call| call.when_window_full(choice))
    }

    /// Sends the call and returns a future of the answer.
    pub fn send(self) -> TypedRequest<T, E> {
        TypedRequest {
            method: self.method,
            request: self.call.map(Call::send).map_err(Some),
            decode: self.decode,
        }
    }

    /// Sends the call and blocks until its answer. On a lane it fails at once, with
    /// [`RequestError::OnLane`](crate::RequestError::OnLane).
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(self) -> Result<T, CallError<E>> {
        self.send().wait()
    }

    fn with(mut self, choose: impl FnOnce(Call<'a>) -> Call<'a>) -> Self {
        self.call = self.call.map(choose);
        self
    }
}

impl<T, E> TypedRequest<T, E> {
    /// Blocks this thread until the answer comes or the call fails. On a lane it fails at once, with
    /// [`RequestError::OnLane`](crate::RequestError::OnLane).
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(self) -> Result<T, CallError<E>> {
        let Self {
            method,
            request,
            decode,
        } = self;
        match request {
            Ok(request) => conclude(method, decode, request.wait()),
            Err(error) => Err(unsent(error)),
        }
    }
}

impl<'a, T, E> IntoFuture for TypedCall<'a, T, E> {
    type Output = Result<T, CallError<E>>;
    type IntoFuture = TypedRequest<T, E>;

    fn into_future(self) -> TypedRequest<T, E> {
        self.send()
    }
}

impl<T, E> Future for TypedRequest<T, E> {
    type Output = Result<T, CallError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (method, decode) = (self.method, self.decode);
        match &mut self.request {
            Ok(request) => Pin::new(request)
                .poll(cx)
                .map(|result| conclude(method, decode, result)),
            Err(error) => Poll::Ready(Err(unsent(error.take()))),
        }
    }
}

impl<T, E> fmt::Debug for TypedCall<'_, T, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TypedCall")
            .field("method", &self.method)
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}

impl<T, E> fmt::Debug for TypedRequest<T, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TypedRequest")
            .field("method", &self.method)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

/// Creates the call of a generated client's method.
pub fn call<'a, F: Format, T, E>(
    client: &'a Client,
    method: &'static str,
    arguments: &impl Serialize,
    decode: Decode<T, E>,
) -> TypedCall<'a, T, E> {
    let mut payload = take_memory_to_write();
    let call = F::encode(arguments, &mut payload)
        .map(|()| Call::new(client, Payload::Spare(payload)).method(method));
    TypedCall {
        method,
        call,
        decode,
    }
}

/// Sends the message of a generated client's one-way method.
///
/// # Errors
/// The arguments cannot be encoded, or the message cannot be queued.
pub fn send_one_way<F: Format>(
    client: &Client,
    method: &str,
    arguments: &impl Serialize,
) -> Result<(), CallError> {
    let mut payload = take_memory_to_write();
    F::encode(arguments, &mut payload).map_err(CallError::Arguments)?;
    let sent = client.send(Message::one_way(&payload).with_name(method));
    give_back(payload);
    Ok(sent?)
}

/// Decodes the answer of a method that returns a [`Result`].
///
/// # Errors
/// The payload is no such answer.
pub fn fallible<F: Format, T: DeserializeOwned, E: DeserializeOwned>(
    payload: &[u8],
) -> Result<Result<T, E>, Cause> {
    F::decode(payload)
}

/// Decodes the answer of a method that returns a plain value.
///
/// # Errors
/// The payload is no such answer.
pub fn infallible<F: Format, T: DeserializeOwned>(
    payload: &[u8],
) -> Result<Result<T, Infallible>, Cause> {
    F::decode(payload).map(Ok)
}

fn conclude<T, E>(
    method: &'static str,
    decode: Decode<T, E>,
    result: Result<crate::client::Reply, crate::client::RequestError>,
) -> Result<T, CallError<E>> {
    let reply = result.map_err(|error| CallError::from_request(method, error))?;
    decode(reply.payload())
        .map_err(CallError::MalformedAnswer)?
        .map_err(CallError::Failed)
}

/// The error of a call that could not be encoded. Like the result of a request, it is returned once.
fn unsent<E>(error: Option<Cause>) -> CallError<E> {
    error.map_or(
        CallError::Request(crate::client::RequestError::Shutdown),
        CallError::Arguments,
    )
}
