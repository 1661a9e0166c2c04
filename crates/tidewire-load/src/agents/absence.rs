//! Agents that lose their connection on purpose, in a step with faults, and come back.

use std::sync::atomic::{AtomicU64, Ordering};

use tidewire::{CloseReason, Context};

use super::Agents;
use super::login::explain;
use crate::ledger::Absence;

impl Agents {
    /// Whether an agent that has lost its connection gets another one.
    pub(super) fn comes_back(&self) -> bool {
        self.plan.has_faults() && !self.is_slow
    }

    /// Whether this is an agent that was logged in before and is not again.
    pub(super) fn is_returning(&self, slot: usize) -> bool {
        self.agents[slot].logged_in && !self.agents[slot].alive
    }

    /// Notes the end of a connection, and tries to get another one in a moment.
    pub(super) fn leave(&mut self, slot: usize, reason: CloseReason) {
        let sent = self.sent_counts();
        let agent = &mut self.agents[slot];
        if std::mem::replace(&mut agent.alive, false) {
            self.link.connected[agent.node].fetch_sub(1, Ordering::Relaxed);
            agent.absences.push(Absence {
                own_sent: agent.sent,
                own_kept: 0,
                at_end: sent,
                at_return: None,
            });
            self.link.disconnects.add(1);
            self.result.disconnects.push(reason);
        }
        self.try_again(slot);
    }

    pub(super) fn try_again(&mut self, slot: usize) {
        let at_ns = self.plan.clock.now_ns() + RETURN_PAUSE_NS;
        self.returning.push_back((at_ns, slot));
    }

    /// Connects those whose pause is over.
    pub(super) fn connect_returning(&mut self, cx: &mut Context<'_>) {
        while let Some((at_ns, slot)) = self.returning.front().copied()
            && at_ns <= self.plan.clock.now_ns()
            && !self.finished
        {
            self.returning.pop_front();
            if let Err(failure) = self.connect(cx, slot) {
                self.note_failure(|| explain(&failure));
                self.try_again(slot);
            }
        }
    }

    /// Notes that an agent is where it was before.
    pub(super) fn come_back(&mut self, slot: usize, room: u16) {
        let sent = self.sent_counts();
        let agent = &mut self.agents[slot];
        agent.alive = true;
        agent.room = room;
        if let Some(absence) = agent.absences.last_mut() {
            absence.at_return = Some(sent);
        }
        self.link.connected[agent.node].fetch_add(1, Ordering::Relaxed);
    }

    /// How many messages every agent has sent up to now.
    fn sent_counts(&self) -> Box<[u64]> {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.link.sent_counts.iter().map(now).collect()
    }
}

/// Between the end of a connection, or a failed attempt, and the next attempt: short beside the start of a server, and
/// long enough that thousands of agents do not occupy the machine with attempts.
const RETURN_PAUSE_NS: u64 = 250_000_000;
