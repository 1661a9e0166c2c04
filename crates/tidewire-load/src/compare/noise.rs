//! The noise of a machine: the differences that it shows when nothing has changed.
//! Two series of the same binary differ by more than the spread within a series, for example by the order of its
//! pages in memory or by other load on the host. So a binary is first compared with itself, and a change counts only
//! if it is larger than that difference. The noise is the difference of the two sides, or its standard error if that
//! is larger: one lucky comparison must not make the machine look quiet. Rejected: the whole interval as the noise.
//! Chance is then judged twice, and a quarter of the changes by 5 % between runs that vary by 2 % is missed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Metric;
use super::run::{Machine, Run};
use super::run_set::RunSet;
use crate::statistics::{Bootstrap, RatioInterval, Sides, json_number};

/// The noise of a machine, from pairs of runs of one binary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoiseRecord {
    /// Processor of the machine.
    pub cpu: String,
    /// Its cores.
    pub cores: u32,
    /// Its kernel.
    pub kernel: String,
    /// Pairs of runs this comes from.
    pub pairs: usize,
    /// One entry for each step.
    pub steps: Vec<StepNoise>,
}

/// The noise of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepNoise {
    /// Name of the step.
    pub step_name: String,
    /// Agents.
    pub concurrency: u32,
    /// The noise of each metric, as a share: 0.02 says that ratios from 1/1.02 to 1.02 mean nothing.
    pub shares: BTreeMap<Metric, Share>,
}

/// A share of a figure; infinite when a percentile was infinite on one side only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Share(#[serde(with = "json_number")] pub f64);

impl NoiseRecord {
    /// The noise that two series of one binary show, run k of the one paired with run k of the other. Nothing
    /// unless there are at least [`NOISE_PAIRS_MIN`] pairs.
    pub fn of(first: &RunSet, second: &RunSet, bootstrap: Bootstrap) -> Option<Self> {
        let pairs = first.len().min(second.len());
        if pairs < NOISE_PAIRS_MIN {
            return None;
        }
        let machine = &first.runs.first()?.env;
        let steps = (0..first.runs.first()?.steps.len())
            .filter_map(|index| step_noise(first, second, index, bootstrap))
            .collect();
        Some(Self {
            cpu: machine.cpu.clone(),
            cores: machine.cores,
            kernel: machine.kernel.clone(),
            pairs,
            steps,
        })
    }

    /// Reads a record.
    pub fn read(path: &Path) -> Result<Self, NoiseError> {
        let bytes = fs::read(path).map_err(|source| NoiseError::Read(path.to_owned(), source))?;
        serde_json::from_slice(&bytes)
            .map_err(|source| NoiseError::NotARecord(path.to_owned(), source))
    }

    /// Whether it was made on a machine like this one.
    pub(super) fn is_of(&self, machine: &Machine) -> bool {
        self.cpu == machine.cpu && self.cores == machine.cores && self.kernel == machine.kernel
    }

    /// The noise of a metric of a step, if that was recorded.
    pub(super) fn share(&self, step_name: &str, concurrency: u32, metric: Metric) -> Option<f64> {
        let step = self
            .steps
            .iter()
            .find(|step| step.step_name == step_name && step.concurrency == concurrency)?;
        step.shares.get(&metric).map(|share| share.0)
    }
}

/// Why a record of noise cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum NoiseError {
    #[error("cannot read the noise record {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{} is no noise record; name a noise.json that `tidewire ab` wrote", .0.display())]
    NotARecord(PathBuf, #[source] serde_json::Error),
}

fn step_noise(
    first: &RunSet,
    second: &RunSet,
    index: usize,
    bootstrap: Bootstrap,
) -> Option<StepNoise> {
    let step = first.runs.first()?.steps.get(index)?;
    let shares = Metric::ALL.into_iter().filter_map(|metric| {
        let pairs: Option<Vec<(f64, f64)>> = first
            .runs
            .iter()
            .zip(&second.runs)
            .map(|(left, right)| {
                let figure = |run: &Run| run.steps.get(index)?.figure(metric).ok();
                Some((figure(left)?, figure(right)?))
            })
            .collect();
        let interval = RatioInterval::of(Sides::Paired(&pairs?), bootstrap)?;
        Some((metric, Share(share_of(interval))))
    });
    Some(StepNoise {
        step_name: step.step_name.clone(),
        concurrency: step.concurrency,
        shares: shares.collect(),
    })
}

/// By how much the sides differ, or a quarter of the interval's width, about one standard error, when that is more.
pub(super) fn share_of(interval: RatioInterval) -> f64 {
    let differs = interval.ratio.ln().abs();
    let error = (interval.high.ln() - interval.low.ln()) / 4.0;
    // Two infinite ends have no width; then the ratio itself is infinite.
    let share = if error.is_nan() {
        differs
    } else {
        differs.max(error)
    };
    share.exp() - 1.0
}

/// Fewest pairs from which noise is recorded: fewer have no interval that means anything.
pub const NOISE_PAIRS_MIN: usize = 4;
