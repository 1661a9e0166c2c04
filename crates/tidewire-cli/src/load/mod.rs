//! `tidewire load`: runs a scenario and reports.

mod child;
mod cluster;
mod live;
mod merge;
mod progress;
mod prometheus;
mod runner;
mod search;
mod sweep;
mod view;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tidewire_command::report_directory::take_directory;
use tidewire_command::{output, signals};
use tidewire_load::describe;
use tidewire_load::format::wrapped;
use tidewire_load::report::{Conclusion, MergeKind, Report, Status, WrittenReport};
use tidewire_load::scenario::{Scenario, Step};
use tidewire_load::segment::{Segment, parse_start};
use tidewire_proto::text::escaped;

pub(crate) use self::merge::{MergeArguments, ReportArguments, run_merge, run_report};
use self::runner::{RunArguments, Runner};
pub(crate) use self::search::{SearchArguments, run_search};
pub(crate) use self::sweep::{SweepArguments, run_sweep};
use self::view::{Tables, View};
use crate::failure::Failure;
use crate::logging::LogArguments;
use crate::payload::json_text;

/// Run a load test and write a report. Without arguments: start a chat server on a free port and
/// run the built-in scenario of two steps (about a minute).
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LoadArguments {
    /// Scenario file; without it the built-in one. One that names no server is run against a server of its own.
    file: Option<PathBuf>,
    /// Directory for report.html, report.json, report.md, report.csv, report.junit.xml and report.hlog.
    #[arg(long, value_name = "DIR", default_value = "tidewire-report")]
    out: PathBuf,
    /// Run the whole scenario this many times, each time against a fresh server process if the test starts its own.
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

    #[command(flatten)]
    run: RunArguments,

    /// Print a JSON object per step, {"event":"step","step":…} as in the report, and one at the end,
    /// {"event":"report",…}.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// Runs the test. The exit code says whether anything was lost.
pub(crate) fn run(arguments: &LoadArguments) -> anyhow::Result<ExitCode> {
    let mut scenario = match &arguments.file {
        None => Scenario::built_in(),
        Some(path) => read_scenario(path)?,
    };
    if arguments.quick {
        scenario = scenario.quick();
    }
    let _taken = take_directory(&arguments.out)?;
    let mut runner = Runner::new(&arguments.run, &scenario)?;
    if arguments.segment.is_some() && runner.has_own_server(&scenario)? {
        let what =
            "a share of a scenario needs a server that all shares test, and nothing names one";
        return Err(Failure::configuration(what, "name it with --target").into());
    }
    runner.segment = arguments.segment.unwrap_or(Segment::WHOLE);
    runner.start_at = arguments.start_at;
    let tables = match arguments.json {
        true => Tables::Json,
        false => Tables::Text,
    };
    let repeat = match arguments.segment {
        Some(_) => 1,
        None => arguments.repeat.unwrap_or(scenario.repeat),
    };
    let mut reports = Vec::new();
    for run in 1..=repeat {
        if repeat > 1 {
            output::note(format_args!("run {run} of {repeat}"));
        }
        let mut view = View::new(scenario.steps.len(), tables, arguments.run.plain);
        reports.push(runner.run(&scenario, &mut view)?);
        if runner.is_stopped() {
            break;
        }
    }
    let report = merged(reports)?;
    let written = write(&report, &arguments.out)?;
    Ok(conclude(&report, &written, arguments.json))
}

/// One report of all runs. A run that was interrupted before its last step is left out if there are whole ones, because
/// the runs of a report have the same steps.
fn merged(mut reports: Vec<Report>) -> anyhow::Result<Report> {
    let is_interrupted = |report: &Report| report.status == Status::Interrupted;
    let was_interrupted = reports.last().is_some_and(is_interrupted);
    let is_cut = reports.last().is_some_and(|last| !last.not_run.is_empty());
    if reports.len() > 1 && was_interrupted && is_cut {
        reports.pop();
        output::note("the run that was interrupted is left out of the report");
    }
    let mut report = Report::merge(&reports, MergeKind::Runs)?;
    if was_interrupted {
        report.status = Status::Interrupted;
    }
    Ok(report)
}

/// Reads a scenario and prints its warnings.
fn read_scenario(path: &Path) -> anyhow::Result<Scenario> {
    let (scenario, warnings) =
        Scenario::load(path).map_err(|error| Failure::configuration(describe(&error), ""))?;
    let mut stderr = std::io::stderr().lock();
    for warning in warnings {
        writeln!(
            stderr,
            "warning: {}",
            escaped(warning.to_string().as_bytes())
        )?;
    }
    Ok(scenario)
}

// Flags of a command that runs one step at several levels. This is no doc comment, because it would become the help of
// the whole command.
#[derive(Args, Debug)]
pub(crate) struct LevelArguments {
    /// Name of the step; without it the scenario's only one.
    #[arg(long, value_name = "NAME")]
    step: Option<String>,
    /// Directory for search.json or sweep.json, and for a report with a step for each level.
    #[arg(long, value_name = "DIR", default_value = "tidewire-report")]
    out: PathBuf,

    #[command(flatten)]
    run: RunArguments,

    /// Print a JSON object per line: {"event":"probe",…} or {"event":"level",…} for each run, {"event":"fit",…} for the
    /// fit of a sweep, and one at the end.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

impl LevelArguments {
    /// Reads a scenario. Returns it with one step alone, which is that of the given name or its only one, and that
    /// step.
    fn scenario(&self, file: &Path) -> anyhow::Result<(Scenario, Step)> {
        let mut scenario = read_scenario(file)?;
        let steps = scenario.steps.iter();
        let names: Vec<String> = steps.map(|step| step.name.clone()).collect();
        let name = self.step.as_deref();
        scenario
            .steps
            .retain(|step| name.is_none_or(|name| step.name == name));
        if let [step] = &scenario.steps[..] {
            let step = step.clone();
            return Ok((scenario, step));
        }
        let what = format!("one step is needed, and {} are meant", scenario.steps.len());
        let remedy = format!("name one of these with --step: {}", names.join(", "));
        Err(Failure::configuration(what, remedy).into())
    }
}

/// Writes a report in all its forms. A report that contradicts itself is an error, and its files stay for inspection.
fn write(report: &Report, directory: &Path) -> anyhow::Result<WrittenReport> {
    let written = report.write_to(directory);
    let written =
        written.with_context(|| format!("cannot write the report to {}", directory.display()))?;
    report
        .validate()
        .context("the report contradicts itself; please report this as a bug")?;
    Ok(written)
}

/// Prints the location of the report and the verdict of the run.
fn conclude(report: &Report, written: &WrittenReport, json: bool) -> ExitCode {
    let conclusion = report.conclusion();
    let verdict = report.verdict();
    let (json_file, page) = (written.json.display(), written.html.display());
    if json {
        let object = json!({
            "event": "report",
            "status": report.status.name(),
            "conclusion": conclusion.name(),
            "verdict": verdict,
            "valid": !report.is_doubtful(),
            "disturbed": report.is_disturbed(),
            "explanation": report.explanation(),
            "json": json_file.to_string(),
            "markdown": written.markdown.display().to_string(),
            "html": page.to_string(),
        });
        output::print_line(json_text(&object));
    } else {
        print_words(report.explanation(), 2);
        print_words(format_args!("{verdict}: {page} and {json_file}"), 2);
    }
    exit_code(conclusion)
}

/// Writes a line of words for people. On a terminal it is broken between words, and its rest is indented by so many
/// blanks.
fn print_words(text: impl std::fmt::Display, indent: usize) {
    output::print_line(wrapped(&text.to_string(), output::columns(), indent));
}

/// A line, and the reasons for it below.
fn with_reasons(line: String, reasons: &[String]) -> String {
    let below = |text, reason| format!("{text}\n     {reason}");
    reasons.iter().fold(line, below)
}

fn exit_code(conclusion: Conclusion) -> ExitCode {
    match conclusion {
        Conclusion::Passed => ExitCode::SUCCESS,
        Conclusion::Failed => ExitCode::from(LOST),
        Conclusion::SloFailed => ExitCode::from(SLO_FAILED),
        Conclusion::Invalid => ExitCode::from(INVALID),
        Conclusion::Interrupted => signals::interrupted(),
    }
}

/// Exit code of a run with lost, duplicated, failed or unconfirmed messages.
const LOST: u8 = 1;

/// Exit code of a run with an invalid measurement.
const INVALID: u8 = 90;

/// Exit code of a run that exceeded a limit.
const SLO_FAILED: u8 = 99;

const EXAMPLES: &str = "\
Examples:
  tidewire load                                   the built-in test against a server of its own
  tidewire load --quick                           the same in a few seconds
  tidewire load scenarios/chat-8m.toml --serve    8 million deliveries a second
  tidewire load FILE.toml --target tcp://HOST:PORT --out report
  tidewire load FILE.toml --target tls://HOST:PORT --ca ca.pem --token-file tokens
  tidewire load FILE.toml --target tls://127.0.0.1:0      a server with TLS of its own
  tidewire load FILE.toml --serve --repeat 6      six runs, each against a fresh server process
  tidewire load FILE.toml --serve --nodes 2 --backplane nats      a cluster of two servers and a server of NATS, all of its own
  tidewire load FILE.toml --target tcp://A:PORT --target tcp://B:PORT      a cluster that runs already
  tidewire load FILE.toml --target tcp://HOST:PORT --segment 2/3 --start-at 2026-11-22T12:00:00Z --out part-2

Exit codes: 0 nothing was lost, 1 messages were lost or are unconfirmed, 2 bad arguments or scenario, 3 server not reachable, 4 it refuses \
or has no rooms, 5 no answer in time, 130 or 143 interrupted; scenarios of version 2 also: 90 the measurement is invalid, 99 a limit was broken.

docs/scenario.md has every key of a scenario.";
