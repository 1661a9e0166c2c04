//! Why a message was not left for a lane.

use thiserror::Error;
use tidewire_proto::error::EncodeError;

/// A message was not handed to the client's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// The queue to the lane is full; try again.
    #[error("the client's queue is full")]
    QueueFull,
    /// The client ended.
    #[error("the client has ended")]
    Ended,
    /// The codec cannot express the message, or it is larger than what both sides take.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}
