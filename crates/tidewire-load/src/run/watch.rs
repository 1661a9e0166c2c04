//! The coordinator's looks at a running step: about one a second, for whoever watches and for the report.

use std::sync::Arc;
use std::time::Duration;

use super::{Observer, Phase, Progress};
use crate::exchange::{StepLink, Times};
use crate::facts::{Evidence, Lateness, SidesUsage, Usage, judge};
use crate::lane_account::LaneAccount;
use crate::plan::{RunOptions, StepPlan};
use crate::report::{Second, Verdict};
use crate::scenario::{Load, Pattern};
use crate::schedule::Curve;

pub(super) struct Watch<'p> {
    plan: &'p StepPlan,
    options: &'p RunOptions,
    link: Arc<StepLink>,
    curve: Option<Curve>,
    look: Look,
    /// Times since the last look.
    recent: Times,
    pub(super) series: Vec<Second>,
    steady_began: Option<SidesUsage>,
    steady_ended: Option<SidesUsage>,
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

impl<'p> Watch<'p> {
    pub(super) fn new(plan: &'p StepPlan, options: &'p RunOptions, link: Arc<StepLink>) -> Self {
        let curve = match &plan.step.load {
            Load::Open { stages, .. } => Some(Curve::new(stages)),
            _ => None,
        };
        Self {
            plan,
            options,
            link,
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
        self.look.usage = Usage::now(&self.options.processes);
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
            *account = Some(SidesUsage::now(&self.options.processes, lanes));
        }
    }

    pub(super) fn steady_usage(&self) -> Option<(SidesUsage, SidesUsage)> {
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
        let (plan, options, link) = (self.plan, self.options, Arc::clone(&self.link));
        let step = &plan.step;
        let usage = Usage::now(&options.processes);
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
            expected: expected(plan, &link),
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
        let senders = self.plan.step.senders();
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
                now = Usage::now(&self.options.processes);
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
        let lanes = self.plan.lanes as f64;
        let client_secs = usage
            .client_secs_since(&began.usage)
            .filter(|_| secs >= LOOK_SECS / 2.0);
        let is_max = matches!(self.plan.step.load, Load::Max);
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
        judge(&evidence, &self.plan.step, &self.plan.guard)
    }
}

/// Deliveries that will have to arrive for what was sent so far.
pub(super) fn expected(plan: &StepPlan, link: &StepLink) -> u64 {
    link.sent() * plan.step.pattern.receivers(link.normal_logins())
}

/// How often a look is taken, in seconds.
const LOOK_SECS: f64 = 1.0;
