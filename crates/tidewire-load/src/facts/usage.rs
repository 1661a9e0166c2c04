//! The usage of the processes of a run, and of the machine, up to a moment. Two of them make a cost.

use std::sync::Arc;

use crate::lane_account::LaneAccount;
use crate::plan::ServerProcess;
use crate::process::{MachineSample, ProcessSample};
use crate::report::ProcessFigures;

/// The resources that processes and machine have used up to now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    client: Option<ProcessSample>,
    /// Samples of the processes that were started for the run; `None` for a process that cannot be read.
    processes: Vec<Option<ProcessSample>>,
    machine: Option<MachineSample>,
}

/// The resources that each side has used at an end of the steady window.
#[derive(Clone, Debug)]
pub(crate) struct SidesUsage {
    pub(crate) usage: Usage,
    pub(crate) client_lanes: LaneAccount,
    pub(crate) server_lanes: Option<LaneAccount>,
}

impl SidesUsage {
    pub(crate) fn now(
        processes: &[Arc<dyn ServerProcess>],
        lanes: impl FnOnce() -> LaneAccount,
    ) -> Self {
        Self {
            usage: Usage::now(processes),
            client_lanes: lanes(),
            server_lanes: server_lanes(processes),
        }
    }
}

/// The account of the lanes of all servers, if each of them tells.
fn server_lanes(processes: &[Arc<dyn ServerProcess>]) -> Option<LaneAccount> {
    let mut accounts = processes.iter().map(|process| process.lanes());
    let first = accounts.next()??;
    accounts.try_fold(first, |sum, account| Some(sum.and(&account?)))
}

impl Usage {
    pub(crate) fn now(processes: &[Arc<dyn ServerProcess>]) -> Self {
        Self {
            client: ProcessSample::of_self().ok(),
            processes: processes.iter().map(|it| it.usage()).collect(),
            machine: MachineSample::read(),
        }
    }

    pub(crate) fn client_secs_since(&self, earlier: &Self) -> Option<f64> {
        Some(self.client?.cpu_secs_since(&earlier.client?))
    }

    /// The processor time of all processes that were started for the run, if each of them is known.
    pub(crate) fn server_secs_since(&self, earlier: &Self) -> Option<f64> {
        let pairs = self.processes.iter().zip(&earlier.processes);
        let secs = pairs.map(|(now, before)| Some(now.as_ref()?.cpu_secs_since(before.as_ref()?)));
        secs.sum::<Option<f64>>()
            .filter(|_| !self.processes.is_empty())
    }

    /// The same of each, where there are several.
    pub(crate) fn processes_since(
        &self,
        earlier: &Self,
        processes: &[Arc<dyn ServerProcess>],
    ) -> Vec<ProcessFigures> {
        if self.processes.len() < 2 {
            return Vec::new();
        }
        let pairs = self.processes.iter().zip(&earlier.processes);
        let named = processes.iter().zip(pairs);
        let figures = named.map(|(process, (now, before))| ProcessFigures {
            name: process.name().to_owned(),
            cpu_secs: now
                .zip(*before)
                .map(|(now, before)| now.cpu_secs_since(&before)),
            rss_bytes_max: now.map(|now| now.rss_bytes_max),
        });
        figures.collect()
    }

    pub(crate) fn stolen_pct_since(&self, earlier: &Self) -> Option<f64> {
        self.machine?.stolen_pct_since(&earlier.machine?)
    }

    /// Returns the peak resident memory of the process that has the largest.
    pub(crate) fn server_rss_bytes_max(&self) -> u64 {
        let known = self.processes.iter().flatten();
        known
            .map(|process| process.rss_bytes_max)
            .max()
            .unwrap_or(0)
    }
}
