//! Is the new one better, worse, or is no change to be found?
//!
//! Each metric of each step gets the ratio of its medians, new by base, with a bootstrapped interval. "Changed"
//! needs two things: the interval must exclude 1, so that chance within these runs does not explain it, and
//! the ratio must exceed the noise that a comparison of one binary with itself showed on the same machine, so
//! that chance *between* series does not either. Without such a record [`NOISE_FLOOR`] is used, and the result says
//! so. Runs that measured something else are not comparable, and that is a verdict too: a ratio of
//! unlike things is worse than none. Rejected: a single threshold of so many percent, which is both too
//! narrow for a p99 and too wide for a rate.

mod bench_file;
mod file;
mod judge;
mod kind;
mod metric;
mod noise;
mod run;
mod run_set;
mod table;

use serde::Serialize;
use thiserror::Error;

pub use self::bench_file::{BENCH_SCHEMA_VERSION, STOLEN_PCT_MAX, WAITED_PCT_MAX};
use self::judge::Judge;
pub use self::kind::Kind;
pub use self::metric::Metric;
pub use self::noise::{NOISE_PAIRS_MIN, NoiseError, NoiseRecord, Share, StepNoise};
use self::run::Run;
pub use self::run_set::{RunSet, RunSetError};
use crate::statistics::{Bootstrap, MedianInterval, Outliers, RatioInterval};

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The base.
    pub base: Side,
    /// The side that is compared with it.
    pub new: Side,
    /// Whether run k of the one was made next to run k of the other.
    pub paired: bool,
    /// Steps in the order of the base, then those that only the new side has.
    pub steps: Vec<StepComparison>,
    /// Remarks for a reader, such as that no noise was recorded.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Compares two sides. Only `noise` that was recorded on the machine of the runs is used.
    ///
    /// # Errors
    /// [`CompareError::Empty`] when a side has no run, [`CompareError::Unlike`] when one is of load tests and the other
    /// of benchmarks, [`CompareError::Unpaired`] when the sides are paired and differ in number.
    pub fn of(
        base: &RunSet,
        new: &RunSet,
        pairing: Pairing,
        noise: Option<&NoiseRecord>,
        bootstrap: Bootstrap,
    ) -> Result<Self, CompareError> {
        let (Some(first_base), Some(first_new)) = (base.runs.first(), new.runs.first()) else {
            return Err(CompareError::Empty);
        };
        if base.kind != new.kind {
            return Err(CompareError::Unlike {
                base: base.kind,
                new: new.kind,
            });
        }
        let paired = pairing == Pairing::ByOrder;
        if paired && base.len() != new.len() {
            return Err(CompareError::Unpaired {
                base: base.len(),
                new: new.len(),
            });
        }
        let usable = noise.filter(|noise| noise.is_of(&first_base.env));
        let mut notes = side_notes(base, new);
        notes.extend(noise_note(noise, usable));
        let judge = Judge {
            base,
            new,
            paired,
            noise: usable,
            bootstrap,
        };
        let mut steps: Vec<StepComparison> = (0..first_base.steps.len())
            .map(|index| judge.step(index))
            .collect();
        let only_new = first_new.steps.iter().filter(|step| {
            let name = &step.step_name;
            first_base
                .steps
                .iter()
                .all(|known| known.step_name != *name)
        });
        steps.extend(only_new.map(|step| StepComparison {
            step_name: step.step_name.clone(),
            obstacle: Some(Obstacle::OtherScenario {
                what: "only the new side has this step".to_owned(),
            }),
            ..StepComparison::default()
        }));
        Ok(Self {
            base: Side::of(first_base, base.len()),
            new: Side::of(first_new, new.len()),
            paired,
            steps,
            notes,
        })
    }

    /// How many metrics have this verdict, over all steps.
    pub fn count(&self, verdict: Verdict) -> usize {
        let metrics = self.steps.iter().flat_map(|step| &step.metrics);
        metrics.filter(|metric| metric.verdict == verdict).count()
    }

    /// How many metrics were judged at all.
    pub fn judged(&self) -> usize {
        [Verdict::Better, Verdict::Worse, Verdict::NoChangeFound]
            .into_iter()
            .map(|verdict| self.count(verdict))
            .sum()
    }

    /// Returns the comparison as tables of plain text, with the worse metrics first.
    pub fn to_text(&self) -> String {
        table::render(self)
    }
}

/// How the runs of two sides belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// They were made independently.
    None,
    /// Run k of the one was made next to run k of the other.
    ByOrder,
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Runs that are compared.
    pub runs: usize,
    /// Version of the binary that made the first of them.
    pub version: String,
    /// Its commit.
    pub commit: String,
}

impl Side {
    fn of(run: &Run, runs: usize) -> Self {
        Self {
            runs,
            version: run.env.version.clone(),
            commit: run.env.commit.clone(),
        }
    }
}

/// One step of both sides.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepComparison {
    /// Name of the step.
    pub step_name: String,
    /// Its metrics; empty when the step is not comparable.
    pub metrics: Vec<MetricComparison>,
    /// Why the step is not comparable, if it is not.
    pub obstacle: Option<Obstacle>,
    /// Remarks for a reader.
    pub notes: Vec<String>,
}

/// One metric of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricComparison {
    /// The metric that is compared.
    pub metric: Metric,
    /// Median of the base.
    pub base: Option<MedianInterval>,
    /// Median of the new side.
    pub new: Option<MedianInterval>,
    /// Runs of the base that lie far from the others; they count in every other figure.
    pub base_outliers: Option<Outliers>,
    /// Runs of the new side that lie far from the others.
    pub new_outliers: Option<Outliers>,
    /// New by base.
    pub ratio: Option<RatioInterval>,
    /// A share: ratios from 1/(1 + noise) to 1 + noise mean nothing.
    #[serde(with = "crate::statistics::json_number")]
    pub noise: f64,
    /// Whether the noise was recorded on this machine, and not assumed.
    pub noise_is_recorded: bool,
    /// The verdict.
    pub verdict: Verdict,
    /// Why there is no verdict, if there is none.
    pub obstacle: Option<Obstacle>,
}

/// The verdict on a metric. The weightiest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Changed, and for the worse.
    Worse,
    /// Changed, and for the better.
    Better,
    /// Chance or noise explain the difference. This does not prove that there is none.
    NoChangeFound,
    /// Nothing can be said.
    NotComparable,
}

/// Why nothing can be said.
#[derive(Clone, Debug, PartialEq, Serialize, Error)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum Obstacle {
    #[error("other scenario: {what}")]
    OtherScenario { what: String },
    #[error("other machine: {what}")]
    OtherMachine { what: String },
    #[error("other window: {base_secs:.1} s and {new_secs:.1} s")]
    OtherWindow { base_secs: f64, new_secs: f64 },
    #[error("a run is INVALID: {why}")]
    Invalid { why: String },
    #[error("too few runs: {base} and {new}, {needed} of each are needed")]
    TooFewRuns {
        base: usize,
        new: usize,
        needed: usize,
    },
    #[error("not measured in every run")]
    NotMeasured,
    #[error("too few messages for this percentile in some run")]
    TooFewSamples,
}

/// Why two sides cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum CompareError {
    #[error("a side has no finished run")]
    Empty,
    #[error("{base} cannot be compared with {new}; name two of a kind")]
    Unlike { base: Kind, new: Kind },
    #[error("pairs need as many runs on both sides, not {base} and {new}")]
    Unpaired { base: usize, new: usize },
}

fn side_notes(base: &RunSet, new: &RunSet) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, side) in [("base", base), ("new", new)] {
        if side.interrupted > 0 {
            notes.push(format!(
                "{} stopped runs of the {name} side are left out",
                side.interrupted
            ));
        }
    }
    let kernel = |side: &RunSet| side.runs.first().map(|run| run.env.kernel.clone());
    if let (Some(old), Some(current)) = (kernel(base), kernel(new))
        && old != current
    {
        notes.push(format!(
            "the kernels differ, {old} and {current}: what changed may be theirs"
        ));
    }
    notes
}

fn noise_note(given: Option<&NoiseRecord>, usable: Option<&NoiseRecord>) -> Option<String> {
    let floor = NOISE_FLOOR * 100.0;
    match (given, usable) {
        (_, Some(_)) => None,
        (Some(_), None) => Some(format!(
            "the noise was recorded on another machine or kernel; {floor} % is assumed instead"
        )),
        (None, None) => Some(format!(
            "no noise of this machine is known and {floor} % is assumed; `tidewire ab` records it"
        )),
    }
}

/// The share that a change must exceed if no noise was recorded. The order of linking alone can change the speed of
/// the same program by more than 1 or 2 %.
pub const NOISE_FLOOR: f64 = 0.03;

#[cfg(test)]
mod tests;
