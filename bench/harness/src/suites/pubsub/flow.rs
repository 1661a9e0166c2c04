//! The window of the publishers, and the account of the deliveries.

use tidewire_load::statistics::LatencyHistogram;

use super::super::course::Course;
use super::{PAYLOAD_BYTES, WINDOW};
use crate::contract::Work;
use crate::publication::Publication;

/// The messages between publishers and subscribers.
#[derive(Debug)]
pub(super) struct Flow {
    /// The next number of each publisher.
    next: Vec<u64>,
    /// The next number that each subscriber expects of each publisher.
    expected: Vec<Vec<u64>>,
    deliveries: Deliveries,
    /// When something was last heard.
    heard_ns: u64,
    /// A message that is missing after so long a silence is lost. Over a stream a message is never lost, only late,
    /// which it may be on a busy machine.
    silence_ns: u64,
}

/// The account of all deliveries.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    /// Deliveries that came within the window.
    pub(super) messages: u64,
    /// Deliveries that did not come, from the first message on.
    pub(super) lost: u64,
    /// Deliveries that came twice, late or changed.
    pub(super) wrong: u64,
    pub(super) latency: LatencyHistogram,
}

impl Flow {
    pub(super) fn new(work: &Work) -> Self {
        let silence_secs = if work.transport == "udp" { 5 } else { 20 };
        Self {
            next: vec![0; work.publishers],
            expected: vec![vec![0; work.publishers]; work.subscribers],
            deliveries: Deliveries::default(),
            heard_ns: 0,
            silence_ns: silence_secs * 1_000_000_000,
        }
    }

    /// How many messages a publisher may send now.
    pub(super) fn room(&self, publisher: usize) -> u64 {
        let slowest = self.expected.iter().map(|expected| expected[publisher]);
        let sent = self.next[publisher];
        WINDOW - (sent - slowest.min().unwrap_or(sent))
    }

    /// Appends the payload of a publisher's next message.
    pub(super) fn append(&mut self, publisher: usize, now_ns: u64, payload: &mut Vec<u8>) {
        let publication = Publication {
            sequence: (publisher as u64) << PUBLISHER_SHIFT | self.next[publisher],
            due_ns: now_ns,
        };
        publication.append(PAYLOAD_BYTES, payload);
        self.next[publisher] += 1;
        self.heard_ns = self.heard_ns.max(now_ns);
    }

    pub(super) fn take(&mut self, subscriber: usize, payload: &[u8], now_ns: u64, course: &Course) {
        self.heard_ns = now_ns;
        let Some(due_ns) = self.take_expected(subscriber, payload) else {
            self.deliveries.wrong += 1;
            return;
        };
        if course.counts(now_ns) {
            self.deliveries.messages += 1;
            let waited_ns = now_ns.saturating_sub(due_ns);
            self.deliveries.latency.record(waited_ns);
        }
    }

    /// Takes a publication that is expected, or a later one. Returns when it was due; nothing if it is another.
    #[inline]
    fn take_expected(&mut self, subscriber: usize, payload: &[u8]) -> Option<u64> {
        let publication = Publication::read(payload, PAYLOAD_BYTES)?;
        let publisher = (publication.sequence >> PUBLISHER_SHIFT) as usize;
        let number = publication.sequence & ((1 << PUBLISHER_SHIFT) - 1);
        let expected = self.expected[subscriber].get_mut(publisher)?;
        if !(*expected..self.next[publisher]).contains(&number) {
            return None;
        }
        self.deliveries.lost += number - *expected;
        *expected = number + 1;
        Some(publication.due_ns)
    }

    /// Gives up what was sent, if nothing has been heard for long. Returns whether nothing is on its way any more.
    pub(super) fn expire(&mut self, now_ns: u64) -> bool {
        let is_silent = now_ns > self.heard_ns + self.silence_ns;
        let mut is_complete = true;
        for expected in &mut self.expected {
            for (expected, &next) in expected.iter_mut().zip(&self.next) {
                if is_silent {
                    self.deliveries.lost += next - *expected;
                    *expected = next;
                }
                is_complete &= *expected == next;
            }
        }
        is_complete
    }

    pub(super) fn into_deliveries(self) -> Deliveries {
        self.deliveries
    }
}

/// Where the publisher's number stands in that of the message.
const PUBLISHER_SHIFT: u32 = 48;

#[cfg(test)]
mod tests {
    use super::*;

    fn send(flow: &mut Flow, publisher: usize) -> Vec<u8> {
        let mut payload = Vec::new();
        flow.append(publisher, 1_000, &mut payload);
        payload
    }

    #[test]
    fn offered_is_delivered_and_lost() {
        let course = Course::new();
        course.lay_down(0, u64::MAX - 1);
        let mut flow = Flow::new(&Work {
            publishers: 2,
            subscribers: 2,
            ..Work::default()
        });
        let sent: Vec<Vec<u8>> = [0, 0, 0, 1]
            .map(|publisher| send(&mut flow, publisher))
            .into();
        assert_eq!((flow.room(0), flow.room(1)), (WINDOW - 3, WINDOW - 1));
        for payload in &sent {
            flow.take(0, payload, 2_000, &course);
        }
        // The other one misses the second of the first publisher, and hears the first twice.
        for index in [0, 0, 2] {
            flow.take(1, &sent[index], 2_000, &course);
        }
        flow.take(1, b"noise", 2_000, &course);
        assert_eq!((flow.room(0), flow.room(1)), (WINDOW, WINDOW - 1));
        assert!(!flow.expire(3_000));
        assert!(flow.expire(3_000 + flow.silence_ns));
        assert_eq!(flow.room(1), WINDOW);
        let deliveries = flow.into_deliveries();
        assert_eq!((deliveries.messages, deliveries.lost), (6, 2));
        assert_eq!(deliveries.wrong, 2);
    }
}
