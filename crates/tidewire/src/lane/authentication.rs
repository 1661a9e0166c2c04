//! Authentication on the lane's thread without a message from the peer: for codecs without a hello, and for late
//! answers of an authenticator.

use super::Lane;
use crate::auth::{AuthFailure, AuthOutcome};
use crate::mailbox::LateOutcome;
use crate::service::Service;

impl<S: Service> Lane<S> {
    /// Authenticates the peer of a session whose codec has no hello.
    pub(super) fn authenticate(&mut self, slot: usize) {
        if self.core.guard().authenticate(slot, &[]) {
            self.open(slot);
        }
    }

    pub(super) fn handle_late_answer(&mut self, answer: LateOutcome) {
        let LateOutcome {
            id,
            question,
            outcome,
            attempt,
        } = answer;
        let session = self.core.sessions.table.find(id);
        let attached = session.and_then(|it| it.profile.attached.as_ref());
        if attached.is_some_and(|it| !it.awaits_answer(question)) {
            return;
        }
        // The users may have changed since the answer was found.
        let outcome = match (outcome, &self.core.shared.guard) {
            (AuthOutcome::Admitted(identity), Some(guard)) => {
                let current = guard.current(&identity);
                current.map_or(
                    AuthOutcome::Refused(AuthFailure::Revoked),
                    AuthOutcome::Admitted,
                )
            }
            (outcome, _) => outcome,
        };
        if self
            .core
            .guard()
            .resolve_authentication(id, outcome, attempt)
        {
            self.open(id.slot());
        }
    }

    /// Opens an admitted session, and reads the frames that came after its hello.
    pub(super) fn open(&mut self, slot: usize) {
        self.service.announce(&mut self.core, slot);
        if !self.core.sessions[slot].connection.is_closed() {
            self.read_session(slot);
        }
    }
}
