//! Runs a scenario against a server, step by step.
//!
//! ```text
//! connect, log in ──▶ barrier ──▶ warm-up ──▶ steady window ──▶ stop sending ──▶ drain ──▶ close accounts
//! ```
//!
//! Rates of the steady window are not diluted by connecting and draining; the totals of the old report are
//! kept beside them. A step ends when every expected delivery has arrived, or when nothing has arrived for
//! the length of the drain.

mod outcome;
mod step;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use thiserror::Error;
use tidewire::io::descriptors::descriptor_limit;
use tidewire::io::poller::PollerChoice;
use tidewire::proto::body::ErrorCode;
use tidewire::{Client, ConnectError, Endpoint, Limits, RequestError, ServeError};

use self::step::StepRun;
use crate::agents::StepPlan;
use crate::environment::Environment;
use crate::ledger::LATE_MS;
use crate::report::{Report, RunFacts, StepReport};
use crate::scenario::{Scenario, Step};

/// How to run a scenario.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The server.
    pub address: Endpoint,
    /// Seed of every random choice.
    pub seed: u64,
    /// Client lanes.
    pub lanes: usize,
    /// Cores to keep the client lanes on, in turn; empty leaves them to the system.
    pub cores: Vec<usize>,
    /// Poller of the client lanes.
    pub poller: PollerChoice,
    /// How long the server may take to let the first agent in, and then nobody, before it counts as silent.
    pub answer_timeout: Duration,
    /// How long nothing may arrive, after the last message was sent, before the rest counts as lost.
    pub drain: Duration,
    /// A delivery later than this after its intended time counts as late, in milliseconds.
    pub late_ms: u64,
    /// The server's process, if it runs here and its use of the machine shall be reported.
    pub server_pid: Option<u32>,
    /// Machine and build, for the report.
    pub environment: Environment,
    /// Set from outside to stop early; the report then says so.
    pub stop: Arc<AtomicBool>,
}

impl RunOptions {
    /// One client lane and the default grace times.
    #[must_use]
    pub fn new(address: Endpoint) -> Self {
        Self {
            address,
            seed: 0,
            lanes: 1,
            cores: Vec::new(),
            poller: PollerChoice::default(),
            answer_timeout: ANSWER_TIMEOUT,
            drain: Duration::from_secs(2),
            late_ms: LATE_MS,
            server_pid: None,
            environment: Environment::detect(env!("CARGO_PKG_VERSION"), "unknown"),
            stop: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// Where a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Agents connect and log in.
    Login,
    /// Messages are sent; the steady window has not begun.
    WarmUp,
    /// Messages are sent and count for the steady rates.
    Steady,
    /// Nothing is sent; what is under way arrives.
    Drain,
}

/// A look at a running step.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Where the step is.
    pub phase: Phase,
    /// Time since the barrier opened.
    pub elapsed: Duration,
    /// How long messages are sent in all.
    pub duration: Duration,
    /// Agents logged in.
    pub logins: u64,
    /// Agents of the step.
    pub agents: u64,
    /// Messages sent so far.
    pub sent: u64,
    /// Deliveries so far.
    pub received: u64,
    /// Deliveries that will have to arrive for what was sent so far.
    pub expected: u64,
    /// Messages sent a second, since the last look.
    pub send_tps: f64,
    /// Deliveries a second, since the last look.
    pub receive_tps: f64,
    /// Median of the end-to-end times since the last look, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the same.
    pub p99_ms: f64,
    /// Connections lost and sends refused so far.
    pub errors: u64,
}

/// Watches a run.
pub trait Observer {
    /// A step begins.
    fn step_started(&mut self, number: usize, step: &Step) {
        let _ = (number, step);
    }

    /// About once a second.
    fn progress(&mut self, progress: &Progress) {
        let _ = progress;
    }

    /// A step ended.
    fn step_ended(&mut self, report: &StepReport) {
        let _ = report;
    }
}

/// An observer that looks away.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// A run could not begin, or failed in its first step. After that a failure is in the report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The server cannot be reached or does not speak the native protocol.
    #[error("cannot log in at {address}")]
    Target {
        /// The server.
        address: String,
        /// Why.
        source: ConnectError,
    },
    /// The server has no rooms, so that there is nothing to measure. Start one with `tidewire serve --app chat`.
    #[error("the server at {address} has no rooms")]
    NoRooms {
        /// The server.
        address: String,
        /// What it answered.
        source: RequestError,
    },
    /// The client lanes could not start.
    #[error("cannot start the client lanes")]
    Client(#[from] ServeError),
    /// The scenario needs more connections than this process may open.
    #[error(
        "step {step:?} needs {needed} descriptors but the limit is {limit}: raise it with `ulimit -n {needed}` \
         or lower the concurrency"
    )]
    Descriptors {
        /// Name of the step.
        step: String,
        /// Descriptors it needs.
        needed: u64,
        /// Descriptors this process may open.
        limit: u64,
    },
    /// The client lane ended by itself.
    #[error("a client lane failed: {0}")]
    Lane(String),
}

/// Runs every step of a scenario and reports.
///
/// # Errors
/// See [`RunError`]. Losses, refused logins and a server that dies are no errors of the run: they are what it
/// reports.
pub fn run(
    scenario: &Scenario,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Report, RunError> {
    let address = options.address.to_string();
    for step in &scenario.steps {
        check_descriptors(step)?;
    }
    try_out(&address, options)?;
    let (start_time, started) = (SystemTime::now(), Instant::now());
    let run_number = fastrand::u16(..);
    let mut steps = Vec::new();
    for (number, step) in scenario.steps.iter().enumerate() {
        if options.stop.load(Ordering::Relaxed) {
            break;
        }
        observer.step_started(number, step);
        let plan = StepPlan {
            address: options.address.clone(),
            run: run_number,
            step: u8::try_from(number).unwrap_or(u8::MAX),
            seed: options.seed,
            members: step.concurrency,
            think: step.think_time_ms,
            late_ms: options.late_ms,
            room: format!("load-{run_number:04x}-{number}"),
            core: None,
        };
        let result = StepRun::start(step, &plan, options)
            .and_then(|running| running.finish(options, observer));
        let report = match result {
            Ok(report) => report,
            // What was measured before is worth more than the error alone, so the error goes into the report.
            Err(error) if !steps.is_empty() => {
                steps.push(StepReport::failed(step, error.to_string()));
                break;
            }
            Err(error) => return Err(error),
        };
        observer.step_ended(&report);
        steps.push(report);
    }
    Ok(Report::new(
        RunFacts {
            target_server: address,
            start_time,
            end_time: SystemTime::now(),
            total_duration_secs: started.elapsed().as_secs_f64(),
            seed: options.seed,
            env: options.environment.clone(),
            interrupted: options.stop.load(Ordering::Relaxed),
        },
        steps,
    ))
}

/// Sees whether there is a server, and whether it has rooms: a run that can measure nothing must not take its time.
fn try_out(address: &str, options: &RunOptions) -> Result<(), RunError> {
    let limits = Limits {
        handshake_timeout: options.answer_timeout,
        ..Limits::default()
    };
    let client = Client::builder()
        .poller(options.poller)
        .limits(limits)
        .request_timeout(options.answer_timeout)
        .connect(address)
        .map_err(|source| RunError::Target {
            address: address.to_owned(),
            source,
        })?;
    // A server with rooms knows this question, though its answer to somebody who is in none is a refusal. To join would
    // be one login more than the report accounts for.
    let asked = client.list(0);
    client.close();
    match asked {
        Err(
            source @ (RequestError::Refused {
                code: ErrorCode::Unsupported | ErrorCode::NotFound,
                ..
            }
            | RequestError::MalformedReply
            | RequestError::TimedOut),
        ) => Err(RunError::NoRooms {
            address: address.to_owned(),
            source,
        }),
        // Whatever else is the matter with it, the report will tell.
        _ => Ok(()),
    }
}

fn check_descriptors(step: &Step) -> Result<(), RunError> {
    let needed = u64::from(step.concurrency) + DESCRIPTORS_RESERVED;
    let limit = descriptor_limit().soft;
    if limit < needed {
        return Err(RunError::Descriptors {
            step: step.name.clone(),
            needed,
            limit,
        });
    }
    Ok(())
}

/// Many agents may log in to a server on a busy machine; one that says nothing for so long is silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Descriptors besides the agents': standard streams, pollers, doorbells, files.
const DESCRIPTORS_RESERVED: u64 = 64;
