//! A request with its own settings: method, deadline, repetition, policy for a full window.

use std::future::IntoFuture;
use std::time::Duration;

use tidewire_io::clock::coarse_now_ns;
use tidewire_proto::message::Kind;

use super::Client;
use super::effect::Effect;
use super::error::RequestError;
use super::reply::{Reply, give_back};
use super::request::Request;
use super::submissions::{RequestHead, WhenWindowFull};
use crate::limits::nanoseconds;

/// A request that is not sent yet, made by [`Client::request`]. Await it, [`wait`](Self::wait) for it, or
/// [`send`](Self::send) it and take the reply later.
///
/// ```
/// # use std::time::Duration;
/// # let server = tidewire::serve("tcp://127.0.0.1:0", |cx: &mut tidewire::Context<'_>, message: tidewire::Message<'_>| {
/// #     cx.reply(message.payload)
/// # })?;
/// # let client = tidewire::Client::connect(&server.to_string()).wait()?;
/// let reply = client
///     .request(b"42")
///     .method("lookup")
///     .timeout(Duration::from_secs(1))
///     .idempotent()
///     .wait()?;
/// assert_eq!(reply.payload(), b"42");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is sent before `send`, `wait` or `.await`"]
pub struct Call<'a> {
    client: &'a Client,
    payload: Payload<'a>,
    kind: Kind,
    effect: Option<Effect>,
    channel: u16,
    name: &'a str,
    timeout: Duration,
    idempotent: bool,
    when_full: WhenWindowFull,
}

/// The payload of a request.
#[derive(Debug)]
pub(crate) enum Payload<'a> {
    Borrowed(&'a [u8]),
    /// In reused [memory](super::reply::take_memory).
    Spare(Vec<u8>),
}

impl<'a> Call<'a> {
    #[inline]
    pub(crate) fn new(client: &'a Client, payload: Payload<'a>) -> Self {
        Self {
            client,
            payload,
            kind: Kind::Request,
            effect: None,
            channel: 0,
            name: "",
            timeout: client.inner.request_timeout,
            idempotent: false,
            when_full: client.inner.when_window_full,
        }
    }

    /// Calls the method of this name. Codecs without names refuse it.
    pub fn method(mut self, name: &'a str) -> Self {
        self.name = name;
        self
    }

    /// Sends a frame of this kind instead of [`Kind::Request`]. The kind must be one that the server answers. If a
    /// [`Kind::Join`] or [`Kind::Subscribe`] is given up and the server agrees to it later, the client undoes it with a
    /// [`Kind::Leave`] or [`Kind::Unsubscribe`].
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self.effect = Effect::of(kind);
        self
    }

    /// Sets the channel: the alias of a room or a method. Default 0.
    pub fn channel(mut self, channel: u16) -> Self {
        self.channel = channel;
        self
    }

    /// Sets the longest time from [`Call::send`] to the reply. It includes all waits and repetitions. The request never
    /// times out earlier, and at most two ticks of the system's timer (some milliseconds) later. Default:
    /// [`ClientBuilder::request_timeout`](super::ClientBuilder::request_timeout).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Declares that the request may be processed twice. If the connection ends before the reply, a client that reconnects
    /// sends it again, until its deadline. The pauses are those of the client's [`Backoff`](crate::Backoff).
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Sets the policy for a full window: as many requests wait for their replies as allowed. Default:
    /// [`ClientBuilder::when_window_full`](super::ClientBuilder::when_window_full).
    pub fn when_full(mut self, choice: WhenWindowFull) -> Self {
        self.when_full = choice;
        self
    }

    /// Sends the request and returns a future of the reply.
    #[inline]
    pub fn send(self) -> Request {
        let inner = &self.client.inner;
        if !inner.matches_replies {
            return Request::failed(RequestError::CannotMatch);
        }
        let head = RequestHead {
            slot: None,
            kind: self.kind,
            channel: self.channel,
            // Reading the exact clock would be a tenth of the cost of a request. One tick is added so that no request times
            // out early.
            deadline_ns: coarse_now_ns()
                .saturating_add(inner.coarse_tick_ns)
                .saturating_add(nanoseconds(self.timeout)),
            idempotent: self.idempotent,
            when_full: self.when_full,
            effect: self.effect,
        };
        let link = &inner.link;
        match self.payload {
            Payload::Borrowed(payload) => {
                Request::new(link, link.table.submit(head, self.name, payload))
            }
            Payload::Spare(payload) => {
                let sent = link.table.submit(head, self.name, &payload);
                give_back(payload);
                Request::new(link, sent)
            }
        }
    }

    /// Sends the request and blocks until its reply. Never call it on a lane.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn wait(self) -> Result<Reply, RequestError> {
        self.send().wait()
    }
}

impl IntoFuture for Call<'_> {
    type Output = Result<Reply, RequestError>;
    type IntoFuture = Request;

    fn into_future(self) -> Request {
        self.send()
    }
}
