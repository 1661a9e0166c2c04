//! The clock of a lane: the system's monotonic one, or in a test a time that the test sets.

use tidewire_io::clock::now_ns;

#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// The time that a test has set.
    #[cfg(test)]
    set_ns: Option<u64>,
}

impl Clock {
    /// Returns the time in nanoseconds on the monotonic clock.
    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        #[cfg(test)]
        if let Some(set_ns) = self.set_ns {
            return set_ns;
        }
        now_ns()
    }

    /// Fixes the time.
    #[cfg(test)]
    pub(super) fn set(&mut self, now_ns: u64) {
        self.set_ns = Some(now_ns);
    }
}
