//! The newest message of each topic of a log, for subscribers by `conflate_by_topic` that are behind.
//!
//! Problem: a pattern such as `md.>` has one log for ten thousand topics. A slow subscriber needs the newest message of
//! each topic, and a log that kept all messages for it would grow without a bound. Approach: while a subscriber is
//! behind, the log has a table with a copy of the newest message of each topic, in the order of the last updates. All
//! subscribers that are behind share the table, because the newest message of a topic is the same for all. Each of
//! these subscribers stores only the first message that it has not received. The table reads the log by its own cursor,
//! once per sweep, so appending costs nothing more. The table is freed with its last subscriber.
//!
//! An update leaves a dead entry at the topic's former position. When more than half of the entries are dead, the table
//! copies the live entries together. An update therefore costs a search by topic and a copy, and the table takes at
//! most about twice the memory of the live entries. The limits of the subscribers bound the table. Beyond them the
//! topic with the oldest update is evicted, and counts as lost.
//!
//! Rejected: a bit in the log for replaced messages, which needs no copy but keeps the whole log in memory. Rejected: a
//! table for each subscriber, because each of a hundred slow subscribers would cost as much as all of them cost here.

use std::collections::{HashMap, VecDeque};

use super::log::{Cursor, RoomLog};
use super::policy::LagLimits;

/// The table of one log. The module describes it.
#[derive(Debug)]
pub(super) struct Latest {
    /// The position at which the table continues to read the log.
    cursor: Cursor,
    /// The first message that the table has read. It has read all from there to the cursor.
    first_message: u64,
    /// The entries in the order of the log, including dead ones.
    entries: VecDeque<Entry>,
    /// The frames of the entries, in the order in which they were read.
    bytes: Vec<u8>,
    /// The newest message of each topic.
    by_topic: HashMap<Box<[u8]>, u64>,
    topic_bytes: usize,
    live_bytes: usize,
    has_evicted: bool,
    limits: LagLimits,
    /// Subscribers that are behind.
    followers: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    message: u64,
    start: usize,
    length: usize,
    is_live: bool,
}

impl Latest {
    /// An empty table that reads the log from `cursor` on.
    pub(super) fn new(cursor: Cursor, limits: LagLimits) -> Self {
        Self {
            first_message: cursor.message(),
            cursor,
            entries: VecDeque::new(),
            bytes: Vec::new(),
            by_topic: HashMap::new(),
            topic_bytes: 0,
            live_bytes: 0,
            has_evicted: false,
            limits,
            followers: 0,
        }
    }

    pub(super) fn add_follower(&mut self) {
        self.followers += 1;
    }

    /// Removes a subscriber. Returns whether none is left.
    pub(super) fn remove_follower(&mut self) -> bool {
        self.followers -= 1;
        self.followers == 0
    }

    pub(super) fn into_cursor(self) -> Cursor {
        self.cursor
    }

    /// The memory of the table: the capacity of its buffers.
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.by_topic.capacity() * SLOT_BYTES
            + self.topic_bytes
    }

    /// The bytes between the head of the log and a subscriber that needs all messages from `message` on: about the
    /// bytes that the table holds for it.
    pub(super) fn bytes_from(&self, message: u64) -> u64 {
        let before = self.index_of(message);
        let entries = self.entries.range(before..);
        entries.map(|entry| entry.length as u64).sum()
    }

    /// Iterates over the newest messages of all topics from `message` on, in the order of the log, each with its
    /// number.
    pub(super) fn from(&self, message: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let entries = self.entries.range(self.index_of(message)..);
        entries
            .filter(|entry| entry.is_live)
            .map(|entry| (entry.message, frame(&self.bytes, entry)))
    }

    /// Reads the log up to its head.
    pub(super) fn catch_up(&mut self, log: &mut RoomLog, topic_of: &impl Fn(&[u8]) -> &str) {
        for (message, frame) in (self.cursor.message()..).zip(log.frames(&self.cursor)) {
            self.update(message, frame, topic_of);
        }
        let (position, message) = (log.head_position(), log.head_message());
        log.seek(&mut self.cursor, position, message);
    }

    /// Reads the messages from the position of a subscriber that fell behind to the first message that the table has
    /// read.
    pub(super) fn read_back(
        &mut self,
        log: &RoomLog,
        cursor: &Cursor,
        topic_of: &impl Fn(&[u8]) -> &str,
    ) {
        if self.first_message <= cursor.message() {
            return;
        }
        let unread: Vec<(u64, &[u8])> = (cursor.message()..self.first_message)
            .zip(log.frames(cursor))
            .collect();
        for (message, frame) in unread.into_iter().rev() {
            // A message that is older than an evicted message, or does not fit, would be evicted next.
            if self.has_evicted || !self.has_room_for(frame.len()) {
                self.has_evicted = true;
                break;
            }
            let topic = topic_of(frame).as_bytes();
            if !self.by_topic.contains_key(topic) {
                let entry = self.copy(message, frame);
                self.entries.push_front(entry);
                self.insert_topic(topic, message);
            }
        }
        self.first_message = cursor.message();
    }

    /// Sets the newest message of a topic.
    fn update(&mut self, message: u64, frame: &[u8], topic_of: &impl Fn(&[u8]) -> &str) {
        let topic = topic_of(frame).as_bytes();
        match self.by_topic.get_mut(topic) {
            Some(newest) => {
                let replaced = std::mem::replace(newest, message);
                let index = self.index_of(replaced);
                let entry = &mut self.entries[index];
                entry.is_live = false;
                self.live_bytes -= entry.length;
            }
            None => self.insert_topic(topic, message),
        }
        let entry = self.copy(message, frame);
        self.entries.push_back(entry);
        while self.by_topic.len() > 1 && !self.has_room_for(0) {
            self.evict(topic_of);
        }
        let dead_entries = self.entries.len() - self.by_topic.len();
        let dead_bytes = self.bytes.len() - self.live_bytes;
        if dead_entries > self.by_topic.len() + DEAD_ENTRIES_MIN
            || dead_bytes > self.live_bytes + DEAD_BYTES_MIN
        {
            self.compact();
        }
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        (self.live_bytes + bytes) as u64 <= self.limits.bytes_max
            && self.by_topic.len() as u64 <= self.limits.messages_max
    }

    fn insert_topic(&mut self, topic: &[u8], message: u64) {
        self.by_topic.insert(topic.into(), message);
        self.topic_bytes += topic.len();
    }

    fn copy(&mut self, message: u64, frame: &[u8]) -> Entry {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(frame);
        self.live_bytes += frame.len();
        Entry {
            message,
            start,
            length: frame.len(),
            is_live: true,
        }
    }

    /// Removes the topic that was updated longest ago.
    fn evict(&mut self, topic_of: &impl Fn(&[u8]) -> &str) {
        while let Some(entry) = self.entries.pop_front() {
            if entry.is_live {
                let frame = frame(&self.bytes, &entry);
                let topic = topic_of(frame).as_bytes();
                self.by_topic.remove(topic);
                self.topic_bytes -= topic.len();
                self.live_bytes -= entry.length;
                self.has_evicted = true;
                return;
            }
        }
    }

    /// Copies the live entries together.
    fn compact(&mut self) {
        self.entries.retain(|entry| entry.is_live);
        let mut bytes = Vec::with_capacity(2 * self.live_bytes + DEAD_BYTES_MIN);
        for entry in &mut self.entries {
            let start = bytes.len();
            bytes.extend_from_slice(frame(&self.bytes, entry));
            entry.start = start;
        }
        self.bytes = bytes;
    }

    /// The index of the first entry that is not before `message`.
    fn index_of(&self, message: u64) -> usize {
        self.entries
            .partition_point(|entry| entry.message < message)
    }
}

fn frame<'a>(bytes: &'a [u8], entry: &Entry) -> &'a [u8] {
    &bytes[entry.start..entry.start + entry.length]
}

/// The memory of a topic in the map: key, message and control byte, with the map's free capacity.
const SLOT_BYTES: usize = (size_of::<(Box<[u8]>, u64)>() + 1) * 8 / 7;

/// Below this number of dead entries, and of their bytes, live entries are not copied.
const DEAD_ENTRIES_MIN: usize = 64;
const DEAD_BYTES_MIN: usize = 4 * 1024;
