//! Waiting for facts, with a deadline that fails with words.

use std::time::{Duration, Instant};

/// Blocks until `probe` has an answer, giving up the processor in between.
///
/// # Panics
/// It has none within the deadline.
pub fn wait_until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "waited {DEADLINE:?} in vain: {what}"
        );
        std::thread::yield_now();
    }
}

/// How long anything may take before a test gives up on it. Far beyond what a busy machine needs.
pub const DEADLINE: Duration = Duration::from_secs(60);
