//! Finds a client's requests by their slots, so that an abandoned request needs no search.
//!
//! With a search, dropping many requests cost the lane the square of their number. Slots are small numbers without gaps, so
//! a list serves as the index, and sending a request writes one entry. The answer does not clear the entry, because that
//! would be a second write. So a reader checks that the request under that id still has the slot.
//!
//! Rejected for queued requests: their positions in the queue, which change whenever an earlier request leaves. They are
//! marked here instead, and one walk over the queue removes all marked ones.

use super::slots::SlotId;

/// The index. See the module.
#[derive(Debug, Default)]
pub(super) struct RequestIndex {
    /// Indexed by slot.
    positions: Vec<Position>,
    /// Number of abandoned requests in the queue.
    abandoned: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// Neither queued nor sent.
    #[default]
    Unknown,
    /// Sent under this id. The answer may have come since.
    Sent(u32),
    /// In the queue.
    Queued,
    /// In the queue, but abandoned.
    Abandoned,
}

impl RequestIndex {
    /// Records that a request was sent. An abandoned request in the queue is never sent, so the count stays.
    #[inline]
    pub(super) fn note_sent(&mut self, slot: Option<SlotId>, id: u32) {
        self.note(slot, Position::Sent(id));
    }

    /// Records that a request was queued, for the first time or after it was sent.
    pub(super) fn note_queued(&mut self, slot: Option<SlotId>) {
        self.note(slot, Position::Queued);
    }

    /// Records that a request left the queue without being sent.
    pub(super) fn note_unqueued(&mut self, slot: Option<SlotId>) {
        if self.is_abandoned(slot) {
            self.abandoned -= 1;
        }
        self.note(slot, Position::Unknown);
    }

    /// Returns the id under which the slot's request was sent last. By now that id may belong to another request.
    pub(super) fn sent_id(&self, slot: SlotId) -> Option<u32> {
        match self.positions.get(slot.index()) {
            Some(Position::Sent(id)) => Some(*id),
            _ => None,
        }
    }

    /// Marks the slot's request as abandoned if it is queued.
    pub(super) fn note_abandoned(&mut self, slot: SlotId) {
        if let Some(position @ Position::Queued) = self.positions.get_mut(slot.index()) {
            *position = Position::Abandoned;
            self.abandoned += 1;
        }
    }

    /// Whether the slot's request is queued and abandoned.
    pub(super) fn is_abandoned(&self, slot: Option<SlotId>) -> bool {
        let position = slot.and_then(|slot| self.positions.get(slot.index()));
        position == Some(&Position::Abandoned)
    }

    /// Number of abandoned requests in the queue.
    pub(super) fn abandoned_count(&self) -> usize {
        self.abandoned
    }

    #[inline]
    fn note(&mut self, slot: Option<SlotId>, at: Position) {
        let Some(slot) = slot else {
            return;
        };
        match self.positions.get_mut(slot.index()) {
            Some(position) => *position = at,
            None => self.add(slot, at),
        }
    }

    /// Adds the entry of a slot that is used for the first time.
    #[cold]
    fn add(&mut self, slot: SlotId, at: Position) {
        self.positions.resize(slot.index() + 1, Position::Unknown);
        self.positions[slot.index()] = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_where_they_were_put_last() {
        let mut index = RequestIndex::default();
        let [first, second] = [1, 9].map(SlotId::new);
        assert_eq!(index.sent_id(first), None);
        index.note_sent(Some(second), 7);
        assert_eq!(index.sent_id(second), Some(7));
        assert_eq!(index.sent_id(first), None);
        index.note_queued(Some(second));
        assert_eq!(index.sent_id(second), None);
        index.note_sent(None, 8);
        index.note_unqueued(None);
        assert_eq!(index.abandoned_count(), 0);
    }

    #[test]
    fn only_those_in_the_queue_count_as_abandoned() {
        let mut index = RequestIndex::default();
        let [sent, waiting, unknown] = [1, 2, 3].map(SlotId::new);
        index.note_sent(Some(sent), 7);
        index.note_queued(Some(waiting));
        for slot in [sent, waiting, waiting, unknown] {
            index.note_abandoned(slot);
        }
        assert_eq!(index.abandoned_count(), 1);
        assert!(index.is_abandoned(Some(waiting)) && !index.is_abandoned(Some(sent)));
        index.note_unqueued(Some(waiting));
        assert_eq!(index.abandoned_count(), 0);
        assert!(!index.is_abandoned(Some(waiting)) && !index.is_abandoned(None));
    }
}
