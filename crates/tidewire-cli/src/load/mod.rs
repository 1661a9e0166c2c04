//! `tidewire load`: runs a scenario and reports.

mod child;
mod merge;
mod progress;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::json;
use tidewire::io::affinity::available_cores;
use tidewire::io::poller::{POLLER_VARIABLE, PollerChoice};
use tidewire::{Address, Endpoint};
use tidewire_load::environment::Environment;
use tidewire_load::report::{Conclusion, MergeKind, Report, WrittenReport};
use tidewire_load::run::{RunError, RunOptions};
use tidewire_load::scenario::{SEED_DEFAULT, Scenario};
use tidewire_load::segment::{Segment, parse_start};

use self::child::{ChildOptions, ChildServer};
pub(crate) use self::merge::{MergeArguments, ReportArguments, run_merge, run_report};
use self::progress::View;
use crate::connection::{CodecArgument, Need, parse_seconds};
use crate::failure::Failure;
use crate::logging::LogArguments;
use crate::signals;

/// Run a load test and write a report. Without arguments: start a chat server of our own on a free port and
/// run the built-in scenario of two steps (about a minute).
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LoadArguments {
    /// Scenario file; without it the built-in one.
    file: Option<PathBuf>,
    /// Test the server at this address instead of the scenario's host and port.
    #[arg(long, value_name = "ADDR", conflicts_with = "serve")]
    target: Option<Address>,
    /// Start a chat server of our own for the run. The default when neither FILE nor --target is given.
    #[arg(long)]
    serve: bool,
    /// Directory for report.html, report.json, report.md, report.csv, report.junit.xml and report.hlog.
    #[arg(long, value_name = "DIR", default_value = "tidewire-report")]
    out: PathBuf,
    /// Seed of all random choices; the same seed offers the same load. Default: the scenario's, or 42.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run the whole scenario so often, each time against a fresh server process if it is our own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// Run only the K-th of N shares of the scenario; `tidewire merge` puts the reports together.
    #[arg(long, value_name = "K/N", conflicts_with_all = ["serve", "repeat"])]
    segment: Option<Segment>,
    /// When the first step begins to send, for shares that start together: RFC 3339, or seconds since 1970.
    #[arg(long, value_name = "T", value_parser = parse_start, requires = "segment")]
    start_at: Option<SystemTime>,
    /// Shorten every step to at most 3 seconds.
    #[arg(long)]
    quick: bool,
    /// Threads that carry the agents. Default: the cores that are left beside the server, at least 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    client_lanes: Option<u16>,
    /// Keep server and agents on cores of their own, where there are two.
    #[arg(long, value_enum, default_value_t = Pin::Auto)]
    pin: Pin,
    /// How the agents, and a server of our own, wait for sockets.
    #[arg(long, value_name = "auto|epoll|poll|select|uring", env = POLLER_VARIABLE, default_value = "auto")]
    poller: PollerChoice,
    /// Longest time, in milliseconds, that a server of our own holds a message back for others to share its write.
    #[arg(long, value_name = "N", default_value_t = 5.0)]
    coalesce_ms_max: f64,

    #[command(flatten)]
    codec: CodecArgument,

    /// How long the server may take to let an agent in, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = parse_seconds)]
    #[arg(allow_negative_numbers = true)]
    timeout: Duration,

    /// Print a JSON object per step, {"event":"step","step":…} as in the report, and one at the end, {"event":"report",…}.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pin {
    Auto,
    Off,
}

/// Runs the test; the exit code says whether anything was lost.
pub(crate) fn run(arguments: &LoadArguments) -> anyhow::Result<ExitCode> {
    Need::Rooms.check(&arguments.codec.codec, "a load test")?;
    let scenario = read_scenario(arguments)?;
    check_directory(&arguments.out)?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    signals::watch(move || {
        // The first signal lets the report be written; the second ends the program at once.
        if stopped.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
        true
    })?;
    let repeat = match arguments.segment {
        Some(_) => 1,
        None => arguments.repeat.unwrap_or(scenario.repeat),
    };
    let mut reports = Vec::new();
    for run in 1..=repeat {
        if repeat > 1 {
            // Progress is for whoever watches; a closed standard error is no reason to stop.
            let _ = writeln!(std::io::stderr().lock(), "run {run} of {repeat}");
        }
        reports.push(run_once(arguments, &scenario, &stop)?);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let report = Report::merge(&reports, MergeKind::Runs)?;
    let written = write(&report, &arguments.out)?;
    Ok(conclude(&report, &written, arguments.json))
}

/// One run of the whole scenario, with a server of its own if it is to have one.
fn run_once(
    arguments: &LoadArguments,
    scenario: &Scenario,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Report> {
    let (server_core, client_cores) = cores(arguments);
    let own = arguments.serve || (arguments.file.is_none() && arguments.target.is_none());
    let child = own
        .then(|| {
            let (app, codec) = server_for(scenario)?;
            ChildServer::start(&ChildOptions {
                app,
                codec,
                poller: arguments.poller,
                coalesce_ms_max: arguments.coalesce_ms_max,
                core: server_core,
            })
        })
        .transpose()?;
    let address = match (&child, &arguments.target) {
        (Some(child), _) => child.address().clone(),
        (None, Some(target)) => target.resolve()?,
        (None, None) => scenario
            .target
            .parse::<Address>()
            .and_then(|address| address.resolve())?,
    };
    let mut options = options(arguments, address, Arc::clone(stop), client_cores);
    options.seed = arguments.seed.or(scenario.seed).unwrap_or(SEED_DEFAULT);
    options.server_pid = child.as_ref().map(ChildServer::pid);
    let mut view = View::new(scenario.steps.len(), arguments.json);
    view.announce(scenario, &options);
    let result = tidewire_load::run::run(scenario, &options, &mut view);
    view.finish();
    let report = result.map_err(|error| match error {
        RunError::Descriptors { .. } | RunError::Segment { .. } => {
            Failure::configuration(error.to_string(), "").into()
        }
        RunError::NoRooms { ref source, .. } => {
            let what = format!("{error}: {source}");
            let remedy = "test a chat server: start it with `tidewire serve --app chat`";
            Failure::refused(what, remedy).into()
        }
        error => anyhow::Error::from(error),
    })?;
    if let Some(child) = child {
        child.stop();
    }
    Ok(report)
}

/// The application and codec of a server of our own that all steps can be run against.
fn server_for(scenario: &Scenario) -> anyhow::Result<(&'static str, &str)> {
    let mut apps = scenario.steps.iter().map(|step| step.pattern.app());
    let first = apps.next().unwrap_or("chat");
    if let Some(other) = apps.find(|app| *app != first) {
        let what = format!("the steps need servers of two kinds, {first} and {other}");
        let remedy = "give them scenarios of their own, or test a running server with --target";
        return Err(Failure::configuration(what, remedy).into());
    }
    let codec = scenario.steps.first().map_or("tw1", |step| &step.codec);
    Ok((first, codec))
}

/// A minute of measuring must not end at a directory that cannot be written.
fn check_directory(directory: &Path) -> anyhow::Result<()> {
    let probe = directory.join(".tidewire-probe");
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(&probe, "can this directory be written?"))
        .and_then(|()| std::fs::remove_file(&probe))
        .map_err(|error| {
            let what = format!(
                "cannot write the report to {}: {error}",
                directory.display()
            );
            Failure::configuration(what, "name another directory with --out").into()
        })
}

fn read_scenario(arguments: &LoadArguments) -> anyhow::Result<Scenario> {
    let scenario = match &arguments.file {
        None => Scenario::built_in(),
        Some(path) => {
            let (scenario, warnings) = Scenario::load(path)
                .map_err(|error| Failure::configuration(describe(&error), ""))?;
            let mut stderr = std::io::stderr().lock();
            for warning in warnings {
                writeln!(stderr, "warning: {warning}")?;
            }
            scenario
        }
    };
    Ok(if arguments.quick {
        scenario.quick()
    } else {
        scenario
    })
}

fn options(
    arguments: &LoadArguments,
    address: Endpoint,
    stop: Arc<AtomicBool>,
    cores: Vec<usize>,
) -> RunOptions {
    let spare = available_cores().len().saturating_sub(1).max(1);
    let mut options = RunOptions::new(address);
    options.answer_timeout = arguments.timeout;
    options.segment = arguments.segment.unwrap_or(Segment::WHOLE);
    options.start_at = arguments.start_at;
    options.lanes = arguments.client_lanes.map_or(spare, usize::from);
    options.cores = cores;
    options.poller = arguments.poller;
    options.environment = Environment::detect(env!("CARGO_PKG_VERSION"), env!("TIDEWIRE_COMMIT"));
    options.stop = stop;
    options
}

/// The core for a server of our own and those for the agents; none on a machine with one core or by choice.
fn cores(arguments: &LoadArguments) -> (Option<usize>, Vec<usize>) {
    let mut cores = available_cores();
    if arguments.pin == Pin::Off || cores.len() < 2 || arguments.target.is_some() {
        return (None, Vec::new());
    }
    let server = cores.remove(0);
    (Some(server), cores)
}

/// An error with its causes on one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Writes a report in all its forms; one that contradicts itself is an error, with its files to be looked at.
fn write(report: &Report, directory: &Path) -> anyhow::Result<WrittenReport> {
    let written = report
        .write_to(directory)
        .with_context(|| format!("cannot write the report to {}", directory.display()))?;
    report
        .validate()
        .context("the report contradicts itself; please report this as a bug")?;
    Ok(written)
}

/// Says where the report is and what the run comes to.
fn conclude(report: &Report, written: &WrittenReport, json: bool) -> ExitCode {
    let conclusion = report.conclusion();
    let word = match conclusion {
        Conclusion::Invalid => "INVALID measurement",
        Conclusion::SloFailed => "limit broken",
        _ => report.status.name(),
    };
    let mut stdout = std::io::stdout().lock();
    // Whoever reads the tables may have closed the pipe; the files are written all the same.
    let (json_file, page) = (written.json.display(), written.html.display());
    let _ = if json {
        let object = json!({
            "event": "report",
            "status": report.status.name(),
            "conclusion": word,
            "json": json_file.to_string(),
            "markdown": written.markdown.display().to_string(),
            "html": page.to_string(),
        });
        writeln!(stdout, "{object}")
    } else {
        writeln!(stdout, "{word}: {page} and {json_file}")
    };
    match conclusion {
        Conclusion::Passed => ExitCode::SUCCESS,
        Conclusion::Failed => ExitCode::from(LOST),
        Conclusion::SloFailed => ExitCode::from(SLO_FAILED),
        Conclusion::Invalid => ExitCode::from(INVALID),
        Conclusion::Interrupted => ExitCode::from(INTERRUPTED),
    }
}

/// Whether the live view may move the cursor.
fn is_interactive() -> bool {
    std::io::stderr().is_terminal()
}

/// Exit code of a run that lost, duplicated or failed something.
const LOST: u8 = 1;

/// Exit code of a run whose measurement is not to be believed.
const INVALID: u8 = 90;

/// Exit code of a run that broke a limit.
const SLO_FAILED: u8 = 99;

/// Exit code of a run that was stopped: what a shell calls an interrupt.
const INTERRUPTED: u8 = 130;

const EXAMPLES: &str = "\
Examples:
  tidewire load                                   the built-in test against a server of our own
  tidewire load --quick                           the same in a few seconds
  tidewire load scenarios/chat-8m.toml --serve    8 million deliveries a second
  tidewire load FILE.toml --target tcp://HOST:PORT --out report
  tidewire load FILE.toml --serve --repeat 6      six runs, each against a fresh server process
  tidewire load FILE.toml --target tcp://HOST:PORT --segment 2/3 --start-at 2026-11-22T12:00:00Z --out part-2

Exit codes: 0 nothing was lost, 1 something was, 2 bad arguments or scenario, 3 server not reachable, 4 it has no \
rooms, 130 interrupted; scenarios of version 2 also: 90 the measurement is invalid, 99 a limit was broken.

docs/scenario.md has every key of a scenario.";
