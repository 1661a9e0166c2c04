//! The shared log of a room: frames in segments, positions that never wrap, cursors between frames.

use std::collections::VecDeque;

use super::latest::Latest;
use super::policy::LagLimits;

/// Framed messages of one room on one lane, kept until the slowest cursor has passed them.
///
/// Positions are absolute byte counts since the log was made. They never repeat, so a cursor is two numbers, and a
/// subtraction compares two of them.
#[derive(Debug)]
pub struct RoomLog {
    segments: VecDeque<Segment>,
    /// Serial number of `segments[0]`; a cursor finds its segment by subtraction.
    front_serial: u64,
    /// Emptied segments kept for reuse, so that a steady room allocates nothing.
    spare: Vec<Segment>,
    /// The memory of all segments except the last, because only the last segment can grow.
    fixed_bytes: usize,
    head_position: u64,
    head_message: u64,
    /// The newest message of each topic, while a subscriber needs it.
    latest: Option<Box<Latest>>,
}

/// A position between two frames of a log. [`RoomLog::attach`] makes it, and [`RoomLog::detach`] takes it back.
#[derive(Debug)]
pub struct Cursor {
    position: u64,
    message: u64,
    serial: u64,
}

#[derive(Debug)]
struct Segment {
    start: u64,
    first_message: u64,
    bytes: Vec<u8>,
    /// The end of each frame, relative to `start`.
    ends: Vec<u32>,
    cursors: usize,
}

impl Cursor {
    /// Bytes of the log before this cursor.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Messages of the log before this cursor.
    #[must_use]
    pub fn message(&self) -> u64 {
        self.message
    }
}

impl Default for RoomLog {
    fn default() -> Self {
        Self::new()
    }
}

impl RoomLog {
    /// An empty log. It holds no buffer until the first message.
    #[must_use]
    pub fn new() -> Self {
        Self {
            segments: VecDeque::from([Segment::starting_at(0, 0)]),
            front_serial: 0,
            spare: Vec::new(),
            fixed_bytes: 0,
            head_position: 0,
            head_message: 0,
            latest: None,
        }
    }

    /// The number of bytes ever appended.
    #[must_use]
    pub fn head_position(&self) -> u64 {
        self.head_position
    }

    /// The number of messages ever appended.
    #[must_use]
    pub fn head_message(&self) -> u64 {
        self.head_message
    }

    /// The memory held for cursors that have not passed it, and for reuse: the capacity of all buffers.
    #[inline]
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let latest = self.latest.as_deref().map_or(0, Latest::held_bytes);
        self.fixed_bytes + self.last().held_bytes() + latest
    }

    /// Whether appending a frame of this length would take more memory.
    #[must_use]
    pub fn must_grow_for(&self, bytes: usize) -> bool {
        let last = self.last();
        let has_free_end = last.ends.len() < last.ends.capacity();
        !has_free_end || last.bytes.len() + bytes > last.bytes.capacity().min(SEGMENT_BYTES)
    }

    /// Frees the segments kept for reuse.
    pub fn release_spare(&mut self) {
        let spare: usize = self.spare.iter().map(Segment::held_bytes).sum();
        self.fixed_bytes -= spare;
        self.spare = Vec::new();
    }

    /// Frees all buffers if every subscriber has read everything. `at_head` is the number of cursors that are at the
    /// head. Returns whether the log was drained, and so holds nothing now.
    ///
    /// The log of a quiet topic would otherwise hold a buffer as large as its last message.
    pub fn release_drained(&mut self, at_head: usize) -> bool {
        let is_drained =
            self.segments.len() == 1 && self.last().cursors == at_head && self.latest.is_none();
        if is_drained {
            self.release_spare();
            let empty = Segment::starting_at(self.head_position, self.head_message);
            *self.last_mut() = Segment {
                cursors: at_head,
                ..empty
            };
        }
        is_drained
    }

    /// Appends one frame, which `encode` writes after the present bytes. Returns the frame's position and length.
    ///
    /// # Errors
    /// The error of `encode`; the log is then unchanged.
    #[inline]
    pub fn append_with<E>(
        &mut self,
        bytes_expected: usize,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(u64, usize), E> {
        if self.last().bytes.capacity() == 0 || self.last().is_full_for(bytes_expected) {
            self.make_room(bytes_expected);
        }
        let last = self.last_mut();
        let before = last.bytes.len();
        if let Err(error) = encode(&mut last.bytes) {
            last.bytes.truncate(before);
            return Err(error);
        }
        let length = last.bytes.len() - before;
        last.ends
            .push(u32::try_from(last.bytes.len()).unwrap_or(u32::MAX));
        let position = self.head_position;
        self.head_position += length as u64;
        self.head_message += 1;
        Ok((position, length))
    }

    /// The newest `bytes` of the log. Their number must be the newest frame's length: a frame never spans segments.
    #[must_use]
    pub fn newest(&self, bytes: usize) -> &[u8] {
        let last = &self.last().bytes;
        &last[last.len() - bytes..]
    }

    /// Creates a cursor at the head: its subscriber receives the messages appended from now on.
    pub fn attach(&mut self) -> Cursor {
        let serial = self.last_serial();
        self.last_mut().cursors += 1;
        Cursor {
            position: self.head_position,
            message: self.head_message,
            serial,
        }
    }

    /// Creates a cursor at the position of another cursor.
    fn attach_at(&mut self, other: &Cursor) -> Cursor {
        self.segment_mut(other.serial).cursors += 1;
        Cursor { ..*other }
    }

    /// Takes a cursor back, so that the log no longer keeps the messages before it.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a cursor that was given back must not be used again"
    )]
    pub fn detach(&mut self, cursor: Cursor) {
        self.segment_mut(cursor.serial).cursors -= 1;
        self.recycle_front();
    }

    /// Bytes between the cursor and the head.
    #[inline]
    #[must_use]
    pub fn bytes_behind(&self, cursor: &Cursor) -> u64 {
        self.head_position - cursor.position
    }

    /// Messages between the cursor and the head.
    #[inline]
    #[must_use]
    pub fn messages_behind(&self, cursor: &Cursor) -> u64 {
        self.head_message - cursor.message
    }

    /// Returns the longest contiguous bytes from `position` on, not beyond `end`; empty only at `end`. `position` must
    /// not lie before the segment of `cursor`.
    #[inline]
    pub(super) fn contiguous(&self, cursor: &Cursor, position: u64, end: u64) -> &[u8] {
        if position >= end {
            return &[];
        }
        let segment = &self.segments[self.index_of(cursor.serial, position)];
        let from = (position - segment.start) as usize;
        let to = segment.bytes.len().min((end - segment.start) as usize);
        &segment.bytes[from..to]
    }

    /// The frame boundary at or after `position`, as (position, message).
    #[inline]
    pub(super) fn boundary_from(&self, cursor: &Cursor, position: u64) -> (u64, u64) {
        if position >= self.head_position {
            return (self.head_position, self.head_message);
        }
        let segment = &self.segments[self.index_of(cursor.serial, position)];
        let offset = position - segment.start;
        if offset == 0 {
            return (segment.start, segment.first_message);
        }
        let frame = segment.ends.partition_point(|end| u64::from(*end) < offset);
        (
            segment.start + u64::from(segment.ends[frame]),
            segment.first_message + frame as u64 + 1,
        )
    }

    /// The frames from `position` to `end` that have at most `bytes_max` together, or the first frame if it has more.
    /// `position` is a frame boundary, as `end` is.
    pub(super) fn frames_from(
        &self,
        cursor: &Cursor,
        position: u64,
        end: u64,
        bytes_max: usize,
    ) -> &[u8] {
        if position >= end {
            return &[];
        }
        let segment = &self.segments[self.index_of(cursor.serial, position)];
        let from = (position - segment.start) as usize;
        let until = from.saturating_add(bytes_max);
        let fitting = segment.ends.partition_point(|end| *end as usize <= until);
        let last = match fitting.checked_sub(1).map(|last| segment.ends[last]) {
            Some(last) if last as usize > from => last,
            _ => segment.ends[fitting],
        };
        let to = (last as usize).min((end - segment.start) as usize);
        &segment.bytes[from..to]
    }

    pub(super) fn position_of(&self, cursor: &Cursor, message: u64) -> u64 {
        if message >= self.head_message {
            return self.head_position;
        }
        let first = self.index(cursor.serial);
        let after = self.partition(first, |segment| segment.first_message <= message);
        let segment = &self.segments[after - 1];
        match (message - segment.first_message) as usize {
            0 => segment.start,
            frame => segment.start + u64::from(segment.ends[frame - 1]),
        }
    }

    /// Moves a cursor forward to a frame boundary and frees the segments that no cursor needs.
    pub(super) fn seek(&mut self, cursor: &mut Cursor, position: u64, message: u64) {
        debug_assert!(position >= cursor.position && position <= self.head_position);
        cursor.position = position;
        cursor.message = message;
        let serial = if position == self.head_position {
            self.last_serial()
        } else {
            self.front_serial + self.index_of(cursor.serial, position) as u64
        };
        if serial != cursor.serial {
            self.segment_mut(cursor.serial).cursors -= 1;
            self.segment_mut(serial).cursors += 1;
            cursor.serial = serial;
            self.recycle_front();
        }
    }

    pub(super) fn frames<'a>(
        &'a self,
        cursor: &Cursor,
    ) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let from = cursor.message;
        let segments = self.segments.range(self.index(cursor.serial)..);
        segments.flat_map(move |segment| {
            let passed = from.saturating_sub(segment.first_message) as usize;
            let frames = passed..segment.ends.len();
            frames.map(move |frame| {
                let start = frame
                    .checked_sub(1)
                    .map_or(0, |before| segment.ends[before]);
                &segment.bytes[start as usize..segment.ends[frame] as usize]
            })
        })
    }

    /// Notes that a subscriber at `cursor` falls behind. The subscriber now needs the newest message of each topic from
    /// `cursor` on.
    pub(super) fn follow_latest(
        &mut self,
        cursor: &Cursor,
        limits: LagLimits,
        topic_of: &impl Fn(&[u8]) -> &str,
    ) {
        let mut latest = match self.latest.take() {
            Some(latest) => latest,
            None => Box::new(Latest::new(self.attach_at(cursor), limits)),
        };
        latest.add_follower();
        latest.read_back(self, cursor, topic_of);
        self.latest = Some(latest);
    }

    /// Brings the newest messages of all topics up to the head.
    pub(super) fn update_latest(&mut self, topic_of: &impl Fn(&[u8]) -> &str) {
        if let Some(mut latest) = self.latest.take() {
            latest.catch_up(self, topic_of);
            self.latest = Some(latest);
        }
    }

    /// The newest message of each topic, while a subscriber follows it.
    pub(super) fn latest(&self) -> Option<&Latest> {
        self.latest.as_deref()
    }

    /// Notes that a subscriber has caught up, or leaves.
    pub(super) fn unfollow_latest(&mut self) {
        let is_last = |latest: &mut Box<Latest>| latest.remove_follower();
        if let Some(latest) = self.latest.take_if(is_last) {
            self.detach(latest.into_cursor());
        }
    }

    #[inline]
    fn index(&self, serial: u64) -> usize {
        (serial - self.front_serial) as usize
    }

    /// Returns the index of the segment with `position`, which is not before segment `serial`. Most cursors are near
    /// the head, so the neighbours are tried before the search.
    fn index_of(&self, serial: u64, position: u64) -> usize {
        let first = self.index(serial);
        let fits = |index: usize| {
            self.segments
                .get(index)
                .is_some_and(|segment| segment.holds(position))
        };
        if fits(first) {
            return first;
        }
        if fits(first + 1) {
            return first + 1;
        }
        self.partition(first, |segment| segment.start <= position) - 1
    }

    /// The first index from `first` on with a segment that does not satisfy `before`.
    fn partition(&self, first: usize, before: impl Fn(&Segment) -> bool) -> usize {
        let (mut low, mut high) = (first, self.segments.len());
        while low < high {
            let middle = (low + high) / 2;
            if before(&self.segments[middle]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    #[inline]
    fn last(&self) -> &Segment {
        &self.segments[self.segments.len() - 1]
    }

    #[inline]
    fn last_mut(&mut self) -> &mut Segment {
        let index = self.segments.len() - 1;
        &mut self.segments[index]
    }

    fn last_serial(&self) -> u64 {
        self.front_serial + self.segments.len() as u64 - 1
    }

    fn segment_mut(&mut self, serial: u64) -> &mut Segment {
        let index = self.index(serial);
        &mut self.segments[index]
    }

    /// Reserves the first memory of an empty segment, or begins another segment after a full one.
    #[cold]
    fn make_room(&mut self, bytes: usize) {
        if self.last().is_full_for(bytes) {
            self.push_segment();
            self.recycle_front();
        }
        let last = self.last_mut();
        if last.bytes.capacity() == 0 {
            last.bytes.reserve(FIRST_RESERVE_BYTES.max(bytes));
        }
    }

    fn push_segment(&mut self) {
        let mut segment = self
            .spare
            .pop()
            .unwrap_or_else(|| Segment::starting_at(0, 0));
        self.fixed_bytes += self.last().held_bytes();
        // The segment was counted among the spare segments, or is new and empty.
        self.fixed_bytes -= segment.held_bytes();
        segment.start = self.head_position;
        segment.first_message = self.head_message;
        self.segments.push_back(segment);
    }

    fn recycle_front(&mut self) {
        while self.segments.len() > 1 && self.segments[0].cursors == 0 {
            let Some(mut segment) = self.segments.pop_front() else {
                return;
            };
            self.front_serial += 1;
            if self.spare.len() < SPARE_SEGMENTS_MAX
                && segment.bytes.capacity() <= 2 * SEGMENT_BYTES
            {
                segment.bytes.clear();
                segment.ends.clear();
                self.spare.push(segment);
            } else {
                self.fixed_bytes -= segment.held_bytes();
            }
        }
    }
}

impl Segment {
    fn starting_at(start: u64, first_message: u64) -> Self {
        Self {
            start,
            first_message,
            bytes: Vec::new(),
            ends: Vec::new(),
            cursors: 0,
        }
    }

    /// Whether a frame of this length belongs in the next segment. An empty segment takes a frame of any length.
    #[inline]
    fn is_full_for(&self, bytes: usize) -> bool {
        !self.bytes.is_empty() && self.bytes.len() + bytes > SEGMENT_BYTES
    }

    #[inline]
    fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }

    #[inline]
    fn holds(&self, position: u64) -> bool {
        position >= self.start && position - self.start < self.bytes.len() as u64
    }
}

/// The size of a segment in bytes. Segments between the cursors of a healthy room then stay in the second-level cache,
/// and a subscriber's share of a sweep is one or two slices.
const SEGMENT_BYTES: usize = 64 * 1024;

/// The first capacity of a segment's buffer: a quiet room should not hold 64 KiB.
const FIRST_RESERVE_BYTES: usize = 1024;

/// Maximum number of segments kept for reuse: 1 MiB a room, and only in a room that once needed them.
const SPARE_SEGMENTS_MAX: usize = 16;

#[cfg(test)]
mod tests;
