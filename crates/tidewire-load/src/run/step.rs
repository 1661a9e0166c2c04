//! One step of a run: log in, open the barrier, send, drain, close the accounts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use tidewire::io::clock::now_ns;
use tidewire::{Limits, Server};

use super::outcome::Outcome;
use super::{Observer, Phase, Progress, RunError, RunOptions};
use crate::agents::{Agents, StepPlan};
use crate::exchange::StepLink;
use crate::process::ProcessSample;
use crate::report::{ClientUsage, ServerUsage, StepMeasurements, StepReport};
use crate::scenario::Step;
use crate::statistics::LatencyHistogram;

/// One running step.
pub(super) struct StepRun<'s> {
    step: &'s Step,
    link: Arc<StepLink>,
    lanes: Server,
    started: Instant,
    server_before: Option<ProcessSample>,
    client_before: Option<ProcessSample>,
    server_rss_bytes_max: u64,
    problems: Vec<String>,
    notes: Vec<String>,
    look: Look,
    /// End-to-end times since the last look.
    recent: LatencyHistogram,
}

/// The counters at the last look, to make rates of.
struct Look {
    at: Instant,
    sent: u64,
    received: u64,
}

impl<'s> StepRun<'s> {
    pub(super) fn start(
        step: &'s Step,
        plan: &StepPlan,
        options: &RunOptions,
    ) -> Result<Self, RunError> {
        let lanes = options.lanes.clamp(1, step.concurrency as usize);
        let link = Arc::new(StepLink::new(lanes));
        let server_before = options
            .server_pid
            .and_then(|pid| ProcessSample::of(pid).ok());
        let client_before = ProcessSample::of_self().ok();
        let limits = Limits {
            sessions_max: step.concurrency as usize + 1,
            // The deliveries of a step must never be refused by the instrument's own limits.
            idle_timeout: Duration::from_secs(3600),
            ..Limits::default()
        };
        let server = Server::builder()
            .lanes(lanes)
            .poller(options.poller)
            .limits(limits)
            .agent(concat!("tidewire-load/", env!("CARGO_PKG_VERSION")))
            .start(|lane| {
                let core = options
                    .cores
                    .get(lane % options.cores.len().max(1))
                    .copied();
                let plan = StepPlan {
                    core,
                    ..plan.clone()
                };
                Agents::new(plan, Arc::clone(&link), lane, lanes)
            })?;
        Ok(Self {
            step,
            link,
            lanes: server,
            started: Instant::now(),
            server_before,
            client_before,
            server_rss_bytes_max: 0,
            problems: Vec::new(),
            notes: Vec::new(),
            look: Look {
                at: Instant::now(),
                sent: 0,
                received: 0,
            },
            recent: LatencyHistogram::new(),
        })
    }

    pub(super) fn finish(
        mut self,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<StepReport, RunError> {
        self.log_in(options, observer)?;
        let window = self.send(options, observer)?;
        self.drain(options, observer)?;
        let server = self.server_usage(options);
        self.link.finish();
        self.ring();
        let stopped = self.lanes.shutdown(LANE_END_MAX);
        if let Some(failure) = stopped.failures.first() {
            return Err(RunError::Lane(failure.clone()));
        }
        let (results, latency) = self.link.take_results();
        let client_cpu_secs = match (&self.client_before, ProcessSample::of_self()) {
            (Some(before), Ok(after)) => after.cpu_secs_since(before),
            _ => 0.0,
        };
        let outcome = Outcome::of(results, self.step.concurrency as usize);
        self.notes.extend(outcome.notes);
        let send_lag_p99_ms = outcome.send_lag.quantile_ns(0.99) as f64 / 1e6;
        if send_lag_p99_ms > SEND_LAG_SHARE_MAX * self.step.think_time_ms.mean_ms() {
            self.notes.push(format!(
                "the instrument sent late (p99 {send_lag_p99_ms:.1} ms): it was overdriven or its machine busy, and \
                 its lateness is part of the end-to-end times"
            ));
        }
        let mut problems = outcome.problems;
        problems.extend(self.problems);
        if latency.clipped() > 0 {
            self.notes.push(format!(
                "{} times beyond 120 s were clipped",
                latency.clipped()
            ));
        }
        Ok(StepReport::from_measurements(StepMeasurements {
            step: self.step,
            test_duration_secs: self.started.elapsed().as_secs_f64(),
            total_sent: outcome.sent,
            login_failures: self.link.login_failures(),
            send_errors: outcome.send_errors,
            totals: outcome.totals,
            steady_secs: window.as_secs_f64(),
            steady_sent: outcome.steady_sent,
            steady_received: outcome.steady_received,
            latency: latency.summary(),
            latency_send: outcome.latency_send.summary(),
            server,
            client: ClientUsage {
                cpu_secs: client_cpu_secs,
                send_lag_p99_ms,
            },
            problems,
            notes: self.notes,
        }))
    }

    /// Waits until every agent is logged in or has failed.
    fn log_in(
        &mut self,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        let wanted = u64::from(self.step.concurrency);
        let (mut done, mut progressed) = (0, Instant::now());
        while done < wanted && !options.stop.load(Ordering::Relaxed) {
            self.pause(options, observer, Phase::Login)?;
            let now_done = self.link.logins() + self.link.login_failures();
            if now_done > done {
                (done, progressed) = (now_done, Instant::now());
            } else if progressed.elapsed() > options.answer_timeout {
                self.link.close_login();
                let silent = wanted - self.link.logins() - self.link.login_failures();
                let secs = options.answer_timeout.as_secs_f64();
                self.problems.push(format!(
                    "{silent} agents got no answer to their login in {secs} s"
                ));
                self.link.add_login_failures(silent);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Opens the barrier and waits until the last message was sent. Returns the length of the steady window.
    fn send(
        &mut self,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<Duration, RunError> {
        self.link.close_login();
        let duration_ns = self.step.duration_ns();
        let start_ns = now_ns() + SETTLE.as_nanos() as u64;
        let warm_up_ns = warm_up_ns(self.step);
        let stop_ns = start_ns + duration_ns;
        self.link.open(start_ns, start_ns + warm_up_ns, stop_ns);
        self.ring();
        self.look = Look {
            at: Instant::now() + SETTLE,
            sent: 0,
            received: 0,
        };
        let mut all_gone_since = None;
        while now_ns() < stop_ns {
            let phase = if now_ns() < start_ns + warm_up_ns {
                Phase::WarmUp
            } else {
                Phase::Steady
            };
            self.pause(options, observer, phase)?;
            if options.stop.load(Ordering::Relaxed) {
                self.link.stop_sending(now_ns());
                break;
            }
            if self.link.logins() == self.link.disconnects() {
                // Half a second more, so that the report shows what happens to those who still try.
                let since = *all_gone_since.get_or_insert_with(Instant::now);
                if since.elapsed() > ALL_GONE_GRACE {
                    let left = Duration::from_nanos(stop_ns.saturating_sub(now_ns())).as_secs_f64();
                    self.problems.push(format!(
                        "no connection was left; the step was ended {left:.1} s early"
                    ));
                    self.link.stop_sending(now_ns());
                    break;
                }
            }
        }
        let sent_for_ns = self.link.stop_ns().saturating_sub(start_ns + warm_up_ns);
        Ok(Duration::from_nanos(sent_for_ns))
    }

    /// Waits for what is under way.
    fn drain(&mut self, options: &RunOptions, observer: &mut dyn Observer) -> Result<(), RunError> {
        let began = Instant::now();
        let (mut received, mut progressed) = (self.link.received(), Instant::now());
        loop {
            let now_received = self.link.received();
            if now_received > received {
                (received, progressed) = (now_received, Instant::now());
            }
            // A lane that is late still sends what was due before the end. And a little longer than the last
            // arrival, so that a duplicate of it is seen too.
            let all_sent = self.link.lanes_done() >= self.lanes.lanes() as u64;
            let complete =
                all_sent && received >= self.expected() && progressed.elapsed() > DRAIN_LINGER;
            let silent = all_sent && progressed.elapsed() > options.drain;
            let gone = self.link.logins() == self.link.disconnects();
            if complete || silent || gone || began.elapsed() > DRAIN_MAX {
                return Ok(());
            }
            self.pause(options, observer, Phase::Drain)?;
        }
    }

    /// Sleeps a moment; looks at everything about once a second.
    fn pause(
        &mut self,
        options: &RunOptions,
        observer: &mut dyn Observer,
        phase: Phase,
    ) -> Result<(), RunError> {
        if !self.lanes.is_running() {
            return Err(RunError::Lane(
                "it stopped before the step ended".to_owned(),
            ));
        }
        thread::sleep(POLL_INTERVAL);
        self.link.collect_latency(&mut self.recent);
        let secs = self.look.at.elapsed().as_secs_f64();
        if secs < 1.0 {
            return Ok(());
        }
        if let Some(sample) = options
            .server_pid
            .and_then(|pid| ProcessSample::of(pid).ok())
        {
            self.server_rss_bytes_max = self.server_rss_bytes_max.max(sample.rss_bytes_max);
        }
        let (sent, received) = (self.link.sent(), self.link.received());
        observer.progress(&Progress {
            phase,
            elapsed: Duration::from_nanos(
                self.link
                    .start_ns()
                    .map_or(0, |start_ns| now_ns().saturating_sub(start_ns)),
            ),
            duration: Duration::from_nanos(self.step.duration_ns()),
            logins: self.link.logins(),
            agents: u64::from(self.step.concurrency),
            sent,
            received,
            expected: self.expected(),
            send_tps: (sent - self.look.sent) as f64 / secs,
            receive_tps: (received - self.look.received) as f64 / secs,
            p50_ms: self.recent.quantile_ns(0.5) as f64 / 1e6,
            p99_ms: self.recent.quantile_ns(0.99) as f64 / 1e6,
            errors: self.link.disconnects() + self.link.send_errors() + self.link.login_failures(),
        });
        self.look = Look {
            at: Instant::now(),
            sent,
            received,
        };
        self.recent.clear();
        Ok(())
    }

    fn expected(&self) -> u64 {
        self.link.sent() * self.link.logins().saturating_sub(1)
    }

    fn ring(&self) {
        for lane in 0..self.lanes.lanes() {
            self.lanes.doorbell(lane).ring();
        }
    }

    fn server_usage(&self, options: &RunOptions) -> ServerUsage {
        let after = options
            .server_pid
            .and_then(|pid| ProcessSample::of(pid).ok());
        let cpu_secs = match (&self.server_before, &after) {
            (Some(before), Some(after)) => Some(after.cpu_secs_since(before)),
            _ => None,
        };
        let rss = after
            .map_or(0, |after| after.rss_bytes_max)
            .max(self.server_rss_bytes_max);
        let agent = self.link.server_agent().unwrap_or_default();
        ServerUsage {
            cpu_secs,
            rss_bytes_max: (rss > 0).then_some(rss),
            lanes: agent_field(agent, "lanes=").and_then(|lanes| lanes.parse().ok()),
            poller: agent_field(agent, "poller=").map(str::to_owned),
        }
    }
}

/// The rates of the first moments show the barrier, not the load: two think times or a second, but never more
/// than a quarter of the step.
fn warm_up_ns(step: &Step) -> u64 {
    let wanted = step
        .think_time_ms
        .max_ns()
        .saturating_mul(2)
        .max(1_000_000_000);
    wanted.min(step.duration_ns() / 4)
}

/// The value behind `key` in what a server says of itself.
fn agent_field<'a>(agent: &'a str, key: &str) -> Option<&'a str> {
    agent
        .split_whitespace()
        .find_map(|word| word.strip_prefix(key))
}

/// From the last login to the opening of the barrier: the announcements of the logins go through first.
const SETTLE: Duration = Duration::from_millis(300);

/// Send lag, as a share of the mean think time, from which a reader is told.
const SEND_LAG_SHARE_MAX: f64 = 0.1;

/// How often the coordinator looks. It does nothing on the way of a message.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a step goes on when every connection is gone.
const ALL_GONE_GRACE: Duration = Duration::from_millis(500);

/// How long after the last expected delivery a duplicate of it is still waited for.
const DRAIN_LINGER: Duration = Duration::from_millis(200);

/// Longest drain, however much still arrives.
const DRAIN_MAX: Duration = Duration::from_secs(60);

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
