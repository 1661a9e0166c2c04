//! From what a step measured to its report: windows, distributions, cost, verdict, limits.

use super::verdict::{ClosedLoop, Evidence, Lateness, judge};
use super::{Phase, StepFacts};
use crate::format::{counted, thousands};
use crate::lane_account::LaneAccount;
use crate::report::{
    ClientUsage, Cost, Distribution, LaneCost, Percentile, SloReport, StepDetail, StepMeasurements,
    StepReport, StepTimes, Verdict, Window, WorkCounts, Workload,
};
use crate::scenario::{Load, Pattern, history_limits};
use crate::statistics::Quantile;

impl StepFacts {
    /// The report of the step.
    pub fn judge(&self) -> StepReport {
        let mut problems = [&self.accounts.problems[..], &self.problems].concat();
        let mut notes = [&self.notes[..], &self.accounts.notes].concat();
        problems.extend(self.held_back());
        let detail = self.detail(&mut notes);
        let (accounts, times) = (&self.accounts, &self.times);
        let known = StepReport {
            test_duration_secs: self.secs,
            total_sent: accounts.sent,
            total_login_failures: self.login_failures,
            total_send_errors: accounts.counts.send_errors,
            latency: times.scheduled.summary(),
            latency_send: times.write.summary(),
            server: self.server.clone(),
            client: ClientUsage {
                cpu_secs: self.client_cpu_secs,
                send_lag_p99_ms: Percentile::of(&times.send_lag, 0, Quantile::P99).as_ms(),
            },
            problems,
            notes,
            detail: Box::new(detail),
            ..StepReport::default()
        };
        let measured = StepMeasurements {
            known,
            logged_in: self.logins,
            totals: accounts.totals,
            losses: accounts.losses,
        };
        StepReport::from_measurements(&self.plan.step, measured)
    }

    fn detail(&self, notes: &mut Vec<String>) -> StepDetail {
        let step = &self.plan.step;
        let counts = self.counts();
        let cost = self.cost();
        let times = self.step_times(&counts);
        let verdict = self.verdict(&cost, times.scheduled.missing);
        let stationary = self.is_stationary();
        self.note(&counts, stationary, notes);
        let totals = &self.accounts.totals;
        let fates = [totals.expected, totals.delivered, totals.unconfirmed];
        let mut slo = SloReport::judge(&step.slo, &times.scheduled.slo_figures(fates));
        // Parts are judged once, on the whole, when they are merged. A step that failed before its end has measured
        // nothing.
        if !self.plan.segment.is_whole() || self.secs == 0.0 {
            slo.violations.clear();
        }
        StepDetail {
            workload: Workload {
                history: self.plan.history.as_ref().map(history_limits),
                in_flight_allowed: step
                    .pattern
                    .has_replies()
                    .then(|| u64::from(self.plan.window()) * u64::from(step.concurrency)),
                ..Workload::of(step)
            },
            counts,
            window: Window {
                warmup_secs: self.steady.warm_up.as_secs_f64(),
                steady_secs: self.steady.length.as_secs_f64(),
                stationary,
                latencies_are_steady: self.plan.is_windowed,
            },
            times,
            cost,
            verdict,
            slo,
            series: self.series.clone(),
            worst_receivers: self.accounts.worst_receivers.clone(),
            slow_receivers: self.accounts.slow,
            fan_out_share: self.accounts.fan_out_share.clone(),
            processes: self.processes.clone(),
            faults: self.faults.clone(),
            losses: (totals.lost > 0 && step.pattern.is_fan_out()).then_some(self.accounts.losses),
            runs: Vec::new(),
        }
    }

    fn counts(&self) -> WorkCounts {
        let counts = &self.accounts.counts;
        WorkCounts {
            steady_expected: counts.work.steady_offered * self.receivers(),
            steady_on_time: Some(counts.steady_on_time),
            ..counts.work
        }
    }

    /// Receivers that each message owes a delivery.
    fn receivers(&self) -> u64 {
        let logins = self.logins;
        match self.plan.step.pattern {
            Pattern::Ingest => 0,
            pattern => pattern.receivers(logins),
        }
    }

    fn step_times(&self, counts: &WorkCounts) -> StepTimes {
        let times = &self.times;
        // Every message that was due in the window and did not come is missing, also one that was never sent.
        let missing = if self.plan.is_windowed {
            counts
                .steady_expected
                .saturating_sub(times.scheduled.count())
        } else {
            self.accounts.totals.lost + self.accounts.totals.unconfirmed
        };
        // The time of the server is that of the messages that were sent, and each of them has a lag.
        let sent_and_owed = times.send_lag.count() * self.receivers();
        let unserved = sent_and_owed.saturating_sub(times.service.count());
        // How many of the missing ones would have crossed is not known of messages that were never sent.
        let has_across = times.across.count() > 0;
        let has_service = times.service.count() > 0;
        let has_client_lag = times.client_lag.count() > 0;
        StepTimes {
            scheduled: Distribution::of(&times.scheduled, missing),
            across: has_across.then(|| Distribution::of(&times.across, 0)),
            service: has_service.then(|| Distribution::of(&times.service, unserved)),
            send_lag: Distribution::of(&times.send_lag, 0),
            client_lag: has_client_lag.then(|| Distribution::of(&times.client_lag, 0)),
            write: Distribution::of(&times.write, 0),
        }
    }

    fn cost(&self) -> Cost {
        let Some((before, after)) = &self.steady_usage else {
            return Cost::default();
        };
        let (began, ended) = (&before.usage, &after.usage);
        let secs = self.steady.length.as_secs_f64();
        let client_secs = ended.client_secs_since(began);
        let server_secs = ended.server_secs_since(began);
        let percent_of = |cpu_secs: Option<f64>, lanes: f64| {
            let cpu_secs = cpu_secs.filter(|_| secs > 0.0)?;
            Some(cpu_secs / (secs * lanes.max(1.0)) * 100.0)
        };
        let lanes = self.plan.lanes as f64;
        let nodes = self.plan.targets.len() as f64;
        let server_lanes = nodes * f64::from(self.server.lanes.unwrap_or(1));
        let work = &self.accounts.counts.work;
        let messages = work.steady_sent + work.steady_received;
        // The kernel counts in ticks, and less than one of them is not nothing.
        let by_message = |cpu_secs: f64| {
            (messages > 0 && cpu_secs > 0.0).then(|| cpu_secs * 1e9 / messages as f64)
        };
        let of_lanes = |now: Option<LaneAccount>, before: Option<LaneAccount>| {
            LaneCost::of(&now?.since(&before?), messages)
        };
        Cost {
            client_cpu_pct: percent_of(client_secs, lanes),
            server_cpu_pct: percent_of(server_secs, server_lanes),
            client_ns_per_message: client_secs.and_then(by_message),
            server_ns_per_message: server_secs.and_then(by_message),
            steal_pct: ended.stolen_pct_since(began),
            client_lanes: of_lanes(Some(after.client_lanes), Some(before.client_lanes)),
            server_lanes: of_lanes(after.server_lanes, before.server_lanes),
        }
    }

    fn verdict(&self, cost: &Cost, missing: u64) -> Verdict {
        let times = &self.times;
        let lag = if self.plan.is_windowed {
            &times.client_lag
        } else {
            &times.send_lag
        };
        // A step that sends as fast as it can has no schedule to be late by.
        let is_max = matches!(self.plan.step.load, Load::Max);
        // Messages that an agent without a connection should send are no fault of the instrument.
        let excused = match self.plan.step.faults.is_empty() {
            true => 0,
            false => self.accounts.counts.send_errors,
        };
        let evidence = Evidence {
            client_cpu_pct: cost.client_cpu_pct,
            server_cpu_pct: cost.server_cpu_pct,
            lateness: Lateness::of(lag, &times.scheduled, missing).filter(|_| !is_max),
            tail_lateness: Lateness::of_tail(lag, &times.scheduled, missing)
                .filter(|_| !is_max && self.plan.step.slo.p999_ms.is_some()),
            offered: self.accounts.counts.work.steady_offered,
            on_time: self.accounts.counts.steady_on_time + excused,
            overdue: self.accounts.counts.steady_overdue,
            closed: self.closed_loop(),
            steal_pct: cost.steal_pct,
        };
        judge(&evidence, &self.plan.step, &self.plan.guard)
    }

    fn closed_loop(&self) -> Option<ClosedLoop> {
        let step = &self.plan.step;
        let Load::Closed { think_time_ms } = &step.load else {
            return None;
        };
        if !step.faults.is_empty() || self.disconnects > 0 {
            // Agents without a connection go round no loop.
            return None;
        }
        let secs = self.steady.length.as_secs_f64();
        let counts = &self.accounts.counts;
        // Agents that do not wait for replies are never on their way: they think, and send in no time.
        let waits = step.pattern.has_replies();
        let (rounds, response_ms) = if waits {
            // A reply that came after its round was given up belongs to no round.
            let rounds = counts.work.steady_received - counts.steady_late_replies;
            let mean_ms = self
                .times
                .scheduled
                .mean_ms_below(step.timeout_ms * 1_000_000);
            (rounds, mean_ms)
        } else {
            (counts.work.steady_sent, 0.0)
        };
        let agents = self.logins;
        (secs > 0.0 && agents > 0).then(|| ClosedLoop {
            agents: agents as f64,
            throughput: rounds as f64 / secs,
            response_secs: response_ms / 1e3,
            unanswered: counts.steady_unanswered as f64 / secs,
            waiting_in_vain: counts.steady_unanswered_ns as f64 / 1e9 / secs,
            think_secs: think_time_ms.mean_ms() / 1e3,
            rounds,
        })
    }

    /// Whether the last three whole seconds of the warm-up had the same median, within 2 %; nothing when there were
    /// fewer.
    fn is_stationary(&self) -> Option<bool> {
        let warm_up = Phase::WarmUp.name();
        let seconds = self.series.iter().filter(|second| second.phase == warm_up);
        let medians: Vec<f64> = seconds.filter_map(|second| second.p50_ms).collect();
        is_stationary(&medians)
    }

    /// The problem that a step has if the server's slowness kept messages of an open step from being sent in time. The
    /// load was then not the one that the scenario asks for, whatever became of the messages that were sent.
    fn held_back(&self) -> Option<String> {
        let counts = &self.accounts.counts;
        let (held, offered) = (counts.steady_held, counts.work.steady_offered);
        let is_meant = !self.plan.step.faults.is_empty();
        if is_meant || held as f64 <= offered as f64 * HELD_SHARE_MAX {
            return None;
        }
        let step = &self.plan.step;
        let [held, offered] = [held, offered].map(thousands);
        let window = thousands(self.plan.window().into());
        let why = if !step.pattern.has_replies() {
            "the server took no more from its connections".to_owned()
        } else if self.plan.window() < step.window() {
            format!(
                "the codec {} allows {window} unanswered messages an agent, and these were in use; use more agents, or a \
                 codec with longer ids",
                step.codec
            )
        } else {
            format!(
                "all {window} places of an agent for unanswered messages were in use (max_in_flight)"
            )
        };
        Some(format!(
            "{held} of {offered} messages that were due in the steady window could not be sent in it: {why}"
        ))
    }

    fn note(&self, counts: &WorkCounts, stationary: Option<bool>, notes: &mut Vec<String>) {
        let clipped = self.times.clipped();
        if clipped > 0 {
            notes.push(format!(
                "{} times beyond 120 s were clipped",
                thousands(clipped)
            ));
        }
        if stationary == Some(false) {
            notes.push(
                "not stationary: the medians of the last three seconds of the warm-up differ by more than 2 %"
                    .to_owned(),
            );
        }
        let drain_ms = self.plan.step.drain_ms;
        if counts.unsent > 0 {
            notes.push(format!(
                "{} messages were due and never sent: what is late is sent for drain_ms ({drain_ms} ms) after the end \
                 and no longer",
                thousands(counts.unsent)
            ));
        }
        notes.extend(counted(&[
            (
                counts.skipped,
                "messages were left out because they could not be sent in time",
            ),
            (counts.timeouts, "replies were given up after the timeout"),
            (
                counts.late_replies,
                "replies came after that and count as received",
            ),
            (counts.refused, "messages were answered with an error"),
            (
                counts.sent_unknown,
                "arrivals came too late for their sent time to be known",
            ),
        ]));
    }
}

/// Share of the messages due in the steady window that the server may hold back in a step that passes.
const HELD_SHARE_MAX: f64 = 0.01;

fn is_stationary(medians: &[f64]) -> Option<bool> {
    let last = medians.last_chunk::<3>()?;
    let least = last.iter().copied().fold(f64::INFINITY, f64::min);
    let most = last.iter().copied().fold(0.0, f64::max);
    Some(most <= least * STATIONARY_SHARE_MAX)
}

/// How far apart medians of seconds may be that are called the same.
const STATIONARY_SHARE_MAX: f64 = 1.02;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_equal_medians_are_stationary_and_a_drift_is_not() {
        assert_eq!(is_stationary(&[1.0, 1.0]), None);
        assert_eq!(is_stationary(&[9.0, 1.0, 1.01, 1.02]), Some(true));
        assert_eq!(is_stationary(&[1.0, 1.01, 1.03]), Some(false));
    }
}
