//! Judges whether a measurement is valid, with the reasons in words.
//! A load generator that is itself the bottleneck measures itself, and its figures do not show it. So the figures
//! about the generator are judged before those about the server. All functions are pure, from facts to reasons.

use crate::format::{milliseconds, thousands};
use crate::report::Verdict;
use crate::scenario::{Guard, OnViolation, Step};
use crate::statistics::{LatencyHistogram, Percentile, Quantile};

/// The evidence about the measurement itself. A field is `None` where it could not be known or does not apply.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    /// Processor time of the instrument, in percent of the cores of its lanes.
    pub(crate) client_cpu_pct: Option<f64>,
    /// Processor time of the server, in percent of the cores of its lanes.
    pub(crate) server_cpu_pct: Option<f64>,
    /// How late the instrument was.
    pub(crate) lateness: Option<Lateness>,
    /// The same at the 99.9th percentile, if the step has a limit there.
    pub(crate) tail_lateness: Option<Lateness>,
    /// Messages that were due in the steady window.
    pub(crate) offered: u64,
    /// Messages of `offered` that were sent before the window ended.
    pub(crate) on_time: u64,
    /// Messages of `offered` that were not sent at all, although only the instrument was the reason.
    pub(crate) overdue: u64,
    pub(crate) closed: Option<ClosedLoop>,
    /// Time that the machine's host took, in percent.
    pub(crate) steal_pct: Option<f64>,
}

/// How late the instrument sent, at one quantile, and how long messages took there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Lateness {
    /// The quantile in words.
    quantile: &'static str,
    /// Lateness of the instrument, waits for places left out, in milliseconds.
    lag_ms: f64,
    /// End-to-end time, in milliseconds; `None` where nothing comes back.
    latency_ms: Option<f64>,
}

impl Lateness {
    /// The lateness at the 99th percentile. With too few messages for it, or where so many are `missing` that it is
    /// infinite, that at the highest quantile below it which is known; with fewer messages than a median needs, the
    /// largest lateness. Nothing if no message was sent, or if the end-to-end time is infinite at all of them, because
    /// no lateness falsifies that.
    pub(crate) fn of(
        lag: &LatencyHistogram,
        latency: &LatencyHistogram,
        missing: u64,
    ) -> Option<Self> {
        let at = |(quantile, name)| Self::at(quantile, name, (lag, latency, missing));
        JUDGED.into_iter().find_map(at).or_else(|| {
            let is_small = lag.count() < Quantile::P50.samples_needed() && missing == 0;
            let largest = lag.summary().filter(|_| is_small)?;
            Some(Self {
                quantile: "at most",
                lag_ms: largest.max_ms,
                latency_ms: latency.summary().map(|latency| latency.max_ms),
            })
        })
    }

    /// The lateness at the 99.9th percentile, if it is known.
    pub(crate) fn of_tail(
        lag: &LatencyHistogram,
        latency: &LatencyHistogram,
        missing: u64,
    ) -> Option<Self> {
        Self::at(Quantile::P999, "p99.9", (lag, latency, missing))
    }

    fn at(
        quantile: Quantile,
        name: &'static str,
        (lag, latency, missing): (&LatencyHistogram, &LatencyHistogram, u64),
    ) -> Option<Self> {
        let known = |histogram, missing| match Percentile::of(histogram, missing, quantile) {
            Percentile::Known { ms } | Percentile::Above { ms } => Some(ms),
            Percentile::Infinite | Percentile::TooFew { .. } => None,
        };
        let comes_back = latency.count() + missing > 0;
        Some(Self {
            quantile: name,
            lag_ms: known(lag, 0)?,
            latency_ms: match comes_back {
                true => Some(known(latency, missing)?),
                false => None,
            },
        })
    }
}

/// The figures that Little's law relates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClosedLoop {
    pub(crate) agents: f64,
    /// Messages a second that went round.
    pub(crate) throughput: f64,
    /// Mean time for a round without thinking, in seconds.
    pub(crate) response_secs: f64,
    /// Rounds a second that ended without a reply: after the timeout, with an error, or with the connection.
    pub(crate) unanswered: f64,
    /// Agents that waited in such rounds, on average.
    pub(crate) waiting_in_vain: f64,
    /// Mean think time, in seconds.
    pub(crate) think_secs: f64,
    /// Rounds this was found from.
    pub(crate) rounds: u64,
}

/// Judges the measurement of a step. A load that was not the one of the schedule makes it INVALID. A busy machine makes
/// times longer and leaves the counts of messages and a given rate as they are, so that it makes a step INVALID only if
/// the step asks for more than these; any other step it disturbs.
pub(crate) fn judge(evidence: &Evidence, step: &Step, guard: &Guard) -> Verdict {
    let busy = [
        client_cpu(evidence, guard),
        (evidence.lateness.and_then(late)).or_else(|| evidence.tail_lateness.and_then(late)),
        steal(evidence),
    ];
    let untrue = [
        overdue(evidence).or_else(|| shortfall(evidence)),
        evidence.closed.and_then(littles_law),
    ];
    let mut verdict = Verdict {
        reasons: untrue.into_iter().flatten().collect(),
        disturbances: busy.into_iter().flatten().collect(),
        enforced: guard.on_violation == OnViolation::Invalid,
    };
    if verdict.enforced || rests_on_times(step) {
        let disturbances = std::mem::take(&mut verdict.disturbances);
        verdict.reasons.splice(0..0, disturbances);
    }
    verdict
}

/// Whether the result of a step depends on times: it has a limit on them, or its rate follows from them.
fn rests_on_times(step: &Step) -> bool {
    step.slo.limits_times() || step.offered_tps().is_none()
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

fn late(lateness: Lateness) -> Option<String> {
    let share_ms = lateness.latency_ms.unwrap_or(0.0) * LAG_SHARE_MAX;
    let allowed_ms = share_ms.max(LAG_MS_MIN);
    (lateness.lag_ms > allowed_ms).then(|| {
        let [lag, allowed] = [lateness.lag_ms, allowed_ms].map(milliseconds);
        format!(
            "the instrument sent late ({} {lag} ms, allowed are {allowed} ms): it was overdriven or its machine busy",
            lateness.quantile
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

/// N = X · (R + Z): agents are either on their way or thinking, and there are no others. A round without a reply lasts
/// until it is given up, and the agent thinks after it like after any other.
fn littles_law(closed: ClosedLoop) -> Option<String> {
    if closed.rounds < ROUNDS_MIN {
        return None;
    }
    let found = closed.throughput * (closed.response_secs + closed.think_secs)
        + closed.unanswered * closed.think_secs
        + closed.waiting_in_vain;
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

/// The quantiles at which lateness is judged, of which the first that is known decides.
const JUDGED: [(Quantile, &str); 4] = [
    (Quantile::P99, "p99"),
    (Quantile::P95, "p95"),
    (Quantile::P90, "p90"),
    (Quantile::P50, "p50"),
];

/// Lateness below this is the resolution of sleeping, in milliseconds.
const LAG_MS_MIN: f64 = 1.0;

/// Lateness above this share of the end-to-end time changes the result.
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
    use crate::scenario::{Load, ThinkTime};

    fn lateness(lag_ms: f64, latency_ms: Option<f64>) -> Lateness {
        Lateness {
            quantile: "p99",
            lag_ms,
            latency_ms,
        }
    }

    fn of_milliseconds(counts: &[(u64, u64)]) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::new();
        for (ms, count) in counts {
            histogram.record_many(ms * 1_000_000, *count);
        }
        histogram
    }

    fn good() -> Evidence {
        Evidence {
            client_cpu_pct: Some(60.0),
            server_cpu_pct: Some(30.0),
            lateness: Some(lateness(0.9, Some(5.0))),
            tail_lateness: None,
            offered: 10_000,
            on_time: 9_950,
            overdue: 0,
            closed: Some(ClosedLoop {
                agents: 500.0,
                throughput: 3_076.9,
                response_secs: 0.1625,
                unanswered: 0.0,
                waiting_in_vain: 0.0,
                think_secs: 0.0,
                rounds: 5_000,
            }),
            steal_pct: Some(0.1),
        }
    }

    fn reasons(spoil: impl FnOnce(&mut Evidence)) -> Vec<String> {
        let mut evidence = good();
        spoil(&mut evidence);
        judge(&evidence, &given_rate(), &Guard::default()).reasons
    }

    /// A step of which only the counts of messages and a given rate are asked.
    fn given_rate() -> Step {
        Step::chat("step", 2, 1.0, ThinkTime::NONE)
    }

    fn assert_only(spoil: impl FnOnce(&mut Evidence), told: &str) {
        let reasons = reasons(spoil);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(reasons[0].contains(told), "{reasons:?}");
    }

    #[test]
    fn a_good_measurement_and_one_that_nothing_is_known_of_are_valid() {
        for evidence in [good(), Evidence::default()] {
            let verdict = judge(&evidence, &given_rate(), &Guard::default());
            assert_eq!(verdict.name(), "VALID");
        }
    }

    #[test]
    fn each_reason_is_found_by_itself() {
        assert_only(
            |evidence| evidence.client_cpu_pct = Some(80.1),
            "80 % of its cores",
        );
        assert_only(
            |evidence| evidence.lateness = Some(lateness(1.1, Some(5.0))),
            "sent late (p99 1.10 ms, allowed are 1.00 ms)",
        );
        // Where nothing comes back there is nothing that the lateness could be a share of.
        assert_only(
            |evidence| evidence.lateness = Some(lateness(1.1, None)),
            "sent late (p99 1.10 ms",
        );
        assert_only(
            |evidence| evidence.tail_lateness = Some(lateness(1.1, Some(5.0))),
            "sent late",
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
        let slow = |evidence: &mut Evidence| evidence.lateness = Some(lateness(9.0, Some(100.0)));
        assert_eq!(reasons(slow), Vec::<String>::new());
    }

    #[test]
    fn an_instrument_that_stands_still_is_found_with_few_messages_too() {
        let server = |count| of_milliseconds(&[(1, count)]);
        // 100 messages a second for 8 s, and the instrument stands still for 1.5 s of them.
        let frozen = Lateness::of(&of_milliseconds(&[(0, 650), (750, 150)]), &server(800), 0);
        assert!(late(frozen.unwrap()).unwrap().contains("p95 750 ms"));
        for (count, quantile) in [
            (1_000, "p99"),
            (999, "p95"),
            (199, "p90"),
            (99, "p50"),
            (19, "at most"),
        ] {
            let found = Lateness::of(&of_milliseconds(&[(2, count)]), &server(count), 0);
            assert_eq!(found.unwrap().quantile, quantile, "{count} messages");
            assert!(late(found.unwrap()).is_some());
        }
        assert_eq!(Lateness::of(&of_milliseconds(&[]), &server(0), 9), None);
    }

    #[test]
    fn an_outage_of_the_server_does_not_speak_against_the_instrument() {
        let lag = of_milliseconds(&[(0, 950), (36, 50)]);
        // Two in a hundred are lost, so the p99 is infinite, and no lateness falsifies that.
        let lossy = Lateness::of(&lag, &of_milliseconds(&[(37, 980)]), 20).unwrap();
        assert_eq!((lossy.quantile, late(lossy)), ("p95", None));
        let stopped = Lateness::of(&lag, &of_milliseconds(&[(1, 460)]), 540);
        assert_eq!(stopped, None);
        // Lateness that moves what the loss leaves known still counts.
        let late_too = Lateness::of(
            &of_milliseconds(&[(36, 1_000)]),
            &of_milliseconds(&[(37, 980)]),
            20,
        );
        assert!(late(late_too.unwrap()).is_some());
    }

    #[test]
    fn littles_law_knows_time_outs() {
        // Sixteen agents; in 5 s, 47 of their 80 agent-seconds pass in waits for lost replies.
        let closed = ClosedLoop {
            agents: 16.0,
            throughput: 260.0,
            response_secs: 0.005_4,
            unanswered: 3.2,
            waiting_in_vain: 9.4,
            think_secs: 0.02,
            rounds: 1_300,
        };
        assert_eq!(littles_law(closed), None);
        let forgotten = ClosedLoop {
            unanswered: 0.0,
            waiting_in_vain: 0.0,
            ..closed
        };
        assert!(littles_law(forgotten).unwrap().contains("16 agents"));
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
    fn a_busy_machine_disturbs_a_step_and_is_invalid_where_times_decide() {
        let guard = |on_violation| Guard {
            max_client_cpu_pct: 10.0,
            on_violation,
        };
        let name = |step: &Step, on_violation| {
            let verdict = judge(&good(), step, &guard(on_violation));
            assert_eq!(verdict.reasons.len() + verdict.disturbances.len(), 1);
            (verdict.name(), verdict.enforced)
        };
        let mut step = given_rate();
        assert_eq!(name(&step, OnViolation::Warn), ("DISTURBED", false));
        assert_eq!(name(&step, OnViolation::Invalid), ("INVALID", true));
        step.slo.loss_pct = Some(1.0);
        assert_eq!(name(&step, OnViolation::Warn), ("DISTURBED", false));
        step.slo.p99_ms = Some(1.0);
        assert_eq!(name(&step, OnViolation::Warn), ("INVALID", false));
        // The rate of a step that sends as fast as it can is that of the instrument.
        let as_fast = Step {
            load: Load::Max,
            ..given_rate()
        };
        assert_eq!(name(&as_fast, OnViolation::Warn), ("INVALID", false));
    }

    #[test]
    fn a_load_that_was_not_offered_is_invalid_though_nothing_is_enforced() {
        let guard = Guard {
            on_violation: OnViolation::Warn,
            ..Guard::default()
        };
        let mut evidence = good();
        (evidence.on_time, evidence.steal_pct) = (9_000, Some(9.0));
        let verdict = judge(&evidence, &given_rate(), &guard);
        assert_eq!(verdict.name(), "INVALID");
        assert!(
            verdict.disturbances[0].contains("took 9.0 %"),
            "{verdict:?}"
        );
    }
}
