//! The figures of rooms and topics that other threads ask for.

use super::{OpenRooms, Room};
use crate::mailbox::RoomFigures;
use crate::session::Logs;

impl OpenRooms {
    /// Adds the rooms of up to `count_max` aliases, beginning with `from`. Returns the next alias, if there may be
    /// more.
    pub(crate) fn inspect(
        &self,
        logs: &Logs,
        from: usize,
        count_max: usize,
        figures: &mut Vec<RoomFigures>,
    ) -> Option<usize> {
        let aliases = self.all.len();
        let end = aliases.min(from.saturating_add(count_max));
        let rooms = (from..end).filter_map(|alias| self.get(alias as u16));
        figures.extend(rooms.map(|room| lane_room(room, logs)));
        (end < aliases).then_some(end)
    }
}

/// The figures of a room on this lane. The asker knows the names of rooms.
fn lane_room(room: &Room, logs: &Logs) -> RoomFigures {
    let shared = &room.shared;
    let (messages, _, log_bytes) = logs.totals(shared.alias());
    RoomFigures {
        alias: shared.alias(),
        name: if shared.is_topic() {
            shared.name().to_string()
        } else {
            String::new()
        },
        is_topic: shared.is_topic(),
        members: room.members.len(),
        messages,
        log_bytes,
        lanes: 1,
        is_congested: shared.is_congested(),
    }
}
