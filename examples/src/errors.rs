//! How the errors of the examples look.

use std::error::Error;
use std::process::ExitCode;

/// Prints an error with its causes, each of which says only its own part, as `tidewire` does. What Rust prints of an
/// error that `main` returns is for the program's author.
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
