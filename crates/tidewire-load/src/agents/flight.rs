//! The messages of one agent that are on their way and expected back.
//! It keeps the time when each message was really sent, which the stamp does not contain. It gives up messages that
//! are overdue, and still recognises their late answers. Time is an argument, so a test can choose it.
//! Messages are numbered without gaps and answered nearly in order, so a deque with the number as the index is
//! enough. A map was four times as slow.

use std::collections::{HashMap, VecDeque};

/// The messages that await an answer, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    waiting: VecDeque<PendingReply>,
    /// Number of the first one in `waiting`.
    first: u64,
    unanswered: u32,
    /// The times when given-up messages were sent, by number.
    expired: HashMap<u64, u64>,
}

#[derive(Clone, Copy, Debug)]
struct PendingReply {
    id: u32,
    sent_ns: u64,
    is_over: bool,
}

/// The message that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMatch {
    /// A message that was waited for.
    InTime { sent_ns: u64 },
    /// A message that had been given up.
    Late { sent_ns: u64 },
    /// No message of this agent that waits for an answer.
    Unknown,
}

impl Flight {
    pub(crate) fn with_window(window: u32) -> Self {
        Self {
            waiting: VecDeque::with_capacity(window.min(CAPACITY_MAX) as usize),
            first: 1,
            ..Self::default()
        }
    }

    /// Returns the number of messages that wait for an answer.
    pub(crate) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Notes the next message: they are numbered from 1, without gaps.
    #[inline]
    pub(crate) fn send(&mut self, id: u32, sent_ns: u64) {
        self.waiting.push_back(PendingReply {
            id,
            sent_ns,
            is_over: false,
        });
        self.unanswered += 1;
    }

    /// Notes the answer to the message with this number.
    #[inline]
    pub(crate) fn answer(&mut self, sequence: u64) -> ReplyMatch {
        let index = sequence
            .checked_sub(self.first)
            .and_then(|index| usize::try_from(index).ok());
        if let Some(waiting) = index.and_then(|index| self.waiting.get_mut(index))
            && !waiting.is_over
        {
            waiting.is_over = true;
            let sent_ns = waiting.sent_ns;
            self.unanswered -= 1;
            self.forget_front();
            return ReplyMatch::InTime { sent_ns };
        }
        match self.expired.remove(&sequence) {
            Some(sent_ns) => ReplyMatch::Late { sent_ns },
            None => ReplyMatch::Unknown,
        }
    }

    /// Gives up messages that were sent `timeout_ns` ago or earlier, and calls `give_up` with the id of each and the
    /// time when it was sent.
    pub(crate) fn expire(
        &mut self,
        now_ns: u64,
        timeout_ns: u64,
        mut give_up: impl FnMut(u32, u64),
    ) -> u64 {
        let mut count = 0;
        // Sent in this order, so that the first that has time left ends the search; those answered in between are gone.
        while let Some(front) = self.waiting.front().copied() {
            if front.sent_ns.saturating_add(timeout_ns) > now_ns {
                break;
            }
            give_up(front.id, front.sent_ns);
            self.expired.insert(self.first, front.sent_ns);
            self.unanswered -= 1;
            count += 1;
            self.waiting.pop_front();
            self.first += 1;
            self.forget_front();
        }
        count
    }

    /// Returns the time when the first one may be given up, if no answer comes.
    pub(crate) fn next_expiry_ns(&self, timeout_ns: u64) -> Option<u64> {
        let front = self.waiting.front()?;
        Some(front.sent_ns.saturating_add(timeout_ns))
    }

    fn forget_front(&mut self) {
        while self.waiting.front().is_some_and(|front| front.is_over) {
            self.waiting.pop_front();
            self.first += 1;
        }
    }
}

/// The number of entries that are allocated in advance. A window of millions need not be filled.
const CAPACITY_MAX: u32 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_in_any_order_find_their_times() {
        let mut flight = Flight::with_window(4);
        for sent_ns in [10, 20, 30, 40] {
            flight.send(0, sent_ns);
        }
        assert_eq!(flight.answer(3), ReplyMatch::InTime { sent_ns: 30 });
        assert_eq!(flight.answer(1), ReplyMatch::InTime { sent_ns: 10 });
        assert_eq!(flight.answer(3), ReplyMatch::Unknown);
        assert_eq!(flight.unanswered(), 2);
        flight.send(0, 50);
        assert_eq!(flight.answer(5), ReplyMatch::InTime { sent_ns: 50 });
        assert_eq!(flight.answer(2), ReplyMatch::InTime { sent_ns: 20 });
        assert_eq!(flight.answer(4), ReplyMatch::InTime { sent_ns: 40 });
        assert_eq!((flight.unanswered(), flight.waiting.len()), (0, 0));
        for stranger in [0, 1, 6, u64::MAX] {
            assert_eq!(flight.answer(stranger), ReplyMatch::Unknown);
        }
    }

    #[test]
    fn what_is_given_up_frees_its_place_and_is_known_when_it_comes_late() {
        let mut flight = Flight::with_window(2);
        flight.send(7, 100);
        flight.send(8, 200);
        assert_eq!(flight.next_expiry_ns(50), Some(150));
        let mut ids = Vec::new();
        assert_eq!(
            flight.expire(149, 50, |id, sent_ns| ids.push((id, sent_ns))),
            0
        );
        assert_eq!(
            flight.expire(150, 50, |id, sent_ns| ids.push((id, sent_ns))),
            1
        );
        assert_eq!((ids.as_slice(), flight.unanswered()), (&[(7, 100)][..], 1));
        assert_eq!(flight.answer(1), ReplyMatch::Late { sent_ns: 100 });
        assert_eq!(flight.answer(1), ReplyMatch::Unknown);
        assert_eq!(flight.answer(2), ReplyMatch::InTime { sent_ns: 200 });
        assert_eq!(flight.next_expiry_ns(50), None);
    }
}
