//! Counts the lines of a log by outcome. Threads that log, the log's thread and readers share the counters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing_appender::non_blocking::ErrorCounter;

/// The lines of a log so far, or the spans of an export, counted by outcome. The few lines that the log writes about
/// itself are not among them. [`LogBuilder`](super::LogBuilder) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogMetrics {
    /// Lines logged, or spans that ended.
    pub offered: u64,
    /// Lines that the target accepted, or spans that the collector took.
    pub written: u64,
    /// Lines or spans dropped because the queue was full, or because the log or the export had ended.
    pub dropped: u64,
    /// Lines that the target did not accept, or spans that the collector answered it does not take.
    pub failed: u64,
}

impl LogMetrics {
    /// The number of lines or spans that still wait. It is exact while no thread logs, and 0 after the log has ended.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.offered
            .saturating_sub(self.written + self.dropped + self.failed)
    }
}

/// The counters. All operations are sequentially consistent: a line costs an allocation anyway, and the end of the log
/// relies on the order of the counters and of `closed`.
#[derive(Debug, Default)]
pub(super) struct Tally {
    offered: AtomicU64,
    written: AtomicU64,
    failed: AtomicU64,
    late: AtomicU64,
    full: OnceLock<ErrorCounter>,
    closed: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Tally {
    pub(super) fn count_drops_of(&self, counter: ErrorCounter) {
        // This is called once, before the first line, so the cell is empty.
        let _ = self.full.set(counter);
    }

    /// Counts a line. Returns whether the log still accepts it; otherwise it is counted as dropped.
    pub(super) fn offer(&self) -> bool {
        self.offered.fetch_add(1, Ordering::SeqCst);
        let open = !self.closed.load(Ordering::SeqCst);
        if !open {
            self.drop_late(1);
        }
        open
    }

    pub(super) fn drop_late(&self, lines: u64) {
        self.late.fetch_add(lines, Ordering::SeqCst);
    }

    pub(super) fn add_written(&self, lines: u64) {
        self.written.fetch_add(lines, Ordering::SeqCst);
        self.wake_closing_callers();
    }

    pub(super) fn add_failed(&self) -> u64 {
        let total = self.failed.fetch_add(1, Ordering::SeqCst) + 1;
        self.wake_closing_callers();
        total
    }

    pub(super) fn dropped_by_queue(&self) -> u64 {
        self.full
            .get()
            .map_or(0, |counter| counter.dropped_lines() as u64)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    pub(super) fn metrics(&self) -> LogMetrics {
        // Outcomes are read first, because each line is offered before its outcome is counted.
        let written = self.written.load(Ordering::SeqCst);
        let failed = self.failed.load(Ordering::SeqCst);
        let dropped = self.late.load(Ordering::SeqCst) + self.dropped_by_queue();
        LogMetrics {
            offered: self.offered.load(Ordering::SeqCst),
            written,
            dropped,
            failed,
        }
    }

    /// Accepts no more lines, and waits until every accepted line has an outcome. Returns false if no line had an
    /// outcome for `stall_timeout`.
    pub(super) fn close(&self, stall_timeout: Duration) -> bool {
        self.closed.store(true, Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = self.metrics();
        let mut deadline = Instant::now() + stall_timeout;
        loop {
            let now = self.metrics();
            if now.in_flight() == 0 {
                return true;
            }
            if now.in_flight() < last.in_flight() {
                (last, deadline) = (now, Instant::now() + stall_timeout);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn wake_closing_callers(&self) {
        if self.closed.load(Ordering::SeqCst) {
            // The lock keeps the notification from coming between the check and the wait in `close`.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }
}
