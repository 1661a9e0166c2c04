//! The server's side: arguments, answers given at once, answers given later.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message};

use super::format::with_encoded;
use super::{Format, FormatError};
use crate::service::Context;
use crate::service::Deferred;
use crate::service::{HandlerError, HandlerResult};
use crate::session::SendError;
use crate::session::SessionId;

/// The right and the duty to answer a typed call later, from any thread: a worker, a task, a timer. `R` is what the
/// method answers with, as if it returned it; it may be a [`Result`].
///
/// A method takes it as its last parameter and returns nothing. Dropped without an answer, as by a worker that
/// panicked, it answers with an error.
///
/// ```
/// use tidewire::typed::DeferredReply;
/// use tidewire::{Client, Router, Server};
///
/// #[tidewire::service]
/// pub trait Shouter {
///     fn shout(&mut self, text: String, reply: DeferredReply<String>);
/// }
///
/// struct Threads;
///
/// impl Shouter for Threads {
///     fn shout(&mut self, text: String, reply: DeferredReply<String>) {
///         std::thread::spawn(move || reply.send(text.to_uppercase()));
///     }
/// }
///
/// let server = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start(|_| Router::new().mount(ShouterServer::new(Threads)))?;
/// let client = ShouterClient::new(Client::connect(&server.to_string()).wait()?);
/// assert_eq!(client.shout("hello".to_owned()).wait()?, "HELLO");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it answers the call with an error"]
pub struct DeferredReply<R> {
    /// `None` if the caller wants no answer.
    deferred: Option<Deferred>,
    reply: fn(&R, Deferred) -> Result<(), ReplyError>,
}

/// An answer could not be given. The caller is told that the server failed. An error of [`DeferredReply::send`];
/// [`DeferredReply`] has an example.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The value cannot be encoded.
    #[error("the answer cannot be encoded")]
    Format(#[from] FormatError),
    /// Its payload does not fit a frame of the codec.
    #[error("the answer cannot be sent")]
    Send(#[from] SendError),
}

impl<R> DeferredReply<R> {
    /// Answers the call. With `Ok` the answer is on its way to the session's lane; if the session has ended by then,
    /// that is counted in `deferred_undelivered`. If the caller wants no answer, there is none.
    ///
    /// # Errors
    /// [`ReplyError::Format`] if the answer cannot be encoded, and [`ReplyError::Send`] if it does not fit a frame of the codec.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "it is given away as a returned value would be"
    )]
    pub fn send(self, answer: R) -> Result<(), ReplyError> {
        match self.deferred {
            Some(deferred) => (self.reply)(&answer, deferred),
            None => Ok(()),
        }
    }

    /// Refuses the call for a reason that is not the method's: a code for programs, a text for people. The caller sees
    /// [`CallError::Request`](super::CallError::Request), unless it is [`ErrorCode::NotFound`] or
    /// [`ErrorCode::MalformedBody`]: these say that there is no such method, or that its arguments are bad.
    pub fn refuse(self, code: ErrorCode, text: &str) {
        if let Some(deferred) = self.deferred {
            deferred.refuse(code, text);
        }
    }

    /// Whether nobody wants the answer (any more): the caller gave up, its session ended, or it never asked for one.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.deferred.as_ref().is_none_or(Deferred::is_cancelled)
    }

    /// The session that waits for the answer, or [`SessionId::NONE`].
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.deferred
            .as_ref()
            .map_or(SessionId::NONE, Deferred::session)
    }
}

impl<R> fmt::Debug for DeferredReply<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("DeferredReply")
            .field("deferred", &self.deferred)
            .finish_non_exhaustive()
    }
}

/// Reads the arguments of a call.
///
/// # Errors
/// The payload is something else; the caller is told that its parameters are bad.
pub fn arguments<F: Format, A: DeserializeOwned>(
    cx: &Context<'_>,
    message: Message<'_>,
) -> Result<A, HandlerError> {
    F::decode(message.payload).map_err(|error| {
        let session = cx.session();
        // As text, which the log escapes: it may quote what the peer sent.
        let error = error.to_string();
        tracing::debug!(%session, method = message.name, error, "arguments cannot be read");
        HandlerError::new(ErrorCode::MalformedBody, BAD_PARAMETERS)
    })
}

/// Answers a call at once.
///
/// # Errors
/// The answer cannot be encoded, or does not fit a frame of the codec; the caller is told.
pub fn answer<F: Format, R: Serialize>(cx: &mut Context<'_>, outcome: &R) -> HandlerResult {
    if !wants_answer(cx) {
        return Ok(());
    }
    with_encoded::<F, _, _>(outcome, |payload| cx.reply(payload)).map_err(|error| {
        let (session, now_ns) = (cx.session(), cx.now_ns());
        // A peer that finds such a call can repeat it as fast as it likes.
        if let Some(unlogged) = cx.core.failure_log.may_log(now_ns) {
            tracing::warn!(%session, unlogged, %error, "an answer cannot be encoded");
        }
        HandlerError::new(ErrorCode::Internal, NO_SPELLING)
    })?
}

/// Takes the duty to answer a call out of its method.
pub fn defer<F: Format, R: Serialize>(cx: &mut Context<'_>) -> DeferredReply<R> {
    DeferredReply {
        deferred: wants_answer(cx).then(|| cx.defer()),
        reply: answer_later::<F, R>,
    }
}

/// Answers a one-way call, if its caller sent it as a request and would otherwise wait for nothing.
///
/// # Errors
/// As [`answer`].
pub fn acknowledge<F: Format>(cx: &mut Context<'_>) -> HandlerResult {
    // Without ids a one-way message looks like a request; that this method is never answered is agreed.
    if cx.codec().has_ids() {
        answer::<F, ()>(cx, &())
    } else {
        Ok(())
    }
}

/// The refusal of a number that no method has.
#[must_use]
pub fn no_such_method() -> HandlerError {
    HandlerError::new(ErrorCode::NotFound, "no such method")
}

fn answer_later<F: Format, R: Serialize>(
    outcome: &R,
    deferred: Deferred,
) -> Result<(), ReplyError> {
    let mut deferred = Some(deferred);
    let sent = with_encoded::<F, _, _>(outcome, |payload| {
        deferred.take().map(|deferred| deferred.reply(payload))
    });
    match sent {
        Ok(Some(sent)) => Ok(sent?),
        Ok(None) => Ok(()),
        Err(error) => {
            if let Some(deferred) = deferred {
                deferred.refuse(ErrorCode::Internal, NO_SPELLING);
            }
            Err(error.into())
        }
    }
}

/// Whether the caller reads an answer: not if it sent a one-way message, or a request without an id in a codec that has
/// ids. Without ids every message counts on its answer.
fn wants_answer(cx: &Context<'_>) -> bool {
    !cx.codec().has_ids() || (cx.current.origin.kind() == Kind::Request && cx.current.id != 0)
}

/// What the caller reads when its arguments cannot be read.
const BAD_PARAMETERS: &str = "the arguments are not those of this method";

/// What the caller reads when its answer cannot be encoded.
const NO_SPELLING: &str = "the answer cannot be encoded";
