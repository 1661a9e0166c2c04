//! A log that does not hold up whoever logs, and loses nothing without saying so.
//!
//! What is logged is the business of `tracing`; this is where the lines go. A line is formatted by the thread that
//! logs it and handed to a thread of the log's own through a bounded queue. What happens when the queue is full is
//! chosen: *lossless*, the default, makes the thread wait, *lossy* drops the line. Every line is accounted for:
//!
//! ```text
//! offered = written + dropped + failed + in flight
//! ```
//!
//! Dropped lines are reported in the log itself as soon as there is room again. A target that cannot be written, such
//! as a full disk, is an error at the start; later its lines are counted as failed, which is said once on stderr and,
//! when it can be written again, in the log.
//!
//! Once the program is about to end ([`LogControl::hurry`]) nobody waits long for a target that takes nothing, such as a pipe
//! that nobody reads: its lines are counted as failed. A file that was moved away is opened again under its name by
//! [`LogControl::reopen`].
//!
//! The queue and its thread are those of `tracing-appender`. What it lacks is put around it: it ends after a second
//! whatever still waits, forgets failed writes, and counts dropped lines without telling anyone. Rejected: a queue of
//! our own, for which there is no need, and writing on the thread that logs, where a slow disk would stop a lane.
//!
//! [`LogBuilder`] has an example.

mod line;
mod sink;
mod tally;
mod target;
mod writer;

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

pub use tally::LogMetrics;
pub use target::LogControl;
pub use writer::{Log, LogWriter};

use crate::limits::{LOG_QUEUE_LINES_MAX, LOG_STALL_TIMEOUT};
use line::Notice;
use sink::Sink;
use target::{Orders, Target};

/// The settings of a log before it starts.
///
/// ```
/// use tidewire::log::{LogBuilder, LogFormat};
///
/// # let directory = std::env::temp_dir().join(format!("tidewire-log-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// # let path = directory.join("server.log");
/// let log = LogBuilder::new()
///     .filter("info")?
///     .format(LogFormat::Json)
///     .file(&path)
///     .start()?;
/// tracing::info!(sessions = 3, "running");
/// assert!(log.control().reopen()?); // after another program has moved the file away
/// let metrics = log.finish();
/// assert_eq!(metrics.offered, metrics.written);
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LogBuilder {
    filter: EnvFilter,
    format: LogFormat,
    file: Option<PathBuf>,
    lossy: bool,
    queue_lines_max: usize,
    stall_timeout: Duration,
}

/// The format of a line; see [`LogBuilder`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// Time, level, what happened, fields; in colours on a terminal.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

/// The log did not start, or its file cannot be opened again. An error of [`LogBuilder`] and [`LogControl::reopen`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogError {
    /// The text is no filter. Write a level, or `target=level` with commas between several.
    #[error(
        "{filter:?} is no log level; use off, error, warn, info, debug or trace, or TARGET=LEVEL with commas between \
         several"
    )]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// The file cannot be opened. Its directory must exist, and both must be writable.
    #[error("cannot open the log file {}: {}", path.display(), remedy(source))]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file could be opened and not written: most often the disk is full.
    #[error("cannot write to the log file {}: {}", path.display(), remedy(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program has a subscriber already. Start one log, and before anything else takes the place.
    #[error("this program has a log already; start one only")]
    AlreadyStarted,
}

impl Default for LogBuilder {
    fn default() -> Self {
        Self {
            filter: EnvFilter::default().add_directive(LevelFilter::INFO.into()),
            format: LogFormat::default(),
            file: None,
            lossy: false,
            queue_lines_max: LOG_QUEUE_LINES_MAX,
            stall_timeout: LOG_STALL_TIMEOUT,
        }
    }
}

impl LogBuilder {
    /// A lossless log of text on stderr, from level `info` up.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What is logged: a level, or `target=level` with commas between several, as in `RUST_LOG`.
    ///
    /// # Errors
    /// [`LogError::Filter`].
    pub fn filter(mut self, filter: &str) -> Result<Self, LogError> {
        self.filter = EnvFilter::try_new(filter).map_err(|source| LogError::Filter {
            filter: filter.to_owned(),
            source,
        })?;
        Ok(self)
    }

    /// How lines look. Default: text.
    #[must_use]
    pub fn format(mut self, format: LogFormat) -> Self {
        self.format = format;
        self
    }

    /// The file that lines are appended to, made if it is not there. Default: none, and lines go to stderr.
    #[must_use]
    pub fn file(mut self, path: impl AsRef<Path>) -> Self {
        self.file = Some(path.as_ref().to_owned());
        self
    }

    /// What happens when the queue is full: drop the line if `lossy`, else let the thread that logs wait, lanes
    /// included. Default: lossless.
    #[must_use]
    pub fn lossy(mut self, lossy: bool) -> Self {
        self.lossy = lossy;
        self
    }

    /// Lines that may wait to be written. Default 16,384: a few megabytes, and a second of a busy log while its disk does
    /// something else.
    #[must_use]
    pub fn queue_lines_max(mut self, lines: usize) -> Self {
        self.queue_lines_max = lines.max(1);
        self
    }

    /// How long the end of the log waits while nothing can be written, and threads that log once the program
    /// [hurries](LogControl::hurry). Default 2 s.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// Starts the log as that of the whole program. Keep what it returns until the end: dropping it writes what waits.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn start(self) -> Result<Log, LogError> {
        let ansi = self.file.is_none()
            && io::stderr().is_terminal()
            && std::env::var_os("NO_COLOR").is_none();
        let (format, filter) = (self.format, self.filter.clone());
        let (writer, log) = self.open()?;
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(writer)
            .with_ansi(ansi)
            .with_target(false)
            // It would complain on the very stream that failed, and panic.
            .log_internal_errors(false);
        let started = match format {
            LogFormat::Text => set_global_default(builder.finish()),
            LogFormat::Json => set_global_default(builder.json().finish()),
        };
        started.map_err(|_| LogError::AlreadyStarted)?;
        Ok(log)
    }

    /// Opens the log's target for a subscriber of your own; the filter and colours are then yours too.
    ///
    /// # Errors
    /// [`LogError::Open`] and [`LogError::Write`].
    pub fn open(self) -> Result<(LogWriter, Log), LogError> {
        let Some(path) = &self.file else {
            // Not through the standard library's lock, which a write that hangs would keep from everybody else.
            return Ok(match io::stderr().as_fd().try_clone_to_owned() {
                Ok(stderr) => self.spawn_to(stderr.into()),
                Err(_) => self.open_to(io::stderr()),
            });
        };
        let file = open_file(path, self.format)?;
        Ok(self.spawn_to(file))
    }

    /// Opens a log that is written to `out` instead of stderr or a file.
    pub fn open_to(mut self, out: impl Write + Send + 'static) -> (LogWriter, Log) {
        self.file = None;
        self.spawn(out, Arc::default())
    }

    fn spawn_to(self, file: File) -> (LogWriter, Log) {
        let orders = Arc::new(Orders::default());
        let target = Target::new(file, Arc::clone(&orders), self.stall_timeout);
        self.spawn(target, orders)
    }

    fn spawn(self, out: impl Write + Send + 'static, orders: Arc<Orders>) -> (LogWriter, Log) {
        let control = LogControl::new(orders, self.file.clone(), self.format);
        let sink = Sink::new(out, self.format, self.file);
        writer::spawn(
            sink,
            self.lossy,
            self.queue_lines_max,
            self.stall_timeout,
            control,
        )
    }
}

/// Opens a log file, and writes its first line: a full disk lets files be opened, only writing tells.
fn open_file(path: &Path, format: LogFormat) -> Result<File, LogError> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    let mut file = opened.map_err(|source| LogError::Open {
        path: path.to_owned(),
        source,
    })?;
    file.write_all(&line::render(format, &Notice::Opened))
        .map_err(|source| LogError::Write {
            path: path.to_owned(),
            source,
        })?;
    Ok(file)
}

impl FromStr for LogFormat {
    type Err = ParseLogFormatError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(ParseLogFormatError(name.to_owned())),
        }
    }
}

/// A text names no [`LogFormat`]; see [`LogBuilder`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no log format; use text or json")]
pub struct ParseLogFormatError(String);

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "its directory does not exist; create it first",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "this user may not write there; choose another path or change the permissions"
        }
        io::ErrorKind::IsADirectory => "it is a directory; name a file in it",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "the disk is full; make room or choose another path"
        }
        io::ErrorKind::FileTooLarge => {
            "it has the largest size that is allowed here; move it away or see `ulimit -f`"
        }
        _ => "check the path",
    }
}

#[cfg(test)]
mod tests;
