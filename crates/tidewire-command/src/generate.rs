//! The subcommands `completions` and `man`: files for a package, made from the flags themselves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::failure::Failure;
use crate::output;

/// Flags of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell to complete in
    #[arg(value_enum)]
    shell: Shell,
}

/// Flags of `man`.
#[derive(Debug, Args)]
pub struct ManArguments {
    /// Directory for the pages, which is created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Writes the completions of `command` to stdout.
#[must_use]
pub fn completions(mut command: Command, arguments: &CompletionsArguments) -> ExitCode {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    output::print(&script);
    ExitCode::SUCCESS
}

/// Writes a page for `command` and one for each of its subcommands.
///
/// # Errors
/// The pages cannot be written.
pub fn man(command: Command, arguments: &ManArguments) -> Result<ExitCode, Failure> {
    let directory = &arguments.out;
    let pages = write_pages(command, directory).map_err(|error| {
        let what = format!("cannot write the pages to {}: {error}", directory.display());
        Failure::configuration(what, "name another directory with --out")
    })?;
    output::print_line(format_args!("{pages} pages in {}", directory.display()));
    Ok(ExitCode::SUCCESS)
}

fn write_pages(command: Command, directory: &Path) -> io::Result<usize> {
    fs::create_dir_all(directory)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = 0;
    // Commands that only this program calls are hidden and have no page.
    let listed = command.get_subcommands().filter(|one| !one.is_hide_set());
    for command in std::iter::once(&command).chain(listed) {
        Man::new(command.clone()).generate_to(directory)?;
        pages += 1;
    }
    Ok(pages)
}
