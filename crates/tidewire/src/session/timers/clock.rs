//! The clock of a lane: the system's monotonic one, or in a test a time that the test sets.

use std::time::SystemTime;

use tidewire_io::clock::now_ns;

#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The time that a test has set.
    #[cfg(test)]
    set_ns: Option<u64>,
    /// The wall time that a test has set.
    #[cfg(test)]
    set_wall: Option<SystemTime>,
}

impl Clock {
    /// Returns the time in nanoseconds on the monotonic clock.
    #[inline(always)]
    pub(super) fn now_ns(&self) -> u64 {
        #[cfg(test)]
        if let Some(set_ns) = self.set_ns {
            return set_ns;
        }
        now_ns()
    }

    /// Returns the time on the wall clock, by which credentials expire.
    #[expect(
        clippy::disallowed_methods,
        reason = "credentials expire by the wall clock"
    )]
    pub(super) fn wall(&self) -> SystemTime {
        #[cfg(test)]
        if let Some(set) = self.set_wall {
            return set;
        }
        SystemTime::now()
    }

    /// Fixes the time of the wall clock.
    #[cfg(test)]
    pub(super) fn set_wall(&mut self, time: SystemTime) {
        self.set_wall = Some(time);
    }

    /// Fixes the time.
    #[cfg(test)]
    pub(super) fn set(&mut self, now_ns: u64) {
        self.set_ns = Some(now_ns);
    }
}
