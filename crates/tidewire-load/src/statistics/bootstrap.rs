//! The bootstrap: how much would a figure have varied, had other runs of the same kind been made?
//! The measured runs stand for all possible runs. As many runs are drawn from them, with replacement, and the figure
//! is computed from these. The middle 95 % of many such figures are the interval. It needs no normal distribution,
//! which times of runs never have. Of the two usual intervals this is the percentile interval. The bias-corrected one
//! (BCa) was rejected: its acceleration comes from leaving out one run at a time, and the median of the others then
//! has only two values, so the correction is noise. Random choices come from a seed, so that a report can be
//! recomputed.

use fastrand::Rng;

/// How often and from which seed to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// Number of draws. More narrow the chance in the ends of the interval, at proportional cost.
    pub resamples: u32,
    /// Seed of the draws.
    pub seed: u64,
}

impl Bootstrap {
    /// Returns the ends of the middle 95 % of the values of `draw`.
    pub(crate) fn interval(self, mut draw: impl FnMut(&mut Rng) -> f64) -> Option<(f64, f64)> {
        let mut random = Rng::with_seed(self.seed);
        middle_of((0..self.resamples).map(|_| draw(&mut random)))
    }
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self {
            resamples: 10_000,
            seed: 42,
        }
    }
}

/// The ends of the middle 95 % of these figures. NaN is left out; nothing if there is nothing else.
pub(super) fn middle_of(figures: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let mut figures: Vec<f64> = figures.filter(|figure| !figure.is_nan()).collect();
    figures.sort_unstable_by(f64::total_cmp);
    let last = figures.len().checked_sub(1)?;
    let below = (figures.len() as f64 * LEFT_OUT / 2.0).floor() as usize;
    Some((figures[below.min(last)], figures[last - below.min(last)]))
}

/// The middle of the values, or the mean of the two in the middle. Sorts them; NaN when there are none.
pub(crate) fn median_of(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[half],
        // Equal first, because the midpoint of two infinities is not a number.
        _ if values[half - 1] == values[half] => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

/// The share of cases in which an interval may miss.
pub(super) const LEFT_OUT: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_even_odd_and_infinite_values() {
        assert_eq!(median_of(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median_of(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(
            median_of(&mut [1.0, f64::INFINITY, f64::INFINITY, f64::INFINITY]),
            f64::INFINITY
        );
        assert!(median_of(&mut []).is_nan());
    }

    #[test]
    fn the_interval_is_the_middle_of_the_draws() {
        let mut next = 0.0;
        let bootstrap = Bootstrap {
            resamples: 1_000,
            seed: 1,
        };
        let interval = bootstrap.interval(|_| {
            next += 1.0;
            next
        });
        assert_eq!(interval, Some((26.0, 975.0)));
        assert_eq!(bootstrap.interval(|_| f64::NAN), None);
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let draw = |random: &mut Rng| random.f64();
        let first = Bootstrap::default().interval(draw);
        assert_eq!(first, Bootstrap::default().interval(draw));
    }
}
