//! Rooms and topics on a lane: membership, fan-out, slow subscribers, and the directory of the whole server.
//!
//! Each part owns its state, and a part uses only the parts below it:
//!
//! ```text
//!   LaneRooms      joins, leaves, chat messages ┐          Joins     joins and subscriptions that wait
//!   LaneTopics     subscriptions, publications ─┼─▶ LaneHistories ─▶ LaneDeliveries ─▶ OpenRooms
//!                                               │   positions        logs, slow    members of this lane,
//!   Directory      names of the whole server ◀──┘   and replays      subscribers   sweeps
//! ```

mod deliveries;
mod directory;
mod histories;
mod members;
mod refusal;
mod shared_room;
mod topics;
mod waiting;

use std::sync::Arc;

pub use members::Joined;
pub use refusal::{ReachedLimit, RoomError};

pub(crate) use deliveries::{EARLY_SWEEP_BYTES, FRAME_OVERHEAD_BYTES_MAX, GROWTH_STEP_BYTES};
pub(crate) use directory::{Directory, ShownMember};
pub(crate) use shared_room::SharedRoom;
pub(crate) use topics::{PUBLISHED_OVERHEAD_BYTES, RECORDED_OVERHEAD_BYTES, Routes, Wanted};

use crate::mailbox::{BatchEntry, Exchange};
use crate::session::{LaneSessions, SessionLimiter};
use deliveries::{LaneDeliveries, OpenRooms};
use histories::LaneHistories;
use members::Departures;
use topics::{LaneTopics, TopicTable};
use waiting::{Joins, WaitingJoins};

/// The rooms and topics of a lane.
#[derive(Debug)]
pub(crate) struct RoomTable {
    open: OpenRooms,
    topics: TopicTable,
    waiting: WaitingJoins,
    departures: Departures,
}

/// The rooms of a lane, with the parts of the lane that they use.
#[derive(Debug)]
pub(crate) struct LaneRooms<'a> {
    table: &'a mut RoomTable,
    sessions: &'a mut LaneSessions,
    exchange: &'a mut Exchange,
    /// Whether the lane ends with its server, so that presence frames are no longer needed.
    is_ending: bool,
}

impl RoomTable {
    pub(crate) fn new(directory: Arc<Directory>, limiter: Arc<SessionLimiter>) -> Self {
        Self {
            open: OpenRooms::new(directory),
            topics: TopicTable::new(limiter),
            waiting: WaitingJoins::default(),
            departures: Departures::default(),
        }
    }

    /// The rooms with members, and the patterns with subscribers.
    #[inline]
    pub(crate) fn open(&self) -> &OpenRooms {
        &self.open
    }

    /// Whether joins or subscriptions wait.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.has_any()
    }

    /// Whether the service gets a message again that had to wait.
    pub(crate) fn is_repeating(&self) -> bool {
        self.waiting.is_repeating()
    }
}

impl<'a> LaneRooms<'a> {
    #[inline(always)]
    pub(crate) fn new(
        table: &'a mut RoomTable,
        sessions: &'a mut LaneSessions,
        exchange: &'a mut Exchange,
        is_ending: bool,
    ) -> Self {
        Self {
            table,
            sessions,
            exchange,
            is_ending,
        }
    }

    /// Returns the messages that members and subscribers of this lane have to get.
    #[inline(always)]
    pub(crate) fn deliveries(&mut self) -> LaneDeliveries<'_> {
        LaneDeliveries::new(&mut self.table.open, self.sessions, self.exchange)
    }

    #[inline(always)]
    pub(crate) fn histories(&mut self) -> LaneHistories<'_> {
        LaneHistories::new(&mut self.table.open, self.sessions, self.exchange)
    }

    #[inline(always)]
    pub(crate) fn topics(&mut self) -> LaneTopics<'_> {
        let RoomTable { open, topics, .. } = &mut *self.table;
        LaneTopics::new(topics, open, self.sessions, self.exchange)
    }

    /// Returns the joins and subscriptions that wait.
    pub(crate) fn joins(&mut self) -> Joins<'_> {
        let RoomTable { open, waiting, .. } = &mut *self.table;
        Joins::new(waiting, open.directory(), self.sessions, self.exchange)
    }

    /// Delivers an entry of a batch from another lane.
    pub(crate) fn deliver_entry(&mut self, entry: &BatchEntry<'_>) {
        match *entry {
            BatchEntry::Session { id, frame } => {
                // `send_to` counts a session that has ended or is full in `sends_refused`.
                let result = self.exchange.send_to(self.sessions, id, |_, out| {
                    out.extend_from_slice(frame);
                    Ok(())
                });
                if let Err(error) = result {
                    tracing::trace!(session = %id, %error, "a message from another lane was refused");
                }
            }
            BatchEntry::Recorded {
                alias,
                number,
                author,
                frame,
            } => self.histories().deliver(alias, (number, author), frame),
            BatchEntry::Remove { id, alias } => self.remove(id, alias),
            BatchEntry::Room { log, frame } => match self.table.open.has(log.alias()) {
                true => self.deliveries().deliver(log, frame),
                false => self.topics().redirect(log, frame),
            },
        }
    }

    /// Resumes paused publishers whose rooms are clear, and sessions whose output has drained.
    #[inline]
    pub(crate) fn release_held(&mut self, ready: &mut Vec<usize>) {
        if self.table.open.has_slow() {
            self.deliveries().release_held();
        }
        if self.sessions.table.has_unwritable() {
            for slot in self.sessions.table.take_unwritable() {
                self.topics().leave_groups(slot);
            }
        }
        if self.table.open.has_behind() {
            self.histories().catch_up_all();
        }
        if self.sessions.table.has_resumed() {
            self.histories().resume_drained(ready);
        }
    }
}
