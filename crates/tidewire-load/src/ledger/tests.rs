//! The ledger against a naive oracle, and the choice of tracked receivers.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

impl ReceiverTotals {
    /// Whether every expected message came once and in order, and nothing else did. Lateness does not count.
    pub(super) fn is_exactly_once_in_order(&self) -> bool {
        let amiss = self.lost
            + self.unconfirmed
            + self.duplicated
            + self.reordered
            + self.corrupt
            + self.foreign
            + self.invented
            + self.receivers_unresolved;
        amiss == 0 && self.delivered == self.expected
    }
}

/// The plainest possible account: how often each message came.
#[derive(Default)]
struct Oracle {
    seen: HashMap<(u32, u64), u64>,
    highest: HashMap<u32, u64>,
    reordered: u64,
}

impl Oracle {
    fn record(&mut self, sender: u32, sequence: u64) -> Fate {
        let times = self.seen.entry((sender, sequence)).or_default();
        *times += 1;
        if sequence == 0 {
            return Fate::Invented;
        }
        if *times > 1 {
            return Fate::Duplicate;
        }
        let highest = self.highest.entry(sender).or_default();
        if sequence < *highest {
            self.reordered += 1;
            return Fate::Reordered;
        }
        *highest = sequence;
        Fate::New
    }

    fn check(&self, totals: &ReceiverTotals, sent: &[u64]) {
        let was_sent =
            |sender: u32, sequence: u64| sequence >= 1 && sequence <= sent[sender as usize];
        let distinct = |wanted: bool| {
            let keys = self.seen.keys();
            keys.filter(|(sender, sequence)| was_sent(*sender, *sequence) == wanted)
                .count() as u64
        };
        let zero: u64 = (0..sent.len() as u32)
            .filter_map(|sender| self.seen.get(&(sender, 0)))
            .sum();
        let zero_keys = self
            .seen
            .keys()
            .filter(|(_, sequence)| *sequence == 0)
            .count() as u64;
        let arrived: u64 = self.seen.values().sum();
        let invented = distinct(false) - zero_keys + zero;
        assert_eq!(totals.arrived, arrived);
        assert_eq!(totals.expected, sent.iter().sum::<u64>());
        assert_eq!(totals.delivered, distinct(true));
        assert_eq!(totals.lost, totals.expected - distinct(true));
        assert_eq!(totals.invented, invented);
        assert_eq!(totals.reordered, self.reordered);
        assert_eq!(totals.duplicated, arrived - distinct(true) - invented);
        assert!(totals.is_conserved(), "{totals:?}");
    }
}

/// The effect of a faulty network on one message of the stream.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    Drop,
    DropBurst(usize),
    Duplicate,
    DuplicateOld(usize),
    Delay(usize),
    Invent(u64),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        20 => Just(Fault::None),
        3 => Just(Fault::Drop),
        1 => (1_usize..300).prop_map(Fault::DropBurst),
        2 => Just(Fault::Duplicate),
        1 => (1_usize..400).prop_map(Fault::DuplicateOld),
        3 => (1_usize..400).prop_map(Fault::Delay),
        1 => (0_u64..2_000).prop_map(Fault::Invent),
    ]
}

/// The stream of one receiver after the faults, and how much each of three senders sent.
fn stream(faults: &[Fault], senders: &[u32]) -> (Vec<(u32, u64)>, Vec<u64>) {
    let mut sent = vec![0_u64; 3];
    // Each entry carries a sort key, so that a delay is a later key.
    let mut keyed: Vec<(usize, u32, u64)> = Vec::new();
    let mut dropping = 0;
    for (index, (fault, sender)) in faults.iter().zip(senders).enumerate() {
        sent[*sender as usize] += 1;
        let message = (*sender, sent[*sender as usize]);
        if dropping > 0 {
            dropping -= 1;
            continue;
        }
        let mut push = |at: usize, (sender, sequence)| keyed.push((at, sender, sequence));
        match fault {
            Fault::None => push(index, message),
            Fault::Drop => {}
            Fault::DropBurst(length) => dropping = *length,
            Fault::Duplicate => {
                push(index, message);
                push(index, message);
            }
            Fault::DuplicateOld(age) => {
                push(index, message);
                push(index + age, message);
            }
            Fault::Delay(by) => push(index + by, message),
            Fault::Invent(sequence) => {
                push(index, message);
                push(index, (*sender, *sequence));
            }
        }
    }
    keyed.sort_by_key(|(at, ..)| *at);
    (
        keyed
            .into_iter()
            .map(|(_, sender, sequence)| (sender, sequence))
            .collect(),
        sent,
    )
}

proptest! {
    #[test]
    fn agrees_with_the_oracle_over_random_faults(
        faults in prop::collection::vec(fault(), 0..1_500),
        senders in prop::collection::vec(0_u32..3, 1_500),
    ) {
        let (messages, sent) = stream(&faults, &senders);
        let mut ledger = ReceiverLedger::with_late_ms(3, LATE_MS);
        let mut oracle = Oracle::default();
        for (sender, sequence) in messages {
            prop_assert_eq!(
                ledger.record(sender, sequence, 0),
                oracle.record(sender, sequence),
                "sender {} sequence {}", sender, sequence
            );
        }
        oracle.check(&ledger.finish(&sent, 3), &sent);
    }

    #[test]
    fn counting_notices_whatever_tracking_finds_amiss(
        faults in prop::collection::vec(fault(), 0..300),
        senders in prop::collection::vec(0_u32..3, 300),
    ) {
        let (messages, sent) = stream(&faults, &senders);
        let mut full = ReceiverLedger::with_late_ms(3, LATE_MS);
        let mut count = CountLedger::with_late_ms(LATE_MS);
        for (sender, sequence) in messages {
            full.record(sender, sequence, 0);
            count.record(sender, sequence, 0);
        }
        let full = full.finish(&sent, 3);
        let count = count.finish(&SentTotals::new(sent, true), 3);
        prop_assert!(count.is_conserved());
        prop_assert_eq!(count.expected, full.expected);
        let amiss = full.lost + full.duplicated + full.invented > 0;
        prop_assert_eq!(count.receivers_unresolved == 1, amiss);
        prop_assert_eq!(count.is_exactly_once_in_order(), !amiss);
    }
}

#[test]
fn a_flood_of_gaps_beyond_the_bound_stays_conserved() {
    let mut ledger = ReceiverLedger::with_late_ms(2, LATE_MS);
    let sent = 400_000;
    for sequence in (1..=sent).filter(|sequence| sequence % 4 == 0) {
        ledger.record(0, sequence, 0);
    }
    let before = ledger.finish(&[sent, 0], 1);
    assert_eq!((before.delivered, before.lost), (sent / 4, sent / 4 * 3));
    assert!(before.given_up > 0 && before.is_conserved(), "{before:?}");
    // An arrival too late to be told from a duplicate must not repair the loss.
    assert_eq!(ledger.record(0, 1, 0), Fate::Duplicate);
    let after = ledger.finish(&[sent, 0], 1);
    assert_eq!((after.lost, after.duplicated), (before.lost, 1));
    assert!(after.is_conserved());
    // Nor may it when the sender claims to have sent less than was given up.
    let contradictory = ledger.finish(&[10, 0], 1);
    assert!(
        contradictory.lost > 0 && contradictory.invented > 0,
        "{contradictory:?}"
    );
    assert!(contradictory.is_conserved(), "{contradictory:?}");
}

#[test]
fn small_rooms_are_tracked_fully_and_huge_ones_by_an_even_sample() {
    assert!((0..1_000).all(|receiver| is_tracked(receiver, 1_000)));
    assert!(!needs_checksums(1_000));
    let members = 10_000;
    assert!(needs_checksums(members));
    let tracked: Vec<usize> = (0..members)
        .filter(|index| is_tracked(*index, members))
        .collect();
    assert_eq!(tracked.len(), PAIRS_TRACKED_MAX / members);
    assert!(
        tracked.windows(2).all(|pair| pair[1] - pair[0] == 100),
        "{tracked:?}"
    );
    let huge = 3_000_000;
    assert_eq!(
        (0..huge).filter(|index| is_tracked(*index, huge)).count(),
        1
    );
}

#[test]
fn totals_of_both_kinds_of_receiver_add_up() {
    let members = 2_000;
    let sent = SentTotals::new(vec![3; members], needs_checksums(members));
    assert_eq!(sent.by_sender().iter().sum::<u64>(), 6_000);
    let mut totals = ReceiverTotals::default();
    for receiver in 0..members {
        let mut ledger = Ledger::for_member(receiver, members, LATE_MS);
        for sender in (0..members).filter(|sender| *sender != receiver) {
            for sequence in 1..=3 {
                ledger.record(sender as u32, sequence, 0);
            }
        }
        if receiver == 1_000 {
            ledger.tally().record_foreign();
            ledger.tally().record_corrupt();
        }
        totals.merge(&ledger.finish(&sent, receiver));
    }
    assert_eq!((totals.receivers, totals.receivers_tracked), (2_000, 500));
    assert_eq!(totals.expected, 2_000 * 1_999 * 3);
    assert_eq!((totals.delivered, totals.lost), (totals.expected, 0));
    assert_eq!(
        (totals.foreign, totals.corrupt, totals.receivers_unresolved),
        (1, 1, 0)
    );
    assert!(totals.is_conserved() && !totals.is_exactly_once_in_order());
}
