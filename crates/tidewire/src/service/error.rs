//! Errors of handlers, and the refusals that peers get for them.
//!
//! Errors of this library become refusals with their own code and text. Every other error is internal to the handler:
//! the peer learns only that the request failed, and the details go to the log.
//!
//! One conversion accepts all errors, so that `?` works on each. It recognises the errors of this library by their
//! types. [`HandlerError`] itself does not implement [`Error`](std::error::Error), because the conversion would then
//! collide with the one from a type into itself. Rejected: a conversion for each error type, which would leave out
//! the types of applications; and sending the text of every error to the peer, which would disclose paths, addresses
//! and queries.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::{DecodeError, EncodeError};
use tidewire_proto::message::Message;

use super::UpstreamError;
use crate::describe::describe;
use crate::engine::Core;
use crate::room::RoomError;
use crate::session::{SendError, SessionId};

/// The result of a handler. [`HandlerError`] has an example.
pub type HandlerResult = Result<(), HandlerError>;

/// The refusal of a message: a code for programs and a text for people. If the message was a request, both are sent
/// to the peer.
///
/// `?` converts any error. Errors of this library keep their text and get a matching code. The details of any other
/// error are not sent to the peer: it gets [`ErrorCode::Internal`] and a general text. They are logged at level warn,
/// at most once in ten seconds on a lane, and counted in
/// [`Metrics::handler_failures`](crate::metrics::Metrics::handler_failures). To choose the code and the text, use
/// [`HandlerError::new`]:
///
/// ```
/// use tidewire::{Client, Context, ErrorCode, HandlerError, HandlerResult, Message, RequestError, Server};
///
/// fn read(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
///     let name = std::str::from_utf8(message.payload)
///         .map_err(|_| HandlerError::new(ErrorCode::MalformedBody, "the name is not UTF-8"))?;
///     let text = std::fs::read("/no/such/directory".to_owned() + name)?;
///     cx.reply(&text)
/// }
///
/// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(read)?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// let Err(RequestError::Refused { code, text, .. }) = client.request(b"news").wait() else { panic!() };
/// assert_eq!((code, &text[..]), (ErrorCode::Internal, "the service failed to handle this"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A value that does not implement [`Error`], such as `Box<dyn Error + Send + Sync>` or `anyhow::Error`, needs
/// [`HandlerError::internal`]: `.map_err(HandlerError::internal)?`.
pub struct HandlerError(Box<Refusal>);

/// The refusal is boxed, so that a result without an error is a single word.
#[derive(Debug)]
struct Refusal {
    code: ErrorCode,
    text: Cow<'static, str>,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl HandlerError {
    /// Creates an error with a code for programs and a text for people.
    #[must_use]
    pub fn new(code: ErrorCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Refusal {
            code,
            text: text.into(),
            cause: None,
        }))
    }

    /// Creates a failure whose details are logged and not sent. The peer gets [`ErrorCode::Internal`].
    #[must_use]
    #[cold]
    pub fn internal(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Box::new(Refusal {
            code: ErrorCode::Internal,
            text: Cow::Borrowed(FAILED),
            cause: Some(cause.into()),
        }))
    }

    /// Returns the code for programs.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// Returns the text that the peer's user reads.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns the cause that is not sent to the peer, if there is one.
    #[must_use]
    pub fn cause(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.0.cause.as_deref()
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    #[cold]
    fn from(error: E) -> Self {
        match code_of(&error) {
            Some(code) => Self::new(code, error.to_string()),
            None => Self::internal(error),
        }
    }
}

impl From<HandlerError> for Box<dyn Error + Send + Sync> {
    fn from(error: HandlerError) -> Self {
        let text = error.to_string();
        error.0.cause.unwrap_or_else(|| text.into())
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { code, text, .. } = &*self.0;
        write!(formatter, "{code}: {text}")
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

/// Returns the code of an error whose text may be sent to the peer.
fn code_of(error: &dyn Any) -> Option<ErrorCode> {
    macro_rules! find {
        ($($error:ty => $code:expr,)*) => {
            $(if let Some(error) = error.downcast_ref::<$error>() {
                let code: fn(&$error) -> ErrorCode = $code;
                return Some(code(error));
            })*
        };
    }
    find! {
        SendError => |error| match error {
            SendError::NotOpen | SendError::Ended | SendError::OtherProcess => ErrorCode::NotFound,
            SendError::QueueFull => ErrorCode::LimitReached,
            SendError::Encode(_) => ErrorCode::Internal,
        },
        DecodeError => |_| ErrorCode::MalformedBody,
        EncodeError => |_| ErrorCode::Internal,
        RoomError => |error| error.code(),
        UpstreamError => |error| error.with_words(|code, _| code),
    }
    None
}

/// The code and the text of an error frame of a peer.
pub(crate) fn refusal(codec: &AnyCodec, message: &Message<'_>) -> (ErrorCode, String) {
    match codec.decode_error(message) {
        Ok(body) if body.text.is_empty() => (body.code, body.code.to_string()),
        Ok(body) => (body.code, body.text.to_owned()),
        Err(_) => (ErrorCode::Internal, "the refusal is malformed".to_owned()),
    }
}

impl Core {
    /// Counts and logs a failure of a handler, whose details are not sent to the peer.
    pub(super) fn note_failure(&mut self, id: SessionId, cause: &(dyn Error + 'static)) {
        self.counters.handler_failures.add(1);
        let cause = LoggedError(cause);
        let session = self.sessions.table.find(id);
        let peer = session.and_then(|it| it.profile.peer.as_deref());
        let peer = peer.map(tracing::field::display);
        match self.failure_log.may_log(self.sessions.timers.now_ns()) {
            Some(unlogged) => {
                tracing::warn!(session = %id, peer, unlogged, "a handler failed: {cause}");
            }
            None => tracing::debug!(session = %id, peer, "a handler failed: {cause}"),
        }
    }
}

/// An error with its causes, for a line of the log. It is formatted only when the line is written, because a peer can
/// make a handler fail for every message. The text may come from a peer, so it is escaped and its length is limited.
pub(super) struct LoggedError<'a>(pub(super) &'a dyn Error);

impl fmt::Display for LoggedError<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = describe(self.0);
        text.truncate(text.floor_char_boundary(LOGGED_BYTES_MAX));
        formatter.write_str(&text)
    }
}

/// The text that the peer gets in place of the details.
const FAILED: &str = "the service failed to handle this";

/// Longest text of an error in the log: a few lines of a terminal.
const LOGGED_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tidewire_proto::message::Kind;

    use super::*;
    use crate::Context;
    use crate::lane::lane_of;
    use crate::observe::logged;
    use crate::server::Server;

    /// Regression: a client had no text for a refusal without a body.
    #[test]
    fn a_malformed_refusal_has_a_text() {
        let codec = AnyCodec::by_name("tw1").unwrap();
        let message = Message::new(Kind::Error, 0, &[]);
        let (code, text) = refusal(&codec, &message);
        let told = "the refusal is malformed";
        assert_eq!((code, &*text), (ErrorCode::Internal, told));
    }

    #[test]
    fn errors_of_the_library_keep_code_and_text() {
        let precise = [
            (
                HandlerError::from(DecodeError::MalformedFrame),
                ErrorCode::MalformedBody,
            ),
            (SendError::QueueFull.into(), ErrorCode::LimitReached),
            (SendError::NotOpen.into(), ErrorCode::NotFound),
            (RoomError::NotSubscribed.into(), ErrorCode::NotJoined),
            (RoomError::OutOfMemory.into(), ErrorCode::LimitReached),
        ];
        for (error, code) in precise {
            assert_eq!(error.code(), code, "{error}");
            assert!(error.cause().is_none() && error.text() != FAILED, "{error}");
        }
    }

    #[test]
    fn the_details_of_other_errors_are_not_in_the_text() {
        let error = HandlerError::from(io::Error::other("/etc/secret"));
        assert_eq!((error.code(), error.text()), (ErrorCode::Internal, FAILED));
        assert_eq!(error.cause().unwrap().to_string(), "/etc/secret");
        assert_eq!(
            Box::<dyn Error + Send + Sync>::from(error).to_string(),
            "/etc/secret"
        );
        let boxed: Box<dyn Error + Send + Sync> = "text".into();
        assert_eq!(HandlerError::internal(boxed).code(), ErrorCode::Internal);
    }

    /// Regression: each failed message made a line in the log, as fast as a peer could send them.
    #[test]
    fn failures_are_logged_safely_and_not_for_every_message() {
        let handler = |_: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
            let text = String::from_utf8_lossy(message.payload).into_owned();
            Err(io::Error::other(text))?
        };
        let mut lane = lane_of(&Server::builder(), &handler);
        let (slot, mut far) = lane.open_session();
        let peer = SocketAddr::from(([203, 0, 113, 7], 4_000));
        lane.core.sessions[slot].profile.peer = Some(Arc::new(peer.into()));
        let payload = b"\x1b[2Jcleared\nforged".as_slice();
        let mut frame = Vec::new();
        let message = Message::new(Kind::OneWay, 0, payload);
        lane.core
            .config
            .codecs
            .main()
            .encode(&message, &mut frame)
            .unwrap();
        let mut read = |count: usize| {
            assert_eq!(
                far.write(&frame.repeat(count)).unwrap(),
                count * frame.len()
            );
            logged(|| lane.read_session(slot))
        };
        let lines = read(100);
        assert_eq!(lines.matches("a handler failed").count(), 1, "{lines}");
        assert!(
            lines.contains(r"\u{1b}[2Jcleared\nforged") && !lines.contains('\x1b'),
            "{lines}"
        );
        assert!(lines.contains("peer=tcp://203.0.113.7:4000"), "{lines}");
        assert_eq!(lane.core.counters.handler_failures.read(), 100);
        assert_eq!(lane.core.counters.refused.read(), 100);
        let later_ns = lane.core.sessions.timers.now_ns() + 11_000_000_000;
        lane.core.sessions.timers.set_time(later_ns);
        assert_eq!(far.write(&frame).unwrap(), frame.len());
        let lines = logged(|| lane.read_session(slot));
        assert!(lines.contains("unlogged=99"), "{lines}");
    }

    #[test]
    fn a_long_error_is_cut() {
        let error = io::Error::other("ä".repeat(5_000));
        let text = LoggedError(&error).to_string();
        assert_eq!(text.chars().count(), LOGGED_BYTES_MAX / 2);
    }

    /// Regression: an error that repeats the text of its cause was logged twice.
    #[test]
    fn a_failure_is_logged_as_a_program_describes_it() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct PassedOn(#[source] io::Error);
        let error = PassedOn(io::Error::other("disk full"));
        assert_eq!(LoggedError(&error).to_string(), "disk full");
    }

    /// Regression: each failure of a flood was formatted, even if nothing was logged.
    #[test]
    fn only_failures_that_are_logged_become_text() {
        static DESCRIBED: AtomicUsize = AtomicUsize::new(0);
        #[derive(Debug)]
        struct Counted;
        impl fmt::Display for Counted {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                DESCRIBED.fetch_add(1, Ordering::Relaxed);
                formatter.write_str("counted")
            }
        }
        impl Error for Counted {}
        let mut lane = lane_of(
            &Server::builder(),
            &|_: &mut Context<'_>, _: Message<'_>| Ok(()),
        );
        let lines = logged(|| {
            for _ in 0..100 {
                let context = lane.core.context_without_session();
                context.core.note_failure(SessionId::NONE, &Counted);
            }
        });
        assert_eq!(lines.matches("counted").count(), 1, "{lines}");
        assert_eq!(DESCRIBED.load(Ordering::Relaxed), 1);
        assert_eq!(lane.core.counters.handler_failures.read(), 100);
    }
}
