//! A service that takes everything, and answers how much that was.
//!
//! Whoever sends one way learns nothing of what became of it. So a sink counts for each session, and any request is
//! answered with the number of one-way messages of that session before it, as eight bytes, little-endian. A load test
//! asks behind its last message and believes this count. Messages of one session come in runs, so the count of the
//! session at hand is kept outside the table: a message then costs a comparison and an addition.

use std::collections::HashMap;

use tidewire::{CloseReason, Context, HandlerResult, Kind, Message, Service, SessionId};

/// The counts of one lane's sessions.
#[derive(Debug, Default)]
pub(super) struct Sink {
    current: Option<(SessionId, u64)>,
    others: HashMap<SessionId, u64>,
}

impl Sink {
    /// The count of this session, which is the one at hand from now on.
    fn count(&mut self, session: SessionId) -> &mut u64 {
        if self.current.is_none_or(|(known, _)| known != session) {
            let count = self.others.remove(&session).unwrap_or(0);
            if let Some((before, count)) = self.current.replace((session, count)) {
                self.others.insert(before, count);
            }
        }
        &mut self.current.get_or_insert((session, 0)).1
    }

    fn forget(&mut self, session: SessionId) {
        self.others.remove(&session);
        self.current.take_if(|(known, _)| *known == session);
    }
}

impl Service for Sink {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let count = self.count(cx.session());
        if message.kind == Kind::Request {
            let count = *count;
            return cx.reply(&count.to_le_bytes());
        }
        *count += 1;
        Ok(())
    }

    fn on_close(&mut self, cx: &mut Context<'_>, _: CloseReason) {
        self.forget(cx.session());
    }
}
