//! The messages of a fan-out. Each has a number and the time at which the rate makes it due.
//!
//! Payload: bytes 0 to 7 a number from 0, 8 to 15 `CLOCK_MONOTONIC` in nanoseconds when it was due, both
//! little-endian; the rest is filled with 0x5a.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{Work, now_ns};

/// The messages of a publisher, tick by tick.
#[derive(Debug)]
pub struct Publication {
    payload: Vec<u8>,
    sent: u64,
    rate_per_sec: f64,
    begun_ns: u64,
}

impl Publication {
    /// Creates the publication of `work`. It begins now.
    ///
    /// # Errors
    /// Its messages have no room for a number and a time.
    pub fn begin(work: &Work) -> Result<Self> {
        Ok(Self {
            payload: blank_payload(work)?,
            sent: 0,
            rate_per_sec: work.rate_per_sec,
            begun_ns: now_ns(),
        })
    }

    /// The number of messages that are due and not sent, at most those of [`TURN_NS`]. A publisher that caught up at
    /// once would take longer each time at a rate that it cannot keep. Without a rate it is a fixed batch.
    #[must_use]
    pub fn due(&self, now_ns: u64) -> u64 {
        if self.rate_per_sec <= 0.0 {
            return UNPACED_MESSAGES;
        }
        let turn_messages = (self.rate_per_sec * TURN_NS / 1e9).ceil() as u64;
        self.behind(now_ns).min(turn_messages)
    }

    /// Messages that are due and not sent.
    fn behind(&self, now_ns: u64) -> u64 {
        let elapsed_secs = now_ns.saturating_sub(self.begun_ns) as f64 / 1e9;
        ((elapsed_secs * self.rate_per_sec) as u64).saturating_sub(self.sent)
    }

    /// The next message with the time at which it was due, or with the present time if there is no rate. It counts as
    /// sent.
    pub fn message(&mut self) -> &[u8] {
        self.payload[..8].copy_from_slice(&self.sent.to_le_bytes());
        self.sent += 1;
        let due_ns = if self.rate_per_sec > 0.0 {
            self.begun_ns + (self.sent as f64 * 1e9 / self.rate_per_sec) as u64
        } else {
            now_ns()
        };
        self.payload[8..HEAD_BYTES].copy_from_slice(&due_ns.to_le_bytes());
        &self.payload
    }

    /// The sleep until the next tick. `None` without a rate, and for a publisher that is behind.
    #[must_use]
    pub fn until_tick(&self, now_ns: u64) -> Duration {
        let ticks = TICK_NS as f64 / 1e9;
        if self.rate_per_sec <= 0.0 || self.behind(now_ns) as f64 > self.rate_per_sec * ticks {
            return Duration::ZERO;
        }
        Duration::from_nanos(TICK_NS - now_ns.saturating_sub(self.begun_ns) % TICK_NS)
    }
}

/// A payload of `work` without number and time.
///
/// # Errors
/// The payload has no room for them.
pub(crate) fn blank_payload(work: &Work) -> Result<Vec<u8>> {
    let bytes = work.message_bytes;
    ensure!(
        bytes >= HEAD_BYTES,
        "{bytes} bytes have no room for a number and a time"
    );
    Ok(vec![0x5a; bytes])
}

/// Bytes of the number and the time.
pub(crate) const HEAD_BYTES: usize = 16;

/// The interval at which a publisher reads the clock, in nanoseconds.
const TICK_NS: u64 = 1_000_000;

/// The longest time that a late publisher makes up for in one turn, in nanoseconds of the rate.
const TURN_NS: f64 = 10e6;

/// Messages of a batch without a rate.
const UNPACED_MESSAGES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_due_as_the_rate_says_less_those_sent() {
        let work = Work {
            message_bytes: 32,
            rate_per_sec: 4_000.0,
            ..Work::default()
        };
        let mut publication = Publication::begin(&work).unwrap();
        let begun_ns = publication.begun_ns;
        assert_eq!(publication.due(begun_ns), 0);
        assert_eq!(publication.due(begun_ns + TICK_NS), 4);
        let first = publication.message().to_vec();
        assert_eq!((first.len(), &first[..8]), (32, &[0; 8][..]));
        assert_eq!(publication.message()[0], 1);
        assert_eq!(publication.due(begun_ns + TICK_NS), 2);
        // A second late, it sends the messages of 10 ms at once and does not sleep.
        assert_eq!(publication.due(begun_ns + 1_000 * TICK_NS), 40);
        assert!(publication.until_tick(begun_ns + 1_000 * TICK_NS).is_zero());
        let pause = publication.until_tick(begun_ns + TICK_NS + 1);
        assert_eq!(pause.as_nanos() as u64, TICK_NS - 1);
    }

    #[test]
    fn without_a_rate_there_is_always_something_due() {
        let work = Work {
            message_bytes: 16,
            ..Work::default()
        };
        let publication = Publication::begin(&work).unwrap();
        assert_eq!(publication.due(0), UNPACED_MESSAGES);
        assert!(publication.until_tick(0).is_zero());
        assert!(Publication::begin(&Work::default()).is_err());
    }

    #[test]
    fn messages_say_when_they_were_due_however_late_they_are() {
        let work = Work {
            message_bytes: 32,
            rate_per_sec: 1_000.0,
            ..Work::default()
        };
        let mut publication = Publication::begin(&work).unwrap();
        let begun_ns = publication.begun_ns;
        assert_eq!(publication.due(begun_ns + 5_000_001), 5);
        for number in 0..5_u64 {
            let message = publication.message();
            assert_eq!(message[..8], number.to_le_bytes());
            let due_ns = begun_ns + (number + 1) * 1_000_000;
            assert_eq!(message[8..16], due_ns.to_le_bytes());
        }
        assert_eq!(publication.due(begun_ns + 5_000_001), 0);
    }
}
