//! Rooms and topics on a lane: membership, fan-out, slow subscribers, and the directory of the whole server.

mod directory;
mod fanout;
mod figures;
mod history;
mod members;
mod recorded;
mod refusal;
mod rooms;
mod routes;
mod saying;
mod shared_room;
mod slow;
mod topic;

pub use figures::RoomFigures;
pub use history::History;
pub(crate) use history::PastMessage;
pub use refusal::{
    JoinError, NotSubscribed, PublishError, ReachedLimit, RoomError, SubscribeError,
};
pub use rooms::Joined;

pub(crate) use directory::Directory;
pub(crate) use fanout::{EARLY_SWEEP_BYTES, GROWTH_STEP_BYTES};
pub(crate) use rooms::{LaneRooms, RoomTable};
pub(crate) use shared_room::LANES_MAX;
