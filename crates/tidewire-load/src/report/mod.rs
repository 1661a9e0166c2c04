//! The report of a run, for programs, for readers and for the terminal.
//!
//! `report.json` keeps every key, type and place of the report the project started with, so that scripts which read the
//! old one read the new one, and adds what was missing: how many deliveries were expected, what became of each, and the
//! steady window. `docs/report.schema.json` is its contract. `report.md` says the same to people, `report.html` shows
//! it to them, [`step_table`] says it to the terminal; in all of them, what went wrong comes first.
//!
//! All derived figures are computed in one place, `StepReport::from_measurements`, and checked in another,
//! [`Report::validate`]. Loose JSON values were rejected: a misspelt key would be noticed only by a reader.

mod cost;
mod detail;
mod fan_out;
mod html;
mod markdown;
mod merge;
mod outputs;
mod step;
mod success;
mod table;
mod times;
mod validate;
mod verdict;
mod write;

use serde::{Deserialize, Serialize};

pub use self::cost::{Cost, LaneCost};
pub use self::detail::{
    FaultFigures, ProcessFigures, ReceiverFigures, RunFigures, SloReport, SlowReceivers,
    StepDetail, Verdict, Window, Workload,
};
pub use self::fan_out::FanOutShare;
pub use self::merge::MergeError;
pub(crate) use self::step::StepMeasurements;
pub use self::step::{ClientUsage, ServerUsage, Steady, StepReport};
pub use self::table::step_table;
pub use self::times::{Distribution, Second, StepTimes};
pub use self::validate::ValidateError;
pub use self::verdict::StepVerdict;
pub use self::write::{
    HTML_FILE, JSON_FILE, MARKDOWN_FILE, ReadError, WriteError, WrittenReport, create_directory,
    replace,
};
pub use crate::environment::Environment;
pub use crate::exchange::WorkCounts;
pub use crate::ledger::Losses;
use crate::segment::Segment;
pub use crate::statistics::{Latency, Percentile};

/// The relation of the reports that are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeKind {
    /// Runs one after another: their times add up.
    Runs,
    /// Parts of one run at the same time: their rates add up.
    Parts,
}

impl MergeKind {
    /// The time that all take together.
    fn secs(self, each: impl Iterator<Item = f64>) -> f64 {
        match self {
            Self::Runs => each.sum(),
            Self::Parts => each.fold(0.0, f64::max),
        }
    }
}

/// The result of a whole run; field for field the content of `report.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this layout, [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Address of the server that was tested.
    pub target_server: String,
    /// How the run ended.
    pub status: Status,
    /// When the run started, RFC 3339 in UTC with milliseconds. A label: durations come from the monotonic
    /// clock.
    pub start_time_utc: String,
    /// When the run ended, in the same form.
    pub end_time_utc: String,
    /// Length of the whole run in seconds.
    pub total_duration_secs: f64,
    /// How load is offered: `closed`, `open` or `max`, or [`MODEL_MIXED`] where steps differ.
    pub model: String,
    /// The seed of every random choice; the same seed offers the same load.
    pub seed: u64,
    /// Machine and build.
    pub env: Environment,
    /// Version of the scenario; left out for version 1.
    #[serde(default = "version_1", skip_serializing_if = "is_version_1")]
    pub scenario_version: u8,
    /// The share of the scenario that was run; left out for the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Segment>,
    /// One entry for each step that was begun, in order.
    pub steps: Vec<StepReport>,
    /// Names of the steps that were not begun, because the run ended before; left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<String>,
}

impl Report {
    /// Adds the steps of a run, which decide its model and, unless it was `interrupted`, its status. That is
    /// [`Status::Completed`] in version 1, and in version 2 [`Status::Passed`] only if there are steps and every step
    /// is clean, keeps its limits and is not refused.
    pub(crate) fn with_steps(self, steps: Vec<StepReport>, interrupted: bool) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            status: Status::of(interrupted, self.scenario_version, &steps),
            model: model(&steps),
            steps,
            ..self
        }
    }

    /// The conclusion of the run, the weightiest first.
    pub fn conclusion(&self) -> Conclusion {
        let any = |found: fn(&StepReport) -> bool| self.steps.iter().any(found);
        if self.status == Status::Interrupted {
            Conclusion::Interrupted
        } else if any(StepReport::is_refused) {
            Conclusion::Invalid
        } else if any(|step| !step.keeps_slo()) {
            Conclusion::SloFailed
        } else if self.steps.is_empty() || any(|step| !step.is_clean()) {
            Conclusion::Failed
        } else {
            Conclusion::Passed
        }
    }

    /// The content of `report.md`.
    pub fn to_markdown(&self) -> String {
        markdown::render(self)
    }
}

worded! {
    /// How a run ended.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Status {
        /// A scenario of version 1 ran to its end, whatever it found. It is the word of the report that the project
        /// started with, which scripts look for; the steps' problems and the exit code say what the run comes to.
        #[default]
        #[serde(rename = "COMPLETED")]
        Completed = "COMPLETED",
        /// Every step ran to its end, and every expected message came once and in order.
        Passed = "passed",
        /// Something went wrong; the steps say what.
        Failed = "failed",
        /// The user stopped the run. What was measured until then is reported.
        Interrupted = "interrupted",
    }
}

impl Status {
    /// How a run of a scenario of this version ended, with what its steps found.
    pub(crate) fn of(interrupted: bool, version: u8, steps: &[StepReport]) -> Self {
        match (interrupted, version, all_pass(steps)) {
            (true, ..) => Self::Interrupted,
            (false, 1, _) => Self::Completed,
            (false, _, true) => Self::Passed,
            (false, _, false) => Self::Failed,
        }
    }
}

worded! {
    /// The conclusion of a run. Each has an exit code of its own.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Conclusion {
        /// Everything that was expected arrived once and in order, within the limits.
        Passed = "passed",
        /// Something was lost, wrong or impossible that no limit allows.
        Failed = "failed",
        /// A limit was broken.
        #[serde(rename = "limit_broken")]
        SloFailed = "limit broken",
        /// A measurement is not to be believed, so that nothing else counts.
        Invalid = "INVALID measurement",
        /// The user stopped the run.
        Interrupted = "interrupted",
    }
}

fn all_pass(steps: &[StepReport]) -> bool {
    !steps.is_empty() && steps.iter().all(StepReport::passes)
}

fn model(steps: &[StepReport]) -> String {
    let mut models = steps.iter().map(|step| step.detail.workload.model.as_str());
    let first = models.next().unwrap_or(MODEL_CLOSED);
    if models.all(|model| model == first) {
        first.to_owned()
    } else {
        MODEL_MIXED.to_owned()
    }
}

const fn version_1() -> u8 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
const fn is_version_1(version: &u8) -> bool {
    *version == 1
}

/// Version of the layout of `report.json`. Adding a key does not change it; removing, renaming or
/// reinterpreting one does.
pub const SCHEMA_VERSION: u32 = 1;

/// Agents wait for their think time, not for answers of the server, before each message, and there is a
/// fixed number of them.
pub const MODEL_CLOSED: &str = "closed";

/// Steps of different models.
pub const MODEL_MIXED: &str = "mixed";

/// Where nothing comes back, `latency` is null.
pub const LATENCY_KIND_NONE: &str = "none: nothing comes back; latency_send is the cost of sending";

/// The meaning of the figures in `latency`.
pub const LATENCY_KIND_END_TO_END: &str =
    "end_to_end: intended send time to decoded at the receiver";

#[cfg(test)]
mod output_tests;
#[cfg(test)]
mod tests;
