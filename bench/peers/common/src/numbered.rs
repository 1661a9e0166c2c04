//! One-way messages with a number and the number of their connection, so that a receiver notices missing ones.
//!
//! Payload: bytes 0 to 7 the number within the connection, 8 to 11 the connection, both little-endian; the rest is
//! filled with 0x5a.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

use crate::{Measured, Window, Work};

/// The sending side of one connection.
#[derive(Debug)]
pub struct Source {
    message: Vec<u8>,
    next: u64,
}

impl Source {
    /// Creates the source of connection `connection`.
    ///
    /// # Errors
    /// The messages of `work` have no room for the two numbers.
    pub fn new(work: &Work, connection: usize) -> Result<Self> {
        let bytes = work.message_bytes;
        ensure!(
            bytes >= HEAD_BYTES,
            "{bytes} bytes have no room for {HEAD_BYTES} of numbers"
        );
        let mut message = vec![0x5a; bytes];
        message[8..HEAD_BYTES].copy_from_slice(&(connection as u32).to_le_bytes());
        Ok(Self { message, next: 0 })
    }

    /// The next message. It counts as sent.
    pub fn message(&mut self) -> &[u8] {
        self.message[..8].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        &self.message
    }

    /// Takes the last message back, which was not sent after all. It will be the next one again.
    pub fn take_back(&mut self) {
        self.next -= 1;
    }

    /// Messages sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.next
    }
}

/// The result of a driver of one-way messages: how many it sent over all connections. The benchmark asks the server how
/// many arrived.
#[must_use]
pub fn sent(messages: u64, window: &Window) -> Measured {
    Measured {
        sent: Some(messages),
        seconds: window.seconds(),
        verified: true,
        allocated_bytes: Some(window.allocated_bytes()),
        ..Measured::default()
    }
}

/// The receiving side of all connections. One thread receives; any may read the counts.
#[derive(Debug)]
pub struct Intake {
    expected: Vec<u64>,
    right: u64,
    wrong: u64,
    counts: Arc<Counts>,
}

/// The counts of an intake so far, for other threads.
#[derive(Debug, Default)]
pub struct Counts {
    right: AtomicU64,
    wrong: AtomicU64,
}

impl Counts {
    /// Messages that came once and in the order of their connection.
    #[must_use]
    pub fn right(&self) -> u64 {
        self.right.load(Ordering::Relaxed)
    }

    /// Sets the number of correct messages, for servers that count without an [`Intake`].
    pub fn set_right(&self, messages: u64) {
        self.right.store(messages, Ordering::Relaxed);
    }

    /// Messages that came late, twice, or changed.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }
}

impl Intake {
    /// Creates the intake for the connections of `work`.
    #[must_use]
    pub fn new(work: &Work) -> Self {
        Self {
            expected: vec![0; work.connections.max(1)],
            right: 0,
            wrong: 0,
            counts: Arc::default(),
        }
    }

    /// Returns its counts for other threads. They are as of the last [`Intake::publish`].
    #[must_use]
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Handles one message. Missing messages before it are not counted here: the sender knows how many it sent.
    pub fn take(&mut self, message: &[u8]) {
        let numbers = message.first_chunk::<HEAD_BYTES>();
        let expected = numbers.and_then(|&[_, _, _, _, _, _, _, _, a, b, c, d]| {
            let connection = u32::from_le_bytes([a, b, c, d]) as usize;
            self.expected.get_mut(connection)
        });
        let (Some(&[a, b, c, d, e, f, g, h, ..]), Some(expected)) = (numbers, expected) else {
            self.wrong += 1;
            return;
        };
        let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        if number >= *expected {
            self.right += 1;
            *expected = number.wrapping_add(1);
        } else {
            self.wrong += 1;
        }
    }

    /// Messages so far that came once and in order.
    #[must_use]
    pub fn right(&self) -> u64 {
        self.right
    }

    /// Messages so far that came late, twice, or changed.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.wrong
    }

    /// Makes the counts visible to other threads. Called once for each batch.
    pub fn publish(&self) {
        self.counts.right.store(self.right, Ordering::Relaxed);
        self.counts.wrong.store(self.wrong, Ordering::Relaxed);
    }
}

/// Bytes of the two numbers.
const HEAD_BYTES: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> Work {
        Work {
            connections: 2,
            message_bytes: 32,
            ..Work::default()
        }
    }

    #[test]
    fn what_is_lost_doubled_or_swapped_is_found() {
        let mut source = Source::new(&work(), 1).unwrap();
        let sent: Vec<Vec<u8>> = (0..6).map(|_| source.message().to_vec()).collect();
        assert_eq!(source.sent(), 6);
        for (order, right) in [
            (&[0, 1, 2, 3, 4, 5][..], 6),
            (&[0, 1, 3, 4, 5], 5),
            (&[0, 1, 1, 2, 3, 4, 5], 6),
            (&[1, 0, 2, 3, 4, 5], 5),
        ] {
            let mut intake = Intake::new(&work());
            for &number in order {
                intake.take(&sent[number]);
            }
            intake.publish();
            let counts = intake.counts();
            assert_eq!(counts.right(), right, "{order:?}");
            assert_eq!(right + counts.wrong(), order.len() as u64, "{order:?}");
        }
    }

    #[test]
    fn a_message_of_no_connection_is_wrong() {
        let mut intake = Intake::new(&work());
        let mut source = Source::new(&work(), 2).unwrap();
        intake.take(source.message());
        intake.take(&[0; 11]);
        intake.publish();
        assert_eq!(intake.counts().wrong(), 2);
    }
}
