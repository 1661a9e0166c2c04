//! The pauses between attempts to connect.
//!
//! Problem: a server that accepts a connection and ends it at once looks like a server that works. If each accepted
//! connection reset the pauses, they would never grow, and such a server would be dialled many times a second for ever.
//! Approach: only a connection that lasted longer than the longest pause resets the pauses.

use std::time::Duration;

use tidewire_proto::body::GoAwayCode;
use tidewire_proto::connection::CloseReason;

use crate::limits::nanoseconds;
use crate::transport::ConnectError;

/// The pauses between attempts to reconnect, for [`ClientBuilder::reconnect`](crate::ClientBuilder::reconnect). Each
/// pause is twice as long as the previous pause. A random part spreads the clients of a server that restarts. A
/// connection that lasted longer than `max` resets the pauses.
///
/// While a server refuses a client, the pauses are longer: 1 s, and then four times as long each time, up to 60 s. A
/// refusal is an attempt or a short connection that the server ends because of the credentials, or because the client
/// reads too slowly. So a few clients of one address do not use up the failures that a server allows an address.
///
/// After a handshake without an answer in time, the pause is a random time up to 2 s, then up to 4 s and 5 s: the many
/// clients of a server that signs for each must not return at once.
///
/// [`ClientBuilder`](crate::ClientBuilder) has an example.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first pause. Default 200 ms.
    pub first: Duration,
    /// The longest pause. Default 5 s.
    pub max: Duration,
}

/// Decides when the next attempt to connect may begin.
#[derive(Debug)]
pub(super) struct Pace {
    backoff: Backoff,
    /// Attempts since the last connection that lasted.
    attempts: u32,
    /// How often the server has refused this side since the last connection that lasted, or that ended for another
    /// reason.
    refusals: u32,
    /// Handshakes without an answer in time since the last connection.
    timeouts: u32,
    opened_ns: u64,
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
    /// Returns the pause before attempt number `attempt`, counted from 0. `jitter` is a random number from 0 to 1: the
    /// pause is half as long at 0 and full at 1.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1 << attempt.min(20))
            .min(self.max);
        doubled.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

impl Pace {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            attempts: 0,
            refusals: 0,
            timeouts: 0,
            opened_ns: 0,
        }
    }

    pub(super) fn note_open(&mut self, now_ns: u64) {
        self.opened_ns = now_ns;
        self.timeouts = 0;
    }

    /// Notes the end of the open connection. Returns whether the connection lasted longer than the longest pause.
    pub(super) fn note_end(&mut self, now_ns: u64, reason: CloseReason) -> bool {
        let lasted_ns = now_ns.saturating_sub(self.opened_ns);
        let has_lasted = lasted_ns >= nanoseconds(self.backoff.max);
        match reason {
            _ if has_lasted => (self.attempts, self.refusals) = (0, 0),
            reason if is_refusal(reason) => self.refusals = self.refusals.saturating_add(1),
            _ => self.refusals = 0,
        }
        has_lasted
    }

    /// Notes the end of an attempt that led to no open connection.
    pub(super) fn note_failure(&mut self, failure: &ConnectError) {
        match failure {
            ConnectError::Refused { reason, .. } if is_refusal(*reason) => {
                self.refusals = self.refusals.saturating_add(1);
            }
            ConnectError::Closed(CloseReason::HandshakeTimeout) => {
                self.timeouts = self.timeouts.saturating_add(1);
            }
            _ => {}
        }
    }

    /// Whether no pause was asked for since the last connection that lasted.
    pub(super) fn is_fresh(&self) -> bool {
        self.attempts == 0
    }

    /// The pause before the next attempt, which this call counts.
    pub(super) fn next_pause(&mut self) -> Duration {
        let jitter = fastrand::f64();
        let mut pause = self.backoff.delay(self.attempts, jitter);
        if let Some(earlier) = self.refusals.checked_sub(1) {
            let doublings = earlier.saturating_mul(2);
            pause = pause.max(WHILE_REFUSED.delay(doublings, jitter));
        }
        if let Some(earlier) = self.timeouts.checked_sub(1) {
            let longest = WHILE_OVERLOADED.delay(earlier, 1.0);
            pause = pause.max(OVERLOADED_PAUSE_MIN + longest.mul_f64(fastrand::f64()));
        }
        self.attempts = self.attempts.saturating_add(1);
        pause
    }
}

/// Whether a server is there and refuses this side.
fn is_refusal(reason: CloseReason) -> bool {
    use GoAwayCode::{SlowSubscriber, Unauthenticated};
    matches!(
        reason,
        CloseReason::GoAway(Unauthenticated | SlowSubscriber)
    )
}

/// The least pauses while a server refuses this side. Each is four times as long as the previous pause, because the
/// number of refusals counts twice. A server allows an address 30 failures in a minute. A client has five at most in
/// its first minute, and two in each later minute.
const WHILE_REFUSED: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

/// The longest pauses after handshakes without an answer in time. A pause is a random part of these: clients that
/// return only in the second half of their pauses would leave the server idle in the first half. Longer pauses would
/// delay the last clients: 4,000 clients return within 29 s to a server that signs for 6 ms.
const WHILE_OVERLOADED: Backoff = Backoff {
    first: Duration::from_secs(2),
    max: Duration::from_secs(5),
};

const OVERLOADED_PAUSE_MIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_longer_after_handshakes_without_an_answer_until_a_connection_opens() {
        let quick = Backoff {
            first: Duration::from_millis(1),
            max: Duration::from_millis(2),
        };
        let timed_out = ConnectError::Closed(CloseReason::HandshakeTimeout);
        let longest = |timeouts: usize| {
            let pauses = (0..100).map(|_| {
                let mut pace = Pace::new(quick);
                for _ in 0..timeouts {
                    pace.note_failure(&timed_out);
                }
                pace.next_pause()
            });
            let pauses: Vec<Duration> = pauses.collect();
            assert!(pauses.iter().all(|it| *it >= OVERLOADED_PAUSE_MIN));
            pauses.into_iter().max().unwrap()
        };
        // Of a hundred pauses one at least is in the upper half.
        for (timeouts, seconds) in [(1, 2), (2, 4), (3, 5), (50, 5)] {
            let most = Duration::from_secs(seconds) + OVERLOADED_PAUSE_MIN;
            assert!((most / 2..=most).contains(&longest(timeouts)));
        }
        let mut pace = Pace::new(quick);
        pace.note_failure(&timed_out);
        pace.note_open(0);
        assert!(pace.next_pause() <= quick.max);
    }

    const SECOND_NS: u64 = 1_000_000_000;

    /// The number of dials within this time to a server that ends each connection after `open_ns`.
    fn dials(pace: &mut Pace, reason: CloseReason, open_ns: u64, within_ns: u64) -> usize {
        let (mut now_ns, mut dials) = (0, 0);
        while now_ns < within_ns {
            dials += 1;
            pace.note_open(now_ns);
            now_ns += open_ns;
            pace.note_end(now_ns, reason);
            now_ns += nanoseconds(pace.next_pause());
        }
        dials
    }

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

    /// Regression: each accepted connection reset the pauses, and a server that accepts and closes was dialled 5 to 19
    /// times a second for ever.
    #[test]
    fn pauses_grow_although_each_connection_is_accepted() {
        let mut pace = Pace::new(Backoff::default());
        let dialled = dials(&mut pace, CloseReason::PeerClosed, 1_000, 25 * SECOND_NS);
        assert!((8..=14).contains(&dialled), "{dialled} dials in 25 s");

        let lasting_ns = 5 * SECOND_NS + 1;
        pace.note_open(0);
        assert!(pace.note_end(lasting_ns, CloseReason::PeerClosed));
        assert!(pace.is_fresh());
        assert!(pace.next_pause() <= Backoff::default().first);
    }

    /// Regression: a client whose token was revoked tried again every 4 s, so three of them used up the failures of
    /// their address.
    #[test]
    fn a_server_that_refuses_is_tried_a_few_times_in_a_minute() {
        use GoAwayCode::{SlowSubscriber, Unauthenticated};
        let quick = Backoff {
            first: Duration::from_millis(1),
            max: Duration::from_millis(2),
        };
        let minute = 60 * SECOND_NS;
        for code in [Unauthenticated, SlowSubscriber] {
            let refused = CloseReason::GoAway(code);
            // Refused after the welcome.
            let dialled = dials(&mut Pace::new(quick), refused, 1_000, minute);
            assert!(dialled <= 5, "{dialled} dials in a minute");
            // Refused before the welcome.
            let (mut pace, mut now_ns, mut attempts) = (Pace::new(quick), 0, 0);
            while now_ns < minute {
                attempts += 1;
                pace.note_failure(&ConnectError::Refused {
                    reason: refused,
                    text: String::new(),
                });
                now_ns += nanoseconds(pace.next_pause());
            }
            assert!(attempts <= 5, "{attempts} attempts in a minute");
            // A connection that ends for another reason shows that this side is wanted.
            pace.note_open(0);
            assert!(!pace.note_end(1_000, CloseReason::PeerClosed));
            assert!(pace.next_pause() <= quick.max);
        }
    }
}
