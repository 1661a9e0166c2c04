//! A file or stderr as the target of a log: it can be exchanged, and given up while it takes nothing.
//!
//! A pipe that nobody reads would hold the log's thread in a write for ever, and with it every thread that waits for room in
//! the queue. So what may block is only written when it can take something, and no more than that surely is. Rejected:
//! making the descriptor non-blocking, which would do so for every process that shares it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tidewire_io::descriptors::wait_writable;

use super::{LogError, LogFormat, open_file};

/// What others may tell the target of a log.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// Since when nobody waits for a target that takes nothing.
    hurries: OnceLock<Instant>,
    /// The file to go on with.
    next: Mutex<Option<File>>,
}

/// Controls a running log from any thread. It does not keep the log open. [`LogBuilder`](super::LogBuilder) has an example.
#[derive(Clone, Debug)]
pub struct LogControl {
    orders: Arc<Orders>,
    path: Option<PathBuf>,
    format: LogFormat,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Target {
    file: File,
    /// It is no regular file.
    may_block: bool,
    orders: Arc<Orders>,
    stall_timeout: Duration,
    /// It took nothing for too long, and is not waited for any more.
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

    /// Says that the program is about to end. From now on nobody waits longer than
    /// [`LogBuilder::stall_timeout`](super::LogBuilder::stall_timeout) for a target that takes nothing: its lines are counted
    /// as failed, and threads that wait for room in the queue go on.
    pub fn hurry(&self) {
        self.orders.hurry();
    }

    /// Opens the log file again under its name, which is how a log that was moved away goes on in a new file. Lines that
    /// still wait go to the new one. Returns false where there is no file.
    ///
    /// # Errors
    /// [`LogError::Open`] and [`LogError::Write`]; the log then goes on in the old file.
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

    /// Whether a target that has taken nothing since then is to be given up.
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
        // A log that was exchanged while nothing was logged lets go of the old file.
        self.take_next();
        self.file.flush()
    }
}

/// Whether writing may wait for a reader. A file whose kind cannot be told is written as ever.
fn may_block(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| !metadata.is_file())
}

/// How often the log's thread looks whether it is to hurry.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Bytes that a pipe surely takes when it says that it takes some (`PIPE_BUF`).
const PIPE_BYTES: usize = 4096;
