//! The states of a connection: one enum for its life, and one for each direction.

use std::fmt;

use super::CloseReason;

/// The phase of a connection's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The transport is being connected.
    Connecting,
    /// The transport is connected, and its layers have handshakes of their own. No frame comes or goes.
    Securing,
    /// Accepted. The first frame must be a hello.
    AwaitHello,
    /// Connected. The first frame must be a welcome.
    AwaitWelcome,
    /// Accepted. The owner identifies the peer. No frame is handled yet.
    Authenticating,
    /// Messages may be exchanged.
    Open,
    /// The connection has ended. This phase is final.
    Closed(CloseReason),
}

/// The state of a connection's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbound {
    /// Input is read as it comes.
    Reading,
    /// Input is left in the transport until the last of these reasons is gone.
    Paused(PauseReasons),
    /// No more input is read: the peer has ended its side, or this side is about to close.
    Ended,
}

/// The state of a connection's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// Output is written.
    Writing {
        /// Whether the transport took less output than was offered.
        is_blocked: bool,
        /// The next step when all output is written.
        then: Then,
    },
    /// This side has ended; output is discarded. The peer's input is read to its end.
    HalfClosed,
    /// This side has ended; output is discarded. The connection closes when the transport has written its last bytes.
    Ending(CloseReason),
    /// The peer takes no more output, so output is discarded. Its earlier input is read to its end.
    Failed,
}

/// The next step when all output is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The connection stays open.
    GoOn,
    /// This side ends, and the peer's input is read to its end.
    HalfClose,
    /// The connection closes.
    Close(CloseReason),
}

/// A reason not to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PauseReason {
    /// Too much output waits for the peer.
    Output = 1 << 0,
    /// A room holds its publishers until a slow subscriber has caught up.
    Room = 1 << 1,
    /// Too many requests are not answered yet.
    Answers = 1 << 2,
    /// The service requested it.
    Service = 1 << 3,
    /// The server is short of memory, and messages of this peer would use more of it.
    Memory = 1 << 4,
    /// The peer has used up its rate limit.
    Rate = 1 << 5,
    /// The owner has not identified the peer yet.
    Authentication = 1 << 6,
}

/// Reasons not to read. With any reason, no input is read.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PauseReasons(u8);

/// Whether new work of the peer is served: requests, and messages without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewWork {
    /// The service handles it.
    Served,
    /// The peer was sent a go-away. Frames that were read before are served; then new work is refused.
    ServedToBacklog,
    /// New work is refused, because the peer was sent a go-away.
    Refused,
    /// New work is dropped. This side has ended, so no answer is possible.
    Dropped,
}

impl NewWork {
    /// Whether new work does not reach the service.
    #[inline(always)]
    #[must_use]
    pub const fn is_refused(self) -> bool {
        matches!(self, Self::Refused | Self::Dropped)
    }
}

impl Phase {
    /// The reason of the close, once the connection has closed.
    #[inline]
    #[must_use]
    pub const fn close_reason(self) -> Option<CloseReason> {
        match self {
            Self::Closed(reason) => Some(reason),
            _ => None,
        }
    }
}

impl Outbound {
    /// The initial state.
    pub(super) const WRITING: Self = Self::Writing {
        is_blocked: false,
        then: Then::GoOn,
    };

    /// Whether the transport takes output.
    pub(super) const fn may_write(self) -> bool {
        matches!(
            self,
            Self::Writing {
                is_blocked: false,
                ..
            }
        )
    }

    /// Whether output waits for the transport to take more.
    #[inline]
    #[must_use]
    pub const fn is_blocked(self) -> bool {
        matches!(
            self,
            Self::Writing {
                is_blocked: true,
                ..
            }
        )
    }
}

impl PauseReasons {
    /// No reason.
    pub const NONE: Self = Self(0);

    /// Whether this reason is one of them.
    #[inline]
    #[must_use]
    pub const fn contains(self, reason: PauseReason) -> bool {
        self.0 & reason as u8 != 0
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These reasons and one more.
    #[must_use]
    pub const fn with(self, reason: PauseReason) -> Self {
        Self(self.0 | reason as u8)
    }

    /// These reasons without `reason`.
    #[must_use]
    pub const fn without(self, reason: PauseReason) -> Self {
        Self(self.0 & !(reason as u8))
    }
}

impl fmt::Debug for PauseReasons {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            PauseReason::Output,
            PauseReason::Room,
            PauseReason::Answers,
            PauseReason::Service,
            PauseReason::Memory,
            PauseReason::Rate,
            PauseReason::Authentication,
        ];
        let reasons = all.into_iter().filter(|reason| self.contains(*reason));
        formatter.debug_set().entries(reasons).finish()
    }
}

/// Why this side asks the peer to end the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// The server shuts down.
    Shutdown,
    /// The connection has reached its maximum age. The peer connects again.
    Age,
}

impl Drain {
    /// The reason of a close that follows.
    #[must_use]
    pub const fn reason(self) -> CloseReason {
        match self {
            Self::Shutdown => CloseReason::Shutdown,
            Self::Age => CloseReason::ConnectionAge,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_a_set() {
        let both = PauseReasons::NONE
            .with(PauseReason::Room)
            .with(PauseReason::Output)
            .with(PauseReason::Room);
        assert!(both.contains(PauseReason::Room) && !both.contains(PauseReason::Answers));
        assert_eq!(format!("{both:?}"), "{Output, Room}");
        let one = both
            .without(PauseReason::Room)
            .without(PauseReason::Answers);
        assert_eq!(one, PauseReasons::NONE.with(PauseReason::Output));
        assert!(one.without(PauseReason::Output).is_empty());
    }
}

/// The features of both sides, fewer than seven, and whether the transport encrypts, in one byte. A second byte would
/// make each session of a server 8 bytes larger.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Features(u8);

impl Features {
    const ENCRYPTED: u8 = 1 << 7;

    pub(super) const fn has(self, feature: u32) -> bool {
        (self.0 & !Self::ENCRYPTED) as u32 & feature != 0
    }

    pub(super) const fn is_encrypted(self) -> bool {
        self.0 & Self::ENCRYPTED != 0
    }

    pub(super) const fn note_encrypted(&mut self) {
        self.0 |= Self::ENCRYPTED;
    }

    /// Notes the agreement of both sides.
    pub(super) const fn agree(&mut self, features: u32) {
        self.0 = self.0 & Self::ENCRYPTED | features as u8 & !Self::ENCRYPTED;
    }
}
