//! The numbers that tell programs why a request was refused or a connection ends.
//!
//! A number that this version does not know is kept as `Other`, not refused. The text beside it still tells a person
//! what happened, and a newer peer may have more reasons.

use std::fmt;

/// Why a request was refused. Its `Display` is plain text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The receiver does not know the request; do not repeat it.
    Unsupported,
    /// The named room, member or topic does not exist, or what a method was asked for.
    NotFound,
    /// The name is empty; choose another.
    NameEmpty,
    /// A member of the room has this name; choose another.
    NameTaken,
    /// The name is too long or has characters that names must not have; choose another.
    NameInvalid,
    /// The sender is not in the room that it sends to; join first.
    NotJoined,
    /// The sender is in that room already.
    AlreadyJoined,
    /// A limit was reached; try later or close something first.
    LimitReached,
    /// The request's payload is not what its kind requires.
    MalformedBody,
    /// The server is shutting down; connect to another or later.
    Draining,
    /// The receiver failed; the request may or may not have had an effect.
    Internal,
    /// The sender is not allowed to do this; it needs other credentials or more permissions.
    Forbidden,
    /// The receiver has no method of this name. No method ran.
    MethodNotFound,
    /// A code of a newer version.
    Other(u16),
}

impl ErrorCode {
    /// The code of an error in a format without codes. TW1 never sends it.
    pub const UNKNOWN: Self = Self::Other(0);

    /// Returns the code with this number.
    #[must_use]
    pub const fn from_wire(number: u16) -> Self {
        match number {
            1 => Self::Unsupported,
            2 => Self::NotFound,
            3 => Self::NameEmpty,
            4 => Self::NameTaken,
            5 => Self::NameInvalid,
            6 => Self::NotJoined,
            7 => Self::AlreadyJoined,
            8 => Self::LimitReached,
            9 => Self::MalformedBody,
            10 => Self::Draining,
            11 => Self::Internal,
            12 => Self::Forbidden,
            13 => Self::MethodNotFound,
            other => Self::Other(other),
        }
    }

    /// Returns the code's number on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Unsupported => 1,
            Self::NotFound => 2,
            Self::NameEmpty => 3,
            Self::NameTaken => 4,
            Self::NameInvalid => 5,
            Self::NotJoined => 6,
            Self::AlreadyJoined => 7,
            Self::LimitReached => 8,
            Self::MalformedBody => 9,
            Self::Draining => 10,
            Self::Internal => 11,
            Self::Forbidden => 12,
            Self::MethodNotFound => 13,
            Self::Other(number) => number,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Unsupported => "this request is not supported here",
            Self::NotFound => "no such room, member or topic",
            Self::NameEmpty => "the name is empty",
            Self::NameTaken => "the name is taken",
            Self::NameInvalid => "the name is not allowed",
            Self::NotJoined => "you are not in this room",
            Self::AlreadyJoined => "you are in this room already",
            Self::LimitReached => "a limit of the server is reached",
            Self::MalformedBody => "the request is malformed",
            Self::Draining => "the server is shutting down",
            Self::Internal => "the server failed",
            Self::Forbidden => "you may not do this",
            Self::MethodNotFound => "no such method",
            Self::Other(0) => "the peer gave no reason",
            Self::Other(number) => return write!(formatter, "error code {number}"),
        })
    }
}

/// Why a peer will close the connection. Its `Display` is plain text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GoAwayCode {
    /// The peer is shutting down; reconnect later or elsewhere.
    Shutdown,
    /// No bytes arrived for longer than the idle timeout; send pings.
    IdleTimeout,
    /// The handshake did not finish in time.
    HandshakeTimeout,
    /// The bytes are not the protocol, or the connection's state does not allow the frames.
    ProtocolError,
    /// A limit was passed.
    LimitReached,
    /// The receiver read more slowly than its subscriptions' policy allows.
    SlowSubscriber,
    /// The peer no longer wants this session; do not connect again.
    Removed,
    /// The credentials are missing, wrong, expired or revoked; connect again with others.
    Unauthenticated,
    /// A code of a newer version, or of the application. Applications use 4000 to 4999; a code from 4500 on means that
    /// the receiver should not connect again.
    Other(u16),
}

impl GoAwayCode {
    /// Whether the receiver should not connect again: [`Removed`](Self::Removed), and the numbers from 4500 to 4999.
    ///
    /// ```
    /// use tidewire_proto::body::GoAwayCode;
    ///
    /// assert!(GoAwayCode::Removed.is_final() && GoAwayCode::Other(4500).is_final());
    /// assert!(!GoAwayCode::Shutdown.is_final() && !GoAwayCode::Other(4499).is_final());
    /// ```
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Removed | Self::Other(4500..=4999))
    }

    /// Returns the code with this number.
    #[must_use]
    pub const fn from_wire(number: u16) -> Self {
        match number {
            1 => Self::Shutdown,
            2 => Self::IdleTimeout,
            3 => Self::HandshakeTimeout,
            4 => Self::ProtocolError,
            5 => Self::LimitReached,
            6 => Self::SlowSubscriber,
            7 => Self::Removed,
            8 => Self::Unauthenticated,
            other => Self::Other(other),
        }
    }

    /// Returns the code's number on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Shutdown => 1,
            Self::IdleTimeout => 2,
            Self::HandshakeTimeout => 3,
            Self::ProtocolError => 4,
            Self::LimitReached => 5,
            Self::SlowSubscriber => 6,
            Self::Removed => 7,
            Self::Unauthenticated => 8,
            Self::Other(number) => number,
        }
    }
}

impl fmt::Display for GoAwayCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Shutdown => "the peer is shutting down",
            Self::IdleTimeout => "nothing arrived within the idle timeout",
            Self::HandshakeTimeout => "the handshake did not finish in time",
            Self::ProtocolError => "the protocol was violated",
            Self::LimitReached => "a limit was passed",
            Self::SlowSubscriber => "the subscriber reads too slowly",
            Self::Removed => "the peer removed this session for good",
            Self::Unauthenticated => "the credentials are missing, wrong, expired or revoked",
            Self::Other(number) => return write!(formatter, "go-away code {number}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_the_wire() {
        for number in 0..=u16::MAX {
            assert_eq!(ErrorCode::from_wire(number).to_wire(), number);
            assert_eq!(GoAwayCode::from_wire(number).to_wire(), number);
        }
    }

    #[test]
    fn known_and_unknown_codes_read_as_words() {
        assert_eq!(ErrorCode::from_wire(4).to_string(), "the name is taken");
        assert_eq!(ErrorCode::from_wire(13), ErrorCode::MethodNotFound);
        assert_eq!(ErrorCode::from_wire(14).to_string(), "error code 14");
        assert_eq!(ErrorCode::UNKNOWN.to_string(), "the peer gave no reason");
        assert_eq!(GoAwayCode::from_wire(9), GoAwayCode::Other(9));
        assert_eq!(GoAwayCode::Other(9).to_string(), "go-away code 9");
    }
}
