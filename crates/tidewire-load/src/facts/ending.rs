//! The end of a step.

use tidewire::Endpoint;

use crate::exchange::AgentResult;
use crate::plan::StepPlan;

/// The end of a step, as far as it decides which fates of messages can be known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ending {
    /// Messages still arrived when the drain was ended.
    pub(crate) is_cut_off: bool,
    /// The transport may lose messages and keep those behind them.
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

    /// Whether messages of this agent may still be on their way: in this process, or behind others that still arrived.
    pub(super) fn may_be_under_way(self, agent: &AgentResult) -> bool {
        self.is_cut_off || agent.is_backed_up
    }
}
