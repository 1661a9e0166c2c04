//! The fate of every message: the messages that each receiver should have got, and those that it got.
//!
//! Rates say nothing when a server drops in silence, and differences of counters let a duplicate hide a
//! loss. So every receiver knows, for every sender, exactly which sequences arrived. The common case, the
//! next sequence of a sender, costs one comparison and one addition on 4 bytes; only disorder costs more.
//!
//! ```text
//! Ledger::Full  ─ ReceiverLedger   last sequence per sender; a 64-bit window and missing ranges where disordered
//! Ledger::Count ─ CountLedger      number and checksum, for most receivers of rooms above a million pairs
//! ```
//!
//! A set of all received sequences was rejected for its memory (a run of 30 s at 24 M deliveries/s would
//! need gigabytes), counters per pair because equal loss and duplication cancel in them.

mod count;
mod losses;
mod missing;
mod receiver;

pub(crate) use count::{CountLedger, SentTotals};
pub use losses::Losses;
pub(crate) use losses::{Absence, Breaks, End};
pub(crate) use receiver::ReceiverLedger;

/// The account of one receiver, full or counting.
#[derive(Debug)]
pub(crate) enum Ledger {
    /// Every pair is tracked.
    Full(Box<ReceiverLedger>),
    /// Only number and checksum are kept.
    Count(CountLedger),
}

impl Ledger {
    /// Creates the account for the receiver with index `receiver` in a room of `members`, in which each member sends
    /// to all others. Up to [`PAIRS_TRACKED_MAX`] pairs all receivers are tracked fully, above that an evenly spaced
    /// sample.
    pub(crate) fn for_member(receiver: usize, members: usize, late_ms: u64) -> Self {
        if is_tracked(receiver, members) {
            Self::Full(Box::new(ReceiverLedger::with_late_ms(members, late_ms)))
        } else {
            Self::Count(CountLedger::with_late_ms(late_ms))
        }
    }

    /// Notes a decoded message that came `delay_ns` nanoseconds after its intended time. A counting account
    /// cannot tell a duplicate and calls everything new.
    #[inline]
    pub(crate) fn record(&mut self, sender: u32, sequence: u64, delay_ns: u64) -> Fate {
        match self {
            Self::Full(ledger) => ledger.record(sender, sequence, delay_ns),
            Self::Count(ledger) => {
                ledger.record(sender, sequence, delay_ns);
                Fate::New
            }
        }
    }

    /// The highest sequence that came of a sender; 0 of one that was never heard, and where it is only counted.
    pub(crate) fn highest(&self, sender: usize) -> u64 {
        match self {
            Self::Full(ledger) => ledger.highest(sender),
            Self::Count(_) => 0,
        }
    }

    /// The sequence before the run of missing ones of a sender that ends with `end`; 0 where it is only counted.
    pub(crate) fn run_before(&self, sender: usize, end: u64) -> u64 {
        match self {
            Self::Full(ledger) => ledger.run_before(sender, end),
            Self::Count(_) => 0,
        }
    }

    /// The counts that both kinds of account keep.
    pub(crate) fn tally(&mut self) -> &mut Tally {
        match self {
            Self::Full(ledger) => &mut ledger.tally,
            Self::Count(ledger) => &mut ledger.tally,
        }
    }

    /// Closes the account of the receiver with index `own`. `sent` must have checksums when
    /// [`needs_checksums`] says so for the room.
    pub(crate) fn finish(&self, sent: &SentTotals, own: usize) -> ReceiverTotals {
        match self {
            Self::Full(ledger) => ledger.finish(sent.by_sender(), own),
            Self::Count(ledger) => ledger.finish(sent, own),
        }
    }
}

/// The counts of arrivals that need no knowledge of what was sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    late_ns: u64,
    arrived: u64,
    corrupt: u64,
    foreign: u64,
    late: u64,
}

impl Tally {
    /// Calls a delivery late that comes more than `late_ms` milliseconds after its intended time.
    fn with_late_ms(late_ms: u64) -> Self {
        Self {
            late_ns: late_ms.saturating_mul(1_000_000),
            ..Self::default()
        }
    }

    /// Notes a message whose stamp does not check. Whose it was is unknown: where senders are told apart it will also
    /// be missing from its sender's row and so count as lost.
    pub(crate) fn record_corrupt(&mut self) {
        self.arrived += 1;
        self.corrupt += 1;
    }

    /// Notes a message that is none of this step's: another run's or step's stamp.
    pub(crate) fn record_foreign(&mut self) {
        self.arrived += 1;
        self.foreign += 1;
    }

    /// The closed account of one receiver, as far as it is known.
    fn totals(&self) -> ReceiverTotals {
        ReceiverTotals {
            receivers: 1,
            arrived: self.arrived,
            corrupt: self.corrupt,
            late: self.late,
            foreign: self.foreign,
            ..ReceiverTotals::default()
        }
    }
}

/// The fate of one message at one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It came for the first time and before any later one of its sender.
    New,
    /// It had come before.
    Duplicate,
    /// It came for the first time, but after a later one of its sender.
    Reordered,
    /// Its sender is not one of this step.
    Foreign,
    /// No sender uses this sequence.
    Invented,
}

/// Closed accounts of one receiver, or of several after [`ReceiverTotals::merge`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReceiverTotals {
    /// Receivers these totals are of.
    pub(crate) receivers: u64,
    /// Receivers whose pairs were all tracked.
    pub(crate) receivers_tracked: u64,
    /// Receivers whose messages were only counted, and whose number or checksum did not match. Their `lost` and
    /// `duplicated` are the smallest numbers that explain the difference.
    pub(crate) receivers_unresolved: u64,
    /// Messages sent by all others, which should have arrived.
    pub(crate) expected: u64,
    /// Distinct expected messages that arrived.
    pub(crate) delivered: u64,
    /// Expected messages that did not arrive.
    pub(crate) lost: u64,
    /// Expected messages of which the instrument cannot know whether they arrived; they are neither delivered nor lost.
    pub(crate) unconfirmed: u64,
    /// Arrivals of a message that had arrived before.
    pub(crate) duplicated: u64,
    /// Delivered messages that came after a later one of their sender.
    pub(crate) reordered: u64,
    /// Arrivals with a broken stamp.
    pub(crate) corrupt: u64,
    /// Delivered messages that came too long after their intended time.
    pub(crate) late: u64,
    /// Arrivals of other runs, other steps, unknown senders, or of the receiver itself.
    pub(crate) foreign: u64,
    /// Distinct arrivals with a sequence that their sender never sent.
    pub(crate) invented: u64,
    /// Lost messages that could no longer have arrived late, because too many gaps were open at once; such
    /// an arrival would have counted as duplicated.
    pub(crate) given_up: u64,
    /// Everything that arrived, counted as it came.
    pub(crate) arrived: u64,
}

impl ReceiverTotals {
    pub(crate) fn merge(&mut self, other: &Self) {
        add_fields!(self, other;
            receivers receivers_tracked receivers_unresolved expected delivered lost unconfirmed duplicated
            reordered corrupt late foreign invented given_up arrived);
    }

    /// Whether the accounts close: every expected message arrived, is lost or is unconfirmed, and every arrival was a
    /// delivery or is in another count. The second sum uses other counters than the first.
    pub(crate) fn is_conserved(&self) -> bool {
        let named = self.delivered + self.duplicated + self.corrupt + self.foreign + self.invented;
        self.expected == self.delivered + self.lost + self.unconfirmed && self.arrived == named
    }
}

/// Whether a receiver of a room of `members` is tracked fully. The tracked ones are spread evenly, because
/// neighbours share a lane and would share its troubles.
pub(crate) fn is_tracked(receiver: usize, members: usize) -> bool {
    let tracked = tracked_receivers(members) as u128;
    let (receiver, members) = (receiver as u128, members.max(1) as u128);
    (receiver + 1) * tracked / members > receiver * tracked / members
}

/// Whether some receivers of a room of `members` are only counted, so that [`SentTotals`] need checksums.
pub(crate) fn needs_checksums(members: usize) -> bool {
    tracked_receivers(members) < members
}

fn tracked_receivers(members: usize) -> usize {
    (PAIRS_TRACKED_MAX / members.max(1)).clamp(1, members.max(1))
}

/// Most (sender, receiver) pairs tracked fully: 4 MB while in order, which still leaves the processor's caches
/// to the work itself.
pub(crate) const PAIRS_TRACKED_MAX: usize = 1_000_000;

/// A delivery is late when it comes more than this after its intended time, in milliseconds, unless the
/// caller says otherwise: a second is where a person stops calling a chat live.
pub(crate) const LATE_MS: u64 = 1_000;

#[cfg(test)]
mod tests;
