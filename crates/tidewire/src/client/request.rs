//! A request on its way: a future for any executor, with a blocking twin.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use thiserror::Error;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::error::EncodeError;
use tidewire_proto::topic::TopicError;

use super::HandOverError;
use super::link::Link;
use super::slots::SlotId;
use super::spare::{self, give_back};
use crate::session::CloseReason;

/// The answer to a request.
///
/// The memory it is in serves another request once it is dropped. That of a short one has room for 120 bytes, unless it is
/// empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    payload: Vec<u8>,
    /// A whole word, because it is moved with the payload: two bytes of one, read as a word, would have to be waited for.
    channel: u64,
}

impl Reply {
    pub(super) fn new(channel: u16, payload: Vec<u8>) -> Self {
        Self {
            payload,
            channel: u64::from(channel),
        }
    }

    /// The channel the answer came on; for a join, the room's alias.
    #[must_use]
    pub fn channel(&self) -> u16 {
        self.channel as u16
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

impl Drop for Reply {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.payload));
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
        /// The number that the codec's own format has for it, which can tell more apart; 0 if it has none.
        number: i32,
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
    /// As many requests wait as allowed, in number or in [bytes](crate::Limits::queue_bytes_max); nothing was sent. Try again
    /// after a reply.
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
///
/// Of many requests under way, await the oldest first: replies come in blocks, so when it is there most of the others are,
/// too, and cost no wait.
#[derive(Debug)]
#[must_use = "a request does nothing useful unless its reply is awaited"]
pub struct Request {
    state: State,
}

#[derive(Debug)]
enum State {
    /// The lane has it, or its answer is in the slot.
    Sent { link: Arc<Link>, slot: SlotId },
    /// It did not get as far.
    Failed(Box<RequestError>),
    /// Its result was taken.
    Done,
}

/// Wakes a thread that waits for a reply.
struct SleepingThread(Thread);

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
    /// A request whose answer will be in the link's slot, or that could not be handed over.
    #[inline(always)]
    pub(crate) fn new(link: &Arc<Link>, sent: Result<SlotId, HandOverError>) -> Self {
        match sent {
            Ok(slot) => Self {
                state: State::Sent {
                    link: spare::share(link),
                    slot,
                },
            },
            Err(error) => Self::failed(error.into()),
        }
    }

    /// A request that was not sent.
    pub(crate) fn failed(error: RequestError) -> Self {
        Self {
            state: State::Failed(Box::new(error)),
        }
    }

    /// Blocks this thread until the reply came or the request failed. Never call it on a lane.
    ///
    /// # Errors
    /// See [`RequestError`].
    #[inline]
    pub fn wait(mut self) -> Result<Reply, RequestError> {
        match self.fetch_reply() {
            Some(reply) => Ok(reply),
            None => self.wait_asleep(),
        }
    }

    /// The reply or the failure, if it is there already; who waits for it otherwise goes on waiting. Never blocks, and costs no
    /// system call: after one that was waited for, ask the next ones in the order they were sent, and wait again where there
    /// is none.
    ///
    /// # Panics
    /// When it has given its result already.
    #[inline]
    pub fn try_wait(&mut self) -> Option<Result<Reply, RequestError>> {
        match self.fetch_reply() {
            Some(reply) => Some(Ok(reply)),
            None => self.fetch_or_wait(None),
        }
    }

    #[inline(never)]
    fn wait_asleep(mut self) -> Result<Reply, RequestError> {
        let waited = THIS_THREAD.try_with(|here| self.wait_as(here));
        // A thread that ends has no such variables any more.
        waited.unwrap_or_else(|_| self.wait_as(&SleepingThread::here()))
    }

    /// Blocks the thread that this waker unparks.
    fn wait_as(&mut self, here: &Waker) -> Result<Reply, RequestError> {
        loop {
            if let Some(result) = self.fetch_or_wait(Some(here)) {
                return result;
            }
            thread::park();
            // Woken by anybody else it asks again.
            if let Some(reply) = self.fetch_reply() {
                return Ok(reply);
            }
        }
    }

    /// Takes a reply that can be had without a lock. Compiled into its callers, so that the reply is put together where it goes.
    #[inline(always)]
    fn fetch_reply(&mut self) -> Option<Reply> {
        let State::Sent { link, slot } = &self.state else {
            return None;
        };
        let reply = link.fetch(*slot)?;
        self.finish();
        Some(reply)
    }

    /// Takes the result, or has `waker` woken when there is one, if it is given.
    #[inline(never)]
    fn fetch_or_wait(&mut self, waker: Option<&Waker>) -> Option<Result<Reply, RequestError>> {
        let result = match &self.state {
            State::Sent { link, slot } => {
                let outcome = link.fetch_or_wait(*slot, waker)?;
                outcome.map_err(|error| *error)
            }
            State::Failed(error) => Err(RequestError::clone(error)),
            State::Done => panic!("a request is not asked again after it was ready"),
        };
        self.finish();
        Some(result)
    }

    /// Its result was taken.
    #[inline(always)]
    fn finish(&mut self) {
        if let State::Sent { link, .. } = std::mem::replace(&mut self.state, State::Done) {
            spare::give_back_share(link);
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
            link.abandon(*slot);
        }
    }
}

impl SleepingThread {
    fn here() -> Waker {
        Waker::from(Arc::new(Self(thread::current())))
    }
}

impl Wake for SleepingThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// Wakes this thread. Kept, because the lane knows by it that several answers are for one thread.
    static THIS_THREAD: Waker = SleepingThread::here();
}

#[cfg(test)]
mod tests {
    use super::super::answers::Answers;
    use super::super::exchange::Exchange;
    use super::super::queue::Ticket;
    use super::*;

    #[test]
    fn a_blocked_thread_is_woken() {
        let link = Arc::new(Link::new(
            Exchange::new(1_000, false),
            crate::client::EventBounds::default(),
        ));
        let sent = link.push_call(Ticket::due_at(u64::MAX), "", &[]);
        let slot = sent.unwrap();
        let request = Request::new(&link, Ok(slot));
        let thread = thread::spawn(move || request.wait());
        let mut answers = Answers::default();
        answers.reply(link.exchange().slots(), Some(slot), 3, &[1]);
        link.exchange().leave(&mut answers);
        answers.wake();
        let reply = thread.join().unwrap().unwrap();
        assert_eq!((reply.channel(), reply.payload()), (3, &[1][..]));
    }
}
