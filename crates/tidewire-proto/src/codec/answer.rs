//! The types in a codec's answers.

use crate::body::{JoinedBody, RecoveryBody, Roster};
use crate::message::Message;

/// The result of `decode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// There is no whole frame yet. `frame_bytes` is the frame's whole length if the header already contains it, else
    /// 0.
    Incomplete {
        /// The whole length of the partial frame, or 0 if it is not known yet.
        frame_bytes: usize,
    },
    /// One frame.
    Frame {
        /// The frame, which borrows the input.
        message: Message<'a>,
        /// The number of bytes of the input that it took.
        consumed: usize,
    },
}

/// How the replies of a codec find their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestIds {
    /// By order: the first reply belongs to the first request, and both travel as one-way messages.
    None,
    /// By an id of 8 bits. The ids are 1 to 255, so at most 255 requests are in flight.
    Bits8,
    /// By an id of 32 bits.
    Bits32,
}

/// The comparison of method names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MethodCase {
    /// Byte for byte.
    #[default]
    Exact,
    /// In lower case; only ASCII letters are converted.
    Lower,
}

impl MethodCase {
    /// Returns whether two names are of the same method.
    #[must_use]
    pub fn matches(self, one: &str, other: &str) -> bool {
        match self {
            Self::Exact => one == other,
            Self::Lower => one.eq_ignore_ascii_case(other),
        }
    }
}

/// The reply to a request about a room. In TW1 it is a reply whose payload has a structure.
#[derive(Clone, Copy, Debug)]
pub enum RoomReply<'a> {
    /// The sender of a join is in the room. If the room keeps a history, this is how much of it follows.
    Joined(JoinedBody, Option<RecoveryBody>),
    /// The members of the room.
    Members(Roster<'a>),
}
