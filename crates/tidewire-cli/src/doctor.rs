//! `tidewire doctor`: checks whether this machine is fit to measure on.

use std::process::ExitCode;

use clap::Args;
use tidewire_load::doctor::Examination;

use crate::payload::json_pretty;

/// Examine this machine for what would spoil a measurement, and say how to fix it. Takes about three seconds and
/// changes nothing.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArguments {
    /// Print the facts and the findings as JSON.
    #[arg(long)]
    json: bool,
}

/// Examines the machine and prints the result.
pub(crate) fn run(arguments: &DoctorArguments) -> anyhow::Result<ExitCode> {
    let examination = Examination::make();
    tidewire_command::output::print(match arguments.json {
        true => json_pretty(&examination)?,
        false => examination.to_text(),
    });
    Ok(ExitCode::SUCCESS)
}

const EXAMPLES: &str = "\
Examples:
  tidewire doctor
  tidewire doctor --json | jq '.findings[] | select(.level == \"warning\")'

Exit codes: 0 examined, whatever was found; 2 bad arguments.";
