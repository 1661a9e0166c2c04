//! The pauses between attempts to connect to NATS, and the limit of their lines in the log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidewire::Backoff;

/// The pauses between attempts. Only a connection that lasted longer than the longest pause resets them, so that a NATS
/// that accepts and closes is not dialled many times a second.
#[derive(Debug)]
pub(crate) struct Pauses(Mutex<Series>);

#[derive(Debug)]
struct Series {
    /// Attempts since the last connection that lasted.
    attempts: u32,
    /// When the last pause ended.
    due: Instant,
}

impl Pauses {
    pub(crate) fn new() -> Self {
        let due = Instant::now();
        Self(Mutex::new(Series { attempts: 0, due }))
    }

    /// The pause before the next attempt. `attempt` counts the attempts since the last connection, from 1.
    pub(crate) fn next(&self, attempt: usize, now: Instant) -> Duration {
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The first attempt after a connection comes when that connection ends.
        let lasted = now.saturating_duration_since(series.due);
        if attempt <= 1 && lasted > RECONNECT.max {
            series.attempts = 0;
        }
        let pause = RECONNECT.delay(series.attempts, fastrand::f64());
        series.attempts = series.attempts.saturating_add(1);
        series.due = now + pause;
        pause
    }
}

/// Allows one line of a kind in ten seconds, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct QuietLog {
    last: Option<Instant>,
    unlogged: u64,
}

impl QuietLog {
    /// Returns the number of suppressed lines since the last line. `None` if this line is suppressed, too.
    pub(crate) fn may_log(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now < last + QUIET) {
            self.unlogged += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// The pauses between attempts to connect again. A cluster waits for NATS, so the longest is short. The random part
/// spreads the nodes.
const RECONNECT: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_secs(1),
};

/// The pauses between attempts at the start.
pub(crate) const AT_START: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_secs(5),
};

const QUIET: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a NATS that accepts and closes was dialled 19 times a second for ever, without jitter.
    #[test]
    fn pauses_grow_although_each_connection_is_accepted() {
        let pauses = Pauses::new();
        let start = Instant::now();
        let (mut now, mut dials) = (start, 0);
        while now < start + Duration::from_secs(20) {
            now += pauses.next(1, now);
            dials += 1;
        }
        assert!((20..=45).contains(&dials), "{dials} dials in 20 s");
        let lasting = now + RECONNECT.max + Duration::from_millis(1);
        assert!(pauses.next(1, lasting) <= RECONNECT.first);
        // An attempt that takes long is no connection.
        let later = lasting + Duration::from_secs(60);
        assert!(pauses.next(2, later) >= RECONNECT.delay(1, 0.0));
        assert!(pauses.next(3, later) >= RECONNECT.delay(2, 0.0));
    }

    #[test]
    fn one_line_in_ten_seconds_is_logged_and_the_others_are_counted() {
        let (mut log, now) = (QuietLog::default(), Instant::now());
        assert_eq!(log.may_log(now), Some(0));
        assert_eq!(log.may_log(now + QUIET / 2), None);
        assert_eq!(log.may_log(now + QUIET), Some(1));
    }
}
