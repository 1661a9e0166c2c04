//! The results of a codec, and what a lane passes for a room's replies.

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

/// The reply to a request about a room. In TW1 the payload of this reply has a structure.
#[derive(Clone, Copy, Debug)]
pub enum RoomReply<'a> {
    /// The sender of a join is in the room. With a history, the reply says how much of the history follows.
    Joined(JoinedBody, Option<RecoveryBody>),
    /// The members of the room.
    Members(Roster<'a>),
}
