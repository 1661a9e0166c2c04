//! How long a client waits before it tries to connect again.

use std::time::Duration;

/// Pauses between attempts to reconnect: doubling, with a random part so that a thousand clients of a server
/// that came back do not come at the same moment. For [`ClientBuilder::reconnect`](crate::ClientBuilder::reconnect).
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(200),
            max: Duration::from_secs(5),
        }
    }
}

impl Backoff {
    /// The pause before attempt number `attempt`, counted from 0; `jitter` is random in 0..1.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1 << attempt.min(20))
            .min(self.max);
        doubled.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_and_vary() {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            max: Duration::from_secs(1),
        };
        assert_eq!(backoff.delay(0, 1.0), Duration::from_millis(100));
        assert_eq!(backoff.delay(2, 1.0), Duration::from_millis(400));
        assert_eq!(backoff.delay(50, 1.0), Duration::from_secs(1));
        assert_eq!(backoff.delay(50, 0.0), Duration::from_millis(500));
    }
}
