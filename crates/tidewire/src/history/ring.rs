//! The messages of a history: one ring of bytes and an index.
//!
//! A message takes its payload, its author's name, five bytes and an entry of eight bytes. The buffers grow by an
//! eighth, so little of them is unused. Rejected: a list of messages with their own memory, which took 130 bytes more
//! for each. Rejected: frames as they are sent, because a frame has the alias of the room, which another opening of the
//! room changes.

use std::collections::VecDeque;

use tidewire_proto::message::MemberId;

use super::Record;

/// The messages, oldest first. A message that is too large to keep has a place without content, a hole.
#[derive(Debug, Default)]
pub(super) struct Ring {
    bytes: VecDeque<u8>,
    index: VecDeque<RingEntry>,
    /// The number of bytes that were ever removed. It may wrap.
    start: u32,
}

#[derive(Clone, Copy, Debug)]
struct RingEntry {
    /// The end of the message in the bytes that were ever added. It may wrap.
    end: u32,
    at: Tick,
}

/// A time in steps of 17 ms. It wraps after two years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick(u32);

impl Tick {
    pub(super) fn of(now_ns: u64) -> Self {
        Self((now_ns >> TICK_BITS) as u32)
    }

    fn age_ns(self, now: Self) -> u64 {
        u64::from(now.0.wrapping_sub(self.0)) << TICK_BITS
    }
}

impl Ring {
    /// The number of messages, with holes.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Bytes that count towards the limit of a history.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len() + self.index.len() * size_of::<RingEntry>()
    }

    /// Memory of the buffers.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.index.capacity() * size_of::<RingEntry>()
    }

    pub(super) fn push(&mut self, message: &Record<'_>, at: Tick) {
        reserve(&mut self.bytes, message.record_bytes());
        message.write(|part| self.bytes.extend(part));
        self.push_entry(at);
    }

    pub(super) fn push_hole(&mut self, at: Tick) {
        self.push_entry(at);
    }

    fn push_entry(&mut self, at: Tick) {
        reserve(&mut self.index, 1);
        let end = self.start.wrapping_add(self.bytes.len() as u32);
        self.index.push_back(RingEntry { end, at });
    }

    /// Removes the oldest message.
    pub(super) fn pop(&mut self) {
        let Some(entry) = self.index.pop_front() else {
            return;
        };
        let count = entry.end.wrapping_sub(self.start) as usize;
        self.bytes.drain(..count);
        self.start = entry.end;
        if self.bytes.capacity() > SHRINK_BYTES && self.bytes.len() < self.bytes.capacity() / 4 {
            self.bytes.shrink_to(self.bytes.len() * 2);
            self.index.shrink_to(self.index.len() * 2);
        }
    }

    /// Gives memory back after many messages were removed.
    pub(super) fn release_unused(&mut self) {
        if self.index.is_empty() {
            *self = Self::default();
        }
    }

    /// Whether the oldest message is older than this.
    pub(super) fn is_oldest_beyond(&self, age_max_ns: u64, now: Tick) -> bool {
        let oldest = self.index.front();
        oldest.is_some_and(|oldest| oldest.at.age_ns(now) > age_max_ns)
    }

    /// Returns the message with this index, or `None` for a hole. It may be copied to `scratch`.
    pub(super) fn get<'a>(&'a self, index: usize, scratch: &'a mut Vec<u8>) -> Option<Record<'a>> {
        let end = self.index.get(index)?.end;
        let start = match index.checked_sub(1) {
            Some(before) => self.index[before].end,
            None => self.start,
        };
        let from = start.wrapping_sub(self.start) as usize;
        let to = end.wrapping_sub(self.start) as usize;
        let (first, second) = self.bytes.as_slices();
        let record = if to <= first.len() {
            &first[from..to]
        } else if from >= first.len() {
            &second[from - first.len()..to - first.len()]
        } else {
            scratch.clear();
            scratch.extend_from_slice(&first[from..]);
            scratch.extend_from_slice(&second[..to - first.len()]);
            &scratch[..]
        };
        Record::read(record)
    }
}

impl<'a> Record<'a> {
    /// Bytes of a message in the ring, without its entry.
    pub(super) fn record_bytes(&self) -> usize {
        MEMBER_BYTES + 1 + self.name.len() + self.payload.len()
    }

    /// Bytes of a message that count towards the limit of a history.
    pub(super) fn held_bytes(&self) -> usize {
        self.record_bytes() + size_of::<RingEntry>()
    }

    /// Passes the parts of the record to `take`, in their order.
    pub(super) fn write(&self, mut take: impl FnMut(&[u8])) {
        take(&self.member.0.to_le_bytes());
        // Names have at most 64 bytes.
        take(&[self.name.len() as u8]);
        take(self.name.as_bytes());
        take(self.payload);
    }

    pub(super) fn read(record: &'a [u8]) -> Option<Self> {
        let (member, rest) = record.split_first_chunk::<MEMBER_BYTES>()?;
        let (name_bytes, rest) = rest.split_first()?;
        let (name, payload) = rest.split_at_checked(usize::from(*name_bytes))?;
        Some(Self {
            member: MemberId(u32::from_le_bytes(*member)),
            name: str::from_utf8(name).ok()?,
            payload,
        })
    }
}

/// Reserves place for `count` more, and an eighth of what is there if the buffer must grow.
fn reserve<T>(buffer: &mut VecDeque<T>, count: usize) {
    if buffer.len() + count > buffer.capacity() {
        buffer.reserve_exact(count + buffer.len() / 8);
    }
}

const MEMBER_BYTES: usize = 4;
/// A tick has 2^24 ns.
const TICK_BITS: u32 = 24;
/// Buffers up to this capacity do not shrink.
const SHRINK_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(payload: &[u8]) -> Record<'_> {
        Record {
            member: MemberId(7),
            name: "ada",
            payload,
        }
    }

    /// Messages go round in the ring many times, so records lie across its end, too.
    #[test]
    fn messages_stay_whole_while_the_ring_turns() {
        let (mut ring, mut scratch) = (Ring::default(), Vec::new());
        let payload = |number: usize| vec![number as u8; number % 50];
        for number in 0..2_000 {
            let at = Tick::of(0);
            match number % 7 {
                0 => ring.push_hole(at),
                _ => ring.push(&record(&payload(number)), at),
            }
            if ring.len() > 20 {
                ring.pop();
            }
            let first = number + 1 - ring.len();
            for index in 0..ring.len() {
                let expected = payload(first + index);
                let is_hole = (first + index).is_multiple_of(7);
                let expected = (!is_hole).then_some(record(&expected));
                assert_eq!(ring.get(index, &mut scratch), expected);
            }
        }
    }

    #[test]
    fn a_message_takes_its_payload_and_few_bytes() {
        const MESSAGES: usize = 100;
        let mut ring = Ring::default();
        for _ in 0..MESSAGES {
            ring.push(&record(&[0; 64]), Tick::of(0));
        }
        let capacity = ring.bytes.capacity() + ring.index.capacity() * size_of::<RingEntry>();
        let each = capacity / MESSAGES;
        assert!(each <= 64 + 36, "{each} bytes for each message of 64");
    }

    #[test]
    fn the_oldest_message_ages() {
        const SECOND_NS: u64 = 1_000_000_000;
        let mut ring = Ring::default();
        // The ticks wrap between the two times.
        let start_ns = (u64::from(u32::MAX) << TICK_BITS) - SECOND_NS;
        ring.push(&record(b"old"), Tick::of(start_ns));
        let after = |seconds| Tick::of(start_ns + seconds * SECOND_NS);
        assert!(!ring.is_oldest_beyond(10 * SECOND_NS, after(9)));
        assert!(ring.is_oldest_beyond(10 * SECOND_NS, after(11)));
    }
}
