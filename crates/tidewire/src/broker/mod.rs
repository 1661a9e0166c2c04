//! The position of a message in the history of its room or topic, and the way from the lanes of a server to its node,
//! which takes their messages to other servers.
//!
//! The lanes and the directory use it; [`backplane`](crate::backplane) is at its other end. A server without a
//! backplane has no link, and the lanes ask for none: a backplane is one bit of the mask of lanes with members, so a
//! room without it pays nothing.

mod directed;
mod item;
mod link;
mod room_or_topic;
mod store_question;

pub use room_or_topic::RoomOrTopic;
pub use tidewire_proto::message::Position;

pub(crate) use directed::{
    Asker, Directed, NodeAnswer, Outcome, RemoteCall, RemoteTicket, RequestFailure, RequestWork,
};
pub(crate) use item::{Addressee, Item, News};
pub(crate) use link::BackplaneLink;
pub(crate) use store_question::{NotStored, StoreAnswer, StoreQuestion};
