//! Message patterns: what services build on. One file each.

mod chat;
mod directory;
mod pubsub;
mod refusal;
mod room;
mod router;
mod routes;
mod slow;
mod topic;

pub use chat::Chat;
pub use pubsub::PubSub;
pub use refusal::{
    JoinError, NotSubscribed, PublishError, ReachedLimit, RoomError, SubscribeError,
};
pub use room::Joined;
pub use router::{Methods, Router};

pub(crate) use directory::{Directory, LANES_MAX, SharedRoom};
pub(crate) use room::Room;
pub(crate) use routes::Routes;
