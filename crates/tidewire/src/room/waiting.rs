//! Joins and subscriptions that wait.
//!
//! Some wait for the node: until it has the history of their room or topic, see [`history`](crate::history), or until
//! it gets what other nodes send, see [`directory`](super::directory). Others wait for a taken name, while the lane of
//! the session that has the name finds out whether the peer of that session is still there.
//!
//! The reply has a position and the number of missing messages, so the history must be here before the reply. The
//! session is not read meanwhile, and the lane gives the same message to the service again when the node has answered.
//! Rejected: a reply with a position that is corrected later, because a cut between the two would lose or repeat the
//! number of missing messages.

use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::connection::PauseReason;
use tidewire_proto::message::{Kind, Message};

use super::directory::Directory;
use crate::broker::RoomOrTopic;
use crate::history::{History, Readiness};
use crate::mailbox::Exchange;
use crate::session::{LaneSessions, SessionId, TimerKey};

/// The joins and subscriptions of a lane that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingJoins {
    joins: Vec<WaitingJoin>,
    /// Joins whose name is taken.
    for_names: Vec<WaitingName>,
    /// Whether the service gets a join again now.
    is_repeating: bool,
    /// The answers of the node that the lane has seen.
    answers: u64,
}

/// A message that the service handles again later.
#[derive(Debug)]
pub(crate) struct WaitingJoin {
    id: SessionId,
    of: RoomOrTopic,
    kind: Kind,
    flags: u8,
    channel: u16,
    request: u32,
    name: Box<str>,
    payload: Box<[u8]>,
}

/// A join whose name another session has.
#[derive(Debug)]
struct WaitingName {
    join: WaitingJoin,
    name: Box<str>,
    holder: SessionId,
    until_ns: u64,
}

impl WaitingJoin {
    fn new(id: SessionId, of: RoomOrTopic, message: &Message<'_>) -> Self {
        Self {
            id,
            of,
            kind: message.kind,
            flags: message.flags,
            channel: message.channel,
            request: message.id,
            name: message.name.into(),
            payload: message.payload.into(),
        }
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn message(&self) -> Message<'_> {
        Message {
            kind: self.kind,
            flags: self.flags,
            channel: self.channel,
            id: self.request,
            name: &self.name,
            payload: &self.payload,
        }
    }
}

/// The joins and subscriptions of a lane that wait, with the parts of the lane that they use.
#[derive(Debug)]
pub(crate) struct Joins<'a> {
    waiting: &'a mut WaitingJoins,
    directory: &'a Directory,
    sessions: &'a mut LaneSessions,
    exchange: &'a Exchange,
}

impl WaitingJoins {
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        !self.joins.is_empty() || !self.for_names.is_empty()
    }

    /// Whether the service gets a message again that had to wait.
    pub(super) fn is_repeating(&self) -> bool {
        self.is_repeating
    }
}

impl<'a> Joins<'a> {
    pub(super) fn new(
        waiting: &'a mut WaitingJoins,
        directory: &'a Directory,
        sessions: &'a mut LaneSessions,
        exchange: &'a Exchange,
    ) -> Self {
        Self {
            waiting,
            directory,
            sessions,
            exchange,
        }
    }

    /// Whether a room or topic can be entered now. If the join must wait, the session is not read until the lane has
    /// given the message to the service again.
    pub(crate) fn readiness(
        &mut self,
        id: SessionId,
        of: &RoomOrTopic,
        limits: Option<History>,
        message: &Message<'_>,
    ) -> Readiness {
        // The number of answers is read before the node is asked, so that no answer is missed.
        let answers = self.directory.histories().answers();
        let repeats = self.waiting.is_repeating;
        let readiness = self.directory.readiness(of, limits, repeats);
        if matches!(readiness, Readiness::Waits)
            && let Some(slot) = self.sessions.table.slot_of(id)
        {
            let waiting = &mut *self.waiting;
            if waiting.joins.is_empty() {
                waiting.answers = answers;
            }
            let join = WaitingJoin::new(id, of.clone(), message);
            waiting.joins.push(join);
            self.sessions.pause_reading(slot, PauseReason::Room);
        }
        readiness
    }

    /// Whether a join must wait, because a session that may give way has its name. The service gets the join again when
    /// the name is free, or when the session has had time to answer.
    pub(crate) fn await_name(&mut self, id: SessionId, name: &str, message: &Message<'_>) -> bool {
        let Some(slot) = self
            .sessions
            .table
            .slot_of(id)
            .filter(|_| !self.waiting.is_repeating)
        else {
            return false;
        };
        let profile = &self.sessions[slot].profile;
        let identity = profile.admitted.as_ref().map(|it| it.identity());
        let own = identity
            .and_then(|it| it.chat_name())
            .filter(|_| name.is_empty());
        let name = own.unwrap_or(name);
        let holder = self.directory.names().find(name);
        let Some(holder) = holder.filter(|_| profile.member.is_none()) else {
            return false;
        };
        let is_own = identity.is_some_and(|it| it.chat_name() == Some(name));
        let known = identity.filter(|_| is_own);
        let replaces_oldest = known.is_some_and(|it| it.own_limits().replaces_oldest);
        let waiting = &mut self.waiting.for_names;
        if waiting.len() >= NAMES_MAX {
            return false;
        }
        let (name, of) = (Box::from(name), RoomOrTopic::new(SequenceKind::Room, ""));
        if waiting.is_empty() {
            self.sessions
                .timers
                .set_after(NAMES_CHECK_NS, TimerKey::Names);
        }
        waiting.push(WaitingName {
            join: WaitingJoin::new(id, of, message),
            name,
            holder,
            until_ns: self.sessions.timers.now_ns().saturating_add(NAME_WAIT_NS),
        });
        self.exchange
            .lanes
            .ask_to_give_way(holder, replaces_oldest, id);
        self.sessions.pause_reading(slot, PauseReason::Room);
        true
    }

    /// Ends the wait of a session for a taken name. The service gets its join again in this turn or the next.
    pub(crate) fn end_wait_for_name(&mut self, id: SessionId) {
        let mut waiting = self.waiting.for_names.iter_mut();
        if let Some(found) = waiting.find(|it| it.join.id == id) {
            found.until_ns = 0;
        }
    }

    /// Wakes the lane again while joins wait for names. Each turn looks whether the names are free.
    pub(crate) fn look_for_names(&mut self) {
        if !self.waiting.for_names.is_empty() {
            self.sessions
                .timers
                .set_after(NAMES_CHECK_NS, TimerKey::Names);
        }
    }

    /// Notes that the service gets a message again that had to wait, or that it has handled the message.
    pub(crate) fn set_repeating(&mut self, is_repeating: bool) {
        self.waiting.is_repeating = is_repeating;
    }

    /// Drops the joins of a session that ends.
    pub(super) fn forget(&mut self, slot: usize) {
        // Only a session that is not read has joins that wait. Any other session must not pay for the joins of all.
        let connection = &self.sessions[slot].connection;
        if self.waiting.has_any() && connection.input().is_paused_by(PauseReason::Room) {
            let id = self.sessions[slot].id;
            let waiting = &mut *self.waiting;
            waiting.joins.retain(|join| join.id != id);
            waiting.for_names.retain(|it| it.join.id != id);
        }
    }

    /// Takes the joins that need not wait any more, and reads their sessions again.
    #[cold]
    pub(crate) fn take_ready(&mut self) -> Vec<WaitingJoin> {
        let (directory, waiting) = (self.directory, &mut *self.waiting);
        let now_ns = self.sessions.timers.now_ns();
        let is_free = |it: &mut WaitingName| {
            it.until_ns <= now_ns || directory.names().find(&it.name) != Some(it.holder)
        };
        let free = waiting.for_names.extract_if(.., is_free);
        let mut ready: Vec<WaitingJoin> = free.map(|it| it.join).collect();
        let answers = directory.histories().answers();
        if std::mem::replace(&mut waiting.answers, answers) != answers {
            let is_ready = |join: &mut WaitingJoin| !directory.awaits(&join.of);
            ready.extend(waiting.joins.extract_if(.., is_ready));
        }
        for join in &ready {
            if let Some(slot) = self.sessions.table.slot_of(join.id) {
                self.sessions.resume_reading(slot, PauseReason::Room);
            }
        }
        ready
    }
}

/// The time that a join waits for a taken name: a little longer than the time in which the session with the name must
/// answer.
const NAME_WAIT_NS: u64 = 1_900_000_000;

/// How often a lane looks whether names are free that joins wait for.
const NAMES_CHECK_NS: u64 = 50_000_000;

/// Joins of a lane that wait for names. Each looks into the table of names once a turn.
const NAMES_MAX: usize = 64;
