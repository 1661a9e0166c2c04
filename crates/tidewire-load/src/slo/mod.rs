//! Service level objectives: limits that a step's figures must keep.
//!
//! They come as the table `[steps.slo]` of a scenario or as an expression on the command line,
//! `p99<5ms,loss<0.01%`. A figure that is not known, such as a p99 of fifty messages, breaks its limit: an
//! objective that could not be judged has not been met, and passing it silently would be the worst outcome of
//! a test. Limits may be reached, so `<` and `<=` mean the same: the last digit of a measured figure is
//! rounded, and nobody should depend on it.

mod expression;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

pub use self::expression::SloError;
use crate::statistics::Percentile;

/// Limits of one step. Those that are not given are not judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// Largest median, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// Largest 90th percentile, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_ms: Option<f64>,
    /// Largest 99th percentile, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    /// Largest 99.9th percentile, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_ms: Option<f64>,
    /// Largest share of the expected messages that may be lost, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_pct: Option<f64>,
    /// Smallest share of the expected messages that must arrive, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_ratio_min: Option<f64>,
}

impl Slo {
    /// Whether a time has a limit.
    pub fn limits_times(&self) -> bool {
        let times = [self.p50_ms, self.p90_ms, self.p99_ms, self.p999_ms];
        times.iter().any(Option::is_some)
    }

    /// Whether there is nothing to judge.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The limits that the figures of a step break, in the order of the fields and in words; empty when all are kept.
    pub fn evaluate(&self, figures: &SloFigures) -> Vec<String> {
        let broken = |objective| {
            let (limit, found) = (self.limit(objective)?, figures.found(objective));
            (!objective.is_kept(limit, found)).then(|| violation(objective, limit, found))
        };
        Objective::ALL.into_iter().filter_map(broken).collect()
    }

    /// The limit of a figure.
    pub fn limit(&self, objective: Objective) -> Option<f64> {
        let mut copy = *self;
        *copy.field(objective)
    }

    pub(crate) fn field(&mut self, objective: Objective) -> &mut Option<f64> {
        match objective {
            Objective::P50 => &mut self.p50_ms,
            Objective::P90 => &mut self.p90_ms,
            Objective::P99 => &mut self.p99_ms,
            Objective::P999 => &mut self.p999_ms,
            Objective::Loss => &mut self.loss_pct,
            Objective::DeliveryRatio => &mut self.delivery_ratio_min,
        }
    }
}

/// The figures of a step on which limits can be set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SloFigures {
    /// Median.
    pub p50: Percentile,
    /// 90th percentile.
    pub p90: Percentile,
    /// 99th percentile.
    pub p99: Percentile,
    /// 99.9th percentile.
    pub p999: Percentile,
    /// Messages that were expected.
    pub expected: u64,
    /// Distinct expected messages that arrived.
    pub delivered: u64,
    /// Expected messages of which nobody can know whether they arrived. Limits are judged as if they were lost.
    pub unconfirmed: u64,
}

impl SloFigures {
    /// The measured value that a limit is compared with.
    pub(crate) fn found(&self, objective: Objective) -> LimitFigure {
        let share = |count: u64| match count as f64 / self.expected as f64 {
            _ if self.expected == 0 => LimitFigure::NothingExpected,
            share if self.unconfirmed > 0 => LimitFigure::ShareAtWorst(share * objective.whole()),
            share => LimitFigure::Share(share * objective.whole()),
        };
        match objective {
            Objective::P50 => LimitFigure::Percentile(self.p50),
            Objective::P90 => LimitFigure::Percentile(self.p90),
            Objective::P99 => LimitFigure::Percentile(self.p99),
            Objective::P999 => LimitFigure::Percentile(self.p999),
            Objective::Loss => share(self.expected.saturating_sub(self.delivered)),
            Objective::DeliveryRatio => share(self.delivered),
        }
    }
}

/// The figure that a limit is set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// The median, in milliseconds.
    P50,
    /// The 90th percentile, in milliseconds.
    P90,
    /// The 99th percentile, in milliseconds.
    P99,
    /// The 99.9th percentile, in milliseconds.
    P999,
    /// The lost share, in percent.
    Loss,
    /// The delivered share, from 0 to 1.
    DeliveryRatio,
}

impl Objective {
    /// All, in the order of the fields of [`Slo`].
    pub const ALL: [Self; 6] = [
        Self::P50,
        Self::P90,
        Self::P99,
        Self::P999,
        Self::Loss,
        Self::DeliveryRatio,
    ];

    /// Its name in an expression.
    pub const fn name(self) -> &'static str {
        self.words().0
    }

    pub(crate) const fn key(self) -> &'static str {
        self.words().1
    }

    /// Name in an expression, key in a scenario, unit, and the limits that a scenario may set.
    const fn words(self) -> (&'static str, &'static str, &'static str, &'static str) {
        let times = "a number of milliseconds above 0";
        let shares = "a number of percent from 0 to 100";
        match self {
            Self::P50 => ("p50", "p50_ms", "ms", times),
            Self::P90 => ("p90", "p90_ms", "ms", times),
            Self::P99 => ("p99", "p99_ms", "ms", times),
            Self::P999 => ("p99.9", "p999_ms", "ms", times),
            Self::Loss => ("loss", "loss_pct", "%", shares),
            Self::DeliveryRatio => ("delivery", "delivery_ratio_min", "", "a number from 0 to 1"),
        }
    }

    fn by_name(name: &str) -> Option<Self> {
        if name == "p999" {
            return Some(Self::P999);
        }
        Self::ALL.into_iter().find(|found| found.name() == name)
    }

    const fn sign(self) -> char {
        match self {
            Self::DeliveryRatio => '>',
            _ => '<',
        }
    }

    const fn unit(self) -> &'static str {
        self.words().2
    }

    /// The limits that it may have, in words.
    pub(crate) const fn expected(self) -> &'static str {
        self.words().3
    }

    pub(crate) fn allows(self, limit: f64) -> bool {
        match self {
            Self::Loss | Self::DeliveryRatio => (0.0..=self.whole()).contains(&limit),
            _ => limit > 0.0,
        }
    }

    /// The figure of everything, in its unit.
    const fn whole(self) -> f64 {
        match self {
            Self::Loss => 100.0,
            Self::DeliveryRatio => 1.0,
            _ => f64::INFINITY,
        }
    }

    pub(crate) fn is_kept(self, limit: f64, found: LimitFigure) -> bool {
        match found {
            LimitFigure::Percentile(found) => {
                let order = found.compare_ms(limit);
                matches!(order, Some(Ordering::Less | Ordering::Equal))
            }
            LimitFigure::Share(found) | LimitFigure::ShareAtWorst(found) => match self {
                Self::DeliveryRatio => found >= limit,
                _ => found <= limit,
            },
            // Without anything expected there is no share, and no limit is kept.
            LimitFigure::NothingExpected => false,
        }
    }
}

/// The measured value where a limit was broken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LimitFigure {
    /// A percentile above the limit, or one that is not known.
    Percentile(Percentile),
    /// A share in the unit of the objective.
    Share(f64),
    /// The same if all that is unconfirmed was lost.
    ShareAtWorst(f64),
    /// Nothing was expected, so that there is no share.
    NothingExpected,
}

/// A broken limit in words.
fn violation(objective: Objective, limit: f64, found: LimitFigure) -> String {
    let (name, unit) = (objective.name(), objective.unit());
    match found {
        LimitFigure::Percentile(Percentile::Infinite) => format!(
            "{name} is infinite, because that many messages never arrived; the limit is {limit} {unit}"
        ),
        LimitFigure::Percentile(Percentile::TooFew { samples, needed }) => format!(
            "{name} cannot be judged: {samples} messages of the {needed} it needs; run longer or faster"
        ),
        LimitFigure::Percentile(found) => {
            format!("{name} is {found} {unit}, the limit {limit} {unit}")
        }
        LimitFigure::Share(share) | LimitFigure::ShareAtWorst(share) => {
            let edge = match objective {
                Objective::DeliveryRatio => "at least",
                _ => "at most",
            };
            let worst = match found {
                LimitFigure::ShareAtWorst(_) => " if what is unconfirmed was lost",
                _ => "",
            };
            format!("{name} is {share:.5}{unit}{worst}, allowed is {edge} {limit}{unit}")
        }
        LimitFigure::NothingExpected => {
            format!("{name} cannot be judged: nothing was sent")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Slo {
        text.parse().unwrap()
    }

    fn figures() -> SloFigures {
        SloFigures {
            p50: Percentile::Known { ms: 1.0 },
            p90: Percentile::Known { ms: 2.0 },
            p99: Percentile::Known { ms: 5.0 },
            p999: Percentile::TooFew {
                samples: 2_000,
                needed: 10_000,
            },
            expected: 2_000,
            delivered: 1_999,
            unconfirmed: 0,
        }
    }

    #[test]
    fn a_limit_may_be_reached_but_not_passed() {
        assert!(
            parse("p99<5ms,loss<0.05%,delivery>0.9995")
                .evaluate(&figures())
                .is_empty()
        );
        let broken = parse("p50<0.9ms,p99<5ms,loss<0.01%,delivery>0.9999").evaluate(&figures());
        let texts: Vec<String> = broken.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "p50 is 1.00 ms, the limit 0.9 ms",
                "loss is 0.05000%, allowed is at most 0.01%",
                "delivery is 0.99950, allowed is at least 0.9999",
            ]
        );
    }

    #[test]
    fn what_is_not_known_is_not_kept() {
        let broken = parse("p99.9<1s").evaluate(&figures());
        assert_eq!(broken.len(), 1);
        assert!(broken[0].contains("2000 messages of the 10000"));
        let lossy = SloFigures {
            p99: Percentile::Infinite,
            ..figures()
        };
        let broken = parse("p99<1s").evaluate(&lossy);
        assert!(broken[0].starts_with("p99 is infinite"));
        let idle = SloFigures {
            expected: 0,
            delivered: 0,
            ..figures()
        };
        let broken = parse("loss<100%,delivery>0").evaluate(&idle);
        assert_eq!(broken.len(), 2);
        assert!(broken[0].ends_with("nothing was sent"));
    }

    #[test]
    fn what_is_unconfirmed_keeps_a_limit_only_if_it_does_at_worst() {
        let unconfirmed = SloFigures {
            unconfirmed: 1,
            ..figures()
        };
        assert!(parse("loss<0.05%").evaluate(&unconfirmed).is_empty());
        let broken = parse("loss<0.04%").evaluate(&unconfirmed);
        assert_eq!(
            broken[0].to_string(),
            "loss is 0.05000% if what is unconfirmed was lost, allowed is at most 0.04%"
        );
    }

    #[test]
    fn nothing_to_judge_is_never_broken() {
        assert!(Slo::default().is_empty());
        assert!(Slo::default().evaluate(&figures()).is_empty());
        assert!(!parse("p50<1ms").is_empty());
    }
}
