//! Where a client's requests are, by their slots: so that one which is let go of is found without a search.
//!
//! Looking for each of them among all others made dropping many requests cost the lane the square of their number. Slots
//! are small numbers without gaps, so this is a list, and a request costs one entry that is written when it is sent.
//! It is not cleared when the answer comes, which would be another one: whoever reads it sees whether the request
//! under that id is still the slot's.
//!
//! Rejected for requests that wait to be sent: their places in the line, which move whenever one in front of them goes. They
//! are marked here instead, and the line is walked once for all that are.

use super::slots::SlotId;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Whereabouts {
    /// By the indices of slots.
    places: Vec<Place>,
    /// How many wait in the line of whom nobody wants the answer.
    let_go: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Not in the line, nor sent.
    #[default]
    Elsewhere,
    /// Sent under this id, and perhaps answered since.
    Sent(u32),
    /// In the line.
    Waiting,
    /// In the line, and nobody wants the answer.
    LetGo,
}

impl Whereabouts {
    /// A request was sent. One that was let go of in the line never is, so that this need not count.
    #[inline]
    pub(super) fn note_sent(&mut self, slot: Option<SlotId>, id: u32) {
        self.note(slot, Place::Sent(id));
    }

    /// A request waits in the line. It is put there once, or again after it was sent.
    pub(super) fn note_waiting(&mut self, slot: Option<SlotId>) {
        self.note(slot, Place::Waiting);
    }

    /// A request left the line without being sent.
    pub(super) fn note_gone(&mut self, slot: Option<SlotId>) {
        if self.is_let_go(slot) {
            self.let_go -= 1;
        }
        self.note(slot, Place::Elsewhere);
    }

    /// The id under which the slot's request was sent last; it may be another's by now.
    pub(super) fn sent_id(&self, slot: SlotId) -> Option<u32> {
        match self.places.get(slot.index()) {
            Some(Place::Sent(id)) => Some(*id),
            _ => None,
        }
    }

    /// Nobody wants the answer to the slot's request. Counts only if it waits in the line.
    pub(super) fn let_go(&mut self, slot: SlotId) {
        if let Some(place @ Place::Waiting) = self.places.get_mut(slot.index()) {
            *place = Place::LetGo;
            self.let_go += 1;
        }
    }

    /// Whether the slot's request waits in the line, and nobody wants the answer.
    pub(super) fn is_let_go(&self, slot: Option<SlotId>) -> bool {
        let place = slot.and_then(|slot| self.places.get(slot.index()));
        place == Some(&Place::LetGo)
    }

    /// How many of those in the line nobody wants the answers to.
    pub(super) fn let_go_count(&self) -> usize {
        self.let_go
    }

    #[inline]
    fn note(&mut self, slot: Option<SlotId>, at: Place) {
        let Some(slot) = slot else {
            return;
        };
        match self.places.get_mut(slot.index()) {
            Some(place) => *place = at,
            None => self.add(slot, at),
        }
    }

    /// The first request in a slot.
    #[cold]
    fn add(&mut self, slot: SlotId, at: Place) {
        self.places.resize(slot.index() + 1, Place::Elsewhere);
        self.places[slot.index()] = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_where_they_were_put_last() {
        let mut whereabouts = Whereabouts::default();
        let [first, second] = [1, 9].map(SlotId::of_number);
        assert_eq!(whereabouts.sent_id(first), None);
        whereabouts.note_sent(Some(second), 7);
        assert_eq!(whereabouts.sent_id(second), Some(7));
        assert_eq!(whereabouts.sent_id(first), None);
        whereabouts.note_waiting(Some(second));
        assert_eq!(whereabouts.sent_id(second), None);
        whereabouts.note_sent(None, 8);
        whereabouts.note_gone(None);
        assert_eq!(whereabouts.let_go_count(), 0);
    }

    #[test]
    fn only_those_in_the_line_count_as_let_go() {
        let mut whereabouts = Whereabouts::default();
        let [sent, waiting, unknown] = [1, 2, 3].map(SlotId::of_number);
        whereabouts.note_sent(Some(sent), 7);
        whereabouts.note_waiting(Some(waiting));
        for slot in [sent, waiting, waiting, unknown] {
            whereabouts.let_go(slot);
        }
        assert_eq!(whereabouts.let_go_count(), 1);
        assert!(whereabouts.is_let_go(Some(waiting)) && !whereabouts.is_let_go(Some(sent)));
        whereabouts.note_gone(Some(waiting));
        assert_eq!(whereabouts.let_go_count(), 0);
        assert!(!whereabouts.is_let_go(Some(waiting)) && !whereabouts.is_let_go(None));
    }
}
