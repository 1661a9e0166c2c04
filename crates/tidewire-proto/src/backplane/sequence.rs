//! The positions of streams: a node counts what it sends to each room and topic, and what it receives from each other node.
//!
//! ```text
//! sender     next(room, 3 messages) ─▶ position 5      the packet says: from message 5 on
//! receiver   arrive(position 5, 3)     ─▶ expected 4: one message is missing; the next one is 8
//! ```
//!
//! A stream that a sender forgets to save memory begins anew with another number. A receiver that knew the old one then knows
//! that all messages of the new one are for it. So no loss is hidden, except before the first packet that a receiver sees:
//! nobody promised it what came earlier.

use std::collections::HashMap;

use super::{StreamKind, StreamPosition};

/// The streams of this node. See the module.
#[derive(Debug, Default)]
pub struct SentStreams {
    streams: HashMap<(StreamKind, Box<str>), Sent>,
    /// Number of the latest stream.
    started: u64,
    /// Counts uses, to find streams that were not used for long.
    clock: u64,
}

#[derive(Debug)]
struct Sent {
    next: StreamPosition,
    used: u64,
    /// Whether messages were sent since the position was last told alone.
    is_unmarked: bool,
}

impl SentStreams {
    /// Counts entries that are about to be sent. Returns the position of the first one. Streams beyond `streams_max` take the
    /// place of those that were silent for longest.
    pub fn next(
        &mut self,
        kind: StreamKind,
        name: &str,
        (messages, changes): (u64, u64),
        streams_max: usize,
    ) -> StreamPosition {
        self.clock += 1;
        // A look-up by borrowed parts of the key would need an unstable API, and this is once a packet.
        let key = (kind, Box::from(name));
        if !self.streams.contains_key(&key) && self.streams.len() >= streams_max {
            self.forget_half();
        }
        let (started, used) = (&mut self.started, self.clock);
        let stream = self.streams.entry(key).or_insert_with(|| {
            *started += 1;
            let next = StreamPosition {
                start: *started,
                ..StreamPosition::default()
            };
            Sent {
                next,
                used,
                is_unmarked: false,
            }
        });
        let position = stream.next;
        stream.next.message += messages;
        stream.next.change += changes;
        stream.used = used;
        stream.is_unmarked |= messages + changes > 0;
        position
    }

    /// Calls `visit` for the streams whose position shall be told again, because nothing has followed their last message or because
    /// somebody asked. It returns whether the position was sent; others wait for the next call, as do streams that were used after
    /// the call before this one.
    pub fn mark(
        &mut self,
        since: u64,
        mut visit: impl FnMut(StreamKind, &str, StreamPosition) -> bool,
    ) -> u64 {
        for ((kind, name), stream) in &mut self.streams {
            if stream.is_unmarked && stream.used <= since {
                stream.is_unmarked = !visit(*kind, name, stream.next);
            }
        }
        self.clock
    }

    /// Lets the next [`mark`](Self::mark) tell all positions.
    pub fn unmark_all(&mut self) {
        for stream in self.streams.values_mut() {
            stream.is_unmarked = true;
        }
    }

    /// The number of streams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there is no stream.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    fn forget_half(&mut self) {
        let median = median(self.streams.values().map(|stream| stream.used));
        self.streams.retain(|_, stream| stream.used > median);
    }
}

/// The middle one of some numbers. There is at least one.
fn median(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut numbers: Vec<u64> = numbers.collect();
    let middle = numbers.len() / 2;
    *numbers.select_nth_unstable(middle).1
}

/// The streams of one other node, as far as they have arrived.
#[derive(Debug, Default)]
pub struct ReceivedStreams {
    streams: HashMap<(StreamKind, Box<str>), Received>,
    /// Counts arrivals, to find streams that were silent for long.
    clock: u64,
}

#[derive(Debug)]
struct Received {
    expected: StreamPosition,
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

impl ReceivedStreams {
    /// Notes a packet with its position and its numbers of messages and changes.
    pub fn arrive(
        &mut self,
        kind: StreamKind,
        name: &str,
        position: StreamPosition,
        (messages, changes): (u64, u64),
    ) -> Arrival {
        let after = StreamPosition {
            start: position.start,
            message: position.message.saturating_add(messages),
            change: position.change.saturating_add(changes),
        };
        self.clock += 1;
        let (key, used) = ((kind, Box::from(name)), self.clock);
        let Some(Received {
            expected,
            used: last,
        }) = self.streams.get_mut(&key)
        else {
            if self.streams.len() >= RECEIVED_MAX {
                // The sender remembers fewer, so these are streams that it has forgotten, too.
                let median = median(self.streams.values().map(|stream| stream.used));
                self.streams.retain(|_, stream| stream.used > median);
            }
            let expected = after;
            self.streams.insert(key, Received { expected, used });
            return Arrival {
                is_stale: position.change > 0,
                ..Arrival::default()
            };
        };
        *last = used;
        if expected.start > position.start {
            // A packet of a stream that the sender has forgotten meanwhile.
            return Arrival {
                known: messages,
                has_known_changes: true,
                ..Arrival::default()
            };
        }
        if expected.start < position.start {
            *expected = StreamPosition {
                start: position.start,
                ..StreamPosition::default()
            };
        }
        let arrival = Arrival {
            lost: position.message.saturating_sub(expected.message),
            known: expected
                .message
                .saturating_sub(position.message)
                .min(messages),
            is_stale: position.change > expected.change,
            has_known_changes: changes > 0 && position.change < expected.change,
        };
        expected.message = expected.message.max(after.message);
        expected.change = expected.change.max(after.change);
        arrival
    }

    /// Forgets one stream.
    pub fn forget(&mut self, kind: StreamKind, name: &str) {
        self.streams.remove(&(kind, Box::from(name)));
    }

    /// Forgets the streams for which `keeps` returns false.
    pub fn retain(&mut self, mut keeps: impl FnMut(StreamKind, &str) -> bool) {
        self.streams.retain(|(kind, name), _| keeps(*kind, name));
    }

    /// The number of streams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there is no stream.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }
}

/// Streams of one node that a receiver remembers: twice as many as a node remembers of its own.
const RECEIVED_MAX: usize = 262_144;

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: StreamKind = StreamKind::Room;

    fn lost(received: &mut ReceivedStreams, position: StreamPosition, messages: u64) -> (u64, u64) {
        let arrival = received.arrive(ROOM, "lobby", position, (messages, 0));
        (arrival.lost, arrival.known)
    }

    #[test]
    fn every_missing_message_is_counted_once() {
        let (mut sent, mut received) = (SentStreams::default(), ReceivedStreams::default());
        let mut next = |messages| sent.next(ROOM, "lobby", (messages, 0), 10);
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
            "only the position is told"
        );
    }

    #[test]
    fn a_stream_that_begins_anew_hides_no_loss() {
        let (mut sent, mut received) = (SentStreams::default(), ReceivedStreams::default());
        let first = sent.next(ROOM, "lobby", (5, 0), 2);
        lost(&mut received, first, 5);
        for name in ["a", "b", "c", "d"] {
            sent.next(ROOM, name, (1, 0), 2);
        }
        assert!(sent.len() <= 2);
        let begun = sent.next(ROOM, "lobby", (2, 0), 2);
        assert!(begun.start > first.start && begun.message == 0);
        let second = sent.next(ROOM, "lobby", (1, 0), 2);
        assert_eq!(lost(&mut received, second, 1), (2, 0));
        assert_eq!(
            lost(&mut received, first, 5),
            (0, 5),
            "late from the former stream"
        );
    }

    #[test]
    fn a_position_is_told_again_once_a_stream_is_silent() {
        let mut sent = SentStreams::default();
        sent.next(ROOM, "busy", (1, 0), 10);
        sent.next(StreamKind::Topic, "a.b", (1, 0), 10);
        let mut told = Vec::new();
        let mut mark = |sent: &mut SentStreams, since| {
            told.clear();
            let now = sent.mark(since, |_, name, position| {
                told.push((name.to_owned(), position.message));
                true
            });
            (now, told.clone())
        };
        let (now, first) = mark(&mut sent, 0);
        assert_eq!(first, [], "both were used since");
        sent.next(ROOM, "busy", (1, 0), 10);
        let (now, second) = mark(&mut sent, now);
        assert_eq!(second, [("a.b".to_owned(), 1)]);
        assert_eq!(mark(&mut sent, now).1, [("busy".to_owned(), 2)]);
        assert_eq!(mark(&mut sent, now).1, []);
        sent.unmark_all();
        assert_eq!(mark(&mut sent, now).1.len(), 2, "somebody asked");
    }

    /// Regression: a position that could not be sent was not told again, so a loss of the last message stayed unknown.
    #[test]
    fn a_position_that_was_not_sent_is_told_at_the_next_time() {
        let mut sent = SentStreams::default();
        sent.next(ROOM, "lobby", (1, 0), 10);
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

    /// Regression: a receiver of too many streams forgot all of them, also those in use, and with them their losses.
    #[test]
    fn a_flood_of_streams_hides_no_loss_of_one_in_use() {
        let mut received = ReceivedStreams::default();
        let at = |message| StreamPosition {
            start: 1,
            message,
            change: 0,
        };
        lost(&mut received, at(0), 1);
        for number in 0..2 * RECEIVED_MAX as u64 {
            let topic = number.to_string();
            received.arrive(StreamKind::Topic, &topic, at(0), (1, 0));
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
        let (mut sent, mut received) = (SentStreams::default(), ReceivedStreams::default());
        let mut arrive = |position, changes| received.arrive(ROOM, "lobby", position, (0, changes));
        assert!(!arrive(sent.next(ROOM, "lobby", (0, 1), 10), 1).is_stale);
        let skipped = sent.next(ROOM, "lobby", (0, 1), 10);
        assert!(arrive(sent.next(ROOM, "lobby", (0, 1), 10), 1).is_stale);
        assert!(arrive(skipped, 1).has_known_changes, "it came late");
    }
}
