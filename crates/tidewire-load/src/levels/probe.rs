//! A run at one rate, as a search sees it: did the rate hold, and if not, whose fault was it?

use serde::Serialize;

use super::word;
use crate::environment::Environment;
use crate::report::{Conclusion, Report, StepReport};
use crate::scenario::Step;
use crate::search::{SearchEnd, SearchPlan};
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
    /// `passed`, `limit_broken`, `failed` or `invalid`.
    pub conclusion: &'static str,
    /// Why it did not hold; empty when it did.
    pub reasons: Vec<String>,
    /// Messages sent a second in the steady window.
    pub send_tps: f64,
    /// Messages received a second in the steady window.
    pub receive_tps: f64,
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
        let detail = step.detail.as_ref()?;
        let mut reasons = Vec::new();
        if step.is_refused() {
            reasons.extend_from_slice(&detail.verdict.reasons);
        }
        reasons.extend_from_slice(&detail.slo.violations);
        reasons.extend_from_slice(&step.problems);
        let conclusion = match shortfall(step) {
            Some(reason) if !step.is_refused() => {
                reasons.push(reason);
                // A rate that was not reached did not hold, even if the latencies of the sent messages are good.
                match report.conclusion() {
                    Conclusion::Passed => Conclusion::Failed,
                    other => other,
                }
            }
            _ => report.conclusion(),
        };
        let scheduled = &detail.times.scheduled;
        Some(Self {
            number,
            rate,
            held: conclusion == Conclusion::Passed,
            conclusion: word(conclusion),
            reasons,
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

    /// Whether the measurement was refused, which says nothing about the server.
    pub fn is_invalid(&self) -> bool {
        self.conclusion == word(Conclusion::Invalid)
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
    /// Whether it was the instrument that did not hold the rate above, so that the rate found is a lower bound.
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
        let (SearchEnd::Found { fails, .. } | SearchEnd::FailsAtMin { fails }) = end else {
            return;
        };
        // One believed run that did not hold is enough to know that the server was the limit.
        let mut failed = self.probes.iter().filter(|probe| {
            let is_there = (probe.rate - fails).abs() <= fails * f64::EPSILON;
            is_there && !probe.held
        });
        self.limited_by_instrument = failed.all(Probe::is_invalid);
    }

    /// The conclusion of the search. A search without a result has not shown that the limits can be kept, so it has
    /// failed.
    pub fn conclusion(&self) -> Conclusion {
        match self.end {
            None => Conclusion::Interrupted,
            Some(_) if self.limited_by_instrument => Conclusion::Invalid,
            Some(SearchEnd::Found { .. } | SearchEnd::HoldsAtMax { .. }) => Conclusion::Passed,
            Some(SearchEnd::FailsAtMin { .. } | SearchEnd::Exhausted { .. }) => {
                Conclusion::SloFailed
            }
        }
    }
}

/// Says how much was missing when fewer messages were sent in time than were due.
fn shortfall(step: &StepReport) -> Option<String> {
    let counts = &step.detail.as_ref()?.counts;
    let sent = counts.steady_on_time.unwrap_or(counts.steady_sent);
    let offered = counts.steady_offered;
    // At the end of the window every agent may have one on its way.
    let missing = offered.saturating_sub(sent + u64::from(step.concurrency));
    (missing as f64 > offered as f64 * MISSING_SHARE_MAX).then(|| {
        let share = sent as f64 / offered as f64 * 100.0;
        format!("only {share:.1} % of what was due was sent in time")
    })
}

/// Version of the layout of `search.json`.
const SEARCH_SCHEMA_VERSION: u32 = 1;

/// Share of the due messages that may be missing in a rate that holds.
const MISSING_SHARE_MAX: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::ThinkTime;

    fn probe(rate: f64, conclusion: Conclusion) -> Probe {
        Probe {
            number: 1,
            rate,
            held: conclusion == Conclusion::Passed,
            conclusion: word(conclusion),
            reasons: Vec::new(),
            send_tps: rate,
            receive_tps: rate,
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
    fn the_server_is_the_limit_if_one_believed_probe_says_so() {
        let holds = probe(100.0, Conclusion::Passed);
        let invalid = probe(200.0, Conclusion::Invalid);
        let broken = probe(200.0, Conclusion::SloFailed);
        let end = Some(SearchEnd::Found {
            holds: 100.0,
            fails: 200.0,
        });
        let by_server = vec![holds.clone(), invalid.clone(), broken];
        assert_eq!(concluded(by_server, end), (false, Conclusion::Passed));
        let by_instrument = vec![holds, invalid.clone(), invalid.clone()];
        assert_eq!(concluded(by_instrument, end), (true, Conclusion::Invalid));
        let end = Some(SearchEnd::FailsAtMin { fails: 200.0 });
        assert_eq!(concluded(vec![invalid], end), (true, Conclusion::Invalid));
    }

    #[test]
    fn a_search_without_a_result_has_failed() {
        let failed = vec![probe(1.0, Conclusion::SloFailed)];
        let end = Some(SearchEnd::FailsAtMin { fails: 1.0 });
        assert_eq!(concluded(failed, end), (false, Conclusion::SloFailed));
        let end = Some(SearchEnd::Exhausted { holds: Some(1.0) });
        assert_eq!(concluded(Vec::new(), end).1, Conclusion::SloFailed);
        let end = Some(SearchEnd::HoldsAtMax { holds: 2.0 });
        assert_eq!(concluded(Vec::new(), end).1, Conclusion::Passed);
        assert_eq!(concluded(Vec::new(), None).1, Conclusion::Interrupted);
    }
}
