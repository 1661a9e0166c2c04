//! The memory account of a lane, and its relief: which sessions lose memory when the server comes near its limit.
//!
//! Memory is charged where it changes owner, not per message. A log is charged when a segment is taken or freed, an
//! output and a partial frame when they are kept beyond a turn. Sessions, rooms and subscriptions have a fixed charge.
//!
//! Under pressure a lane first frees memory that it only keeps for reuse, with the logs that everybody has read. If that is not enough, it takes memory from
//! sessions, until it has released its share of the excess. The sessions are of three kinds: unfinished handshakes, long
//! partial frames, and sessions that do not take their output. The kind that holds most memory pays first. Of the first two
//! kinds the newest sessions pay first, because a flood of them is newer than older clients. Of the third kind the sessions
//! furthest behind pay first. A subscriber whose policy drops messages loses its waiting messages and stays.
//!
//! Whoever holds more than its [share](shares) of the memory pays before all others.
//!
//! Rejected: closing the session that holds most, whatever its kind. Then one large upload would lose to an attack by ten
//! thousand small ones. Rejected too: a fixed order of the kinds. Then a stalled subscriber would cost all new clients their
//! handshakes.

mod shares;

use std::cmp::Reverse;
use std::collections::HashMap;

use tidewire_io::memory::release_unused;
use tidewire_proto::connection::{Inbound, PauseReason, Phase};
use tidewire_proto::room::Policy;

use super::{CloseReason, LaneSessions, Logs, Membership, Output, Session, SessionId, Unanswered};
use crate::memory::{Holder, LaneMemory, Pressure};
use crate::observe::{DropReason, QuietLog};
use crate::transport::Transport;

/// The memory account of a lane, and the state of its relief.
#[derive(Debug)]
pub(crate) struct Relief {
    memory: LaneMemory,
    /// Bytes charged for each session, by slot: its output, its partial frame and its queued answers, when they were last
    /// kept.
    kept_bytes: Vec<usize>,
    /// Bytes charged for no single session or room: spare buffers, and messages to and from other lanes.
    common_bytes: usize,
    /// A pass that did not release enough is repeated only when the lane holds this many bytes, at `again_at_ns`, or at a higher
    /// level.
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
    pub(crate) fn charge_log(&mut self, logs: &mut Logs, alias: u16) {
        logs.charge(alias, &mut self.memory);
    }

    /// Frees the buffers of a log that its subscribers have read, and of which `at_head` are at its head. Returns whether it was
    /// drained.
    pub(super) fn release_drained(&mut self, logs: &mut Logs, alias: u16, at_head: usize) -> bool {
        logs.release_drained(alias, at_head, &mut self.memory)
    }

    /// Memory that the lane holds.
    pub(super) fn held_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Charges a new session.
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
}

/// A kind of sessions that can release memory.
#[derive(Default)]
struct Payers {
    held_bytes: usize,
    /// Slots with their order. The last one pays first.
    slots: Vec<(Reverse<u64>, usize)>,
}

impl Payers {
    fn add(&mut self, slot: usize, held_bytes: usize, order: u64) {
        self.held_bytes += held_bytes;
        self.slots.push((Reverse(order), slot));
    }
}

impl LaneSessions {
    /// Charges the changes since the last turn, with messages to and from other lanes, and relieves the server if necessary.
    /// Returns the remaining pressure.
    #[inline]
    pub(crate) fn settle_memory(&mut self, mail_bytes: usize) -> Pressure {
        self.charge_common(mail_bytes);
        match self.relief.memory.is_calm() && !self.relief.is_active {
            true => Pressure::Normal,
            false => self.settle_under_pressure(),
        }
    }

    #[cold]
    fn settle_under_pressure(&mut self) -> Pressure {
        if self.relief.memory.has_fallen() {
            release_unused();
        }
        let mut pressure = self.relief.memory.refresh();
        if pressure != Pressure::Normal {
            self.relieve();
            pressure = self.relief.memory.pressure();
        }
        if pressure == Pressure::Normal {
            self.relief.is_relieved = false;
            self.outputs.keep_spare(true);
            self.relief.is_active = false;
        }
        while let Some(id) = self.relief.waiting.pop() {
            if let Some(slot) = self.slot_of(id)
                && self.slab[slot]
                    .connection
                    .input_mut()
                    .resume(PauseReason::Memory)
            {
                self.resumed.push(slot);
            }
        }
        pressure
    }

    /// Charges memory of no single session: spare buffers, and messages to and from other lanes.
    #[inline]
    pub(crate) fn charge_common(&mut self, mail_bytes: usize) {
        let common_bytes = self.outputs.spare_bytes() + mail_bytes;
        self.relief
            .memory
            .resize(self.relief.common_bytes, common_bytes);
        self.relief.common_bytes = common_bytes;
    }

    /// Charges the buffers that a session keeps.
    #[inline]
    pub(crate) fn charge_buffers(&mut self, slot: usize) {
        let held = self.slab[slot].kept_bytes(self.outputs.of(slot));
        self.relief.charge_kept_bytes(slot, held);
    }

    /// Charges a session after a read or write that kept no bytes. Two calls in a turn cost 20 instructions more if they are not
    /// inlined, 1 % of a turn with one message.
    #[inline(always)]
    pub(crate) fn charge_kept_nothing(&mut self, slot: usize) {
        if self.relief.kept_bytes[slot] > 0 {
            self.charge_buffers(slot);
        }
    }

    /// Charges the bytes that a session keeps, and starts relief if the limit is reached.
    pub(crate) fn charge_kept(&mut self, slot: usize) {
        self.charge_buffers(slot);
        if self.relief.memory.pressure() == Pressure::Full {
            self.relieve();
        }
    }

    /// Charges a log after an append or a read.
    #[inline]
    pub(crate) fn charge_log(&mut self, alias: u16) {
        self.logs.charge(alias, &mut self.relief.memory);
    }

    /// Creates the log of a room, unless the room has one.
    pub(crate) fn open_log(&mut self, alias: u16) {
        self.logs.open(alias, &mut self.relief.memory);
    }

    /// Drops the log of a room without subscribers.
    pub(crate) fn close_log(&mut self, alias: u16) {
        self.logs.close(alias, &mut self.relief.memory);
    }

    /// Charges the rooms of a session whose positions in their logs have changed.
    pub(crate) fn charge_rooms_of(&mut self, slot: usize) {
        let Self {
            slab, logs, relief, ..
        } = self;
        for membership in &slab[slot].memberships {
            logs.charge(membership.room, &mut relief.memory);
        }
    }

    /// Whether logs may grow for a message. At the memory limit they must not, unless relief succeeds. The message is
    /// then counted as refused.
    #[cold]
    pub(crate) fn may_grow(&mut self) -> bool {
        if self.relief.memory.pressure() == Pressure::Full {
            self.relieve();
        }
        let may_grow = self.relief.memory.pressure() != Pressure::Full || self.relief.is_relieved;
        self.counters
            .memory_refused_messages
            .add(u64::from(!may_grow));
        may_grow
    }

    /// Pauses a publisher until the end of the turn: only then is it known which subscribers are behind and can release
    /// memory. Returns whether it was paused.
    #[cold]
    pub(crate) fn wait_for_memory(&mut self, id: SessionId) -> bool {
        let Some(slot) = self.slot_of(id) else {
            return false;
        };
        let connection = &mut self.slab[slot].connection;
        if connection.input().state() == Inbound::Ended
            || connection.input().is_paused_by(PauseReason::Memory)
        {
            return false;
        }
        connection.input_mut().pause(PauseReason::Memory);
        self.relief.is_active = true;
        self.relief.waiting.push(id);
        true
    }

    /// Releases this lane's share of the server's excess.
    #[cold]
    pub(crate) fn relieve(&mut self) {
        let pressure = self.relief.memory.settle();
        if pressure == Pressure::Normal {
            return;
        }
        let is_same = self.relief.memory.bytes() < self.relief.again_at_bytes
            && pressure <= self.relief.again_above;
        if is_same && self.timers.now_ns() < self.relief.again_at_ns {
            return;
        }
        let before = self.relief.memory.bytes();
        let goal = before.saturating_sub(self.relief.memory.excess_share());
        self.release_spare();
        let above = self.measure_shares();
        let mut closed = self.let_pay(&above, goal);
        let after = self
            .relief
            .memory
            .bytes()
            .saturating_sub(closed * SESSION_BYTES);
        self.relief.memory.settle();
        let (after, more_closed) = self.make_room_for_others(above, after);
        closed += more_closed;
        if after > goal {
            self.relief.again_at_bytes = after + AGAIN_BYTES;
            self.relief.again_at_ns = self.timers.now_ns() + AGAIN_NS;
            self.relief.again_above = pressure;
        } else {
            self.relief.again_at_bytes = 0;
        }
        if let Some(unlogged) = self.relief.log.may_log(self.timers.now_ns()) {
            let limit = self.relief.memory.bytes_max();
            let released = before.saturating_sub(after);
            tracing::warn!(
                limit,
                held = after,
                released,
                closed,
                unlogged,
                "near the memory limit, raise `memory_bytes_max` if these are not attacks; further relief is counted, and not \
                 logged for 10 s"
            );
        }
    }

    /// Takes memory from slow and unfinished sessions until the lane holds `goal`: first from those who are above their
    /// shares. Returns the number of sessions that this closes.
    fn let_pay(&mut self, above: &HashMap<Holder, usize>, goal: usize) -> usize {
        let mut payers = self.payers();
        payers.sort_by_key(|payers| Reverse(payers.held_bytes));
        let mut closed = 0;
        for pays_first in [true, false] {
            for kind in &mut payers {
                let mut slots = std::mem::take(&mut kind.slots);
                if pays_first {
                    let is_first = |(_, slot): &(Reverse<u64>, usize)| self.is_of(above, *slot);
                    (slots, kind.slots) = match above.is_empty() {
                        true => (Vec::new(), slots),
                        false => slots.into_iter().partition(is_first),
                    };
                }
                slots.sort_unstable();
                // The entries of closed sessions are released at the end of the turn.
                while self.relief.memory.bytes() > goal + closed * SESSION_BYTES
                    && let Some((_, slot)) = slots.pop()
                {
                    closed += usize::from(self.make_pay(slot));
                }
            }
        }
        closed
    }

    /// At full, closes the newest sessions of those above their shares, if others want memory. `held` is what this lane holds
    /// after the turn. Returns what it holds then, and the number of closed sessions.
    fn make_room_for_others(
        &mut self,
        above: HashMap<Holder, usize>,
        held: usize,
    ) -> (usize, usize) {
        self.relief.is_relieved = false;
        let relief = &self.relief;
        if relief.memory.pressure() != Pressure::Full {
            return (held, 0);
        }
        let others = usize::from(relief.has_newcomer) + usize::from(relief.has_unshared);
        let goal = relief
            .memory
            .bytes()
            .saturating_sub(relief.memory.full_share());
        let is_wanted = relief.memory.shares().holders() + others > 1;
        if above.is_empty() || !is_wanted && !relief.memory.is_exceeded() {
            self.relief.is_relieved = held <= goal;
            return (held, 0);
        }
        let (released, closed) = self.close_newest(above, held.saturating_sub(goal));
        let held = held.saturating_sub(released);
        self.relief.is_relieved = held <= goal;
        (held, closed)
    }

    /// Frees memory that is only kept for reuse.
    fn release_spare(&mut self) {
        self.relief.is_active = true;
        self.outputs.keep_spare(false);
        if self.logs.charge_all(&mut self.relief.memory) >= DRAINED_BYTES_MIN {
            self.release_drained();
        }
        for (slot, session) in &mut self.slab {
            session.connection.input_mut().shrink();
            let held = session.kept_bytes(self.outputs.of(slot));
            self.relief.charge_kept_bytes(slot, held);
        }
    }

    /// Frees the buffers of all logs that their subscribers have read to the end.
    fn release_drained(&mut self) {
        let Self {
            slab, logs, relief, ..
        } = self;
        let mut at_head = vec![0; logs.aliases()];
        for (_, session) in slab {
            for membership in &mut session.memberships {
                if let Some(log) = logs.get_mut(membership.room) {
                    let is_at_head = membership.subscriber.reach_head(log);
                    at_head[usize::from(membership.room)] += usize::from(is_at_head);
                }
            }
        }
        for (alias, at_head) in (0..).zip(at_head) {
            relief.release_drained(logs, alias, at_head);
        }
    }

    /// Returns the sessions that can release memory, by kind. Outgoing connections are not among them.
    fn payers(&self) -> [Payers; 3] {
        let [mut handshakes, mut half_frames, mut behind] = [(); 3].map(|()| Payers::default());
        for (slot, session) in &self.slab {
            let connection = &session.connection;
            if connection.handshake().is_outgoing() || connection.is_closed() {
                continue;
            }
            let age = session.id.age(self.generation);
            let held = SESSION_BYTES + self.relief.kept_bytes[slot];
            let partial = connection.input();
            if matches!(
                connection.phase(),
                Phase::Securing | Phase::AwaitHello | Phase::Authenticating
            ) {
                handshakes.add(slot, held, u64::from(age));
            } else if connection.output().state().is_blocked() {
                let behind_bytes = self.bytes_behind(slot, session);
                behind.add(slot, behind_bytes, u64::MAX - behind_bytes as u64);
            } else if !partial.has_frames() && partial.held_bytes() >= HALF_FRAME_BYTES_MIN {
                half_frames.add(slot, held, u64::from(age));
            }
        }
        [handshakes, half_frames, behind]
    }

    /// Bytes that wait for a session in its output and in its rooms.
    fn bytes_behind(&self, slot: usize, session: &Session) -> usize {
        let logs = session.memberships.iter().map(|membership| {
            let log = self.logs.get(membership.room);
            log.map_or(0, |log| membership.subscriber.held_back_bytes(log))
        });
        self.relief.kept_bytes[slot] + logs.sum::<u64>() as usize
    }

    /// Takes memory from a session. Returns whether that closes it.
    fn make_pay(&mut self, slot: usize) -> bool {
        let Self {
            slab,
            logs,
            counters,
            relief,
            ..
        } = self;
        let session = &mut slab[slot];
        let mut dropped = 0;
        let (mut is_behind, mut may_stay) = (false, true);
        for Membership {
            room, subscriber, ..
        } in &mut session.memberships
        {
            let Some(log) = logs.get_mut(*room) else {
                continue;
            };
            if subscriber.messages_behind(log) > 0 {
                is_behind = true;
                may_stay &= !matches!(subscriber.policy(), Policy::Disconnect | Policy::Block);
            }
            dropped += subscriber.drop_all(log);
            logs.charge(*room, &mut relief.memory);
        }
        counters.room_dropped[DropReason::Memory as usize].add(dropped);
        if is_behind && may_stay {
            return false;
        }
        // The session is removed at the end of the turn. Its memory counts as released from now on.
        relief.charge_kept_bytes(slot, 0);
        drop(session.connection.input_mut().take());
        self.close(slot, CloseReason::MemoryLimit);
        true
    }
}

impl Session {
    /// Memory of the buffers that it keeps.
    #[inline]
    fn kept_bytes(&self, output: &Output) -> usize {
        let answers = self.unanswered.as_deref().map_or(0, Unanswered::held_bytes);
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

/// Memory of a session beside its buffers and subscriptions: its entry, its output, the part that other threads see, its timer, and its
/// entries in the tables of lane, server and poller.
pub(super) const SESSION_BYTES: usize = size_of::<Session>() + size_of::<Output>() + 512;

/// Memory of a membership or subscription.
pub(crate) const MEMBERSHIP_BYTES: usize = size_of::<Membership>() + size_of::<usize>();

/// Smallest partial frame that costs a session its connection: every peer that is being read may have a smaller one.
const HALF_FRAME_BYTES_MIN: usize = 16 * 1024;

/// Memory of all logs from which on a lane under pressure looks for those that are drained. The search visits every
/// subscription.
const DRAINED_BYTES_MIN: usize = 64 * 1024;

/// Growth of a lane's memory after which it searches again, if the last search found too few sessions.
const AGAIN_BYTES: usize = 256 * 1024;

/// Time after which it searches again.
const AGAIN_NS: u64 = 100_000_000;

#[cfg(test)]
mod share_tests;
#[cfg(test)]
mod tests;
