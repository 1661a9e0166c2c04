//! Judges whether a measurement is valid, with the reasons in words.
//! A load generator that is itself the bottleneck measures itself, and its figures do not show it. So the figures
//! about the generator are judged before those about the server. All functions are pure, from facts to reasons.

use crate::format::thousands;
use crate::report::Verdict;
use crate::scenario::{Guard, OnViolation};

/// The evidence about the measurement itself. A field is `None` where it could not be known or does not apply.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    /// Processor time of the instrument, in percent of the cores of its lanes.
    pub(super) client_cpu_pct: Option<f64>,
    /// Processor time of the server, in percent of the cores of its lanes.
    pub(super) server_cpu_pct: Option<f64>,
    /// 99th percentile of how late the instrument was, waiting for places left out, in milliseconds.
    pub(super) client_lag_p99_ms: Option<f64>,
    /// 99th percentile of the end-to-end times, in milliseconds.
    pub(super) latency_p99_ms: Option<f64>,
    /// Messages that were due in the steady window.
    pub(super) offered: u64,
    /// Messages of `offered` that were sent before the window ended.
    pub(super) on_time: u64,
    /// Messages of `offered` that were not sent at all, although only the instrument was the reason.
    pub(super) overdue: u64,
    pub(super) closed: Option<ClosedLoop>,
    /// Time that the machine's host took, in percent.
    pub(super) steal_pct: Option<f64>,
}

/// The figures that Little's law relates.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedLoop {
    pub(super) agents: f64,
    /// Messages a second that went round.
    pub(super) throughput: f64,
    /// Mean time for a round without thinking, in seconds.
    pub(super) response_secs: f64,
    /// Mean think time, in seconds.
    pub(super) think_secs: f64,
    /// Rounds this was found from.
    pub(super) rounds: u64,
}

pub(super) fn judge(evidence: &Evidence, guard: &Guard) -> Verdict {
    let reasons = [
        client_cpu(evidence, guard),
        client_lag(evidence),
        overdue(evidence).or_else(|| shortfall(evidence)),
        evidence.closed.and_then(littles_law),
        steal(evidence),
    ];
    Verdict {
        reasons: reasons.into_iter().flatten().collect(),
        enforced: guard.on_violation == OnViolation::Invalid,
    }
}

fn client_cpu(evidence: &Evidence, guard: &Guard) -> Option<String> {
    let used = evidence.client_cpu_pct?;
    let allowed = guard.max_client_cpu_pct;
    (used > allowed).then(|| {
        format!(
            "the instrument used {used:.0} % of its cores, allowed are {allowed:.0} %: give it more lanes or cores, or \
             offer less"
        )
    })
}

fn client_lag(evidence: &Evidence) -> Option<String> {
    let lag_ms = evidence.client_lag_p99_ms?;
    let share_ms = evidence.latency_p99_ms.unwrap_or(0.0) * LAG_SHARE_MAX;
    let allowed_ms = share_ms.max(LAG_MS_MIN);
    (lag_ms > allowed_ms).then(|| {
        format!(
            "the instrument sent late (p99 {lag_ms:.1} ms, allowed are {allowed_ms:.1} ms): it was overdriven or its \
             machine busy"
        )
    })
}

/// A message that had a slot and was never sent is the fault of the instrument, however slow the server was.
fn overdue(evidence: &Evidence) -> Option<String> {
    let (offered, overdue) = (evidence.offered as f64, evidence.overdue as f64);
    (offered >= OFFERED_MIN && overdue > offered * (1.0 - ACHIEVED_MIN)).then(|| {
        format!(
            "{} of {} offered messages were due and never sent, though there was a place for them: the instrument was \
             overdriven",
            thousands(evidence.overdue),
            thousands(evidence.offered)
        )
    })
}

fn shortfall(evidence: &Evidence) -> Option<String> {
    let (offered, sent) = (evidence.offered as f64, evidence.on_time as f64);
    let idle = evidence.server_cpu_pct? < SERVER_IDLE_PCT;
    (idle && offered >= OFFERED_MIN && sent < offered * ACHIEVED_MIN).then(|| {
        format!(
            "{:.1} % of the offered messages were sent in time while the server idled: the instrument, or its window, \
             held the load back",
            sent / offered * 100.0
        )
    })
}

/// N = X · (R + Z): agents are either on their way or thinking, and there are no others.
fn littles_law(closed: ClosedLoop) -> Option<String> {
    if closed.rounds < ROUNDS_MIN {
        return None;
    }
    let found = closed.throughput * (closed.response_secs + closed.think_secs);
    let off = found / closed.agents - 1.0;
    (off.abs() > LAW_SHARE_MAX).then(|| {
        format!(
            "the closed loop breaks Little's law: {:.0} agents, but rate × (response + think time) makes {found:.1} \
             ({:+.1} %)",
            closed.agents,
            off * 100.0
        )
    })
}

fn steal(evidence: &Evidence) -> Option<String> {
    let stolen = evidence.steal_pct?;
    (stolen > STEAL_PCT_MAX).then(|| {
        format!(
            "the machine's host took {stolen:.1} % of its time away: measure on a quieter machine"
        )
    })
}

/// Lateness below this is the resolution of sleeping, in milliseconds.
const LAG_MS_MIN: f64 = 1.0;

/// Lateness above this share of the p99 changes the result.
const LAG_SHARE_MAX: f64 = 0.1;

/// Share of the offered messages that must be sent.
const ACHIEVED_MIN: f64 = 0.99;

/// Offered messages below which a hundredth is less than one.
const OFFERED_MIN: f64 = 100.0;

/// A server below this has room for more, in percent.
const SERVER_IDLE_PCT: f64 = 50.0;

/// How far a closed loop may be from Little's law.
const LAW_SHARE_MAX: f64 = 0.05;

/// Rounds below which chance alone may move a rate by a few percent.
const ROUNDS_MIN: u64 = 1_000;

/// Stolen time from which figures are the host's, in percent.
const STEAL_PCT_MAX: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Evidence {
        Evidence {
            client_cpu_pct: Some(60.0),
            server_cpu_pct: Some(30.0),
            client_lag_p99_ms: Some(0.9),
            latency_p99_ms: Some(5.0),
            offered: 10_000,
            on_time: 9_950,
            overdue: 0,
            closed: Some(ClosedLoop {
                agents: 500.0,
                throughput: 3_076.9,
                response_secs: 0.1625,
                think_secs: 0.0,
                rounds: 5_000,
            }),
            steal_pct: Some(0.1),
        }
    }

    fn reasons(spoil: impl FnOnce(&mut Evidence)) -> Vec<String> {
        let mut evidence = good();
        spoil(&mut evidence);
        judge(&evidence, &Guard::default()).reasons
    }

    fn assert_only(spoil: impl FnOnce(&mut Evidence), told: &str) {
        let reasons = reasons(spoil);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(reasons[0].contains(told), "{reasons:?}");
    }

    #[test]
    fn a_good_measurement_and_one_that_nothing_is_known_of_are_valid() {
        assert!(judge(&good(), &Guard::default()).is_valid());
        assert!(judge(&Evidence::default(), &Guard::default()).is_valid());
    }

    #[test]
    fn each_reason_is_found_by_itself() {
        assert_only(
            |evidence| evidence.client_cpu_pct = Some(80.1),
            "80 % of its cores",
        );
        assert_only(
            |evidence| evidence.client_lag_p99_ms = Some(1.1),
            "sent late (p99 1.1 ms",
        );
        assert_only(|evidence| evidence.on_time = 9_899, "99.0 % of the offered");
        assert_only(|evidence| evidence.steal_pct = Some(2.5), "2.5 %");
        let slower = |evidence: &mut Evidence| {
            if let Some(closed) = &mut evidence.closed {
                // A report that divides the time by the count gives 0.325 ms in place of 162.
                closed.response_secs = 0.000_325;
            }
        };
        assert_only(slower, "Little's law");
    }

    #[test]
    fn lateness_is_judged_against_what_is_measured() {
        let slow = |evidence: &mut Evidence| {
            evidence.client_lag_p99_ms = Some(9.0);
            evidence.latency_p99_ms = Some(100.0);
        };
        assert_eq!(reasons(slow), Vec::<String>::new());
    }

    #[test]
    fn a_busy_server_explains_a_shortfall_and_few_messages_show_none() {
        let busy = |evidence: &mut Evidence| {
            evidence.on_time = 5_000;
            evidence.server_cpu_pct = Some(97.0);
        };
        assert_eq!(reasons(busy), Vec::<String>::new());
        let few = |evidence: &mut Evidence| (evidence.offered, evidence.on_time) = (50, 40);
        assert_eq!(reasons(few), Vec::<String>::new());
    }

    #[test]
    fn what_had_a_place_and_was_never_sent_speaks_against_the_instrument() {
        let overdriven = |evidence: &mut Evidence| {
            (evidence.on_time, evidence.overdue) = (9_000, 1_000);
            // A busy server is no excuse for it.
            evidence.server_cpu_pct = Some(97.0);
        };
        assert_only(
            overdriven,
            "1,000 of 10,000 offered messages were due and never sent",
        );
    }

    #[test]
    fn a_warning_is_not_enforced() {
        let guard = Guard {
            max_client_cpu_pct: 10.0,
            on_violation: OnViolation::Warn,
        };
        let verdict = judge(&good(), &guard);
        assert_eq!((verdict.name(), verdict.enforced), ("INVALID", false));
    }
}
