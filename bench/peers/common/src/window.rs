//! The time in which a driver counts: a warm-up, then the window, by the monotonic clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::{Line, Work, allocated_bytes, console};

/// The window in which a driver counts. The arrival time of a message decides whether it counts.
#[derive(Clone, Debug)]
pub struct Window {
    from_ns: u64,
    until_ns: u64,
    /// Bytes that the process had allocated when the window began.
    allocated_before: Arc<AtomicU64>,
}

impl Window {
    /// Begins the warm-up of `work` now. A thread of its own sleeps until the warm-up ends and then prints `started`,
    /// so that drivers need not check for it.
    #[must_use]
    pub fn begin(work: &Work) -> Self {
        let from_ns = now_ns() + work.warm_up_ms * 1_000_000;
        let allocated_before = Arc::new(AtomicU64::new(allocated_bytes()));
        let noted = Arc::clone(&allocated_before);
        let announcer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_nanos(from_ns.saturating_sub(now_ns())));
            noted.store(allocated_bytes(), Ordering::Relaxed);
            // Standard output is closed. The end of input will end the program.
            let _ = console::say(&Line::Started(true));
        });
        if let Ok(mut announcers) = ANNOUNCERS.lock() {
            announcers.push(announcer);
        }
        Self {
            from_ns,
            until_ns: from_ns + work.measure_ms * 1_000_000,
            allocated_before,
        }
    }

    /// A window that prints nothing.
    #[cfg(test)]
    pub(crate) fn between(from_ns: u64, until_ns: u64) -> Self {
        Self {
            from_ns,
            until_ns,
            allocated_before: Arc::default(),
        }
    }

    /// Whether a message that arrives now counts.
    #[must_use]
    pub fn contains(&self, now_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&now_ns)
    }

    /// Whether the window has ended, so that no more is to be sent.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }

    /// The begin of the window, by the clock of [`now_ns`].
    #[must_use]
    pub fn from_ns(&self) -> u64 {
        self.from_ns
    }

    /// The end of the window.
    #[must_use]
    pub fn until_ns(&self) -> u64 {
        self.until_ns
    }

    /// Bytes that the process has allocated since the window began.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        allocated_bytes().saturating_sub(self.allocated_before.load(Ordering::Relaxed))
    }

    /// The length of the window.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        (self.until_ns - self.from_ns) as f64 / 1e9
    }
}

/// Waits until `started` is printed. On a busy machine its thread may not have run before the window ends, and the
/// result must not be printed before `started`.
pub(crate) fn wait_for_started() {
    let announcers = ANNOUNCERS.lock().map(|mut list| std::mem::take(&mut *list));
    for announcer in announcers.into_iter().flatten() {
        // The thread does nothing that can panic.
        let _ = announcer.join();
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds, which all processes of a machine share.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The longest silence of a driver that waits for messages in flight. After it they are lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// The threads that print `started`.
static ANNOUNCERS: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_measured_before_it_has_started() {
        let work = Work {
            warm_up_ms: 20,
            ..Work::default()
        };
        let window = Window::begin(&work);
        wait_for_started();
        assert!(now_ns() >= window.from_ns());
    }
}
