//! Runs that lie far from the others.
//!
//! The rule is Tukey's: further than one and a half interquartile ranges outside the quartiles. It only flags.
//! A slow run may be the very thing to find, so the median is taken over all runs, and the mean without the
//! flagged ones stands *beside* it with the number that was set aside. It is for figures of runs and never for
//! latencies, whose outliers are the tail. With three runs or fewer no run can lie outside the fences, however
//! wild it is: the range of the quartiles is then half that of the runs.

use serde::Serialize;

/// The runs outside the fences, and the mean of the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outliers {
    /// Positions of the flagged runs, from 0 in the order they were given.
    pub flagged: Vec<usize>,
    /// Values below this are flagged, in the unit of the runs.
    pub fence_low: f64,
    /// Values above this are flagged, in the unit of the runs.
    pub fence_high: f64,
    /// Mean of the runs that are not flagged, in the unit of the runs.
    pub iqr_mean: f64,
    /// Number of runs.
    pub runs: usize,
}

impl Outliers {
    /// Looks for outliers among the figures of runs. An infinite figure is always flagged, and the fences
    /// come from the others. Nothing when no figure is finite, or one is NaN.
    pub fn among(runs: &[f64]) -> Option<Self> {
        if runs.iter().any(|value| value.is_nan()) {
            return None;
        }
        let mut sorted: Vec<f64> = runs.iter().copied().filter(|run| run.is_finite()).collect();
        if sorted.is_empty() {
            return None;
        }
        sorted.sort_unstable_by(f64::total_cmp);
        let (first, third) = (quartile(&sorted, 1), quartile(&sorted, 3));
        let reach = (third - first) * REACH;
        let (fence_low, fence_high) = (first - reach, third + reach);
        let inside = |value: &f64| (fence_low..=fence_high).contains(value);
        let kept: Vec<f64> = runs.iter().copied().filter(inside).collect();
        Some(Self {
            flagged: (0..runs.len())
                .filter(|index| !inside(&runs[*index]))
                .collect(),
            fence_low,
            fence_high,
            iqr_mean: kept.iter().sum::<f64>() / kept.len() as f64,
            runs: runs.len(),
        })
    }
}

/// The value a quarter or three quarters up the sorted ones, between neighbours in proportion.
fn quartile(sorted: &[f64], quarters: usize) -> f64 {
    let (whole, rest) = (
        (sorted.len() - 1) * quarters / 4,
        (sorted.len() - 1) * quarters % 4,
    );
    let above = sorted[(whole + 1).min(sorted.len() - 1)];
    sorted[whole] + (above - sorted[whole]) * rest as f64 / 4.0
}

/// Interquartile ranges between a quartile and its fence.
const REACH: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_wild_run_is_flagged() {
        let outliers = Outliers::among(&[10.0, 11.0, 10.5, 30.0, 10.2, 10.8]).unwrap();
        assert_eq!(outliers.flagged, [3]);
        assert!((outliers.iqr_mean - 10.5).abs() < 1e-9);
    }

    #[test]
    fn quartiles_lie_between_runs() {
        let sorted = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quartile(&sorted, 1), 1.75);
        assert_eq!(quartile(&sorted, 3), 3.25);
        assert_eq!(quartile(&[5.0], 3), 5.0);
    }

    #[test]
    fn an_infinite_run_is_flagged_and_does_not_move_the_fences() {
        let outliers = Outliers::among(&[1.0, f64::INFINITY, 1.5, 0.5, 1.0, 1.5, 0.5]).unwrap();
        assert_eq!(outliers.flagged, [1]);
        assert!((outliers.iqr_mean - 1.0).abs() < 1e-9);
        assert_eq!(Outliers::among(&[f64::INFINITY]), None);
        assert_eq!(Outliers::among(&[]), None);
    }

    #[test]
    fn the_fewest_runs_that_can_flag_do() {
        let outliers = Outliers::among(&[1.0, 1.0, 1.0, 2.0]).unwrap();
        assert_eq!(outliers.flagged, [3]);
    }

    proptest! {
        #[test]
        fn three_runs_never_flag(runs in prop::array::uniform3(0.0_f64..1e12)) {
            let outliers = Outliers::among(&runs).unwrap();
            prop_assert!(outliers.flagged.is_empty());
        }

        #[test]
        fn most_runs_are_always_kept(runs in prop::collection::vec(-1e9_f64..1e9, 1..50)) {
            let outliers = Outliers::among(&runs).unwrap();
            prop_assert!(outliers.flagged.len() * 2 <= runs.len());
            prop_assert!(outliers.fence_low <= outliers.iqr_mean && outliers.iqr_mean <= outliers.fence_high);
        }
    }
}
