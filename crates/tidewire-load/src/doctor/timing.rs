//! The three things a machine must be asked by trying: its clock, its sleep, its evenness.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

/// How much later than asked for a sleeper of 1 ms wakes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WakeupFacts {
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the sleeps, in microseconds.
    pub p99_us: f64,
    /// Latest, in microseconds.
    pub max_us: f64,
}

/// How evenly a fixed piece of work takes its time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoopFacts {
    /// Pieces of work.
    pub pieces: usize,
    /// Additional time, in percent, compared with all pieces at the speed of the fastest tenth.
    pub lost_pct: f64,
    /// Longest piece by the median one.
    pub longest_by_median: f64,
}

/// The smallest step between two readings that differ, in nanoseconds.
pub(super) fn resolution_ns() -> u64 {
    let smallest = (0..STEPS).map(|_| {
        let start = Instant::now();
        loop {
            let step = start.elapsed();
            if !step.is_zero() {
                return step;
            }
        }
    });
    smallest.min().map_or(0, nanos)
}

/// The cost of a reading in nanoseconds: the median of batches, because a batch may be interrupted.
pub(super) fn reading_cost_ns() -> f64 {
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..READINGS {
                black_box(Instant::now());
            }
            nanos(start.elapsed()) as f64 / f64::from(READINGS)
        })
        .collect();
    batches.sort_unstable_by(f64::total_cmp);
    batches[batches.len() / 2]
}

/// How late sleeps of a millisecond end.
pub(super) fn wakeups() -> WakeupFacts {
    let mut late_us: Vec<f64> = (0..SLEEPS)
        .map(|_| {
            let start = Instant::now();
            thread::sleep(SLEEP);
            nanos(start.elapsed().saturating_sub(SLEEP)) as f64 / 1e3
        })
        .collect();
    late_us.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| late_us[((late_us.len() - 1) as f64 * share) as usize];
    WakeupFacts {
        p50_us: at(0.5),
        p99_us: at(0.99),
        max_us: at(1.0),
    }
}

/// A fixed piece of work again and again for [`LOOP_TIME`].
pub(super) fn fixed_loop() -> LoopFacts {
    let rounds = calibrate();
    let started = Instant::now();
    let mut pieces = Vec::new();
    while started.elapsed() < LOOP_TIME {
        let start = Instant::now();
        work(rounds);
        pieces.push(nanos(start.elapsed()));
    }
    evenness(pieces)
}

/// The evenness of the times of equal pieces, in nanoseconds.
fn evenness(mut pieces: Vec<u64>) -> LoopFacts {
    pieces.sort_unstable();
    let count = pieces.len();
    let (fast, median) = (pieces[count / 10], pieces[count / 2]);
    let all: u64 = pieces.iter().sum();
    let beyond: u64 = pieces.iter().map(|piece| piece.saturating_sub(fast)).sum();
    LoopFacts {
        pieces: count,
        lost_pct: beyond as f64 / all.max(1) as f64 * 100.0,
        longest_by_median: pieces[count - 1] as f64 / median.max(1) as f64,
    }
}

/// Rounds of [`work`] that take about [`PIECE_TIME`], found by doubling.
fn calibrate() -> u32 {
    let mut rounds = 1_000;
    loop {
        let start = Instant::now();
        work(rounds);
        if start.elapsed() >= PIECE_TIME || rounds >= u32::MAX / 2 {
            return rounds;
        }
        rounds *= 2;
    }
}

/// Arithmetic in registers: neither memory nor the kernel has a part in its time.
fn work(rounds: u32) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Clock steps that are looked at.
const STEPS: u32 = 1_000;

/// Batches of readings, and readings of a batch: about 5 ms together where a reading takes 25 ns.
const BATCHES: u32 = 200;
const READINGS: u32 = 1_000;

/// Sleeps that are timed, and how long each is meant to last.
const SLEEPS: u32 = 500;
const SLEEP: Duration = Duration::from_millis(1);

/// The time for which the loop runs. It is long enough for a disturbance that comes every second.
const LOOP_TIME: Duration = Duration::from_secs(2);

/// Short against an interruption by the scheduler, long against a reading of the clock.
const PIECE_TIME: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_pieces_lose_nothing_and_a_pause_shows() {
        let even = evenness(vec![100; 1_000]);
        assert_eq!((even.lost_pct, even.longest_by_median), (0.0, 1.0));
        let mut pieces = vec![100; 999];
        pieces.push(99_900 + 100);
        let paused = evenness(pieces);
        assert!((paused.lost_pct - 49.97).abs() < 0.1, "{paused:?}");
        assert_eq!(paused.longest_by_median, 1_000.0);
    }

    #[test]
    fn the_clock_steps_and_costs_something() {
        assert!(resolution_ns() > 0);
        assert!(reading_cost_ns() > 0.0);
    }
}
