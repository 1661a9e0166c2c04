//! Errors of a client's requests, and the end of a connection.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::body::NameError;
use tidewire_proto::error::EncodeError;
use tidewire_proto::text::escaped;

use crate::on_lane::NO_WAIT_ON_A_LANE;
use crate::session::{CloseReason, SendError};

/// A request has no reply. An error of [`Client::request`](crate::Client::request).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The server refused the request. Whether a retry makes sense depends on the code.
    #[error("{}", escaped(text.as_bytes()))]
    Refused {
        /// The reason, for programs.
        code: ErrorCode,
        /// The number for it in the codec's own format, which may be more specific. 0 if there is none.
        number: i32,
        /// The reason, for people.
        text: String,
    },
    /// No reply came within the deadline. The server may have processed the request.
    #[error("no reply within the deadline")]
    TimedOut,
    /// The connection ended before the reply. The server may have processed the request. The payload has the server's
    /// explanation, if it sent one.
    #[error("the connection ended before the reply: {0}")]
    Closed(Disconnected),
    /// There is no connection now. The request was not sent.
    #[error("the request was not sent: there is no connection to the server")]
    NotConnected,
    /// There is no connection, because the last attempt to connect failed. The request was not sent. Try again later,
    /// unless [`Event::Closed`](crate::Event::Closed) says that the server refused the client for good.
    #[error("{cause}")]
    CannotConnect {
        /// The error of that attempt, for people.
        cause: String,
    },
    /// The window is full: as many requests wait for their replies as allowed, in number or in
    /// [bytes](crate::limits::ConnectionLimits::queue_bytes_max). The request was not sent. Try again after a reply.
    #[error("too many requests wait for their replies; try again after a reply")]
    WindowFull,
    /// The codec matches replies by their order. Over UDP a reply may be lost, and the next reply would match the wrong
    /// request. The request was not sent.
    #[error(
        "replies without ids cannot be matched over UDP; use tcp:// or a codec with ids (tw1, json, srmp, srmp-rpc, \
         uvrpc)"
    )]
    CannotMatch,
    /// The codec cannot express the request. It was not sent.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The text is not a pattern. The request was not sent. Correct the pattern.
    #[error(transparent)]
    Pattern(#[from] NameError),
    /// The reply does not have the form that this kind of request expects.
    #[error("the reply does not have the form that this request expects")]
    MalformedReply,
    /// The [flush](crate::Client::flush) confirms nothing: earlier messages were lost with their connection, or were
    /// not sent without a connection. The next flush does not report them again. Send the unconfirmed messages again.
    /// Some of it may come twice.
    #[error(
        "the connection ended since the last confirmation: up to {messages} messages may be lost; send again what was \
         not confirmed"
    )]
    MayBeLost {
        /// The number of messages without a confirmation: publications, one-way messages and messages to rooms.
        messages: u64,
    },
    /// The client belongs to another process: this process is a child by `fork`. Nothing was sent from here. Connect
    /// after the fork.
    #[error("this client belongs to another process; connect after the fork")]
    OtherProcess,
    /// The client has ended: it was shut down, its connection ended without reconnecting, or the server
    /// [forbade](crate::GoAwayCode::is_final) a new connection. An earlier [`Event::Closed`](crate::Event::Closed) has
    /// the reason.
    #[error("the client has ended")]
    Shutdown,
    /// The call would have waited on a lane, for example in a handler, and so would have stopped all sessions of the
    /// lane. The request may have been sent.
    #[error("cannot wait for a reply: {NO_WAIT_ON_A_LANE}")]
    OnLane,
}

/// The reason why a connection ended, with the peer's explanation. `Display` escapes the text, so the result is safe
/// for a terminal and a log. A cause of [`RequestError::Closed`](crate::RequestError::Closed).
///
/// ```
/// use tidewire::{CloseReason, Disconnected};
///
/// let end = Disconnected::from(CloseReason::PeerClosed);
/// assert_eq!(end.to_string(), "the peer closed the connection");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnected {
    /// The reason, for programs.
    pub reason: CloseReason,
    /// The peer's explanation, or empty. It is foreign text, as the peer sent it: pass it through
    /// [`visible`](tidewire_proto::text::visible) before you show it.
    pub text: Arc<str>,
}

impl From<CloseReason> for Disconnected {
    /// The end of a connection without an explanation from the peer.
    fn from(reason: CloseReason) -> Self {
        let text = Arc::from("");
        Self { reason, text }
    }
}

impl fmt::Display for Disconnected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, text } = self;
        match text.is_empty() {
            true => write!(formatter, "{reason}"),
            false => write!(formatter, "{reason}: {}", escaped(text.as_bytes())),
        }
    }
}

impl From<SendError> for RequestError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::QueueFull => Self::WindowFull,
            SendError::NotOpen => Self::NotConnected,
            SendError::Ended => Self::Shutdown,
            SendError::OtherProcess => Self::OtherProcess,
            SendError::Encode(error) => Self::Encode(error),
        }
    }
}

/// Returns the error of a request that fits no frame of at most `limit` bytes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GoAwayCode;

    #[test]
    fn the_words_of_a_peer_reach_a_terminal_escaped() {
        let end = Disconnected {
            reason: CloseReason::GoAway(GoAwayCode::Removed),
            text: "no\x1b[2J spam".into(),
        };
        assert_eq!(
            end.to_string(),
            "the peer went away: the peer removed this session for good: no\\u{1b}[2J spam"
        );
        let end = Disconnected::from(CloseReason::PeerClosed);
        assert_eq!(end.to_string(), "the peer closed the connection");
    }
}
