//! The output of a failed command: one line with the error, its causes, the remedy, and an exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | success |
//! | 1 | anything else |
//! | 2 | wrong usage or configuration |
//! | 3 | no server at the address, or the connection ended |
//! | 4 | the server refused the connection or a request |
//! | 5 | no answer in time, to the hello or to a request |
//! | 99 | a comparison found the condition of --fail-on, or a benchmark lost messages |
//! | 130, 143 | ended by a second Ctrl-C or SIGTERM; see [`signals`](crate::signals) |
//!
//! For an error that only a program can detect, the program makes a [`Failure`]. The libraries' errors are typed, and
//! the program knows their codes. Rejected: a debug dump or a backtrace, which help the author and not the user.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::fmt::Write as _;
use std::process::ExitCode;

use tidewire_proto::text::escaped;

use crate::output::OutputError;
use crate::tell::{Stream, tell};

/// An error that only the program can detect.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    what: String,
    remedy: Cow<'static, str>,
}

impl Failure {
    /// The settings are invalid.
    pub fn configuration(what: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self::new(CONFIGURATION, what, remedy)
    }

    /// The server is gone and does not come back.
    pub fn unreachable(what: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self::new(UNREACHABLE, what, remedy)
    }

    /// The server refused a request.
    pub fn refused(what: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self::new(REFUSED, what, remedy)
    }

    /// A signal ended the command before it was done. The signal determines the exit code.
    pub fn interrupted(what: impl Into<String>, signal: u8) -> Self {
        Self::new(signal, what, "")
    }

    /// A measurement does not meet its condition.
    pub fn judgement(what: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self::new(JUDGEMENT, what, remedy)
    }

    /// Any other error. The remedy may be empty.
    pub fn other(what: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self::new(OTHER, what, remedy)
    }

    /// An error with this exit code. The remedy may be empty.
    pub fn new(code: u8, what: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        let (what, remedy) = (what.into(), remedy.into());
        Self { code, what, remedy }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.what)
    }
}

impl Error for Failure {}

/// Returns the exit code and the remedy, if the error or one of its causes is a [`Failure`] or about the output.
#[must_use]
pub fn classify(error: &anyhow::Error) -> Option<(u8, &str)> {
    error.chain().find_map(|cause| {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return Some((failure.code, &*failure.remedy));
        }
        cause.is::<OutputError>().then_some((OTHER, OUTPUT))
    })
}

/// Prints the error with its causes and this remedy to stderr, and returns the exit code.
#[must_use]
pub fn report(error: &anyhow::Error, (code, remedy): (u8, &str)) -> ExitCode {
    // If stderr is closed or blocked, no error can be reported.
    let _ = tell(Stream::Error, text(error, remedy).into());
    ExitCode::from(code)
}

/// The error, its causes and this remedy, each on its own line.
#[must_use]
pub fn text(error: &anyhow::Error, remedy: &str) -> String {
    // Some of these texts come from the peer, and stderr may be a terminal.
    let shown = |text: &str| escaped(text.as_bytes());
    let mut last = error.to_string();
    let mut out = format!("error: {}\n", shown(&last));
    for cause in error.chain().skip(1) {
        let text = cause.to_string();
        // Some errors of the chain only repeat the next error.
        if !last.contains(&text) {
            // Writing to memory cannot fail.
            let _ = writeln!(out, "  because: {}", shown(&text));
        }
        last = text;
    }
    if !remedy.is_empty() {
        let _ = writeln!(out, "  remedy: {}", shown(remedy));
    }
    out
}

/// Exit code of any other error.
pub const OTHER: u8 = 1;
/// Exit code of wrong usage and configuration, which is clap's, too.
pub const CONFIGURATION: u8 = 2;
/// Exit code where no server is, or the connection ended.
pub const UNREACHABLE: u8 = 3;
/// Exit code where the server refused.
pub const REFUSED: u8 = 4;
/// Exit code where no answer came in time.
pub const TIMED_OUT: u8 = 5;
/// Exit code of a measurement that does not meet its condition.
pub const JUDGEMENT: u8 = 99;

/// The remedy for a result that cannot be printed.
const OUTPUT: &str =
    "make room where it goes, or send it somewhere else; files that were to be written are written";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_prints_what_and_the_remedy() {
        let error = Failure::configuration("no room", "make one").into();
        let (code, remedy) = classify(&error).unwrap();
        assert_eq!(text(&error, remedy), "error: no room\n  remedy: make one\n");
        assert_eq!(code, CONFIGURATION);
        let error = Failure::other("broken", "").into();
        let (code, remedy) = classify(&error).unwrap();
        assert_eq!(text(&error, remedy), "error: broken\n");
        assert_eq!(code, OTHER);
    }
}
