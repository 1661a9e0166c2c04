//! What the server itself did, counted by the server itself.
//!
//! One message said in a room of `n` members owes `n − 1` deliveries; a request or a one-way message owes one, back to
//! its sender. Each delivery ends in exactly one of
//! three ways: swallowed on purpose, written to a socket, or undeliverable because the socket was gone. The
//! counters of the ends are kept where they happen, apart from those of the debts, so that their sum checks
//! the server before the server checks anything else.

/// A snapshot of a [`FaultServer`](super::FaultServer)'s accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultLedger {
    /// Joins that were accepted.
    pub joins: u64,
    /// Joins that were refused on purpose.
    pub joins_refused: u64,
    /// Messages accepted from members.
    pub messages: u64,
    /// Deliveries owed: for each message, one to every other member of its room. A member the server cut
    /// off on purpose is still owed; one that left or vanished is not.
    pub offered: u64,
    /// Deliveries swallowed on purpose, substituted ones included.
    pub dropped: u64,
    /// Copies sent beyond the one owed, those of substitutions included.
    pub duplicated: u64,
    /// Messages sent to their own sender, which is owed none.
    pub echoed: u64,
    /// Deliveries in whose place an earlier message was sent again.
    pub substituted: u64,
    /// Deliveries sent with one bit flipped.
    pub corrupted: u64,
    /// Deliveries sent without their last byte.
    pub cut: u64,
    /// Deliveries sent after the next one of the same sender.
    pub swapped: u64,
    /// Deliveries and copies of them that were handed to a socket.
    pub delivered: u64,
    /// Deliveries and copies that could not be handed to a socket because it was closed. Where a write
    /// failed half-way, the whole write counts here.
    pub undeliverable: u64,
    /// Deliveries and copies that are neither: still on their way.
    pub queued: u64,
    /// Receivers that were cut off on purpose.
    pub disconnected: u64,
    /// Pauses of the whole server.
    pub stalls: u64,
}

impl FaultLedger {
    /// Whether everything that was owed or added ended in one of the three ways or is still queued.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        self.offered + self.duplicated + self.echoed
            == self.dropped + self.delivered + self.undeliverable + self.queued
    }
}
