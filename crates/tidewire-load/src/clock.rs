//! Where a run's times come from.
//!
//! Every figure is a difference of two readings of the machine's monotonic clock. The wall clock, which people and time
//! services set as they like, is read for two things: to say in the report when the run began and ended, and to
//! translate the `--start-at` of a part to the monotonic clock, once. Both are behind one type here, so that a test can
//! let the wall clock jump, or time pass at the pace of a server's deliveries; the lints of the workspace refuse a wall
//! clock that is read anywhere else.
//!
//! It is an enum and not a type parameter of the agents: the branch is taken the same way for every message, and
//! another instance of all of a lane's code would be compiled for tests alone.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use tidewire_io::clock::now_ns;

/// The clocks of a run.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The machine's.
    #[default]
    Machine,
    /// Somebody else's, for tests.
    Other(Arc<dyn TimeSource>),
}

/// Clocks that are not the machine's, or not only. What is left out is the machine's.
pub trait TimeSource: fmt::Debug + Send + Sync {
    /// Nanoseconds of a clock that never goes back.
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    /// The time of a clock on the wall.
    fn wall(&self) -> SystemTime {
        machine_wall()
    }
}

impl Clock {
    /// Nanoseconds of the monotonic clock.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Machine => now_ns(),
            Self::Other(source) => source.now_ns(),
        }
    }

    /// The time of what a lane noted, a moment ago, at `machine_ns` of the machine's monotonic clock.
    #[inline]
    pub(crate) fn noted_ns(&self, machine_ns: u64) -> u64 {
        match self {
            Self::Machine => machine_ns,
            Self::Other(source) => source.now_ns(),
        }
    }

    /// The wall clock. No figure may depend on it.
    pub fn wall(&self) -> SystemTime {
        match self {
            Self::Machine => machine_wall(),
            Self::Other(source) => source.wall(),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the wall clock of a run is read"
)]
fn machine_wall() -> SystemTime {
    SystemTime::now()
}
