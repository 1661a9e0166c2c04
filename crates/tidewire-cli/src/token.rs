//! `tidewire token`: makes tokens for users. Only their hashes are kept.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::{Args, Subcommand};
use tidewire::auth::TokenFile;

use crate::failure::Failure;
use crate::output;

/// Flags of `tidewire token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token, print it once or write it to a file, and append its hash to the file of tokens.
    #[command(after_help = EXAMPLES)]
    New {
        /// The user: letters, digits, - and _
        #[arg(value_name = "NAME")]
        name: String,

        /// The file that `serve --auth-tokens` reads. It is created with mode 0600 if it is missing
        #[arg(long, value_name = "FILE")]
        file: PathBuf,

        /// Write the token to this new file of mode 0600, in place of printing it
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,

        /// How long the token is valid: seconds, or a number with a unit, as in 90m, 12h, 30d, 8w or 1y, which is 365 days; for
        /// ever if it is left out
        #[arg(long, value_name = "TIME", value_parser = parse_validity, allow_negative_numbers = true)]
        valid_for: Option<Duration>,
    },
}

/// Makes a token.
///
/// # Errors
/// The name or the file cannot be used.
pub(crate) fn run(arguments: &TokenArguments) -> anyhow::Result<ExitCode> {
    let Command::New {
        name,
        file,
        out,
        valid_for,
    } = &arguments.command;
    // The file is made first: a token whose hash is in the file of tokens, and that nobody has, would stay there.
    let out = out.as_deref().map(create).transpose()?;
    #[expect(clippy::disallowed_methods, reason = "tokens expire by the wall clock")]
    let expires_at = valid_for.map(|time| SystemTime::now() + time);
    let token = TokenFile::append(file, name, expires_at)?;
    match out {
        Some(mut out) => writeln!(out, "{}", token.secret()).context("cannot write the token")?,
        None => output::print_line(token.secret().to_owned()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a file that other users may not read, whatever the umask is. One that is there stays as it is.
fn create(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AlreadyExists => "choose another name, or remove the file",
            _ => "check the path of --out",
        };
        let what = format!("cannot make {}: {error}", path.display());
        Failure::configuration(what, remedy).into()
    })
}

/// Parses how long a token is valid. It is a parser of its own, because a timeout of a year is a mistake and a token of a year is
/// none.
fn parse_validity(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.split_at_checked(text.len().saturating_sub(1)) {
        Some((number, unit)) if !unit.starts_with(|it: char| it.is_ascii_digit()) => (number, unit),
        _ => (text, "s"),
    };
    let unit = UNITS.iter().find(|(name, _)| *name == unit);
    let (Ok(number), Some((_, seconds))) = (number.parse::<u64>(), unit) else {
        return Err(format!(
            "{text:?} is not a time; write a whole number of seconds, or one with a unit, as in 90m, 12h, 30d, 8w or 1y"
        ));
    };
    match number.checked_mul(*seconds) {
        Some(seconds @ 1..=VALIDITY_SECONDS_MAX) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!(
            "{text} is not between a second and 100 years; leave it out for a token that is valid for ever"
        )),
    }
}

/// The units of a time, in seconds.
const UNITS: [(&str, u64); 6] = [
    ("s", 1),
    ("m", 60),
    ("h", 3_600),
    ("d", DAY),
    ("w", 7 * DAY),
    ("y", 365 * DAY),
];

const DAY: u64 = 86_400;

/// The longest validity: it is far from the end of the clock.
const VALIDITY_SECONDS_MAX: u64 = 100 * 365 * DAY;

const EXAMPLES: &str = "\
Examples:
  tidewire token new sensor-7 --file tokens --out sensor-7.token
  tidewire token new sensor-8 --file tokens --valid-for 30d --out sensor-8.token
  tidewire token new admin --file /dev/null --out admin.token
  tidewire serve --app pubsub --auth-tokens tokens
  tidewire pub 127.0.0.1:8080 sensor.7 21.5 --token-file sensor-7.token";

#[cfg(test)]
mod tests {
    use super::*;

    /// The parser of timeouts took a day at most.
    #[test]
    fn a_token_may_be_valid_for_more_than_a_day() {
        for (text, seconds) in [
            ("90", 90),
            ("90s", 90),
            ("90m", 5_400),
            ("12h", 43_200),
            ("30d", 30 * DAY),
            ("8w", 56 * DAY),
            ("1y", 365 * DAY),
            ("100y", VALIDITY_SECONDS_MAX),
        ] {
            assert_eq!(
                parse_validity(text),
                Ok(Duration::from_secs(seconds)),
                "{text}"
            );
        }
        for text in [
            "",
            "s",
            "0",
            "0d",
            "-1",
            "1.5h",
            "101y",
            "3 d",
            "7é",
            "1D",
            "1dd",
            "18446744073709551615y",
        ] {
            assert!(parse_validity(text).is_err(), "{text}");
        }
    }
}
