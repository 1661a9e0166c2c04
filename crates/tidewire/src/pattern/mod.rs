//! Message patterns: what services build on. One file each.

mod chat;
mod directory;
mod refusal;
mod room;
mod slow;

pub use chat::Chat;
pub use refusal::{JoinError, RoomError};
pub use room::Joined;

pub(crate) use directory::{Directory, LANES_MAX};
pub(crate) use room::Room;
