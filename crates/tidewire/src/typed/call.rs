//! The client's side: a call with its choices, and its answer on the way.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CallError, Format, FormatError};
use crate::client::reply::{give_back, take_memory_to_write};
use crate::client::{Call, Client, Payload, Request, WhenWindowFull};

/// A call of a typed method that was not sent yet. Await it, [`wait`](TypedCall::wait) for it, or
/// [`send`](TypedCall::send) it and look for the answer later. The choices are those of [`Call`].
#[must_use = "nothing is sent before `send`, `wait` or `.await`"]
pub struct TypedCall<'a, T, E = Infallible> {
    method: &'static str,
    call: Result<Call<'a>, FormatError>,
    decode: Decode<T, E>,
}

/// A typed call on its way to its answer: a future for any executor, with a blocking twin. Made by [`TypedCall::send`];
/// [`CallError`] has an example.
///
/// Dropped before its answer it is given up, and the server is told where the codec can say it.
#[must_use = "a request does nothing useful unless its answer is awaited"]
pub struct TypedRequest<T, E = Infallible> {
    method: &'static str,
    /// Taken when it is ready, if it could not even be encoded.
    request: Result<Request, Option<FormatError>>,
    decode: Decode<T, E>,
}

type Decode<T, E> = fn(&[u8]) -> Result<Result<T, E>, FormatError>;

impl<'a, T, E> TypedCall<'a, T, E> {
    /// How long it may take, waiting and repetitions included. Default: that of the client.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|call| call.timeout(timeout))
    }

    /// Doing it twice is as good as doing it once; see [`Call::idempotent`].
    pub fn idempotent(self) -> Self {
        self.with(Call::idempotent)
    }

    /// Sets the policy for the case that as many requests wait for their replies as allowed. Default:
    /// [`ClientBuilder::when_window_full`](crate::ClientBuilder::when_window_full).
    pub fn when_full(self, choice: WhenWindowFull) -> Self {
        self.with(|call| call.when_full(choice))
    }

    /// Sends it; the answer is awaited or waited for.
    pub fn send(self) -> TypedRequest<T, E> {
        TypedRequest {
            method: self.method,
            request: self.call.map(Call::send).map_err(Some),
            decode: self.decode,
        }
    }

    /// Sends it and blocks until its answer. Never call it on a lane.
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
    /// Blocks this thread until the answer came or the call failed. Never call it on a lane.
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

/// Makes the call of a generated client's method.
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
/// The arguments cannot be encoded, or not be handed to the client's lane.
pub fn send_one_way<F: Format>(
    client: &Client,
    method: &str,
    arguments: &impl Serialize,
) -> Result<(), CallError> {
    let mut payload = take_memory_to_write();
    F::encode(arguments, &mut payload).map_err(CallError::Arguments)?;
    let sent = client.try_send_method(method, &payload);
    give_back(payload);
    Ok(sent?)
}

/// Reads the answer of a method that returns a [`Result`].
///
/// # Errors
/// The answer is none.
pub fn fallible<F: Format, T: DeserializeOwned, E: DeserializeOwned>(
    payload: &[u8],
) -> Result<Result<T, E>, FormatError> {
    F::decode(payload)
}

/// Reads the answer of a method that returns a plain value.
///
/// # Errors
/// The answer is none.
pub fn infallible<F: Format, T: DeserializeOwned>(
    payload: &[u8],
) -> Result<Result<T, Infallible>, FormatError> {
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

/// The failure of a call that could not be encoded. Like that of a request, its result is given once.
fn unsent<E>(error: Option<FormatError>) -> CallError<E> {
    error.map_or(
        CallError::Request(crate::client::RequestError::Shutdown),
        CallError::Arguments,
    )
}
