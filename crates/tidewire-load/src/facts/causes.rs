//! The end of a step, and the causes of its losses: what agents noted of their connections.

use tidewire::Endpoint;

use crate::exchange::AgentResult;
use crate::ledger::{Absence, Breaks, End, Losses, ReceiverTotals};
use crate::plan::StepPlan;
use crate::scenario::Pattern;

/// The end of a step, as far as it decides which fates of messages can be known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ending {
    /// Messages still arrived when the drain was ended.
    pub(crate) is_cut_off: bool,
    /// The transport may lose messages and keep later ones.
    pub(crate) is_lossy: bool,
    /// The servers kept a history, so that a message that anybody got is owed to all.
    pub(crate) keeps_history: bool,
}

impl Ending {
    /// The end of a step with this plan.
    pub(crate) fn of(plan: &StepPlan, is_cut_off: bool) -> Self {
        Self {
            is_cut_off,
            is_lossy: matches!(plan.targets[0], Endpoint::Udp(_)),
            keeps_history: plan.history.is_some(),
        }
    }

    /// Whether messages of this agent may still be on their way: in this process, or after others that still arrived.
    pub(super) fn may_be_under_way(self, agent: &AgentResult) -> bool {
        self.is_cut_off || agent.is_backed_up
    }
}

/// For each sender, the ends of its connection. A history keeps a message for all or for nobody, so that what anybody
/// got was kept.
pub(super) fn ends_of(agents: &[AgentResult], members: usize, ending: Ending) -> Vec<Vec<End>> {
    let mut ends = vec![Vec::new(); members];
    for agent in agents {
        let sender = agent.index as usize;
        let end = |absence: &Absence| {
            let last = absence.own_sent;
            let got = || {
                let others = agents.iter().filter(|other| other.index != agent.index);
                let ledgers = others.filter_map(|other| other.ledger.as_ref());
                ledgers.map(|ledger| ledger.run_before(sender, last)).max()
            };
            let through = match ending.keeps_history {
                true => got().unwrap_or(0).max(absence.own_kept),
                false => 0,
            };
            End { last, through }
        };
        if let Some(ends) = ends.get_mut(sender) {
            ends.extend(agent.absences.iter().map(end));
        }
    }
    ends
}

/// The causes of what one receiver of a fan-out lost.
pub(super) fn losses_of(
    agent: &AgentResult,
    totals: &ReceiverTotals,
    pattern: Pattern,
    breaks: &Breaks<'_>,
) -> Losses {
    let own = match pattern {
        Pattern::Chat => agent.index as usize,
        _ => usize::MAX,
    };
    let ledger = agent.ledger.as_ref().filter(|_| pattern.is_fan_out());
    // An unknown number may be any.
    let told = match agent.told_unknown {
        0 => agent.told,
        _ => u64::MAX,
    };
    ledger.map_or_else(Losses::default, |ledger| {
        Losses::of((totals.lost, told), ledger, own, &agent.absences, breaks)
    })
}
