//! A queue of messages. A mailbox has one for posted messages, and its lane has one for messages taken and not handled
//! yet.

use std::collections::VecDeque;

use super::LaneMessage;

/// Messages in their order, with counts for their limits. See the module.
#[derive(Debug)]
pub(crate) struct MessageQueue {
    messages: VecDeque<LaneMessage>,
    /// Messages that have not [reserved](LaneMessage::is_reserved) their place.
    unreserved: usize,
    /// Bytes of the batches. The number of batches alone would not bound their memory well, because a batch may be
    /// large.
    batch_bytes: usize,
    /// Memory of all frames.
    held_bytes: usize,
}

impl Default for MessageQueue {
    fn default() -> Self {
        Self {
            messages: VecDeque::with_capacity(CAPACITY_FIRST),
            unreserved: 0,
            batch_bytes: 0,
            held_bytes: 0,
        }
    }
}

impl MessageQueue {
    /// Whether there is a place for this message.
    pub(super) fn admits(&self, message: &LaneMessage) -> bool {
        if message.is_reserved() {
            return true;
        }
        // A single batch is always admitted. Otherwise a batch above the limit would never arrive.
        self.unreserved < UNRESERVED_MAX
            && (self.batch_bytes == 0
                || self.batch_bytes + message.batch_bytes() <= BATCH_BYTES_MAX)
    }

    pub(super) fn push(&mut self, message: LaneMessage) {
        self.unreserved += usize::from(!message.is_reserved());
        self.batch_bytes += message.batch_bytes();
        self.held_bytes += message.held_bytes();
        self.messages.push_back(message);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<LaneMessage> {
        let message = self.messages.pop_front()?;
        self.unreserved -= usize::from(!message.is_reserved());
        self.batch_bytes -= message.batch_bytes();
        self.held_bytes -= message.held_bytes();
        Some(message)
    }

    /// Moves all messages of another queue to the end of this one.
    pub(super) fn append(&mut self, other: &mut Self) {
        if self.is_empty() {
            return std::mem::swap(self, other);
        }
        self.messages.append(&mut other.messages);
        self.unreserved += std::mem::take(&mut other.unreserved);
        self.batch_bytes += std::mem::take(&mut other.batch_bytes);
        self.held_bytes += std::mem::take(&mut other.held_bytes);
    }

    /// Frees the memory of an empty queue that was very long.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() && self.messages.capacity() > CAPACITY_KEPT {
            *self = Self::default();
        }
    }

    /// Memory of the frames in the queue.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.messages.capacity()
    }

    /// Whether there is a message that reserved no place: one of another lane or of the server.
    pub(crate) fn has_unreserved(&self) -> bool {
        self.unreserved > 0
    }
}

/// Messages without a reserved place that a mailbox holds. Each is a whole batch or a connection, so this is the work
/// of many turns.
pub(super) const UNRESERVED_MAX: usize = 1024;

/// Bytes of batches that a mailbox holds. These and the batch that waits outside are less than the default lag of
/// a subscriber. So a lane that was busy for a moment does not find all its members too slow at once.
pub(super) const BATCH_BYTES_MAX: usize = 2 << 20;

/// The capacity of a new queue, 12 KiB. It is more than most lanes take in a turn.
const CAPACITY_FIRST: usize = 256;

/// The largest capacity that an empty queue keeps, 384 KiB.
const CAPACITY_KEPT: usize = 8192;
