//! The sequences a receiver skipped, exactly, for the few pairs that skipped any.
//! A pair's window of 64 sequences is nearly always enough. Sequences that leave it without being received are kept
//! here as ranges in ascending order, so a burst of loss of any length costs 16 bytes. The number of ranges of a
//! receiver is bounded. At the bound the older half of the pair's own ranges is *given up*: these sequences are lost
//! for good, and one that arrives later counts as a duplicate. So duplicates never hide a loss, and the number of
//! sequences that were given up is reported.

use std::collections::HashMap;

/// Missing sequences of all pairs of one receiver, by sender.
#[derive(Debug, Default)]
pub(super) struct MissingTable {
    pairs: HashMap<u32, MissingRanges>,
    ranges: usize,
}

impl MissingTable {
    /// Notes that `first..=last` of a sender are missing. Calls for one sender come in ascending order.
    pub(super) fn insert(&mut self, sender: u32, first: u64, last: u64) {
        let pair = self.pairs.entry(sender).or_default();
        match pair.ranges.last_mut() {
            Some(range) if range.last + 1 == first => range.last = last,
            _ => {
                pair.ranges.push(Range { first, last });
                self.ranges += 1;
            }
        }
        if self.ranges > RANGES_MAX {
            self.ranges -= pair.give_up_older_half();
        }
    }

    /// Takes a sequence out because it arrived; false when it was not missing.
    pub(super) fn remove(&mut self, sender: u32, sequence: u64) -> bool {
        let Some(pair) = self.pairs.get_mut(&sender) else {
            return false;
        };
        let before = pair.ranges.len();
        let removed = pair.remove(sequence);
        self.ranges = self.ranges - before + pair.ranges.len();
        removed
    }

    /// How many sequences of a sender up to and including `limit` are missing.
    pub(super) fn count_up_to(&self, sender: u32, limit: u64) -> u64 {
        self.pairs
            .get(&sender)
            .map_or(0, |pair| pair.count_up_to(limit))
    }

    /// How many sequences of all senders were given up as lost because the table was full.
    pub(super) fn given_up(&self) -> u64 {
        self.pairs.values().map(|pair| pair.given_up).sum()
    }
}

#[derive(Debug, Default)]
struct MissingRanges {
    ranges: Vec<Range>,
    /// Number of missing sequences that are no longer in `ranges`.
    given_up: u64,
}

impl MissingRanges {
    fn remove(&mut self, sequence: u64) -> bool {
        let index = self.ranges.partition_point(|range| range.last < sequence);
        let Some(range) = self.ranges.get_mut(index) else {
            return false;
        };
        if sequence < range.first {
            return false;
        }
        let whole = *range;
        match (whole.first == sequence, whole.last == sequence) {
            (true, true) => {
                self.ranges.remove(index);
            }
            (true, false) => range.first += 1,
            (false, true) => range.last -= 1,
            (false, false) => {
                range.last = sequence - 1;
                let rest = Range {
                    first: sequence + 1,
                    last: whole.last,
                };
                self.ranges.insert(index + 1, rest);
            }
        }
        true
    }

    /// Returns how many ranges were given up.
    fn give_up_older_half(&mut self) -> usize {
        let count = self.ranges.len().div_ceil(2);
        self.given_up += self.ranges.drain(..count).map(Range::length).sum::<u64>();
        count
    }

    /// Sequences that were given up are the oldest, so they count up to any limit; a limit below them means that the
    /// receiver saw sequences never sent, and then no more than `limit` can be missing.
    fn count_up_to(&self, limit: u64) -> u64 {
        let kept: u64 = self
            .ranges
            .iter()
            .take_while(|range| range.first <= limit)
            .map(|range| {
                let last = range.last.min(limit);
                Range { last, ..*range }.length()
            })
            .sum();
        (self.given_up + kept).min(limit)
    }
}

/// A run of missing sequences, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
}

impl Range {
    fn length(self) -> u64 {
        self.last - self.first + 1
    }
}

/// Most ranges of one receiver. 16 bytes each make 256 KiB a receiver and 128 MiB for 500 of them, in a run
/// that is lost anyway: it takes 16,384 separate gaps at one receiver to get here.
pub(super) const RANGES_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn table(ranges: &[(u64, u64)]) -> MissingTable {
        let mut table = MissingTable::default();
        for (first, last) in ranges {
            table.insert(1, *first, *last);
        }
        table
    }

    #[test]
    fn neighbouring_ranges_merge() {
        let table = table(&[(1, 3), (4, 4), (6, 9)]);
        assert_eq!(table.ranges, 2);
        assert_eq!(table.count_up_to(1, u64::MAX), 8);
        assert_eq!(table.count_up_to(1, 6), 5);
        assert_eq!(table.count_up_to(2, u64::MAX), 0);
    }

    #[test]
    fn removing_shrinks_splits_and_empties_ranges() {
        let mut table = table(&[(10, 20)]);
        for (sequence, was_missing, ranges) in [
            (10, true, 1),
            (20, true, 1),
            (15, true, 2),
            (15, false, 2),
            (9, false, 2),
            (21, false, 2),
            (14, true, 2),
            (11, true, 2),
            (12, true, 2),
            (13, true, 1),
        ] {
            assert_eq!(table.remove(1, sequence), was_missing, "{sequence}");
            assert_eq!(table.ranges, ranges, "{sequence}");
        }
        assert!(!table.remove(2, 15));
        assert_eq!(table.count_up_to(1, u64::MAX), 4);
    }

    #[test]
    fn at_the_bound_the_oldest_are_given_up_and_stay_lost() {
        let mut table = MissingTable::default();
        let count = RANGES_MAX as u64 + 1;
        for index in 0..count {
            table.insert(1, index * 10 + 1, index * 10 + 2);
        }
        let given_up = table.given_up();
        assert_eq!(given_up, count.div_ceil(2) * 2);
        assert!(table.ranges <= RANGES_MAX);
        assert_eq!(table.count_up_to(1, u64::MAX), count * 2);
        assert!(!table.remove(1, 1), "given up: can no longer arrive");
        assert_eq!(table.count_up_to(1, u64::MAX), count * 2);
        assert!(table.remove(1, count * 10 - 9));
        assert_eq!(table.count_up_to(1, u64::MAX), count * 2 - 1);
    }
}
