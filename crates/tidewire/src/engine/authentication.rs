//! The authentication of sessions: the question to the authenticator, its answer, and later changes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use tidewire_proto::connection::{AuthFailure, Overdue, PauseReason, Phase};

use super::Core;
use crate::auth::{Action, Admitted, AuthOutcome, AuthRequest, Guard, Identity, LateAnswer};
use crate::limits::nanoseconds;
use crate::mailbox::LaneMessage;
use crate::session::{CloseReason, Session, SessionId};
use crate::transport::Transport;

impl Core {
    /// Asks who the peer of a session is. Returns whether the session is open now, and was not before. If it is not, the
    /// answer comes later, or the peer is refused.
    pub(crate) fn authenticate(&mut self, slot: usize, token: &[u8]) -> bool {
        let Some(guard) = self.shared.guard.clone() else {
            return false;
        };
        let now_ns = self.sessions.now_ns();
        let session = &self.sessions[slot];
        let id = session.id;
        // An open session that renews its credentials does not pay for the failures of others, nor does a peer without any.
        let is_attempt = session.profile.admitted.is_none() && !token.is_empty();
        let failures = guard.failures.lock();
        let failures = failures.unwrap_or_else(PoisonError::into_inner);
        let may_try = !is_attempt || failures.may_try(session.owner(), now_ns);
        drop(failures);
        if !may_try {
            let outcome = AuthOutcome::Refused(AuthFailure::TooManyFailures);
            return self.settle_authentication(id, outcome);
        }
        let outcome = match ask(&guard, session, token, &self.exchange.mailbox) {
            AuthOutcome::Later => return false,
            AuthOutcome::Unknown if token.is_empty() => AuthOutcome::Refused(AuthFailure::Missing),
            outcome => outcome,
        };
        self.settle_authentication(id, outcome)
    }

    /// Applies an answer. Returns whether it opened the session.
    pub(crate) fn settle_authentication(&mut self, id: SessionId, outcome: AuthOutcome) -> bool {
        let Some(slot) = self.sessions.slot_of(id) else {
            return false;
        };
        let was_open = self.sessions[slot].connection.is_open();
        let admitted = match outcome {
            AuthOutcome::Admitted(identity) => self.let_in(slot, identity),
            AuthOutcome::Refused(failure) => Err(failure),
            AuthOutcome::Unknown => Err(AuthFailure::Wrong),
            AuthOutcome::Later => Err(AuthFailure::Unavailable),
        };
        match admitted {
            Ok(()) => self.counters.authenticated.add(1),
            Err(failure) => self.refuse_peer(slot, failure),
        }
        self.sessions.arm_timer(slot);
        admitted.is_ok() && !was_open && self.sessions[slot].connection.is_open()
    }

    /// Admits a session as this identity.
    fn let_in(&mut self, slot: usize, identity: Arc<Identity>) -> Result<(), AuthFailure> {
        let Some(guard) = self.shared.guard.clone() else {
            return Err(AuthFailure::Unavailable);
        };
        let now_ns = self.sessions.now_ns();
        let expires_ns = match identity.expiry().map(time_until) {
            Some(Some(left)) => Some(now_ns.saturating_add(nanoseconds(left))),
            Some(None) => return Err(AuthFailure::Expired),
            None => None,
        };
        let session = &mut self.sessions[slot];
        match &session.profile.admitted {
            // Newer credentials must be of the same identity: a member of a room has its name.
            Some(former) if former.identity.name() != identity.name() => {
                return Err(AuthFailure::Wrong);
            }
            former => {
                // The limits may differ from those before.
                let former = former.as_ref().map(|former| &former.identity);
                former.inspect(|former| guard.sessions.leave(former));
                if !guard.sessions.enter(&identity) {
                    former.map(|former| guard.sessions.enter(former));
                    return Err(AuthFailure::TooManySessions);
                }
            }
        }
        session.profile.admitted = Some(Box::new(Admitted::new(identity)));
        session.connection.admit(expires_ns);
        session.connection.resume(PauseReason::Authentication);
        self.sessions.update_interest(slot);
        self.sessions.transmit(slot);
        Ok(())
    }

    /// Refuses a peer: at once, or later if its address has failed before.
    fn refuse_peer(&mut self, slot: usize, failure: AuthFailure) {
        let now_ns = self.sessions.now_ns();
        let session = &self.sessions[slot];
        let at_ns = match (&self.shared.guard, failure) {
            (
                Some(guard),
                AuthFailure::Wrong
                | AuthFailure::Expired
                | AuthFailure::NotYetValid
                | AuthFailure::Revoked
                | AuthFailure::TooManyFailures,
            ) => {
                let failures = guard.failures.lock();
                let mut failures = failures.unwrap_or_else(PoisonError::into_inner);
                failures.note(session.owner(), now_ns)
            }
            _ => now_ns,
        };
        if let Some(unlogged) = self.acceptor.refusal_log.may_log(now_ns) {
            let (peer, id) = (&session.profile.peer, session.id);
            tracing::warn!(
                session = %id,
                ?peer,
                unlogged,
                "a peer is not let in: {failure}; further refusals are not logged for 10 s"
            );
        }
        self.counters.auth_refused.add(1);
        self.sessions.change(slot, |connection, rules| {
            if connection.refuse(failure, at_ns) && at_ns <= now_ns {
                // It ends now, unless the lane is late.
                let _: Overdue = connection.handle_timeout(rules, now_ns, false);
            }
        });
    }

    /// Asks about every admitted session again, after the users have changed. A session whose identity is gone, or that is
    /// in a room or has a subscription that it may no longer have, ends.
    pub(crate) fn reauthenticate(&mut self) {
        let Some(guard) = self.shared.guard.clone() else {
            return;
        };
        for slot in self.sessions.slots() {
            let Some(admitted) = &self.sessions[slot].profile.admitted else {
                continue;
            };
            let former = Arc::clone(&admitted.identity);
            let current = catch_unwind(AssertUnwindSafe(|| guard.authenticator.current(&former)));
            let is_admitted = match current.unwrap_or_else(|_| Some(Arc::clone(&former))) {
                Some(current) if Arc::ptr_eq(&current, &former) => true,
                Some(current) => self.follow(slot, &guard, &former, current),
                None => false,
            };
            if !is_admitted {
                let reason = CloseReason::Unauthenticated(AuthFailure::Revoked);
                self.sessions.close(slot, reason);
            }
        }
    }

    /// Applies the changed permissions and limits of a session. Returns whether it may stay.
    fn follow(
        &mut self,
        slot: usize,
        guard: &Guard,
        former: &Identity,
        current: Arc<Identity>,
    ) -> bool {
        guard.sessions.leave(former);
        let has_place = guard.sessions.enter(&current);
        let permissions = current.permissions();
        let memberships = self.sessions[slot].memberships.iter();
        let may_stay = memberships
            .map(|it| (it.room, it.is_topic))
            .all(|(alias, is_topic)| {
                if is_topic {
                    let pattern = self
                        .rooms
                        .get(alias)
                        .and_then(|it| it.shared.pattern.as_deref());
                    pattern.is_none_or(|it| permissions.allows(Action::Subscribe(it), false))
                } else {
                    let room = self.rooms.directory.name_of(alias);
                    room.is_none_or(|it| permissions.allows(Action::Join(&it), false))
                }
            });
        let profile = &mut self.sessions[slot].profile;
        // A session without a place is not counted, so it must not be counted out.
        profile.admitted = has_place.then(|| Box::new(Admitted::new(current)));
        may_stay && has_place
    }

    /// Whether a session waits until its peer is known.
    pub(crate) fn is_authenticating(&self, slot: usize) -> bool {
        self.sessions[slot].connection.phase() == Phase::Authenticating
    }
}

/// Asks the authenticator.
fn ask(
    guard: &Guard,
    session: &Session,
    token: &[u8],
    mailbox: &Arc<crate::mailbox::Mailbox>,
) -> AuthOutcome {
    let id = session.id;
    let mut later = || {
        let mailbox = Arc::clone(mailbox);
        LateAnswer::new(move |outcome| {
            // If the lane has ended, so has the session.
            let _ = mailbox.post(LaneMessage::Authenticated(Box::new((id, outcome))));
        })
    };
    let mut request = AuthRequest {
        token,
        peer: session.profile.peer.as_deref(),
        unix: session.stream.peer_credentials(),
        certificate_names: session.stream.certificate(),
        later: &mut later,
    };
    let asked = catch_unwind(AssertUnwindSafe(|| {
        guard.authenticator.authenticate(&mut request)
    }));
    asked.unwrap_or_else(|_| {
        tracing::error!(session = %id, "the authenticator panicked; the peer is refused");
        AuthOutcome::Refused(AuthFailure::Unavailable)
    })
}
/// The time from now until a moment, or `None` if it is over.
#[expect(
    clippy::disallowed_methods,
    reason = "credentials expire by the wall clock"
)]
fn time_until(at: SystemTime) -> Option<Duration> {
    at.duration_since(SystemTime::now()).ok()
}
