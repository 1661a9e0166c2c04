//! Why a client cannot connect, send, or tell a reply.

use thiserror::Error;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::error::EncodeError;
use tidewire_proto::text::escaped;
use tidewire_proto::topic::TopicError;

use super::disconnected::Disconnected;
use crate::address::AddressError;
use crate::mailbox::EnqueueError;
use crate::server::ServeError;
use crate::transport::ConnectFailure;

/// A client could not connect. An error of [`Client::connect`](crate::Client::connect).
/// [`ConnectFailure`] has an example.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is not an address, or its host is unknown.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The client's own lane could not start.
    #[error(transparent)]
    Start(#[from] ServeError),
    /// The server refused, did not answer, or speaks something else.
    #[error(transparent)]
    Failed(#[from] ConnectFailure),
    /// The lane ended before the connection was made.
    #[error("the client ended before it was connected")]
    Ended,
}

/// Why a request has no reply. An error of [`Client::request`](crate::Client::request).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The server refused it. Whether to try again depends on the code.
    #[error("{}", escaped(text.as_bytes()))]
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
    /// The connection ended first. The request may have had its effect. If the server said why, so does this.
    #[error("the connection ended before the reply: {0}")]
    Closed(Disconnected),
    /// There is no connection now; nothing was sent.
    #[error("not connected")]
    NotConnected,
    /// There is no connection, because the last attempt to make one failed; nothing was sent. Try again later, unless
    /// [`Event::Closed`](crate::Event::Closed) says that the server refused it for good.
    #[error("{cause}")]
    CannotConnect {
        /// Why, for people.
        cause: String,
    },
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
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The text is not a pattern; nothing was sent. Correct it.
    #[error(transparent)]
    Pattern(#[from] TopicError),
    /// The reply was not what this kind of request answers with.
    #[error("the reply is malformed")]
    MalformedReply,
    /// The client has ended: it was shut down, its connection ended and it does not reconnect, or the server asked it
    /// [not to](crate::GoAwayCode::is_final). [`Event::Closed`](crate::Event::Closed) said why.
    #[error("the client was shut down")]
    Shutdown,
}

impl From<EnqueueError> for RequestError {
    fn from(error: EnqueueError) -> Self {
        match error {
            EnqueueError::QueueFull => Self::WindowFull,
            EnqueueError::Ended => Self::Shutdown,
            EnqueueError::Encode(error) => Self::Encode(error),
        }
    }
}

/// Why a request fits no frame of at most `limit` bytes.
#[cold]
pub(super) fn too_large(name: &str, payload: &[u8], limit: usize) -> EncodeError {
    if payload.len() > limit {
        EncodeError::PayloadTooLarge {
            bytes: payload.len() as u64,
            limit: limit as u64,
        }
    } else {
        EncodeError::TextTooLong {
            bytes: name.len(),
            limit,
        }
    }
}
