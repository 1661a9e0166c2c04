//! The points of sequences: a node counts its messages to each room and topic, and the messages from each other node.
//!
//! ```text
//! sender     next(room, 3 messages) ─▶ point 5      the packet says: from message 5 on
//! receiver   arrive(point 5, 3)     ─▶ expected 4: one message is missing; the next one is 8
//! ```
//!
//! A sender may forget a sequence to save memory, and then begins a new sequence with another number. A receiver of the
//! old sequence expects all messages of the new one. So no loss is hidden, except before the first packet that a
//! receiver sees: earlier messages are not for this receiver.

use std::collections::HashMap;

use super::{Entry, SequenceKind, SequencePoint};

/// The numbers of messages and of changes of presence among the entries of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryCounts {
    /// Messages.
    pub messages: u64,
    /// Changes of presence.
    pub changes: u64,
}

impl EntryCounts {
    /// Counts an entry.
    pub fn add(&mut self, entry: &Entry<'_>) {
        self.messages += u64::from(entry.is_message());
        self.changes += u64::from(entry.is_change());
    }
}

/// The sequences of this node. See the module.
#[derive(Debug, Default)]
pub struct SentSequences {
    sequences: HashMap<(SequenceKind, Box<str>), SentSequence>,
    /// Number of the latest sequence.
    started: u64,
    /// Counts uses, to find the sequences with the oldest use.
    clock: u64,
}

#[derive(Debug)]
struct SentSequence {
    next: SequencePoint,
    used: u64,
    /// Whether messages were sent since the point was last sent alone.
    is_unmarked: bool,
}

impl SentSequences {
    /// Counts entries that are about to be sent. Returns the point of the first entry. A sequence beyond
    /// `sequences_max` replaces the one that was silent for longest.
    pub fn next(
        &mut self,
        kind: SequenceKind,
        name: &str,
        counts: EntryCounts,
        sequences_max: usize,
    ) -> SequencePoint {
        self.clock += 1;
        // A look-up by borrowed parts of the key would need an unstable API. This allocation happens once a packet.
        let key = (kind, Box::from(name));
        if !self.sequences.contains_key(&key) && self.sequences.len() >= sequences_max {
            self.forget_half();
        }
        let (started, used) = (&mut self.started, self.clock);
        let sequence = self.sequences.entry(key).or_insert_with(|| {
            *started += 1;
            let next = SequencePoint {
                start: *started,
                ..SequencePoint::default()
            };
            SentSequence {
                next,
                used,
                is_unmarked: false,
            }
        });
        let point = sequence.next;
        sequence.next.message += counts.messages;
        sequence.next.change += counts.changes;
        sequence.used = used;
        sequence.is_unmarked |= counts.messages + counts.changes > 0;
        point
    }

    /// Calls `visit` for the sequences with a point to send again: no message has followed their last message, or a
    /// node requested the point. `visit` returns whether the point was sent. Other points, and sequences that were used
    /// after the previous call, wait for the next call.
    pub fn mark(
        &mut self,
        since: u64,
        mut visit: impl FnMut(SequenceKind, &str, SequencePoint) -> bool,
    ) -> u64 {
        for ((kind, name), sequence) in &mut self.sequences {
            if sequence.is_unmarked && sequence.used <= since {
                sequence.is_unmarked = !visit(*kind, name, sequence.next);
            }
        }
        self.clock
    }

    /// Lets the next [`mark`](Self::mark) tell all points.
    pub fn unmark_all(&mut self) {
        for sequence in self.sequences.values_mut() {
            sequence.is_unmarked = true;
        }
    }

    /// The number of sequences.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Whether there is no sequence.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    fn forget_half(&mut self) {
        let median = median(self.sequences.values().map(|sequence| sequence.used));
        self.sequences.retain(|_, sequence| sequence.used > median);
    }
}

/// The median of at least one number.
fn median(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut numbers: Vec<u64> = numbers.collect();
    let middle = numbers.len() / 2;
    *numbers.select_nth_unstable(middle).1
}

/// The sequences of one other node, up to the last arrival.
#[derive(Debug, Default)]
pub struct ReceivedSequences {
    sequences: HashMap<(SequenceKind, Box<str>), ReceivedSequence>,
    /// Counts arrivals, to find the sequences that were silent for longest.
    clock: u64,
}

#[derive(Debug)]
struct ReceivedSequence {
    expected: SequencePoint,
    used: u64,
}

/// The outcome of an arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Messages that are missing before this packet.
    pub lost: u64,
    /// Messages at the beginning of the packet that have arrived before.
    pub known: u64,
    /// Whether changes of presence are missing, so that the members must be asked for.
    pub is_stale: bool,
    /// Whether the changes of presence in the packet have arrived before.
    pub has_known_changes: bool,
}

impl ReceivedSequences {
    /// Notes a packet with its point and its counts.
    pub fn arrive(
        &mut self,
        kind: SequenceKind,
        name: &str,
        point: SequencePoint,
        EntryCounts { messages, changes }: EntryCounts,
    ) -> Arrival {
        let after = SequencePoint {
            start: point.start,
            message: point.message.saturating_add(messages),
            change: point.change.saturating_add(changes),
        };
        self.clock += 1;
        let (key, used) = ((kind, Box::from(name)), self.clock);
        let Some(ReceivedSequence {
            expected,
            used: last,
        }) = self.sequences.get_mut(&key)
        else {
            if self.sequences.len() >= RECEIVED_MAX {
                // The sender remembers fewer, so these are sequences that it has forgotten, too.
                let median = median(self.sequences.values().map(|sequence| sequence.used));
                self.sequences.retain(|_, sequence| sequence.used > median);
            }
            let expected = after;
            self.sequences
                .insert(key, ReceivedSequence { expected, used });
            return Arrival {
                is_stale: point.change > 0,
                ..Arrival::default()
            };
        };
        *last = used;
        if expected.start > point.start {
            // The packet's sequence is older: the sender has forgotten it.
            return Arrival {
                known: messages,
                has_known_changes: true,
                ..Arrival::default()
            };
        }
        if expected.start < point.start {
            *expected = SequencePoint {
                start: point.start,
                ..SequencePoint::default()
            };
        }
        let arrival = Arrival {
            lost: point.message.saturating_sub(expected.message),
            known: expected.message.saturating_sub(point.message).min(messages),
            is_stale: point.change > expected.change,
            has_known_changes: changes > 0 && point.change < expected.change,
        };
        expected.message = expected.message.max(after.message);
        expected.change = expected.change.max(after.change);
        arrival
    }

    /// Removes one sequence.
    pub fn forget(&mut self, kind: SequenceKind, name: &str) {
        self.sequences.remove(&(kind, Box::from(name)));
    }

    /// Forgets the sequences for which `keeps` returns false.
    pub fn retain(&mut self, mut keeps: impl FnMut(SequenceKind, &str) -> bool) {
        self.sequences.retain(|(kind, name), _| keeps(*kind, name));
    }

    /// The number of sequences.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Whether there is no sequence.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }
}

/// Sequences of one node that a receiver remembers: twice as many as a node remembers of itself.
const RECEIVED_MAX: usize = 262_144;

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: SequenceKind = SequenceKind::Room;

    fn entries(messages: u64, changes: u64) -> EntryCounts {
        EntryCounts { messages, changes }
    }

    fn lost(received: &mut ReceivedSequences, point: SequencePoint, messages: u64) -> (u64, u64) {
        let arrival = received.arrive(ROOM, "lobby", point, entries(messages, 0));
        (arrival.lost, arrival.known)
    }

    #[test]
    fn every_missing_message_is_counted_once() {
        let (mut sent, mut received) = (SentSequences::default(), ReceivedSequences::default());
        let mut next = |messages| sent.next(ROOM, "lobby", entries(messages, 0), 10);
        assert_eq!(
            lost(&mut received, next(5), 5),
            (0, 0),
            "the first packet counts from here"
        );
        next(3);
        assert_eq!(lost(&mut received, next(1), 1), (3, 0));
        let again = next(2);
        assert_eq!(lost(&mut received, again, 2), (0, 0));
        assert_eq!(lost(&mut received, again, 2), (0, 2), "it came twice");
        next(4);
        assert_eq!(
            lost(&mut received, next(0), 0),
            (4, 0),
            "only the point is told"
        );
    }

    #[test]
    fn a_sequence_that_begins_anew_hides_no_loss() {
        let (mut sent, mut received) = (SentSequences::default(), ReceivedSequences::default());
        let first = sent.next(ROOM, "lobby", entries(5, 0), 2);
        lost(&mut received, first, 5);
        for name in ["a", "b", "c", "d"] {
            sent.next(ROOM, name, entries(1, 0), 2);
        }
        assert!(sent.len() <= 2);
        let begun = sent.next(ROOM, "lobby", entries(2, 0), 2);
        assert!(begun.start > first.start && begun.message == 0);
        let second = sent.next(ROOM, "lobby", entries(1, 0), 2);
        assert_eq!(lost(&mut received, second, 1), (2, 0));
        assert_eq!(
            lost(&mut received, first, 5),
            (0, 5),
            "late from the former sequence"
        );
    }

    #[test]
    fn a_point_is_told_again_once_a_sequence_is_silent() {
        let mut sent = SentSequences::default();
        sent.next(ROOM, "busy", entries(1, 0), 10);
        sent.next(SequenceKind::Topic, "a.b", entries(1, 0), 10);
        let mut told = Vec::new();
        let mut mark = |sent: &mut SentSequences, since| {
            told.clear();
            let now = sent.mark(since, |_, name, point| {
                told.push((name.to_owned(), point.message));
                true
            });
            (now, told.clone())
        };
        let (now, first) = mark(&mut sent, 0);
        assert_eq!(first, [], "both were used since");
        sent.next(ROOM, "busy", entries(1, 0), 10);
        let (now, second) = mark(&mut sent, now);
        assert_eq!(second, [("a.b".to_owned(), 1)]);
        assert_eq!(mark(&mut sent, now).1, [("busy".to_owned(), 2)]);
        assert_eq!(mark(&mut sent, now).1, []);
        sent.unmark_all();
        assert_eq!(mark(&mut sent, now).1.len(), 2, "somebody asked");
    }

    /// Regression: a point that could not be sent was not sent again, so a loss of the last message stayed unknown.
    #[test]
    fn a_point_that_was_not_sent_is_told_at_the_next_time() {
        let mut sent = SentSequences::default();
        sent.next(ROOM, "lobby", entries(1, 0), 10);
        let now = sent.mark(0, |_, _, _| true);
        let mut calls = 0;
        for is_sent in [false, false, true, true] {
            sent.mark(now, |_, _, _| {
                calls += 1;
                is_sent
            });
        }
        assert_eq!(calls, 3);
    }

    /// Regression: a receiver of too many sequences forgot all sequences, also those in use, with their losses.
    #[test]
    fn a_flood_of_sequences_hides_no_loss_of_one_in_use() {
        let mut received = ReceivedSequences::default();
        let at = |message| SequencePoint {
            start: 1,
            message,
            change: 0,
        };
        lost(&mut received, at(0), 1);
        for number in 0..2 * RECEIVED_MAX as u64 {
            let topic = number.to_string();
            received.arrive(SequenceKind::Topic, &topic, at(0), entries(1, 0));
            if number.is_multiple_of(1_000) {
                assert_eq!(lost(&mut received, at(1 + number / 1_000), 1), (0, 0));
            }
            assert!(received.len() <= RECEIVED_MAX);
        }
        let next = 1 + 2 * RECEIVED_MAX as u64 / 1_000 + 1;
        assert_eq!(lost(&mut received, at(next + 5), 1), (5, 0));
    }

    #[test]
    fn missing_changes_of_presence_ask_for_the_members() {
        let (mut sent, mut received) = (SentSequences::default(), ReceivedSequences::default());
        let mut arrive =
            |point, changes| received.arrive(ROOM, "lobby", point, entries(0, changes));
        assert!(!arrive(sent.next(ROOM, "lobby", entries(0, 1), 10), 1).is_stale);
        let skipped = sent.next(ROOM, "lobby", entries(0, 1), 10);
        assert!(arrive(sent.next(ROOM, "lobby", entries(0, 1), 10), 1).is_stale);
        assert!(arrive(skipped, 1).has_known_changes, "it came late");
    }
}
