//! The logs of a lane's rooms and topics. Each session is sent the part of a log that it has not received yet.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_proto::room::{LagLimits, Policy, RoomLog, Subscriber};

use super::{Membership, Relief, Session, SessionTable};
use crate::memory::{LaneMemory, Pressure};
use crate::observe::{DropReason, LaneCounters};

/// The lane's logs of rooms and topics.
#[derive(Debug)]
pub(crate) struct Logs {
    /// By alias.
    all: Vec<Option<Box<ChargedLog>>>,
    counters: Arc<CachePadded<LaneCounters>>,
}

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
    pub(super) fn new(counters: Arc<CachePadded<LaneCounters>>) -> Self {
        Self {
            all: Vec::new(),
            counters,
        }
    }

    #[inline]
    pub(crate) fn get(&self, alias: u16) -> Option<&RoomLog> {
        Some(&self.all.get(usize::from(alias))?.as_deref()?.log)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, alias: u16) -> Option<&mut RoomLog> {
        Some(&mut self.all.get_mut(usize::from(alias))?.as_deref_mut()?.log)
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

    /// Removes a membership from its session, and its subscriber from the log. Returns the membership's index in the
    /// room's list of members, and the number of messages that the member did not get.
    pub(crate) fn detach(
        &mut self,
        session: &mut Session,
        membership: usize,
        relief: &mut Relief,
    ) -> Option<(usize, u64)> {
        if let Some(admitted) = &mut session.profile.admitted {
            admitted.forget();
        }
        let Membership {
            room,
            held_bytes,
            index,
            subscriber,
            ..
        } = session.memberships.remove(membership);
        let undelivered = subscriber.detach(self.get_mut(room)?);
        relief.charge(held_bytes, 0);
        relief.charge_log(self, room);
        Some((index, undelivered))
    }

    /// Sends a subscriber the history from `next` on, or nothing of it, in place of what its log has now.
    pub(crate) fn begin_replay(
        &mut self,
        session: &mut Session,
        alias: u16,
        next: Option<u64>,
    ) -> Option<()> {
        let index = session.membership(alias)?;
        let subscriber = &mut session.memberships[index].subscriber;
        let passed = subscriber.pass_log(self.get_mut(alias)?);
        if let Some(next) = next {
            subscriber.replay(next);
        }
        self.count_replayed(passed);
        Some(())
    }

    /// Lets a subscriber that was sent the history go on with the log.
    pub(crate) fn end_replay(&mut self, session: &mut Session, membership: usize) {
        let Membership {
            room, subscriber, ..
        } = &mut session.memberships[membership];
        let log = self.get_mut(*room);
        let passed = log.map_or(0, |log| subscriber.end_replay(log));
        self.count_replayed(passed);
    }

    /// Counts messages in logs that subscribers get from histories.
    fn count_replayed(&self, messages: u64) {
        self.counters.room_dropped[DropReason::Replayed as usize].add(messages);
    }

    /// Frees the buffers of a log if all these members have read it. Returns whether they have, and how many were
    /// looked at.
    pub(crate) fn release_if_drained(
        &mut self,
        alias: u16,
        members: &[usize],
        table: &mut SessionTable,
        relief: &mut Relief,
    ) -> (bool, usize) {
        let Some(log) = self.get_mut(alias) else {
            return (true, 0);
        };
        for (index, slot) in members.iter().enumerate() {
            let session = &mut table[*slot];
            let membership = session.membership(alias);
            let is_at_head =
                membership.is_some_and(|at| session.memberships[at].subscriber.reach_head(log));
            if !is_at_head {
                return (false, index + 1);
            }
        }
        let is_drained = relief.release_drained(self, alias, members.len());
        (is_drained, members.len())
    }

    /// Skips a session's own messages, so that they do not hold the logs. Returns whether it wants the next piece of a
    /// history.
    #[inline]
    pub(super) fn pass_own(&mut self, session: &mut Session) -> bool {
        let mut wants_history = false;
        for membership in &mut session.memberships {
            let subscriber = &mut membership.subscriber;
            if subscriber.has_own_behind()
                && let Some(log) = self.get_mut(membership.room)
            {
                subscriber.advance(log, 0, &mut Vec::new());
            }
            wants_history |= subscriber.next_of_history().is_some();
        }
        wants_history
    }

    /// Bytes that a session's memberships hold back in logs.
    pub(super) fn held_back_bytes(&self, session: &Session) -> usize {
        let logs = session.memberships.iter().map(|membership| {
            let log = self.get(membership.room);
            log.map_or(0, |log| membership.subscriber.held_back_bytes(log))
        });
        logs.sum::<u64>() as usize
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

    /// Whether a session has messages here that were not written to it yet. False once this side has ended, because
    /// then such messages are dropped and counted.
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
        if let Some(Some(log)) = self.all.get_mut(usize::from(alias)) {
            log.charge(memory);
        }
    }

    /// Charges all logs. Returns what they hold.
    pub(super) fn charge_all(&mut self, memory: &mut LaneMemory) -> usize {
        let logs = self.all.iter_mut().flatten();
        logs.map(|log| {
            log.charge(memory);
            log.bytes
        })
        .sum()
    }

    /// Frees the buffers of a log that all its subscribers have read. `at_head` is the number of subscribers that are
    /// at its head. Returns whether it was drained.
    pub(super) fn release_drained(
        &mut self,
        alias: u16,
        at_head: usize,
        memory: &mut LaneMemory,
    ) -> bool {
        let Some(Some(log)) = self.all.get_mut(usize::from(alias)) else {
            return false;
        };
        let is_drained = log.log.release_drained(at_head);
        log.charge(memory);
        is_drained
    }

    /// The number of aliases that logs may have here.
    pub(super) fn aliases(&self) -> usize {
        self.all.len()
    }

    /// Creates the log of a room, unless the room has one.
    pub(super) fn open(&mut self, alias: u16, memory: &mut LaneMemory) {
        let index = usize::from(alias);
        if self.all.len() <= index {
            self.all.resize_with(index + 1, || None);
        }
        self.all[index].get_or_insert_with(|| {
            memory.resize(0, ROOM_BYTES);
            Box::default()
        });
    }

    /// Drops the log of a room without subscribers.
    pub(super) fn close(&mut self, alias: u16, memory: &mut LaneMemory) {
        if let Some(log) = self.all.get_mut(usize::from(alias)).and_then(Option::take) {
            memory.resize(ROOM_BYTES + log.bytes, 0);
        }
    }
}

/// Memory of a room, or of a pattern, beside its log: on a lane and in the server's tables.
const ROOM_BYTES: usize = 1_024;
