//! Measuring: the machine's limits, Tidewire and its rivals, side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tidewire_bench::plan::{RowPlan, Side, Suite, choose};
use tidewire_bench::program::{PeerChoice, PeerError, Program};
use tidewire_bench::report::WrittenBench;
use tidewire_bench::suites::{self, SUITES};
use tidewire_bench::{AgainMax, BenchOptions, BenchReport, Progress, Timeouts};
use tidewire_command::failure::Failure;
use tidewire_command::report_directory::take_directory;
use tidewire_command::{output, signals};
use tidewire_io::affinity::available_cores;
use tidewire_load::describe;
use tidewire_load::environment::Environment;

use crate::progress::Teller;

/// The flags of a benchmark.
#[derive(Args, Debug)]
pub(crate) struct MeasureArguments {
    /// Suites to run; all of them if none is named.
    #[arg(value_name = "SUITE")]
    suites: Vec<String>,
    /// Fewer rows, shorter runs and two rounds: to see that everything works, not to quote.
    #[arg(long)]
    quick: bool,
    /// Only the row with this name, or else those whose names contain it, such as `tcp tw1, 16`; may be given more than
    /// once.
    #[arg(long = "row", value_name = "TEXT")]
    row_texts: Vec<String>,
    /// Only the bare limits of this machine.
    #[arg(long, conflicts_with = "peers")]
    limits: bool,
    /// Peers to measure as well: `all`, or their names, separated by commas.
    #[arg(long, value_name = "all|NAME,...", value_delimiter = ',')]
    peers: Vec<String>,
    /// Directory of the peers' programs, which `bench/peers/setup` makes.
    #[arg(long, value_name = "DIR", default_value = "bench/peers/bin")]
    peers_dir: PathBuf,
    /// Directory for bench.json, bench.md and bench.html.
    #[arg(long, value_name = "DIR", default_value = "tidewire-bench")]
    out: PathBuf,
    /// Whether processes are kept on cores of their own.
    #[arg(long, value_enum, default_value_t = Pin::Auto)]
    pin: Pin,
    /// Rounds of each row, each with fresh processes [default: 5, or 2 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    repeat: Option<u16>,
    /// Length of the window of one run in seconds, where a row's work is not a number of tasks or lines [default: 1, or
    /// less with --quick].
    #[arg(long, value_name = "S", value_parser = window_secs)]
    seconds: Option<f64>,
    /// Print the suites and a command for each of their rows, and measure nothing.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pin {
    /// The server on one core and the driver on another, if there are two
    Auto,
    /// The system chooses
    Off,
}

/// Runs the suites and writes the results.
pub(crate) fn run(arguments: &MeasureArguments) -> anyhow::Result<ExitCode> {
    let chosen = chosen(arguments)?;
    if arguments.list {
        return list(&chosen, arguments.quick);
    }
    let suites = chosen.into_iter().map(|(suite, _)| suite).collect();
    let _taken = take_directory(&arguments.out)?;
    let mut teller = Teller::new();
    let options = options(arguments, suites, &mut teller)?;
    let machine = Environment::detect(tidewire_command::VERSION, tidewire_command::COMMIT);
    teller.begin(&options);
    let mut failure = None;
    let report = tidewire_bench::run(&options, machine, &mut |progress| {
        teller.tell(progress);
        // The results of an hour are saved at once and not at the end of the next suite.
        if let Progress::Suite { report } = progress
            && let Err(error) = write(report, &arguments.out)
        {
            failure = Some(error);
            options.stop.store(true, Ordering::Relaxed);
        }
    });
    teller.end();
    if let Some(error) = failure {
        return Err(error);
    }
    show(&report, &arguments.out)
}

/// Writes the results in all their forms, prints the tables and the verdict.
pub(crate) fn show(report: &BenchReport, directory: &Path) -> anyhow::Result<ExitCode> {
    let written = write(report, directory)?;
    output::print(report.to_markdown());
    let html = written.html.display();
    output::note(format_args!("to look at: {html}"));
    conclude(report)
}

/// Returns the named suites, or all, with the chosen rows, as far as they have any.
fn chosen(arguments: &MeasureArguments) -> Result<Vec<(&'static Suite, Vec<RowPlan>)>, Failure> {
    let suites = named(&arguments.suites)?;
    let chosen = choose(&suites, arguments.quick, &arguments.row_texts);
    if chosen.is_empty() {
        let what = format!(
            "no row's name contains `{}`",
            arguments.row_texts.join("` or `")
        );
        let remedy = "see the names with --list, which with --quick are fewer";
        return Err(Failure::configuration(what, remedy));
    }
    Ok(chosen)
}

/// Returns the suites of these names, or all.
fn named(names: &[String]) -> Result<Vec<&'static Suite>, Failure> {
    if names.is_empty() {
        return Ok(SUITES.iter().collect());
    }
    let unknown = |name: &String, nearest: Option<&str>| {
        let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        let remedy = match nearest {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => format!("choose from {}", known.join(", ")),
        };
        Failure::configuration(format!("there is no suite `{name}`"), remedy)
    };
    let named = |name: &String| suites::by_name(name).map_err(|nearest| unknown(name, nearest));
    names.iter().map(named).collect()
}

fn options(
    arguments: &MeasureArguments,
    suites: Vec<&'static Suite>,
    teller: &mut Teller,
) -> anyhow::Result<BenchOptions> {
    let file = std::env::current_exe().context("cannot find this program's own file")?;
    let (mut peers, mut missing_peers) = (Vec::new(), Vec::new());
    if !arguments.peers.is_empty() {
        let choice = if arguments.peers.iter().any(|name| name == "all") {
            PeerChoice::All
        } else {
            PeerChoice::Named(arguments.peers.clone())
        };
        let (found, errors) = Program::peers(&arguments.peers_dir, &choice);
        peers = found;
        // A name on the command line that is no peer is most likely mistyped, and a run without it takes an hour and a
        // half.
        let is_missing = |error: &&PeerError| {
            matches!(error, PeerError::Missing(..) | PeerError::NoDirectory(..))
        };
        if let Some(error) = errors
            .iter()
            .find(is_missing)
            .filter(|_| choice != PeerChoice::All)
        {
            let known: Vec<&str> = peers
                .iter()
                .map(|it| it.description.name.as_str())
                .collect();
            let remedy = match known.is_empty() {
                true => "or leave --peers out".to_owned(),
                false => format!("or leave it out; these are there: {}", known.join(", ")),
            };
            return Err(Failure::configuration(describe(error), remedy).into());
        }
        for error in errors {
            let text = describe(&error);
            teller.say(&format!("left out: {text}"));
            missing_peers.push(text);
        }
    }
    let cores = match arguments.pin {
        Pin::Auto => available_cores(),
        Pin::Off => Vec::new(),
    };
    // Quick figures are not to be quoted, so they are not worth a second run.
    let (rounds, slow) = if arguments.quick {
        (2, 0)
    } else {
        (5, AGAIN_MAX)
    };
    let version = tidewire_command::VERSION;
    let tidewire = (!arguments.limits).then(|| Program::own(&file, Side::Tidewire, version));
    Ok(BenchOptions {
        suites,
        quick: arguments.quick,
        row_texts: arguments.row_texts.clone(),
        measure_ms: arguments.seconds.map(|secs| (secs * 1e3) as u64),
        repeat: arguments.repeat.map_or(rounds, usize::from),
        bare: Program::own(&file, Side::Bare, version),
        tidewire,
        peers,
        missing_peers,
        cores,
        timeouts: Timeouts::default(),
        again_max: AgainMax {
            slow,
            failed: AGAIN_MAX,
        },
        // The command waits for the present run. Its programs end with this process, when their standard input ends.
        stop: signals::stop_flag(WAY_OUT, || {})?,
    })
}

/// Prints the chosen suites: the purpose of a suite as a comment, and each row as the command that measures it.
fn list(chosen: &[(&'static Suite, Vec<RowPlan>)], quick: bool) -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    let quick = if quick { " --quick" } else { "" };
    for (suite, rows) in chosen {
        let (name, about) = (suite.name, suite.about);
        text.push_str(&format!("# {name}: {about}\n"));
        for row in rows {
            let id = quoted(&row.id);
            text.push_str(&format!("tidewire bench {name}{quick} --row {id}\n"));
        }
    }
    output::print(text);
    Ok(ExitCode::SUCCESS)
}

/// Quotes a text so that a shell takes it as one word.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn window_secs(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(secs) if (WINDOW_SECS_MIN..=WINDOW_SECS_MAX).contains(&secs) => Ok(secs),
        _ => Err(format!(
            "a window has {WINDOW_SECS_MIN} to {WINDOW_SECS_MAX} seconds"
        )),
    }
}

fn write(report: &BenchReport, directory: &Path) -> anyhow::Result<WrittenBench> {
    let written = report.write_to(directory);
    Ok(written.map_err(|error| Failure::configuration(error.to_string(), ""))?)
}

fn conclude(report: &BenchReport) -> anyhow::Result<ExitCode> {
    let faults = report.faults();
    if report.env.interrupted {
        return Ok(signals::interrupted());
    }
    if faults.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let what = format!("rows are not wholly verified:\n  {}", faults.join("\n  "));
    let remedy = "the figures of these rows prove nothing; see what failed above";
    Err(Failure::judgement(what, remedy).into())
}

/// The maximum number of repetitions of a run that the machine disturbed.
const AGAIN_MAX: usize = 2;

/// Shortest window, in seconds; a shorter one shows nothing.
const WINDOW_SECS_MIN: f64 = 0.01;

const WINDOW_SECS_MAX: f64 = 3_600.0;

/// The maximum time of the present run after the first signal. Then its programs end as by a second signal.
const WAY_OUT: Duration = Duration::from_secs(30);

pub(crate) const EXAMPLES: &str = "\
Examples:
  tidewire bench                      every suite: Tidewire and the limits of this machine
  tidewire bench echo --quick         a first look, in seconds
  tidewire bench echo --row '16 × 128'   one kind of row
  tidewire bench --peers all          beside every rival that bench/peers/setup has made
  tidewire bench --limits             the bare limits of this machine
  tidewire bench --list               the suites and a command for each of their rows

Exit codes: 0 success, 99 messages of a row are not accounted for, 2 wrong usage, 130 interrupted.";
