//! The server's own account of its deliveries and faults.
//!
//! A message in a room of `n` members offers `n − 1` deliveries; a request or a one-way message offers one, back to its
//! sender. Each delivery ends in exactly one of three ways: dropped on purpose, written to a socket, or undeliverable
//! because the socket was gone. The ends are counted where they happen, separately from the offers, so their sum checks
//! the server itself.

/// A snapshot of a [`FaultServer`](super::FaultServer)'s accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultLedger {
    /// Joins that were accepted.
    pub joins: u64,
    /// Joins that were refused on purpose.
    pub joins_refused: u64,
    /// Messages accepted from members.
    pub messages: u64,
    /// Offered deliveries: for each message, one to every other member of its room. They include deliveries to a member
    /// that the server cut off on purpose, but not to a member that left or vanished.
    pub offered: u64,
    /// Deliveries dropped on purpose, including substituted deliveries.
    pub dropped: u64,
    /// Copies sent beyond the offered delivery, including substitutes.
    pub duplicated: u64,
    /// Messages sent to their own sender, beyond the offered deliveries.
    pub echoed: u64,
    /// Deliveries replaced by a repeated earlier message.
    pub substituted: u64,
    /// Deliveries sent with one bit flipped.
    pub corrupted: u64,
    /// Deliveries sent without their last byte.
    pub cut: u64,
    /// Deliveries sent after the next one of the same sender.
    pub swapped: u64,
    /// Deliveries and their copies that a socket took.
    pub delivered: u64,
    /// Deliveries and copies that were not written because the socket was closed. When a write failed half-way, the
    /// whole write counts here.
    pub undeliverable: u64,
    /// Deliveries and copies that are still on their way.
    pub queued: u64,
    /// Receivers that were cut off on purpose.
    pub disconnected: u64,
    /// Pauses of the whole server.
    pub stalls: u64,
}

impl FaultLedger {
    /// Whether every offered or added delivery ended in one of the three ways or is still queued.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        self.offered + self.duplicated + self.echoed
            == self.dropped + self.delivered + self.undeliverable + self.queued
    }
}
