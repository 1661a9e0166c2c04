//! The faults of a step: what happens to which process, and when.

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

/// How often these faults, in the order of their times, end the connections to a process, and whether it runs after
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
