//! One pass of relief: it takes memory from sessions, in the order that the module above explains.

use std::cmp::Reverse;
use std::collections::HashMap;

use tidewire_io::memory::release_unused;
use tidewire_proto::connection::{PauseReason, Phase};
use tidewire_proto::room::Policy;

use super::{ReliefPass, SESSION_BYTES};
use crate::memory::{Holder, Pressure};
use crate::observe::DropReason;
use crate::session::{CloseReason, LogKey, Session};

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

impl ReliefPass<'_> {
    /// Relieves the server at the end of a turn. Returns the remaining pressure.
    #[cold]
    pub(in crate::session) fn settle(&mut self) -> Pressure {
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
            if let Some(slot) = self.table.slot_of(id) {
                self.table.resume(slot, PauseReason::Memory);
            }
        }
        pressure
    }

    /// Whether logs may grow for a message. At the memory limit they must not, unless relief succeeds. The message is
    /// then counted as refused.
    #[cold]
    pub(crate) fn may_grow(&mut self) -> bool {
        if self.relief.is_full() {
            self.relieve();
        }
        let may_grow = !self.relief.is_full() || self.relief.is_relieved;
        self.counters
            .memory_refused_messages
            .add(u64::from(!may_grow));
        may_grow
    }

    /// Releases this lane's share of the server's excess.
    #[cold]
    pub(in crate::session) fn relieve(&mut self) {
        let pressure = self.relief.memory.settle();
        if pressure == Pressure::Normal {
            return;
        }
        let is_same = self.relief.memory.bytes() < self.relief.again_at_bytes
            && pressure <= self.relief.again_above;
        if is_same && self.now_ns < self.relief.again_at_ns {
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
            self.relief.again_at_ns = self.now_ns + AGAIN_NS;
            self.relief.again_above = pressure;
        } else {
            self.relief.again_at_bytes = 0;
        }
        if let Some(unlogged) = self.relief.log.may_log(self.now_ns) {
            let limit = self.relief.memory.bytes_max();
            let released = before.saturating_sub(after);
            tracing::warn!(
                limit,
                held = after,
                released,
                closed,
                unlogged,
                "near the memory limit, raise `memory_bytes_max` if these are not attacks; further relief is counted, \
                 and not logged for 10 s"
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

    /// At full, closes the newest sessions of those above their shares, if others want memory. `held` is what this lane
    /// holds after the turn. Returns what it holds then, and the number of closed sessions.
    fn make_room_for_others(
        &mut self,
        above: HashMap<Holder, usize>,
        held: usize,
    ) -> (usize, usize) {
        self.relief.is_relieved = false;
        let relief = &self.relief;
        if !relief.is_full() {
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
        for (_, session) in &mut *self.table {
            session.connection.input_mut().shrink();
            self.relief.charge_buffers(session, self.outputs);
        }
    }

    /// Frees the buffers of all logs that their subscribers have read to the end.
    fn release_drained(&mut self) {
        let mut at_head: HashMap<LogKey, usize> = HashMap::new();
        for (_, session) in &mut *self.table {
            for membership in &mut session.memberships {
                let key = membership.log();
                if let Some(log) = self.logs.get_mut(key) {
                    let is_at_head = membership.subscriber.reach_head(log);
                    *at_head.entry(key).or_default() += usize::from(is_at_head);
                }
            }
        }
        for key in self.logs.all_keys() {
            let at_head = at_head.get(&key).copied().unwrap_or_default();
            self.relief.release_drained(self.logs, key, at_head);
        }
    }

    /// The sessions that may be closed for their memory. Outgoing connections are not among them.
    pub(super) fn accepted(&self) -> impl Iterator<Item = &Session> {
        let sessions = (&*self.table).into_iter().map(|(_, session)| session);
        sessions.filter(|session| {
            let connection = &session.connection;
            !connection.handshake().is_outgoing() && !connection.is_closed()
        })
    }

    /// Returns the sessions that can release memory, by kind.
    fn payers(&self) -> [Payers; 3] {
        let [mut handshakes, mut half_frames, mut behind] = [(); 3].map(|()| Payers::default());
        for session in self.accepted() {
            let (slot, connection) = (session.id.slot(), &session.connection);
            let age = self.table.age_of(session.id);
            let held = SESSION_BYTES + self.relief.kept_bytes[slot];
            let partial = connection.input();
            if matches!(
                connection.phase(),
                Phase::Securing | Phase::AwaitHello | Phase::Authenticating
            ) {
                handshakes.add(slot, held, u64::from(age));
            } else if connection.output().state().is_blocked() {
                let behind_bytes = self.relief.bytes_behind(session, self.logs);
                behind.add(slot, behind_bytes, u64::MAX - behind_bytes as u64);
            } else if !partial.has_frames() && partial.held_bytes() >= HALF_FRAME_BYTES_MIN {
                half_frames.add(slot, held, u64::from(age));
            }
        }
        [handshakes, half_frames, behind]
    }

    /// Takes memory from a session. Returns whether that closes it.
    fn make_pay(&mut self, slot: usize) -> bool {
        let session = &mut self.table[slot];
        let mut dropped = 0;
        let (mut is_behind, mut may_stay) = (false, true);
        for membership in &mut session.memberships {
            let key = membership.log();
            let subscriber = &mut membership.subscriber;
            let Some(log) = self.logs.get_mut(key) else {
                continue;
            };
            if subscriber.messages_behind(log) > 0 {
                is_behind = true;
                may_stay &= !matches!(subscriber.policy(), Policy::Disconnect | Policy::Block);
            }
            dropped += subscriber.drop_all(log);
            self.relief.charge_log(self.logs, key);
        }
        self.counters.room_dropped[DropReason::Memory as usize].add(dropped);
        if is_behind && may_stay {
            return false;
        }
        // The session is removed at the end of the turn. Its memory counts as released from now on.
        self.relief.charge_kept_bytes(slot, 0);
        drop(session.connection.input_mut().take());
        self.table.close(slot, CloseReason::MemoryLimit);
        true
    }
}

/// Smallest partial frame that costs a session its connection: every peer that is being read may have a smaller one.
const HALF_FRAME_BYTES_MIN: usize = 16 * 1024;

/// Memory of all logs from which on a lane under pressure looks for those that are drained. The search visits every
/// subscription.
const DRAINED_BYTES_MIN: usize = 64 * 1024;

/// Growth of a lane's memory after which it searches again, if the last search found too few sessions.
const AGAIN_BYTES: usize = 256 * 1024;

/// Time after which it searches again.
pub(super) const AGAIN_NS: u64 = 100_000_000;
