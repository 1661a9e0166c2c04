//! The program `tidewire-bench`: it reads flags, calls the library and reports errors. `tidewire bench` runs it.

mod measure;
mod progress;
mod role;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use mimalloc::MiMalloc;
use tidewire_bench::BenchReport;
use tidewire_command::failure::{self, Failure};
use tidewire_command::report_directory::take_directory;
use tidewire_command::{VERSION_AND_COMMIT, generate, output};
use tidewire_io::allocation::CountingAllocator;
use tidewire_load::describe;

/// Measure suites of work: the bare limit of this machine, Tidewire, and the peers, in turns and in processes of their
/// own.
#[derive(Debug, Parser)]
#[command(name = "tidewire-bench", version = VERSION_AND_COMMIT, max_term_width = 100, after_help = measure::EXAMPLES)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    measure: measure::MeasureArguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the report of a benchmark once more, in all its forms, from its bench.json.
    Report(ReportArguments),
    /// Play a program of the benchmark.
    #[command(hide = true)]
    Program(role::RoleArguments),
    /// Print the completions of a shell.
    Completions(generate::CompletionsArguments),
    /// Write the manual pages.
    Man(generate::ManArguments),
}

#[derive(Args, Debug)]
struct ReportArguments {
    /// The bench.json.
    file: PathBuf,
    /// Directory for the files.
    #[arg(long, value_name = "DIR", default_value = "tidewire-report")]
    out: PathBuf,
}

#[global_allocator]
static ALLOCATOR: CountingAllocator<MiMalloc> = CountingAllocator::over(MiMalloc);

fn main() -> ExitCode {
    // Wrong usage ends here with clap's exit code 2, which is also that of a wrong configuration.
    let arguments = Arguments::parse();
    let result = run(arguments).and_then(|code| Ok(output::check().map(|()| code)?));
    result.unwrap_or_else(|error| {
        let known = failure::classify(&error);
        failure::report(&error, known.unwrap_or((failure::OTHER, "")))
    })
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    // A session costs a descriptor, and the usual soft limit of 1,024 is for programs that use a fixed set. A row
    // that needs more names the limit itself.
    let _ = tidewire_io::descriptors::raise_descriptor_limit();
    match arguments.command {
        None => measure::run(&arguments.measure),
        Some(Command::Report(arguments)) => report(&arguments),
        Some(Command::Program(arguments)) => role::run(&arguments),
        Some(Command::Completions(arguments)) => {
            Ok(generate::completions(Arguments::command(), &arguments))
        }
        Some(Command::Man(arguments)) => Ok(generate::man(Arguments::command(), &arguments)?),
    }
}

/// Renders. The exit code is that of the benchmark.
fn report(arguments: &ReportArguments) -> anyhow::Result<ExitCode> {
    let report = BenchReport::read(&arguments.file)
        .map_err(|error| Failure::configuration(describe(&error), ""))?;
    let _taken = take_directory(&arguments.out)?;
    measure::show(&report, &arguments.out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Arguments::command().debug_assert();
    }
}
