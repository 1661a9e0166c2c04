//! The figures of rooms and topics that other threads ask for.

use std::sync::Arc;

use tidewire_proto::room::RoomLog;

use super::{OpenRooms, Room};
use crate::mailbox::LaneRoom;
use crate::session::Logs;

/// A room or a topic of a server at one moment. [`Inspector::rooms`](crate::metrics::Inspector::rooms) has an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoomFigures {
    /// Its number while it has members.
    pub alias: u16,
    /// The name of the room, or the topic or pattern. A peer chose it.
    pub name: String,
    /// Whether it is a topic or pattern with subscribers, and not a room.
    pub is_topic: bool,
    /// Members or subscribers.
    pub members: usize,
    /// Messages on the lane that has had members for longest. The difference of two readings is a rate.
    pub messages: u64,
    /// Memory of the messages that wait for slow subscribers, and of spare room for the next ones.
    pub log_bytes: usize,
    /// Lanes with members.
    pub lanes: usize,
    /// Whether a subscriber with the policy `block` holds up the publishers.
    pub is_congested: bool,
}

impl OpenRooms {
    /// Adds the rooms of up to `count_max` aliases, beginning with `from`. Returns the next alias, if there may be
    /// more.
    pub(crate) fn inspect(
        &self,
        logs: &Logs,
        from: usize,
        count_max: usize,
        figures: &mut Vec<LaneRoom>,
    ) -> Option<usize> {
        let aliases = self.all.len();
        let end = aliases.min(from.saturating_add(count_max));
        let rooms = (from..end).filter_map(|alias| self.get(alias as u16));
        let rooms = rooms.filter_map(|room| Some(lane_room(room, logs.get(room.shared.alias)?)));
        figures.extend(rooms);
        (end < aliases).then_some(end)
    }
}

fn lane_room(room: &Room, log: &RoomLog) -> LaneRoom {
    LaneRoom {
        alias: room.shared.alias,
        pattern: room.shared.is_topic.then(|| Arc::clone(&room.shared.name)),
        members: room.members.len(),
        messages: log.head_message(),
        log_bytes: log.held_bytes(),
        is_congested: room.shared.is_congested(),
    }
}
