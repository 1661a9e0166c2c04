//! `tidewire token`: makes tokens for users. Only their hashes are kept.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use tidewire::auth::TokenFile;

use crate::connection::parse_seconds;
use crate::output;

/// Flags of `tidewire token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token, print it once, and append its hash to a file.
    #[command(after_help = EXAMPLES)]
    New {
        /// The user: letters, digits, - and _
        #[arg(value_name = "NAME")]
        name: String,

        /// The file that `serve --auth-tokens` reads. It is created with mode 0600 if it is missing
        #[arg(long, value_name = "FILE")]
        file: PathBuf,

        /// How long the token is valid, in seconds; for ever if it is left out
        #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_negative_numbers = true)]
        valid_for: Option<std::time::Duration>,
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
        valid_for,
    } = &arguments.command;
    #[expect(clippy::disallowed_methods, reason = "tokens expire by the wall clock")]
    let expires_at = valid_for.map(|time| SystemTime::now() + time);
    let token = TokenFile::append(file, name, expires_at)?;
    output::print_line(token.secret().to_owned());
    Ok(ExitCode::SUCCESS)
}

const EXAMPLES: &str = "\
Examples:
  tidewire token new sensor-7 --file tokens > sensor-7.token
  tidewire serve --app pubsub --auth-tokens tokens
  tidewire pub 127.0.0.1:8080 sensor.7 21.5 --token-file sensor-7.token";
