//! Full tracking: one receiver's row over all senders, 4 bytes a pair as long as it is in order.
//!
//! A pair in order is one number, the last sequence; the expected message adds one to it, and nothing else
//! happens. The first message out of order gives the pair a place in the list of those that need more: the
//! highest sequence seen and a window of 64 bits, bit `n` set when `highest - n` arrived. It starts with all bits
//! set, so that nothing before counts as missing. An oldest bit that is clear leaves the window as a missing
//! sequence for the side table.
//!
//! Sixteen bytes for every pair were tried first: the rows of 500 receivers are then 4 MB, more than the cache of a
//! core, and waiting for them was a sixth of the instrument's time.

use super::missing::MissingTable;
use super::{Fate, ReceiverTotals, Tally};

/// The fate of every message that one receiver should get, got or should not have got.
#[derive(Debug)]
pub(crate) struct ReceiverLedger {
    /// By sender: the last sequence of a pair in order, or [`DISORDERED`] and a place in `disordered`.
    pairs: Vec<u32>,
    disordered: Vec<Pair>,
    pub(super) tally: Tally,
    duplicated: u64,
    reordered: u64,
    sequence_zero: u64,
    missing: MissingTable,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    highest: u64,
    window: u64,
}

impl ReceiverLedger {
    /// An empty row that calls a delivery late when it comes more than `late_ms` milliseconds after its
    /// intended time.
    pub(crate) fn with_late_ms(senders: usize, late_ms: u64) -> Self {
        Self {
            pairs: vec![0; senders],
            disordered: Vec::new(),
            tally: Tally::with_late_ms(late_ms),
            duplicated: 0,
            reordered: 0,
            sequence_zero: 0,
            missing: MissingTable::default(),
        }
    }

    /// Notes a decoded message that came `delay_ns` nanoseconds after its intended time.
    #[inline]
    pub(crate) fn record(&mut self, sender: u32, sequence: u64, delay_ns: u64) -> Fate {
        self.tally.arrived += 1;
        let Some(pair) = self.pairs.get_mut(sender as usize) else {
            self.tally.foreign += 1;
            return Fate::Foreign;
        };
        let fate = if u64::from(*pair) + 1 == sequence && *pair < IN_ORDER_MAX {
            *pair += 1;
            Fate::New
        } else {
            self.record_out_of_order(sender, sequence)
        };
        if delay_ns > self.tally.late_ns && matches!(fate, Fate::New | Fate::Reordered) {
            self.tally.late += 1;
        }
        fate
    }

    /// The highest sequence that came of a sender; 0 of one that was never heard.
    pub(crate) fn highest(&self, sender: usize) -> u64 {
        match self.pairs.get(sender) {
            Some(_) => self.pair(sender).highest,
            None => 0,
        }
    }

    /// Closes the row. `sent_by_sender` holds for every sender how many messages it sent, which are numbered
    /// from 1; `own` is the receiver's own index, whose messages must not come back to it.
    pub(crate) fn finish(&self, sent_by_sender: &[u64], own: usize) -> ReceiverTotals {
        let mut totals = ReceiverTotals {
            receivers_tracked: 1,
            duplicated: self.duplicated,
            reordered: self.reordered,
            invented: self.sequence_zero,
            given_up: self.missing.given_up(),
            ..self.tally.totals()
        };
        let untracked = sent_by_sender.iter().skip(self.pairs.len()).sum::<u64>();
        totals.expected += untracked;
        totals.lost += untracked;
        for sender in 0..self.pairs.len() {
            let pair = &self.pair(sender);
            let distinct = pair.highest - self.missing_up_to(sender, pair, pair.highest);
            if sender == own {
                totals.foreign += distinct;
                continue;
            }
            let sent = sent_by_sender.get(sender).copied().unwrap_or(0);
            let lost = self.missing(sender, sent);
            let delivered = sent - lost;
            totals.expected += sent;
            totals.lost += lost;
            totals.delivered += delivered;
            totals.invented += distinct - delivered;
        }
        totals
    }

    /// How many messages of a sender up to the one numbered `limit` did not arrive.
    pub(super) fn missing(&self, sender: usize, limit: u64) -> u64 {
        let pair = match self.pairs.get(sender) {
            Some(_) => self.pair(sender),
            None => Pair::in_order_up_to(0),
        };
        let never_seen = limit.saturating_sub(pair.highest);
        self.missing_up_to(sender, &pair, limit.min(pair.highest)) + never_seen
    }

    /// The sequence before the run of missing ones that ends with `end`; `end` itself if that arrived.
    pub(super) fn run_before(&self, sender: usize, end: u64) -> u64 {
        let missing = self.missing(sender, end);
        let (mut low, mut high) = (0, end);
        while low < high {
            let middle = u64::midpoint(low, high);
            if missing - self.missing(sender, middle) == end - middle {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    fn missing_up_to(&self, sender: usize, pair: &Pair, limit: u64) -> u64 {
        let beyond = pair.highest - limit;
        let in_window = match pair
            .window
            .checked_shr(beyond.try_into().unwrap_or(u32::MAX))
        {
            // The shift brings zeros in from above that stand for no sequence.
            Some(window) => u64::from((64 - beyond as u32) - window.count_ones()),
            None => 0,
        };
        in_window + self.missing.count_up_to(sender as u32, limit)
    }

    fn pair(&self, sender: usize) -> Pair {
        let pair = self.pairs[sender];
        if pair & DISORDERED == 0 {
            Pair::in_order_up_to(pair)
        } else {
            self.disordered[(pair & !DISORDERED) as usize]
        }
    }

    /// The pair's place among those that need more than a number, where it stays from now on.
    fn disordered_mut(&mut self, sender: u32) -> &mut Pair {
        let pair = &mut self.pairs[sender as usize];
        if *pair & DISORDERED == 0 {
            let place = self.disordered.len();
            self.disordered.push(Pair::in_order_up_to(*pair));
            // There are no more places than senders, whose number is a u32 far below the marking bit.
            *pair = DISORDERED | place as u32;
        }
        &mut self.disordered[(*pair & !DISORDERED) as usize]
    }

    #[inline(never)]
    fn record_out_of_order(&mut self, sender: u32, sequence: u64) -> Fate {
        if sequence == 0 {
            self.sequence_zero += 1;
            return Fate::Invented;
        }
        let pair = self.disordered_mut(sender);
        if sequence > pair.highest {
            let before = *pair;
            let step = sequence - before.highest;
            pair.highest = sequence;
            pair.window = if step < 64 {
                before.window << step | 1
            } else {
                1
            };
            self.keep_what_left_the_window(sender, before, step);
            return Fate::New;
        }
        let age = pair.highest - sequence;
        let was_missing = if age < 64 {
            let bit = 1_u64 << age;
            let missing = pair.window & bit == 0;
            pair.window |= bit;
            missing
        } else {
            self.missing.remove(sender, sequence)
        };
        if was_missing {
            self.reordered += 1;
            Fate::Reordered
        } else {
            self.duplicated += 1;
            Fate::Duplicate
        }
    }

    /// Puts the sequences that an advance by `step` pushed out unreceived into the side table: those of clear bits at
    /// the old end of the window, and skipped ones that were never in it.
    fn keep_what_left_the_window(&mut self, sender: u32, before: Pair, step: u64) {
        let leaving = step.min(64);
        for age in (64 - leaving..64).rev() {
            if before.window & (1 << age) == 0 {
                let sequence = before.highest - age;
                self.missing.insert(sender, sequence, sequence);
            }
        }
        if step > 64 {
            let (first, last) = (before.highest + 1, before.highest + step - 64);
            self.missing.insert(sender, first, last);
        }
    }
}

impl Pair {
    fn in_order_up_to(last: u32) -> Self {
        Self {
            highest: u64::from(last),
            window: u64::MAX,
        }
    }
}

/// Marks a pair that is not, or not always was, in order.
const DISORDERED: u32 = 1 << 31;

/// Last sequence that a pair in order can hold. Marked pairs are above it, so that one comparison excludes them.
const IN_ORDER_MAX: u32 = DISORDERED - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::LATE_MS;

    /// A row of one other sender (index 0) for the receiver with index 1.
    fn row(sequences: impl IntoIterator<Item = u64>) -> ReceiverLedger {
        let mut row = ReceiverLedger::with_late_ms(2, LATE_MS);
        for sequence in sequences {
            row.record(0, sequence, 0);
        }
        row
    }

    fn finish(row: &ReceiverLedger, sent: u64) -> ReceiverTotals {
        let totals = row.finish(&[sent, 7], 1);
        assert!(totals.is_conserved(), "{totals:?}");
        totals
    }

    #[test]
    fn all_in_order_is_all_delivered() {
        let totals = finish(&row(1..=1_000), 1_000);
        assert_eq!(
            (totals.expected, totals.delivered, totals.lost),
            (1_000, 1_000, 0)
        );
        assert!(totals.is_exactly_once_in_order());
    }

    #[test]
    fn loss_at_the_start_in_the_middle_and_at_the_end_is_counted() {
        let sequences = (1..=1_000).filter(|sequence| {
            !(1..=3).contains(sequence) && !(400..=599).contains(sequence) && *sequence <= 995
        });
        let totals = finish(&row(sequences), 1_000);
        assert_eq!((totals.delivered, totals.lost), (792, 208));
    }

    #[test]
    fn equal_loss_and_duplication_do_not_cancel() {
        let sequences = (1..=1_000).map(|sequence| if sequence == 500 { 499 } else { sequence });
        let totals = finish(&row(sequences), 1_000);
        assert_eq!(
            (totals.lost, totals.duplicated, totals.delivered),
            (1, 1, 999)
        );
    }

    #[test]
    fn late_arrivals_inside_and_far_outside_the_window_are_reordered_once() {
        for distance in [1, 2, 62, 63, 64, 65, 127, 128, 129, 5_000] {
            let last = 1_000 + distance;
            let mut row = row((1..=last).filter(|sequence| *sequence != 1_000));
            assert_eq!(finish(&row, last).lost, 1, "distance {distance}");
            assert_eq!(
                row.record(0, 1_000, 0),
                Fate::Reordered,
                "distance {distance}"
            );
            assert_eq!(
                row.record(0, 1_000, 0),
                Fate::Duplicate,
                "distance {distance}"
            );
            let totals = finish(&row, last);
            assert_eq!(
                (totals.lost, totals.reordered, totals.duplicated),
                (0, 1, 1)
            );
        }
    }

    #[test]
    fn swapped_neighbours_are_one_reordering() {
        let totals = finish(&row([1, 2, 4, 3, 5]), 5);
        assert_eq!(
            (totals.delivered, totals.reordered, totals.duplicated),
            (5, 1, 0)
        );
        assert!(!totals.is_exactly_once_in_order());
    }

    #[test]
    fn the_highest_sequence_is_known_in_order_and_out_of_it() {
        assert_eq!(row([]).highest(0), 0);
        assert_eq!(row([1, 2, 3]).highest(0), 3);
        assert_eq!(row([1, 5, 2]).highest(0), 5);
        assert_eq!(row([1]).highest(7), 0);
    }

    #[test]
    fn sequences_never_sent_are_invented_and_hide_no_loss() {
        let totals = finish(&row([0, 1, 2, 6, 9]), 5);
        assert_eq!((totals.expected, totals.delivered, totals.lost), (5, 2, 3));
        assert_eq!(totals.invented, 3);
        let totals = finish(&row([1, 2, u64::MAX]), 5);
        assert_eq!((totals.delivered, totals.lost, totals.invented), (2, 3, 1));
    }

    #[test]
    fn own_and_unknown_senders_are_foreign() {
        let mut row = row([1]);
        assert_eq!(row.record(1, 1, 0), Fate::New);
        assert_eq!(row.record(2, 1, 0), Fate::Foreign);
        row.tally.record_foreign();
        row.tally.record_corrupt();
        let totals = finish(&row, 2);
        assert_eq!((totals.foreign, totals.corrupt), (3, 1));
        assert_eq!((totals.expected, totals.delivered, totals.lost), (2, 1, 1));
        assert_eq!(totals.arrived, 5);
    }

    #[test]
    fn late_deliveries_are_delivered_and_late_duplicates_are_not_late() {
        let mut row = ReceiverLedger::with_late_ms(2, 5);
        row.record(0, 1, 5_000_000);
        row.record(0, 2, 5_000_001);
        row.record(0, 2, 9_000_000);
        let totals = finish(&row, 2);
        assert_eq!(
            (totals.delivered, totals.late, totals.duplicated),
            (2, 1, 1)
        );
    }

    #[test]
    fn a_pair_in_order_may_outgrow_its_number() {
        let mut row = ReceiverLedger::with_late_ms(2, LATE_MS);
        row.pairs[0] = IN_ORDER_MAX - 1;
        let last = u64::from(IN_ORDER_MAX) + 70;
        for sequence in u64::from(IN_ORDER_MAX)..=last {
            assert_eq!(row.record(0, sequence, 0), Fate::New);
        }
        assert_eq!(row.record(0, last, 0), Fate::Duplicate);
        // The number that a marked pair holds is no sequence.
        let marked = u64::from(row.pairs[0]);
        assert_eq!(row.record(0, marked + 1, 0), Fate::Duplicate);
        let totals = row.finish(&[last, 0], 1);
        assert_eq!(
            (totals.expected, totals.lost, totals.duplicated),
            (last, 0, 2)
        );
    }

    #[test]
    fn a_sender_that_never_got_through_is_all_lost() {
        let totals = finish(&row([]), 100);
        assert_eq!(
            (totals.expected, totals.lost, totals.delivered),
            (100, 100, 0)
        );
        let totals = ReceiverLedger::with_late_ms(1, LATE_MS).finish(&[1, 2, 3], 0);
        assert_eq!((totals.expected, totals.lost), (5, 5));
        assert!(totals.is_conserved());
    }
}
