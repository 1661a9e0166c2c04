//! One run of a side, whatever kind of file it was read from.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::metric::Figures;
use crate::environment::Environment;

#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) env: Machine,
    pub(super) steps: Vec<StepRun>,
}

/// The machine and the build of a run.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cores: u32,
    pub(super) kernel: String,
    pub(super) version: String,
    pub(super) commit: String,
}

impl Machine {
    pub(super) fn of(env: &Environment) -> Self {
        Self {
            cpu: env.cpu.clone(),
            cores: env.cores,
            kernel: env.kernel.clone(),
            version: env.version.clone(),
            commit: env.commit.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct StepRun {
    pub(super) step_name: String,
    pub(super) concurrency: u32,
    /// Its length in seconds.
    pub(super) secs: f64,
    /// The settings of the step, each under the name that a message about a difference uses.
    pub(super) setting: BTreeMap<String, String>,
    pub(super) figures: Figures,
    /// Why the instrument itself does not believe it, if so.
    pub(super) invalid: Option<String>,
    pub(super) problems: Vec<String>,
}
