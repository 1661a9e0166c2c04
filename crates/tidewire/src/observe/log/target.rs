//! A file or stderr as the target of a log. The file can be exchanged, and a target that accepts nothing can be given up.
//!
//! A write to a pipe without a reader would block the log's thread for ever, and then every thread that waits for room
//! in the queue. So a descriptor that may block is only written when it is writable, and with no more bytes than it
//! surely accepts. Rejected: a non-blocking descriptor, because every process that shares it would get that mode.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tidewire_io::descriptors::wait_writable;

use super::{LogError, LogFormat, open_file};

/// Commands of other threads for the target of a log.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// The time from which threads do not wait long for a target that accepts nothing.
    hurries: OnceLock<Instant>,
    /// The file that replaces the current one.
    next: Mutex<Option<File>>,
}

/// Controls a running log from any thread. It does not keep the log open. [`LogBuilder`](super::LogBuilder) has an example.
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
    /// The file is not a regular one.
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
    /// time its lines are counted as failed, and threads that wait for room in the queue go on.
    pub fn hurry(&self) {
        self.orders.hurry();
    }

    /// Opens the log file again under its name, so that a log that was moved away goes on in a new file. Lines that
    /// still wait go to the new file. Returns false if the log has no file.
    ///
    /// # Errors
    /// [`LogError::Open`] or [`LogError::Write`] if the new file cannot be used. The log then goes on in the old file.
    pub fn reopen(&self) -> Result<bool, LogError> {
        let Some(path) = &self.path else {
            return Ok(false);
        };
        let file = open_file(path, self.format)?;
        *self.orders.lock_next() = Some(file);
        Ok(true)
    }
}

impl Orders {
    pub(super) fn hurry(&self) {
        self.hurries.get_or_init(Instant::now);
    }

    fn lock_next(&self) -> std::sync::MutexGuard<'_, Option<File>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        // If the file was exchanged while no line was logged, this closes the old one.
        self.take_next();
        self.file.flush()
    }
}

/// Whether a write may wait for a reader. A file of unknown kind counts as one that does not wait.
fn may_block(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| !metadata.is_file())
}

/// The time between two checks whether the log's thread must hurry.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Bytes that a writable pipe surely accepts (`PIPE_BUF`).
const PIPE_BYTES: usize = 4096;
