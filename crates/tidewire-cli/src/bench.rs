//! `tidewire bench`: hands its arguments over to the program `tidewire-bench`, which is built in a workspace of its
//! own.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;

use crate::failure::Failure;

/// Measure this machine's limits, Tidewire and its rivals side by side, by the program tidewire-bench.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(crate) struct BenchArguments {
    /// The arguments of tidewire-bench; --help lists them
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

/// Becomes the program. Returns only if it cannot be run.
pub(crate) fn run(arguments: &BenchArguments) -> anyhow::Result<ExitCode> {
    become_program(&arguments.arguments)
}

/// Becomes the program with these arguments, so that signals and the exit code are those of the program. Returns only
/// if it cannot be run.
pub(crate) fn become_program(
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> anyhow::Result<ExitCode> {
    let Some(program) = found() else {
        let what = format!("there is no {PROGRAM} beside this program or in the PATH");
        return Err(Failure::configuration(what, REMEDY).into());
    };
    let error = Command::new(&program).args(arguments).exec();
    let what = format!("cannot run {}: {error}", program.display());
    Err(Failure::configuration(what, REMEDY).into())
}

/// The program beside this one, or else in the PATH.
fn found() -> Option<PathBuf> {
    let own = env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.to_owned()));
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = beside.into_iter().chain(env::split_paths(&path));
    let mut files = directories.map(|directory| directory.join(PROGRAM));
    files.find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

const PROGRAM: &str = "tidewire-bench";

const REMEDY: &str = "build it in a checkout of Tidewire: `cargo install --path bench/harness`";

const EXAMPLES: &str = "\
Examples:
  tidewire bench --help               what tidewire-bench can do
  tidewire bench echo --quick         a first look, in seconds

Exit codes: those of tidewire-bench; 2 also when there is no such program.";
