//! The figures of a cluster: the processes of the run, and the faults.

use serde::{Deserialize, Serialize};

/// A process that was started for the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    pub(super) fn merge<'r>(all: impl Iterator<Item = &'r Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for figures in all {
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
pub struct FaultFigures {
    /// When it began, in seconds since the barrier opened.
    pub at_secs: f64,
    /// How long it took until it had its effect, such as a server that accepts connections again.
    pub took_secs: f64,
    /// `kill`, `stop`, `continue` or `restart`, and the process.
    pub what: String,
}
