//! The plan of a step, which all its lanes share.

use std::ops::Range;
use std::sync::Arc;

use tidewire::{AnyCodec, Endpoint, History};
use tidewire_proto::codec::{Codec, RequestIds};

use super::{PlanError, RunOptions, ServerProcess};
use crate::clock::Clock;
use crate::scenario::{Fault, Guard, Pattern, Scenario, Step};
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
    /// The codec as it is spoken to the targets.
    pub(crate) codec: AnyCodec,
    /// How the codec's replies find their requests.
    pub(crate) ids: RequestIds,
    /// Lanes that share the agents.
    pub(crate) lanes: usize,
    /// When the step begins to send, if it does so together with other parts.
    pub(crate) start_ns: Option<u64>,
    /// Times are those of the messages due in the steady window, as version 2 has it, and not of all.
    pub(crate) is_windowed: bool,
    pub(crate) segment: Segment,
    pub(crate) late_ms: u64,
    /// The limits of the histories of rooms, if the servers keep any.
    pub(crate) history: Option<History>,
    /// The room or topic of a fan-out.
    pub(crate) room: String,
    pub(crate) guard: Guard,
    pub(crate) faults: Arc<[PlannedFault]>,
}

/// A fault of a step and the process that suffers it.
#[derive(Clone, Debug)]
pub(crate) struct PlannedFault {
    pub(crate) fault: Fault,
    pub(crate) process: Arc<dyn ServerProcess>,
}

impl StepPlan {
    /// The plan of a step whose place in a run is not known yet.
    pub(super) fn new(
        scenario: &Scenario,
        step: &Step,
        options: &RunOptions,
        codec: AnyCodec,
    ) -> Result<Self, PlanError> {
        let here = options.segment.count(step.senders()) as usize;
        Ok(Self {
            targets: Arc::new([]),
            run: 0,
            number: 0,
            seed: options.seed,
            clock: options.clock.clone(),
            step: Arc::new(step.clone()),
            ids: codec.format().ids,
            codec,
            lanes: options.lanes.clamp(1, here.max(1)),
            start_ns: None,
            is_windowed: scenario.version >= 2,
            segment: options.segment,
            late_ms: options.late_ms,
            history: scenario.history,
            room: String::new(),
            guard: scenario.guard,
            faults: PlannedFault::all(step, options)?,
        })
    }

    /// The same step against servers that answer, at its place in a run, which tells its messages and rooms from
    /// others.
    pub(super) fn placed(
        self,
        targets: &Arc<[Endpoint]>,
        (run, number): (u16, usize),
        start_ns: Option<u64>,
    ) -> Self {
        Self {
            targets: Arc::clone(targets),
            run,
            number: u8::try_from(number).unwrap_or(u8::MAX),
            room: match self.step.pattern {
                Pattern::PubSub => format!("load.{run:04x}.{number}"),
                _ => format!("load-{run:04x}-{number}"),
            },
            start_ns,
            ..self
        }
    }

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
    pub(crate) fn ids_max(&self) -> u32 {
        match self.ids {
            RequestIds::Bits8 => 255,
            RequestIds::None | RequestIds::Bits32 => PENDING_MAX,
        }
    }

    pub(crate) fn agents_of(&self, node: usize) -> Range<u32> {
        let (agents, nodes) = (u64::from(self.step.concurrency), self.targets.len() as u64);
        let first = |node: usize| (node as u64 * agents).div_ceil(nodes) as u32;
        first(node)..first(node + 1)
    }

    /// Whether agents that lose their connection get another one: faults end connections on purpose.
    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }
}

#[cfg(test)]
impl StepPlan {
    /// A plan with these settings of a step and one target, at which nobody listens.
    pub(crate) fn for_tests(step: &Step) -> Self {
        let target = std::net::SocketAddr::from(([127, 0, 0, 1], 1)).into();
        let options = RunOptions::new(vec![target]);
        let scenario = Scenario::built_in();
        let codec = AnyCodec::default();
        let plan = Self::new(&scenario, step, &options, codec).unwrap();
        Self {
            targets: options.targets.into(),
            ..plan
        }
    }
}

impl PlannedFault {
    fn all(step: &Step, options: &RunOptions) -> Result<Arc<[Self]>, PlanError> {
        let planned = |fault: &Fault| {
            let mut processes = options.processes.iter();
            let process = processes.find(|process| process.name() == fault.process);
            let missing = || PlanError::NoProcess(step.name.clone(), fault.process.clone());
            Ok(Self {
                fault: fault.clone(),
                process: Arc::clone(process.ok_or_else(missing)?),
            })
        };
        step.faults.iter().map(planned).collect()
    }
}

/// Unanswered requests that the ids of a codec must tell apart; each codec bounds it further.
pub(crate) const PENDING_MAX: u32 = 65_535;
