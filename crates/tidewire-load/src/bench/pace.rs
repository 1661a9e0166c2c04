//! How many messages are due: for publishers that offer a rate, whatever becomes of it.

/// An open loop: what is due follows from the time alone, so that a publisher that was held up makes up for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    rate_per_sec: f64,
    since_ns: u64,
    taken: u64,
}

impl Pace {
    /// Begins now.
    pub(super) fn new(rate_per_sec: f64, now_ns: u64) -> Self {
        Self {
            rate_per_sec,
            since_ns: now_ns,
            taken: 0,
        }
    }

    /// The numbers of the messages that became due since it was last asked.
    pub(super) fn take(&mut self, now_ns: u64) -> std::ops::Range<u64> {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns) as f64;
        let from = self.taken;
        self.taken = ((elapsed_ns * self.rate_per_sec / 1e9) as u64).max(from);
        from..self.taken
    }

    /// How many were due so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}

/// How often a publisher looks for what is due. Shorter than what any of them waits for others to share a write, and long
/// enough that looking costs nothing.
pub(super) const TICK_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_due_once_and_nothing_is_forgotten() {
        let mut pace = Pace::new(4_000.0, 1_000);
        assert_eq!(pace.take(1_000), 0..0);
        assert_eq!(pace.take(1_000 + TICK_NS), 0..4);
        assert_eq!(pace.take(1_000 + TICK_NS), 4..4);
        // Held up for a second, and a clock that was read before the last one.
        assert_eq!(pace.take(1_000 + 1_001 * TICK_NS), 4..4_004);
        assert_eq!(pace.take(1_000), 4_004..4_004);
        assert_eq!(pace.taken(), 4_004);
    }
}
