//! Both ends of the queue: the writer into which subscribers format lines, and the handle that ends the log.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::MakeWriter;

use super::sink::Sink;
use super::tally::{LogMetrics, Tally};
use super::target::LogControl;

/// The writer for a subscriber, which writes each line with one call. Clones write to the same log. Given by
/// [`LogBuilder::open`](super::LogBuilder::open).
///
/// ```
/// use std::io::{self, Write};
/// use tidewire::log::LogBuilder;
///
/// let (mut writer, log) = LogBuilder::new().open_to(io::sink());
/// writer.write_all(b"a line\n")?;
/// assert_eq!(log.finish().written, 1);
/// # Ok::<(), io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LogWriter {
    queue: NonBlocking,
    tally: Arc<Tally>,
}

/// A running log. Dropping it, or [`Log::finish`], writes the lines that wait. Later lines are dropped.
/// [`LogBuilder`](super::LogBuilder) has an example.
#[derive(Debug)]
#[must_use = "dropping it ends the log"]
pub struct Log {
    tally: Arc<Tally>,
    worker: Option<WorkerGuard>,
    stall_timeout: Duration,
    control: LogControl,
}

pub(super) fn spawn(
    sink: Sink<impl Write + Send + 'static>,
    lossy: bool,
    queue_lines_max: usize,
    stall_timeout: Duration,
    control: LogControl,
) -> (LogWriter, Log) {
    let tally = Arc::clone(sink.tally());
    let (queue, worker) = NonBlockingBuilder::default()
        .lossy(lossy)
        .buffered_lines_limit(queue_lines_max)
        .thread_name("tidewire-log")
        .finish(sink);
    tally.count_drops_of(queue.error_counter());
    let writer = LogWriter {
        queue,
        tally: Arc::clone(&tally),
    };
    let log = Log {
        tally,
        worker: Some(worker),
        stall_timeout,
        control,
    };
    (writer, log)
}

impl Log {
    /// The outcomes of the lines so far.
    #[must_use]
    pub fn metrics(&self) -> LogMetrics {
        self.tally.metrics()
    }

    /// A handle that controls the log from any thread.
    #[must_use]
    pub fn control(&self) -> LogControl {
        self.control.clone()
    }

    /// Writes the lines that wait, and ends the log. It waits for the target. If the target accepts nothing at all for
    /// [`LogBuilder::stall_timeout`](super::LogBuilder::stall_timeout), the rest is counted as dropped or failed.
    pub fn finish(mut self) -> LogMetrics {
        self.end();
        self.tally.metrics()
    }

    #[cfg(test)]
    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    fn end(&mut self) {
        let Some(worker) = self.worker.take() else {
            return;
        };
        self.control.hurry();
        if self.tally.close(self.stall_timeout + GIVE_UP_MARGIN) {
            // The thread has no lines left, so this does not wait. The thread flushes, which may report losses.
            drop(worker);
        } else {
            // The thread hangs in the target. Dropping the guard would wait again, and print a message on stdout.
            std::mem::forget(worker);
            self.tally.drop_late(self.tally.metrics().in_flight());
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.end();
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.tally.offer() && self.queue.write_all(line).is_err() {
            // This thread waited for a place when the log ended.
            self.tally.drop_late(1);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self::Writer {
        self.clone()
    }
}

/// The time for which the end of the log waits after its thread should have given up the target. The thread counts its
/// lines in that time.
const GIVE_UP_MARGIN: Duration = Duration::from_millis(500);
