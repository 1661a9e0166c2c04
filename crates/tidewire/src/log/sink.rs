//! The target's side of a log: runs on the log's thread, writes lines, counts, and says what was lost.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::LogFormat;
use super::line::{Notice, render};
use super::tally::Tally;

/// What `tracing-appender` takes for the target. It never fails, because failures are counted here.
#[derive(Debug)]
pub(super) struct Sink<W> {
    out: W,
    format: LogFormat,
    /// The file, whose failures are then said on stderr.
    path: Option<PathBuf>,
    pub(super) tally: Arc<Tally>,
    /// The target took part of a line and not the rest.
    torn: bool,
    /// Dropped lines that the log has told of.
    dropped_told: u64,
    /// When there was last a look at what to tell.
    told_at: Instant,
    /// Failed lines that the log has told of.
    failed_told: u64,
    /// Failing was said on stderr, and nothing has been written since.
    failing: bool,
}

impl<W: Write> Sink<W> {
    pub(super) fn new(out: W, format: LogFormat, path: Option<PathBuf>) -> Self {
        Self {
            out,
            format,
            path,
            tally: Arc::new(Tally::default()),
            torn: false,
            dropped_told: 0,
            told_at: Instant::now(),
            failed_told: 0,
            failing: false,
        }
    }

    fn write_line(&mut self, line: &[u8]) {
        match self.put(line) {
            Ok(()) => {
                self.failing = false;
                self.tally.add_written();
            }
            Err(error) => {
                self.tally.add_failed();
                self.say_failing(&error);
            }
        }
    }

    /// Says what was lost before the next line, now that it can be said.
    fn tell(&mut self) {
        self.told_at = Instant::now();
        let failed = self.tally.failed();
        if failed > self.failed_told {
            let lines = failed - self.failed_told;
            let notice = Notice::Failed {
                lines,
                total: failed,
            };
            if self.put(&render(self.format, &notice)).is_err() {
                return;
            }
            self.failed_told = failed;
        }
        let dropped = self.tally.dropped_by_queue();
        if dropped > self.dropped_told {
            let lines = dropped - self.dropped_told;
            let notice = Notice::Dropped {
                lines,
                total: dropped,
            };
            if self.put(&render(self.format, &notice)).is_ok() {
                self.dropped_told = dropped;
            }
        }
    }

    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            // What follows must not look like the end of the line that was cut.
            write_whole(&mut self.out, b"\n").map_err(|(_, error)| error)?;
            self.torn = false;
        }
        write_whole(&mut self.out, line).map_err(|(taken, error)| {
            self.torn |= taken > 0;
            error
        })
    }

    fn say_failing(&mut self, error: &io::Error) {
        if let Some(path) = &self.path
            && !self.failing
        {
            // With stderr closed too there is nobody left to tell.
            let _ = writeln!(
                io::stderr(),
                "cannot write to the log file {}: {error}; its lines are counted until it can be written again",
                path.display()
            );
        }
        self.failing = true;
    }
}

impl<W: Write> Write for Sink<W> {
    /// Takes one whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A queue that is never empty must not keep its losses to itself, nor fill the log with them.
        if !self.failing && self.told_at.elapsed() >= TELL_INTERVAL {
            self.tell();
        }
        self.write_line(line);
        Ok(line.len())
    }

    /// The queue is empty: there is room.
    fn flush(&mut self) -> io::Result<()> {
        if !self.failing {
            self.tell();
        }
        // Nothing is buffered here, and whatever `out` buffers is its own.
        let _ = self.out.flush();
        Ok(())
    }
}

/// Writes everything, or says how much of it was taken.
fn write_whole(out: &mut impl Write, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut taken = 0;
    while taken < bytes.len() {
        match out.write(&bytes[taken..]) {
            Ok(0) => return Err((taken, io::ErrorKind::WriteZero.into())),
            Ok(count) => taken += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((taken, error)),
        }
    }
    Ok(())
}

/// How often a log that is always behind tells of its losses.
const TELL_INTERVAL: Duration = Duration::from_secs(1);
