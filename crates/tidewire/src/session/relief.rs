//! What a lane holds, and who gives way when the server comes near its memory limit.
//!
//! Each part is charged where its memory changes hands and not per message: a log when a segment is taken or freed, an output
//! and a partial frame when they are kept beyond a turn, sessions, rooms and subscriptions by a fixed size.
//!
//! Under pressure a lane first frees what it only keeps to reuse. If that is not enough, sessions pay, until the lane has released
//! its share of the excess. They are of three kinds: those that have not finished their handshake, those that have begun a long
//! frame and not finished it, and those that do not take what they are sent. The kind that holds most pays first. Of
//! the first two kinds the newest sessions go first, because a flood of them is newer than who was there before; of the third
//! those that are furthest behind. A subscriber whose policy drops messages loses what it is behind, and stays.
//!
//! Rejected: closing whoever holds most, whatever it is (a single large upload would lose to ten thousand small ones that are the
//! attack), and an order of the kinds that never changes (a stalled subscriber would cost all newcomers their handshake).

use std::cmp::Reverse;

use tidewire_io::memory::release_unused;
use tidewire_proto::connection::{Inbound, PauseReason, Phase};
use tidewire_proto::room::Policy;

use super::{CloseReason, LaneSessions, Membership, Session, SessionId, Unanswered};
use crate::memory::{LaneMemory, Pressure};
use crate::observe::{DropReason, QuietLog};

/// What a lane remembers of its memory.
#[derive(Debug)]
pub(crate) struct Relief {
    pub(crate) memory: LaneMemory,
    /// Charged for each session, by slot: its output, its partial frame and the answers in its line, as they were kept last.
    kept_bytes: Vec<usize>,
    /// Charged for what belongs to no session or room: spare buffers, and messages for and from other lanes.
    common_bytes: usize,
    /// A pass that did not release enough is not repeated before the lane holds this much, or it is this late.
    again_at_bytes: usize,
    again_at_ns: u64,
    /// Something was done under pressure that ends with it: spare buffers are not kept, or sessions wait.
    is_active: bool,
    /// Sessions that are not read until the turn ends, because what they send makes memory grow.
    waiting: Vec<SessionId>,
    /// When relief is logged.
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
            is_active: false,
            waiting: Vec::new(),
            log: QuietLog::default(),
        }
    }

    /// Charges a new session.
    pub(crate) fn charge_session(&mut self, slot: usize) {
        if self.kept_bytes.len() <= slot {
            self.kept_bytes.resize(slot + 1, 0);
        }
        self.memory.resize(0, SESSION_BYTES);
    }

    /// Gives back what a session was charged for that is taken apart.
    pub(crate) fn release_session(&mut self, slot: usize) {
        self.charge_kept_bytes(slot, 0);
        self.memory.resize(SESSION_BYTES, 0);
    }

    #[inline]
    fn charge_kept_bytes(&mut self, slot: usize, bytes: usize) {
        let charged = &mut self.kept_bytes[slot];
        self.memory.resize(*charged, bytes);
        *charged = bytes;
    }
}

/// A kind of sessions that can give way.
#[derive(Default)]
struct Payers {
    held_bytes: usize,
    /// Slots, and what decides their order; the last one pays first.
    slots: Vec<(Reverse<u64>, usize)>,
}

impl Payers {
    fn add(&mut self, slot: usize, held_bytes: usize, order: u64) {
        self.held_bytes += held_bytes;
        self.slots.push((Reverse(order), slot));
    }
}

impl LaneSessions {
    /// Charges what changed since the last turn, among it what waits for and from other lanes, and relieves the server if it must.
    /// Returns the pressure that is left.
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
            self.outbox.buffers.keep_spare(true);
            self.relief.is_active = false;
        }
        while let Some(id) = self.relief.waiting.pop() {
            if let Some(slot) = self.slot_of(id)
                && self.slab[slot].connection.resume(PauseReason::Memory)
            {
                self.resumed.push(slot);
            }
        }
        pressure
    }

    /// Charges what belongs to no session: spare buffers, and messages for and from other lanes.
    #[inline]
    pub(crate) fn charge_common(&mut self, mail_bytes: usize) {
        let common_bytes = self.outbox.buffers.held_bytes() + mail_bytes;
        self.relief
            .memory
            .resize(self.relief.common_bytes, common_bytes);
        self.relief.common_bytes = common_bytes;
    }

    /// Charges a session for the buffers that it keeps.
    #[inline]
    pub(crate) fn charge_buffers(&mut self, slot: usize) {
        let held = self.slab[slot].kept_bytes();
        self.relief.charge_kept_bytes(slot, held);
    }

    /// Charges a session after a read that kept nothing.
    #[inline]
    pub(crate) fn charge_kept_nothing(&mut self, slot: usize) {
        if self.relief.kept_bytes[slot] > 0 {
            self.charge_buffers(slot);
        }
    }

    /// Charges a session that keeps what came for it, and has it, or others, give way if nothing may grow any more.
    pub(crate) fn charge_kept(&mut self, slot: usize) {
        self.charge_buffers(slot);
        if self.relief.memory.pressure() == Pressure::Full {
            self.relieve();
        }
    }

    /// Charges a log for what it holds since it was appended to, or read from.
    #[inline]
    pub(crate) fn charge_log(&mut self, alias: u16) {
        self.outbox.logs.charge(alias, &mut self.relief.memory);
    }

    /// Adds the log of a room, unless it has one.
    pub(crate) fn open_log(&mut self, alias: u16) {
        self.outbox.logs.open(alias, &mut self.relief.memory);
    }

    /// Drops the log of a room that has no subscriber any more.
    pub(crate) fn close_log(&mut self, alias: u16) {
        self.outbox.logs.close(alias, &mut self.relief.memory);
    }

    /// Charges the rooms of a session whose place in their logs has changed.
    pub(crate) fn charge_rooms_of(&mut self, slot: usize) {
        let Self {
            slab,
            outbox,
            relief,
            ..
        } = self;
        for membership in &slab[slot].memberships {
            outbox.logs.charge(membership.room, &mut relief.memory);
        }
    }

    /// Whether the pressure was above normal when it was read last. If not, publishers need not ask anything else.
    #[inline]
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.relief.memory.pressure() != Pressure::Normal
    }

    /// Whether logs may grow for a message. At the memory limit they do not, if nobody gives way; the message is then counted as
    /// refused.
    #[cold]
    pub(crate) fn may_grow(&mut self) -> bool {
        if self.relief.memory.pressure() == Pressure::Full {
            self.relieve();
        }
        let may_grow = self.relief.memory.pressure() != Pressure::Full;
        self.counters
            .memory_refused_messages
            .add(u64::from(!may_grow));
        may_grow
    }

    /// Has a publisher wait for the end of the turn: only then is it known who is behind, and can give way. Returns whether it
    /// must.
    #[cold]
    pub(crate) fn wait_for_memory(&mut self, id: SessionId) -> bool {
        let Some(slot) = self.slot_of(id) else {
            return false;
        };
        let connection = &mut self.slab[slot].connection;
        if connection.inbound() == Inbound::Ended || connection.is_paused_by(PauseReason::Memory) {
            return false;
        }
        connection.pause(PauseReason::Memory);
        self.relief.is_active = true;
        self.relief.waiting.push(id);
        true
    }

    /// Releases this lane's share of what the server holds too much.
    #[cold]
    pub(crate) fn relieve(&mut self) {
        if self.relief.memory.settle() == Pressure::Normal {
            return;
        }
        let is_same = self.relief.memory.bytes() < self.relief.again_at_bytes;
        if is_same && self.reactor.now_ns < self.relief.again_at_ns {
            return;
        }
        let before = self.relief.memory.bytes();
        let goal = before.saturating_sub(self.relief.memory.excess_share());
        self.release_spare();
        let mut payers = self.payers();
        payers.sort_by_key(|payers| payers.held_bytes);
        let mut closed = 0;
        for mut kind in payers.into_iter().rev() {
            kind.slots.sort_unstable();
            // The entries of closed sessions are given back at the end of the turn.
            while self.relief.memory.bytes() > goal + closed * SESSION_BYTES
                && let Some((_, slot)) = kind.slots.pop()
            {
                closed += usize::from(self.make_pay(slot));
            }
        }
        let after = self
            .relief
            .memory
            .bytes()
            .saturating_sub(closed * SESSION_BYTES);
        self.relief.memory.settle();
        if after > goal {
            self.relief.again_at_bytes = after + AGAIN_BYTES;
            self.relief.again_at_ns = self.reactor.now_ns + AGAIN_NS;
        } else {
            self.relief.again_at_bytes = 0;
        }
        if let Some(unlogged) = self.relief.log.may_log(self.reactor.now_ns) {
            let limit = self.config.limits.memory_bytes_max;
            let released = before.saturating_sub(after);
            tracing::warn!(
                limit,
                held = after,
                released,
                closed,
                unlogged,
                "near the memory limit, raise `memory_bytes_max` if these are not attacks; what follows is counted, and not \
                 logged for 10 s"
            );
        }
    }

    /// Frees what is only kept to be used again.
    fn release_spare(&mut self) {
        self.relief.is_active = true;
        self.outbox.buffers.keep_spare(false);
        self.outbox.logs.charge_all(&mut self.relief.memory);
        for (slot, session) in &mut self.slab {
            session.connection.partial.shrink();
            self.relief.charge_kept_bytes(slot, session.kept_bytes());
        }
    }

    /// The sessions that can give way, by kind. Those that the server has connected itself are not among them.
    fn payers(&self) -> [Payers; 3] {
        let [mut unopened, mut half_frames, mut behind] = [(); 3].map(|()| Payers::default());
        for (slot, session) in &self.slab {
            let connection = &session.connection;
            if connection.is_outgoing() || connection.is_closed() {
                continue;
            }
            let age = session.id.age(self.generation);
            let held = SESSION_BYTES + self.relief.kept_bytes[slot];
            let partial = &connection.partial;
            if matches!(connection.phase(), Phase::Securing | Phase::AwaitHello) {
                unopened.add(slot, held, u64::from(age));
            } else if connection.outbound().is_blocked() {
                let behind_bytes = self.bytes_behind(slot, session);
                behind.add(slot, behind_bytes, u64::MAX - behind_bytes as u64);
            } else if !partial.has_frames() && partial.held_bytes() >= HALF_FRAME_BYTES_MIN {
                half_frames.add(slot, held, u64::from(age));
            }
        }
        [unopened, half_frames, behind]
    }

    /// How far a session is behind: what waits for it in its output and in its rooms.
    fn bytes_behind(&self, slot: usize, session: &Session) -> usize {
        let logs = session.memberships.iter().map(|membership| {
            let log = self.outbox.logs.get(membership.room);
            log.map_or(0, |log| membership.subscriber.held_back_bytes(log))
        });
        self.relief.kept_bytes[slot] + logs.sum::<u64>() as usize
    }

    /// Takes from a session what it makes the lane hold. Returns whether that closes it.
    fn make_pay(&mut self, slot: usize) -> bool {
        let Self {
            slab,
            outbox,
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
            let Some(log) = outbox.logs.get_mut(*room) else {
                continue;
            };
            if subscriber.messages_behind(log) > 0 {
                is_behind = true;
                may_stay &= !matches!(subscriber.policy(), Policy::Disconnect | Policy::Block);
            }
            dropped += subscriber.drop_all(log);
            outbox.logs.charge(*room, &mut relief.memory);
        }
        counters.room_dropped[DropReason::Memory as usize].add(dropped);
        if is_behind && may_stay {
            return false;
        }
        // It is taken apart at the end of the turn; from now on its memory counts as released.
        relief.charge_kept_bytes(slot, 0);
        drop(session.connection.partial.take());
        self.close(slot, CloseReason::MemoryLimit);
        true
    }
}

impl Session {
    /// Memory of the buffers that it keeps.
    #[inline]
    fn kept_bytes(&self) -> usize {
        let answers = self.unanswered.as_deref().map_or(0, Unanswered::held_bytes);
        self.output.bytes.capacity() + self.connection.partial.held_bytes() + answers
    }
}

/// Memory of a session beside its buffers and subscriptions: its entry, what other threads see of it, its timer, and its place in
/// the tables of lane, server and poller.
const SESSION_BYTES: usize = size_of::<Session>() + 512;

/// Memory of a place in a room, or of a subscription.
pub(crate) const MEMBERSHIP_BYTES: usize = size_of::<Membership>() + size_of::<usize>();

/// A partial frame below this is not worth a connection: every peer that is being read may have one.
const HALF_FRAME_BYTES_MIN: usize = 16 * 1024;

/// How much more a lane must hold before it looks again for who can pay, if it found too few.
const AGAIN_BYTES: usize = 256 * 1024;

/// How much later it looks again.
const AGAIN_NS: u64 = 100_000_000;

#[cfg(test)]
mod tests;
