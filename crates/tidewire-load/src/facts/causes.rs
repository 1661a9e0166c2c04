//! From what agents noted of their connections to the causes of losses.

use super::ending::Ending;
use crate::exchange::AgentResult;
use crate::ledger::{Absence, Breaks, End, Losses, ReceiverTotals};
use crate::scenario::Pattern;

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
