//! The report of one step, and the only place where its figures are derived.

use serde::{Deserialize, Serialize};

use super::success::{Failures, attainment, success_rate};
use super::{LATENCY_KIND_END_TO_END, LATENCY_KIND_NONE, Latency, StepDetail};
use crate::ledger::{Losses, ReceiverTotals};
use crate::scenario::{Pattern, Step};

/// The result of one step; field for field an entry of `steps` in `report.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Name from the scenario.
    pub step_name: String,
    /// Length of the whole step in seconds, with connecting and draining.
    pub test_duration_secs: f64,
    /// Agents the scenario asks for.
    pub concurrency: u32,
    /// Messages the agents sent.
    pub total_sent: u64,
    /// Distinct expected messages that arrived, over all receivers; duplicates are not in it.
    pub total_received: u64,
    /// `total_sent` by `test_duration_secs`, as the original computes it; `steady` has the undiluted rate.
    pub send_tps: f64,
    /// `total_received` by `test_duration_secs`.
    pub receive_tps: f64,
    /// Agents that could not connect or log in.
    pub total_login_failures: u64,
    /// Messages that could not be sent.
    pub total_send_errors: u64,
    /// 1 − `success_rate`.
    pub error_rate: f64,
    /// `total_received` by the sum of `expected_received` and the deliveries that failures cost before anything could
    /// be expected (`detail.counts.failed_deliveries`; docs/measuring.md has what a failure costs in each pattern). 1.0
    /// only when all that was expected arrived and nothing failed; never rounded up to it.
    pub success_rate: f64,
    /// The time that `latency_kind` describes; nothing where no message has such a time.
    pub latency: Option<Latency>,
    /// Messages a second the scenario offers: concurrency × 1000 / mean think time in milliseconds, or what was due
    /// in the steady window of an open step. Where the step is to find its rate, what it found.
    pub theoretical_tps: f64,
    /// In an open step the share of what was due in the steady window that was sent before it ended; else
    /// `steady.send_tps` by `theoretical_tps`.
    pub attainment: f64,
    /// Rates of the steady window alone.
    pub steady: Steady,
    /// Messages that should have arrived: for each receiver, all that the others sent.
    pub expected_received: u64,
    /// Expected messages that are known not to have arrived.
    pub lost: u64,
    /// Expected messages of which the instrument cannot know whether they arrived; neither received nor lost.
    #[serde(default)]
    pub unconfirmed: u64,
    /// Arrivals of a message that had arrived before. Nothing, as with the three below, where messages go one way: of
    /// those the server says only how many it has.
    pub duplicated: Option<u64>,
    /// Messages that arrived after a later one of the same sender.
    pub reordered: Option<u64>,
    /// Arrivals with a byte that is not the one that was sent.
    pub corrupt: Option<u64>,
    /// Messages that arrived later than allowed; they count as received.
    pub late: Option<u64>,
    /// Arrivals that belong to another run, another step or the receiver itself.
    pub foreign: u64,
    /// Arrivals with a sequence that was never sent.
    pub invented: u64,
    /// Receivers of which the fate of every message is known; the others were only counted.
    pub receivers_tracked: u64,
    /// Receivers whose count or checksum shows that something is wrong, but not how much of what.
    pub receivers_unresolved: u64,
    /// From where to where `latency` measures.
    pub latency_kind: String,
    /// Cost of the write call alone; nothing where nothing was written in the steady window.
    pub latency_send: Option<Latency>,
    /// The resources that the server used.
    pub server: ServerUsage,
    /// The resources that the instrument used.
    pub client: ClientUsage,
    /// The problems that make the step fail, worst first; empty when it passed.
    pub problems: Vec<String>,
    /// Remarks for a reader that do not make the step fail.
    pub notes: Vec<String>,
    /// The details.
    pub detail: Box<StepDetail>,
}

impl StepReport {
    pub(crate) fn from_measurements(step: &Step, measured: StepMeasurements) -> Self {
        let (problems, notes) = (problems(step, &measured), notes(&measured));
        let (totals, known) = (measured.totals, measured.known);
        let comes_back = step.pattern != Pattern::Ingest;
        // Only who gets a message back sees these.
        let seen = |count| comes_back.then_some(count);
        let failures = Failures {
            pattern: step.pattern,
            receivers: u64::from(step.senders()),
            logged_in: measured.logged_in,
            sent: known.total_sent,
            logins: known.total_login_failures,
            sends: known.total_send_errors,
            receivers_unresolved: totals.receivers_unresolved,
        };
        let mut report = Self {
            step_name: step.name.clone(),
            concurrency: step.concurrency,
            total_received: totals.delivered,
            expected_received: totals.expected,
            lost: totals.lost,
            unconfirmed: totals.unconfirmed,
            duplicated: seen(totals.duplicated),
            reordered: seen(totals.reordered),
            corrupt: seen(totals.corrupt),
            late: seen(totals.late),
            foreign: totals.foreign,
            invented: totals.invented,
            receivers_tracked: totals.receivers_tracked,
            receivers_unresolved: totals.receivers_unresolved,
            latency_kind: match comes_back {
                true => LATENCY_KIND_END_TO_END.to_owned(),
                false => LATENCY_KIND_NONE.to_owned(),
            },
            problems,
            notes,
            ..known
        };
        report.detail.counts.failed_deliveries = failures.deliveries();
        report.derive();
        report
    }

    /// Derives all rates and shares from the counts, of one run or of several that were merged.
    pub(super) fn derive(&mut self) {
        let detail = &self.detail;
        let (counts, secs) = (&detail.counts, self.test_duration_secs);
        let steady = |count| rate(count, detail.window.steady_secs);
        self.send_tps = rate(self.total_sent, secs);
        self.receive_tps = rate(self.total_received, secs);
        self.steady.send_tps = steady(counts.steady_sent);
        // When a message that goes one way arrived is not known.
        let comes_back = self.latency_kind != LATENCY_KIND_NONE;
        self.steady.receive_tps = comes_back.then(|| steady(counts.steady_received));
        self.theoretical_tps = match detail.workload.offered_tps {
            // The rate may change, so what the window is compared with is what was due in it.
            _ if detail.is_open() => steady(counts.steady_offered),
            offered => offered.unwrap_or(self.steady.send_tps),
        };
        self.attainment = attainment(detail, self.steady.send_tps, self.theoretical_tps);
        let (received, expected) = (self.total_received, self.expected_received);
        let failures = counts.failed_deliveries;
        self.success_rate = success_rate(self.total_sent, received, expected, failures);
        self.error_rate = 1.0 - self.success_rate;
    }

    /// A step that could not be measured.
    #[cfg(test)]
    pub(crate) fn failed(step: &Step, cause: String) -> Self {
        let mut measured = StepMeasurements::default();
        measured.known.problems.push(cause);
        measured.known.detail.workload = super::Workload::of(step);
        Self::from_measurements(step, measured)
    }

    /// Whether nothing was lost, wrong or impossible, beyond what the step's limits allow.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Whether all limits were kept; a step without limits keeps them.
    pub fn keeps_slo(&self) -> bool {
        self.detail.slo.violations.is_empty()
    }

    /// Whether the measurement is one that the scenario refuses to believe.
    pub fn is_refused(&self) -> bool {
        self.is_doubtful() && self.detail.verdict.enforced
    }

    /// Whether its measurement is not to be believed, even if the scenario takes it all the same.
    pub(super) fn is_doubtful(&self) -> bool {
        !self.detail.verdict.is_valid()
    }

    /// Whether a busy machine made its times longer, so that they are not to be believed.
    pub(super) fn is_disturbed(&self) -> bool {
        self.detail.verdict.is_disturbed()
    }

    /// Whether it is clean, keeps its limits and is believed.
    pub fn passes(&self) -> bool {
        self.is_clean() && self.keeps_slo() && !self.is_refused()
    }

    /// Lost deliveries that make it fail: in a step with faults, those without a cause, or that a history should have
    /// brought.
    pub(super) fn lost_by_mistake(&self) -> u64 {
        let detail = &self.detail;
        // Losses without any account of their causes have none.
        let causes = detail.losses.filter(|_| !detail.faults.is_empty());
        let keeps_history = detail.workload.history.is_some();
        causes.map_or(self.lost, |losses| losses.by_mistake(keeps_history))
    }

    /// Whether lost messages are judged by a limit and are no problem by themselves.
    pub(super) fn allows_loss(&self) -> bool {
        self.detail.slo.limits_loss()
    }
}

/// Rates of the steady window: after the warm-up and before the stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    /// Messages sent a second.
    pub send_tps: f64,
    /// Distinct messages received a second, over all receivers; nothing where messages go one way.
    pub receive_tps: Option<f64>,
}

/// The resources that the server used in a step; every field is unknown when the server is not ours to observe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerUsage {
    /// Processor time in seconds.
    pub cpu_secs: Option<f64>,
    /// Largest resident memory in bytes, since the server started.
    pub rss_bytes_max: Option<u64>,
    /// Number of lanes.
    pub lanes: Option<u32>,
    /// Name of the poller in use.
    pub poller: Option<String>,
    /// How the connections to it were encrypted, such as `TLSv1.3 TLS13_AES_256_GCM_SHA384`; left out if they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<String>,
}

/// The resources that the instrument used in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientUsage {
    /// Processor time in seconds.
    pub cpu_secs: f64,
    /// 99th percentile of how long after its intended time a message was sent, in milliseconds. Load is offered as
    /// planned only while this is small against the think time. Nothing where nothing that was due in the steady window
    /// was sent.
    pub send_lag_p99_ms: Option<f64>,
}

/// Everything a step measured, before any figure is derived from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepMeasurements {
    /// The part of the report that needs no derivation. Its problems and notes are those that no count shows, such as a
    /// server that died.
    pub(crate) known: StepReport,
    /// Agents that logged in, slow receivers left out.
    pub(crate) logged_in: u64,
    /// The merged accounts of all receivers.
    pub(crate) totals: ReceiverTotals,
    /// The causes of what is lost in them.
    pub(crate) losses: Losses,
}

/// Events a second; 0 where there was no time for any.
fn rate(count: u64, secs: f64) -> f64 {
    if secs > 0.0 { count as f64 / secs } else { 0.0 }
}

/// Worst first: what never came, what came wrong, what could not even be tried.
fn problems(step: &Step, measured: &StepMeasurements) -> Vec<String> {
    let totals = &measured.totals;
    let has_faults = !step.faults.is_empty();
    let keeps_history = measured.known.detail.workload.history.is_some();
    let (lost, unconfirmed) = match measured.known.allows_loss() {
        true => (0, 0),
        // Faults cost deliveries; each must have its cause.
        false if has_faults => (
            measured.losses.by_mistake(keeps_history),
            totals.unconfirmed,
        ),
        false => (totals.lost, totals.unconfirmed),
    };
    let send_errors = match has_faults {
        true => 0,
        false => measured.known.total_send_errors,
    };
    let reordered = match step.pattern {
        // Requests may be answered in any order.
        Pattern::Request => 0,
        _ => totals.reordered,
    };
    let mut problems = crate::format::counted(&[
        (lost, lost_text(has_faults, keeps_history)),
        (unconfirmed, unconfirmed_text(step.pattern)),
        (
            totals.receivers_unresolved,
            "receivers got a wrong set of messages",
        ),
        (totals.corrupt, "messages arrived corrupt"),
        (totals.duplicated, "messages arrived more than once"),
        (reordered, "messages arrived out of order"),
        (totals.invented, "messages arrived that were never sent"),
        (totals.foreign, "messages arrived that belong elsewhere"),
        (
            measured.known.total_login_failures,
            "agents could not connect or log in",
        ),
        (send_errors, "messages could not be sent"),
    ]);
    if measured.known.total_sent == 0 {
        problems.push("nothing was sent".to_owned());
    }
    if !totals.is_conserved() {
        problems.push(format!(
            "the ledger does not close, a fault of the instrument: {totals:?}"
        ));
    }
    problems.extend(measured.known.problems.iter().cloned());
    problems
}

fn lost_text(has_faults: bool, keeps_history: bool) -> &'static str {
    match (has_faults, keeps_history) {
        (true, true) => "expected deliveries were lost that the history should have brought",
        (true, false) => {
            "expected deliveries were lost that no fault explains and no gap announced"
        }
        (false, _) => "expected deliveries were lost",
    }
}

/// Unconfirmed messages, with their reason and what would let them be known.
fn unconfirmed_text(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Ingest => {
            "expected deliveries are unconfirmed: the server did not say whether it has them (a longer drain_ms gives it \
             more time)"
        }
        _ => {
            "expected deliveries are unconfirmed: they may still have been on their way at the end (a longer drain_ms \
             waits for them)"
        }
    }
}

fn notes(measured: &StepMeasurements) -> Vec<String> {
    let totals = &measured.totals;
    let mut notes = Vec::new();
    if totals.unconfirmed > 0 && measured.known.allows_loss() {
        notes.push(format!(
            "{} expected deliveries are unconfirmed; the limits are judged as if they were lost",
            crate::format::thousands(totals.unconfirmed)
        ));
    }
    if totals.receivers_tracked < totals.receivers {
        notes.push(format!(
            "the fate of every message is known for {} of {} receivers, an even sample; the others were \
             checked by count and checksum",
            totals.receivers_tracked, totals.receivers
        ));
    }
    if totals.given_up > 0 {
        notes.push(format!(
            "{} lost messages had more gaps open beside them than are kept; had one arrived later, it would \
             have counted as duplicated",
            crate::format::thousands(totals.given_up)
        ));
    }
    notes.extend(measured.known.notes.iter().cloned());
    notes
}
