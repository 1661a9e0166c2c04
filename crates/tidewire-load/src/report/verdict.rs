//! The verdict of a run and of a step in words, the same in the live view, on the last line, in JSON, in Markdown and
//! on the page.
//!
//! An invalid measurement does not look like a failure of the server, and its figures do not look like results: each
//! verdict says what may be believed.

use super::{Conclusion, Report, StepReport};
use crate::format::thousands;

worded! {
    /// The verdict of a step, the weightiest first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum StepVerdict {
        /// The scenario refuses the measurement.
        Invalid = "INVALID",
        /// A limit was broken, and the measurement is not to be believed.
        SloFailedInvalid = "limit broken, and INVALID",
        /// A limit was broken.
        SloFailed = "limit broken",
        /// Something was lost or wrong, and rates and times are not to be believed.
        FailedInvalid = "failed, and INVALID",
        /// Something was lost or wrong.
        Failed = "failed",
        /// Nothing was lost or wrong, but rates and times are not to be believed.
        PassedInvalid = "passed, but INVALID",
        /// Nothing was lost or wrong.
        Passed = "passed",
    }
}

impl StepReport {
    /// The verdict, which has the same word in every form of the report.
    pub fn verdict(&self) -> StepVerdict {
        match (self.is_doubtful(), self.keeps_slo(), self.is_clean()) {
            _ if self.is_refused() => StepVerdict::Invalid,
            (true, false, _) => StepVerdict::SloFailedInvalid,
            (false, false, _) => StepVerdict::SloFailed,
            (true, true, false) => StepVerdict::FailedInvalid,
            (false, true, false) => StepVerdict::Failed,
            (true, true, true) => StepVerdict::PassedInvalid,
            (false, true, true) => StepVerdict::Passed,
        }
    }
}

impl Report {
    /// Whether the measurement of a step is not to be believed, even if the scenario takes it all the same.
    pub fn is_doubtful(&self) -> bool {
        self.steps.iter().any(StepReport::is_doubtful)
    }

    /// Whether a busy machine made the times of a step longer, so that they are not to be believed.
    pub fn is_disturbed(&self) -> bool {
        self.steps.iter().any(StepReport::is_disturbed)
    }

    /// The conclusion in words, with the doubt about the measurement where it has no exit code of its own.
    pub fn verdict(&self) -> &'static str {
        match (self.conclusion(), self.is_doubtful()) {
            (Conclusion::Passed, true) => StepVerdict::PassedInvalid.name(),
            (Conclusion::Failed, true) => StepVerdict::FailedInvalid.name(),
            (Conclusion::SloFailed, true) => StepVerdict::SloFailedInvalid.name(),
            (conclusion, _) => conclusion.name(),
        }
    }

    /// The meaning of the verdict: what was checked, or what may be believed.
    pub fn explanation(&self) -> String {
        let meaning = match self.conclusion() {
            Conclusion::Passed => self.checked(),
            Conclusion::Failed => {
                "something was lost, wrong or impossible; the steps say what".to_owned()
            }
            Conclusion::SloFailed => "a step did not keep its limits".to_owned(),
            Conclusion::Invalid => "a measurement is not to be believed".to_owned(),
            Conclusion::Interrupted => "the figures cover what ran until then".to_owned(),
        };
        match (self.is_doubtful(), self.is_disturbed()) {
            (true, _) => format!("{meaning}; {BELIEVE}"),
            (false, true) => format!("{meaning}; {DISTURBED}"),
            (false, false) => meaning,
        }
    }

    /// Says which facts a run that passed has shown. Each pattern checks other things.
    fn checked(&self) -> String {
        let any = |found: fn(&StepReport) -> bool| self.steps.iter().any(found);
        let is_ingest = |step: &StepReport| step.duplicated.is_none();
        let is_request = |step: &StepReport| step.detail.workload.pattern == "request";
        let mut told = match any(|step| step.lost + step.unconfirmed > 0) {
            true => "what did not arrive is within the limits of its step or has a cause among its faults".to_owned(),
            false => "every expected message arrived".to_owned(),
        };
        told.push_str(match (any(is_ingest), any(is_request)) {
            (true, _) => {
                "; the server says only how many, so that neither order nor content is known"
            }
            (false, true) => ", once and unchanged",
            (false, false) => ", once, unchanged and in order",
        });
        let sum = |count: fn(&StepReport) -> Option<u64>| self.steps.iter().filter_map(count).sum();
        let (reordered, late): (u64, u64) = (sum(|step| step.reordered), sum(|step| step.late));
        if reordered > 0 {
            told.push_str(&format!(
                "; {} replies overtook others",
                thousands(reordered)
            ));
        }
        if late > 0 {
            told.push_str(&format!("; {} were late", thousands(late)));
        }
        told
    }
}

/// A text with its first letter as at the beginning of a sentence.
pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next();
    first
        .into_iter()
        .flat_map(char::to_uppercase)
        .chain(letters)
        .collect()
}

/// The part of a disturbed measurement that may be believed.
const DISTURBED: &str = "the machine was busy with other work, so the counts and rates of messages may be believed, \
    and the times of disturbed steps include its delays";

/// The part of an invalid measurement that may be believed.
pub(super) const BELIEVE: &str = "the counts of messages may be believed, and the rates and times of steps marked INVALID may not";
