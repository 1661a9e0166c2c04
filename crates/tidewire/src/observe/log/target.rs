//! A file or stderr as the target of a log. The file can be exchanged, and a target that accepts nothing can be given
//! up.
//!
//! A write to a pipe without a reader would block the log's thread for ever, and every thread that waits for room in
//! the queue. So writes to a descriptor that may block wait until it is writable, and have no more bytes than it surely
//! accepts. Rejected: a non-blocking descriptor, because every process that shares it would get that mode.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tidewire_io::descriptors::wait_writable;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Registry, reload};

use super::{LogError, LogFormat, open_file, parse_filter};

/// Commands of other threads for the target of a log.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// The time from which threads do not wait long for a target that accepts nothing.
    hurries: OnceLock<Instant>,
    next: Mutex<Option<File>>,
    /// The file of the last open. `None` for a target that is no file.
    opened: Mutex<Option<(u64, u64)>>,
    filter: OnceLock<reload::Handle<Targets, Registry>>,
}

/// Controls a running log from any thread. It does not keep the log open. [`LogBuilder`](super::LogBuilder) has an
/// example.
#[derive(Clone, Debug)]
pub struct LogControl {
    orders: Arc<Orders>,
    path: Option<PathBuf>,
    format: LogFormat,
}

/// The target of a log. See the module.
#[derive(Debug)]
pub(super) struct Target {
    file: File,
    /// The file is not a regular file.
    may_block: bool,
    orders: Arc<Orders>,
    stall_timeout: Duration,
    /// The file accepted nothing for too long, and writes do not wait for it.
    given_up: bool,
}

impl LogControl {
    pub(super) fn new(orders: Arc<Orders>, path: Option<PathBuf>, format: LogFormat) -> Self {
        Self {
            orders,
            path,
            format,
        }
    }

    /// Tells the log that the program is about to end. From now on no thread waits longer than
    /// [`LogBuilder::stall_timeout`](super::LogBuilder::stall_timeout) for a target that accepts nothing. After that
    /// time its lines are counted as failed, and threads that wait for room in the queue continue.
    pub fn hurry(&self) {
        self.orders.hurry();
    }

    pub(super) fn set_handle(&self, handle: reload::Handle<Targets, Registry>) {
        self.orders.set_filter(handle);
    }

    /// Opens the log file again under its name, so a log that was moved away continues in a new file. Lines that still
    /// wait go to the new file. Returns false if the log has no file.
    ///
    /// # Errors
    /// [`LogError::Open`] or [`LogError::Write`] if the new file cannot be used. The log then continues in the old
    /// file.
    pub fn reopen(&self) -> Result<bool, LogError> {
        let Some(path) = &self.path else {
            return Ok(false);
        };
        let file = open_file(path, self.format)?;
        self.orders.note_opened(&file);
        *self.orders.lock_next() = Some(file);
        Ok(true)
    }

    /// Opens the log file again if it was moved or deleted: another file, or no file, has its name. Returns whether it
    /// was opened. Pipes and devices are not opened again.
    ///
    /// # Errors
    /// As [`Self::reopen`]. The log then continues in the old file, and a later call tries again.
    pub fn reopen_if_moved(&self) -> Result<bool, LogError> {
        let Some(path) = &self.path else {
            return Ok(false);
        };
        let opened = *lock(&self.orders.opened);
        let found = path.metadata().ok().map(|found| identity(&found));
        if opened.is_none() || opened == found {
            return Ok(false);
        }
        self.reopen()
    }

    /// Sets which lines are logged from now on, as [`LogBuilder::filter`](super::LogBuilder::filter) does at the start.
    ///
    /// # Errors
    /// [`LogError::Filter`] if the text is no filter. [`LogError::NotStarted`] if the log was
    /// [opened](super::LogBuilder::open) for a custom subscriber, which has its own filter.
    pub fn set_filter(&self, filter: &str) -> Result<(), LogError> {
        let filter = parse_filter(filter)?;
        let handle = self.orders.filter.get().ok_or(LogError::NotStarted)?;
        handle.reload(filter).map_err(|_| LogError::NotStarted)
    }
}

impl Orders {
    pub(super) fn hurry(&self) {
        self.hurries.get_or_init(Instant::now);
    }

    /// Notes the file, so that [`LogControl::reopen_if_moved`] recognises it. Pipes and devices are not watched.
    pub(super) fn note_opened(&self, file: &File) {
        let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file);
        *lock(&self.opened) = metadata.map(|it| identity(&it));
    }

    pub(super) fn set_filter(&self, handle: reload::Handle<Targets, Registry>) {
        // A log is started once.
        let _ = self.filter.set(handle);
    }

    fn lock_next(&self) -> MutexGuard<'_, Option<File>> {
        lock(&self.next)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is a single store.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Target {
    pub(super) fn new(file: File, orders: Arc<Orders>, stall_timeout: Duration) -> Self {
        Self {
            may_block: may_block(&file),
            file,
            orders,
            stall_timeout,
            given_up: false,
        }
    }

    fn take_next(&mut self) {
        let next = self.orders.lock_next().take();
        if let Some(file) = next {
            (self.may_block, self.given_up) = (may_block(&file), false);
            self.file = file;
        }
    }

    /// Whether to give up a target that has accepted nothing since then.
    fn must_give_up(&self, since: Instant) -> bool {
        let hurries = self.orders.hurries.get();
        hurries.is_some_and(|hurries| {
            self.given_up || since.max(*hurries).elapsed() >= self.stall_timeout
        })
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let since = Instant::now();
        loop {
            self.take_next();
            if !self.may_block {
                return self.file.write(bytes);
            }
            let pause = if self.given_up {
                Duration::ZERO
            } else {
                LOOK_INTERVAL
            };
            if wait_writable(self.file.as_fd(), pause)? {
                self.given_up = false;
                let count = bytes.len().min(PIPE_BYTES);
                return self.file.write(&bytes[..count]);
            }
            if self.must_give_up(since) {
                self.given_up = true;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        // If the file was replaced while no line was logged, this closes the old file.
        self.take_next();
        self.file.flush()
    }
}

/// Whether a write may wait for a reader. For a file of unknown kind: no.
fn may_block(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| !metadata.is_file())
}

/// The time between two checks whether the log's thread must hurry.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Bytes that a writable pipe surely accepts (`PIPE_BUF`).
const PIPE_BYTES: usize = 4096;
