//! The earlier messages of rooms and topics, for new members and for members who come back.
//!
//! A history belongs to a name and to the whole server. It remains after the room's last member has left. It gives each
//! message an offset, under its lock, and so decides the order of the messages on all lanes. It knows up to which
//! offset each lane with members has them.
//!
//! ```text
//!   lane 0: say ── lock ── offset 7, "hi" ── append to own log, send to lane 1 ── lane 0 has 7 ── unlock
//!   lane 1: say ── lock ── offset 8, "ho" ── take 7 from the history, append 7 and 8, send 8 to lane 0 ── unlock
//!   lane 1: 7 arrives: lane 1 has it, so it is ignored
//!   lane 0: 8 arrives: it follows 7, so it is appended
//! ```
//!
//! So each log has the messages in the order of their offsets, whichever lane they come from, and nothing waits for
//! another lane. A member that joins gets the messages of the history up to the offset that its lane has; the others
//! come by the log of its lane. A message stays in the history, beyond its limits, until all lanes with members have
//! it. These are the messages that are on their way between lanes, and the mailboxes bound them.
//!
//! Rejected: a history for each lane, because all lanes would need all messages of all rooms. Rejected: a log for each
//! lane in which messages arrive in any order. Then the position of a client would be a list of messages, not a number.
//!
//! # Who numbers the messages
//!
//! On a server alone, the lane that sends a message numbers it: [`Numbering::Here`]. On a node of a cluster, the
//! carrier numbers it, so that a message has the same offset on all nodes: [`Numbering::Carrier`].
//!
//! ```text
//!   Here:     lane: say ── lock, offset, record ── own log, other lanes
//!   Carrier:  lane: say ─▶ node ─▶ carrier (decides the order) ─▶ every node with members: record ─▶ lanes
//! ```
//!
//! A lane neither records nor delivers a message that the carrier numbers. The lane gives the message to the node. The
//! node records each message when the carrier gives it back, also the messages of this node. The rest is the same in
//! both ways: a lane gets a message of the node like a message of another lane, and takes from the history what it does
//! not have yet. A history is on a node while the room has members there, or the topic subscribers. A join or a
//! subscription waits until the history is there.

mod frames;
mod limits;
mod message_history;
mod named;
mod node_history;
mod ring;
mod server;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tidewire_proto::message::MemberId;

pub(crate) use frames::{
    encode_by_absent, encode_chat_at, encode_live, encode_position, encode_record,
};
pub use limits::History;
pub(crate) use limits::HistoryPattern;
pub(crate) use message_history::{MessageHistory, Records};
pub(crate) use node_history::{NodeHistory, Readiness};
pub(crate) use server::ServerHistories;

/// The side that gives the messages of a history their offsets, and so their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbering {
    /// This server.
    Here,
    /// The carrier of a cluster, for all nodes.
    Carrier,
}

/// The history of a topic, by who numbers its messages.
#[derive(Clone, Debug)]
pub(crate) enum TopicHistory {
    /// This server.
    Here(Arc<MessageHistory>),
    /// The carrier. A node that only publishes does not have the messages.
    OfCarrier,
}

/// A message of a former run of the program: the name of its author and the payload.
pub(crate) type PastMessage = (String, Vec<u8>);

/// A message of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// The author, who may have left; 0 for the room itself, and in topics.
    member: MemberId,
    /// The name of the author; empty for the room itself, and in topics.
    name: &'a str,
    payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// A message of a member of a room.
    pub(crate) fn by(member: MemberId, name: &'a str, payload: &'a [u8]) -> Self {
        Self {
            member,
            name,
            payload,
        }
    }

    /// A message of the room itself, or of a topic.
    pub(crate) fn without_author(payload: &'a [u8]) -> Self {
        Self::by(MemberId(0), "", payload)
    }

    pub(crate) fn author(&self) -> MemberId {
        self.member
    }

    pub(crate) fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
