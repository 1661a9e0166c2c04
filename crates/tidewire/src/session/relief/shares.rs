//! The shares of memory when it is short: who is above its share, and what that means for it.
//!
//! Whoever holds more than its share is refused what would make it hold more: newcomers, subscriptions and rooms. The
//! others are not. At *full*, the newest sessions of those above their shares are closed, whatever they do, until
//! memory is only *high*: an idle session costs memory, too. While nobody else wants memory, nothing of this happens to
//! a single holder.

use std::cmp::Reverse;
use std::collections::HashMap;

use tidewire_proto::connection::CloseReason;

use super::ReliefPass;
use super::pass::AGAIN_NS;
use crate::memory::{Holder, Pressure};

impl ReliefPass<'_> {
    /// Sums what the sessions of this lane hold. Returns what each holder has beyond its share.
    pub(super) fn measure_shares(&mut self) -> HashMap<Holder, usize> {
        let mut held: HashMap<Holder, usize> = HashMap::new();
        let mut others = 0;
        for session in self.accepted() {
            match self.relief.holder_of(session) {
                Some(holder) => {
                    *held.entry(holder).or_default() += self.relief.held_by(session, self.logs);
                }
                None => others += 1,
            }
        }
        self.relief.has_unshared = others > 0;
        self.relief.memory.note_shares(held);
        self.relief.memory.shares().above()
    }

    /// Whether a session is one of these holders'.
    pub(super) fn is_of(&self, holders: &HashMap<Holder, usize>, slot: usize) -> bool {
        let holder = self.relief.holder_of(&self.table[slot]);
        holder.is_some_and(|holder| holders.contains_key(&holder))
    }

    /// Closes the newest sessions of those who hold more than their shares, until this lane has released `bytes`.
    /// Returns what the closed sessions release at the end of the turn, and their number.
    pub(super) fn close_newest(
        &mut self,
        mut above: HashMap<Holder, usize>,
        bytes: usize,
    ) -> (usize, usize) {
        let mut newest: Vec<(Reverse<u32>, usize, Holder)> = Vec::new();
        for session in self.accepted() {
            if let Some(holder) = self.relief.holder_of(session)
                && above.contains_key(&holder)
            {
                newest.push((
                    Reverse(self.table.age_of(session.id)),
                    session.id.slot(),
                    holder,
                ));
            }
        }
        newest.sort_unstable_by_key(|(age, ..)| *age);
        let (mut released, mut closed) = (0, 0);
        while released < bytes
            && let Some((_, slot, holder)) = newest.pop()
        {
            let held = self.relief.held_by(&self.table[slot], self.logs);
            match above.get_mut(&holder) {
                Some(more) if *more > 0 => *more = more.saturating_sub(held),
                _ => continue,
            }
            self.table.close(slot, CloseReason::MemoryLimit);
            released += held;
            closed += 1;
        }
        (released, closed)
    }

    /// Whether memory is so short that a session of this holder must not come.
    pub(crate) fn must_refuse(&mut self, holder: Option<Holder>) -> bool {
        if self.relief.memory.refresh() == Pressure::Normal {
            return false;
        }
        self.relieve();
        if self.relief.memory.shares().is_above(holder) {
            return self.relief.is_short();
        }
        if self.relief.is_full() && self.now_ns >= self.relief.newcomer_ns {
            // Until now, the only holder may have been alone.
            self.relief.newcomer_ns = self.now_ns + AGAIN_NS;
            self.relief.again_at_bytes = 0;
            self.relief.has_newcomer = true;
            self.relieve();
            self.relief.has_newcomer = false;
        }
        match self.relief.memory.pressure() {
            Pressure::Normal => false,
            // A holder above its share makes room for a newcomer. If nobody is, all newcomers wait.
            Pressure::High => !self.relief.memory.shares().is_any_above(),
            Pressure::Full => !self.relief.is_relieved,
        }
    }
}
