//! The causes of losses in a run whose connections break on purpose.
//!
//! A connection carries messages in order, so that what it loses when it breaks is a run of sequences that ends with
//! the last one that was sent by then. The instrument knows these ends: it notes, whenever an agent loses its
//! connection or has one again, how much each sender had sent. Which part of a run is missing is asked of the
//! receiver's row, so that every lost delivery has exactly one cause. A gap that the server announces has a number and
//! no sequences; it explains what the other causes leave.
//!
//! Where the servers keep a history, what one receiver got is owed to all. The end of a sender's connection then
//! explains only the messages that nobody got.

use serde::{Deserialize, Serialize};

use super::{Ledger, ReceiverLedger};

/// Lost deliveries by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// The server announced them to the receiver as a gap.
    pub told: u64,
    /// The connection of their sender ended after them, before they reached the receiver.
    pub sender_cut: u64,
    /// The connection of the receiver ended while they were on their way to it.
    pub receiver_cut: u64,
    /// They were sent while the receiver had no connection.
    pub away: u64,
    /// No cause above explains them.
    pub unexplained: u64,
}

/// A time that an agent was without a connection.
#[derive(Debug)]
pub(crate) struct Absence {
    /// How many messages the agent itself had sent.
    pub(crate) own_sent: u64,
    /// The last of these that the history of the room gave back to the agent; 0 if it gave none.
    pub(crate) own_kept: u64,
    /// How many messages every agent had sent when the connection ended.
    pub(crate) at_end: Box<[u64]>,
    /// The same when it was back; nothing of one that did not come back.
    pub(crate) at_return: Option<Box<[u64]>>,
}

/// The messages of all senders, and the ends of their connections.
#[derive(Debug)]
pub(crate) struct Breaks<'a> {
    /// Messages of each sender, numbered from 1.
    pub(crate) sent: &'a [u64],
    /// For each sender, the ends of its connection.
    pub(crate) ends: &'a [Vec<End>],
}

/// The end of a sender's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// The last message before it.
    pub(crate) last: u64,
    /// The last message that is known to have got through, so that the end explains only later ones.
    pub(crate) through: u64,
}

impl Losses {
    /// Adds the losses of other receivers.
    pub(crate) fn merge(&mut self, other: &Self) {
        add_fields!(self, other; told sender_cut receiver_cut away unexplained);
    }

    /// Returns the number of losses that make a step with faults fail. With a history only messages that never reached
    /// it may be lost.
    pub(crate) fn by_mistake(&self, keeps_history: bool) -> u64 {
        match keeps_history {
            true => self.unexplained + self.told + self.receiver_cut + self.away,
            false => self.unexplained,
        }
    }

    /// Explains the `lost` deliveries of one receiver, which the server told of `told` dropped messages. `own` is the
    /// sender whose messages it does not get.
    pub(crate) fn of(
        (lost, told): (u64, u64),
        ledger: &Ledger,
        own: usize,
        absences: &[Absence],
        breaks: &Breaks<'_>,
    ) -> Self {
        let mut losses = Self::default();
        if let Ledger::Full(ledger) = ledger
            && lost > 0
        {
            for (sender, sent) in breaks.sent.iter().enumerate() {
                if sender != own && ledger.missing(sender, *sent) > 0 {
                    let ends = breaks.ends.get(sender).map_or(&[][..], Vec::as_slice);
                    losses.explain(ledger, (sender, *sent), ends, absences);
                }
            }
        }
        let left = lost - (losses.sender_cut + losses.receiver_cut + losses.away);
        losses.told = told.min(left);
        losses.unexplained = left - losses.told;
        losses
    }

    /// Counts what is missing of one sender by the first cause that applies.
    fn explain(
        &mut self,
        ledger: &ReceiverLedger,
        (sender, sent): (usize, u64),
        ends: &[End],
        absences: &[Absence],
    ) {
        let cut = |end: u64| (ledger.run_before(sender, end), end);
        let of_sender = |counts: &[u64]| counts.get(sender).copied().unwrap_or(0).min(sent);
        let mut causes = Vec::new();
        for end in ends {
            let (from, to) = cut(end.last.min(sent));
            causes.push(((from.max(end.through), to), Cause::SenderCut));
        }
        for absence in absences {
            let end = of_sender(&absence.at_end);
            let back = absence.at_return.as_deref().map_or(sent, of_sender);
            causes.push((cut(end), Cause::ReceiverCut));
            causes.push(((end, back), Cause::Away));
        }
        let mut boundaries: Vec<u64> = causes
            .iter()
            .flat_map(|((from, to), _)| [*from, *to])
            .collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        for boundary in boundaries.windows(2) {
            let (from, to) = (boundary[0], boundary[1]);
            let count = ledger.missing(sender, to) - ledger.missing(sender, from);
            let covers = |((first, last), _): &&((u64, u64), Cause)| *first <= from && to <= *last;
            match causes.iter().find(covers) {
                Some((_, Cause::SenderCut)) => self.sender_cut += count,
                Some((_, Cause::ReceiverCut)) => self.receiver_cut += count,
                Some((_, Cause::Away)) => self.away += count,
                None => {}
            }
        }
    }
}

/// The causes that have sequences, the first that applies first.
#[derive(Clone, Copy)]
enum Cause {
    SenderCut,
    ReceiverCut,
    Away,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The account of receiver 1 of two agents, which got these messages of agent 0.
    fn ledger(sequences: impl IntoIterator<Item = u64>) -> Ledger {
        let mut ledger = Ledger::for_member(1, 2, 1_000);
        for sequence in sequences {
            ledger.record(0, sequence, 0);
        }
        ledger
    }

    fn absence(at_end: u64, at_return: Option<u64>) -> Absence {
        Absence {
            own_sent: 0,
            own_kept: 0,
            at_end: [at_end, 0].into(),
            at_return: at_return.map(|count| [count, 0].into()),
        }
    }

    /// The causes of what the receiver did not get of the hundred messages of agent 0: told, of the sender, of the
    /// receiver, away, unexplained.
    fn causes(ledger: &Ledger, told: u64, ends: &[u64], absences: &[Absence]) -> [u64; 5] {
        let end = |last: &u64| End {
            last: *last,
            through: 0,
        };
        let ends: Vec<End> = ends.iter().map(end).collect();
        causes_behind(ledger, told, &ends, absences)
    }

    fn causes_behind(ledger: &Ledger, told: u64, ends: &[End], absences: &[Absence]) -> [u64; 5] {
        let sent = [100, 0];
        let lost = ledger
            .finish(&super::super::SentTotals::new(sent.to_vec(), false), 1)
            .lost;
        let breaks = Breaks {
            sent: &sent,
            ends: &[ends.to_vec(), Vec::new()],
        };
        let losses = Losses::of((lost, told), ledger, 1, absences, &breaks);
        let causes = [
            losses.told,
            losses.sender_cut,
            losses.receiver_cut,
            losses.away,
            losses.unexplained,
        ];
        assert_eq!(causes.iter().sum::<u64>(), lost);
        causes
    }

    #[test]
    fn a_loss_without_a_break_is_told_or_unexplained() {
        let ledger = ledger((1..=100).filter(|sequence| !(40..45).contains(sequence)));
        assert_eq!(causes(&ledger, 0, &[], &[]), [0, 0, 0, 0, 5]);
        assert_eq!(causes(&ledger, 3, &[], &[]), [3, 0, 0, 0, 2]);
        assert_eq!(causes(&ledger, 9, &[], &[]), [5, 0, 0, 0, 0]);
    }

    #[test]
    fn what_was_under_way_and_what_was_sent_in_the_absence_are_told_apart() {
        // Got 50, then the connection ended when 53 were sent, and it was back at 60; one more is missing elsewhere.
        let got = (1..=100).filter(|sequence| !(51..=60).contains(sequence) && *sequence != 80);
        let ledger = ledger(got);
        let absences = [absence(53, Some(60))];
        assert_eq!(causes(&ledger, 0, &[], &absences), [0, 0, 3, 7, 1]);
        assert_eq!(causes(&ledger, 4, &[], &absences), [1, 0, 3, 7, 0]);
    }

    #[test]
    fn one_that_does_not_come_back_misses_all_the_rest() {
        let absences = [absence(53, None)];
        assert_eq!(causes(&ledger(1..=50), 0, &[], &absences), [0, 0, 3, 47, 0]);
        // Messages that came later from elsewhere are no loss.
        let ledger = ledger((1..=50).chain(70..=100));
        assert_eq!(causes(&ledger, 0, &[], &absences), [0, 0, 3, 16, 0]);
    }

    #[test]
    fn the_end_of_a_sender_explains_only_what_is_missing_right_before_it() {
        let got = (1..=100).filter(|sequence| !(58..=60).contains(sequence) && *sequence != 55);
        let ledger = ledger(got);
        assert_eq!(causes(&ledger, 0, &[60], &[]), [0, 3, 0, 0, 1]);
        assert_eq!(causes(&ledger, 0, &[61], &[]), [0, 0, 0, 0, 4]);
        // Both ends of the way broke: a delivery has one cause.
        assert_eq!(
            causes(&ledger, 0, &[60], &[absence(60, Some(62))]),
            [0, 3, 0, 0, 1]
        );
        assert_eq!(
            causes(&ledger, 0, &[60], &[absence(59, Some(62))]),
            [0, 3, 0, 0, 1]
        );
    }

    #[test]
    fn the_end_of_a_sender_explains_nothing_that_somebody_got() {
        let ledger = ledger((1..=100).filter(|sequence| !(51..=60).contains(sequence)));
        let causes = |through| causes_behind(&ledger, 0, &[End { last: 60, through }], &[]);
        assert_eq!(causes(0), [0, 10, 0, 0, 0]);
        assert_eq!(causes(57), [0, 3, 0, 0, 7]);
        for through in [60, 99] {
            assert_eq!(causes(through), [0, 0, 0, 0, 10]);
        }
    }

    #[test]
    fn a_history_leaves_no_excuse_but_the_end_of_a_sender() {
        let losses = Losses {
            told: 1,
            sender_cut: 10,
            receiver_cut: 100,
            away: 1_000,
            unexplained: 10_000,
        };
        assert_eq!(losses.by_mistake(false), 10_000);
        assert_eq!(losses.by_mistake(true), 11_101);
    }

    #[test]
    fn breaks_beyond_what_was_sent_or_before_anything_was_are_harmless() {
        let empty = ledger([]);
        let absences = [absence(0, Some(0)), absence(500, Some(900))];
        assert_eq!(causes(&empty, 0, &[0, 400], &absences), [0, 100, 0, 0, 0]);
        assert_eq!(causes(&empty, 0, &[], &absences), [0, 0, 100, 0, 0]);
    }
}
