//! The messages without a reply that a client has sent and that no flush has confirmed.
//!
//! Problem: one-way messages, publications and messages to rooms have no reply. A flush on the next connection would be
//! answered like any other, although earlier messages were lost with the earlier connection. A server that refuses a
//! publication answers the flush after it, too.
//!
//! Approach: the lane counts sent messages, and notes the count at each flush. The reply confirms that much. Messages
//! without a confirmation at the end of a connection fail the next flush, once. So do refused messages.
//!
//! Rejected: failing every flush until the program sends again. The client cannot know what the program sends again.

use tidewire_proto::body::ErrorCode;

use super::error::RequestError;
use super::pending::Pending;
use super::service::ClientService;
use super::slots::{BySlot, SlotId};
use super::submissions::RequestHead;

/// See the module. Counts are messages of the present connection, unless they say otherwise.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    sent: u64,
    confirmed: u64,
    /// The value of `sent` when the latest flush of each slot was sent.
    at_flush: BySlot<u64>,
    /// Messages of earlier connections that may be lost, and messages that were not sent. No flush has reported them.
    lost: u64,
    refused: u64,
    /// The first refusal that no flush has reported.
    refusal: Option<Refusal>,
}

/// Why the server refused a message.
#[derive(Debug)]
struct Refusal {
    code: ErrorCode,
    number: i32,
    text: String,
}

impl Unconfirmed {
    pub(super) fn note_sent(&mut self, messages: u64) {
        self.sent += messages;
    }

    pub(super) fn note_lost(&mut self, messages: u64) {
        self.lost += messages;
    }

    pub(super) fn note_refused(&mut self, code: ErrorCode, number: i32, text: String) {
        self.refused += 1;
        self.refusal.get_or_insert(Refusal { code, number, text });
    }

    /// Whether messages were sent on this connection and not confirmed.
    pub(super) fn is_any(&self) -> bool {
        self.sent > self.confirmed
    }

    /// Takes the number of messages that may be lost, if any, so only one flush gets it.
    pub(super) fn take_lost(&mut self) -> Option<u64> {
        let messages = std::mem::take(&mut self.lost);
        (messages > 0).then_some(messages)
    }

    /// Notes that a flush is sent now.
    pub(super) fn begin_flush(&mut self, slot: Option<SlotId>) {
        if let Some(slot) = slot {
            *self.at_flush.get_mut(slot) = self.sent;
        }
    }

    fn at_flush(&self, slot: Option<SlotId>) -> u64 {
        let at = slot.and_then(|slot| self.at_flush.get(slot));
        at.copied().unwrap_or(0)
    }

    /// Notes the reply to a flush.
    ///
    /// # Errors
    /// The server has refused messages since the last flush.
    pub(super) fn end_flush(&mut self, slot: Option<SlotId>) -> Result<(), RequestError> {
        self.confirmed = self.confirmed.max(self.at_flush(slot));
        let refused = std::mem::take(&mut self.refused);
        let Some(Refusal { code, number, text }) = self.refusal.take() else {
            return Ok(());
        };
        let text = match refused {
            1 => format!("a message before this flush was refused: {text}"),
            _ => format!("{refused} messages before this flush were refused, the first: {text}"),
        };
        Err(RequestError::Refused { code, number, text })
    }

    /// Notes the end of the connection. The flushes in `failed` end with it and so tell their callers.
    pub(super) fn handle_close(&mut self, failed: impl Iterator<Item = Option<SlotId>>) {
        let told = failed.map(|slot| self.at_flush(slot)).max().unwrap_or(0);
        self.lost += self.sent.saturating_sub(self.confirmed.max(told));
        *self = Self {
            lost: self.lost,
            ..Self::default()
        };
    }
}

impl ClientService {
    /// Handles the reply or the refusal of a flush.
    pub(super) fn handle_flushed(
        &mut self,
        head: &RequestHead,
        result: Result<u16, RequestError>,
        payload: &[u8],
    ) {
        let Pending {
            unconfirmed,
            completions,
            ..
        } = &mut self.pending;
        match result.and_then(|channel| unconfirmed.end_flush(head.slot).map(|()| channel)) {
            Ok(channel) => self
                .link
                .table
                .reply(completions, head.slot, channel, payload),
            Err(error) => completions.fail(head.slot, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(unconfirmed: &mut Unconfirmed) -> u64 {
        unconfirmed.take_lost().unwrap_or(0)
    }

    fn slots() -> [Option<SlotId>; 2] {
        [0, 1].map(|index| Some(SlotId::new(index)))
    }

    #[test]
    fn losses_after_the_confirmed_flush_are_reported_once() {
        let mut it = Unconfirmed::default();
        let [first, _] = slots();
        it.note_sent(5);
        it.begin_flush(first);
        it.note_sent(3);
        assert_eq!(it.end_flush(first), Ok(()));
        it.handle_close([].into_iter());
        assert_eq!(lost(&mut it), 3);
        assert_eq!(lost(&mut it), 0);
    }

    #[test]
    fn a_connection_that_was_confirmed_to_the_end_loses_nothing() {
        let mut it = Unconfirmed::default();
        let [first, second] = slots();
        it.note_sent(5);
        it.begin_flush(first);
        it.begin_flush(second);
        assert_eq!(it.end_flush(second), Ok(()));
        assert!(!it.is_any());
        it.handle_close([first].into_iter());
        assert_eq!(lost(&mut it), 0);
    }

    #[test]
    fn a_flush_that_failed_with_its_connection_has_reported_earlier_messages() {
        let mut it = Unconfirmed::default();
        let [first, _] = slots();
        it.note_sent(5);
        it.begin_flush(first);
        it.note_sent(2);
        it.handle_close([first].into_iter());
        assert_eq!(lost(&mut it), 2);
    }

    #[test]
    fn messages_that_were_never_sent_count_as_lost() {
        let mut it = Unconfirmed::default();
        it.note_lost(4);
        it.note_sent(1);
        it.handle_close([].into_iter());
        it.handle_close([].into_iter());
        assert_eq!(lost(&mut it), 5);
    }

    #[test]
    fn refusals_fail_one_flush_and_name_the_first() {
        let mut it = Unconfirmed::default();
        let [first, _] = slots();
        it.note_sent(2);
        it.note_refused(ErrorCode::Forbidden, 0, "not this topic".to_owned());
        it.note_refused(ErrorCode::LimitReached, 0, "too many".to_owned());
        it.begin_flush(first);
        let Err(RequestError::Refused { code, text, .. }) = it.end_flush(first) else {
            panic!("the flush confirmed refused messages");
        };
        assert_eq!(code, ErrorCode::Forbidden);
        assert_eq!(
            text,
            "2 messages before this flush were refused, the first: not this topic"
        );
        it.begin_flush(first);
        assert_eq!(it.end_flush(first), Ok(()));
    }
}
