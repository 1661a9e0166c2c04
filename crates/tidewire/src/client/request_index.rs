//! Where a client's requests are, by their slots: so that an abandoned one is found without a search.
//!
//! Looking for each of them among all others made dropping many requests cost the lane the square of their number. Slots
//! are small numbers without gaps, so this is a list, and a request costs one entry that is written when it is sent.
//! It is not cleared when the answer comes, which would be another one: whoever reads it sees whether the request
//! under that id is still the slot's.
//!
//! Rejected for requests that wait to be sent: their positions in the queue, which move whenever one in front of them goes. They
//! are marked here instead, and the queue is walked once for all that are.

use super::slots::SlotId;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RequestIndex {
    /// By the indices of slots.
    positions: Vec<Position>,
    /// How many of those in the queue are abandoned.
    abandoned: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// Neither queued nor sent.
    #[default]
    Unknown,
    /// Sent under this id, and perhaps answered since.
    Sent(u32),
    /// In the queue.
    Queued,
    /// In the line, and nobody wants the answer.
    Abandoned,
}

impl RequestIndex {
    /// A request was sent. One that was abandoned in the queue never is, so that this need not count.
    #[inline]
    pub(super) fn note_sent(&mut self, slot: Option<SlotId>, id: u32) {
        self.note(slot, Position::Sent(id));
    }

    /// A request waits in the line. It is put there once, or again after it was sent.
    pub(super) fn note_queued(&mut self, slot: Option<SlotId>) {
        self.note(slot, Position::Queued);
    }

    /// A request left the line without being sent.
    pub(super) fn note_unqueued(&mut self, slot: Option<SlotId>) {
        if self.is_abandoned(slot) {
            self.abandoned -= 1;
        }
        self.note(slot, Position::Unknown);
    }

    /// The id under which the slot's request was sent last; it may be another's by now.
    pub(super) fn sent_id(&self, slot: SlotId) -> Option<u32> {
        match self.positions.get(slot.index()) {
            Some(Position::Sent(id)) => Some(*id),
            _ => None,
        }
    }

    /// The answer to the slot's request is not wanted any more. Counts only if it waits in the line.
    pub(super) fn note_abandoned(&mut self, slot: SlotId) {
        if let Some(position @ Position::Queued) = self.positions.get_mut(slot.index()) {
            *position = Position::Abandoned;
            self.abandoned += 1;
        }
    }

    /// Whether the slot's request waits in the line, and nobody wants the answer.
    pub(super) fn is_abandoned(&self, slot: Option<SlotId>) -> bool {
        let position = slot.and_then(|slot| self.positions.get(slot.index()));
        position == Some(&Position::Abandoned)
    }

    /// How many of those in the queue are abandoned.
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

    /// The first request in a slot.
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
