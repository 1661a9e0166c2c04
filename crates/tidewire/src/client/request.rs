//! A request: its settings, and the future of its reply with a blocking twin.
//!
//! The requests of a thread reuse references to their client's link. Cloning and dropping an `Arc` costs two atomic
//! operations, each as much as the rest of a request on this side. The kept references do not keep a client alive for
//! long. The thread that drops a client drops its kept references at once. Any other thread does so when it next
//! finishes a request, or when it ends.

use std::cell::RefCell;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidewire_io::clock::coarse_now_ns;
use tidewire_proto::message::Kind;

use super::Client;
use super::effect::Effect;
use super::error::RequestError;
use super::link::Link;
use super::reply::{PIECES_MAX, Reply, give_back};
use super::slots::SlotId;
use super::submissions::{RequestHead, WhenWindowFull};
use crate::limits::nanoseconds;
use crate::on_lane;
use crate::session::SendError;

/// A request that is not sent yet, made by [`Client::request`]. Await it, [`wait`](Self::wait) for it, or
/// [`send`](Self::send) it and take the reply later.
///
/// ```
/// # use std::time::Duration;
/// # let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
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
    timeout_ns: u64,
    idempotent: bool,
    when_full: WhenWindowFull,
}

#[derive(Debug)]
pub(crate) enum Payload<'a> {
    Borrowed(&'a [u8]),
    /// In reused [memory](super::reply::take_memory).
    Spare(Vec<u8>),
}

/// A request that was queued for the client's lane. Await it, or [`Request::wait`] for it.
/// [`Client::request`](crate::Client::request) has an example.
///
/// Dropping it before its reply abandons the request. The server receives a cancel if the codec has cancels.
///
/// If many requests are pending, await the oldest first. Replies come in blocks, so most other replies have then
/// arrived and cost no wait.
#[derive(Debug)]
#[must_use = "a request does nothing useful unless its reply is awaited"]
pub struct Request {
    state: State,
}

#[derive(Debug)]
enum State {
    /// The request was queued. Its answer may be in the slot already.
    Sent {
        link: Arc<Link>,
        slot: SlotId,
    },
    /// The request was not queued.
    Failed(Box<RequestError>),
    Done,
}

impl Client {
    /// Makes a request. Methods of the returned [`Call`] set options, such as method, deadline and repetition; `send`,
    /// `wait` or `.await` sends it.
    ///
    /// ```
    /// # let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
    /// #     cx.reply(message.payload)
    /// # })?;
    /// # let client = tidewire::Client::connect(&server.to_string()).wait()?;
    /// assert_eq!(client.request(b"one").wait()?.payload(), b"one");
    /// // Two at once: `send` does not wait.
    /// let requests = [b"two", b"six"].map(|payload| client.request(payload).send());
    /// for request in requests {
    ///     request.wait()?; // or `.await?`
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn request<'a>(&'a self, payload: &'a [u8]) -> Call<'a> {
        Call::new(self, Payload::Borrowed(payload))
    }
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
            timeout_ns: client.inner.request_timeout_ns,
            idempotent: false,
            when_full: client.inner.when_window_full,
        }
    }

    /// Calls the method of this name. Codecs without names refuse it.
    pub fn method(mut self, name: &'a str) -> Self {
        self.name = name;
        self
    }

    /// Sends a frame of this kind instead of [`Kind::Request`]. The server must answer the kind. If the server agrees
    /// to a [`Kind::Join`] or [`Kind::Subscribe`] that was given up, the client sends a [`Kind::Leave`] or
    /// [`Kind::Unsubscribe`].
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self.effect = Effect::of(kind);
        self
    }

    /// Makes the request a flush: its reply confirms all earlier messages.
    pub(super) fn flushing(mut self) -> Self {
        self.effect = Some(Effect::Flush);
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
        self.timeout_ns = nanoseconds(timeout);
        self
    }

    /// Declares that the request may be processed twice. If the connection ends before the reply, a client that
    /// reconnects sends the request again, until its deadline. The pauses are those of the client's
    /// [`Backoff`](crate::Backoff).
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Sets the policy for a full window: as many requests wait for their replies as allowed. Default:
    /// [`ClientBuilder::when_window_full`](super::ClientBuilder::when_window_full).
    pub fn when_window_full(mut self, choice: WhenWindowFull) -> Self {
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
            // Reading the exact clock would be a tenth of the cost of a request. One tick is added so that no request
            // times out early.
            deadline_ns: coarse_now_ns()
                .saturating_add(inner.coarse_tick_ns)
                .saturating_add(self.timeout_ns),
            idempotent: self.idempotent,
            when_full: self.when_full,
            effect: self.effect,
            is_given_up: false,
        };
        let payload = match &self.payload {
            Payload::Borrowed(payload) => payload,
            Payload::Spare(payload) => &payload[..],
        };
        let sent = inner.link.table.submit(head, self.name, payload);
        if let Payload::Spare(payload) = self.payload {
            give_back(payload);
        }
        Request::new(&inner.link, sent)
    }

    /// Sends the request and blocks until its reply. On a lane it fails at once, with [`RequestError::OnLane`].
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

impl Request {
    /// Creates a request from the slot of its answer, or from the error of queueing it.
    #[inline(always)]
    pub(crate) fn new(link: &Arc<Link>, sent: Result<SlotId, SendError>) -> Self {
        match sent {
            Ok(slot) => Self {
                state: State::Sent {
                    link: share(link),
                    slot,
                },
            },
            Err(error) => Self::failed(error.into()),
        }
    }

    pub(crate) fn failed(error: RequestError) -> Self {
        Self {
            state: State::Failed(Box::new(error)),
        }
    }

    /// Blocks this thread until the reply comes or the request fails. On a lane it fails at once, with
    /// [`RequestError::OnLane`].
    ///
    /// # Errors
    /// See [`RequestError`].
    #[inline]
    pub fn wait(mut self) -> Result<Reply, RequestError> {
        match self.fetch_reply() {
            Some(reply) => Ok(reply),
            None if on_lane::is_lane() => Err(RequestError::OnLane),
            None => match self.fetch_or_wait(None) {
                Some(result) => result,
                None => self.wait_for_lane(),
            },
        }
    }

    fn wait_for_lane(mut self) -> Result<Reply, RequestError> {
        let mut result = None;
        if let State::Sent { link, slot } = &self.state {
            link.lane().wait(None, &mut |waker| {
                result = match link.table.fetch(*slot) {
                    Some(reply) => Some(Ok(reply)),
                    None => link.table.poll(*slot, waker),
                };
                result.is_some()
            });
        }
        self.finish();
        // A wait without a time limit ends with a result.
        let result = result.unwrap_or_else(|| Err(Box::new(RequestError::Shutdown)));
        result.map_err(|error| *error)
    }

    /// Returns the reply or the error, if it has arrived. It never blocks and makes no system call. A task that waits
    /// for the reply keeps waiting. After a wait for one reply, call this for the next requests in the order they were
    /// sent, and wait again at the first `None`.
    ///
    /// # Panics
    /// When the result was taken before.
    #[inline]
    pub fn try_wait(&mut self) -> Option<Result<Reply, RequestError>> {
        match self.fetch_reply() {
            Some(reply) => Some(Ok(reply)),
            None => self.fetch_or_wait(None),
        }
    }

    /// Takes a reply that needs no lock. Inlined, so that the reply is built at its destination.
    #[inline(always)]
    fn fetch_reply(&mut self) -> Option<Reply> {
        let State::Sent { link, slot } = &self.state else {
            return None;
        };
        let reply = link.table.fetch(*slot)?;
        self.finish();
        Some(reply)
    }

    /// Takes the result, or stores `waker`, if given, to be woken when there is one.
    #[inline(never)]
    fn fetch_or_wait(&mut self, waker: Option<&Waker>) -> Option<Result<Reply, RequestError>> {
        let result = match &self.state {
            State::Sent { link, slot } => {
                let outcome = link.table.poll(*slot, waker)?;
                outcome.map_err(|error| *error)
            }
            State::Failed(error) => Err(RequestError::clone(error)),
            State::Done => panic!("`Request` was polled after it was ready"),
        };
        self.finish();
        Some(result)
    }

    /// Marks the result as taken, and keeps the reference for the next request.
    #[inline(always)]
    fn finish(&mut self) {
        if let State::Sent { link, .. } = std::mem::replace(&mut self.state, State::Done) {
            give_back_share(link);
        }
    }
}

impl Future for Request {
    type Output = Result<Reply, RequestError>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(reply) = self.fetch_reply() {
            return Poll::Ready(Ok(reply));
        }
        match self.fetch_or_wait(Some(cx.waker())) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

impl Drop for Request {
    #[inline]
    fn drop(&mut self) {
        if let State::Sent { link, slot } = &self.state {
            link.table.abandon(*slot);
        }
    }
}

/// Returns a reference to this link: a kept reference, or a new clone.
#[inline]
pub(super) fn share(link: &Arc<Link>) -> Arc<Link> {
    let shared = LINKS.try_with(|links| links.borrow_mut().pop());
    match shared.ok().flatten() {
        Some(shared) if Arc::ptr_eq(&shared, link) => shared,
        _ => Arc::clone(link),
    }
}

/// Keeps a reference for the next request, unless the link has ended. Only references to the last used link are kept.
#[inline]
pub(super) fn give_back_share(link: Arc<Link>) {
    let _ = LINKS.try_with(|links| {
        let has_ended = link.table.has_ended();
        drop_last_while(links, |last| has_ended || !Arc::ptr_eq(last, &link));
        if has_ended {
            return;
        }
        let mut links = links.borrow_mut();
        if links.len() < PIECES_MAX {
            links.push(link);
        }
    });
}

/// Drops this thread's kept references to a link.
pub(super) fn drop_shares(link: &Arc<Link>) {
    let _ = LINKS.try_with(|links| drop_last_while(links, |last| Arc::ptr_eq(last, link)));
}

/// Drops references one by one. Dropping the last reference to a link may run code of an executor, which may call this
/// function again.
#[inline(always)]
fn drop_last_while(links: &RefCell<Vec<Arc<Link>>>, is_unwanted: impl Fn(&Arc<Link>) -> bool) {
    let pop = || links.borrow_mut().pop_if(|last| is_unwanted(last));
    while let Some(link) = pop() {
        drop(link);
    }
}

thread_local! {
    static LINKS: RefCell<Vec<Arc<Link>>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests;
