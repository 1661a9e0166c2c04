//! Runs that end in order but are disturbed, because other programs used the machine meanwhile.
//! There are two signs: the host of a virtual machine took time from it, and a program was ready to run and had no
//! core. Rejected: the load of the machine, which does not show whether the measured programs had to wait.

use std::fmt;
use std::time::Duration;

use tidewire_load::compare::{STOLEN_PCT_MAX, WAITED_PCT_MAX};

use super::Outcome;

/// The disturbance of a run that came to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Disturbance {
    /// The host took this share of the machine's time, in percent.
    Stolen(f64),
    /// The server or the driver waited for a core that others had, for this share of the window, in percent.
    Waited(f64),
}

impl Outcome {
    /// The disturbance of this run, if there was one.
    pub(crate) fn disturbance(&self) -> Option<Disturbance> {
        let above = |pct: Option<f64>, most| pct.filter(|pct| *pct > most);
        above(self.stolen_pct, STOLEN_PCT_MAX)
            .map(Disturbance::Stolen)
            .or_else(|| above(self.waited_pct, WAITED_PCT_MAX).map(Disturbance::Waited))
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stolen(pct) => write!(formatter, "the host took {pct:.1} % of the time"),
            Self::Waited(pct) => write!(
                formatter,
                "it waited {pct:.1} % of the time for a core that others had"
            ),
        }
    }
}

/// In a shorter window, one turn of somebody else on the core, which takes some milliseconds, is more than that.
pub(super) const WAITED_WINDOW_MIN: Duration = Duration::from_millis(100);
