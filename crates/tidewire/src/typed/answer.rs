//! The server's side of typed calls: arguments, immediate answers, deferred answers.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;
use tidewire_proto::message::Message;

use super::format::with_encoded;
use super::{CallError, Format};
use crate::service::Context;
use crate::service::Deferred;
use crate::service::{HandlerError, HandlerResult};
use crate::session::SessionId;

/// A handle to answer a typed call later, from any thread: a worker, a task, a timer. `R` is the type of the answer, as
/// if the method returned it; it may be a [`Result`].
///
/// A method takes it as its last parameter and returns nothing. If it is dropped without an answer, for example by a
/// worker that panicked, the call is answered with an error.
///
/// ```
/// use tidewire::typed::DeferredReply;
/// use tidewire::{Client, Router, Server};
///
/// #[tidewire::service]
/// pub trait Shouter {
///     fn shout(&mut self, text: String, answer: DeferredReply<String>);
/// }
///
/// struct Threads;
///
/// impl Shouter for Threads {
///     fn shout(&mut self, text: String, answer: DeferredReply<String>) {
///         std::thread::spawn(move || answer.reply(text.to_uppercase()));
///     }
/// }
///
/// let server = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(Router::new().mount(ShouterServer::new(Threads)))?;
/// let client = ShouterClient::new(Client::connect(&server.to_string()).wait()?);
/// assert_eq!(client.shout("hello".to_owned()).wait()?, "HELLO");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it answers the call with an error"]
pub struct DeferredReply<R> {
    /// `None` if the caller wants no answer.
    deferred: Option<Deferred>,
    reply: fn(&R, Deferred) -> Result<(), CallError>,
}

impl<R> DeferredReply<R> {
    /// Answers the call. With `Ok` the answer is on its way to the session's lane. If the session has ended by then,
    /// the answer is counted in `deferred_undelivered`. If the caller wants no answer, none is sent.
    ///
    /// # Errors
    /// [`CallError::Answer`] if the answer cannot be encoded, and [`CallError::Request`] if it does not fit a frame of
    /// the codec.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "it is given away as a returned value would be"
    )]
    pub fn reply(self, answer: R) -> Result<(), CallError> {
        match self.deferred {
            Some(deferred) => (self.reply)(&answer, deferred),
            None => Ok(()),
        }
    }

    /// Refuses the call, with a code for programs and a text for people. Use it for reasons that are not the method's
    /// own error. The caller gets [`CallError::Request`](super::CallError::Request). Two codes differ: with
    /// [`ErrorCode::MethodNotFound`] or [`ErrorCode::MalformedBody`] the caller gets
    /// [`CallError::MethodNotFound`](super::CallError::MethodNotFound) or
    /// [`CallError::BadParameters`](super::CallError::BadParameters).
    pub fn refuse(self, code: ErrorCode, text: &str) {
        if let Some(deferred) = self.deferred {
            deferred.refuse(code, text);
        }
    }

    /// Whether the answer is not wanted: the caller gave up, its session ended, or it asked for none.
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

/// Decodes the arguments of a call.
///
/// # Errors
/// The payload is not the arguments' tuple. The caller gets [`ErrorCode::MalformedBody`].
pub fn arguments<F: Format, A: DeserializeOwned>(
    cx: &Context<'_>,
    message: Message<'_>,
) -> Result<A, HandlerError> {
    F::decode(message.payload).map_err(|error| {
        let session = cx.id();
        // Converted to text, which the log escapes: it may quote the peer's bytes.
        let error = error.to_string();
        tracing::debug!(%session, method = message.name, error, "cannot decode the arguments of a call");
        HandlerError::new(ErrorCode::MalformedBody, BAD_PARAMETERS)
    })
}

/// Answers a call at once.
///
/// # Errors
/// The answer cannot be encoded, or does not fit a frame of the codec. The caller gets an error.
pub fn answer<F: Format, R: Serialize>(cx: &mut Context<'_>, outcome: &R) -> HandlerResult {
    if !wants_answer(cx) {
        return Ok(());
    }
    with_encoded::<F, _, _>(outcome, |payload| cx.reply(payload)).map_err(|error| {
        let (session, now_ns) = (cx.id(), cx.now().as_ns());
        // A peer that finds such a call can repeat it endlessly, so the log is limited.
        if let Some(unlogged) = cx.core.failure_log.may_log(now_ns) {
            tracing::warn!(%session, unlogged, %error, "cannot encode the answer to a call");
        }
        HandlerError::new(ErrorCode::Internal, CANNOT_ENCODE)
    })?
}

/// Defers the answer of a call to the returned handle.
pub fn defer<F: Format, R: Serialize>(cx: &mut Context<'_>) -> DeferredReply<R> {
    DeferredReply {
        deferred: wants_answer(cx).then(|| cx.defer()),
        reply: answer_later::<F, R>,
    }
}

/// Answers a one-way call if its caller sent it as a request and waits for a reply.
///
/// # Errors
/// Those of [`answer`].
pub fn acknowledge<F: Format>(cx: &mut Context<'_>) -> HandlerResult {
    // Without ids a one-way message looks like a request. Both sides agree that this method has no answer.
    if cx.codec().format().has_ids() {
        answer::<F, ()>(cx, &())
    } else {
        Ok(())
    }
}

/// The refusal of an unknown method number.
#[must_use]
pub fn no_such_method() -> HandlerError {
    HandlerError::new(ErrorCode::MethodNotFound, "no such method")
}

fn answer_later<F: Format, R: Serialize>(outcome: &R, deferred: Deferred) -> Result<(), CallError> {
    let mut deferred = Some(deferred);
    let sent = with_encoded::<F, _, _>(outcome, |payload| {
        deferred.take().map(|deferred| deferred.reply(payload))
    });
    match sent {
        Ok(Some(sent)) => Ok(sent?),
        Ok(None) => Ok(()),
        Err(error) => {
            if let Some(deferred) = deferred {
                deferred.refuse(ErrorCode::Internal, CANNOT_ENCODE);
            }
            Err(CallError::Answer(error))
        }
    }
}

/// Whether the caller expects an answer. With ids, it does for requests with an id other than 0. Without ids, every
/// message is answered.
fn wants_answer(cx: &Context<'_>) -> bool {
    !cx.codec().format().has_ids() || cx.call.is_numbered_request()
}

/// The error text for arguments that cannot be decoded.
const BAD_PARAMETERS: &str = "the arguments cannot be decoded as those of this method";

/// The error text for an answer that cannot be encoded.
const CANNOT_ENCODE: &str = "the answer cannot be encoded";
