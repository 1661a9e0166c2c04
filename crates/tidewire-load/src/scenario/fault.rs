//! The faults of a step: what happens to which process, and when.

use super::keys;
use super::read::{Read, TableContext};

/// A fault that is inflicted on a process of the run while messages are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// When, in seconds since the first message.
    pub at_secs: f64,
    /// The kind of fault.
    pub action: FaultAction,
    /// The name of the process, such as `node 2` or `nats`.
    pub process: String,
}

worded! {
    /// The kind of a fault.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FaultAction {
        /// It ends at once, as after a power failure.
        Kill = "kill",
        /// It does nothing from now on, as on a machine that hangs; its connections stay.
        Stop = "stop",
        /// It goes on after a stop.
        Continue = "continue",
        /// It is started again at its address; one that still runs is killed before that.
        Restart = "restart",
    }
}

/// How often these faults, in the order of their times, end the connections to a process, and whether it runs behind
/// the last one.
pub(crate) fn breaks(faults: &[Fault], process: &str) -> (usize, bool) {
    let (mut breaks, mut runs) = (0, true);
    for fault in faults.iter().filter(|fault| fault.process == process) {
        // Heartbeats end the connections to a process that is stopped for long.
        breaks += usize::from(runs && fault.action != FaultAction::Continue);
        runs = matches!(fault.action, FaultAction::Continue | FaultAction::Restart);
    }
    (breaks, runs)
}

/// The name of a node of a cluster, from 1.
pub fn node_name(number: usize) -> String {
    format!("node {number}")
}

/// The name of the broker between nodes.
pub const BACKPLANE_NAME: &str = "nats";

/// Reads the faults of a step of this length, in the order of their times.
pub(super) fn faults(step: &TableContext<'_, '_>, duration_secs: f64) -> Read<Vec<Fault>> {
    let expected = [
        "a list of faults such as [{ at_secs = 8, kill = \"node 2\" }]",
        "a table such as { at_secs = 8, kill = \"node 2\" }",
    ];
    let mut faults = Vec::new();
    for context in step.tables("faults", 0..=FAULTS_MAX, expected)? {
        context.refuse_unknown(keys::FAULT)?;
        let is_within = |secs| (0.0..duration_secs).contains(&secs);
        let within = format!("a number of seconds from 0 to below the duration of {duration_secs}");
        let at_secs = context.number("at_secs", is_within, &within)?;
        let mut actions = FaultAction::ALL
            .into_iter()
            .filter(|action| context.has(action.name()));
        let action = actions.next().unwrap_or(FaultAction::Kill);
        let name = "the name of a process: \"node 1\" and so on, or \"nats\"";
        let (process, value) = context.text(action.name(), name)?;
        if let Some(other) = actions.next() {
            let found = format!("`{}` is there, too", action.name());
            return Err(context.conflict(other.name(), "left out here", found));
        }
        let number = process
            .strip_prefix("node ")
            .and_then(|number| number.parse().ok());
        if process != BACKPLANE_NAME && number.is_none_or(|number| process != node_name(number)) {
            return Err(context.invalid(action.name(), value, name));
        }
        faults.push(Fault {
            at_secs,
            action,
            process: process.to_owned(),
        });
    }
    faults.sort_by(|one, other| one.at_secs.total_cmp(&other.at_secs));
    Ok(faults)
}

/// Most faults of a step.
const FAULTS_MAX: usize = 10_000;
