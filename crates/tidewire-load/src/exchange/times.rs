//! The times a lane measures, and where receivers find when a message was really sent.
//!
//! Four times belong to a message: *intended*, *sent*, *written*, *received*. The stamp carries the first, the receiver
//! knows the last. The second stays at the sender, because a stamp is encoded once, before the write. Where the sender
//! is also the receiver it keeps the second itself; in a fan-out the receivers look into the sender's ring, which is
//! why its slots are atomic.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::statistics::LatencyHistogram;

/// The times that one lane recorded since its histograms were last exchanged.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Received − intended: in version 1 of every message, in version 2 of those due in the steady window. While a lane
    /// records, those in `across` are missing here, so that each delivery is recorded once.
    pub(crate) scheduled: LatencyHistogram,
    /// The part of `scheduled` that crossed from one node of a cluster to another.
    pub(crate) across: LatencyHistogram,
    /// The same of the messages due outside of it. Empty in version 1.
    pub(crate) outside: LatencyHistogram,
    /// Received − sent, where both are known.
    pub(crate) service: LatencyHistogram,
    /// Sent − intended, of the messages in `scheduled`.
    pub(crate) send_lag: LatencyHistogram,
    /// Sent − the later of intended and the moment when there was room for it: how late the instrument itself was.
    /// Empty in version 1, where nothing waits for room.
    pub(crate) client_lag: LatencyHistogram,
    /// Written − sent.
    pub(crate) write: LatencyHistogram,
}

impl Times {
    /// Adds what a lane has recorded.
    pub(crate) fn collect(&mut self, other: &Self) {
        self.scheduled.merge(&other.scheduled);
        self.scheduled.merge(&other.across);
        self.across.merge(&other.across);
        self.outside.merge(&other.outside);
        self.service.merge(&other.service);
        self.send_lag.merge(&other.send_lag);
        self.client_lag.merge(&other.client_lag);
        self.write.merge(&other.write);
    }

    /// Where a lane records the time of a delivery.
    #[inline]
    pub(crate) fn delivered(&mut self, is_across: bool) -> &mut LatencyHistogram {
        if is_across {
            &mut self.across
        } else {
            &mut self.scheduled
        }
    }

    pub(crate) fn clear(&mut self) {
        self.scheduled.clear();
        self.across.clear();
        self.outside.clear();
        self.service.clear();
        self.send_lag.clear();
        self.client_lag.clear();
        self.write.clear();
    }

    /// Times above what a histogram holds.
    pub(crate) fn clipped(&self) -> u64 {
        self.scheduled.clipped() + self.service.clipped()
    }
}

/// When the last messages of every sender were sent.
#[derive(Debug)]
pub(crate) struct SentTimes {
    slots: Vec<TimeSlot>,
    /// Slots of one sender, a power of two.
    ring: u64,
}

#[derive(Debug, Default)]
struct TimeSlot {
    sequence: AtomicU64,
    sent_ns: AtomicU64,
}

impl SentTimes {
    /// Rings of at least `wanted` messages for each of `senders`.
    pub(crate) fn new(senders: u32, wanted: u64) -> Self {
        let ring = wanted.clamp(RING_MIN, RING_MAX).next_power_of_two();
        let count = u64::from(senders) * ring;
        Self {
            slots: (0..count).map(|_| TimeSlot::default()).collect(),
            ring,
        }
    }

    /// Called by the sender's lane before the message is on its way.
    #[inline]
    pub(crate) fn store(&self, sender: u32, sequence: u64, sent_ns: u64) {
        if let Some(slot) = self.slot(sender, sequence) {
            // A reader that finds the number of the message finds its time, and not one that is being replaced.
            slot.sequence.store(0, Ordering::Release);
            slot.sent_ns.store(sent_ns, Ordering::Release);
            slot.sequence.store(sequence, Ordering::Release);
        }
    }

    /// When a message was sent, unless it was so long ago that its slot is another's.
    #[inline]
    pub(crate) fn sent_ns(&self, sender: u32, sequence: u64) -> Option<u64> {
        let slot = self.slot(sender, sequence)?;
        if slot.sequence.load(Ordering::Acquire) != sequence {
            return None;
        }
        let sent_ns = slot.sent_ns.load(Ordering::Acquire);
        (slot.sequence.load(Ordering::Acquire) == sequence).then_some(sent_ns)
    }

    fn slot(&self, sender: u32, sequence: u64) -> Option<&TimeSlot> {
        let index = u64::from(sender) * self.ring + (sequence & (self.ring - 1));
        self.slots.get(usize::try_from(index).ok()?)
    }
}

/// Fewest slots of a sender.
const RING_MIN: u64 = 64;

/// Most slots of a sender: a megabyte each.
const RING_MAX: u64 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sent_time_is_found_until_its_slot_is_taken() {
        let times = SentTimes::new(2, 100);
        assert_eq!(times.ring, 128);
        for sequence in 1..=128 {
            times.store(1, sequence, sequence * 10);
        }
        assert_eq!(times.sent_ns(1, 1), Some(10));
        times.store(1, 129, 1_290);
        assert_eq!(times.sent_ns(1, 1), None);
        assert_eq!(times.sent_ns(1, 129), Some(1_290));
        for (sender, sequence) in [(0, 1), (2, 1), (u32::MAX, u64::MAX)] {
            assert_eq!(times.sent_ns(sender, sequence), None);
        }
    }
}
