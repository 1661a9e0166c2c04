//! The flags about logging, which every command has.
//!
//! The level comes from the first of these that is set: `--log-level`, `RUST_LOG`, a configuration file, the command's
//! own default. `RUST_LOG` may be set for other programs too, so an invalid one is ignored with a warning, unlike a
//! flag or a key.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{ArgAction, Args};
use tidewire::log::{Log, LogBuilder, LogControl, LogError};
use tidewire_command::signals;

use crate::offered::offered;
use crate::otlp::{OtlpArguments, SpanExport};

/// The destination and the content of the log.
#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LogArguments {
    /// Level of the log: off, error, warn, info, debug or trace, or TARGET=LEVEL with commas between several; RUST_LOG
    /// is the same
    #[arg(long, value_name = "LEVEL", value_parser = offered(&LEVELS, parse_filter), hide_possible_values = true)]
    log_level: Option<String>,

    /// Append the log to this file instead of stderr. `serve` opens it again at SIGHUP
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,

    /// Drop log lines that come faster than they can be written, and count them, instead of waiting
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    #[arg(
        default_value = "false",
        default_missing_value = "true",
        hide_default_value = true
    )]
    log_lossy: bool,

    /// The format of log lines
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    #[arg(value_parser = ["text", "json"])]
    log_format: String,
}

impl LogArguments {
    /// Starts the log, and the export of spans if the command has one. `is_flag` means that the level comes from the
    /// command line, `default_level` is the command's own.
    pub(crate) fn start(
        &self,
        is_flag: bool,
        default_level: &str,
        spans: Option<&OtlpArguments>,
    ) -> anyhow::Result<(Log, Option<SpanExport>)> {
        let (level, ignored) = self.level(is_flag, default_level);
        let mut builder = LogBuilder::new()
            .filter(&level)?
            .lossy(self.log_lossy)
            .json(self.log_format == "json");
        if let Some(path) = &self.log_file {
            builder = builder.file(path);
        }
        let (log, export) = match spans {
            Some(spans) => spans.start(builder)?,
            None => (builder.start()?, None),
        };
        // A program has one log.
        let _ = CONTROL.set(log.control());
        signals::hurry_with(hurry);
        if let Some(error) = ignored {
            tracing::warn!(%error, "RUST_LOG is ignored");
        }
        Ok((log, export))
    }

    /// Whether the log goes to a file, which standard error does not show.
    pub(crate) fn has_file(&self) -> bool {
        self.log_file.is_some()
    }

    /// Sets the level of the log that runs already.
    pub(crate) fn change_level(&self, is_flag: bool, default_level: &str) -> Result<(), LogError> {
        let (level, _) = self.level(is_flag, default_level);
        CONTROL.get().map_or(Ok(()), |log| log.set_filter(&level))
    }

    /// The level, and the error of a variable that is ignored.
    fn level(&self, is_flag: bool, default_level: &str) -> (String, Option<LogError>) {
        let (level, ignored) = self.chosen_level(is_flag, default_level);
        (without_nats(level), ignored)
    }

    fn chosen_level(&self, is_flag: bool, default_level: &str) -> (String, Option<LogError>) {
        let variable = std::env::var("RUST_LOG").ok();
        let variable = variable.filter(|text| !text.is_empty());
        let own = self.log_level.as_deref();
        let level = || own.unwrap_or(default_level).to_owned();
        match variable {
            Some(variable) if !(is_flag && own.is_some()) => {
                match LogBuilder::new().filter(&variable) {
                    Ok(_) => (variable, None),
                    Err(error) => (level(), Some(error)),
                }
            }
            _ => (level(), None),
        }
    }
}

/// Announces that the program is about to end, so that no thread waits long for a log that cannot be written.
pub(crate) fn hurry() {
    if let Some(control) = CONTROL.get() {
        control.hurry();
    }
}

/// Opens the log file again, which may have been moved away, and logs this in it.
pub(crate) fn reopen() {
    match CONTROL.get().map(LogControl::reopen) {
        Some(Ok(true)) => tracing::info!("the log file was opened again, because of SIGHUP"),
        Some(Ok(false)) | None => {
            // The other tasks of the signal say themselves that they are done.
            tracing::info!("SIGHUP: there is no log file to open again");
        }
        Some(Err(error)) => {
            tracing::error!(%error, "the log goes on in the old file, because of SIGHUP");
        }
    }
}

/// Opens the log file again if it was moved away or deleted. After a failure it tries again at the next call, and logs
/// only the first failure.
pub(crate) fn follow_file() {
    static IS_FAILING: AtomicBool = AtomicBool::new(false);
    match CONTROL.get().map(LogControl::reopen_if_moved) {
        Some(Ok(true)) => {
            IS_FAILING.store(false, Ordering::Relaxed);
            tracing::info!("the log file was opened again, because it was moved away or deleted");
        }
        Some(Err(error)) if !IS_FAILING.swap(true, Ordering::Relaxed) => {
            tracing::error!(%error, "the log file was moved away or deleted, and the log goes on in it");
        }
        Some(Ok(false)) => IS_FAILING.store(false, Ordering::Relaxed),
        _ => {}
    }
}

/// The log of this program, once it is started.
static CONTROL: OnceLock<LogControl> = OnceLock::new();

/// Leaves the lines of the client of NATS out of the log, unless the filter names that client or asks for details. It
/// logs each failed attempt to connect, and Tidewire logs the same failures once in ten seconds.
fn without_nats(level: String) -> String {
    let lower = level.to_lowercase();
    let shows = ["async_nats", "debug", "trace"];
    match shows.iter().any(|word| lower.contains(word)) {
        true => level,
        false => format!("{level},async_nats=off"),
    }
}

/// Parses a filter in which every word without a target is a level. Otherwise a misspelt level would count as a target,
/// and nothing would be logged, without an error.
fn parse_filter(text: &str) -> Result<String, String> {
    let builder = LogBuilder::new();
    builder.filter(text).map_err(|error| error.to_string())?;
    let wrong = text
        .split(',')
        .map(str::trim)
        .find(|part| !part.contains(['=', '[']) && !LEVELS.contains(&part.to_lowercase().as_str()));
    match wrong {
        None => Ok(text.to_owned()),
        Some(part) => Err(format!(
            "{part:?} is no level; use {}, or TARGET=LEVEL",
            LEVELS.join(", ")
        )),
    }
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: NATS that was away for 10 s led to 38 lines, each fact twice.
    #[test]
    fn the_client_of_nats_logs_only_where_it_is_asked_for() {
        assert_eq!(without_nats("info".into()), "info,async_nats=off");
        for text in ["debug", "warn,async_nats=info", "tidewire=TRACE"] {
            assert_eq!(without_nats(text.into()), text);
        }
        let filter = without_nats("warn,tidewire::lane=info".into());
        assert!(LogBuilder::new().filter(&filter).is_ok());
    }

    #[test]
    fn a_misspelt_level_is_no_target() {
        for text in [
            "info",
            "WARN",
            "off",
            "warn,tidewire=debug",
            "tidewire::lane=trace",
        ] {
            assert_eq!(parse_filter(text), Ok(text.to_owned()));
        }
        for text in [
            "inof",
            "",
            "warn,",
            "tidewire",
            "tidewire=loud",
            "debug,inof",
        ] {
            assert!(parse_filter(text).is_err(), "{text}");
        }
    }
}
