//! Failures of WebSocket, with texts for a peer and an operator: what failed, and what to do.
//!
//! They are here and not beside the layer, because a [close reason](crate::connection::CloseReason) carries them.

use thiserror::Error;

/// One side of a WebSocket connection refused the other, or the other broke the rules of RFC 6455.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WebSocketFault {
    /// The first bytes of the peer are no HTTP.
    #[error("the peer does not speak HTTP: use the same of ws://, wss:// and tcp:// on both sides")]
    NotHttp,
    /// The headers of the handshake are longer than allowed, or too many.
    #[error(
        "the headers of the handshake are too long: send fewer or shorter cookies and other headers"
    )]
    HeadersTooLong,
    /// The request is HTTP but does not ask for WebSocket.
    #[error(
        "the peer sent a plain HTTP request: open this address with a WebSocket, not as a page"
    )]
    NotWebSocket,
    /// The request does not begin with `GET`.
    #[error("the handshake has another method than GET")]
    BadMethod,
    /// A request for the page of this address has another method than `GET` or `HEAD`.
    #[error("a page was requested with another method than GET or HEAD")]
    BadPageMethod,
    /// A page at another path was asked for.
    #[error("there is no page at this path")]
    NoSuchPage,
    /// The handshake is malformed, has a body, or repeats a header that must be there once.
    #[error("the handshake is malformed, or has a body or a header twice")]
    BadRequest,
    /// The request has both headers that name the client of a proxy.
    #[error(
        "the request has X-Forwarded-For and Forwarded: let the proxy remove the header that it does not write"
    )]
    TwoForwarded,
    /// The version is missing or is not 13.
    #[error("the peer asks for another version of WebSocket than 13")]
    WrongVersion,
    /// `Sec-WebSocket-Key` is missing or is not the base64 of 16 bytes.
    #[error("the handshake has no valid Sec-WebSocket-Key")]
    BadKey,
    /// The server has another path.
    #[error("the server does not listen at this path: compare the two addresses")]
    OtherPath,
    /// A browser opened the connection from a page that the server does not know.
    #[error(
        "a page of another origin tried to connect: add its origin to those that the server allows, or leave it refused"
    )]
    ForeignOrigin,
    /// The server's codec is not among the offered subprotocols, or the server chose another codec.
    #[error("the peer speaks another codec over WebSocket: use the same codec on both sides")]
    OtherCodec,
    /// The server answered the handshake with this HTTP status.
    #[error(
        "the server answered the handshake with HTTP status {0}: compare address, path and codec"
    )]
    Status(u16),
    /// The server's answer does not accept this handshake.
    #[error(
        "the server's answer is no valid answer to this handshake: there may be no WebSocket at this address"
    )]
    BadAnswer,
    /// The server uses an extension that was not offered.
    #[error("the server uses an extension that this side did not offer")]
    UnofferedExtension,
    /// A reserved bit is set. Compression uses one of them, and it is not offered.
    #[error("a frame has a reserved bit: the peer uses an extension that was not agreed on")]
    ReservedBits,
    /// The kind of a frame is reserved.
    #[error("a frame is of a reserved kind")]
    ReservedOpcode,
    /// A client sent a frame without a mask.
    #[error("a frame of the client has no mask")]
    Unmasked,
    /// A server sent a frame with a mask.
    #[error("a frame of the server has a mask")]
    Masked,
    /// A control frame is longer than 125 bytes.
    #[error("a control frame is longer than 125 bytes")]
    ControlTooLong,
    /// A control frame is one of several fragments.
    #[error("a control frame is fragmented")]
    ControlFragmented,
    /// The length of a frame is not in its shortest form, or above 2^63.
    #[error("the length of a frame is not valid")]
    BadLength,
    /// A fragment came without the beginning of its message.
    #[error("a fragment came without the beginning of its message")]
    UnexpectedFragment,
    /// A message began inside another one.
    #[error("a message began before the last one ended")]
    UnfinishedMessage,
    /// The content of a close frame is not valid.
    #[error("a close frame is not valid")]
    BadClose,
    /// A text is no UTF-8.
    #[error("a text message is not valid UTF-8")]
    BadText,
    /// A text message came where the codec needs bytes.
    #[error("a text message came, and this codec needs binary messages")]
    UnexpectedText,
    /// A message is longer than this side allows.
    #[error("a message is longer than allowed: send it in several messages")]
    MessageTooLong,
    /// Many control frames came at once.
    #[error("the peer sends pings faster than they can be answered")]
    ControlFlood,
    /// The peer closed with this code, which means a failure.
    #[error("the peer closed the WebSocket with code {}{}", .0, meaning(*.0))]
    Closed(u16),
}

impl WebSocketFault {
    /// Whether it ended the handshake, so that no message came.
    #[must_use]
    pub fn is_of_handshake(self) -> bool {
        self.http_status().is_some()
            || matches!(
                self,
                Self::Status(_) | Self::BadAnswer | Self::UnofferedExtension
            )
    }

    /// The HTTP status by which a server refuses a handshake. `None` for faults of later frames.
    #[must_use]
    pub fn http_status(self) -> Option<u16> {
        Some(match self {
            Self::NotHttp
            | Self::BadRequest
            | Self::TwoForwarded
            | Self::BadKey
            | Self::OtherCodec => 400,
            Self::ForeignOrigin => 403,
            Self::OtherPath | Self::NoSuchPage => 404,
            Self::BadMethod | Self::BadPageMethod => 405,
            Self::NotWebSocket | Self::WrongVersion => 426,
            Self::HeadersTooLong => 431,
            _ => return None,
        })
    }

    /// The code of the close frame that names this fault to the peer.
    #[must_use]
    pub fn close_code(self) -> u16 {
        match self {
            Self::UnexpectedText => 1003,
            Self::BadText => 1007,
            Self::ControlFlood => 1008,
            Self::MessageTooLong => 1009,
            Self::Closed(code) => code,
            _ => 1002,
        }
    }
}

/// The meaning of a close code of RFC 6455 and its registry.
fn meaning(code: u16) -> &'static str {
    match code {
        1002 => ": it found a frame of this side not valid",
        1003 => ": it does not take messages of this kind; compare the codecs of both sides",
        1007 => ": it found a text that is not UTF-8",
        1008 => ": its policy does not allow this connection",
        1009 => ": a message was too long for it",
        1010 => ": it needs an extension that this side does not have",
        1011 => ": it failed",
        1012 => ": it restarts",
        1013 => ": it is overloaded; try again later",
        1014 => ": a server behind it failed",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_says_what_to_do() {
        let text = WebSocketFault::ForeignOrigin.to_string();
        assert!(text.contains("add its origin"), "{text}");
        let text = WebSocketFault::Closed(1013).to_string();
        assert!(
            text.ends_with("code 1013: it is overloaded; try again later"),
            "{text}"
        );
        assert!(
            WebSocketFault::Closed(4_000)
                .to_string()
                .ends_with("code 4000")
        );
    }
}
