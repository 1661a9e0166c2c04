//! Messages in their order, on either side of a mailbox: what was posted, and what the lane has taken and not handled yet.

use std::collections::VecDeque;

use super::LaneMessage;

/// See the module.
#[derive(Debug)]
pub(crate) struct MessageQueue {
    messages: VecDeque<LaneMessage>,
    /// How many of them have not [reserved](LaneMessage::is_reserved) their place.
    unreserved: usize,
    /// Bytes of the batches: their number alone would bound them at a thousand times any batch.
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
        // A batch alone is always let in, or one that is too large would never arrive.
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

    /// Takes all of another queue.
    pub(super) fn append(&mut self, other: &mut Self) {
        if self.is_empty() {
            return std::mem::swap(self, other);
        }
        self.messages.append(&mut other.messages);
        self.unreserved += std::mem::take(&mut other.unreserved);
        self.batch_bytes += std::mem::take(&mut other.batch_bytes);
        self.held_bytes += std::mem::take(&mut other.held_bytes);
    }

    /// Gives back the memory of a flood that is over.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() && self.messages.capacity() > CAPACITY_KEPT {
            *self = Self::default();
        }
    }

    /// Memory of the frames in it.
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

    /// Whether there is a message that reserved no place: of another lane, or for the lane itself.
    pub(crate) fn has_unreserved(&self) -> bool {
        self.unreserved > 0
    }
}

/// Messages without a reserved place that a mailbox holds. Each is a whole batch or a connection, so this is many turns'
/// worth.
pub(super) const UNRESERVED_MAX: usize = 1024;

/// Bytes of batches that a mailbox holds. It and the batch that waits outside together stay below the default lag of
/// a subscriber, so that a lane that was busy for a moment does not find its members too slow at once.
pub(super) const BATCH_BYTES_MAX: usize = 2 << 20;

/// Places of a new queue, 12 KiB: more than a turn of most lanes takes.
const CAPACITY_FIRST: usize = 256;

/// Most places that an empty queue keeps, 384 KiB.
const CAPACITY_KEPT: usize = 8192;
