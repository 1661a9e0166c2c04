//! The error of a message that was not queued for a client's lane.

use thiserror::Error;
use tidewire_proto::error::EncodeError;

/// A message could not be enqueued for the client's lane. An error of [`Client::send`](crate::Client::send).
///
/// ```
/// use tidewire::{Client, EnqueueError};
///
/// let server = tidewire::serve("tcp://127.0.0.1:0", |_, _| Ok(()))?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// client.close().wait();
/// assert_eq!(client.send(b"too late"), Err(EnqueueError::Ended));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The queue to the lane is full. Try again.
    #[error("the client's queue is full; try again")]
    QueueFull,
    /// The client has ended.
    #[error("the client has ended")]
    Ended,
    /// The client belongs to another process: this one is its child by `fork`, and has no lane of the client. Connect after the fork.
    #[error("this client belongs to another process; connect after the fork")]
    OtherProcess,
    /// The codec cannot express the message, or it is larger than what both sides take.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}
