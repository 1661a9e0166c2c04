//! The number of due messages, for publishers that offer a fixed rate.

/// An open loop. The number of due messages follows from the time alone, so a publisher that was delayed catches up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    rate_per_sec: f64,
    since_ns: u64,
    taken: u64,
}

impl Pace {
    /// Creates it, with the begin now.
    pub(super) fn new(rate_per_sec: f64, now_ns: u64) -> Self {
        Self {
            rate_per_sec,
            since_ns: now_ns,
            taken: 0,
        }
    }

    /// Returns the numbers of the messages that became due since the last call.
    pub(super) fn take(&mut self, now_ns: u64) -> std::ops::Range<u64> {
        let from = self.taken;
        self.taken = self.due_by(now_ns).max(from);
        from..self.taken
    }

    /// Returns the number of messages that are due by then.
    pub(super) fn due_by(&self, now_ns: u64) -> u64 {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns) as f64;
        (elapsed_ns * self.rate_per_sec / 1e9) as u64
    }

    /// Returns the time when a message is due. A publisher that was delayed sends it later, with this time in it, so
    /// the delay is measured.
    pub(super) fn due_ns(&self, number: u64) -> u64 {
        self.since_ns + ((number + 1) as f64 * 1e9 / self.rate_per_sec) as u64
    }

    /// Returns the number of messages that were due so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}

/// The interval in which a publisher looks for due messages. It is shorter than the time for which any publisher
/// collects messages for one write, and long enough that looking costs nothing.
pub(super) const TICK_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_taken_when_it_is_due_and_not_before() {
        let mut pace = Pace::new(3_000.0, 7_000);
        for number in 0..10_000 {
            let due_ns = pace.due_ns(number);
            assert_eq!(pace.take(due_ns - 2), number..number);
            // The time is rounded down to whole nanoseconds.
            assert_eq!(pace.take(due_ns + 1), number..number + 1);
        }
    }

    #[test]
    fn what_is_due_is_due_once_and_nothing_is_forgotten() {
        let mut pace = Pace::new(4_000.0, 1_000);
        assert_eq!(pace.take(1_000), 0..0);
        assert_eq!(pace.take(1_000 + TICK_NS), 0..4);
        assert_eq!(pace.take(1_000 + TICK_NS), 4..4);
        // A delay of a second, and a clock reading that is older than the last one.
        assert_eq!(pace.take(1_000 + 1_001 * TICK_NS), 4..4_004);
        assert_eq!(pace.take(1_000), 4_004..4_004);
        assert_eq!(pace.taken(), 4_004);
    }
}
