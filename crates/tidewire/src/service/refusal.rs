//! How a refusal of a room or a topic becomes the error that a handler returns.

use tidewire_proto::body::ErrorCode;

use super::HandlerError;
use super::timers::code_of;
use crate::room::{JoinError, NotSubscribed, PublishError, RoomError, SubscribeError};
use crate::session::{SendError, TimerError};

impl From<JoinError> for HandlerError {
    fn from(error: JoinError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<RoomError> for HandlerError {
    fn from(error: RoomError) -> Self {
        let code = match error {
            RoomError::NotJoined => ErrorCode::NotJoined,
            RoomError::NoSuchMember => ErrorCode::NotFound,
            RoomError::Send(SendError::QueueFull) | RoomError::OutOfMemory => {
                ErrorCode::LimitReached
            }
            RoomError::Send(SendError::NotOpen) => ErrorCode::NotFound,
            RoomError::Send(SendError::Encode(_)) | RoomError::Encode(_) => ErrorCode::LimitReached,
        };
        Self::new(code, error.to_string())
    }
}

impl From<SubscribeError> for HandlerError {
    fn from(error: SubscribeError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<NotSubscribed> for HandlerError {
    fn from(error: NotSubscribed) -> Self {
        Self::new(ErrorCode::NotJoined, error.to_string())
    }
}

impl From<TimerError> for HandlerError {
    fn from(error: TimerError) -> Self {
        Self::new(code_of(error), error.to_string())
    }
}

impl From<PublishError> for HandlerError {
    fn from(error: PublishError) -> Self {
        let code = match error {
            PublishError::Topic(error) => error.code(),
            PublishError::Encode(_) | PublishError::HandOver(_) | PublishError::OutOfMemory => {
                ErrorCode::LimitReached
            }
        };
        Self::new(code, error.to_string())
    }
}
