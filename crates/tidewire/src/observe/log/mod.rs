//! A log that writes on a separate thread and reports every line that it loses.
//!
//! Programs log through `tracing`; this module writes the lines. The thread that logs a line formats it and appends it
//! to a bounded queue. The log's own thread writes the queue. If the queue is full, a *lossless* log (the default)
//! makes the thread wait, and a *lossy* log drops the line. Every line is accounted for:
//!
//! ```text
//! offered = written + dropped + failed + in flight
//! ```
//!
//! The log reports dropped lines in itself as soon as there is room again. If its target cannot be written at the
//! start, for example because the disk is full, the log does not start. Later failures are counted: the log reports the
//! first on stderr, and their number in itself when it can write again.
//!
//! A program that is about to end calls [`LogControl::hurry`]. From then on no thread waits long for a target that
//! accepts nothing, such as a pipe without a reader: its lines are counted as failed. [`LogControl::reopen`] opens a
//! new file under the name of a file that was moved away.
//!
//! The queue and its thread are those of `tracing-appender`. This module adds an end that waits for all lines, counts
//! of failed writes, and reports of dropped lines. Rejected: a queue of our own, because the crate's queue is good
//! enough, and writing on the thread that logs, because a slow disk would stop a lane.
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
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, reload};

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
/// use tidewire::log::LogBuilder;
///
/// # let directory = std::env::temp_dir().join(format!("tidewire-log-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// # let path = directory.join("server.log");
/// let log = LogBuilder::new()
///     .filter("info")?
///     .json(true)
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
    filter: Targets,
    format: LogFormat,
    file: Option<PathBuf>,
    lossy: bool,
    queue_lines_max: usize,
    stall_timeout: Duration,
}

/// The format of a line; see [`LogBuilder::json`].
#[derive(Clone, Copy, Debug)]
enum LogFormat {
    Text,
    Json,
}

/// The log did not start, or its file cannot be opened again. An error of [`LogBuilder`] and [`LogControl::reopen`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogError {
    /// The text is no filter. Write a level, or `target=level`, or several of these with commas between them.
    #[error(
        "{filter:?} is no log level; use off, error, warn, info, debug or trace, or TARGET=LEVEL with commas between \
         several"
    )]
    Filter {
        /// The text.
        filter: String,
        /// The mistake in it.
        source: ParseError,
    },
    /// The file cannot be opened. Its directory must exist, and both must be writable.
    #[error("cannot open the log file {}: {}", path.display(), remedy(source))]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file was opened but cannot be written. Most often the disk is full.
    #[error("cannot write to the log file {}: {}", path.display(), remedy(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The system has no thread for the export of spans.
    #[error("cannot start the thread that exports spans: {0}; see `ulimit -u`")]
    ExportThread(#[source] io::Error),
    /// The log has no filter, because it was opened for a custom subscriber.
    #[error("this log has no filter of its own; set that of the program's subscriber")]
    NotStarted,
    /// The program has a subscriber already. Start only one log, and start it before any other subscriber.
    #[error("this program has a log already; start one only")]
    AlreadyStarted,
}

impl Default for LogBuilder {
    fn default() -> Self {
        Self {
            filter: Targets::new().with_default(LevelFilter::INFO),
            format: LogFormat::Text,
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

    /// Sets the lines to log: a level, or `target=level`, or several of these with commas between them, as in
    /// `RUST_LOG`.
    ///
    /// # Errors
    /// [`LogError::Filter`] if the text is no filter.
    pub fn filter(mut self, filter: &str) -> Result<Self, LogError> {
        self.filter = parse_filter(filter)?;
        Ok(self)
    }

    /// Sets whether each line is a JSON object. Default: text with time, level, message and fields, in colours on a
    /// terminal.
    #[must_use]
    pub fn json(mut self, is_json: bool) -> Self {
        self.format = match is_json {
            true => LogFormat::Json,
            false => LogFormat::Text,
        };
        self
    }

    /// Sets the file to which lines are appended. It is created if it does not exist. Default: none, and lines go to
    /// stderr.
    #[must_use]
    pub fn file(mut self, path: impl AsRef<Path>) -> Self {
        self.file = Some(path.as_ref().to_owned());
        self
    }

    /// Sets the policy for a full queue: a lossy log drops the line, and a lossless log lets the thread that logs wait,
    /// even a lane. Default: lossless.
    #[must_use]
    pub fn lossy(mut self, lossy: bool) -> Self {
        self.lossy = lossy;
        self
    }

    /// Sets the number of lines that may wait to be written, at least 1. Default 16,384: a few megabytes, and a second
    /// of a busy log while its disk is busy.
    #[must_use]
    pub fn queue_lines_max(mut self, lines: usize) -> Self {
        self.queue_lines_max = lines.max(1);
        self
    }

    /// Sets the longest time for which the end of the log waits while nothing can be written. Threads that log wait as
    /// long once the program [hurries](LogControl::hurry). Default 2 s.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// Starts the log of the whole program. Keep the returned value until the end: dropping it ends the log.
    ///
    /// # Errors
    /// [`LogError::Open`] or [`LogError::Write`] if the file cannot be used, [`LogError::AlreadyStarted`] if the
    /// program has a log.
    pub fn start(self) -> Result<Log, LogError> {
        let (lines, filter, log) = self.prepare()?;
        // The filter is below the layer, so that `tracing` knows the highest level and skips all lines above it.
        let subscriber = tracing_subscriber::registry().with(filter).with(lines);
        set_global_default(subscriber).map_err(|_| LogError::AlreadyStarted)?;
        Ok(log)
    }

    /// Starts the log of the whole program beside another layer with its own filter, such as an export of spans.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(
        self,
        layer: impl Layer<Registry> + Send + Sync + 'static,
    ) -> Result<Log, LogError> {
        let (lines, filter, log) = self.prepare()?;
        // A list has the highest level of its layers. `and_then` would have the level of the log alone.
        let both = vec![layer.boxed(), lines.with_filter(filter).boxed()];
        let subscriber = tracing_subscriber::registry().with(both);
        set_global_default(subscriber).map_err(|_| LogError::AlreadyStarted)?;
        Ok(log)
    }

    /// Opens the log. Returns the layer that writes its lines, and the filter for that layer.
    fn prepare<S>(self) -> Result<Prepared<S>, LogError>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let ansi = self.file.is_none()
            && io::stderr().is_terminal()
            && std::env::var_os("NO_COLOR").is_none();
        let (format, filter) = (self.format, self.filter.clone());
        let (writer, log) = self.open()?;
        // `tracing` keeps the filter's answer for each place that logs, and asks again only after a change.
        let (filter, handle) = reload::Layer::new(filter);
        log.control().set_handle(handle);
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(writer)
            .with_ansi(ansi)
            .with_target(false)
            // A report of a failed write would go to the stream that failed, and panic.
            .log_internal_errors(false);
        let lines = match format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.json().boxed(),
        };
        Ok((lines, filter, log))
    }

    /// Opens the log's target for a custom subscriber, which chooses the filter and the colours. [`LogWriter`] has an
    /// example.
    ///
    /// # Errors
    /// [`LogError::Open`] or [`LogError::Write`] if the file cannot be used.
    pub fn open(self) -> Result<(LogWriter, Log), LogError> {
        let Some(path) = &self.file else {
            // A copy of the descriptor avoids the lock of the standard library: a write that hangs would keep that
            // lock.
            return Ok(match io::stderr().as_fd().try_clone_to_owned() {
                Ok(stderr) => self.spawn_to(stderr.into()),
                Err(_) => self.open_to(io::stderr()),
            });
        };
        let file = open_file(path, self.format)?;
        Ok(self.spawn_to(file))
    }

    /// Opens a log that writes to `out` instead of stderr or a file. [`LogWriter`] has an example.
    pub fn open_to(mut self, out: impl Write + Send + 'static) -> (LogWriter, Log) {
        self.file = None;
        self.spawn(out, Arc::default())
    }

    fn spawn_to(self, file: File) -> (LogWriter, Log) {
        let orders = Arc::new(Orders::default());
        if self.file.is_some() {
            orders.note_opened(&file);
        }
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

/// The layer that writes the lines, the filter for it, and the log.
type Prepared<S> = (
    Box<dyn Layer<S> + Send + Sync>,
    reload::Layer<Targets, Registry>,
    Log,
);

fn parse_filter(filter: &str) -> Result<Targets, LogError> {
    // An item without characters would be a target that every line has.
    let items = filter.split(',').map(str::trim);
    let items: Vec<&str> = items.filter(|item| !item.is_empty()).collect();
    if items.is_empty() {
        return Ok(Targets::new().with_default(LevelFilter::ERROR));
    }
    let parsed = items.join(",").parse();
    parsed.map_err(|source| LogError::Filter {
        filter: filter.to_owned(),
        source,
    })
}

/// Opens a log file and writes its first line. On a full disk opening succeeds, and only writing fails.
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
