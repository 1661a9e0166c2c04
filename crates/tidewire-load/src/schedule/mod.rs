//! When an agent's messages are due.
//!
//! A closed-loop agent thinks, sends, thinks again. If the next think time started at the moment of the
//! *actual* send, every delay of the server or of the instrument would lower the offered load and hide
//! itself: coordinated omission. So the next intended time follows from the last intended time, and an agent
//! that is late catches up. The schedule therefore takes no clock at all: it is the same list of times
//! however late it is asked.
//!
//! One random generator per agent, not one per run: the times of an agent then do not depend on how agents
//! are spread over lanes, and a run with one seed can be repeated on another machine.

mod arrival;

pub use self::arrival::{Arrivals, Curve};

use crate::scenario::ThinkTime;

/// The intended send times of one agent, in order and without end.
#[derive(Clone, Debug)]
pub struct Schedule {
    random: fastrand::Rng,
    intended_ns: u64,
    think_min_ns: u64,
    think_spread_ns: u64,
}

impl Schedule {
    /// A schedule whose first message is due one think time after `start_ns`.
    ///
    /// `seed` should come from [`agent_seed`]. Times are nanoseconds of any monotonic clock.
    pub fn new(seed: u64, start_ns: u64, think: ThinkTime) -> Self {
        let think_min_ns = think.min_ns();
        Self {
            random: fastrand::Rng::with_seed(seed),
            intended_ns: start_ns,
            think_min_ns,
            think_spread_ns: think.max_ns().saturating_sub(think_min_ns),
        }
    }

    /// The time the next message is due: the previous one plus a uniform think time.
    #[inline]
    pub fn next_intended_ns(&mut self) -> u64 {
        self.next_after(self.intended_ns)
    }

    /// Returns the due time of the next message if the reply to the last one came at `received_ns`. In a loop that
    /// waits for replies the think time begins with the reply, and not at the intended time.
    #[inline]
    pub fn next_after(&mut self, received_ns: u64) -> u64 {
        let think_ns = self.think_min_ns + self.random.u64(0..=self.think_spread_ns);
        self.intended_ns = received_ns.saturating_add(think_ns);
        self.intended_ns
    }

    /// Counts the times that are left: how many lie before `from_ns`, and how many from there on and before `to_ns`.
    /// Beyond a million of them the rest is counted by the mean think time.
    pub fn count_rest(mut self, from_ns: u64, to_ns: u64) -> (u64, u64) {
        let (mut before, mut within) = (0, 0);
        for _ in 0..DRAWS_MAX {
            match self.next_intended_ns() {
                due_ns if due_ns < from_ns.min(to_ns) => before += 1,
                due_ns if due_ns < to_ns => within += 1,
                _ => return (before, within),
            }
        }
        let mean_ns = (self.think_min_ns + self.think_spread_ns / 2).max(1);
        let from_ns = from_ns.clamp(self.intended_ns.min(to_ns), to_ns);
        before += from_ns.saturating_sub(self.intended_ns) / mean_ns;
        within += to_ns.saturating_sub(from_ns.max(self.intended_ns)) / mean_ns;
        (before, within)
    }
}

/// The seed of one agent in one step of a run.
///
/// The three numbers are laid side by side (the agent in the low 32 bits, the step above), multiplied by
/// the golden-ratio constant, added to the run's seed, and put through the finaliser of SplitMix64, in
/// which every input bit changes every output bit with probability about one half. Neighbouring agents
/// therefore get unrelated generators, and no two agents of a run share a seed, since each part of the mix
/// is a bijection.
pub fn agent_seed(run_seed: u64, step: u8, agent: u32) -> u64 {
    let place = (u64::from(step) << 32) | u64::from(agent);
    mix(run_seed.wrapping_add(place.wrapping_add(1).wrapping_mul(GOLDEN_RATIO)))
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014; constants of variant 13): a bijection on u64.
#[inline]
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// The most times that are drawn to count the rest of a schedule: some milliseconds of work.
const DRAWS_MAX: u64 = 1_000_000;

/// 2^64 divided by the golden ratio, odd: consecutive places land far apart.
const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const THINK: ThinkTime = ThinkTime {
        min_ms: 50.0,
        max_ms: 200.0,
    };

    #[test]
    fn same_seed_gives_the_same_times_and_another_seed_others() {
        let take = |seed| {
            let mut schedule = Schedule::new(seed, 1_000, THINK);
            (0..1_000)
                .map(|_| schedule.next_intended_ns())
                .collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn every_think_time_lies_in_the_range_and_their_mean_is_its_middle() {
        let mut schedule = Schedule::new(agent_seed(1, 0, 0), 5_000_000_000, THINK);
        let mut previous_ns = 5_000_000_000;
        let count = 100_000;
        for _ in 0..count {
            let next_ns = schedule.next_intended_ns();
            let think_ns = next_ns - previous_ns;
            assert!((50_000_000..=200_000_000).contains(&think_ns), "{think_ns}");
            previous_ns = next_ns;
        }
        let mean_ms = (previous_ns - 5_000_000_000) as f64 / f64::from(count) / 1e6;
        // The standard error of the mean is 150 / √12 / √100,000 = 0.14 ms; seven of them never happen.
        assert!((mean_ms - 125.0).abs() < 1.0, "mean {mean_ms} ms");
    }

    #[test]
    fn lateness_of_the_caller_never_lowers_the_offered_load() {
        // A caller that takes five overdue times at once sees the times a punctual one saw.
        let punctual: Vec<u64> = {
            let mut schedule = Schedule::new(3, 0, THINK);
            (0..10).map(|_| schedule.next_intended_ns()).collect()
        };
        let mut late = Schedule::new(3, 0, THINK);
        let now_ns = punctual[4];
        let overdue = std::iter::repeat_with(|| late.next_intended_ns())
            .take_while(|due_ns| *due_ns <= now_ns)
            .count();
        assert_eq!(overdue, 5);
        // The iterator above drew the sixth. The seventh follows as if no message had been late.
        assert_eq!(late.next_intended_ns(), punctual[6]);
    }

    #[test]
    fn a_range_of_one_value_is_a_fixed_interval() {
        let mut schedule = Schedule::new(
            1,
            0,
            ThinkTime {
                min_ms: 2.5,
                max_ms: 2.5,
            },
        );
        assert_eq!(schedule.next_intended_ns(), 2_500_000);
        assert_eq!(schedule.next_intended_ns(), 5_000_000);
    }

    #[test]
    fn what_is_left_of_think_times_is_counted_as_it_would_come() {
        let schedule = Schedule::new(3, 0, THINK);
        let mut each = schedule.clone();
        let times: Vec<u64> = (0..500).map(|_| each.next_intended_ns()).collect();
        let (from_ns, to_ns) = (times[100], times[400]);
        assert_eq!(schedule.count_rest(from_ns, to_ns), (100, 300));
        let short = ThinkTime {
            min_ms: 0.0,
            max_ms: 0.000_002,
        };
        let (before, within) = Schedule::new(3, 0, short).count_rest(1_000_000_000, 5_000_000_000);
        assert!((before as f64 / 1e9 - 1.0).abs() < 0.01, "{before}");
        assert!((within as f64 / 4e9 - 1.0).abs() < 0.01, "{within}");
    }

    #[test]
    fn agents_and_steps_have_seeds_of_their_own() {
        let seeds: HashSet<u64> = (0..4)
            .flat_map(|step| (0..10_000).map(move |agent| agent_seed(42, step, agent)))
            .collect();
        assert_eq!(seeds.len(), 40_000);
    }
}
