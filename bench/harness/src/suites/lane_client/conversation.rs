//! One session of a lane of clients: which messages it has sent, and which of them came back.

use std::collections::VecDeque;

use tidewire::SessionId;

/// One session and what is on its way.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) session: SessionId,
    pub(super) next: u64,
    pub(super) expected: u64,
    /// Whether something waited for it when it was last looked at.
    pub(super) waits: bool,
    /// For what was sent in one turn: the number after its last message, and when.
    pub(super) sent: VecDeque<(u64, u64)>,
}

impl Conversation {
    /// One that is not open yet.
    pub(super) fn new() -> Self {
        Self {
            session: SessionId::NONE,
            next: 0,
            expected: 0,
            waits: false,
            sent: VecDeque::new(),
        }
    }

    /// Takes the number of a message that came back. Returns how many before it did not come; nothing if it was not to
    /// come.
    pub(super) fn take(&mut self, payload: &[u8]) -> Option<u64> {
        let number = u64::from_le_bytes(*payload.first_chunk()?);
        if !(self.expected..self.next).contains(&number) {
            return None;
        }
        let overtaken = number - self.expected;
        self.expected = number + 1;
        Some(overtaken)
    }

    /// The receiver tells how many have come. Returns whether that can be.
    pub(super) fn is_told(&mut self, payload: &[u8]) -> bool {
        let told = payload.first_chunk().copied().map(u64::from_le_bytes);
        let is_possible = told.is_some_and(|told| told <= self.next);
        self.expected = self.expected.max(told.filter(|_| is_possible).unwrap_or(0));
        is_possible
    }

    /// Notes that everything up to `next` was sent at this time; messages of one turn share an entry.
    pub(super) fn note_sent(&mut self, now_ns: u64) {
        match self.sent.back_mut() {
            Some((until, sent_ns)) if *sent_ns == now_ns => *until = self.next,
            _ => self.sent.push_back((self.next, now_ns)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Counts;
    use super::*;

    #[test]
    fn one_lost_message_is_one_lost_message() {
        let mut conversation = Conversation {
            next: 10,
            ..Conversation::new()
        };
        let mut counts = Counts::default();
        // 2 and 3 do not come, 5 comes twice, 1 comes again, and 10 was never sent.
        for number in [0_u64, 1, 4, 5, 5, 1, 10, 6, 7, 8, 9] {
            match conversation.take(&number.to_le_bytes()) {
                Some(overtaken) => {
                    counts.received += 1;
                    counts.lost += overtaken;
                }
                None => counts.wrong += 1,
            }
        }
        assert_eq!(conversation.take(b"short"), None);
        assert_eq!((counts.received, counts.lost, counts.wrong), (8, 2, 3));
        assert_eq!(conversation.expected, conversation.next);
    }
}
