//! One connection of the subscriber: bytes in, dialect, numbers checked.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

use tidewire::io::clock::now_ns;
use tidewire::io::socket::Stream;

use super::dialect::{Dialect, DialectError, Next, Publish, Role};
use crate::bench::publication::Publication;
use crate::probes::wait::WaitSet;
use crate::statistics::LatencyHistogram;

/// A connection that is open, or was.
#[derive(Debug)]
pub(super) struct Connection<D> {
    stream: Stream,
    dialect: D,
    /// Bytes read that are not yet whole.
    rest: Vec<u8>,
    /// Bytes not yet written.
    output: Vec<u8>,
    pub(super) sequence: Sequence,
    pub(super) is_closed: bool,
}

/// The numbers that came over one connection, against those that should have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequence {
    /// The number that is next.
    pub(super) next: u64,
    /// Numbers that were left out.
    pub(super) missing: u64,
    /// Messages that came again or late, or were changed.
    pub(super) wrong: u64,
}

/// What was heard over all connections since it was last cleared.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) messages: u64,
    pub(super) latency: LatencyHistogram,
    payload_bytes: usize,
    /// The first number that does not count any more, or that nobody can have sent.
    limit: u64,
    is_draining: bool,
    /// Messages that were sent at the same moment and not yet recorded: a publisher looks at the clock once for several.
    run: (u64, u64),
}

/// Why a connection cannot go on.
#[derive(Debug)]
pub(super) enum Broken {
    Io(io::Error),
    Dialect(DialectError),
}

impl<D: Dialect> Connection<D> {
    /// Over a stream that is connected; says what comes first.
    pub(super) fn new(stream: Stream, role: Role) -> Result<Self, Broken> {
        let mut connection = Self {
            stream,
            dialect: D::default(),
            rest: Vec::new(),
            output: Vec::new(),
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

    /// No longer watches a connection that has ended.
    pub(super) fn forget(&self, set: &WaitSet) -> io::Result<()> {
        set.remove(self.stream.as_fd())
    }

    pub(super) fn is_ready(&self) -> bool {
        self.dialect.is_ready()
    }

    /// Bytes that wait to be written.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.output.len()
    }

    /// Reads once and takes apart what is there.
    pub(super) fn receive(&mut self, buffer: &mut [u8], tally: &mut Tally) -> Result<(), Broken> {
        let kept = self.rest.len();
        buffer[..kept].copy_from_slice(&self.rest);
        let filled = match self.stream.read(&mut buffer[kept..]) {
            Ok(0) => return Err(Broken::Io(ErrorKind::UnexpectedEof.into())),
            Ok(count) => kept + count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(Broken::Io(error)),
        };
        let now_ns = now_ns();
        let mut rest = &buffer[..filled];
        loop {
            let next = self.dialect.next(rest, &mut self.output);
            match next.map_err(Broken::Dialect)? {
                Next::Message { payload, consumed } => {
                    tally.take(payload, now_ns, &mut self.sequence);
                    rest = &rest[consumed..];
                }
                Next::Other { consumed } => rest = &rest[consumed..],
                Next::Incomplete => break,
            }
        }
        tally.settle(now_ns);
        self.rest.clear();
        self.rest.extend_from_slice(rest);
        self.flush()
    }

    /// Publishes with `publish`, which writes a payload in this dialect.
    pub(super) fn publish(
        &mut self,
        numbers: std::ops::Range<u64>,
        payload_bytes: usize,
        publish: Publish,
    ) -> Result<(), Broken> {
        let sent_ns = now_ns();
        let mut payload = Vec::with_capacity(payload_bytes);
        for sequence in numbers {
            payload.clear();
            Publication { sequence, sent_ns }.append(payload_bytes, &mut payload);
            publish(&payload, &mut self.output);
        }
        self.flush()
    }

    /// Writes what the socket takes; the rest is tried again at the next occasion.
    fn flush(&mut self) -> Result<(), Broken> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => {
                    self.output.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(Broken::Io(error)),
            }
        }
        Ok(())
    }
}

impl Sequence {
    /// Takes note of a number. Returns whether it is one that had not come.
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

    /// What comes now is later than all that counts: whatever has not come by now is lost.
    fn skip_to(&mut self, limit: u64) {
        self.missing += limit.saturating_sub(self.next);
        self.next = self.next.max(limit);
    }

    /// Everything that is not as it should be, if the numbers below `until` were sent.
    pub(super) fn lost(&self, until: u64) -> u64 {
        self.missing + self.wrong + until.saturating_sub(self.next)
    }
}

impl Tally {
    pub(super) fn new(payload_bytes: usize) -> Self {
        Self {
            messages: 0,
            latency: LatencyHistogram::new(),
            payload_bytes,
            limit: NUMBERS_MAX,
            is_draining: false,
            run: (0, 0),
        }
    }

    pub(super) fn clear(&mut self) {
        self.messages = 0;
        self.latency.clear();
    }

    /// From now on only numbers below `limit` count.
    pub(super) fn drain(&mut self, limit: u64) {
        self.limit = limit;
        self.is_draining = true;
    }

    #[inline]
    fn take(&mut self, payload: &[u8], now_ns: u64, sequence: &mut Sequence) {
        let Some(publication) = Publication::read(payload, self.payload_bytes) else {
            sequence.wrong += 1;
            return;
        };
        if publication.sequence >= self.limit {
            if self.is_draining {
                sequence.skip_to(self.limit);
            } else {
                sequence.wrong += 1;
            }
            return;
        }
        if !sequence.take(publication.sequence) {
            return;
        }
        self.messages += 1;
        let (sent_ns, count) = self.run;
        if sent_ns == publication.sent_ns {
            self.run.1 = count + 1;
        } else {
            self.settle(now_ns);
            self.run = (publication.sent_ns, 1);
        }
    }

    /// Records what was sent at one moment.
    #[inline]
    fn settle(&mut self, now_ns: u64) {
        let (sent_ns, count) = std::mem::take(&mut self.run);
        if count > 0 {
            self.latency
                .record_many(now_ns.saturating_sub(sent_ns), count);
        }
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// No publisher of the benchmark gets this far in a year.
const NUMBERS_MAX: u64 = 1 << 48;

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(sequence: u64, sent_ns: u64) -> Vec<u8> {
        let mut payload = Vec::new();
        Publication { sequence, sent_ns }.append(32, &mut payload);
        payload
    }

    #[test]
    fn what_is_lost_doubled_late_or_changed_is_counted() {
        let mut tally = Tally::new(32);
        let mut sequence = Sequence::default();
        // 2 and 3 are missing, 3 comes late, 4 comes twice.
        for number in [0, 1, 4, 4, 3, 5] {
            tally.take(&payload(number, 7), 10, &mut sequence);
        }
        let mut changed = payload(6, 7);
        changed[20] ^= 1;
        tally.take(&changed, 10, &mut sequence);
        tally.take(&payload(u64::MAX, 7), 10, &mut sequence);
        tally.settle(10);
        assert_eq!((sequence.missing, sequence.wrong, sequence.next), (2, 4, 6));
        assert_eq!((tally.messages, tally.latency.count()), (4, 4));
        // Two more were sent than came.
        assert_eq!(sequence.lost(8), 8);
        // Something later says that they do not come any more, and does not count itself.
        tally.drain(8);
        tally.take(&payload(20, 7), 10, &mut sequence);
        assert_eq!((sequence.next, sequence.lost(8), tally.messages), (8, 8, 4));
    }

    #[test]
    fn messages_of_one_moment_are_recorded_together_and_none_is_forgotten() {
        let mut tally = Tally::new(32);
        let mut sequence = Sequence::default();
        for (number, sent_ns) in [(0, 100), (1, 100), (2, 200), (3, 300), (4, 300)] {
            tally.take(&payload(number, sent_ns), 1_000, &mut sequence);
        }
        tally.settle(1_000);
        tally.settle(1_000);
        assert_eq!((tally.messages, tally.latency.count()), (5, 5));
        assert_eq!(sequence.lost(5), 0);
    }
}
