//! A run at one rate, as a search sees it: did the rate hold, and if not, whose fault was it?

use serde::Serialize;

use crate::environment::Environment;
use crate::report::{Conclusion, Report};
use crate::scenario::Step;
use crate::search::{SearchEnd, SearchPlan, Vote};
use crate::slo::Slo;
use crate::statistics::Percentile;

/// The result of a run at one rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Probe {
    /// Number of the probe, from 1.
    pub number: u32,
    /// The rate, in messages a second.
    pub rate: f64,
    /// Whether it held: every limit was kept, at least 99 % of the due messages were sent in time, nothing else was
    /// wrong, and the measurement is valid.
    pub held: bool,
    /// The conclusion of the run.
    pub conclusion: Conclusion,
    /// Why it did not hold; empty when it did.
    pub reasons: Vec<String>,
    /// The doubts about the measurement, enforced or not.
    pub verdict_reasons: Vec<String>,
    /// Signs of a busy machine, which made the times longer.
    pub disturbances: Vec<String>,
    /// Messages sent a second in the steady window.
    pub send_tps: f64,
    /// Messages received a second in the steady window; nothing where messages go one way.
    pub receive_tps: Option<f64>,
    /// Median of the scheduled latency. Lost messages rank above all times.
    pub p50: Percentile,
    /// 99th percentile of the same.
    pub p99: Percentile,
    /// 99.9th percentile of the same.
    pub p999: Percentile,
    /// Messages that should have arrived.
    pub expected: u64,
    /// Expected messages that did not arrive.
    pub lost: u64,
    /// Expected messages that may or may not have arrived.
    pub unconfirmed: u64,
}

impl Probe {
    /// Judges the run of a single step; nothing when it has none or could not be measured.
    pub fn of(number: u32, rate: f64, report: &Report) -> Option<Self> {
        let step = report.steps.first()?;
        let detail = &step.detail;
        let conclusion = report.conclusion();
        let mut reasons = Vec::new();
        if step.is_refused() {
            reasons.extend_from_slice(&detail.verdict.reasons);
        }
        reasons.extend_from_slice(&detail.slo.violations);
        reasons.extend_from_slice(&step.problems);
        let scheduled = &detail.times.scheduled;
        Some(Self {
            number,
            rate,
            held: conclusion == Conclusion::Passed,
            conclusion,
            reasons,
            verdict_reasons: detail.verdict.reasons.clone(),
            disturbances: detail.verdict.disturbances.clone(),
            send_tps: step.steady.send_tps,
            receive_tps: step.steady.receive_tps,
            p50: scheduled.p50,
            p99: scheduled.p99,
            p999: scheduled.p999,
            expected: step.expected_received,
            lost: step.lost,
            unconfirmed: step.unconfirmed,
        })
    }

    /// The vote of this probe on its rate.
    pub fn vote(&self) -> Vote {
        if self.conclusion == Conclusion::Invalid {
            Vote::Invalid
        } else if self.held {
            Vote::Holds
        } else {
            Vote::Fails
        }
    }

    /// Whether it shows that the server does not hold the rate: the rate failed, and nothing speaks against the
    /// measurement.
    fn shows_failure(&self) -> bool {
        self.vote() == Vote::Fails && self.verdict_reasons.is_empty()
    }
}

/// A search with all its probes; the content of `search.json`.
#[derive(Clone, Debug, Serialize)]
pub struct RateSearch {
    /// Version of this layout.
    pub schema_version: u32,
    /// Address of the server, or of the last of them.
    pub target_server: String,
    /// Name of the step.
    pub step: String,
    /// The pattern of the messages.
    pub pattern: &'static str,
    /// The limits that a rate must keep.
    pub slo: Slo,
    /// Seed of every run.
    pub seed: u64,
    /// Where was searched, and how finely.
    pub plan: SearchPlan,
    /// The result; `None` when the user stopped the search.
    pub end: Option<SearchEnd>,
    /// Whether a rate above was ruled out, or could not be decided, without a valid measurement that shows the server
    /// failing, so that the rate found is a lower bound.
    pub limited_by_instrument: bool,
    /// Every run, in order.
    pub probes: Vec<Probe>,
    /// Machine and build.
    pub env: Environment,
}

impl RateSearch {
    /// A search for `step` that has not begun.
    pub fn new(step: &Step, slo: Slo, plan: SearchPlan, seed: u64, env: Environment) -> Self {
        Self {
            schema_version: SEARCH_SCHEMA_VERSION,
            target_server: String::new(),
            step: step.name.clone(),
            pattern: step.pattern.name(),
            slo,
            seed,
            plan,
            end: None,
            limited_by_instrument: false,
            probes: Vec::new(),
            env,
        }
    }

    /// Notes how the search ended.
    pub fn close(&mut self, end: SearchEnd) {
        self.end = Some(end);
        let above = match end {
            SearchEnd::Found { holds, .. } => holds,
            SearchEnd::FailsAtMin { .. } => 0.0,
            SearchEnd::HoldsAtMax { .. } => f64::INFINITY,
            SearchEnd::Undecided { .. } => return self.limited_by_instrument = true,
            // The probes that said nothing used up those that were left.
            SearchEnd::Exhausted { .. } => {
                let mut votes = self.probes.iter().map(Probe::vote);
                return self.limited_by_instrument = votes.any(|vote| vote == Vote::Invalid);
            }
        };
        // Where the scenario only warns of invalid measurements they vote, and may have ruled out a rate by themselves.
        let ruled_out = self.probes.iter().filter(|probe| probe.rate > above);
        let is_shown = |rate: f64| {
            let mut probes = self.probes.iter();
            probes.any(|probe| probe.rate == rate && probe.shows_failure())
        };
        self.limited_by_instrument = ruled_out.into_iter().any(|probe| !is_shown(probe.rate));
    }

    /// The conclusion of the search. A search without a result has not shown that the limits can be kept, so it has
    /// failed; if invalid measurements are the reason, it is they that the conclusion names.
    pub fn conclusion(&self) -> Conclusion {
        match self.end {
            None => Conclusion::Interrupted,
            Some(SearchEnd::Found { .. } | SearchEnd::HoldsAtMax { .. }) => Conclusion::Passed,
            Some(SearchEnd::FailsAtMin { .. }) => Conclusion::SloFailed,
            Some(_) if self.limited_by_instrument => Conclusion::Invalid,
            Some(SearchEnd::Undecided { .. } | SearchEnd::Exhausted { .. }) => {
                Conclusion::SloFailed
            }
        }
    }
}

/// Version of the layout of `search.json`.
const SEARCH_SCHEMA_VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::ThinkTime;

    fn probe(rate: f64, conclusion: Conclusion) -> Probe {
        Probe {
            number: 1,
            rate,
            held: conclusion == Conclusion::Passed,
            conclusion,
            reasons: Vec::new(),
            verdict_reasons: Vec::new(),
            disturbances: Vec::new(),
            send_tps: rate,
            receive_tps: Some(rate),
            p50: Percentile::Infinite,
            p99: Percentile::Infinite,
            p999: Percentile::Infinite,
            expected: 0,
            lost: 0,
            unconfirmed: 0,
        }
    }

    fn concluded(probes: Vec<Probe>, end: Option<SearchEnd>) -> (bool, Conclusion) {
        let step = Step::chat("step", 2, 1.0, ThinkTime::NONE);
        let env = Environment::detect("0", "unknown");
        let plan = SearchPlan::between(1.0, 2.0);
        let mut search = RateSearch::new(&step, Slo::default(), plan, 1, env);
        search.probes = probes;
        if let Some(end) = end {
            search.close(end);
        }
        (search.limited_by_instrument, search.conclusion())
    }

    #[test]
    fn a_rate_that_no_valid_measurement_ruled_out_leaves_a_lower_bound() {
        let holds = probe(100.0, Conclusion::Passed);
        let broken = probe(200.0, Conclusion::SloFailed);
        // The scenario only warns, so that a measurement that is not to be believed has a vote.
        let doubtful = Probe {
            verdict_reasons: vec!["the machine's host took 9.0 % of its time away".to_owned()],
            ..broken.clone()
        };
        let end = Some(SearchEnd::Found {
            holds: 100.0,
            fails: 200.0,
        });
        let by_server = vec![holds.clone(), doubtful.clone(), broken.clone()];
        assert_eq!(concluded(by_server, end), (false, Conclusion::Passed));
        let by_instrument = vec![holds.clone(), doubtful.clone(), doubtful.clone()];
        assert_eq!(concluded(by_instrument, end), (true, Conclusion::Passed));
        // An upper end of the bracket that was left behind counts as well.
        let high = Probe {
            rate: 400.0,
            ..doubtful
        };
        let by_both = vec![holds, high, broken];
        assert_eq!(concluded(by_both, end), (true, Conclusion::Passed));
    }

    #[test]
    fn a_search_without_a_result_has_failed_and_names_invalid_measurements() {
        let failed = vec![probe(1.0, Conclusion::SloFailed)];
        let end = Some(SearchEnd::FailsAtMin { fails: 1.0 });
        assert_eq!(concluded(failed, end), (false, Conclusion::SloFailed));
        let end = Some(SearchEnd::Exhausted { holds: Some(1.0) });
        assert_eq!(concluded(Vec::new(), end).1, Conclusion::SloFailed);
        let invalid = vec![probe(2.0, Conclusion::Invalid)];
        assert_eq!(concluded(invalid, end), (true, Conclusion::Invalid));
        let end = Some(SearchEnd::Undecided {
            rate: 2.0,
            holds: Some(1.0),
        });
        assert_eq!(concluded(Vec::new(), end), (true, Conclusion::Invalid));
        let end = Some(SearchEnd::HoldsAtMax { holds: 2.0 });
        assert_eq!(concluded(Vec::new(), end), (false, Conclusion::Passed));
        assert_eq!(concluded(Vec::new(), None).1, Conclusion::Interrupted);
    }
}
