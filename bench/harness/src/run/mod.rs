//! One run: a server and a driver, fresh processes, and what they did and cost between two moments.

mod disturbance;

use std::fmt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;
use tidewire_load::process::MachineSample;

pub use self::disturbance::Disturbance;
use self::disturbance::WAITED_WINDOW_MIN;
use crate::child::{Child, ChildError};
use crate::contract::{Account, Driver, Line, Measured, Work};
use crate::cost::Cost;
use crate::program::Program;
use crate::suites;

/// The programs that play the parts of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cast<'a> {
    pub(super) server: &'a Program,
    pub(super) driver: &'a Program,
    /// The owner of the driver.
    pub(super) kind: Driver,
}

/// Where the parts run. Empty: anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cores {
    pub(super) server: Vec<usize>,
    pub(super) driver: Vec<usize>,
    /// For work within one process.
    pub(super) both: Vec<usize>,
}

impl Cores {
    /// The first two of these, if there are so many.
    pub(super) fn of(available: &[usize]) -> Self {
        match available {
            [server, driver, ..] => Self {
                server: vec![*server],
                driver: vec![*driver],
                both: vec![*server, *driver],
            },
            _ => Self::default(),
        }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.server.first(), self.driver.first()) {
            (Some(server), Some(driver)) => write!(
                formatter,
                "servers on core {server}, drivers on core {driver}; work within one process on both"
            ),
            _ => formatter.write_str("not pinned: the system places all processes"),
        }
    }
}

/// How long programs are waited for: a rival that says nothing must not stop the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a server that starts. Default 30 s: a broker with a runtime of its own takes seconds.
    pub ready: Duration,
    /// For what a driver takes beyond its warm-up and its window. Default 30 s: ten thousand connections, or tasks that
    /// are counted instead of timed.
    pub slack: Duration,
    /// For an account. Default 10 s.
    pub answer: Duration,
    /// For a next message on its way, behind which everything that has not come is lost. Default 2 s.
    pub quiet: Duration,
    /// For a program that was told to end; then it is killed. Default 5 s.
    pub end: Duration,
    /// The same when its run has failed or was stopped. Default 1 s.
    pub grace: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            ready: Duration::from_secs(30),
            slack: Duration::from_secs(30),
            answer: Duration::from_secs(10),
            quiet: Duration::from_secs(2),
            end: Duration::from_secs(5),
            grace: Duration::from_secs(1),
        }
    }
}

/// The terms that are the same for every run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub(super) cores: &'a Cores,
    pub(super) timeouts: &'a Timeouts,
    pub(super) stop: &'a AtomicBool,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) measured: Measured,
    /// Nanoseconds of processor time; nothing where the work has no server.
    pub(super) server_cpu_ns: Option<f64>,
    pub(super) driver_cpu_ns: f64,
    pub(super) server_allocated_bytes: Option<u64>,
    pub(super) server_rss_bytes_max: Option<u64>,
    pub(super) driver_rss_bytes_max: u64,
    pub(super) stolen_pct: Option<f64>,
    /// Processor time in percent of the window: 100 is one core.
    pub(super) server_busy_pct: Option<f64>,
    pub(super) driver_busy_pct: f64,
    /// Share of the window in which one of the two waited for a core that others had, in percent; nothing of a window
    /// that is too short for that.
    pub(super) waited_pct: Option<f64>,
}

/// A run came to nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// One of its programs failed.
    #[error("the {part} failed; to see it alone: {command}")]
    Part {
        /// `server` or `driver`.
        part: &'static str,
        /// How to play the part by hand.
        command: String,
        /// The failure of the program.
        source: ChildError,
    },
    /// There is no place for the files of its programs.
    #[error(
        "cannot make a directory for temporary files; see that the one named by TMPDIR, or /tmp, can be written"
    )]
    Directory(#[source] std::io::Error),
    /// A driver that cannot know what became of its messages has a server that does not count them.
    #[error(
        "the server does not say how many messages it took, and the driver cannot know; one of them must"
    )]
    NotCounted,
    /// More messages than a processor can touch in this time.
    #[error(
        "{messages} messages in {seconds} s are impossible: no processor touches more than {MESSAGES_PER_SEC_MAX:e} a \
         second; correct what the driver counts, and its clock"
    )]
    Impossible {
        /// The messages that the driver, or the server, says to have counted.
        messages: u64,
        /// The time that this took, in seconds.
        seconds: f64,
    },
}

impl RunError {
    /// Whether it is only that the user stopped everything.
    pub(super) fn is_stop(&self) -> bool {
        let Self::Part { source, .. } = self else {
            return false;
        };
        matches!(source, ChildError::Stopped)
    }
}

/// Where a program runs, and how long it may stay there when it is no longer wanted.
struct Placement<'a> {
    cores: &'a [usize],
    /// For its temporary files.
    directory: &'a Path,
    environment: &'a [(&'a str, &'a str)],
    grace: Duration,
}

/// A program in its part.
struct Player {
    part: &'static str,
    command: String,
    child: Child,
}

impl Player {
    fn start(
        part: &'static str,
        program: &Program,
        arguments: &[&str],
        placement: &Placement<'_>,
    ) -> Result<Self, RunError> {
        let verb = if part == SERVER { "serve" } else { "drive" };
        let mut command = program.command(verb, arguments);
        command.env("TMPDIR", placement.directory);
        command.envs(placement.environment.iter().copied());
        let shown = shown(&command);
        match Child::start(command, placement.cores, placement.grace) {
            Ok(child) => Ok(Self {
                part,
                command: shown,
                child,
            }),
            Err(source) => Err(RunError::Part {
                part,
                command: shown,
                source,
            }),
        }
    }

    fn failed(&self, source: ChildError) -> RunError {
        RunError::Part {
            part: self.part,
            command: self.command.clone(),
            source,
        }
    }

    fn hear(
        &mut self,
        expected: &[&'static str],
        timeout: Duration,
        stop: &AtomicBool,
    ) -> Result<Line, RunError> {
        let said = self.child.hear::<Line>(timeout, stop);
        let said = said.map_err(|source| self.failed(source))?;
        if expected.contains(&said.name()) {
            return Ok(said);
        }
        let expected = expected.join(" or ");
        Err(self.failed(ChildError::OutOfTurn(said.name(), expected)))
    }

    /// Reads the counts of a driver that has announced the end of its window.
    fn measured(&mut self, terms: &Terms<'_>) -> Result<Measured, RunError> {
        match self.hear(&["measured"], terms.timeouts.slack, terms.stop)? {
            Line::Measured(measured) => Ok(measured),
            _ => Err(RunError::NotCounted),
        }
    }

    fn account(&mut self, terms: &Terms<'_>) -> Result<Account, RunError> {
        let asked = self.child.ask();
        let heard = asked.and_then(|()| self.child.hear(terms.timeouts.answer, terms.stop));
        heard.map_err(|source| self.failed(source))
    }

    fn finish(mut self, terms: &Terms<'_>) -> Result<(), RunError> {
        let finished = self.child.finish(terms.timeouts.end);
        finished.map_err(|source| self.failed(source))
    }
}

/// The accounts of both parts at one moment: an end of the window.
struct Moment {
    server: Option<(Account, Cost)>,
    driver: Cost,
    /// When the server gave its account.
    at: Instant,
}

impl Moment {
    fn take(
        server: &mut Option<Player>,
        driver: &Player,
        terms: &Terms<'_>,
    ) -> Result<Self, RunError> {
        let driver = Cost::of(driver.child.id());
        let take = |server: &mut Player| {
            let cost = Cost::of(server.child.id());
            Ok((server.account(terms)?, cost))
        };
        let server = server.as_mut().map(take).transpose()?;
        Ok(Self {
            server,
            driver,
            at: Instant::now(),
        })
    }
}

/// Makes one run.
pub(super) fn run_once(
    cast: &Cast<'_>,
    work: &Work,
    terms: &Terms<'_>,
) -> Result<Outcome, RunError> {
    let Terms {
        cores,
        timeouts,
        stop,
    } = *terms;
    // The programs' files are the runner's to remove: a program that is killed cannot. It is dropped last.
    let directory = tempfile::Builder::new().prefix("tidewire-bench-").tempdir();
    let directory = directory.map_err(RunError::Directory)?;
    let placement = |cores| Placement {
        cores,
        directory: directory.path(),
        environment: suites::environment(work),
        grace: timeouts.grace,
    };
    let mut work = work.clone();
    let mut server = None;
    let mut address = "-".to_owned();
    let mut driver_cores = &cores.both;
    if work.has_server() {
        let argument = as_argument(&work);
        let mut player =
            Player::start(SERVER, cast.server, &[&argument], &placement(&cores.server))?;
        if let Line::Ready(ready) = player.hear(&["ready"], timeouts.ready, stop)? {
            address = ready;
        }
        server = Some(player);
        driver_cores = &cores.driver;
    } else {
        work.cores.clone_from(&cores.both);
    }
    if let Some(dialect) = cast.kind.dialect() {
        dialect.clone_into(&mut work.codec);
    }
    let arguments = [address.as_str(), &as_argument(&work)];
    let mut driver = Player::start(DRIVER, cast.driver, &arguments, &placement(driver_cores))?;

    let longest = Duration::from_millis(work.warm_up_ms) + timeouts.slack;
    driver.hear(&["started"], longest, stop)?;
    let machine = MachineSample::read();
    let before = Moment::take(&mut server, &driver, terms)?;
    let longest = Duration::from_millis(work.measure_ms) + timeouts.slack;
    let said = driver.hear(&["stopped", "measured"], longest, stop)?;
    let after = Moment::take(&mut server, &driver, terms)?;
    let stolen_pct = machine.and_then(|before| MachineSample::read()?.stolen_pct_since(&before));
    let mut measured = match said {
        Line::Measured(measured) => measured,
        _ => driver.measured(terms)?,
    };
    if let Some(sent) = measured.sent {
        count_one_way(&mut measured, sent, &before, &after, &mut server, terms)?;
    }
    let &Measured {
        messages, seconds, ..
    } = &measured;
    // Also for no time at all, and for a time that is no number.
    let is_possible = messages as f64 <= seconds * MESSAGES_PER_SEC_MAX;
    if !is_possible {
        return Err(RunError::Impossible { messages, seconds });
    }
    driver.finish(terms)?;
    server.map_or(Ok(()), |server| server.finish(terms))?;
    Ok(outcome(measured, &before, &after, stolen_pct))
}

/// Takes what was sent one way from the server's accounts: how many came meanwhile, and in the end.
fn count_one_way(
    measured: &mut Measured,
    sent: u64,
    before: &Moment,
    after: &Moment,
    server: &mut Option<Player>,
    terms: &Terms<'_>,
) -> Result<(), RunError> {
    let count = |moment: &Moment| moment.server.as_ref()?.0.messages;
    let (Some(first), Some(last), Some(server)) = (count(before), count(after), server) else {
        return Err(RunError::NotCounted);
    };
    measured.messages = last.saturating_sub(first);
    measured.seconds = after.at.duration_since(before.at).as_secs_f64();
    let (mut counted, mut moved) = (last, Instant::now());
    while counted < sent && moved.elapsed() < terms.timeouts.quiet {
        thread::sleep(ASK_EVERY);
        let now = server.account(terms)?.messages.unwrap_or(0);
        if now > counted {
            (counted, moved) = (now, Instant::now());
        }
    }
    // A duplicate may come after everything else.
    thread::sleep(ASK_AGAIN);
    let account = server.account(terms)?;
    counted = account.messages.unwrap_or(counted);
    // More than was sent is as wrong as less.
    measured.lost = sent.abs_diff(counted);
    measured.dropped = account.dropped.unwrap_or(0).min(measured.lost);
    Ok(())
}

fn outcome(
    measured: Measured,
    before: &Moment,
    after: &Moment,
    stolen_pct: Option<f64>,
) -> Outcome {
    let server = before.server.as_ref().zip(after.server.as_ref());
    let window = after.at.duration_since(before.at);
    let pct = |time_ns: f64| time_ns / window.as_nanos() as f64 * 100.0;
    let server_cpu_ns = server.map(|((_, before), (_, after))| after.cpu_ns_since(before));
    let driver_cpu_ns = after.driver.cpu_ns_since(&before.driver);
    let server_waited_ns = server.map(|((_, before), (_, after))| after.waited_ns_since(before));
    let driver_waited_ns = after.driver.waited_ns_since(&before.driver);
    let waited_ns = driver_waited_ns.max(server_waited_ns.unwrap_or_default());
    Outcome {
        server_busy_pct: server_cpu_ns.map(pct),
        driver_busy_pct: pct(driver_cpu_ns),
        waited_pct: (window >= WAITED_WINDOW_MIN).then(|| pct(waited_ns)),
        server_cpu_ns,
        driver_cpu_ns,
        server_allocated_bytes: server.and_then(|((before, _), (after, _))| {
            after.allocated_bytes?.checked_sub(before.allocated_bytes?)
        }),
        server_rss_bytes_max: server.map(|(_, (_, cost))| cost.rss_bytes_max),
        driver_rss_bytes_max: after.driver.rss_bytes_max,
        stolen_pct,
        measured,
    }
}

impl Line {
    fn name(&self) -> &'static str {
        match self {
            Self::Ready(_) => "ready",
            Self::Started(_) => "started",
            Self::Stopped(_) => "stopped",
            Self::Measured(_) => "measured",
        }
    }
}

impl Driver {
    /// The name in [`Work::codec`] that makes a driver of the benchmark speak a rival's protocol.
    pub(super) fn dialect(self) -> Option<&'static str> {
        match self {
            Self::Own | Self::Bare => None,
            Self::Centrifuge => Some("centrifuge"),
            Self::Websocket => Some("websocket"),
            Self::Nats => Some("nats"),
            Self::Redis => Some("redis"),
            Self::Zmtp => Some("zmtp"),
            Self::Sp => Some("sp"),
            Self::Length => Some("length"),
        }
    }
}

fn as_argument(work: &Work) -> String {
    serde_json::to_string(work).expect("numbers and texts can be expressed")
}

/// A command as a person would type it.
fn shown(command: &std::process::Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        let argument = argument.to_string_lossy();
        let quote = if argument.contains(['"', ' ']) {
            "'"
        } else {
            ""
        };
        text.push_str(&format!(" {quote}{argument}{quote}"));
    }
    text
}

/// The largest rate that is believed. A message costs an instruction at least, and two cores of 5 GHz do 10^10 of them.
const MESSAGES_PER_SEC_MAX: f64 = 1e10;

const SERVER: &str = "server";
const DRIVER: &str = "driver";

/// How long nothing more is to come behind what was sent.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// How often a server is asked for what is still on its way.
const ASK_EVERY: Duration = Duration::from_millis(5);
