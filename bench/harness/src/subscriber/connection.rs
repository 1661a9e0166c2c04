//! One connection of the subscriber: it reads bytes, decodes the dialect, and checks the numbers.

use std::io;

use tidewire_io::clock::now_ns;
use tidewire_load::statistics::LatencyHistogram;

use super::dialect::{Dialect, DialectError, Next, Publish, Role};
use crate::pace::Pace;
use crate::probes::wait::WaitSet;
use crate::probes::{Link, PartialFrame, or_none};
use crate::publication::Publication;

/// A connection, open or ended.
#[derive(Debug)]
pub(super) struct Connection<D> {
    stream: Box<dyn Link>,
    dialect: D,
    role: Role,
    unfinished: PartialFrame,
    /// Bytes to send, of which the first `written` are sent.
    output: Vec<u8>,
    written: usize,
    pub(super) sequence: Sequence,
    pub(super) is_closed: bool,
}

/// The check of the numbers that came over one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequence {
    /// The next expected number.
    pub(super) next: u64,
    /// Numbers that are missing so far.
    pub(super) missing: u64,
    /// Messages that came twice, late or changed.
    pub(super) wrong: u64,
    /// Whether a message came that was due after the window. All messages of the window have come by then.
    pub(super) is_past: bool,
}

/// The count over all connections of publications that were due within the window.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) messages: u64,
    pub(super) latency: LatencyHistogram,
    payload_bytes: usize,
    from_ns: u64,
    pub(super) until_ns: u64,
    /// The lowest number that is known to be due after the window.
    pub(super) behind: Option<u64>,
    /// Messages with about the same due time that are not recorded yet: the due time of the first one, and their
    /// number.
    run: (u64, u64),
    /// Lateness in the first and in the last part of the window.
    first: Lateness,
    last: Lateness,
}

/// The lateness of some messages.
#[derive(Clone, Copy, Debug, Default)]
struct Lateness {
    messages: u64,
    total_ns: u128,
}

impl<D: Dialect> Connection<D> {
    /// Creates it over a connected stream and queues the first bytes of the dialect.
    pub(super) fn new(stream: Box<dyn Link>, role: Role) -> io::Result<Self> {
        let mut connection = Self {
            stream,
            dialect: D::default(),
            role,
            unfinished: PartialFrame::default(),
            output: Vec::new(),
            written: 0,
            sequence: Sequence::default(),
            is_closed: false,
        };
        connection.dialect.greet(role, &mut connection.output);
        connection.flush()?;
        Ok(connection)
    }

    pub(super) fn watch(&self, set: &WaitSet, number: usize) -> io::Result<()> {
        set.add(self.stream.as_fd(), number)
    }

    /// Stops watching a connection that has ended.
    pub(super) fn forget(&self, set: &WaitSet) -> io::Result<()> {
        set.remove(self.stream.as_fd())
    }

    pub(super) fn is_ready(&self) -> bool {
        self.dialect.is_ready()
    }

    /// Returns the number of bytes that are not written yet.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.output.len() - self.written
    }

    /// Reads once and decodes the messages.
    pub(super) fn receive(&mut self, buffer: &mut [u8], tally: &mut Tally) -> io::Result<()> {
        let read = |room: &mut [u8]| self.stream.read(room);
        let Some(filled) = self.unfinished.fill(buffer, read)? else {
            return Ok(());
        };
        let now_ns = now_ns();
        let mut rest = &buffer[..filled];
        loop {
            match self.dialect.next(rest, &mut self.output)? {
                Next::Message(payload, consumed) => {
                    tally.take(payload, now_ns, &mut self.sequence);
                    rest = &rest[consumed..];
                }
                Next::Other(consumed) => rest = &rest[consumed..],
                Next::Incomplete => break,
            }
        }
        tally.record_run(now_ns);
        self.unfinished.keep(rest);
        self.flush()?;
        if self.role == Role::Subscriber && self.waiting_bytes() > ANSWER_BYTES_MAX {
            return Err(DialectError::Deaf.into());
        }
        Ok(())
    }

    /// Publishes the due messages with `publish`, which writes a payload in this dialect.
    pub(super) fn publish(
        &mut self,
        pace: &mut Pace,
        payload_bytes: usize,
        publish: Publish,
    ) -> io::Result<()> {
        let mut payload = Vec::with_capacity(payload_bytes);
        for sequence in pace.take(now_ns()) {
            payload.clear();
            let due_ns = pace.due_ns(sequence);
            Publication { sequence, due_ns }.append(payload_bytes, &mut payload);
            publish(&payload, &mut self.output);
        }
        self.flush()
    }

    /// Writes as much as the socket accepts. The rest stays in place until the next call, because moving it may cost
    /// many megabytes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.written < self.output.len() {
            match or_none(self.stream.write(&self.output[self.written..]))? {
                0 => break,
                count => self.written += count,
            }
        }
        // Moves at most as many bytes as were written since the last move.
        if self.written * 2 >= self.output.len() {
            self.output.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }
}

impl Sequence {
    /// Notes a number. Returns whether it had not come before.
    #[inline]
    fn take(&mut self, number: u64) -> bool {
        if number < self.next {
            self.wrong += 1;
            return false;
        }
        self.missing += number - self.next;
        self.next = number + 1;
        true
    }

    /// Returns the number of missing and wrong messages, if the numbers below `until` were sent.
    pub(super) fn lost(&self, until: u64) -> u64 {
        self.missing + self.wrong + until.saturating_sub(self.next)
    }
}

impl Tally {
    /// Creates a count of all messages, until a window is set.
    pub(super) fn new(payload_bytes: usize) -> Self {
        Self {
            messages: 0,
            latency: LatencyHistogram::new(),
            payload_bytes,
            from_ns: 0,
            until_ns: u64::MAX,
            behind: None,
            run: (0, 0),
            first: Lateness::default(),
            last: Lateness::default(),
        }
    }

    /// Counts from now on only messages that are due between these times.
    pub(super) fn begin(&mut self, from_ns: u64, until_ns: u64) {
        self.messages = 0;
        self.latency.clear();
        (self.first, self.last) = Default::default();
        (self.from_ns, self.until_ns) = (from_ns, until_ns);
    }

    /// How much later messages were at the end of the window than at its beginning, in nanoseconds. A publisher that
    /// collects messages for a write is late for the first of them and not for the last. So this is the difference of
    /// many messages, and not of two.
    pub(super) fn fell_behind_ns(&self) -> u64 {
        let apart_ns = self.last.mean_ns().saturating_sub(self.first.mean_ns());
        // The middles of the two parts are that much closer than the ends of the window.
        apart_ns * PARTS / (PARTS - 1)
    }

    #[inline]
    fn take(&mut self, payload: &[u8], now_ns: u64, sequence: &mut Sequence) {
        let Some(publication) = Publication::read(payload, self.payload_bytes) else {
            sequence.wrong += 1;
            return;
        };
        let Publication {
            sequence: number,
            due_ns,
        } = publication;
        if number >= NUMBERS_MAX {
            sequence.wrong += 1;
            return;
        }
        if due_ns >= self.until_ns {
            sequence.is_past = true;
            self.behind = Some(self.behind.map_or(number, |behind| behind.min(number)));
            return;
        }
        if !sequence.take(number) || due_ns < self.from_ns {
            return;
        }
        self.messages += 1;
        let (run_ns, count) = self.run;
        if count > 0 && due_ns.wrapping_sub(run_ns) < RUN_NS {
            self.run.1 = count + 1;
        } else {
            self.record_run(now_ns);
            self.run = (due_ns, 1);
        }
    }

    /// Records the messages that were due at about one time.
    #[inline]
    fn record_run(&mut self, now_ns: u64) {
        let (due_ns, count) = std::mem::take(&mut self.run);
        if count == 0 {
            return;
        }
        let late_ns = now_ns.saturating_sub(due_ns);
        self.latency.record_many(late_ns, count);
        let part_ns = (self.until_ns - self.from_ns) / PARTS;
        if due_ns - self.from_ns < part_ns {
            self.first.add(late_ns, count);
        } else if self.until_ns - due_ns <= part_ns {
            self.last.add(late_ns, count);
        }
    }
}

impl Lateness {
    fn add(&mut self, late_ns: u64, messages: u64) {
        self.messages += messages;
        self.total_ns += u128::from(late_ns) * u128::from(messages);
    }

    fn mean_ns(self) -> u64 {
        let mean_ns = self.total_ns / u128::from(self.messages.max(1));
        u64::try_from(mean_ns).unwrap_or(u64::MAX)
    }
}

/// A number that no publisher reaches in a year.
const NUMBERS_MAX: u64 = 1 << 48;

/// Parts of the window, the first and the last of which are compared.
const PARTS: u64 = 8;

/// The most bytes that a subscriber keeps for a server that does not read: thousands of pongs.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Publications that were due within this time share the due time of the first. It is a fifth of a publisher's tick.
/// So recording does not cost more than reading.
const RUN_NS: u64 = 200_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A millisecond.
    const MS: u64 = 1_000_000;

    fn payload(sequence: u64, due_ns: u64) -> Vec<u8> {
        let mut payload = Vec::new();
        Publication { sequence, due_ns }.append(32, &mut payload);
        payload
    }

    #[test]
    fn what_is_lost_doubled_late_or_changed_is_counted() {
        let mut tally = Tally::new(32);
        tally.begin(5, 100);
        let mut sequence = Sequence::default();
        // 2 and 3 are missing, 3 comes late, 4 comes twice.
        for number in [0, 1, 4, 4, 3, 5] {
            tally.take(&payload(number, 7), 10, &mut sequence);
        }
        let mut changed = payload(6, 7);
        changed[20] ^= 1;
        tally.take(&changed, 10, &mut sequence);
        tally.take(&payload(u64::MAX, 7), 10, &mut sequence);
        tally.record_run(10);
        assert_eq!((sequence.missing, sequence.wrong, sequence.next), (2, 4, 6));
        assert_eq!((tally.messages, tally.latency.count()), (4, 4));
        // Two more were due than came, which something later says, and it does not count itself.
        assert!(!sequence.is_past);
        tally.take(&payload(8, 100), 110, &mut sequence);
        assert_eq!((tally.behind, sequence.is_past), (Some(8), true));
        assert_eq!((sequence.lost(8), tally.messages), (8, 4));
    }

    #[test]
    fn a_message_counts_when_it_was_due_and_not_when_it_came() {
        let mut tally = Tally::new(32);
        tally.begin(1_000, 2_000);
        let mut sequence = Sequence::default();
        for (number, due_ns, now_ns) in [
            (0, 900, 1_100),
            (1, 1_000, 1_200),
            (2, 1_999, 2_800),
            (3, 2_000, 2_900),
        ] {
            tally.take(&payload(number, due_ns), now_ns, &mut sequence);
            tally.record_run(now_ns);
        }
        assert_eq!((tally.messages, tally.latency.count()), (2, 2));
        assert_eq!((tally.behind, sequence.lost(3)), (Some(3), 0));
    }

    /// The bug: the first and the last message of the window were compared, and by chance the one stood at the end of a
    /// write and the other at the beginning of one. In a window of 400 ms and with writes every 5 ms that was 1 % of
    /// the rate.
    #[test]
    fn a_publisher_that_writes_seldom_is_not_behind_and_one_that_is_ever_later_is() {
        const MESSAGES: u64 = 397;
        for (later_ns, expected_ns) in [(0, 0), (MS / 100, 4 * MS)] {
            let mut tally = Tally::new(32);
            tally.begin(MS, (1 + MESSAGES) * MS);
            let mut sequence = Sequence::default();
            for number in 0..MESSAGES {
                let due_ns = (1 + number) * MS;
                let now_ns = due_ns + (5 - number % 5) % 5 * MS + number * later_ns;
                tally.take(&payload(number, due_ns), now_ns, &mut sequence);
                tally.record_run(now_ns);
            }
            assert!(tally.fell_behind_ns().abs_diff(expected_ns) < MS / 5);
        }
    }

    #[test]
    fn messages_of_one_time_are_recorded_together_and_none_is_forgotten() {
        let mut tally = Tally::new(32);
        let mut sequence = Sequence::default();
        let due = [
            (0, 0),
            (1, RUN_NS - 1),
            (2, RUN_NS),
            (3, 900_000),
            (4, 950_000),
        ];
        for (number, due_ns) in due {
            tally.take(&payload(number, due_ns), 1_000_000, &mut sequence);
        }
        tally.record_run(1_000_000);
        tally.record_run(1_000_000);
        assert_eq!((tally.messages, tally.latency.count()), (5, 5));
        assert_eq!(sequence.lost(5), 0);
        let summary = tally.latency.quantile_ns(1.0);
        assert!(summary >= 1_000_000, "{summary}");
    }
}
