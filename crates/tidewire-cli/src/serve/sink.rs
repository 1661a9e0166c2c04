//! A service that takes all messages, and answers with their number.
//!
//! A sender of one-way messages gets no answer. A sink therefore counts them for each session, and answers any request
//! with the number of that session's one-way messages before it, as eight bytes, little-endian. A load test sends such
//! a request after its last message and relies on this count. Messages of one session come in runs, so the count of
//! the current session is kept outside the table: a message then costs a comparison and an addition.

use std::collections::HashMap;

use tidewire::{CloseReason, Context, HandlerResult, Kind, Message, Service, SessionId};

/// The counts of one lane's sessions.
#[derive(Debug, Default)]
pub(super) struct Sink {
    current: Option<(SessionId, u64)>,
    others: HashMap<SessionId, u64>,
}

impl Sink {
    /// Counts a message of a session that is not the current one, or answers a request. The session is then the current
    /// one.
    #[cold]
    fn count_or_answer(&mut self, cx: &mut Context<'_>, kind: Kind) -> HandlerResult {
        let session = cx.id();
        let mut count = match self.current {
            Some((known, count)) if known == session => count,
            _ => self.others.remove(&session).unwrap_or(0),
        };
        let before = self.current.take_if(|(known, _)| *known != session);
        self.others.extend(before);
        if kind != Kind::Request {
            count += 1;
        }
        self.current = Some((session, count));
        if kind == Kind::Request {
            return cx.reply(&count.to_le_bytes());
        }
        Ok(())
    }

    fn forget(&mut self, session: SessionId) {
        self.others.remove(&session);
        self.current.take_if(|(known, _)| *known == session);
    }
}

impl Service for Sink {
    #[inline]
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match &mut self.current {
            Some((known, count)) if *known == cx.id() && message.kind != Kind::Request => {
                *count += 1;
                Ok(())
            }
            _ => self.count_or_answer(cx, message.kind),
        }
    }

    fn on_close(&mut self, cx: &mut Context<'_>, _: CloseReason) {
        self.forget(cx.id());
    }
}
