//! When to sweep a room: "leading edge plus minimum interval".
//!
//! A sweep writes all new messages to every subscriber, at the price of one send each. A message in a quiet room is
//! swept at once. A message soon after a sweep waits until the interval is over and shares the next sweep with all
//! messages that come before. A fixed tick was rejected: it delays the single message of a quiet room without need.
//!
//! The interval follows the measured cost of a sweep, so that sweeping takes at most about half of the lane's time, and
//! never exceeds the configured maximum. A fixed interval fits one room size only: 5 ms is right for 500 subscribers (a
//! sweep takes 2 ms) and needlessly slow for 50 (0.2 ms).

/// Decides when a room's log is written to its subscribers. Times are nanoseconds of one monotonic clock.
#[derive(Clone, Debug)]
pub struct Coalescer {
    interval_max_ns: u64,
    interval_ns: u64,
    sweep_started_ns: Option<u64>,
    due_ns: Option<u64>,
}

impl Coalescer {
    /// Creates a coalescer that delays a message by at most `interval_max_ns`; with 0 it always sweeps at once.
    #[must_use]
    pub fn new(interval_max_ns: u64) -> Self {
        Self {
            interval_max_ns,
            interval_ns: 0,
            sweep_started_ns: None,
            due_ns: None,
        }
    }

    /// Notes an appended message. Returns the time of the sweep for the message if this call planned the sweep, `None`
    /// if a sweep was already planned.
    #[inline]
    pub fn handle_append(&mut self, now_ns: u64) -> Option<u64> {
        if self.due_ns.is_some() {
            return None;
        }
        let earliest = self
            .sweep_started_ns
            .map_or(now_ns, |last| last + self.interval_ns);
        let due = earliest.max(now_ns);
        self.due_ns = Some(due);
        Some(due)
    }

    /// The time of the planned sweep, if there is one.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// The interval in force, in nanoseconds.
    #[must_use]
    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// Notes a sweep between these two times that left nothing planned.
    pub fn handle_sweep(&mut self, started_ns: u64, ended_ns: u64) {
        let wanted = ended_ns
            .saturating_sub(started_ns)
            .saturating_mul(SWEEP_COST_MULTIPLE)
            .min(self.interval_ns * GROWTH_MAX + FIRST_INTERVAL_MAX_NS);
        // The bound and the smoothing keep one preempted sweep from slowing the next ones down.
        let smoothed = (self.interval_ns * 3 + wanted) / 4;
        self.interval_ns = smoothed.min(self.interval_max_ns);
        self.sweep_started_ns = Some(started_ns);
        self.due_ns = None;
    }
}

/// The interval is this many times the cost of a sweep. Sweeps then take at most half of a lane's time; the other half
/// is left to read the messages of the next sweep.
const SWEEP_COST_MULTIPLE: u64 = 2;

/// The wanted interval is at most this many times the last interval, plus [`FIRST_INTERVAL_MAX_NS`].
const GROWTH_MAX: u64 = 4;

/// The wanted interval after the first sweep, at most; later it is added to the growth. Without it the interval would
/// stay 0.
const FIRST_INTERVAL_MAX_NS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_message_in_a_quiet_room_is_due_at_once() {
        let mut coalescer = Coalescer::new(5 * MS);
        assert_eq!(coalescer.handle_append(7 * MS), Some(7 * MS));
        coalescer.handle_sweep(7 * MS, 8 * MS);
        assert_eq!(coalescer.handle_append(100 * MS), Some(100 * MS));
    }

    #[test]
    fn a_message_after_a_sweep_waits_for_the_interval_and_only_the_first_plans() {
        let mut coalescer = Coalescer::new(5 * MS);
        for turn in 0..20 {
            coalescer.handle_append(turn * 10 * MS);
            coalescer.handle_sweep(turn * 10 * MS, turn * 10 * MS + 2 * MS);
        }
        let interval = coalescer.interval_ns();
        assert!(
            interval > 3 * MS && interval <= 4 * MS,
            "twice the cost of 2 ms, got {interval}"
        );
        let last = 190 * MS;
        assert_eq!(
            coalescer.handle_append(last + 2 * MS),
            Some(last + interval)
        );
        assert_eq!(coalescer.handle_append(last + 3 * MS), None);
        assert_eq!(coalescer.due_ns(), Some(last + interval));
    }

    #[test]
    fn one_preempted_sweep_hardly_slows_the_next_sweeps() {
        let mut coalescer = Coalescer::new(5 * MS);
        for turn in 0..20 {
            coalescer.handle_append(turn * MS);
            coalescer.handle_sweep(turn * MS, turn * MS + MS / 50);
        }
        assert_eq!(
            coalescer.interval_ns() / 1000,
            39,
            "twice the cost of 20 us"
        );
        coalescer.handle_append(20 * MS);
        coalescer.handle_sweep(20 * MS, 30 * MS);
        assert!(coalescer.interval_ns() < MS / 10, "{coalescer:?}");
    }

    #[test]
    fn the_interval_never_exceeds_the_maximum() {
        let mut coalescer = Coalescer::new(5 * MS);
        for turn in 0..20 {
            coalescer.handle_append(turn * 1000 * MS);
            coalescer.handle_sweep(turn * 1000 * MS, turn * 1000 * MS + 400 * MS);
        }
        assert_eq!(coalescer.interval_ns(), 5 * MS);
    }
}
