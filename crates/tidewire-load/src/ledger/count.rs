//! An account that only counts: it checks a receiver of a huge room in 16 bytes.
//! A hundred thousand members make ten thousand million pairs, which no memory holds. A receiver that is not fully
//! tracked keeps the number of messages and the wrapping sum of a mixed value of each. Both are independent of order.
//! They equal those of the sent messages only if every message came once (except with a chance of 1 in 2^64). If they
//! differ, something went wrong at the receiver, but it is not known what: the totals then have the smallest loss and
//! duplication that explain it, and count the receiver as unresolved.

use super::{ReceiverTotals, Tally};
use crate::schedule::mix;

/// Number and checksum of the messages that one receiver got.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountLedger {
    pub(super) tally: Tally,
    counted: u64,
    checksum: u64,
}

impl CountLedger {
    /// An empty account that calls a delivery late when it comes more than `late_ms` milliseconds after its
    /// intended time.
    pub(crate) fn with_late_ms(late_ms: u64) -> Self {
        Self {
            tally: Tally::with_late_ms(late_ms),
            ..Self::default()
        }
    }

    /// Notes a decoded message that came `delay_ns` nanoseconds after its intended time.
    #[inline]
    pub(crate) fn record(&mut self, sender: u32, sequence: u64, delay_ns: u64) {
        self.tally.arrived += 1;
        self.counted += 1;
        self.checksum = self.checksum.wrapping_add(mixed(sender, sequence));
        self.tally.late += u64::from(delay_ns > self.tally.late_ns);
    }

    /// Closes the account against the messages that all senders except the receiver itself, `own`, sent.
    pub(crate) fn finish(&self, sent: &SentTotals, own: usize) -> ReceiverTotals {
        let (expected, checksum) = sent.of_others(own);
        let matches = self.counted == expected && self.checksum == checksum;
        // The least that explains a mismatch: too few means loss, too many means duplication, and as many
        // with another sum means that at least one was lost and one came in its place.
        let (lost, duplicated) = match self.counted.checked_sub(expected) {
            Some(0) if matches => (0, 0),
            Some(0) => (1, 1),
            Some(surplus) => (0, surplus),
            None => (expected - self.counted, 0),
        };
        ReceiverTotals {
            receivers_unresolved: u64::from(!matches),
            expected,
            delivered: expected - lost,
            lost,
            duplicated,
            ..self.tally.totals()
        }
    }
}

/// The messages of all senders, ready to be compared with many receivers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SentTotals {
    by_sender: Vec<u64>,
    checksum_by_sender: Vec<u64>,
    sum: u64,
    checksum: u64,
}

impl SentTotals {
    /// Takes for every sender how many messages it sent, numbered from 1. Computes checksums only with
    /// `checksums`, since that costs a few nanoseconds a message and only counting receivers need them.
    pub(crate) fn new(sent_by_sender: Vec<u64>, checksums: bool) -> Self {
        let checksum_by_sender: Vec<u64> = if checksums {
            let of_sender = |(sender, sent): (usize, &u64)| {
                (1..=*sent).fold(0_u64, |sum, sequence| {
                    sum.wrapping_add(mixed(sender as u32, sequence))
                })
            };
            sent_by_sender.iter().enumerate().map(of_sender).collect()
        } else {
            Vec::new()
        };
        Self {
            sum: sent_by_sender.iter().sum(),
            checksum: checksum_by_sender
                .iter()
                .fold(0, |sum, value| sum.wrapping_add(*value)),
            by_sender: sent_by_sender,
            checksum_by_sender,
        }
    }

    /// Number of messages of each sender.
    pub(crate) fn by_sender(&self) -> &[u64] {
        &self.by_sender
    }

    /// Number and checksum of what all senders but `own` sent.
    fn of_others(&self, own: usize) -> (u64, u64) {
        let own_sent = self.by_sender.get(own).copied().unwrap_or(0);
        let own_checksum = self.checksum_by_sender.get(own).copied().unwrap_or(0);
        (
            self.sum - own_sent,
            self.checksum.wrapping_sub(own_checksum),
        )
    }
}

/// A value for one message in which neighbouring senders and sequences are unrelated, so that a wrong set
/// of messages has the right sum only by chance.
#[inline]
fn mixed(sender: u32, sequence: u64) -> u64 {
    mix(mix(sequence).wrapping_add(u64::from(sender)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: [u64; 3] = [100, 50, 70];

    /// The messages that the receiver with index 2 should get, in order.
    fn expected() -> Vec<(u32, u64)> {
        let first = (1..=SENT[0]).map(|sequence| (0, sequence));
        first
            .chain((1..=SENT[1]).map(|sequence| (1, sequence)))
            .collect()
    }

    fn totals(messages: &[(u32, u64)]) -> ReceiverTotals {
        let mut ledger = CountLedger::with_late_ms(1_000);
        for (sender, sequence) in messages {
            ledger.record(*sender, *sequence, 0);
        }
        let totals = ledger.finish(&SentTotals::new(SENT.to_vec(), true), 2);
        assert!(totals.is_conserved(), "{totals:?}");
        totals
    }

    #[test]
    fn any_order_of_the_right_messages_is_right() {
        let mut messages = expected();
        fastrand::Rng::with_seed(1).shuffle(&mut messages);
        let totals = totals(&messages);
        assert_eq!(
            (totals.expected, totals.delivered, totals.lost),
            (150, 150, 0)
        );
        assert_eq!(totals.receivers_unresolved, 0);
    }

    #[test]
    fn loss_duplication_and_exchange_are_noticed() {
        let mut messages = expected();
        messages.truncate(140);
        let short = totals(&messages);
        assert_eq!(
            (short.lost, short.duplicated, short.receivers_unresolved),
            (10, 0, 1)
        );

        let mut messages = expected();
        messages.extend([(0, 1), (0, 2)]);
        let long = totals(&messages);
        assert_eq!(
            (long.lost, long.duplicated, long.receivers_unresolved),
            (0, 2, 1)
        );

        let mut messages = expected();
        messages[20] = messages[21];
        let exchanged = totals(&messages);
        assert_eq!((exchanged.lost, exchanged.duplicated), (1, 1));
        assert_eq!(exchanged.receivers_unresolved, 1);
    }

    #[test]
    fn losses_that_compensate_in_a_plain_sum_are_noticed() {
        // 5 and 7 replaced by 6 twice, and one message exchanged between neighbouring senders.
        let exchanges = [
            [(0, 5), (0, 7), (0, 6), (0, 6)],
            [(0, 9), (1, 7), (0, 8), (1, 8)],
        ];
        for [first, second, instead_of_first, instead_of_second] in exchanges {
            let mut messages = expected();
            for (lost, instead) in [(first, instead_of_first), (second, instead_of_second)] {
                let at = messages
                    .iter()
                    .position(|message| *message == lost)
                    .unwrap();
                messages[at] = instead;
            }
            let totals = totals(&messages);
            assert_eq!(
                (totals.lost, totals.receivers_unresolved),
                (1, 1),
                "{first:?} {second:?}"
            );
        }
    }

    #[test]
    fn lateness_corruption_and_strangers_are_counted_apart() {
        let mut ledger = CountLedger::with_late_ms(1);
        ledger.record(0, 1, 1_000_001);
        ledger.tally.record_corrupt();
        ledger.tally.record_foreign();
        let totals = ledger.finish(&SentTotals::new(vec![1, 1], true), 1);
        assert_eq!((totals.delivered, totals.late), (1, 1));
        assert_eq!((totals.corrupt, totals.foreign, totals.arrived), (1, 1, 3));
        assert!(totals.is_conserved());
    }
}
