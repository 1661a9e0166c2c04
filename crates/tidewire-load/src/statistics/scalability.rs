//! The Universal Scalability Law: the cost of contention and coherence as concurrency grows, and the concurrency from
//! which more does not help.
//!
//! ```text
//! X(N) = λN / (1 + σ(N − 1) + κN(N − 1))        knee at √((1 − σ) / κ)
//! ```
//! λ is the throughput of one, σ the share of the work that must wait in line, κ the cost of agreement between each
//! pair. The intervals are bootstrapped from the deviations of the levels from the curve, and widened because three
//! figures are fitted to few levels.
//!
//! Not every system has a knee, and a fit finds one in any noise. There is none unless κ's interval excludes
//! zero; and with fewer than six levels there is no fit, because a curve of three figures passes near any five.

use std::fmt;

use serde::Serialize;
use thiserror::Error;

use super::bootstrap::{Bootstrap, middle_of};
use super::law::{FITTED, Law, ScalePoint};

/// A fitted law with its intervals of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScalabilityFit {
    /// λ: messages a second with a concurrency of one.
    pub lambda: Estimate,
    /// σ: the share that is serial, from contention. Below 0 when twice the concurrency gives more than twice the
    /// throughput, as batching does.
    pub sigma: Estimate,
    /// κ: the cost of agreement of each pair, from coherence.
    pub kappa: Estimate,
    /// Where the throughput is highest.
    pub knee: Knee,
    /// Root of the mean squared deviation of the measured levels from the curve, in percent.
    pub deviation_pct: f64,
    /// Different levels of concurrency.
    pub levels: usize,
}

impl ScalabilityFit {
    /// Fits the law. Several points may have the same concurrency, such as those of repeated runs.
    ///
    /// # Errors
    /// [`ScalabilityError`] when there are too few levels, a point is impossible, or no such curve fits.
    pub fn of(points: &[ScalePoint], bootstrap: Bootstrap) -> Result<Self, ScalabilityError> {
        let levels = check(points)?;
        let law = Law::fitted(points).ok_or(ScalabilityError::NoCurve)?;
        let deviations: Vec<f64> = points
            .iter()
            .map(|point| (point.throughput / law.throughput(point.concurrency)).ln())
            .collect();
        let squares: f64 = deviations.iter().map(|one| one * one).sum();
        let freedom = (points.len() - FITTED) as f64;
        let spread = (points.len() as f64 / freedom).sqrt() * student_factor(freedom);
        let mut drawn = points.to_vec();
        let mut random = fastrand::Rng::with_seed(bootstrap.seed);
        // The draws are made once and looked at for each figure.
        let mut draw = || {
            for (point, original) in drawn.iter_mut().zip(points) {
                let deviation = deviations[random.usize(..deviations.len())] * spread;
                point.throughput = law.throughput(original.concurrency) * deviation.exp();
            }
            Law::fitted(&drawn)
        };
        let laws: Vec<Law> = (0..bootstrap.resamples).filter_map(|_| draw()).collect();
        let estimate = |figure: fn(&Law) -> f64| {
            let value = figure(&law);
            let (low, high) = middle_of(laws.iter().map(figure)).unwrap_or((value, value));
            Estimate { value, low, high }
        };
        let kappa = estimate(|law| law.kappa);
        let most = points
            .iter()
            .map(|point| point.concurrency)
            .fold(1.0, f64::max);
        // Rounding alone makes κ differ from zero; below this it would move no measured level visibly.
        let knee = if kappa.low * most * most <= VISIBLE {
            Knee::None
        } else {
            let at = estimate(Law::knee);
            Knee::At {
                concurrency: at,
                throughput: law.throughput(at.value),
                beyond_measured: at.value > most,
            }
        };
        Ok(Self {
            lambda: estimate(|law| law.lambda),
            sigma: estimate(|law| law.sigma),
            kappa,
            knee,
            deviation_pct: (squares / points.len() as f64).sqrt() * 100.0,
            levels,
        })
    }

    /// The throughput of the fitted curve at a concurrency, in messages a second.
    pub fn throughput(&self, concurrency: f64) -> f64 {
        Law {
            lambda: self.lambda.value,
            sigma: self.sigma.value,
            kappa: self.kappa.value,
        }
        .throughput(concurrency)
    }
}

/// A fitted figure and its interval of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The figure.
    #[serde(with = "super::json_number")]
    pub value: f64,
    /// Lower end.
    #[serde(with = "super::json_number")]
    pub low: f64,
    /// Upper end.
    #[serde(with = "super::json_number")]
    pub high: f64,
}

/// Where the throughput of a fitted law is highest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Knee {
    /// No level of concurrency is known to be too much: κ may as well be zero.
    None,
    /// More concurrency than this lowers the throughput.
    At {
        /// The concurrency; the upper end of its interval is infinite where κ may as well be zero.
        concurrency: Estimate,
        /// Messages a second there.
        throughput: f64,
        /// Whether it lies beyond every measured level, where the curve is a guess.
        beyond_measured: bool,
    },
}

impl fmt::Display for Knee {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => formatter.write_str("no knee: the interval of κ includes zero"),
            Self::At {
                concurrency,
                throughput,
                beyond_measured,
            } => {
                let Estimate { value, low, high } = concurrency;
                write!(
                    formatter,
                    "knee at {value:.0} [{low:.0}, {high:.0}] with {throughput:.0}/s"
                )?;
                if *beyond_measured {
                    formatter.write_str(", beyond every measured level: measure there")?;
                }
                Ok(())
            }
        }
    }
}

/// Why no law was fitted.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum ScalabilityError {
    #[error(
        "{levels} levels of concurrency are too few for a fit; measure at {LEVELS_MIN} or more"
    )]
    TooFewLevels { levels: usize },
    #[error("no fit with a throughput of {throughput}/s at a concurrency of {concurrency}")]
    Point { concurrency: f64, throughput: f64 },
    #[error("no curve of the law fits these levels; look at them one by one")]
    NoCurve,
}

fn check(points: &[ScalePoint]) -> Result<usize, ScalabilityError> {
    let possible = |point: &ScalePoint| {
        point.concurrency >= 1.0
            && point.concurrency.is_finite()
            && point.throughput > 0.0
            && point.throughput.is_finite()
    };
    if let Some(wrong) = points.iter().find(|point| !possible(point)) {
        return Err(ScalabilityError::Point {
            concurrency: wrong.concurrency,
            throughput: wrong.throughput,
        });
    }
    let mut levels: Vec<f64> = points.iter().map(|point| point.concurrency).collect();
    levels.sort_unstable_by(f64::total_cmp);
    levels.dedup();
    if levels.len() < LEVELS_MIN {
        return Err(ScalabilityError::TooFewLevels {
            levels: levels.len(),
        });
    }
    Ok(levels.len())
}

/// How much wider Student's t is than the normal distribution at 95 %, by the usual expansion (Fisher), which is
/// within 1 % from three degrees of freedom on.
fn student_factor(freedom: f64) -> f64 {
    1.0 + 1.210 / freedom + 1.440 / freedom.powi(2) + 1.304 / freedom.powi(3)
}

/// Fewest different levels of concurrency for a fit.
pub const LEVELS_MIN: usize = 6;

/// The share of a level's throughput below which κ's effect is rounding.
const VISIBLE: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEVELS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

    fn points(law: Law, noise: f64, seed: u64) -> Vec<ScalePoint> {
        let mut random = fastrand::Rng::with_seed(seed);
        LEVELS
            .iter()
            .map(|&concurrency| {
                // The sum of twelve uniform numbers is as good as normal here.
                let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
                ScalePoint {
                    concurrency,
                    throughput: law.throughput(concurrency) * (normal * noise).exp(),
                }
            })
            .collect()
    }

    fn fit(points: &[ScalePoint]) -> ScalabilityFit {
        let bootstrap = Bootstrap {
            resamples: 300,
            seed: 5,
        };
        ScalabilityFit::of(points, bootstrap).unwrap()
    }

    fn close(value: f64, expected: f64, share: f64) -> bool {
        (value - expected).abs() <= expected.abs() * share + 1e-12
    }

    const LAW: Law = Law {
        lambda: 1_000.0,
        sigma: 0.05,
        kappa: 0.000_5,
    };

    #[test]
    fn known_figures_are_recovered() {
        let exact = fit(&points(LAW, 0.0, 1));
        assert!(close(exact.lambda.value, 1_000.0, 1e-6), "{exact:?}");
        assert!(close(exact.sigma.value, 0.05, 1e-6), "{exact:?}");
        assert!(close(exact.kappa.value, 0.000_5, 1e-6), "{exact:?}");
        let Knee::At {
            concurrency,
            beyond_measured,
            throughput,
        } = exact.knee
        else {
            panic!("{exact:?}");
        };
        assert!(close(concurrency.value, 43.589, 1e-4) && !beyond_measured);
        assert!(close(throughput, exact.throughput(43.589), 1e-4));
        assert!(exact.deviation_pct < 1e-6);
    }

    #[test]
    fn the_intervals_hold_the_truth_as_often_as_they_say() {
        let (mut knees, mut held) = (0, [0; 3]);
        for seed in 0..200 {
            let noisy = fit(&points(LAW, 0.02, seed));
            let truths = [
                (noisy.lambda, LAW.lambda),
                (noisy.sigma, LAW.sigma),
                (noisy.kappa, LAW.kappa),
            ];
            for (count, (found, truth)) in held.iter_mut().zip(truths) {
                *count += u32::from(found.low <= truth && truth <= found.high);
            }
            if let Knee::At { concurrency, .. } = noisy.knee {
                knees += u32::from(concurrency.low <= 43.589 && 43.589 <= concurrency.high);
            }
        }
        // 95 % of 200 less three standard deviations.
        assert!(held.iter().all(|count| *count >= 180), "{held:?}");
        assert!(knees >= 180, "{knees}");
    }

    #[test]
    fn a_straight_line_has_no_knee() {
        let line = Law {
            sigma: 0.0,
            kappa: 0.0,
            ..LAW
        };
        assert_eq!(fit(&points(line, 0.0, 1)).knee, Knee::None);
        // Contention alone levels off, and never falls.
        let amdahl = Law { kappa: 0.0, ..LAW };
        let found = (0..200)
            .filter(|seed| fit(&points(amdahl, 0.02, *seed)).knee != Knee::None)
            .count();
        assert!(found <= 12, "{found} of 200 without a knee got one");
        let found = (0..200)
            .filter(|seed| fit(&points(line, 0.02, *seed)).knee != Knee::None)
            .count();
        assert!(found <= 12, "{found} of 200 lines got a knee");
        assert_eq!(
            Knee::None.to_string(),
            "no knee: the interval of κ includes zero"
        );
    }

    #[test]
    fn five_levels_are_too_few_however_often_they_are_repeated() {
        let mut few = points(LAW, 0.01, 3);
        few.truncate(5);
        few.extend(few.clone());
        assert_eq!(
            ScalabilityFit::of(&few, Bootstrap::default()),
            Err(ScalabilityError::TooFewLevels { levels: 5 })
        );
    }

    #[test]
    fn impossible_points_are_named() {
        let mut dead = points(LAW, 0.0, 1);
        dead[3].throughput = 0.0;
        assert_eq!(
            ScalabilityFit::of(&dead, Bootstrap::default()),
            Err(ScalabilityError::Point {
                concurrency: 8.0,
                throughput: 0.0
            })
        );
    }

    #[test]
    fn a_knee_beyond_the_levels_says_so() {
        let late = Law {
            kappa: 0.000_02,
            ..LAW
        };
        let found = fit(&points(late, 0.0, 1)).knee;
        assert!(
            found
                .to_string()
                .ends_with("beyond every measured level: measure there"),
            "{found}"
        );
    }

    #[test]
    fn students_t_is_approached() {
        for (freedom, t) in [(3.0, 3.182), (5.0, 2.571), (10.0, 2.228), (60.0, 2.000)] {
            assert!(close(student_factor(freedom) * 1.96, t, 0.01), "{freedom}");
        }
    }

    proptest! {
        #[test]
        fn any_points_are_fitted_or_refused(
            throughputs in prop::array::uniform8(prop_oneof![0.001_f64..1e9, Just(0.0), Just(f64::NAN)]),
        ) {
            let points: Vec<ScalePoint> = LEVELS
                .iter()
                .zip(throughputs)
                .map(|(&concurrency, throughput)| ScalePoint { concurrency, throughput })
                .collect();
            let bootstrap = Bootstrap { resamples: 50, seed: 1 };
            if let Ok(found) = ScalabilityFit::of(&points, bootstrap) {
                prop_assert!(found.lambda.value > 0.0 && found.kappa.value.is_finite());
            }
        }
    }
}
