//! From what a step measured to the details of its report: windows, distributions, cost, verdict, limits.

use super::outcome::Outcome;
use super::step::SteadyWindow;
use super::verdict::{ClosedLoop, Evidence, Lateness, judge};
use super::watch::Watch;
use crate::agents::StepPlan;
use crate::exchange::{StepLink, Times};
use crate::format::{counted, thousands};
use crate::lane_account::LaneAccount;
use crate::report::{
    Cost, Distribution, FaultFigures, LaneCost, ProcessFigures, ServerUsage, SloReport, StepDetail,
    StepTimes, Verdict, Window, WorkCounts, Workload,
};
use crate::scenario::{Guard, Load, Pattern, history_limits};

/// Everything that is known when a step has ended.
pub(super) struct StepFacts<'s, 'p> {
    pub(super) plan: &'s StepPlan,
    pub(super) guard: Guard,
    pub(super) link: &'s StepLink,
    pub(super) lanes: usize,
    pub(super) steady: SteadyWindow,
    pub(super) outcome: &'s Outcome,
    pub(super) times: &'s Times,
    pub(super) watch: &'s mut Watch<'p>,
    pub(super) server: &'s ServerUsage,
    pub(super) processes: Vec<ProcessFigures>,
    pub(super) faults: Vec<FaultFigures>,
}

impl StepFacts<'_, '_> {
    pub(super) fn detail(self, notes: &mut Vec<String>) -> StepDetail {
        let step = &self.plan.step;
        let counts = self.counts();
        let cost = self.cost();
        let times = self.step_times(&counts);
        let verdict = self.verdict(&cost, times.scheduled.missing);
        let stationary = self.watch.is_stationary();
        self.note(&counts, stationary, notes);
        let totals = &self.outcome.totals;
        let fates = [totals.expected, totals.delivered, totals.unconfirmed];
        let mut slo = SloReport::judge(&step.slo, &times.scheduled.slo_figures(fates));
        if !self.plan.segment.is_whole() {
            // Judged once, on the whole, when the parts are merged.
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
            series: std::mem::take(&mut self.watch.series),
            worst_receivers: self.outcome.worst_receivers.clone(),
            slow_receivers: self.outcome.slow,
            fan_out_share: self.outcome.fan_out_share.clone(),
            processes: self.processes,
            faults: self.faults,
            losses: (totals.lost > 0 && step.pattern.is_fan_out()).then_some(self.outcome.losses),
            runs: Vec::new(),
        }
    }

    fn counts(&self) -> WorkCounts {
        let counts = &self.outcome.counts;
        WorkCounts {
            steady_expected: counts.work.steady_offered * self.receivers(),
            steady_on_time: Some(counts.steady_on_time),
            ..counts.work
        }
    }

    /// Receivers that each message owes a delivery.
    fn receivers(&self) -> u64 {
        let logins = self.link.normal_logins();
        match self.plan.step.pattern {
            Pattern::Chat => logins.saturating_sub(1),
            Pattern::PubSub => logins,
            Pattern::Ingest => 0,
            Pattern::Echo | Pattern::Request => 1,
        }
    }

    fn step_times(&self, counts: &WorkCounts) -> StepTimes {
        let times = self.times;
        // Every message that was due in the window and did not come is missing, also one that was never sent.
        let missing = if self.plan.is_windowed {
            counts
                .steady_expected
                .saturating_sub(times.scheduled.count())
        } else {
            self.outcome.totals.lost + self.outcome.totals.unconfirmed
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
        let Some((account_before, account)) = self.watch.steady_accounts() else {
            return Cost::default();
        };
        let (began, ended) = (account_before.usage, account.usage);
        let secs = self.steady.length.as_secs_f64();
        let client_secs = ended.client_secs_since(&began);
        let server_secs = ended.server_secs_since(&began);
        let percent_of = |cpu_secs: Option<f64>, lanes: f64| {
            let cpu_secs = cpu_secs.filter(|_| secs > 0.0)?;
            Some(cpu_secs / (secs * lanes.max(1.0)) * 100.0)
        };
        let lanes = self.lanes.min(self.plan.step.concurrency as usize) as f64;
        let nodes = self.plan.targets.len() as f64;
        let server_lanes = nodes * f64::from(self.server.lanes.unwrap_or(1));
        let work = &self.outcome.counts.work;
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
            steal_pct: ended.stolen_pct_since(&began),
            client_lanes: of_lanes(
                Some(account.client_lanes),
                Some(account_before.client_lanes),
            ),
            server_lanes: of_lanes(account.server_lanes, account_before.server_lanes),
        }
    }

    fn verdict(&self, cost: &Cost, missing: u64) -> Verdict {
        let times = self.times;
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
            false => self.outcome.counts.send_errors,
        };
        let evidence = Evidence {
            client_cpu_pct: cost.client_cpu_pct,
            server_cpu_pct: cost.server_cpu_pct,
            lateness: Lateness::of(lag, &times.scheduled, missing).filter(|_| !is_max),
            tail_lateness: Lateness::of_tail(lag, &times.scheduled, missing)
                .filter(|_| !is_max && self.plan.step.slo.p999_ms.is_some()),
            offered: self.outcome.counts.work.steady_offered,
            on_time: self.outcome.counts.steady_on_time + excused,
            overdue: self.outcome.counts.steady_overdue,
            closed: self.closed_loop(),
            steal_pct: cost.steal_pct,
        };
        judge(&evidence, &self.plan.step, &self.guard)
    }

    fn closed_loop(&self) -> Option<ClosedLoop> {
        let step = &self.plan.step;
        let Load::Closed { think_time_ms } = &step.load else {
            return None;
        };
        if !step.faults.is_empty() || self.link.disconnects.get() > 0 {
            // Agents without a connection go round no loop.
            return None;
        }
        let secs = self.steady.length.as_secs_f64();
        let counts = &self.outcome.counts;
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
        let agents = self.link.normal_logins();
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

    /// The problem that a step has if the server's slowness kept messages of an open step from being sent in time. The
    /// load was then not the one that the scenario asks for, whatever became of the messages that were sent.
    pub(super) fn held_back(&self) -> Option<String> {
        let counts = &self.outcome.counts;
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
