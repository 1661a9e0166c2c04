//! The coordinator's looks at a running step: about one a second, for whoever watches and for the report.

use std::sync::Arc;
use std::time::Duration;

use super::verdict::{Evidence, Lateness, judge};
use super::{Observer, Phase, Progress, RunOptions};
use crate::exchange::{StepLink, Times};
use crate::lane_account::LaneAccount;
use crate::process::{MachineSample, ProcessSample};
use crate::report::{ProcessFigures, Second, Verdict};
use crate::scenario::{Guard, Load, Pattern, Step};
use crate::schedule::Curve;

pub(super) struct Watch<'p> {
    step: &'p Step,
    options: &'p RunOptions,
    link: Arc<StepLink>,
    guard: Guard,
    curve: Option<Curve>,
    look: Look,
    /// Times since the last look.
    recent: Times,
    pub(super) series: Vec<Second>,
    steady_began: Option<Account>,
    steady_ended: Option<Account>,
}

/// The counters at the last look, to make rates of.
#[derive(Default)]
struct Look {
    at_ns: u64,
    at_secs: f64,
    sent: u64,
    received: u64,
    usage: Usage,
}

/// The resources that processes and machine have used up to now.
#[derive(Clone, Default)]
pub(super) struct Usage {
    client: Option<ProcessSample>,
    /// Samples of the processes that were started for the run; `None` for a process that cannot be read.
    processes: Vec<Option<ProcessSample>>,
    machine: Option<MachineSample>,
}

/// The resources that each side has used at an end of the steady window.
#[derive(Clone)]
pub(super) struct Account {
    pub(super) usage: Usage,
    pub(super) client_lanes: LaneAccount,
    pub(super) server_lanes: Option<LaneAccount>,
}

impl Account {
    fn now(options: &RunOptions, lanes: impl FnOnce() -> LaneAccount) -> Self {
        Self {
            usage: Usage::now(options),
            client_lanes: lanes(),
            server_lanes: server_lanes(options),
        }
    }
}

/// The account of the lanes of all servers, if each of them tells.
fn server_lanes(options: &RunOptions) -> Option<LaneAccount> {
    let mut accounts = options.processes.iter().map(|process| process.lanes());
    let first = accounts.next()??;
    accounts.try_fold(first, |sum, account| Some(sum.and(&account?)))
}

impl Usage {
    pub(super) fn now(options: &RunOptions) -> Self {
        Self {
            client: ProcessSample::of_self().ok(),
            processes: options.processes.iter().map(|it| it.usage()).collect(),
            machine: MachineSample::read(),
        }
    }

    pub(super) fn client_secs_since(&self, earlier: &Self) -> Option<f64> {
        Some(self.client?.cpu_secs_since(&earlier.client?))
    }

    /// The processor time of all processes that were started for the run, if each of them is known.
    pub(super) fn server_secs_since(&self, earlier: &Self) -> Option<f64> {
        let pairs = self.processes.iter().zip(&earlier.processes);
        let secs = pairs.map(|(now, before)| Some(now.as_ref()?.cpu_secs_since(before.as_ref()?)));
        secs.sum::<Option<f64>>()
            .filter(|_| !self.processes.is_empty())
    }

    /// The same of each, where there are several.
    pub(super) fn processes_since(
        &self,
        earlier: &Self,
        options: &RunOptions,
    ) -> Vec<ProcessFigures> {
        if self.processes.len() < 2 {
            return Vec::new();
        }
        let pairs = self.processes.iter().zip(&earlier.processes);
        let named = options.processes.iter().zip(pairs);
        let figures = named.map(|(process, (now, before))| ProcessFigures {
            name: process.name().to_owned(),
            cpu_secs: now
                .zip(*before)
                .map(|(now, before)| now.cpu_secs_since(&before)),
            rss_bytes_max: now.map(|now| now.rss_bytes_max),
        });
        figures.collect()
    }

    pub(super) fn stolen_pct_since(&self, earlier: &Self) -> Option<f64> {
        self.machine?.stolen_pct_since(&earlier.machine?)
    }

    /// Returns the peak resident memory of the process that has the largest.
    pub(super) fn server_rss_bytes_max(&self) -> u64 {
        let known = self.processes.iter().flatten();
        known
            .map(|process| process.rss_bytes_max)
            .max()
            .unwrap_or(0)
    }
}

impl<'p> Watch<'p> {
    pub(super) fn new(
        step: &'p Step,
        options: &'p RunOptions,
        link: Arc<StepLink>,
        guard: Guard,
    ) -> Self {
        let curve = match &step.load {
            Load::Open { stages, .. } => Some(Curve::new(stages)),
            _ => None,
        };
        Self {
            step,
            options,
            link,
            guard,
            curve,
            look: Look {
                at_ns: options.clock.now_ns(),
                ..Look::default()
            },
            recent: Times::default(),
            series: Vec::new(),
            steady_began: None,
            steady_ended: None,
        }
    }

    /// The barrier will open then; what was before is no part of any rate.
    pub(super) fn restart(&mut self, start_ns: u64) {
        self.look.at_ns = start_ns;
        self.look.usage = Usage::now(self.options);
        self.recent.clear();
    }

    /// Notes what both sides have used at the ends of the steady window; `lanes` says what those of the instrument did.
    pub(super) fn note_phase(&mut self, phase: Phase, lanes: impl FnOnce() -> LaneAccount) {
        let account = match phase {
            Phase::Steady => &mut self.steady_began,
            Phase::Drain => &mut self.steady_ended,
            Phase::Login | Phase::WarmUp => return,
        };
        if account.is_none() {
            *account = Some(Account::now(self.options, lanes));
        }
    }

    pub(super) fn steady_accounts(&self) -> Option<(Account, Account)> {
        Some((self.steady_began.clone()?, self.steady_ended.clone()?))
    }

    /// Takes what the lanes have recorded; once a second, looks.
    pub(super) fn look(&mut self, phase: Phase, observer: &mut dyn Observer) {
        self.link.collect_times(&mut self.recent);
        let secs = self.secs_since_look();
        if secs >= LOOK_SECS {
            self.look_now(phase, observer, secs);
        }
    }

    /// The rest of a second at the end of a step.
    pub(super) fn look_last(&mut self, observer: &mut dyn Observer) {
        self.link.collect_times(&mut self.recent);
        let secs = self.secs_since_look();
        let is_news = self.link.sent() > self.look.sent
            || self.link.received() > self.look.received
            || self.recent.scheduled.count() > 0;
        if secs > 0.0 && is_news {
            self.look_now(Phase::Drain, observer, secs);
        }
    }

    /// Before the barrier opens, the last look lies in the future.
    fn secs_since_look(&self) -> f64 {
        let now_ns = self.options.clock.now_ns();
        now_ns.saturating_sub(self.look.at_ns) as f64 / 1e9
    }

    fn look_now(&mut self, phase: Phase, observer: &mut dyn Observer, secs: f64) {
        let (step, options, link) = (self.step, self.options, Arc::clone(&self.link));
        let usage = Usage::now(options);
        let (sent, received) = (link.sent(), link.received());
        let now_ns = options.clock.now_ns();
        let start_ns = link.start_ns();
        let elapsed_ns = start_ns.map_or(0, |start_ns| now_ns.saturating_sub(start_ns));
        let at_secs = elapsed_ns as f64 / 1e9;
        let percent = |cpu_secs: f64| cpu_secs / secs * 100.0;
        let mut second = Second {
            run: 1,
            at_secs,
            secs,
            phase: phase.name().to_owned(),
            offered: self.offered(at_secs),
            sent: sent - self.look.sent,
            received: (step.pattern != Pattern::Ingest).then_some(received - self.look.received),
            client_cpu_pct: usage.client_secs_since(&self.look.usage).map(percent),
            server_cpu_pct: usage.server_secs_since(&self.look.usage).map(percent),
            connected: link.connected_by_node(),
            ..Second::default()
        };
        second.record(&self.recent);
        observer.progress(&Progress {
            phase,
            elapsed: Duration::from_nanos(elapsed_ns),
            duration: Duration::from_nanos(step.duration_ns()),
            logins: link.logins.get(),
            agents: u64::from(options.segment.count(step.senders()) + step.slow_receivers),
            sent,
            received,
            expected: expected(step, &link),
            second: second.clone(),
            errors: link.disconnects.get() + link.send_errors.get() + link.login_failures.get(),
            verdict: self.verdict(),
        });
        if phase != Phase::Login {
            self.series.push(second);
        }
        self.look = Look {
            at_ns: now_ns,
            at_secs,
            sent,
            received,
            usage,
        };
        self.recent.clear();
    }

    /// Messages that were due here since the last look, where the step lays that down.
    fn offered(&self, at_secs: f64) -> Option<f64> {
        let curve = self.curve.as_ref()?;
        let senders = self.step.senders();
        let share = f64::from(self.options.segment.count(senders)) / f64::from(senders);
        Some((curve.messages_by(at_secs) - curve.messages_by(self.look.at_secs)) * share)
    }

    /// The verdict on the steady window so far, by the rules of the final one as far as they can be judged before the
    /// end: the instrument was busy or late, or the machine's host took time away.
    fn verdict(&self) -> Verdict {
        let Some(began) = &self.steady_began else {
            return Verdict::default();
        };
        let now;
        let usage = match &self.steady_ended {
            Some(ended) => &ended.usage,
            None => {
                now = Usage::now(self.options);
                &now
            }
        };
        let window_ns = self.link.steady_window();
        let secs = self
            .options
            .clock
            .now_ns()
            .min(window_ns.1)
            .saturating_sub(window_ns.0) as f64
            / 1e9;
        let lanes = self
            .options
            .lanes
            .min(self.step.concurrency as usize)
            .max(1) as f64;
        let client_secs = usage
            .client_secs_since(&began.usage)
            .filter(|_| secs >= LOOK_SECS / 2.0);
        let is_max = matches!(self.step.load, Load::Max);
        let lateness = self.link.with_times(|times| {
            let lag = match times.client_lag.count() {
                0 => &times.send_lag,
                _ => &times.client_lag,
            };
            Lateness::of(lag, &times.scheduled, 0)
        });
        let evidence = Evidence {
            client_cpu_pct: client_secs.map(|used| used / secs / lanes * 100.0),
            lateness: lateness.filter(|_| !is_max),
            steal_pct: usage.stolen_pct_since(&began.usage),
            ..Evidence::default()
        };
        judge(&evidence, self.step, &self.guard)
    }

    /// Whether the last three whole seconds of the warm-up had the same median, within 2 %; nothing when there were
    /// fewer.
    pub(super) fn is_stationary(&self) -> Option<bool> {
        let medians: Vec<f64> = self
            .series
            .iter()
            .filter(|second| second.phase == Phase::WarmUp.name())
            .filter_map(|second| second.p50_ms)
            .collect();
        is_stationary(&medians)
    }
}

/// Deliveries that will have to arrive for what was sent so far.
pub(super) fn expected(step: &Step, link: &StepLink) -> u64 {
    let receivers = match step.pattern {
        Pattern::Chat => link.normal_logins().saturating_sub(1),
        Pattern::PubSub => link.normal_logins(),
        Pattern::Ingest | Pattern::Echo | Pattern::Request => 1,
    };
    link.sent() * receivers
}

fn is_stationary(medians: &[f64]) -> Option<bool> {
    let last = medians.last_chunk::<3>()?;
    let least = last.iter().copied().fold(f64::INFINITY, f64::min);
    let most = last.iter().copied().fold(0.0, f64::max);
    Some(most <= least * STATIONARY_SHARE_MAX)
}

/// How often a look is taken, in seconds.
const LOOK_SECS: f64 = 1.0;

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
