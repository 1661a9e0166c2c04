//! Reasons why a connection ends.

use std::fmt;
use std::io;

use super::AuthFailure;
use crate::body::GoAwayCode;
use crate::error::DecodeError;
use crate::handshake::HandshakeError;
use crate::layer::{Ending, LayerError, TlsFault};

/// The reason why a session ended. Counters use [`CloseReason::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed in order; over UDP by an empty datagram.
    PeerClosed,
    /// The peer vanished: reset or broken pipe.
    PeerReset,
    /// The service closed it.
    Service,
    /// The server drained and stopped.
    Shutdown,
    /// The peer announced that it would close.
    GoAway(GoAwayCode),
    /// No input came for the idle timeout, or for the receive timeout.
    IdleTimeout,
    /// A frame began and did not end in time.
    FrameTimeout,
    /// No accepted hello came in time, or no answer to a service's login.
    HandshakeTimeout,
    /// The hello or welcome was not acceptable.
    Handshake(HandshakeError),
    /// The bytes are not frames of the codec.
    Decode(DecodeError),
    /// The session fell behind in a room whose policy disconnects.
    SlowSubscriber,
    /// The server was near its memory limit and closed this session first. It closes the newest sessions with an
    /// unfinished handshake or a partial frame, or those that are furthest behind.
    MemoryLimit,
    /// The peer sent more control frames than allowed.
    ControlFlood,
    /// The peer sent more messages or bytes in a second than the server's rate limit, which is set to close sessions.
    RateLimit,
    /// The peer sent a request with the id of another one that still waits, so their replies could not be told apart.
    RequestIdReused,
    /// The lane failed: its poller failed, or its service panicked and could not go on.
    LaneFailed,
    /// The peer fell silent over UDP before its address was validated; see
    /// [`Rules::unvalidated_timeout_ns`](super::Rules::unvalidated_timeout_ns). It gets no go-away.
    Unvalidated,
    /// Over UDP: the oldest session of an unvalidated address, closed to make room for another. It gets no go-away.
    Evicted,
    /// A layer of the transport, such as TLS, could not go on.
    Layer(LayerError),
    /// The credentials of the peer were refused, when it connected or later.
    Unauthenticated(AuthFailure),
    /// The credentials of the peer have expired, and it sent no newer ones.
    CredentialsExpired,
    /// The unfinished handshakes of the peer's address held more memory than one address may.
    HandshakeLimit,
    /// The connection reached the maximum age that the server allows, and was asked to come back.
    ConnectionAge,
    /// The peer wanted the page of a WebSocket server, and got it.
    PageServed,
    /// A handler of the service panicked while it handled this session.
    HandlerPanicked,
    /// The session gave way to a newer one of its identity, or to one that wanted its name.
    Replaced {
        /// Whether its peer did not answer a ping. If not, the identity is set so that newer sessions replace older ones.
        was_silent: bool,
    },
    /// The client that a proxy named in its request has as many sessions as its address may have.
    SessionLimit,
    /// The server was full, and this was the newest session of the address that had the most.
    Displaced,
    /// The socket failed in another way.
    Io(io::ErrorKind),
}

impl CloseReason {
    /// Names of all reasons, in the order of their counters.
    pub const NAMES: [&'static str; 29] = [
        "peer_closed",
        "peer_reset",
        "service",
        "shutdown",
        "go_away",
        "idle_timeout",
        "frame_timeout",
        "handshake_timeout",
        "handshake",
        "decode",
        "slow_subscriber",
        "memory_limit",
        "control_flood",
        "rate_limit",
        "request_id_reused",
        "lane_failed",
        "unvalidated",
        "evicted",
        "layer",
        "unauthenticated",
        "credentials_expired",
        "handshake_limit",
        "connection_age",
        "page_served",
        "handler_panicked",
        "replaced",
        "session_limit",
        "displaced",
        "io",
    ];

    /// The index of this reason in [`CloseReason::NAMES`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::PeerClosed => 0,
            Self::PeerReset => 1,
            Self::Service => 2,
            Self::Shutdown => 3,
            Self::GoAway(_) => 4,
            Self::IdleTimeout => 5,
            Self::FrameTimeout => 6,
            Self::HandshakeTimeout => 7,
            Self::Handshake(_) => 8,
            Self::Decode(_) => 9,
            Self::SlowSubscriber => 10,
            Self::MemoryLimit => 11,
            Self::ControlFlood => 12,
            Self::RateLimit => 13,
            Self::RequestIdReused => 14,
            Self::LaneFailed => 15,
            Self::Unvalidated => 16,
            Self::Evicted => 17,
            Self::Layer(_) => 18,
            Self::Unauthenticated(_) => 19,
            Self::CredentialsExpired => 20,
            Self::HandshakeLimit => 21,
            Self::ConnectionAge => 22,
            Self::PageServed => 23,
            Self::HandlerPanicked => 24,
            Self::Replaced { .. } => 25,
            Self::SessionLimit => 26,
            Self::Displaced => 27,
            Self::Io(_) => 28,
        }
    }

    /// The name of this reason's counter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// Whether a connection that ends for this reason waits for its pending replies: the peer, the service or the whole
    /// server only announced that no more requests follow.
    #[must_use]
    pub const fn waits_for_answers(self) -> bool {
        matches!(
            self,
            Self::PeerClosed
                | Self::Service
                | Self::Shutdown
                | Self::ConnectionAge
                | Self::GoAway(_)
        )
    }

    /// Whether the peer requested not to connect again; see [`GoAwayCode::is_final`].
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::GoAway(code) if code.is_final())
    }

    /// The ending that a layer of the transport may tell the peer for this reason.
    #[must_use]
    pub const fn ending(self) -> Ending {
        match self {
            Self::PeerClosed
            | Self::PeerReset
            | Self::Service
            | Self::PageServed
            | Self::GoAway(_) => Ending::InOrder,
            Self::Shutdown | Self::ConnectionAge => Ending::GoingAway,
            Self::Decode(DecodeError::FrameTooLarge { .. }) => Ending::TooLong,
            Self::Handshake(_) | Self::Decode(_) | Self::RequestIdReused => Ending::Invalid,
            Self::MemoryLimit
            | Self::SessionLimit
            | Self::HandshakeLimit
            | Self::Evicted
            | Self::Displaced
            | Self::Unauthenticated(AuthFailure::TooManySessions | AuthFailure::Unavailable) => {
                Ending::Overloaded
            }
            Self::LaneFailed | Self::HandlerPanicked | Self::Layer(_) | Self::Io(_) => {
                Ending::Failed
            }
            Self::IdleTimeout
            | Self::FrameTimeout
            | Self::HandshakeTimeout
            | Self::SlowSubscriber
            | Self::ControlFlood
            | Self::RateLimit
            | Self::Unvalidated
            | Self::Unauthenticated(_)
            | Self::Replaced { .. }
            | Self::CredentialsExpired => Ending::Forbidden,
        }
    }

    /// The code of the go-away before the close, if its codec has one and the peer may still read it.
    #[must_use]
    pub const fn go_away_code(self) -> Option<GoAwayCode> {
        match self {
            Self::Handshake(HandshakeError::Refused { .. }) => None,
            // The peer should come back, as after the end of a server.
            Self::Shutdown | Self::LaneFailed | Self::HandlerPanicked | Self::ConnectionAge => {
                Some(GoAwayCode::Shutdown)
            }
            Self::IdleTimeout | Self::FrameTimeout | Self::Replaced { was_silent: true } => {
                Some(GoAwayCode::IdleTimeout)
            }
            // Its client would only replace the newer session in turn.
            Self::Replaced { was_silent: false } => Some(GoAwayCode::Removed),
            Self::HandshakeTimeout => Some(GoAwayCode::HandshakeTimeout),
            // A client that speaks TLS learns from these bytes that this side does not.
            Self::Layer(LayerError::Tls(TlsFault::UnexpectedTls))
            | Self::Handshake(_)
            | Self::Decode(_)
            | Self::RequestIdReused => Some(GoAwayCode::ProtocolError),
            Self::SlowSubscriber => Some(GoAwayCode::SlowSubscriber),
            // The credentials may be right: other ones would not help, and a normal pause is enough.
            Self::MemoryLimit
            | Self::SessionLimit
            | Self::ControlFlood
            | Self::RateLimit
            | Self::Displaced
            | Self::Unauthenticated(AuthFailure::TooManySessions | AuthFailure::Unavailable) => {
                Some(GoAwayCode::LimitReached)
            }
            Self::Unauthenticated(_) | Self::CredentialsExpired => {
                Some(GoAwayCode::Unauthenticated)
            }
            // An unvalidated address did not ask for a go-away.
            Self::Unvalidated | Self::Evicted => None,
            // A layer that failed, or is not ready, carries no frames.
            Self::PeerClosed
            | Self::PeerReset
            | Self::Service
            | Self::GoAway(_)
            | Self::Layer(_)
            | Self::HandshakeLimit
            | Self::PageServed
            | Self::Io(_) => None,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerClosed => formatter.write_str("the peer closed the connection"),
            Self::PeerReset => formatter.write_str("the peer reset the connection"),
            Self::Service => formatter.write_str("closed by the service"),
            Self::Shutdown => formatter.write_str("the server shut down"),
            Self::GoAway(code) => write!(formatter, "the peer went away: {code}"),
            Self::IdleTimeout => formatter.write_str("nothing came within the idle timeout"),
            Self::FrameTimeout => formatter.write_str("a frame began and did not end in time"),
            Self::HandshakeTimeout => {
                formatter.write_str("the handshake or the login did not finish in time")
            }
            Self::Handshake(error) => write!(formatter, "handshake failed: {error}"),
            Self::Decode(error) => write!(formatter, "not a frame of this codec: {error}"),
            Self::SlowSubscriber => {
                formatter.write_str("the peer fell too far behind in a room or topic")
            }
            Self::MemoryLimit => formatter.write_str(
                "the server was near its memory limit, and this session was slow or new, or its address held more than its share",
            ),
            Self::ControlFlood => formatter.write_str("too many control frames"),
            Self::RateLimit => formatter.write_str("the peer sent more than its rate limit allows"),
            Self::RequestIdReused => {
                formatter.write_str("a request has the id of one that is not answered yet")
            }
            Self::LaneFailed => formatter.write_str("the lane failed"),
            Self::Unvalidated => {
                formatter.write_str("the peer fell silent before its address was established")
            }
            Self::Evicted => formatter.write_str("the session made room for another UDP address"),
            Self::Layer(LayerError::Tls(fault)) => write!(formatter, "TLS failed: {fault}"),
            Self::Layer(LayerError::WebSocket(fault)) => {
                write!(formatter, "WebSocket failed: {fault}")
            }
            Self::Layer(error) => write!(formatter, "a layer of the transport failed: {error}"),
            Self::Unauthenticated(failure) => write!(formatter, "not authenticated: {failure}"),
            Self::CredentialsExpired => formatter.write_str("the credentials have expired"),
            Self::HandshakeLimit => formatter.write_str(
                "the handshakes of its address are too many, or hold more memory than they may",
            ),
            Self::ConnectionAge => {
                formatter.write_str("the connection reached its maximum age; connect again")
            }
            Self::Replaced { was_silent: true } => {
                formatter.write_str("the peer did not answer, and gave way to a newer session")
            }
            Self::Replaced { was_silent: false } => {
                formatter.write_str("a newer session of the same user took its place")
            }
            Self::SessionLimit => {
                formatter.write_str("the address of the client has as many sessions as it may have")
            }
            Self::PageServed => formatter.write_str("the peer wanted a page, and got it"),
            Self::HandlerPanicked => formatter.write_str("a handler of the service panicked"),
            Self::Displaced => formatter.write_str(
                "the server was full, and the address of this session had more sessions than any other",
            ),
            Self::Io(kind) => write!(formatter, "i/o error: {kind}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_counter_of_its_own() {
        let names: std::collections::HashSet<_> = CloseReason::NAMES.iter().collect();
        assert_eq!(names.len(), CloseReason::NAMES.len());
        assert_eq!(
            CloseReason::Io(io::ErrorKind::Other).index(),
            CloseReason::NAMES.len() - 1
        );
    }
}
