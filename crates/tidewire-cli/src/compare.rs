//! `tidewire compare`: compares two sides of reports, or of files of the benchmark.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use tidewire_load::compare::{Comparison, NoiseRecord, Pairing, RunSet, Verdict};
use tidewire_load::statistics::Bootstrap;

use crate::failure::Failure;
use crate::payload::json_pretty;

/// Compare reports of load tests, or files of the benchmark: ratios of medians with intervals, and a verdict for each
/// metric. Each side is a report.json or a directory with several, or a bench.json, whose rounds are its runs; four
/// runs of each side are the fewest that can be judged.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompareArguments {
    /// Report, bench.json, or directory of them, to compare with.
    base: PathBuf,
    /// Report, bench.json, or directory of them, that is judged.
    new: PathBuf,
    /// Run k of the one side was made next to run k of the other, in the order of their paths, as `ab` does.
    #[arg(long)]
    paired: bool,
    /// The noise of this machine without a change: the noise.json of `ab`.
    #[arg(long, value_name = "FILE")]
    noise: Option<PathBuf>,
    #[command(flatten)]
    judgement: JudgementArguments,
}

/// How to judge and print a comparison; the same for `compare` and `ab`.
#[derive(Args, Debug)]
pub(crate) struct JudgementArguments {
    /// When to exit with 99, if anything could be judged; if nothing could, the exit code is then 2.
    #[arg(long, value_enum, value_name = "WHAT")]
    fail_on: Option<FailOn>,
    /// Seed of the drawing of runs, from which the intervals come.
    #[arg(long, value_name = "N", default_value_t = Bootstrap::default().seed)]
    seed: u64,
    /// Print the comparison as JSON.
    #[arg(long)]
    json: bool,
}

/// The condition on which a comparison fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// A metric got worse.
    Regression,
    /// A metric changed, for the worse or for the better.
    Change,
}

/// Compares. The exit code is 99 if the condition of --fail-on was found.
pub(crate) fn run(arguments: &CompareArguments) -> anyhow::Result<ExitCode> {
    let base = RunSet::read(&arguments.base)?;
    let new = RunSet::read(&arguments.new)?;
    let noise = arguments
        .noise
        .as_deref()
        .map(NoiseRecord::read)
        .transpose()?;
    let pairing = if arguments.paired {
        Pairing::ByOrder
    } else {
        Pairing::None
    };
    let judgement = &arguments.judgement;
    let comparison = Comparison::of(&base, &new, pairing, noise.as_ref(), judgement.bootstrap())?;
    judgement.conclude(&comparison)
}

impl JudgementArguments {
    pub(crate) fn bootstrap(&self) -> Bootstrap {
        Bootstrap {
            seed: self.seed,
            ..Bootstrap::default()
        }
    }

    /// Prints the comparison and returns the exit code.
    pub(crate) fn conclude(&self, comparison: &Comparison) -> anyhow::Result<ExitCode> {
        tidewire_command::output::print(match self.json {
            true => json_pretty(comparison)?,
            false => comparison.to_text(),
        });
        let Some(fail_on) = self.fail_on else {
            return Ok(ExitCode::SUCCESS);
        };
        if comparison.judged() == 0 {
            let remedy = "the table shows the reason; most often each side needs more runs of the same scenario";
            return Err(Failure::configuration(
                "nothing could be judged, so nothing can fail or pass",
                remedy,
            )
            .into());
        }
        let worse = comparison.count(Verdict::Worse);
        let found = match fail_on {
            FailOn::Regression => worse,
            FailOn::Change => worse + comparison.count(Verdict::Better),
        };
        Ok(ExitCode::from(if found > 0 { FOUND } else { 0 }))
    }
}

/// Exit code of a comparison that found the condition of --fail-on.
const FOUND: u8 = 99;

const EXAMPLES: &str = "\
Examples:
  tidewire compare old/report.json new/report.json       the ratios; one run of each allows no verdict
  tidewire compare runs/old runs/new                     directories with several reports each
  tidewire compare old/bench.json new/bench.json         two benchmarks, row by row
  tidewire compare runs/old runs/new --fail-on regression --noise tidewire-ab/noise.json
  tidewire compare tidewire-ab/a tidewire-ab/b --paired --json

Exit codes: 0 nothing that --fail-on names was found, 99 it was, 2 bad arguments or files, or nothing could be judged.";
