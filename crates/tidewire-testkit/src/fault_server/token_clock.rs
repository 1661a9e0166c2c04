//! A clock that advances with the deliveries of a capped server.
//!
//! Problem: a test cannot measure the exact rate of a server more precisely than the machine schedules both sides. On a
//! busy machine that error is larger than the half per cent that a test has to show. Approach: deliveries define the
//! time. Each delivery advances the clock by its share of a second, and the clock stands still without deliveries. So a
//! measurement by this clock must find the rate, for any pauses of the machine. Rejected: long measurements (a minute
//! for half a per cent), and repeating until the machine is quiet (it may never be).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidewire_io::clock::now_ns;

/// The clock; clones show the same time. It is the machine's monotonic clock until the first delivery.
#[derive(Clone, Debug, Default)]
pub struct TokenClock {
    /// 0 until the first delivery.
    now_ns: Arc<AtomicU64>,
}

impl TokenClock {
    /// Nanoseconds, comparable with the machine's clock before the first delivery.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        match self.now_ns.load(Ordering::SeqCst) {
            0 => now_ns(),
            now_ns => now_ns,
        }
    }

    pub(super) fn advance(&self, interval: Duration) {
        let begun = now_ns();
        // A clock that is running keeps its time.
        let _ = self
            .now_ns
            .compare_exchange(0, begun, Ordering::SeqCst, Ordering::SeqCst);
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns.fetch_add(interval_ns, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_still_between_deliveries() {
        let clock = TokenClock::default();
        let before = clock.now_ns();
        assert!(before <= now_ns() && clock.now_ns() >= before);
        clock.advance(Duration::from_micros(200));
        let begun = clock.now_ns();
        assert!(begun >= before);
        let seen = clock.clone();
        for _ in 0..5_000 {
            assert_eq!(clock.now_ns(), seen.now_ns());
            clock.advance(Duration::from_micros(200));
        }
        assert_eq!(seen.now_ns() - begun, 1_000_000_000);
    }
}
