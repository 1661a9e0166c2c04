//! `tidewire load`: runs a scenario and reports.

mod chart;
mod child;
mod live;
mod merge;
mod progress;
mod prometheus;
mod runner;
mod search;
mod sweep;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tidewire_load::describe;
use tidewire_load::report::{Conclusion, MergeKind, Report, WrittenReport};
use tidewire_load::scenario::{Scenario, Step};
use tidewire_load::segment::{Segment, parse_start};
use tidewire_proto::text::escaped;

pub(crate) use self::merge::{MergeArguments, ReportArguments, run_merge, run_report};
use self::progress::{Tables, View};
use self::runner::{RunArguments, Runner};
pub(crate) use self::search::{SearchArguments, run_search};
pub(crate) use self::sweep::{SweepArguments, run_sweep};
use crate::failure::Failure;
use crate::logging::LogArguments;
use crate::output;
use crate::payload::json_text;
use crate::report_directory::check_directory;

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

    /// Print a JSON object per step, {"event":"step","step":…} as in the report, and one at the end, {"event":"report",…}.
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
    check_directory(&arguments.out)?;
    let mut runner = Runner::new(&arguments.run, &scenario)?;
    if arguments.segment.is_some() && runner.has_own_server(&scenario) {
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
        reports.push(runner.run(
            &scenario,
            &mut View::new(scenario.steps.len(), tables, arguments.run.plain),
        )?);
        if runner.is_stopped() {
            break;
        }
    }
    let report = Report::merge(&reports, MergeKind::Runs)?;
    let written = write(&report, &arguments.out)?;
    Ok(conclude(&report, &written, arguments.json))
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

/// Returns the scenario with one step alone: that of this name, or its only one.
fn with_one_step(mut scenario: Scenario, name: Option<&str>) -> anyhow::Result<Scenario> {
    let chosen = |step: &Step| name.is_none_or(|name| step.name == name);
    let names: Vec<&str> = scenario
        .steps
        .iter()
        .map(|step| step.name.as_str())
        .collect();
    let count = scenario.steps.iter().filter(|step| chosen(step)).count();
    if count != 1 {
        let what = format!("one step is needed, and {count} are meant");
        let remedy = format!("name one of these with --step: {}", names.join(", "));
        return Err(Failure::configuration(what, remedy).into());
    }
    scenario.steps.retain(chosen);
    Ok(scenario)
}

/// Writes a report in all its forms. A report that contradicts itself is an error, and its files stay for inspection.
fn write(report: &Report, directory: &Path) -> anyhow::Result<WrittenReport> {
    let written = report
        .write_to(directory)
        .with_context(|| format!("cannot write the report to {}", directory.display()))?;
    report
        .validate()
        .context("the report contradicts itself; please report this as a bug")?;
    Ok(written)
}

/// Writes the record of a search or a sweep.
fn write_json(record: &impl serde::Serialize, path: &Path) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(record)?;
    text.push('\n');
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Prints the location of the report and the verdict of the run.
fn conclude(report: &Report, written: &WrittenReport, json: bool) -> ExitCode {
    let conclusion = report.conclusion();
    let word = conclusion.name();
    let (json_file, page) = (written.json.display(), written.html.display());
    if json {
        let object = json!({
            "event": "report",
            "status": report.status.name(),
            "conclusion": word,
            "json": json_file.to_string(),
            "markdown": written.markdown.display().to_string(),
            "html": page.to_string(),
        });
        output::print_line(json_text(&object));
    } else {
        output::print_line(format_args!("{word}: {page} and {json_file}"));
    }
    exit_code(conclusion)
}

fn exit_code(conclusion: Conclusion) -> ExitCode {
    match conclusion {
        Conclusion::Passed => ExitCode::SUCCESS,
        Conclusion::Failed => ExitCode::from(LOST),
        Conclusion::SloFailed => ExitCode::from(SLO_FAILED),
        Conclusion::Invalid => ExitCode::from(INVALID),
        Conclusion::Interrupted => ExitCode::from(INTERRUPTED),
    }
}

/// Exit code of a run with lost, duplicated, failed or unconfirmed messages.
const LOST: u8 = 1;

/// Exit code of a run with an invalid measurement.
const INVALID: u8 = 90;

/// Exit code of a run that exceeded a limit.
const SLO_FAILED: u8 = 99;

/// Exit code of a run that was stopped: a shell's code of an interrupt.
const INTERRUPTED: u8 = 130;

const EXAMPLES: &str = "\
Examples:
  tidewire load                                   the built-in test against a server of its own
  tidewire load --quick                           the same in a few seconds
  tidewire load scenarios/chat-8m.toml --serve    8 million deliveries a second
  tidewire load FILE.toml --target tcp://HOST:PORT --out report
  tidewire load FILE.toml --serve --repeat 6      six runs, each against a fresh server process
  tidewire load FILE.toml --target tcp://HOST:PORT --segment 2/3 --start-at 2026-11-22T12:00:00Z --out part-2

Exit codes: 0 nothing was lost, 1 messages were lost or are unconfirmed, 2 bad arguments or scenario, 3 server not reachable, 4 it refuses \
or has no rooms, 5 no answer in time, 130 interrupted; scenarios of version 2 also: 90 the measurement is invalid, 99 a limit was broken.

docs/scenario.md has every key of a scenario.";
