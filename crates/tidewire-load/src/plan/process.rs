//! The processes of a run besides the instrument: what the instrument can learn of them, and do to them.

use std::fmt;

use crate::lane_account::LaneAccount;
use crate::process::ProcessSample;
use crate::scenario::FaultAction;

/// A process that was started for the run: a server, or the broker between several. It can be observed, and faults can
/// be inflicted on it.
pub trait ServerProcess: fmt::Debug + Send + Sync {
    /// Its name in reports and in the faults of a scenario, such as `node 1`.
    fn name(&self) -> &str;

    /// Returns the use of the process up to now, with those that it replaced; nothing if that is not known.
    fn usage(&self) -> Option<ProcessSample>;

    /// Returns the account of its lanes up to now; nothing if it does not tell. It may take a moment to answer. The
    /// coordinator asks it at both ends of the steady window.
    fn lanes(&self) -> Option<LaneAccount>;

    /// Whether a process of this name has ended although no fault ended it. A later start does not change that.
    fn ended_by_itself(&self) -> bool;

    /// Inflicts a fault, and returns when it has its effect: a server that is started again accepts connections. It is
    /// called on a thread of its own.
    ///
    /// # Errors
    /// The reason why it could not be done, in words.
    fn inflict(&self, action: FaultAction) -> Result<(), String>;
}
