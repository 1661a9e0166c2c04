//! `tidewire merge` and `tidewire report`: make reports from reports.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tidewire_command::output;
use tidewire_command::report_directory::take_directory;
use tidewire_load::compare::Kind;
use tidewire_load::describe;
use tidewire_load::report::{MergeKind, Report, step_table};

use super::{conclude, write};
use crate::bench;
use crate::failure::Failure;

/// Put the reports of all parts of one run together and judge its limits.
#[derive(Args, Debug)]
#[command(after_help = MERGE_EXAMPLES)]
pub(crate) struct MergeArguments {
    /// The report.json of every part.
    #[arg(required = true)]
    parts: Vec<PathBuf>,
    /// Directory for the report of the whole.
    #[arg(long, value_name = "DIR", default_value = "tidewire-report")]
    out: PathBuf,
}

/// Write a report once more, in all its forms, from its report.json, or that of a benchmark from its bench.json by
/// tidewire-bench.
#[derive(Args, Debug)]
#[command(after_help = REPORT_EXAMPLES)]
pub(crate) struct ReportArguments {
    /// The report.json, of this version or an older one; or a bench.json.
    file: PathBuf,
    /// Directory for the files.
    #[arg(long, value_name = "DIR", default_value = "tidewire-report")]
    out: PathBuf,
}

/// Merges. The exit code is that of the whole.
pub(crate) fn run_merge(arguments: &MergeArguments) -> anyhow::Result<ExitCode> {
    let mut reports = Vec::new();
    for part in &arguments.parts {
        reports.push(read(part)?);
    }
    let report = Report::merge(&reports, MergeKind::Parts)
        .map_err(|error| Failure::configuration(describe(&error), ""))?;
    show(&report, &arguments.out)
}

/// Renders. The exit code is that of the run.
pub(crate) fn run_report(arguments: &ReportArguments) -> anyhow::Result<ExitCode> {
    if Kind::of_file(&arguments.file) == Kind::Load {
        return show(&read(&arguments.file)?, &arguments.out);
    }
    let (file, out) = (arguments.file.as_os_str(), arguments.out.as_os_str());
    bench::become_program([OsStr::new("report"), file, OsStr::new("--out"), out])
}

fn read(path: &Path) -> anyhow::Result<Report> {
    Ok(Report::read(path).map_err(|error| Failure::configuration(describe(&error), ""))?)
}

fn show(report: &Report, directory: &Path) -> anyhow::Result<ExitCode> {
    let _taken = take_directory(directory)?;
    for step in &report.steps {
        output::print_line(step_table(step, output::columns()));
    }
    let written = write(report, directory)?;
    Ok(conclude(report, &written, false))
}

const MERGE_EXAMPLES: &str = "\
Examples:
  tidewire merge part-1/report.json part-2/report.json --out whole

Exit codes: those of `tidewire load`, for the whole; 2 also when the files are not all parts of one run.";

const REPORT_EXAMPLES: &str = "\
Examples:
  tidewire report tidewire-report/report.json --out again
  tidewire report tidewire-bench/bench.json --out again

Exit codes: those of `tidewire load`; 2 also when the file is no report.";
