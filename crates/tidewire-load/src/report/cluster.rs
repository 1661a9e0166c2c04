//! The figures of a cluster: the processes of the run, the time across nodes, the faults, and the losses by cause.

use serde::{Deserialize, Serialize};

use super::StepDetail;
use crate::format::{counted, mebibytes, processor_time};
use crate::ledger::Losses;

/// A process that was started for the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessFigures {
    /// Its name, such as `node 1` or `nats`.
    pub name: String,
    /// Processor time in the step, in seconds.
    pub cpu_secs: Option<f64>,
    /// Largest resident memory in bytes, since it started.
    pub rss_bytes_max: Option<u64>,
}

impl ProcessFigures {
    /// Adds the figures of several runs up, process by process.
    pub(super) fn merge(details: &[&StepDetail]) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for figures in details.iter().flat_map(|detail| &detail.processes) {
            match merged.iter_mut().find(|known| known.name == figures.name) {
                Some(known) => {
                    let both = known.cpu_secs.zip(figures.cpu_secs);
                    known.cpu_secs = both.map(|(one, other)| one + other);
                    known.rss_bytes_max = known.rss_bytes_max.max(figures.rss_bytes_max);
                }
                None => merged.push(figures.clone()),
            }
        }
        merged
    }
}

/// A fault of the schedule, as it was inflicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultFigures {
    /// When it began, in seconds since the barrier opened.
    pub at_secs: f64,
    /// How long it took until it had its effect, such as a server that accepts connections again.
    pub took_secs: f64,
    /// `kill`, `stop`, `continue` or `restart`, and the process.
    pub what: String,
}

/// Rows about the cluster of a step that took so many seconds; none where there is one server.
pub(super) fn cluster_facts(detail: &StepDetail, secs: f64) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(across) = &detail.times.across {
        let (p50, p99, p999) = (across.p50, across.p99, across.p999);
        let row = format!("from one node to another p50 {p50}, p99 {p99}, p99.9 {p999} ms");
        facts.push(("across", row));
    }
    for process in &detail.processes {
        let used = process.cpu_secs.map(|used| processor_time(used, secs));
        let used = used.unwrap_or_else(|| "not observed".to_owned());
        let memory = process.rss_bytes_max.map(mebibytes);
        let memory = memory.map_or(String::new(), |memory| format!(", {memory} at most"));
        facts.push(("process", format!("{}: {used}{memory}", process.name)));
    }
    for fault in &detail.faults {
        let (what, at, took) = (&fault.what, fault.at_secs, fault.took_secs);
        let row = format!("{at:.1} s: {what}, done after {took:.2} s");
        facts.push(("fault", row));
    }
    if let Some(limits) = &detail.workload.history {
        let row = format!("{limits}; agents that came back had to get all that was kept meanwhile");
        facts.push(("history", row));
    }
    facts.extend(detail.losses.map(|losses| ("causes", causes(&losses))));
    facts
}

/// The causes of losses that there are.
fn causes(losses: &Losses) -> String {
    let causes = counted(&[
        (losses.unexplained, "without a known cause"),
        (losses.told, "announced by the server as a gap"),
        (losses.sender_cut, "at the end of their sender's connection"),
        (
            losses.receiver_cut,
            "on their way when the receiver's connection ended",
        ),
        (losses.away, "while the receiver had no connection"),
    ]);
    causes.join(", ")
}
