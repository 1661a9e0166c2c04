//! The pauses of a client between attempts to connect.

use std::time::Duration;

/// The pauses between attempts to reconnect, for [`ClientBuilder::reconnect`](crate::ClientBuilder::reconnect). Each pause is
/// twice as long as the one before. A random part spreads the clients of a server that comes back.
/// [`ClientBuilder`](crate::ClientBuilder) has an example.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first pause. Default 200 ms.
    pub first: Duration,
    /// The longest pause. Default 5 s.
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
    /// Returns the pause before attempt number `attempt`, counted from 0. `jitter` is a random number from 0 to 1: the pause
    /// is half as long at 0 and full at 1.
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
