//! `tidewire token`: makes tokens for users. Only their hashes are kept.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::{Args, Subcommand};
use tidewire::auth::Tokens;
use tidewire_command::output;

use crate::failure::Failure;
use crate::units::parse_validity;

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

        /// How long the token is valid: seconds, or a number with a unit, as in 90m, 12h, 30d, 8w or 1y, which is 365
        /// days; for ever if it is left out
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
    let token = Tokens::append(file, name, expires_at)?;
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

const EXAMPLES: &str = "\
Examples:
  tidewire token new sensor-7 --file tokens --out sensor-7.token
  tidewire token new sensor-8 --file tokens --valid-for 30d --out sensor-8.token
  tidewire token new admin --file /dev/null --out admin.token
  tidewire serve --app pubsub --auth-tokens tokens
  tidewire pub 127.0.0.1:8080 sensor.7 21.5 --token-file sensor-7.token";
