//! Prints the errors of the examples.

use std::error::Error;
use std::process::ExitCode;

/// Prints an error with its causes, as `tidewire` does. The text that Rust prints for an error of `main` is meant for
/// the program's author.
pub fn report(result: Result<(), Box<dyn Error>>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}
