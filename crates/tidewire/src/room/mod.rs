//! Rooms and topics on a lane: membership, fan-out, slow subscribers, and the directory of the whole server.

mod appending;
mod by_carrier;
mod directory;
mod expiring;
mod fanout;
mod figures;
mod histories;
mod members;
mod opening;
mod quiet;
mod recording;
mod refusal;
mod remote;
mod replay;
mod rooms;
mod routes;
mod saying;
mod shared_room;
mod slow;
mod spanning;
mod topic;
mod waiting;

pub use figures::RoomFigures;
pub use refusal::{
    JoinError, NotSubscribed, PublishError, ReachedLimit, RoomError, SubscribeError,
};
pub use rooms::Joined;

pub(crate) use directory::Directory;
pub(crate) use fanout::{EARLY_SWEEP_BYTES, GROWTH_STEP_BYTES};
pub(crate) use remote::Shown;
pub(crate) use rooms::{FRAME_OVERHEAD_BYTES_MAX, LaneRooms, RoomTable};
pub(crate) use routes::Routes;
pub(crate) use shared_room::SharedRoom;
pub(crate) use topic::{PUBLISHED_OVERHEAD_BYTES, RECORDED_OVERHEAD_BYTES};
