//! Reasons why a connection ends, and the farewell that tells them to the peer.
//!
//! A reason is one entry of the table below. Only reasons that depend on their data have lines beside it.

use std::fmt;
use std::io;

use super::AuthFailure;
use crate::body::GoAwayCode;
use crate::error::DecodeError;
use crate::handshake::HandshakeError;
use crate::layer::{Ending, LayerError, TlsFault};
use crate::limits::TEXT_BYTES_MAX;

/// Makes the reasons of their table. An entry has the variant, the name of its counter, the [`Ending`] for layers of
/// the transport, the code of the go-away before the close, or `none`, and the text.
macro_rules! reasons {
    ($(
        $(#[$doc:meta])*
        $variant:ident $(($field:ident: $type:ty))? $({ $(#[$flag_doc:meta])* $flag:ident: $flag_type:ty })?
            = $name:literal, $ending:ident, $code:ident, $text:literal;
    )*) => {
        /// The reason why a session ended. Counters use [`CloseReason::name`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum CloseReason {
            $($(#[$doc])* $variant $(($type))? $({ $(#[$flag_doc])* $flag: $flag_type })?,)*
        }

        /// The places of the reasons in their table.
        enum Place {
            $($variant,)*
        }

        impl CloseReason {
            /// Names of all reasons, in the order of their counters.
            pub const NAMES: [&'static str; [$($name),*].len()] = [$($name),*];

            /// The index of this reason in [`CloseReason::NAMES`].
            #[must_use]
            pub const fn index(self) -> usize {
                match self {
                    $(Self::$variant { .. } => Place::$variant as usize,)*
                }
            }

            const fn usual_ending(self) -> Ending {
                match self {
                    $(Self::$variant { .. } => Ending::$ending,)*
                }
            }

            const fn usual_code(self) -> Option<GoAwayCode> {
                match self {
                    $(Self::$variant { .. } => code!($code),)*
                }
            }

            fn write_usual(self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant $(($field))? $({ $flag: _ })? => write!(formatter, $text),)*
                }
            }
        }
    };
}

macro_rules! code {
    (none) => {
        None
    };
    ($code:ident) => {
        Some(GoAwayCode::$code)
    };
}

reasons! {
    /// The peer closed in order; over UDP by an empty datagram.
    PeerClosed = "peer_closed", InOrder, none,
        "the peer closed the connection";
    /// The peer vanished: reset or broken pipe.
    PeerReset = "peer_reset", InOrder, none,
        "the peer reset the connection";
    /// The service closed it.
    Service = "service", InOrder, none,
        "closed by the service";
    /// The server drained and stopped.
    Shutdown = "shutdown", GoingAway, Shutdown,
        "the server shut down";
    /// The peer announced that it would close.
    GoAway(code: GoAwayCode) = "go_away", InOrder, none,
        "the peer went away: {code}";
    /// No input came for the idle timeout, or for the receive timeout.
    IdleTimeout = "idle_timeout", Forbidden, IdleTimeout,
        "nothing came within the idle timeout";
    /// A frame began and did not end in time.
    FrameTimeout = "frame_timeout", Forbidden, IdleTimeout,
        "a frame began and did not end in time";
    /// No accepted hello came in time, or no answer to a service's login.
    HandshakeTimeout = "handshake_timeout", Forbidden, HandshakeTimeout,
        "the handshake or the login did not finish in time";
    /// The hello or welcome was not acceptable.
    Handshake(error: HandshakeError) = "handshake", Invalid, ProtocolError,
        "handshake failed: {error}";
    /// The bytes are not frames of the codec.
    Decode(error: DecodeError) = "decode", Invalid, ProtocolError,
        "not a frame of this codec: {error}";
    /// The session fell behind in a room whose policy disconnects.
    SlowSubscriber = "slow_subscriber", Forbidden, SlowSubscriber,
        "the peer fell too far behind in a room or topic";
    /// The server was near its memory limit and closed this session first. The server closes the newest sessions with
    /// an unfinished handshake or a partial frame, or the sessions that are furthest behind.
    MemoryLimit = "memory_limit", Overloaded, LimitReached,
        "the server was near its memory limit, and this session was slow or new, or its address held more than its \
         share";
    /// The peer sent more control frames than allowed.
    ControlFlood = "control_flood", Forbidden, LimitReached,
        "too many control frames";
    /// The peer sent more messages or bytes in a second than the server's rate limit, which is set to close sessions.
    RateLimit = "rate_limit", Forbidden, LimitReached,
        "the peer sent more than its rate limit allows";
    /// The peer sent a request with the id of another request that still waits, so their replies could not be
    /// distinguished.
    RequestIdReused = "request_id_reused", Invalid, ProtocolError,
        "a request has the id of one that is not answered yet";
    /// The lane failed: its poller failed, or its service panicked and could not continue.
    LaneFailed = "lane_failed", Failed, Shutdown,
        "the lane failed";
    /// The peer fell silent over UDP before its address was validated; see
    /// [`Rules::unvalidated_timeout_ns`](super::Rules::unvalidated_timeout_ns). It gets no go-away.
    Unvalidated = "unvalidated", Forbidden, none,
        "the peer fell silent before its address was established";
    /// Over UDP: the oldest session of an unvalidated address, closed to make room for another. It gets no go-away.
    Evicted = "evicted", Overloaded, none,
        "the session made room for another UDP address";
    /// A layer of the transport, such as TLS, failed.
    Layer(error: LayerError) = "layer", Failed, none,
        "a layer of the transport failed: {error}";
    /// The credentials of the peer were refused, when it connected or later.
    Unauthenticated(failure: AuthFailure) = "unauthenticated", Forbidden, Unauthenticated,
        "not authenticated: {failure}";
    /// The credentials of the peer have expired, and the peer sent no newer credentials.
    CredentialsExpired = "credentials_expired", Forbidden, Unauthenticated,
        "the credentials have expired";
    /// The handshakes of the peer's address, which a proxy named, were too many or held more memory than one address
    /// may.
    HandshakeLimit = "handshake_limit", Overloaded, none,
        "the handshakes of its address are too many, or hold more memory than they may";
    /// The connection reached the maximum age that the server allows, and was asked to connect again.
    ConnectionAge = "connection_age", GoingAway, Shutdown,
        "the connection reached its maximum age; connect again";
    /// The peer wanted the page of a WebSocket server, and got it.
    PageServed = "page_served", InOrder, none,
        "the peer wanted a page, and got it";
    /// A handler of the service panicked while it handled this session.
    HandlerPanicked = "handler_panicked", Failed, Shutdown,
        "a handler of the service panicked";
    /// A newer session of the same identity, or a session with the same name, replaced this session.
    Replaced {
        /// Whether its peer did not answer a ping. If false, the identity is configured so that newer sessions replace
        /// older sessions.
        was_silent: bool
    } = "replaced", Forbidden, IdleTimeout,
        "the peer did not answer, and gave way to a newer session";
    /// The client that a proxy named in its request has as many sessions as its address may have.
    SessionLimit = "session_limit", Overloaded, LimitReached,
        "the address of the client has as many sessions as it may have";
    /// The server was full, and this was the newest session of the address that had the most.
    Displaced = "displaced", Overloaded, LimitReached,
        "the server was full, and the address of this session had more sessions than any other";
    /// The socket failed in another way.
    Io(kind: io::ErrorKind) = "io", Failed, none,
        "i/o error: {kind}";
}

impl CloseReason {
    /// The name of this reason's counter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// Whether a connection that ends for this reason waits for its pending replies. It does if the peer, the service
    /// or the whole server only announced that no more requests follow.
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
            Self::Decode(DecodeError::FrameTooLarge { .. }) => Ending::TooLong,
            Self::Unauthenticated(AuthFailure::TooManySessions | AuthFailure::Unavailable) => {
                Ending::Overloaded
            }
            _ => self.usual_ending(),
        }
    }

    /// The code of the go-away before the close, if the codec has go-away frames and the peer may still read one. A
    /// layer that failed, or is not ready, carries no frames. An unvalidated address requested no connection.
    #[must_use]
    pub const fn go_away_code(self) -> Option<GoAwayCode> {
        match self {
            Self::Handshake(HandshakeError::Refused { .. }) => None,
            // The replaced client would only replace the newer session in turn.
            Self::Replaced { was_silent: false } => Some(GoAwayCode::Removed),
            // These bytes tell a TLS client that this side does not speak TLS.
            Self::Layer(LayerError::Tls(TlsFault::UnexpectedTls)) => {
                Some(GoAwayCode::ProtocolError)
            }
            // The credentials may be right: others would not help, and a normal pause is enough.
            Self::Unauthenticated(AuthFailure::TooManySessions | AuthFailure::Unavailable) => {
                Some(GoAwayCode::LimitReached)
            }
            _ => self.usual_code(),
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(LayerError::Tls(fault)) => write!(formatter, "TLS failed: {fault}"),
            Self::Layer(LayerError::WebSocket(fault)) => {
                write!(formatter, "WebSocket failed: {fault}")
            }
            Self::Replaced { was_silent: false } => {
                formatter.write_str("a newer session of the same user took its place")
            }
            _ => self.write_usual(formatter),
        }
    }
}

/// The reason why a side closes a connection, as in a go-away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// The reason, for programs.
    pub code: GoAwayCode,
    /// The reason, for people, in at most 255 bytes; may be empty. A peer's text may contain any characters: pass it
    /// through [`escaped`](crate::text::escaped) or [`visible`](crate::text::visible) before you show it.
    pub text: Box<str>,
}

impl Farewell {
    /// Makes a farewell. Its text is cut to 255 bytes.
    #[must_use]
    pub fn new(code: GoAwayCode, text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        Self {
            code,
            text: text.into(),
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
