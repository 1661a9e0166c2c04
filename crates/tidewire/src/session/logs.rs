//! The logs of a lane's rooms and topics. Each session is sent the part of a log that it has not received yet.

use tidewire_proto::room::{LagLimits, Policy, RoomLog, Subscriber};

use super::Session;

use crate::memory::{LaneMemory, Pressure};

/// The lane's logs of rooms and topics, by alias.
#[derive(Debug, Default)]
pub(crate) struct Logs(Vec<Option<Box<ChargedLog>>>);

/// A log, and the part of its memory that is charged to the account.
#[derive(Debug, Default)]
struct ChargedLog {
    log: RoomLog,
    bytes: usize,
}

impl ChargedLog {
    /// Charges the memory that the log holds. Frees its spare memory while memory is short.
    #[inline]
    fn charge(&mut self, memory: &mut LaneMemory) {
        if memory.pressure() != Pressure::Normal {
            self.log.release_spare();
        }
        let held = self.log.held_bytes();
        memory.resize(self.bytes, held);
        self.bytes = held;
    }
}

impl Logs {
    #[inline]
    pub(crate) fn get(&self, alias: u16) -> Option<&RoomLog> {
        Some(&self.0.get(usize::from(alias))?.as_deref()?.log)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, alias: u16) -> Option<&mut RoomLog> {
        Some(&mut self.0.get_mut(usize::from(alias))?.as_deref_mut()?.log)
    }

    /// Makes a subscriber at the head of a log.
    pub(crate) fn attach(
        &mut self,
        alias: u16,
        policy: Policy,
        limits: LagLimits,
    ) -> Option<Subscriber> {
        Some(Subscriber::attach(self.get_mut(alias)?, policy, limits))
    }

    /// Whether a session has messages here that are not in its output.
    #[inline]
    pub(crate) fn have_deliveries_for(&self, session: &Session) -> bool {
        !session.memberships.is_empty() && self.have_bytes_for(session)
    }

    #[inline(never)]
    fn have_bytes_for(&self, session: &Session) -> bool {
        session.memberships.iter().any(|membership| {
            let log = self.get(membership.room);
            log.is_some_and(|log| membership.subscriber.bytes_behind(log) > 0)
        })
    }

    /// Whether a session has messages here that were not written to it yet. False once this side has ended, because then such
    /// messages are dropped and counted.
    pub(super) fn have_messages_for(&self, session: &Session) -> bool {
        session.connection.is_open()
            && session.connection.output().is_writing()
            && session.memberships.iter().any(|membership| {
                let log = self.get(membership.room);
                log.is_some_and(|log| membership.subscriber.messages_behind(log) > 0)
            })
    }

    /// Charges a log after an append or a read.
    #[inline]
    pub(super) fn charge(&mut self, alias: u16, memory: &mut LaneMemory) {
        if let Some(Some(log)) = self.0.get_mut(usize::from(alias)) {
            log.charge(memory);
        }
    }

    /// Charges all logs. Returns what they hold.
    pub(super) fn charge_all(&mut self, memory: &mut LaneMemory) -> usize {
        let logs = self.0.iter_mut().flatten();
        logs.map(|log| {
            log.charge(memory);
            log.bytes
        })
        .sum()
    }

    /// Frees the buffers of a log that all its subscribers have read. `at_head` is the number of subscribers that are at its
    /// head. Returns whether it was drained.
    pub(super) fn release_drained(
        &mut self,
        alias: u16,
        at_head: usize,
        memory: &mut LaneMemory,
    ) -> bool {
        let Some(Some(log)) = self.0.get_mut(usize::from(alias)) else {
            return false;
        };
        let is_drained = log.log.release_drained(at_head);
        log.charge(memory);
        is_drained
    }

    /// The number of aliases that logs may have here.
    pub(super) fn aliases(&self) -> usize {
        self.0.len()
    }

    /// Creates the log of a room, unless the room has one.
    pub(super) fn open(&mut self, alias: u16, memory: &mut LaneMemory) {
        let index = usize::from(alias);
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index].get_or_insert_with(|| {
            memory.resize(0, ROOM_BYTES);
            Box::default()
        });
    }

    /// Drops the log of a room without subscribers.
    pub(super) fn close(&mut self, alias: u16, memory: &mut LaneMemory) {
        if let Some(log) = self.0.get_mut(usize::from(alias)).and_then(Option::take) {
            memory.resize(ROOM_BYTES + log.bytes, 0);
        }
    }
}

/// Memory of a room, or of a pattern, beside its log: on a lane and in the server's tables.
const ROOM_BYTES: usize = 1_024;
