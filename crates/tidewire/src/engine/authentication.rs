//! The authentication of sessions: the question to the authenticator, its answer, and later changes.

mod places;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tidewire_proto::connection::{AuthFailure, Overdue, PauseReason};

pub(crate) use places::PlaceQuestions;

use super::Core;
use super::admission::Admission;
use super::expiry::{WallClock, apply_expiry};
use super::handshakes::{Handshakes, still_waits};
use crate::auth::{
    Action, Admitted, Attempt, AuthOutcome, AuthRequest, Failures, Guard, Identity, LateAnswer,
    NoPlace, Permissions, Place, Turn,
};
use crate::mailbox::{AttemptTurn, Exchange, LaneMessage, LateOutcome, Mailbox};
use crate::observe::QuietLog;
use crate::room::RoomTable;
use crate::session::{CloseReason, LaneSessions, Session, SessionId};
use crate::transport::Transport;

/// The authentication of a lane's sessions: the guard of the server, with the parts of the lane that it needs.
#[derive(Debug)]
pub(crate) struct LaneGuard<'a> {
    /// The authentication of peers. `None` if everybody may do everything.
    guard: Option<&'a Arc<Guard>>,
    /// Limits the log lines about peers that are not let in.
    log: &'a mut QuietLog,
    sessions: &'a mut LaneSessions,
    exchange: &'a Exchange,
    rooms: &'a RoomTable,
    admission: &'a mut Admission,
    handshakes: &'a mut Handshakes,
    wall_clock: &'a mut WallClock,
}

impl Core {
    /// The authentication of the lane's sessions.
    pub(crate) fn guard(&mut self) -> LaneGuard<'_> {
        LaneGuard {
            guard: self.shared.guard.as_ref(),
            log: &mut self.authentication_log,
            sessions: &mut self.sessions,
            exchange: &self.exchange,
            rooms: &self.rooms,
            admission: &mut self.admission,
            handshakes: &mut self.handshakes,
            wall_clock: &mut self.wall_clock,
        }
    }
}

impl LaneGuard<'_> {
    /// Finds out who the peer of a session is, now or in a later turn. Returns whether the session is open now, and was
    /// not before. If it is not, the answer comes later, or the peer is refused.
    pub(crate) fn authenticate(&mut self, slot: usize, token: &[u8]) -> bool {
        self.handshakes.may_ask(self.sessions, slot, token) && self.ask_about(slot, token)
    }

    /// Asks the authenticator about the peer of a session. Returns whether the session is open now, and was not before.
    pub(crate) fn ask_about(&mut self, slot: usize, token: &[u8]) -> bool {
        let began_ns = self.sessions.timers.measured_ns();
        let is_open = self.ask_untimed(slot, token);
        self.handshakes.spend_since(began_ns, self.sessions);
        is_open
    }

    fn ask_untimed(&mut self, slot: usize, token: &[u8]) -> bool {
        let Some(guard) = self.guard else {
            return false;
        };
        let session = &self.sessions[slot];
        let id = session.id;
        // A session that renews credentials does not pay for the failures of others at its address. An anonymous one
        // has none to renew, so its token is a guess.
        let is_renewal = session.profile.admitted.as_ref();
        let is_renewal = is_renewal.is_some_and(|it| !it.identity().is_anonymous());
        let address = session.owner().filter(|_| !is_renewal);
        let Some(address) = address else {
            return self.ask(slot, token, None);
        };
        let (now_ns, mailbox) = (self.sessions.timers.now_ns(), &self.exchange.mailbox);
        let turn = || turn_of(id, Arc::clone(mailbox));
        match guard.failures().begin(address, token, now_ns, turn) {
            Ok(Some(attempt)) => self.ask(slot, token, Some(Arc::new(attempt))),
            Ok(None) => {
                self.hold_token(slot, token);
                false
            }
            Err(failure) => self.resolve_authentication(id, AuthOutcome::Refused(failure), None),
        }
    }

    /// Handles the turn of an attempt that waited in the queue of its address. Returns whether the session is open now.
    pub(crate) fn take_turn(&mut self, turn: AttemptTurn) -> bool {
        let AttemptTurn { id, attempt } = turn;
        let Some(slot) = self.sessions.table.slot_of(id) else {
            return false;
        };
        let token = self.release_token(slot);
        let handshake = self.sessions[slot].connection.handshake();
        if !handshake.awaits_owner() || !still_waits(self.sessions, slot) {
            return false;
        }
        match attempt.check_turn(self.sessions.timers.now_ns()) {
            Ok(()) => self.ask(slot, &token, Some(Arc::new(attempt))),
            Err(failure) => self.resolve_authentication(id, AuthOutcome::Refused(failure), None),
        }
    }

    /// Keeps the token of a session whose attempt has to wait.
    fn hold_token(&mut self, slot: usize, token: &[u8]) {
        self.sessions.relief.charge(0, token.len());
        self.sessions[slot].profile.attach().hold_token(token);
    }

    /// Takes the token that the session keeps, if it keeps one.
    fn release_token(&mut self, slot: usize) -> Box<[u8]> {
        let attached = self.sessions[slot].profile.attached.as_mut();
        let token = attached.map(|it| it.release_token()).unwrap_or_default();
        self.sessions.relief.charge(token.len(), 0);
        token
    }

    /// Asks the authenticator. Returns whether the session is open now, and was not before.
    fn ask(&mut self, slot: usize, token: &[u8], attempt: Option<Arc<Attempt>>) -> bool {
        let Some(guard) = self.guard else {
            return false;
        };
        let session = &self.sessions[slot];
        let id = session.id;
        let mailbox = &self.exchange.mailbox;
        let (outcome, question) = ask(guard, session, token, attempt.as_ref(), mailbox);
        match outcome {
            AuthOutcome::Later => {
                self.sessions[slot].profile.attach().await_answer(question);
                false
            }
            AuthOutcome::Unknown if token.is_empty() => {
                let missing = AuthOutcome::Refused(AuthFailure::Missing);
                self.resolve_authentication(id, missing, attempt)
            }
            outcome => self.resolve_authentication(id, outcome, attempt),
        }
    }

    /// Applies an answer. Returns whether it opened the session.
    pub(crate) fn resolve_authentication(
        &mut self,
        id: SessionId,
        outcome: AuthOutcome,
        attempt: Option<Arc<Attempt>>,
    ) -> bool {
        let answer = match outcome {
            AuthOutcome::Admitted(identity) => Ok(identity),
            AuthOutcome::Refused(failure) => Err(failure),
            AuthOutcome::Unknown => Err(AuthFailure::Wrong),
            AuthOutcome::Later => Err(AuthFailure::Unavailable),
        };
        let waiting = self.sessions.table.slot_of(id);
        let waiting =
            waiting.filter(|slot| self.sessions[*slot].connection.handshake().awaits_owner());
        let Some(slot) = waiting else {
            // A guesser may leave before the answer. Its guess counts.
            if let (Err(failure), Some(attempt)) = (answer, attempt)
                && is_guess(failure)
            {
                attempt.note_failure(self.sessions.timers.now_ns());
            }
            return false;
        };
        let was_open = self.sessions[slot].connection.is_open();
        if let Ok(identity) = &answer
            && !was_open
            && !self.has_share_for(slot, identity)
        {
            return false;
        }
        let admitted = match answer {
            Ok(identity) => match self.let_in(slot, Arc::clone(&identity)) {
                // Another session may give way to it.
                Err(AuthFailure::TooManySessions) if self.await_place(slot, &identity) => {
                    return false;
                }
                admitted => admitted,
            },
            Err(failure) => Err(failure),
        };
        match admitted {
            Ok(()) => self.sessions.counters.authenticated.add(1),
            Err(failure) => self.refuse_peer(slot, failure, attempt.as_deref()),
        }
        self.sessions.arm_timer(slot);
        admitted.is_ok() && !was_open && self.sessions[slot].connection.is_open()
    }

    /// Whether an identity may have another session while memory is short. If not, the session is closed. When it
    /// connected, only its address was known.
    fn has_share_for(&mut self, slot: usize, identity: &Identity) -> bool {
        if identity.is_anonymous() || !self.sessions.relief.is_short() {
            return true;
        }
        let holder = self.sessions.relief.holder_of_user(identity.name());
        let peer = self.sessions[slot].profile.peer.clone();
        let (admission, sessions) = (&mut *self.admission, &mut *self.sessions);
        match admission.check_memory(sessions, peer.as_deref(), Some(holder)) {
            // Unfinished handshakes pay for the shortage, too.
            Ok(()) => !sessions[slot].connection.is_closed(),
            Err(_) => {
                sessions.finish(slot, CloseReason::MemoryLimit, None);
                false
            }
        }
    }

    /// Admits a session as this identity.
    fn let_in(&mut self, slot: usize, identity: Arc<Identity>) -> Result<(), AuthFailure> {
        let Some(guard) = self.guard else {
            return Err(AuthFailure::Unavailable);
        };
        let expires_ns = match identity.expiry() {
            None => None,
            Some(at) => Some(
                self.sessions
                    .timers
                    .moment_of(at)
                    .ok_or(AuthFailure::Expired)?,
            ),
        };
        let session = &self.sessions[slot];
        let former = session.profile.admitted.as_ref().map(|it| it.identity());
        // Newer credentials must be of the same identity: a member of a room has its name.
        if former.is_some_and(|former| former.name() != identity.name()) {
            return Err(AuthFailure::Wrong);
        }
        if !self.may_stay(slot, identity.permissions()) {
            return Err(AuthFailure::Revoked);
        }
        let former = session.profile.admitted.as_ref();
        let former = former.and_then(|it| it.placed());
        let place = guard
            .sessions()
            .replace(former, &identity, session.id.number())
            .map_err(|NoPlace| AuthFailure::TooManySessions)?;
        self.set_admitted(slot, guard, identity, place);
        self.end_wait_for_place(slot);
        let session = &mut self.sessions[slot];
        session.connection.handshake_mut().admit(expires_ns);
        session
            .connection
            .input_mut()
            .resume(PauseReason::Authentication);
        self.sessions.update_interest(slot);
        self.sessions.transmit(slot);
        Ok(())
    }

    /// Sets the identity of a session, and charges its memory.
    fn set_admitted(
        &mut self,
        slot: usize,
        guard: &Guard,
        identity: Arc<Identity>,
        place: Option<Place>,
    ) {
        let session = &self.sessions[slot];
        let rate = guard
            .rates()
            .of(&identity, session.owner(), self.sessions.timers.now_ns());
        let former = session.profile.admitted.as_ref();
        let former_bytes = former.map_or(0, |it| it.held_bytes());
        let admitted = Admitted::new(identity, place, rate);
        self.sessions
            .relief
            .charge(former_bytes, admitted.held_bytes());
        self.sessions[slot].profile.admitted = Some(Box::new(admitted));
    }

    /// Ends what a session that is being removed has of its identity: its place, and its part of the memory account.
    pub(super) fn end_authentication(&mut self, slot: usize) {
        self.release_token(slot);
        self.end_wait_for_place(slot);
        let admitted = self.sessions[slot].profile.admitted.take();
        if let (Some(guard), Some(admitted)) = (self.guard, admitted) {
            self.sessions.relief.charge(admitted.held_bytes(), 0);
            if let Some((identity, place)) = admitted.placed() {
                guard.sessions().leave(identity, place);
            }
        }
    }

    /// Refuses a peer: at once, or later if its address has failed before.
    fn refuse_peer(&mut self, slot: usize, failure: AuthFailure, attempt: Option<&Attempt>) {
        let now_ns = self.sessions.timers.now_ns();
        let at_ns = match attempt {
            Some(attempt) if is_guess(failure) => attempt.note_failure(now_ns),
            _ if failure == AuthFailure::TooManyFailures => Failures::latest_answer(now_ns),
            _ => now_ns,
        };
        if let Some(unlogged) = self.log.may_log(now_ns) {
            let session = &self.sessions[slot];
            let peer = session.profile.peer.as_ref().map(tracing::field::display);
            let id = session.id;
            tracing::warn!(
                session = %id,
                peer,
                unlogged,
                "a peer is not let in: {failure}; further refusals are not logged for 10 s"
            );
        }
        self.sessions.counters.auth_refused.add(1);
        let LaneSessions { table, config, .. } = &mut *self.sessions;
        let rules = config.codecs.rules(table[slot].codec_number());
        table.change(slot, |connection| {
            if connection.handshake_mut().refuse(failure, at_ns) && at_ns <= now_ns {
                // It ends now, unless the lane is late.
                let _: Overdue = connection.handle_timeout(rules, now_ns, false);
            }
        });
    }

    /// Asks about every admitted session again, after the users have changed. A session whose identity is gone, or that
    /// is in a room or has a subscription that it may no longer have, ends. So does an anonymous one whose name belongs
    /// to a user now.
    pub(crate) fn reauthenticate(&mut self) {
        let Some(guard) = self.guard else {
            return;
        };
        self.wall_clock.follow(self.sessions);
        for slot in self.sessions.table.slots() {
            let Some(admitted) = &self.sessions[slot].profile.admitted else {
                continue;
            };
            let former = Arc::clone(admitted.identity());
            let member = self.sessions[slot].profile.member.as_deref();
            let has_name_of_another = former.is_anonymous()
                && member.is_some_and(|member| guard.is_reserved(member.name()));
            let is_admitted = match guard.current(&former) {
                _ if has_name_of_another => false,
                Some(current) if Arc::ptr_eq(&current, &former) => true,
                Some(current) => self.follow(slot, guard, &former, current),
                None => false,
            };
            if !is_admitted {
                let reason = CloseReason::Unauthenticated(AuthFailure::Revoked);
                self.sessions.table.close(slot, reason);
            }
        }
    }

    /// Applies the changed permissions, limits and expiry of a session. Returns whether it may stay.
    fn follow(
        &mut self,
        slot: usize,
        guard: &Guard,
        former: &Identity,
        current: Arc<Identity>,
    ) -> bool {
        let number = self.sessions[slot].id.number();
        let Some(admitted) = &mut self.sessions[slot].profile.admitted else {
            return false;
        };
        let Ok(place) = guard
            .sessions()
            .replace(admitted.placed(), &current, number)
        else {
            // It is counted out now, so that no more sessions end than are too many.
            if let Some(place) = admitted.take_place() {
                guard.sessions().leave(former, place);
            }
            return false;
        };
        let may_stay = self.may_stay(slot, current.permissions());
        let expiry = current.expiry();
        self.set_admitted(slot, guard, current, place);
        if expiry != former.expiry() {
            apply_expiry(self.sessions, slot, expiry);
        }
        may_stay
    }

    /// Whether these permissions allow all rooms and subscriptions that the session has.
    fn may_stay(&self, slot: usize, permissions: &Permissions) -> bool {
        let mut memberships = self.sessions[slot].memberships.iter();
        memberships.all(|membership| {
            let shared = self.rooms.open().shared(membership.room());
            shared.is_none_or(|shared| {
                let action = match shared.is_topic() {
                    true => Action::Subscribe(shared.name()),
                    false => Action::Join(shared.name()),
                };
                permissions.allows(action, false)
            })
        })
    }
}

/// Asks the authenticator. Also returns the number of the newest late answer, which alone counts: a link of a chain may
/// take one and leave the decision to the next link.
fn ask(
    guard: &Guard,
    session: &Session,
    token: &[u8],
    attempt: Option<&Arc<Attempt>>,
    mailbox: &Arc<Mailbox>,
) -> (AuthOutcome, u64) {
    let id = session.id;
    let mut question = 0;
    let mut later = || {
        let (mailbox, attempt) = (Arc::clone(mailbox), attempt.cloned());
        question = guard.next_question();
        let number = question;
        LateAnswer::new(move |outcome| {
            // If the lane has ended, so has the session.
            let answer = Box::new(LateOutcome {
                id,
                question: number,
                outcome,
                attempt,
            });
            let _ = mailbox.post(LaneMessage::Authenticated(answer));
        })
    };
    let (stream, peer) = (&session.stream, session.profile.peer.as_deref());
    let is_proven = !stream.is_unproven() && !has_address_of_proxy(session);
    let mut request = AuthRequest::new(token, &mut later)
        .at(peer, is_proven)
        .with_proofs(stream.peer_credentials(), stream.certificate());
    let asked = catch_unwind(AssertUnwindSafe(|| guard.ask(&mut request)));
    let outcome = asked.unwrap_or_else(|_| {
        tracing::error!(session = %id, "the authenticator panicked; the peer is refused");
        AuthOutcome::Refused(AuthFailure::Unavailable)
    });
    (outcome, question)
}

/// Whether a session has the address of a listed proxy, because the proxy named no client. So the address says nothing
/// about who the peer is.
fn has_address_of_proxy(session: &Session) -> bool {
    let (Some(listener), Some(peer)) = (&session.profile.listener, &session.profile.peer) else {
        return false;
    };
    let peer = peer.socket_address();
    peer.is_some_and(|it| listener.is_proxy(it.ip()) || listener.is_forwarder(it.ip()))
}

/// Gives the attempt of a session its turn, by the mailbox of the session's lane.
fn turn_of(id: SessionId, mailbox: Arc<Mailbox>) -> Turn {
    Box::new(move |attempt| {
        let turn = Box::new(AttemptTurn { id, attempt });
        match mailbox.post(LaneMessage::AttemptTurn(turn)) {
            Err(LaneMessage::AttemptTurn(turn)) => Some(turn.attempt),
            _ => None,
        }
    })
}

/// Whether a refusal counts as a guess of the peer's address. Credentials that have expired, are not valid yet or were
/// revoked are genuine, so their holder guesses nothing.
fn is_guess(failure: AuthFailure) -> bool {
    matches!(failure, AuthFailure::Wrong | AuthFailure::TooManyFailures)
}
