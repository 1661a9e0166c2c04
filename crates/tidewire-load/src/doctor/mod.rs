//! Examines whether a machine is fit to measure on, and how to make it fitter.
//! A load test on a machine that pauses, shares its cores or wakes late measures the machine. The examination first
//! collects facts, from the kernel's files and from three short measurements, and then judges them. With two steps
//! the judgement of any machine can be tested on every machine. A fact that a container hides is unknown and not an
//! error. The result is advice with a remedy; the examination changes nothing.

mod facts;
mod judge;
mod timing;

use std::fmt::Write as _;

use serde::Serialize;
use tidewire_proto::text::visible;

pub use self::facts::{ClockFacts, CoreFacts, Facts, LimitFacts};
pub use self::timing::{LoopFacts, WakeupFacts};

/// The facts about a machine and their judgement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Examination {
    /// The facts.
    pub facts: Facts,
    /// One finding for each check, in a fixed order.
    pub findings: Vec<Finding>,
}

impl Examination {
    /// Examines this machine, which takes about three seconds of one core.
    pub fn make() -> Self {
        Self::of(Facts::gather())
    }

    /// Judges given facts.
    pub fn of(facts: Facts) -> Self {
        let findings = judge::findings(&facts);
        Self { facts, findings }
    }

    /// How many findings have this level.
    pub fn count(&self, level: Level) -> usize {
        let findings = self.findings.iter();
        findings.filter(|finding| finding.level == level).count()
    }

    /// The findings as plain text, the worst first.
    pub fn to_text(&self) -> String {
        let mut findings: Vec<&Finding> = self.findings.iter().collect();
        findings.sort_by_key(|finding| finding.level);
        let mut text = String::new();
        for finding in findings {
            let (level, check) = (finding.level.name(), finding.check);
            let found = visible(finding.found.as_bytes());
            let _ = writeln!(text, "{level:<8} {check:<15} {found}");
            if !finding.remedy.is_empty() {
                let _ = writeln!(text, "{:<8} {:<15} → {}", "", "", finding.remedy);
            }
        }
        let _ = writeln!(
            text,
            "{} to fix before measuring, {} to consider, {} good",
            self.count(Level::Warning),
            self.count(Level::Advice),
            self.count(Level::Good)
        );
        text
    }
}

/// The finding of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check, such as `clock`.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// The fact, with units.
    pub found: String,
    /// Its effect on a measurement and how to fix it; empty when it is good.
    pub remedy: &'static str,
}

worded! {
    /// How bad a finding is; the worst comes first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Level {
        /// Figures from this machine will mislead.
        Warning = "FIX",
        /// Figures would be steadier, or larger tests possible.
        Advice = "consider",
        /// Nothing to do.
        Good = "good",
    }
}
