//! Sessions that give way: to a newcomer of the same identity when all its sessions are in use, and to whoever wants
//! their name.
//!
//! Problem: a peer that vanished without a word keeps its place and its name until a timeout ends its session, and is
//! refused when it comes back. Approach: the newcomer waits, and the lane of the older session pings its peer. If
//! nothing comes from it in [`ANSWER_NS`], the older session ends. Or, if the identity is set so, the older session
//! ends at once.
//!
//! Rejected: ending the older session whenever a newcomer comes, because two machines with one token would then end
//! each other for ever. Rejected: asking by the heartbeat alone, because it takes a minute.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use tidewire_proto::connection::{AuthFailure, Overdue};

use super::LaneGuard;
use crate::auth::{AuthOutcome, Identity};
use crate::mailbox::{LaneMessage, Lanes};
use crate::session::{CloseReason, LaneSessions, SessionId, TimerKey};

/// Questions to sessions of a lane whether their peers are still there.
#[derive(Debug, Default)]
pub(crate) struct PlaceQuestions(HashMap<SessionId, Question>);

#[derive(Debug)]
struct Question {
    since_ns: u64,
    /// The sessions that wait for the outcome.
    askers: Vec<SessionId>,
}

impl LaneGuard<'_> {
    /// Lets a session wait until another one of its identity gives way. Returns false if it must be refused.
    pub(super) fn await_place(&mut self, slot: usize, identity: &Arc<Identity>) -> bool {
        let Some(guard) = self.guard else {
            return false;
        };
        let session = &self.sessions[slot];
        let id = session.id;
        let replaces_oldest = identity.own_limits().replaces_oldest;
        if session.connection.is_open() {
            return false;
        }
        let mailbox = Arc::clone(&self.exchange.mailbox);
        let wake = Box::new(move || {
            // If the lane has ended, so has the session.
            let _ = mailbox.post(LaneMessage::PlaceFree { id });
        });
        let Some(holders) = guard.sessions().await_place(identity, id.number(), wake) else {
            return false;
        };
        let attached = self.sessions[slot].profile.attach();
        if !attached.await_place(identity, holders.len()) {
            // The holders were asked before.
            return true;
        }
        self.sessions.timers.set_after(WAIT_NS, TimerKey::Place(id));
        for holder in holders {
            let holder = SessionId::from_number(holder);
            self.exchange
                .lanes
                .ask_to_give_way(holder, replaces_oldest, id);
        }
        true
    }

    /// Tries again for a session that waits for a place. Returns whether the session is open now.
    pub(crate) fn take_place(&mut self, id: SessionId) -> bool {
        let Some(slot) = self.sessions.table.slot_of(id) else {
            return false;
        };
        let attached = self.sessions[slot].profile.attached.as_ref();
        let Some(identity) = attached.and_then(|it| it.newcomer()) else {
            return false;
        };
        // The users may have changed since.
        let outcome = self.guard.and_then(|it| it.current(identity));
        let revoked = AuthOutcome::Refused(AuthFailure::Revoked);
        let outcome = outcome.map_or(revoked, AuthOutcome::Admitted);
        self.resolve_authentication(id, outcome, None)
    }

    /// Refuses a session that has waited long enough for a place.
    pub(crate) fn end_place(&mut self, id: SessionId) {
        let Some(slot) = self.sessions.table.slot_of(id) else {
            return;
        };
        if self.end_wait_for_place(slot) {
            self.refuse_peer(slot, AuthFailure::TooManySessions, None);
            self.sessions.arm_timer(slot);
        }
    }

    /// Ends the wait of a session that has a place now, or that ends. Returns whether it waited.
    pub(super) fn end_wait_for_place(&mut self, slot: usize) -> bool {
        let session = &mut self.sessions[slot];
        let attached = session.profile.attached.as_mut();
        let newcomer = attached.and_then(|it| it.end_wait_for_place());
        let (Some(identity), Some(guard)) = (newcomer, self.guard) else {
            return false;
        };
        guard
            .sessions()
            .forget_newcomer(&identity, session.id.number());
        true
    }

    /// Notes that a session which was asked to give way is still in use. Once all of them are, the newcomer is refused.
    /// Returns whether `id` waits for a place.
    pub(crate) fn note_still_there(&mut self, id: SessionId) -> bool {
        let session = self.sessions.table.find_mut(id);
        let attached = session.and_then(|it| it.profile.attached.as_mut());
        let Some(unanswered) = attached.and_then(|it| it.note_refused_place()) else {
            return false;
        };
        if unanswered == 0 {
            self.end_place(id);
        }
        true
    }
}

impl PlaceQuestions {
    /// Ends a session of this lane so that `asker` has its place or its name, or pings its peer to find out whether it
    /// is still there.
    pub(crate) fn give_way(
        &mut self,
        sessions: &mut LaneSessions,
        lanes: &Lanes,
        id: SessionId,
        replaces_oldest: bool,
        asker: SessionId,
    ) {
        // A session that has ended has left its place.
        let Some(slot) = sessions.table.slot_of(id) else {
            return;
        };
        if replaces_oldest {
            // A peer that is gone takes no output, so its session does not wait for that.
            let reason = CloseReason::Replaced { was_silent: false };
            return sessions.table.close(slot, reason);
        }
        let LaneSessions { table, config, .. } = &mut *sessions;
        let rules = config.codecs.rules(table[slot].codec_number());
        let asks = table.change(slot, |connection| match connection.may_read() {
            true => connection.ask_now(rules),
            false => Overdue::Nothing,
        });
        if asks == Overdue::Nothing {
            return lanes.tell_still_there(asker);
        }
        let now_ns = sessions.timers.now_ns();
        let asked = self.0.entry(id);
        let is_new = matches!(asked, Entry::Vacant(_));
        let question = asked.or_insert_with(|| Question {
            since_ns: now_ns,
            askers: Vec::new(),
        });
        question.askers.push(asker);
        if is_new {
            match asks {
                Overdue::LayerPing => sessions.ping_layer(slot),
                _ => sessions.transmit(slot),
            }
            plan_look(sessions, id);
        }
    }

    /// Looks whether the peer of a session has answered. Ends the session if it had its time.
    pub(crate) fn look_for_answer(
        &mut self,
        sessions: &mut LaneSessions,
        lanes: &Lanes,
        id: SessionId,
    ) {
        let Some(question) = self.0.get(&id) else {
            return;
        };
        let (since_ns, now_ns) = (question.since_ns, sessions.timers.now_ns());
        let passed_ns = now_ns.saturating_sub(since_ns);
        let slot = sessions.table.slot_of(id);
        let is_silent =
            slot.map(|slot| sessions[slot].connection.is_unheard_for(now_ns, passed_ns));
        match (slot, is_silent) {
            (Some(_), Some(true)) if passed_ns < ANSWER_NS => return plan_look(sessions, id),
            (Some(slot), Some(true)) => {
                let reason = CloseReason::Replaced { was_silent: true };
                sessions.table.close(slot, reason);
            }
            (Some(_), _) => {
                for asker in &question.askers {
                    lanes.tell_still_there(*asker);
                }
            }
            _ => {}
        }
        self.0.remove(&id);
    }
}

fn plan_look(sessions: &mut LaneSessions, id: SessionId) {
    let timers = &mut sessions.timers;
    timers.set_after(LOOK_NS, TimerKey::GiveWay(id));
}

const MILLISECOND_NS: u64 = 1_000_000;

/// The time in which a peer answers the ping that asks whether it is still there. It is above the round trip of any
/// network.
const ANSWER_NS: u64 = 1_700 * MILLISECOND_NS;

/// How often a lane looks whether a peer that was asked has answered, so that a newcomer is refused soon.
const LOOK_NS: u64 = 100 * MILLISECOND_NS;

/// The time that a newcomer waits: the answer, and the ways to the other lane and back. A place gets free within two
/// seconds.
const WAIT_NS: u64 = 2_000 * MILLISECOND_NS;
