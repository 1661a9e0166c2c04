//! The receiver's side of messages that carry a number per session: each counts if it comes once and in order.
//!
//! Problem: a count alone does not see a message that was lost while another came twice. Approach: a number to expect
//! for each session, as the programs of the rivals keep it. Messages of one session come in runs, so the number at hand
//! is kept apart from the table of all.

use tidewire::{Context, SessionId};

/// The place of a session in the lists of its service, as the state of the session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(pub(super) usize);

impl Place {
    /// The place of the session of this call, if it has one.
    #[inline]
    pub(super) fn of(cx: &Context<'_>) -> Option<usize> {
        Some(cx.state::<Self>()?.0)
    }
}

/// The number that is expected next of each session.
#[derive(Debug)]
pub(super) struct Numbers {
    session: SessionId,
    /// The number that is expected next of `session`. It is copied from the table, where all other sessions have
    /// theirs.
    next: u64,
    /// Place of `session` in the table.
    index: usize,
    table: Vec<u64>,
}

impl Numbers {
    pub(super) fn new() -> Self {
        Self {
            session: SessionId::NONE,
            next: 0,
            index: 0,
            // The first place is nobody's, and takes what is written back before anybody was there.
            table: vec![0],
        }
    }

    /// A session begins.
    pub(super) fn open(&mut self, cx: &mut Context<'_>) {
        cx.set_state(Place(self.table.len()));
        self.table.push(0);
    }

    /// Takes the message of a session. Returns whether it is the expected one, or a later one: what is missing before
    /// it the sender knows.
    #[inline]
    pub(super) fn take(&mut self, cx: &Context<'_>, payload: &[u8]) -> bool {
        if cx.id() != self.session {
            self.turn_to(cx.id(), Place::of(cx).unwrap_or_default());
        }
        let Some(number) = payload.first_chunk() else {
            return false;
        };
        let number = u64::from_le_bytes(*number);
        if number < self.next {
            return false;
        }
        self.next = number.wrapping_add(1);
        true
    }

    /// The number that is expected next of the session at hand: the one whose message was taken last.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    fn turn_to(&mut self, session: SessionId, index: usize) {
        self.table[self.index] = self.next;
        (self.session, self.index) = (session, index);
        self.next = self.table[index];
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tidewire::{Client, HandlerResult, Kind, Message, Server, Service};

    use super::*;

    /// Answers with how many were right so far.
    struct Judge {
        numbers: Numbers,
        right: Arc<AtomicU64>,
    }

    impl Service for Judge {
        fn on_open(&mut self, cx: &mut Context<'_>) {
            self.numbers.open(cx);
        }

        fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
            let right = u64::from(self.numbers.take(cx, message.payload));
            self.right.fetch_add(right, Ordering::Relaxed);
            if message.kind == Kind::Request {
                return cx.reply(b"");
            }
            Ok(())
        }
    }

    #[test]
    fn each_session_has_numbers_of_its_own_and_repetitions_are_not_right() {
        let right = Arc::new(AtomicU64::new(0));
        let server = Server::builder()
            .listen("tcp://127.0.0.1:0")
            .unwrap()
            .start(|_| Judge {
                numbers: Numbers::new(),
                right: Arc::clone(&right),
            })
            .unwrap();
        let address = server.addresses()[0].to_string();
        let clients = [(); 2].map(|()| Client::connect(&address).wait().unwrap());
        // By client and number; 2 is missing of the first, 0 comes twice of the second, and one is too short.
        let mut expected = 0;
        for (client, number, is_right) in [
            (0, 0_u64, true),
            (1, 0, true),
            (0, 1, true),
            (1, 0, false),
            (1, 1, true),
            (0, 3, true),
            (0, 2, false),
        ] {
            clients[client]
                .request(&number.to_le_bytes())
                .wait()
                .unwrap();
            expected += u64::from(is_right);
            assert_eq!(right.load(Ordering::Relaxed), expected, "{client} {number}");
        }
        clients[0].request(b"short").wait().unwrap();
        assert_eq!(right.load(Ordering::Relaxed), expected);
    }
}
