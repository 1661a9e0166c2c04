//! The memory account of a lane, and its relief: which sessions lose memory when the server comes near its limit.
//!
//! Memory is charged where it changes owner, not per message. A log is charged when a segment is taken or freed, an
//! output and a partial frame when they are kept beyond a turn. Sessions, rooms and subscriptions have a fixed charge.
//!
//! Under pressure a lane first frees memory that it only keeps for reuse, with the logs that everybody has read. If
//! that is not enough, it takes memory from sessions, until it has released its share of the excess. The sessions are
//! of three kinds: unfinished handshakes, long partial frames, and sessions that do not take their output. The kind
//! that holds most memory pays first. Of the first two kinds the newest sessions pay first, because a flood of them is
//! newer than older clients. Of the third kind the sessions furthest behind pay first. A subscriber whose policy drops
//! messages loses its waiting messages and stays.
//!
//! Whoever holds more than its [share](shares) of the memory pays before all others.
//!
//! Rejected: closing the session that holds most, whatever its kind. Then one large upload would lose to an attack by
//! ten thousand small ones. Rejected too: a fixed order of the kinds. Then a stalled subscriber would cost all new
//! clients their handshakes.

mod pass;
mod shares;

use tidewire_proto::connection::{Inbound, PauseReason};

use super::{
    LaneSessions, LogKey, Logs, Membership, Output, Outputs, PendingRequests, Session, SessionId,
    SessionTable,
};
use crate::memory::{Holder, LaneMemory, Pressure};
use crate::observe::{LaneCounters, QuietLog};
use crate::transport::Transport;

/// The memory account of a lane, and the state of its relief.
#[derive(Debug)]
pub(crate) struct Relief {
    memory: LaneMemory,
    /// Bytes charged for each session, by slot: its output, its partial frame and its queued answers, when they were
    /// last kept.
    kept_bytes: Vec<usize>,
    /// Bytes charged for no single session or room: spare buffers, and messages to and from other lanes.
    common_bytes: usize,
    /// A pass that did not release enough is repeated only when the lane holds this many bytes, at `again_at_ns`, or at
    /// a higher level.
    again_at_bytes: usize,
    again_at_ns: u64,
    again_above: Pressure,
    /// The time of the next pass for a newcomer at full.
    newcomer_ns: u64,
    /// Whether a measure is active that ends with the pressure: spare buffers are not kept, or sessions wait.
    is_active: bool,
    /// Whether the last pass made room, although the level is still full until the turn ends.
    is_relieved: bool,
    /// Whether a peer that has no session yet needs memory.
    has_newcomer: bool,
    /// Whether there are sessions that have no share: peers within the machine.
    has_unshared: bool,
    /// Sessions that are not read until the turn ends, because their messages make memory grow.
    waiting: Vec<SessionId>,
    /// Limits how often relief is logged.
    log: QuietLog,
}

/// One pass of relief: the account of memory, with the parts of the lane that hold memory.
pub(crate) struct ReliefPass<'a> {
    relief: &'a mut Relief,
    table: &'a mut SessionTable,
    outputs: &'a mut Outputs,
    logs: &'a mut Logs,
    counters: &'a LaneCounters,
    now_ns: u64,
}

impl<'a> ReliefPass<'a> {
    pub(super) fn of(sessions: &'a mut LaneSessions) -> Self {
        Self {
            now_ns: sessions.timers.now_ns(),
            relief: &mut sessions.relief,
            table: &mut sessions.table,
            outputs: &mut sessions.outputs,
            logs: &mut sessions.logs,
            counters: &sessions.counters,
        }
    }
}

impl Relief {
    pub(super) fn new(memory: LaneMemory) -> Self {
        Self {
            memory,
            kept_bytes: Vec::new(),
            common_bytes: 0,
            again_at_bytes: 0,
            again_at_ns: 0,
            again_above: Pressure::Normal,
            newcomer_ns: 0,
            is_active: false,
            is_relieved: false,
            has_newcomer: false,
            has_unshared: false,
            waiting: Vec::new(),
            log: QuietLog::default(),
        }
    }

    /// Charges the account for something that grows or shrinks from `before` to `after` bytes.
    #[inline]
    pub(crate) fn charge(&mut self, before: usize, after: usize) {
        self.memory.resize(before, after);
    }

    /// Whether the pressure was above normal when it was last read. If not, publishers need no other check.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.memory.pressure() != Pressure::Normal
    }

    /// The pressure at this moment.
    #[cfg(test)]
    pub(crate) fn refreshed(&mut self) -> Pressure {
        self.memory.refresh()
    }

    /// The holder that the memory of this user's sessions counts for.
    pub(crate) fn holder_of_user(&self, name: &str) -> Holder {
        self.memory.shares().of_user(name)
    }

    /// Charges a log after an append or a read.
    #[inline]
    pub(crate) fn charge_log(&mut self, logs: &mut Logs, key: LogKey) {
        logs.charge(key, &mut self.memory);
    }

    /// Charges the logs of a room after a sweep.
    pub(crate) fn charge_logs(&mut self, logs: &mut Logs, alias: u16) {
        self.charge_log(logs, LogKey::main(alias));
        let others: Vec<LogKey> = logs.other_keys(alias).collect();
        for key in others {
            self.charge_log(logs, key);
        }
    }

    /// Frees the buffers of a log that its subscribers have read, and of which `at_head` are at its head. Returns
    /// whether it was drained.
    pub(super) fn release_drained(&mut self, logs: &mut Logs, key: LogKey, at_head: usize) -> bool {
        logs.release_drained(key, at_head, &mut self.memory)
    }

    /// Memory that the lane holds.
    pub(super) fn held_bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub(super) fn charge_session(&mut self, slot: usize) {
        if self.kept_bytes.len() <= slot {
            self.kept_bytes.resize(slot + 1, 0);
        }
        self.memory.resize(0, SESSION_BYTES);
    }

    /// Releases the charges of a session that is being removed.
    pub(super) fn release_session(&mut self, slot: usize) {
        self.charge_kept_bytes(slot, 0);
        self.memory.resize(SESSION_BYTES, 0);
    }

    /// Bytes charged for what a session keeps.
    pub(super) fn kept_bytes(&self, slot: usize) -> usize {
        self.kept_bytes.get(slot).copied().unwrap_or_default()
    }

    /// Bytes charged for what all sessions keep. It reads eight bytes for each slot.
    pub(super) fn kept_bytes_total(&self) -> usize {
        self.kept_bytes.iter().sum()
    }

    pub(super) fn common_bytes(&self) -> usize {
        self.common_bytes
    }

    #[inline]
    fn charge_kept_bytes(&mut self, slot: usize, bytes: usize) {
        let charged = &mut self.kept_bytes[slot];
        self.memory.resize(*charged, bytes);
        *charged = bytes;
    }

    /// Charges the buffers that a session keeps.
    #[inline]
    pub(crate) fn charge_buffers(&mut self, session: &Session, outputs: &Outputs) {
        let slot = session.id.slot();
        let held = session.kept_bytes(outputs.of(slot));
        self.charge_kept_bytes(slot, held);
    }

    /// Charges a session after a read or write that kept no bytes. Two calls in a turn cost 20 instructions more if
    /// they are not inlined, 1 % of a turn with one message.
    #[inline(always)]
    pub(crate) fn charge_kept_nothing(
        &mut self,
        slot: usize,
        table: &SessionTable,
        outputs: &Outputs,
    ) {
        if self.kept_bytes[slot] > 0 {
            self.charge_buffers(&table[slot], outputs);
        }
    }

    /// Charges memory of no single session: spare buffers, and messages to and from other lanes.
    #[inline]
    pub(crate) fn charge_common(&mut self, outputs: &Outputs, mail_bytes: usize) {
        let common_bytes = outputs.spare_bytes() + mail_bytes;
        self.memory.resize(self.common_bytes, common_bytes);
        self.common_bytes = common_bytes;
    }

    /// Charges the logs in which the positions of a session have changed.
    pub(crate) fn charge_logs_of(&mut self, session: &Session, logs: &mut Logs) {
        for membership in &session.memberships {
            logs.charge(membership.log(), &mut self.memory);
        }
    }

    /// Creates a log, unless it is there. Returns whether it was created.
    pub(crate) fn open_log(&mut self, logs: &mut Logs, key: LogKey) -> bool {
        logs.open(key, &mut self.memory)
    }

    /// Drops a log without subscribers.
    pub(crate) fn close_log(&mut self, logs: &mut Logs, key: LogKey) {
        logs.close(key, &mut self.memory);
    }

    /// Whether the pressure was full when it was last read.
    pub(super) fn is_full(&self) -> bool {
        self.memory.pressure() == Pressure::Full
    }

    /// Whether the end of a turn has nothing to do for memory.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.memory.is_calm() && !self.is_active
    }

    /// Pauses a publisher until the end of the turn: only then is it known which subscribers are behind and can release
    /// memory. Returns whether it was paused.
    #[cold]
    pub(crate) fn pause_publisher(&mut self, table: &mut SessionTable, id: SessionId) -> bool {
        let Some(slot) = table.slot_of(id) else {
            return false;
        };
        let connection = &mut table[slot].connection;
        if connection.input().state() == Inbound::Ended
            || connection.input().is_paused_by(PauseReason::Memory)
        {
            return false;
        }
        connection.input_mut().pause(PauseReason::Memory);
        self.is_active = true;
        self.waiting.push(id);
        true
    }

    /// The holder that the memory of a session counts for.
    fn holder_of(&self, session: &Session) -> Option<Holder> {
        let identity = session.profile.admitted.as_ref().map(|it| it.identity());
        match identity.filter(|identity| !identity.is_anonymous()) {
            Some(identity) => Some(self.holder_of_user(identity.name())),
            None => session.owner().map(Holder::Address),
        }
    }

    /// Whether a session may not hold more: it is above its share, or nothing may grow.
    pub(crate) fn is_at_its_share(&self, session: Option<&Session>) -> bool {
        if !self.is_short() {
            return false;
        }
        let holder = session.and_then(|session| self.holder_of(session));
        let is_full = self.is_full() && !self.is_relieved;
        is_full || self.memory.shares().is_above(holder)
    }

    /// Bytes that wait for a session in its output and in its rooms.
    fn bytes_behind(&self, session: &Session, logs: &Logs) -> usize {
        self.kept_bytes[session.id.slot()] + logs.held_back_bytes(session)
    }

    /// Memory that a session holds, with its subscriptions and what waits for it.
    fn held_by(&self, session: &Session, logs: &Logs) -> usize {
        let waiting = match session.connection.output().state().is_blocked() {
            true => self.bytes_behind(session, logs),
            false => self.kept_bytes[session.id.slot()],
        };
        SESSION_BYTES + session.memberships.len() * MEMBERSHIP_BYTES + waiting
    }
}

impl Session {
    /// Memory of the buffers that it keeps.
    #[inline]
    fn kept_bytes(&self, output: &Output) -> usize {
        let answers = self
            .unanswered
            .as_deref()
            .map_or(0, PendingRequests::held_bytes);
        let layers = self.stream.memory_bytes();
        // The kernel's memory counts once the socket is full. The sockets of others are nearly empty.
        let kernel = match self.connection.output().state().is_blocked() {
            true => self.stream.kernel_bytes_max(),
            false => 0,
        };
        let own = output.held_bytes() + self.connection.input().held_bytes();
        own + answers + layers + kernel
    }
}

/// Memory of a session beside its buffers and subscriptions: its entry, its output, the part that other threads see,
/// its timer, and its entries in the tables of lane, server and poller.
pub(super) const SESSION_BYTES: usize = size_of::<Session>() + size_of::<Output>() + 512;

/// Memory of a membership or subscription.
pub(crate) const MEMBERSHIP_BYTES: usize = size_of::<Membership>() + size_of::<usize>();

#[cfg(test)]
mod share_tests;
#[cfg(test)]
mod tests;
