//! The one clock of a machine that every process reads alike.
//!
//! Latency is measured from the intended send time in one process to the decoding in another, so the
//! clock must be monotonic, comparable between processes, and cheap: `CLOCK_MONOTONIC` counts from the
//! machine's start and is read without a system call through the vDSO. `std::time::Instant` reads the
//! same clock but hides its value; the wall clock is comparable but jumps.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started (time asleep not counted). Never decreases, and means the same
/// in every process of the machine.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither part of a monotonic time is negative, and 64 bits of nanoseconds last 584 years.
    now.tv_sec.cast_unsigned() * NS_PER_SEC + now.tv_nsec.cast_unsigned()
}

const NS_PER_SEC: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back() {
        let mut last_ns = now_ns();
        for _ in 0..10_000 {
            let next_ns = now_ns();
            assert!(next_ns >= last_ns);
            last_ns = next_ns;
        }
    }

    #[test]
    fn it_counts_from_the_start_of_the_machine_like_every_process_sees_it() {
        let now_secs = now_ns() as f64 / 1e9;
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime_secs: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        // The file was written later, counts the time asleep as well, and is cut to hundredths.
        assert!(now_secs <= uptime_secs + 0.01);
    }
}
