//! One step of a run: log in, open the barrier, send, drain, close the accounts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidewire::{Endpoint, Limits, Server};
use tidewire_io::clock::now_ns;

use super::faults::{FaultRecord, Faults};
use super::watch::{Watch, expected};
use super::{Observer, Phase, RunError};
use crate::agents::{Agents, Share};
use crate::credentials::{Renewal, StepTokens};
use crate::exchange::{SentTimes, StepLink};
use crate::facts::{Accounts, Ending, SteadyWindow, StepFacts, Usage};
use crate::lane_account::LaneAccount;
use crate::plan::{RunOptions, StepPlan};
use crate::report::{FaultFigures, ServerUsage};
use crate::scenario::{Load, Step};

pub(super) struct StepRun<'p> {
    plan: &'p Arc<StepPlan>,
    options: &'p RunOptions,
    observer: &'p mut dyn Observer,
    link: Arc<StepLink>,
    lanes: Server,
    slow_lane: Option<Server>,
    started: Instant,
    usage_before: Usage,
    watch: Watch<'p>,
    renewal: Renewal,
    faults: Option<Faults>,
    problems: Vec<String>,
    notes: Vec<String>,
}

impl<'p> StepRun<'p> {
    pub(super) fn start(
        plan: &'p Arc<StepPlan>,
        options: &'p RunOptions,
        observer: &'p mut dyn Observer,
    ) -> Result<Self, RunError> {
        let step = &plan.step;
        let lanes = plan.lanes;
        let has_slow = step.slow_receivers > 0;
        let tokens = match &options.tokens {
            Some(source) => StepTokens::of(source.get()?),
            None => StepTokens::default(),
        };
        let nodes = plan.targets.len();
        let mut link = StepLink::new(lanes + usize::from(has_slow), nodes, tokens);
        link.sent_times = sent_times(step);
        if plan.has_faults() {
            link.sent_counts = (0..step.concurrency).map(|_| AtomicU64::new(0)).collect();
        }
        let link = Arc::new(link);
        let usage_before = Usage::now(&options.processes);
        let builder = |lanes| {
            let mut limits = Limits::default();
            limits.sessions.set_max(step.concurrency as usize + 1);
            // The deliveries of a step must never be refused by the instrument's own limits.
            limits
                .connections
                .set_idle_timeout(Duration::from_secs(3600));
            // A server that stalls is measured, and not left.
            limits
                .connections
                .set_ping_timeout(Duration::from_secs(3600));
            let mut builder = Server::builder();
            if plan.targets.iter().any(Endpoint::is_tls) {
                builder = builder.outgoing_tls(options.tls.clone());
            }
            builder
                .codec(plan.codec.clone())
                .lanes(lanes)
                .poller(options.poller)
                .limits(limits)
                .agent(concat!("tidewire-load/", env!("CARGO_PKG_VERSION")))
        };
        let server = builder(lanes).start(|lane| {
            let core = options.cores.get(lane % options.cores.len().max(1));
            let share = Share::Lane { lane, lanes };
            Agents::new((**plan).clone(), Arc::clone(&link), share, core.copied())
        })?;
        let slow_lane = has_slow
            .then(|| {
                builder(1).start(|_| {
                    let share = Share::Slow { lane: lanes };
                    Agents::new((**plan).clone(), Arc::clone(&link), share, None)
                })
            })
            .transpose()?;
        Ok(Self {
            plan,
            options,
            observer,
            watch: Watch::new(plan, options, Arc::clone(&link)),
            renewal: Renewal::new(options.tokens.clone()),
            faults: None,
            link,
            lanes: server,
            slow_lane,
            started: Instant::now(),
            usage_before,
            problems: Vec::new(),
            notes: Vec::new(),
        })
    }

    pub(super) fn finish(mut self) -> Result<StepFacts, RunError> {
        self.log_in()?;
        let steady = self.send()?;
        self.note_phase(Phase::Drain);
        let is_cut_off = self.drain()?;
        let faults = self.end_faults();
        let usage = Usage::now(&self.options.processes);
        self.link.finish();
        self.ring();
        for lanes in self.slow_lane.take().into_iter().chain([self.lanes]) {
            if let Some(failure) = lanes.shutdown(LANE_END_MAX).failures.into_iter().next() {
                return Err(RunError::Lane(failure));
            }
        }
        // The lanes have handed in their last times, which belong to the last second.
        self.watch.look_last(self.observer);
        let (plan, link, before) = (self.plan, &self.link, &self.usage_before);
        let (results, times) = link.take_results();
        let ending = Ending::of(plan, is_cut_off);
        let mut accounts = Accounts::of(results, &plan.step, plan.segment, ending);
        if let Some(slow) = &mut accounts.slow {
            slow.disconnected = link.slow_disconnects.get();
        }
        Ok(StepFacts {
            secs: self.started.elapsed().as_secs_f64(),
            logins: link.normal_logins(),
            login_failures: link.login_failures.get(),
            disconnects: link.disconnects.get(),
            steady,
            steady_usage: self.watch.steady_usage(),
            accounts,
            times,
            series: self.watch.series,
            client_cpu_secs: usage.client_secs_since(before).unwrap_or(0.0),
            server: server_usage(link, &usage, before),
            processes: usage.processes_since(before, &self.options.processes),
            faults,
            problems: self.problems,
            notes: self.notes,
            ..StepFacts::new(Arc::clone(plan))
        })
    }

    fn end_faults(&mut self) -> Vec<FaultFigures> {
        let faults = self.faults.take();
        let mut inflicted = faults.map_or_else(FaultRecord::default, Faults::finish);
        self.problems.append(&mut inflicted.problems);
        self.notes.append(&mut inflicted.notes);
        let processes = self.options.processes.iter();
        let ended = processes.filter(|process| process.ended_by_itself());
        let told = ended.map(|process| format!("{} ended by itself", process.name()));
        self.problems.extend(told);
        inflicted.faults
    }

    /// Waits until every agent is logged in or has failed.
    fn log_in(&mut self) -> Result<(), RunError> {
        let options = self.options;
        let step = &self.plan.step;
        let here = self.plan.segment.count(step.senders());
        let wanted = u64::from(here + step.slow_receivers);
        let (mut done, mut progressed) = (0, Instant::now());
        while done < wanted && !options.stop.load(Ordering::Relaxed) {
            self.pause(Phase::Login)?;
            let now_done = self.link.logins.get() + self.link.login_failures.get();
            if now_done > done {
                (done, progressed) = (now_done, Instant::now());
            } else if progressed.elapsed() > options.answer_timeout {
                self.link.close_login();
                let silent = wanted - self.link.logins.get() - self.link.login_failures.get();
                let secs = options.answer_timeout.as_secs_f64();
                self.problems.push(format!(
                    "{silent} agents got no answer to their login in {secs} s"
                ));
                self.link.login_failures.add(silent);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Opens the barrier and waits until the last message was sent.
    fn send(&mut self) -> Result<SteadyWindow, RunError> {
        let options = self.options;
        self.link.close_login();
        let earliest_ns = options.clock.now_ns() + SETTLE.as_nanos() as u64;
        let wanted_ns = self.plan.start_ns.unwrap_or(earliest_ns);
        if wanted_ns < earliest_ns {
            let late = Duration::from_nanos(earliest_ns - wanted_ns).as_secs_f64();
            self.problems.push(format!(
                "this part began {late:.1} s after the others: give --start-at more time for the logins"
            ));
        }
        let start_ns = wanted_ns.max(earliest_ns);
        let warm_up_ns = warm_up_ns(&self.plan.step);
        let stop_ns = start_ns + self.plan.step.duration_ns();
        self.link.open(start_ns, start_ns + warm_up_ns, stop_ns);
        self.ring();
        self.faults = Some(Faults::start(
            &self.plan.faults,
            options.clock.clone(),
            start_ns,
        ));
        self.watch.restart(start_ns);
        let mut all_gone_since = None;
        while options.clock.now_ns() < stop_ns {
            let phase = if options.clock.now_ns() < start_ns + warm_up_ns {
                Phase::WarmUp
            } else {
                Phase::Steady
            };
            self.note_phase(phase);
            self.pause(phase)?;
            if options.stop.load(Ordering::Relaxed) {
                let now_ns = options.clock.now_ns();
                let left = Duration::from_nanos(stop_ns.saturating_sub(now_ns)).as_secs_f64();
                let told =
                    format!("the run was interrupted {left:.1} s before the end of this step");
                self.problems.push(told);
                self.link.stop_sending(now_ns);
                break;
            }
            if self.link.is_deserted() && !self.plan.has_faults() {
                // Half a second more, so that the report shows what happens to those who still try.
                let since = *all_gone_since.get_or_insert_with(Instant::now);
                if since.elapsed() > ALL_GONE_GRACE {
                    let left = Duration::from_nanos(stop_ns.saturating_sub(options.clock.now_ns()))
                        .as_secs_f64();
                    self.problems.push(format!(
                        "no connection was left; the step was ended {left:.1} s early"
                    ));
                    self.link.stop_sending(options.clock.now_ns());
                    break;
                }
            }
        }
        let length_ns = self.link.stop_ns().saturating_sub(start_ns + warm_up_ns);
        Ok(SteadyWindow {
            warm_up: Duration::from_nanos(warm_up_ns),
            length: Duration::from_nanos(length_ns),
        })
    }

    /// Waits for what is under way. Returns whether something still arrived when it was ended.
    fn drain(&mut self) -> Result<bool, RunError> {
        let longest = Duration::from_millis(self.plan.step.drain_ms);
        let drain_max = self.plan.step.drain_max();
        // Lanes that are late still send what was due before the end, for `longest` at most.
        let (mut all_sent, mut began) = (false, Instant::now());
        let (mut received, mut progressed) = (self.link.received(), Instant::now());
        loop {
            let now_received = self.link.received();
            if now_received > received {
                (received, progressed) = (now_received, Instant::now());
            }
            if !all_sent && self.link.lanes_done.get() >= self.lanes.lanes() as u64 {
                (all_sent, began, progressed) = (true, Instant::now(), Instant::now());
            }
            // A part of a fan-out cannot know what the others send, and hears them out.
            let hears_others = self.plan.step.pattern.is_fan_out() && !self.plan.segment.is_whole();
            // A little longer than the last arrival, so that a duplicate of it is seen too.
            let complete = all_sent
                && !hears_others
                && received >= expected(self.plan, &self.link)
                && progressed.elapsed() > DRAIN_LINGER;
            let silent = all_sent && progressed.elapsed() > longest;
            // Agents that lost their connection to a fault come back when their node does.
            let is_deserted = self.link.is_deserted() && !self.plan.has_faults();
            if complete || silent || is_deserted {
                return Ok(false);
            }
            if began.elapsed() > drain_max {
                let secs = drain_max.as_secs();
                self.notes.push(format!(
                    "messages still arrived {secs} s after the end of sending, when the step was ended: what had not \
                     come by then is unconfirmed"
                ));
                return Ok(true);
            }
            self.pause(Phase::Drain)?;
        }
    }

    /// Sleeps a moment; looks at everything about once a second.
    fn pause(&mut self, phase: Phase) -> Result<(), RunError> {
        if !self.lanes.is_running() {
            return Err(RunError::Lane(
                "it stopped before the step ended".to_owned(),
            ));
        }
        thread::sleep(POLL_INTERVAL);
        self.watch.look(phase, self.observer);
        if self.renewal.look(&self.link.tokens, now_ns()) {
            self.ring();
        }
        Ok(())
    }

    fn note_phase(&mut self, phase: Phase) {
        let (lanes, slow_lane) = (&self.lanes, &self.slow_lane);
        self.watch.note_phase(phase, || {
            let account = LaneAccount::of(&lanes.metrics());
            slow_lane.iter().fold(account, |account, lane| {
                account.and(&LaneAccount::of(&lane.metrics()))
            })
        });
    }

    fn ring(&self) {
        for lane in 0..self.lanes.lanes() {
            self.lanes.waker(lane).wake();
        }
        if let Some(lane) = &self.slow_lane {
            lane.waker(0).wake();
        }
    }
}

/// The usage of the servers since `before`, and the words of the first one about itself.
fn server_usage(link: &StepLink, after: &Usage, before: &Usage) -> ServerUsage {
    let rss = after.server_rss_bytes_max();
    let agent = link.server_agent.get().map_or("", String::as_str);
    let encryption = link.encryption.get().copied().flatten();
    ServerUsage {
        cpu_secs: after.server_secs_since(before),
        rss_bytes_max: (rss > 0).then_some(rss),
        lanes: agent_field(agent, "lanes=").and_then(|lanes| lanes.parse().ok()),
        poller: agent_field(agent, "poller=").map(str::to_owned),
        encryption: encryption.map(|it| format!("{} {}", it.protocol, it.cipher_suite)),
    }
}

/// The times at which the last messages of an open fan-out were sent, for its receivers.
fn sent_times(step: &Step) -> Option<SentTimes> {
    let Load::Open { stages, .. } = &step.load else {
        return None;
    };
    let most = stages.iter().map(|stage| stage.from.max(stage.to));
    let rate = most.fold(0.0, f64::max) / f64::from(step.senders());
    // An answer that comes later than this after its message has no service time, and is counted.
    let kept = (rate * SENT_KEPT_SECS) as u64;
    let is_fan_out = step.pattern.is_fan_out();
    is_fan_out.then(|| SentTimes::new(step.senders(), kept))
}

/// The rates of the first moments show the barrier, not the load. Without a length of its own it is two think times or
/// a second, but never more than a quarter of the step.
fn warm_up_ns(step: &Step) -> u64 {
    if let Some(secs) = step.warmup_secs {
        return (secs * 1e9).round() as u64;
    }
    let think_ns = match &step.load {
        Load::Closed { think_time_ms } => think_time_ms.max_ns(),
        Load::Open { .. } | Load::Max => 0,
    };
    let wanted = think_ns.saturating_mul(2).max(1_000_000_000);
    wanted.min(step.duration_ns() / 4)
}

/// The value after `key` in what a server says of itself.
fn agent_field<'a>(agent: &'a str, key: &str) -> Option<&'a str> {
    agent
        .split_whitespace()
        .find_map(|word| word.strip_prefix(key))
}

/// From the last login to the opening of the barrier: the announcements of the logins go through first.
const SETTLE: Duration = Duration::from_millis(300);

/// How long receivers of an open fan-out can still find out when a message was sent, in seconds.
const SENT_KEPT_SECS: f64 = 10.0;

/// How often the coordinator looks. It does nothing on the way of a message.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a step goes on when every connection is gone.
const ALL_GONE_GRACE: Duration = Duration::from_millis(500);

/// How long after the last expected delivery a duplicate of it is still waited for.
const DRAIN_LINGER: Duration = Duration::from_millis(200);

/// Longest wait for the server to end the connections after us.
const LANE_END_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn a_server_tells_its_lanes_and_poller() {
        let agent = "tidewire/0.1.0 lanes=2 poller=epoll";
        assert_eq!(agent_field(agent, "lanes="), Some("2"));
        assert_eq!(agent_field(agent, "poller="), Some("epoll"));
        assert_eq!(agent_field("other/1", "lanes="), None);
    }

    #[test]
    fn the_warm_up_fits_the_step() {
        let scenario = Scenario::built_in();
        assert_eq!(warm_up_ns(&scenario.steps[0]), 2_000_000_000);
        assert_eq!(warm_up_ns(&scenario.steps[1]), 1_000_000_000);
        let quick = scenario.quick();
        assert_eq!(warm_up_ns(&quick.steps[0]), 750_000_000);
    }
}
