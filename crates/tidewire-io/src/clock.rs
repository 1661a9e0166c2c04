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
    fn it_is_the_clock_the_kernel_counts_from_the_start_of_the_machine() {
        // Another process would read the same file; the file counts time asleep too, hence only one bound.
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime_secs: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        // The file was read before the clock is asked below on machines that never slept; allow for its
        // rounding to hundredths.
        let before_ns = now_ns();
        let later = std::fs::read_to_string("/proc/uptime").unwrap();
        let later_secs: f64 = later.split(' ').next().unwrap().parse().unwrap();
        assert!(uptime_secs <= later_secs);
        assert!(before_ns as f64 / 1e9 <= later_secs + 0.02);
    }
}
