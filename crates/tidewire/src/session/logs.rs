//! The logs of a lane's rooms and topics. Each session is sent the part of a log that it has not received yet.
//!
//! A room has a log for each codec that members of this lane have. The first such member opens the log, and the last
//! one closes it. Rejected: frames of one codec that are translated for each member, because a message would be framed
//! as often as it has members.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_proto::room::{LagLimits, Policy, RoomLog, Subscriber};

use super::{Membership, Relief, Session, SessionTable};
use crate::config::{CodecNumber, Config};
use crate::memory::{LaneMemory, Pressure};
use crate::observe::{DropReason, LaneCounters};

/// The lane's logs of rooms and topics.
#[derive(Debug)]
pub(crate) struct Logs {
    /// The logs with frames of the main codec.
    main: LogTable,
    /// The logs with frames of other codecs, in the order of their numbers.
    others: Vec<LogTable>,
    counters: Arc<CachePadded<LaneCounters>>,
}

/// Logs by alias.
type LogTable = Vec<Option<Box<ChargedLog>>>;

/// The key of a log: the alias of its room or pattern, and the codec of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LogKey {
    alias: u16,
    codec: CodecNumber,
}

/// A log, and the part of its memory that is charged to the account.
#[derive(Debug, Default)]
pub(crate) struct ChargedLog {
    log: RoomLog,
    members: usize,
    bytes: usize,
}

impl LogKey {
    #[inline(always)]
    pub(crate) fn new(alias: u16, codec: CodecNumber) -> Self {
        Self { alias, codec }
    }

    #[inline(always)]
    pub(crate) fn alias(self) -> u16 {
        self.alias
    }

    #[inline(always)]
    pub(crate) fn codec(self) -> CodecNumber {
        self.codec
    }

    /// The log of a room with frames of the main codec.
    #[inline(always)]
    pub(crate) fn main(alias: u16) -> Self {
        let codec = CodecNumber::MAIN;
        Self { alias, codec }
    }
}

impl ChargedLog {
    #[inline(always)]
    pub(crate) fn log(&mut self) -> &mut RoomLog {
        &mut self.log
    }

    #[inline(always)]
    pub(crate) fn members(&self) -> usize {
        self.members
    }

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
    pub(super) fn new(config: &Config, counters: Arc<CachePadded<LaneCounters>>) -> Self {
        let others = config.codecs.all().skip(1);
        Self {
            main: LogTable::new(),
            others: others.map(|_| LogTable::new()).collect(),
            counters,
        }
    }

    #[inline(always)]
    fn charged(&self, key: LogKey) -> Option<&ChargedLog> {
        let table = match key.codec.other_index() {
            None => &self.main,
            Some(index) => self.others.get(index)?,
        };
        table.get(usize::from(key.alias))?.as_deref()
    }

    #[inline(always)]
    fn charged_mut(&mut self, key: LogKey) -> Option<&mut ChargedLog> {
        self.table_mut(key.codec)?
            .get_mut(usize::from(key.alias))?
            .as_deref_mut()
    }

    #[inline(always)]
    fn table_mut(&mut self, codec: CodecNumber) -> Option<&mut LogTable> {
        match codec.other_index() {
            None => Some(&mut self.main),
            Some(index) => self.others.get_mut(index),
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, key: LogKey) -> Option<&RoomLog> {
        Some(&self.charged(key)?.log)
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, key: LogKey) -> Option<&mut RoomLog> {
        Some(&mut self.charged_mut(key)?.log)
    }

    /// Returns a log with the number of its members.
    #[inline(always)]
    pub(crate) fn get_charged(&mut self, key: LogKey) -> Option<&mut ChargedLog> {
        self.charged_mut(key)
    }

    /// The number of members of a log.
    pub(crate) fn members(&self, key: LogKey) -> usize {
        self.charged(key).map_or(0, |charged| charged.members)
    }

    /// The logs of a room.
    pub(crate) fn keys(&self, alias: u16) -> impl Iterator<Item = LogKey> + use<'_> {
        let others = (0..self.others.len()).map(CodecNumber::of_other);
        let codecs = std::iter::once(CodecNumber::MAIN).chain(others);
        let keys = codecs.map(move |codec| LogKey { alias, codec });
        keys.filter(|key| self.charged(*key).is_some())
    }

    /// The logs of a room that have frames of other codecs than the main one.
    pub(crate) fn other_keys(&self, alias: u16) -> impl Iterator<Item = LogKey> + use<'_> {
        self.keys(alias).filter(|key| !key.codec.is_main())
    }

    /// The messages ever appended to the logs of a room, their bytes, and the memory that the logs hold.
    pub(crate) fn totals(&self, alias: u16) -> (u64, u64, usize) {
        let logs = self.keys(alias).filter_map(|key| self.get(key));
        logs.fold((0, 0, 0), |(messages, bytes, held), log| {
            (
                messages + log.head_message(),
                bytes + log.head_position(),
                held + log.held_bytes(),
            )
        })
    }

    /// Makes a subscriber at the head of a log.
    pub(crate) fn attach(
        &mut self,
        key: LogKey,
        policy: Policy,
        limits: LagLimits,
    ) -> Option<Subscriber> {
        let charged = self.charged_mut(key)?;
        charged.members += 1;
        Some(Subscriber::attach(&mut charged.log, policy, limits))
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
        let key = session.memberships[membership].log();
        let Membership {
            held_bytes,
            index,
            subscriber,
            ..
        } = session.memberships.remove(membership);
        let charged = self.charged_mut(key)?;
        charged.members -= 1;
        let undelivered = subscriber.detach(&mut charged.log);
        relief.charge(held_bytes, 0);
        relief.charge_log(self, key);
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
        let membership = &mut session.memberships[index];
        let log = self.get_mut(membership.log())?;
        let subscriber = &mut membership.subscriber;
        let passed = subscriber.pass_log(log);
        if let Some(next) = next {
            subscriber.replay(next);
        }
        self.count_replayed(passed);
        Some(())
    }

    /// Lets a subscriber that was sent the history go on with the log.
    pub(crate) fn end_replay(&mut self, session: &mut Session, membership: usize) {
        let membership = &mut session.memberships[membership];
        let log = self.get_mut(membership.log());
        let passed = log.map_or(0, |log| membership.subscriber.end_replay(log));
        self.count_replayed(passed);
    }

    /// Counts messages in logs that subscribers get from histories.
    fn count_replayed(&self, messages: u64) {
        self.counters.room_dropped[DropReason::Replayed as usize].add(messages);
    }

    /// Frees the buffers of a room's logs if all these members have read them. Returns whether they have, and how many
    /// were looked at.
    pub(crate) fn release_if_drained(
        &mut self,
        alias: u16,
        members: &[usize],
        table: &mut SessionTable,
        relief: &mut Relief,
    ) -> (bool, usize) {
        for (index, slot) in members.iter().enumerate() {
            let session = &mut table[*slot];
            let Some(at) = session.membership(alias) else {
                continue;
            };
            let membership = &mut session.memberships[at];
            let log = self.get_mut(membership.log());
            if log.is_some_and(|log| !membership.subscriber.reach_head(log)) {
                return (false, index + 1);
            }
        }
        let keys: Vec<LogKey> = self.keys(alias).collect();
        let mut are_drained = true;
        for key in keys {
            are_drained &= relief.release_drained(self, key, self.members(key));
        }
        (are_drained, members.len())
    }

    /// Skips a session's own messages, so that they do not hold the logs. Returns whether it wants the next piece of a
    /// history.
    #[inline]
    pub(super) fn pass_own(&mut self, session: &mut Session) -> bool {
        let mut wants_history = false;
        for membership in &mut session.memberships {
            let key = membership.log();
            let subscriber = &mut membership.subscriber;
            if subscriber.has_own_behind()
                && let Some(log) = self.get_mut(key)
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
            let log = self.get(membership.log());
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
            let log = self.get(membership.log());
            log.is_some_and(|log| membership.subscriber.bytes_behind(log) > 0)
        })
    }

    /// Whether a session has messages here that were not written to it yet. False once this side has ended, because
    /// then such messages are dropped and counted.
    pub(super) fn have_messages_for(&self, session: &Session) -> bool {
        session.connection.is_open()
            && session.connection.output().is_writing()
            && session.memberships.iter().any(|membership| {
                let log = self.get(membership.log());
                log.is_some_and(|log| membership.subscriber.messages_behind(log) > 0)
            })
    }

    /// Charges a log after an append or a read.
    #[inline]
    pub(super) fn charge(&mut self, key: LogKey, memory: &mut LaneMemory) {
        if let Some(charged) = self.charged_mut(key) {
            charged.charge(memory);
        }
    }

    /// Charges all logs. Returns what they hold.
    pub(super) fn charge_all(&mut self, memory: &mut LaneMemory) -> usize {
        let tables = std::iter::once(&mut self.main).chain(&mut self.others);
        let logs = tables.flatten().flatten();
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
        key: LogKey,
        at_head: usize,
        memory: &mut LaneMemory,
    ) -> bool {
        let Some(charged) = self.charged_mut(key) else {
            return false;
        };
        let is_drained = charged.log.release_drained(at_head);
        charged.charge(memory);
        is_drained
    }

    /// All logs.
    pub(super) fn all_keys(&self) -> Vec<LogKey> {
        let tables = std::iter::once(&self.main).chain(&self.others);
        let aliases = tables.map(Vec::len).max().unwrap_or(0);
        (0..=u16::MAX)
            .take(aliases)
            .flat_map(|alias| self.keys(alias))
            .collect()
    }

    /// Creates a log, unless it is there. Returns whether it was created.
    pub(super) fn open(&mut self, key: LogKey, memory: &mut LaneMemory) -> bool {
        let Some(table) = self.table_mut(key.codec) else {
            return false;
        };
        let index = usize::from(key.alias);
        if table.len() <= index {
            table.resize_with(index + 1, || None);
        }
        let is_new = table[index].is_none();
        table[index].get_or_insert_with(|| {
            memory.resize(0, ROOM_BYTES);
            Box::default()
        });
        is_new
    }

    /// Drops a log without subscribers.
    pub(super) fn close(&mut self, key: LogKey, memory: &mut LaneMemory) {
        let entry = self
            .table_mut(key.codec)
            .and_then(|table| table.get_mut(usize::from(key.alias)));
        if let Some(log) = entry.and_then(Option::take) {
            memory.resize(ROOM_BYTES + log.bytes, 0);
        }
    }
}

/// Memory of a room, or of a pattern, beside its log: on a lane and in the server's tables.
const ROOM_BYTES: usize = 1_024;
