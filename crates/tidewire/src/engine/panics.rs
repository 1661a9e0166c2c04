//! Panics of the application's code. A panic ends the session that the call was about, and nothing else of the lane.
//!
//! The call may have left the lane's own state in the middle of a change only where the library calls the application:
//! the output of a session is put back by the context that is dropped, and [`Core::handle_panic`] ends what else a call
//! may have begun.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidewire_proto::text::escaped;

use super::Core;
use crate::session::{CloseReason, SessionId};

/// The value of a panic.
pub(crate) type Panic = Box<dyn Any + Send>;

impl Core {
    /// Runs code of the application that is about a session, or about none. After a panic the session ends, and the
    /// panic is returned. One call of this function may cover many messages, because entering it costs some
    /// instructions.
    #[inline(always)]
    pub(crate) fn contain<T>(
        &mut self,
        id: SessionId,
        work: impl FnOnce(&mut Self) -> T,
    ) -> Result<T, Panic> {
        let result = catch_unwind(AssertUnwindSafe(|| work(self)));
        if let Err(panic) = &result {
            self.handle_panic(id, &**panic);
        }
        result
    }

    /// Counts and logs a panic, and ends the session that the call was about, after the answers given so far.
    #[cold]
    #[inline(never)]
    fn handle_panic(&mut self, id: SessionId, panic: &(dyn Any + Send)) {
        self.counters.handler_panics.add(1);
        let session = self.sessions.table.find(id);
        let peer = session.and_then(|it| it.profile.peer.as_deref());
        let peer = peer.map(tracing::field::display);
        let lane = self.exchange.lane();
        let text = panic_text(panic);
        match self.panic_log.may_log(self.sessions.timers.now_ns()) {
            Some(unlogged) => {
                tracing::error!(session = %id, peer, lane, unlogged, "a handler panicked: {text}");
            }
            None => tracing::debug!(session = %id, peer, lane, "a handler panicked: {text}"),
        }
        // Dropping the duty to answer another node answers it with an error.
        drop(self.replies.remote.take());
        self.rooms().joins().set_repeating(false);
        if let Some(slot) = self.sessions.table.slot_of(id) {
            self.sessions
                .finish(slot, CloseReason::HandlerPanicked, None);
        }
    }
}

/// Returns the text of a panic for a line of the log. It may contain what a peer sent, so it is escaped and its length
/// is limited.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let mut text = escaped(text.unwrap_or("no text").as_bytes());
    text.truncate(text.floor_char_boundary(PANIC_TEXT_BYTES_MAX));
    text
}

/// Longest text of a panic in the log: a few lines of a terminal.
const PANIC_TEXT_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_panic_reaches_no_log_raw_and_is_short() {
        let text_of = |panic: Panic| panic_text(&*panic);
        assert_eq!(text_of(Box::new("told to")), "told to");
        assert_eq!(text_of(Box::new(7)), "no text");
        let hostile = text_of(Box::new(format!("{}\x1b[2J\n", "é".repeat(4))));
        assert!(
            !hostile.contains('\x1b') && !hostile.contains('\n'),
            "{hostile}"
        );
        let long = text_of(Box::new("é".repeat(1_000)));
        assert!(long.len() <= PANIC_TEXT_BYTES_MAX);
    }
}
