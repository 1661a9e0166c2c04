//! Message patterns: what services build on. One file each.

mod chat;
mod directory;
mod room;

pub use chat::Chat;
pub use room::{JoinError, Joined, RoomError};

pub(crate) use directory::{Directory, LANES_MAX};
pub(crate) use room::Room;
