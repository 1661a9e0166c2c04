//! The plan of a step, which all its lanes share.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tidewire::{Endpoint, History};
use tidewire_proto::codec::RequestIds;

use super::PENDING_MAX;
use crate::clock::Clock;
use crate::exchange::SentTimes;
use crate::scenario::{Pattern, Step};
use crate::segment::Segment;

#[derive(Clone, Debug)]
pub(crate) struct StepPlan {
    /// The servers: one, or the nodes of a cluster. Each has an equal share of the agents, one after another.
    pub(crate) targets: Arc<[Endpoint]>,
    pub(crate) run: u16,
    /// Number of the step within the run.
    pub(crate) number: u8,
    pub(crate) seed: u64,
    pub(crate) clock: Clock,
    pub(crate) step: Arc<Step>,
    /// Times are those of the messages due in the steady window, as version 2 has it, and not of all.
    pub(crate) is_windowed: bool,
    pub(crate) segment: Segment,
    pub(crate) late_ms: u64,
    /// The limits of the histories of rooms, if the servers keep any.
    pub(crate) history: Option<History>,
    /// The room or topic of a fan-out.
    pub(crate) room: String,
    /// How the codec's replies find their requests.
    pub(crate) ids: RequestIds,
    /// Where receivers of an open fan-out find when messages were sent.
    pub(crate) sent_times: Option<Arc<SentTimes>>,
    /// How many messages each agent has sent, in a step with faults: agents whose connection ends then come back, and
    /// the ledger has to know what they missed.
    pub(crate) sent_counts: Option<Arc<[AtomicU64]>>,
    /// Core to keep the lane on, if any.
    pub(crate) core: Option<usize>,
}

impl StepPlan {
    /// The node of an agent, from 0.
    pub(crate) fn node_of(&self, agent: u32) -> usize {
        let agents = u64::from(self.step.concurrency.max(1));
        (u64::from(agent) * self.targets.len() as u64 / agents) as usize
    }

    /// Unanswered messages that one agent may have: no more than the ids of the codec tell apart.
    pub(crate) fn window(&self) -> u32 {
        match self.step.pattern {
            Pattern::Request => self.step.window().min(self.ids_max()),
            _ => self.step.window(),
        }
    }

    /// Requests that the codec's ids can tell apart.
    pub(super) fn ids_max(&self) -> u32 {
        match self.ids {
            RequestIds::Bits8 => 255,
            RequestIds::None | RequestIds::Bits32 => PENDING_MAX,
        }
    }

    /// The agents of a node.
    pub(super) fn agents_of(&self, node: usize) -> Range<u32> {
        let (agents, nodes) = (u64::from(self.step.concurrency), self.targets.len() as u64);
        let first = |node: usize| (node as u64 * agents).div_ceil(nodes) as u32;
        first(node)..first(node + 1)
    }
}
