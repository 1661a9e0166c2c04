//! Runs a scenario against a server, step by step.
//!
//! ```text
//! connect, log in ──▶ barrier ──▶ warm-up ──▶ steady window ──▶ stop sending ──▶ drain ──▶ close accounts
//! ```
//!
//! Rates of the steady window are not diluted by connecting and draining; the totals of the old report are
//! kept beside them. A step ends when every expected delivery has arrived, or when nothing has arrived for
//! the length of the drain. Then the measurement itself is judged, and after it what the step was to keep.

mod causes;
mod check;
mod codec;
mod facts;
mod faults;
mod outcome;
mod step;
mod verdict;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use thiserror::Error;
use tidewire::tls::ClientTls;
use tidewire::{
    Address, AnyCodec, Client, ConnectError, DATAGRAM_FRAME_BYTES_MAX, Endpoint, Limits,
    RequestError, ServeError,
};
use tidewire_io::poller::PollerChoice;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::{Codec, CodecSpecError, Tw1};

use self::check::check;
use self::codec::codec_of;
pub use self::faults::ServerProcess;
use self::step::StepRun;
use crate::agents::StepPlan;
use crate::clock::Clock;
use crate::credentials::{TokenSource, TokensError};
use crate::environment::Environment;
use crate::exchange::SentTimes;
use crate::format::utc;
use crate::ledger::LATE_MS;
use crate::report::{Report, Second, StepReport, Verdict};
use crate::scenario::{Load, Pattern, Scenario, Step};
use crate::schedule::mix;
use crate::segment::Segment;

/// How to run a scenario.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The servers: one, or the nodes of a cluster, over which the agents are spread.
    pub targets: Vec<Endpoint>,
    /// The addresses of the targets as they were given, in the same order. If there are some, the run connects to each
    /// before its first step, and takes the endpoint that answers: a host name may have several.
    pub names: Vec<Address>,
    /// The authorities that the agents trust at a `tls://` address, and the certificate that they show.
    pub tls: ClientTls,
    /// Where the agents get their tokens, if a server knows them by tokens.
    pub tokens: Option<TokenSource>,
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
    /// The share of the scenario that is run here.
    pub segment: Segment,
    /// Wall-clock time at which the first step begins to send, for parts that shall do so together. It is translated to
    /// the monotonic clock once.
    pub start_at: Option<SystemTime>,
    /// A delivery later than this after its intended time counts as late, in milliseconds.
    pub late_ms: u64,
    /// The processes that were started for the run, whose use of the machine shall be reported.
    pub processes: Vec<Arc<dyn ServerProcess>>,
    /// Where times come from.
    pub clock: Clock,
    /// Machine and build, for the report.
    pub environment: Environment,
    /// Set from outside to stop early; the report then says so.
    pub stop: Arc<AtomicBool>,
}

impl RunOptions {
    /// One client lane and the default grace times.
    pub fn new(targets: Vec<Endpoint>) -> Self {
        Self {
            targets,
            names: Vec::new(),
            tls: ClientTls::new(),
            tokens: None,
            seed: 0,
            lanes: 1,
            cores: Vec::new(),
            poller: PollerChoice::default(),
            answer_timeout: ANSWER_TIMEOUT,
            segment: Segment::WHOLE,
            start_at: None,
            late_ms: LATE_MS,
            processes: Vec::new(),
            clock: Clock::default(),
            environment: Environment::detect(env!("CARGO_PKG_VERSION"), "unknown"),
            stop: Arc::new(AtomicBool::new(false)),
        }
    }

    /// The addresses of the servers, for people.
    pub fn addresses(&self) -> String {
        let texts: Vec<String> = self.targets.iter().map(ToString::to_string).collect();
        texts.join(", ")
    }
}

worded! {
    /// Where a step is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Phase {
        /// Agents connect and log in.
        Login = "login",
        /// Messages are sent; the steady window has not begun.
        WarmUp = "warm_up",
        /// Messages are sent and count for the steady rates.
        Steady = "steady",
        /// Nothing is sent; what is under way arrives.
        Drain = "drain",
    }
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
    /// The figures since the last look.
    pub second: Second,
    /// Connections lost and sends refused so far.
    pub errors: u64,
    /// The verdict on the measurement of the steady window so far; without doubts before the window begins.
    pub verdict: Verdict,
}

/// Watches a run.
pub trait Observer {
    /// A step begins.
    fn step_started(&mut self, _number: usize, _step: &Step) {}

    /// About once a second.
    fn progress(&mut self, _progress: &Progress) {}

    /// A step ended.
    fn step_ended(&mut self, _report: &StepReport) {}
}

/// An observer that looks away.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// A run could not begin, or failed in its first step. After that a failure is in the report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The tokens of the agents cannot be got.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The codec has no place for the tokens.
    #[error(
        "step {0:?} cannot run with tokens: codec {1} has no place for them; use codec = \"tw1\", or let the server know the \
         agents by their address or Unix user"
    )]
    NoPlaceForTokens(String, &'static str),
    /// The server cannot be reached or does not speak the native protocol.
    #[error("cannot log in at {0}")]
    Target(String, #[source] ConnectError),
    /// The server has no rooms, so that there is nothing to measure. Start one with `tidewire serve --app chat`.
    #[error("the server at {0} has no rooms; start one with `tidewire serve --app chat`")]
    NoRooms(String, #[source] RequestError),
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
    /// The codec's name or a parameter is wrong. A scenario that was read from a file has none such.
    #[error("step {0:?} cannot run")]
    Codec(String, #[source] CodecSpecError),
    /// Requests that are matched by their order, over a transport that may lose some.
    #[error(
        "step {0:?} cannot run over udp://: replies of {1} are matched by their order, which a lost datagram shifts; \
         use tcp://, or a codec with ids (tw1, json, srmp, srmp-rpc, uvrpc)"
    )]
    Unmatched(String, &'static str),
    /// Messages that no datagram holds.
    #[error(
        "step {step:?} cannot run over udp://: its messages are frames of {bytes} bytes and a datagram holds {}; lower \
         payload_bytes",
        DATAGRAM_FRAME_BYTES_MAX
    )]
    TooLarge {
        /// Name of the step.
        step: String,
        /// Bytes of a message with its frame.
        bytes: usize,
    },
    /// Messages that the codec cannot carry. Lower `payload_bytes`, or name another codec.
    #[error(
        "step {step:?} cannot run: {codec} cannot carry its messages with payloads of {payload_bytes} bytes: {cause}; lower \
         payload_bytes, or use another codec"
    )]
    Unencodable {
        /// Name of the step.
        step: String,
        /// Name of the codec.
        codec: &'static str,
        /// Bytes of each payload.
        payload_bytes: u32,
        /// The reason of the codec.
        cause: String,
    },
    /// The messages of a fan-out reach the agents of all parts, so that their accounts can be closed only where this
    /// holds.
    #[error(
        "step {0:?} cannot be run in parts, because its messages reach the agents of all of them: {1}"
    )]
    Segment(String, &'static str),
    /// A fault has no process that this run started.
    #[error(
        "step {0:?} has a fault for {1:?}, and this run starts no such process; let it start the cluster with --serve, --nodes and \
         --backplane nats"
    )]
    NoProcess(String, String),
    /// The scenario sets the histories of servers, and the run starts none.
    #[error(
        "the scenario gives its servers a history, and this run starts none; leave `history` out, or let it start them with --serve"
    )]
    NoHistory,
    /// The causes of losses can be found only where each pair of agents is tracked.
    #[error(
        "step {0:?} has faults and too many agents to account for each pair; use at most 1,000 agents"
    )]
    Untracked(String),
    /// The options name no server. Name at least one.
    #[error("there is no server to test; name one with --target, or use --serve")]
    NoTarget,
    /// The nodes are reached in ways that frame messages differently. Name addresses of one kind.
    #[error("some targets are udp:// addresses and others are not; name targets of one kind")]
    MixedTargets,
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
    for step in &scenario.steps {
        check(scenario, step, options)?;
    }
    let mut options = options.clone();
    for index in 0..options.targets.len() {
        options.targets[index] = try_out(scenario, index, &options)?;
    }
    let options = &options;
    let (start_time, started) = (options.clock.wall(), Instant::now());
    let run_number = run_number(options);
    let mut starts = Starts::new(options);
    let mut steps = Vec::new();
    for (number, step) in scenario.steps.iter().enumerate() {
        if options.stop.load(Ordering::Relaxed) {
            break;
        }
        observer.step_started(number, step);
        let plan = plan(scenario, step, options, (run_number, number))?;
        let start_ns = starts.next(step);
        let result = StepRun::start(&plan, options, scenario.guard, observer)
            .and_then(|running| running.finish(start_ns));
        let report = match result {
            Ok(report) => report,
            // Earlier measurements are worth more than the error alone, so the error goes into the report.
            Err(error) if !steps.is_empty() => {
                steps.push(StepReport::failed(step, error.to_string()));
                break;
            }
            Err(error) => return Err(error),
        };
        observer.step_ended(&report);
        steps.push(report);
    }
    let report = Report {
        target_server: options.addresses(),
        start_time_utc: utc(start_time),
        end_time_utc: utc(options.clock.wall()),
        total_duration_secs: started.elapsed().as_secs_f64(),
        seed: options.seed,
        env: options.environment.clone(),
        scenario_version: scenario.version,
        segment: (!options.segment.is_whole()).then_some(options.segment),
        not_run: scenario.steps[steps.len()..]
            .iter()
            .map(|step| step.name.clone())
            .collect(),
        ..Report::default()
    };
    Ok(report.with_steps(steps, options.stop.load(Ordering::Relaxed)))
}

/// Sees whether there is a server, and whether it has the rooms that a chat needs: a run that can measure nothing must
/// not take its time. Returns the endpoint that answers.
fn try_out(scenario: &Scenario, index: usize, options: &RunOptions) -> Result<Endpoint, RunError> {
    let target = &options.targets[index];
    let name = options.names.get(index).map(ToString::to_string);
    let address = &name.unwrap_or_else(|| target.to_string());
    let codec = match scenario.steps.first() {
        Some(step) => codec_of(step, target)?,
        None => AnyCodec::Tw1(Tw1),
    };
    let limits = Limits {
        handshake_timeout: options.answer_timeout,
        ..Limits::default()
    };
    let mut builder = Client::builder();
    if let Some(source) = &options.tokens
        && let Some(token) = source.get()?.first()
    {
        builder = builder.credentials(token.clone());
    }
    let client = builder
        .codec(codec)
        .tls(options.tls.clone())
        .poller(options.poller)
        .limits(limits)
        .request_timeout(options.answer_timeout)
        .connect(address)
        .wait()
        .map_err(|source| RunError::Target(address.to_owned(), source))?;
    let reached = client.endpoint().unwrap_or_else(|| target.clone());
    let needs_rooms = |step: &Step| step.pattern == Pattern::Chat;
    if !scenario.steps.iter().any(needs_rooms) {
        client.close().wait();
        return Ok(reached);
    }
    // A server with rooms knows this question, though its answer to somebody who is in none is a refusal. To join would
    // be one login more than the report accounts for.
    let asked = client.list(0).wait();
    client.close().wait();
    match asked {
        Err(
            source @ (RequestError::Refused {
                code: ErrorCode::Unsupported | ErrorCode::NotFound,
                ..
            }
            | RequestError::MalformedReply
            | RequestError::TimedOut),
        ) => Err(RunError::NoRooms(address.to_owned(), source)),
        // Whatever else is the matter with it, the report will tell.
        _ => Ok(reached),
    }
}

fn plan(
    scenario: &Scenario,
    step: &Step,
    options: &RunOptions,
    (run, number): (u16, usize),
) -> Result<StepPlan, RunError> {
    let senders = step.senders();
    let sent_times = match &step.load {
        Load::Open { stages, .. } if step.pattern.is_fan_out() => {
            let most = stages.iter().map(|stage| stage.from.max(stage.to));
            let rate = most.fold(0.0, f64::max) / f64::from(senders);
            // An answer that comes later than this after its message has no service time, and is counted.
            Some(Arc::new(SentTimes::new(
                senders,
                (rate * SENT_KEPT_SECS) as u64,
            )))
        }
        _ => None,
    };
    Ok(StepPlan {
        targets: options.targets.clone().into(),
        run,
        number: u8::try_from(number).unwrap_or(u8::MAX),
        seed: options.seed,
        clock: options.clock.clone(),
        step: Arc::new(step.clone()),
        is_windowed: scenario.version >= 2,
        segment: options.segment,
        late_ms: options.late_ms,
        history: scenario.history,
        room: match step.pattern {
            Pattern::PubSub => format!("load.{run:04x}.{number}"),
            _ => format!("load-{run:04x}-{number}"),
        },
        ids: codec_of(step, &options.targets[0])?.ids(),
        sent_times,
        sent_counts: (!step.faults.is_empty())
            .then(|| (0..step.concurrency).map(|_| AtomicU64::new(0)).collect()),
        core: None,
    })
}

/// When the steps of parts that start together begin to send.
struct Starts {
    next_ns: Option<u64>,
}

impl Starts {
    fn new(options: &RunOptions) -> Self {
        let next_ns = options.start_at.map(|at| {
            let ahead = at.duration_since(options.clock.wall()).unwrap_or_default();
            let now_ns = options.clock.now_ns();
            now_ns.saturating_add(u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX))
        });
        Self { next_ns }
    }

    /// The start of this step. The next one is far enough behind it for its drain and the logins after that.
    fn next(&mut self, step: &Step) -> Option<u64> {
        let start_ns = self.next_ns?;
        // Catching up and silence each last as long as the drain.
        let length_ns = step.duration_ns() + step.drain_ms * 2_000_000 + BETWEEN_STEPS_NS;
        self.next_ns = Some(start_ns.saturating_add(length_ns));
        Some(start_ns)
    }
}

/// The number that tells the messages and rooms of this run from those of others. Parts that begin together belong to
/// the same run.
fn run_number(options: &RunOptions) -> u16 {
    let Some(start_at) = options.start_at.filter(|_| !options.segment.is_whole()) else {
        return fastrand::u16(..);
    };
    let since = start_at.duration_since(SystemTime::UNIX_EPOCH);
    let start_ns = since.map_or(0, |since| since.as_nanos() as u64);
    mix(mix(start_ns) ^ options.seed) as u16
}

/// Many agents may log in to a server on a busy machine; one that says nothing for so long is silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long receivers of an open fan-out can still find out when a message was sent, in seconds.
const SENT_KEPT_SECS: f64 = 10.0;

/// Between the drain of a step and the start of the next, in parts that start together.
const BETWEEN_STEPS_NS: u64 = 10_000_000_000;
