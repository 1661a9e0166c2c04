//! When the messages of an open step are due.
//!
//! The times are laid down before the first message is sent and depend on nothing that happens: not on replies, not on
//! the number of lanes, not on the other parts of a run that is spread over machines. So every agent has a process of
//! its own, of which all together make the one that the scenario asks for: shifted even intervals interleave to an
//! even stream, and independent Poisson processes add up to one.
//!
//! The rate may change. Messages are therefore counted on the curve of all messages that are due by a time: the one
//! with number *m* is due when the curve reaches *m*, and the curve is turned round stage by stage.

use crate::scenario::{Arrival, Stage};

/// The intended send times of one agent of an open step, in order.
#[derive(Clone, Debug)]
pub struct Arrivals {
    curve: Curve,
    start_ns: u64,
    arrival: Arrival,
    random: fastrand::Rng,
    /// Messages of all agents that are due before the next of this one.
    reached: f64,
    agents: f64,
    is_first: bool,
    index: f64,
}

impl Arrivals {
    /// The times of the agent with number `index` of `agents` after `start_ns`. `seed` should come from
    /// [`agent_seed`](super::agent_seed).
    pub fn new(
        stages: &[Stage],
        arrival: Arrival,
        seed: u64,
        start_ns: u64,
        (index, agents): (u32, u32),
    ) -> Self {
        Self {
            curve: Curve::new(stages),
            start_ns,
            arrival,
            random: fastrand::Rng::with_seed(seed),
            reached: 0.0,
            agents: f64::from(agents.max(1)),
            is_first: true,
            index: f64::from(index),
        }
    }

    /// The time the next message is due; nothing after the last stage.
    #[inline]
    pub fn next_intended_ns(&mut self) -> Option<u64> {
        self.reached += self.next_step();
        let secs = self.curve.secs_at(self.reached)?;
        Some(self.start_ns.saturating_add((secs * 1e9).round() as u64))
    }

    /// Counts the times that are left: how many lie before `from_ns`, and how many from there on and before `to_ns`.
    ///
    /// Even intervals are counted without a look at each, however many they are. Random ones have to be drawn; beyond a
    /// million of them the rest is counted as the rate says, which is off by less than chance itself.
    pub fn count_rest(mut self, from_ns: u64, to_ns: u64) -> (u64, u64) {
        let from = self.messages_by(from_ns.min(to_ns));
        let to = self.messages_by(to_ns);
        let (mut before, mut all, mut draws) = (0, 0, 0);
        if self.arrival == Arrival::Poisson {
            while draws < DRAWS_MAX && self.reached < to {
                draws += 1;
                self.reached += self.next_step();
                before += u64::from(self.reached < from);
                all += u64::from(self.reached < to);
            }
            let mean = |until: f64| ((until - self.reached).max(0.0) / self.agents).round() as u64;
            (before, all) = (before + mean(from), all + mean(to));
        } else {
            let first = self.reached + self.next_step();
            let count = |until: f64| ((until - first) / self.agents).ceil().max(0.0) as u64;
            (before, all) = (count(from), count(to));
        }
        (before, all - before)
    }

    /// Messages of all agents that are due before this time.
    fn messages_by(&self, at_ns: u64) -> f64 {
        let secs = at_ns.saturating_sub(self.start_ns) as f64 / 1e9;
        self.curve.messages_by(secs)
    }

    /// Messages of all agents from the last of this one to its next.
    fn next_step(&mut self) -> f64 {
        let step = match self.arrival {
            // In the middle of their intervals, so that a second holds as many as the rate says. Agents take turns.
            Arrival::Constant if self.is_first => self.index + 0.5,
            Arrival::Burst if self.is_first => self.agents / 2.0,
            Arrival::Constant | Arrival::Burst => self.agents,
            // 1 − x lies above 0, so the logarithm is finite.
            Arrival::Poisson => -(1.0 - self.random.f64()).ln() * self.agents,
        };
        self.is_first = false;
        step
    }
}

/// How many messages of all agents are due by a time.
#[derive(Clone, Debug)]
pub struct Curve {
    pieces: Vec<Piece>,
    /// The piece that was asked for last: requests come in ascending order.
    current: usize,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    stage: Stage,
    start_secs: f64,
    start_messages: f64,
    end_messages: f64,
}

impl Curve {
    /// The curve of these stages.
    pub fn new(stages: &[Stage]) -> Self {
        let (mut start_secs, mut start_messages) = (0.0, 0.0);
        let mut pieces = Vec::with_capacity(stages.len());
        for stage in stages {
            let end_messages = start_messages + f64::midpoint(stage.from, stage.to) * stage.secs;
            pieces.push(Piece {
                stage: *stage,
                start_secs,
                start_messages,
                end_messages,
            });
            start_secs += stage.secs;
            start_messages = end_messages;
        }
        Self { pieces, current: 0 }
    }

    /// Messages that are due in the first `secs` seconds.
    pub fn messages_by(&self, secs: f64) -> f64 {
        let mut messages = 0.0;
        for piece in &self.pieces {
            let inside = (secs - piece.start_secs).clamp(0.0, piece.stage.secs);
            let slope = (piece.stage.to - piece.stage.from) / piece.stage.secs;
            messages += inside * (piece.stage.from + slope * inside / 2.0);
        }
        messages
    }

    /// When so many are due, in seconds. Asked in ascending order.
    fn secs_at(&mut self, messages: f64) -> Option<f64> {
        while self.pieces.get(self.current)?.end_messages < messages {
            self.current += 1;
        }
        let piece = self.pieces.get(self.current)?;
        let (from, to) = (piece.stage.from, piece.stage.to);
        let wanted = messages - piece.start_messages;
        // The positive root of slope/2·t² + from·t = wanted, in the form that also holds for a slope of nothing.
        let slope = (to - from) / piece.stage.secs;
        let root = (from * from + 2.0 * slope * wanted).max(0.0).sqrt();
        let inside = 2.0 * wanted / (from + root);
        Some(piece.start_secs + inside.min(piece.stage.secs))
    }
}

/// The most times that are drawn to count the rest of a random schedule: some milliseconds of work.
const DRAWS_MAX: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::super::agent_seed;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn flat(rate: f64, secs: f64) -> Vec<Stage> {
        vec![Stage {
            from: rate,
            to: rate,
            secs,
        }]
    }

    fn times(stages: &[Stage], arrival: Arrival, seed: u64, share: (u32, u32)) -> Vec<u64> {
        let seed = agent_seed(seed, 0, share.0);
        let mut arrivals = Arrivals::new(stages, arrival, seed, SECOND, share);
        std::iter::from_fn(|| arrivals.next_intended_ns()).collect()
    }

    fn all_times(stages: &[Stage], arrival: Arrival, agents: u32) -> Vec<u64> {
        let mut all: Vec<u64> = (0..agents)
            .flat_map(|index| times(stages, arrival, 5, (index, agents)))
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn constant_agents_interleave_to_an_even_stream() {
        let all = all_times(&flat(1_000.0, 2.0), Arrival::Constant, 7);
        assert_eq!(all.len(), 2_000);
        for (index, time) in all.iter().enumerate() {
            assert_eq!(*time, SECOND + index as u64 * 1_000_000 + 500_000);
        }
    }

    #[test]
    fn bursts_are_of_all_agents_at_once() {
        let all = all_times(&flat(1_000.0, 1.0), Arrival::Burst, 10);
        assert_eq!(all.len(), 1_000);
        for (index, burst) in all.chunks(10).enumerate() {
            let due = SECOND + index as u64 * 10_000_000 + 5_000_000;
            assert!(burst.iter().all(|time| *time == due), "{burst:?}");
        }
    }

    #[test]
    fn poisson_agents_add_up_to_the_rate_with_the_spread_of_chance() {
        let all = all_times(&flat(2_000.0, 50.0), Arrival::Poisson, 16);
        // 100,000 expected, standard deviation 316: five of them.
        assert!(all.len().abs_diff(100_000) < 1_600, "{}", all.len());
        let gaps: Vec<f64> = all
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as f64)
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // Of exponential gaps the deviation equals the mean; even ones have none, bursts far more.
        let ratio = variance.sqrt() / mean;
        assert!((ratio - 1.0).abs() < 0.03, "{ratio}");
    }

    #[test]
    fn what_is_left_of_a_schedule_is_counted_as_it_would_come() {
        let stages = [
            Stage {
                from: 0.0,
                to: 4_000.0,
                secs: 2.0,
            },
            Stage {
                from: 4_000.0,
                to: 1_000.0,
                secs: 1.5,
            },
        ];
        let (from_ns, to_ns) = (SECOND + SECOND / 2, SECOND * 3);
        for arrival in [Arrival::Constant, Arrival::Poisson, Arrival::Burst] {
            for taken in [0, 1, 40, 5_000] {
                let seed = agent_seed(5, 0, 2);
                let mut left = Arrivals::new(&stages, arrival, seed, SECOND, (2, 3));
                let _ = std::iter::from_fn(|| left.next_intended_ns())
                    .take(taken)
                    .count();
                let mut each = left.clone();
                let times: Vec<u64> = std::iter::from_fn(|| each.next_intended_ns()).collect();
                let by = |at_ns: u64| times.iter().filter(|time| **time < at_ns).count() as u64;
                let expected = (by(from_ns), by(to_ns) - by(from_ns));
                assert_eq!(
                    left.count_rest(from_ns, to_ns),
                    expected,
                    "{arrival:?} {taken}"
                );
            }
        }
    }

    #[test]
    fn counting_what_is_left_takes_no_longer_for_a_thousand_million() {
        let stages = flat(1e9, 604_800.0);
        let (from_ns, to_ns) = (SECOND, SECOND + 604_800 * SECOND);
        for arrival in [Arrival::Constant, Arrival::Poisson] {
            let left = Arrivals::new(&stages, arrival, 1, SECOND, (0, 20));
            let (before, within) = left.count_rest(from_ns, to_ns);
            assert_eq!(before, 0);
            let share = within as f64 / (1e9 * 604_800.0 / 20.0);
            assert!((share - 1.0).abs() < 1e-6, "{arrival:?}: {share}");
        }
    }

    #[test]
    fn ramps_follow_their_curve() {
        let stages = [
            Stage {
                from: 0.0,
                to: 1_000.0,
                secs: 10.0,
            },
            Stage {
                from: 1_000.0,
                to: 1_000.0,
                secs: 5.0,
            },
            Stage {
                from: 1_000.0,
                to: 0.0,
                secs: 2.0,
            },
        ];
        let all = all_times(&stages, Arrival::Constant, 4);
        assert_eq!(all.len(), 11_000);
        let by = |secs: u64| {
            let end = SECOND + secs * SECOND;
            all.iter().filter(|time| **time <= end).count()
        };
        assert_eq!((by(5), by(10), by(15)), (1_250, 5_000, 10_000));
        let curve = Curve::new(&stages);
        assert!((curve.messages_by(5.0) - 1_250.0).abs() < 1e-6);
        assert!((curve.messages_by(99.0) - 11_000.0).abs() < 1e-6);
    }

    #[test]
    fn shares_of_agents_are_disjoint_and_sum_to_the_whole() {
        let stages = flat(500.0, 4.0);
        let whole = all_times(&stages, Arrival::Poisson, 12);
        let mut parts: Vec<u64> = Vec::new();
        for part in 0..3 {
            let agents = (0..12).filter(|index| index % 3 == part);
            parts.extend(agents.flat_map(|index| times(&stages, Arrival::Poisson, 5, (index, 12))));
        }
        parts.sort_unstable();
        assert_eq!(parts, whole);
    }
}
