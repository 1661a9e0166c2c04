//! Joins and subscriptions that wait for the node: until it has the history of their room or topic, see [`feed`](super::feed), or
//! until it gets what other nodes send, see [`opening`](super::opening).
//!
//! The reply has a position and the number of missing messages, so the history must be here before it. The session is
//! not read meanwhile, and the lane gives the same message to the service again when the node has answered. Rejected: a reply
//! with a position that is corrected later, because a cut between the two would lose or repeat the number of missing messages.

use tidewire_proto::connection::PauseReason;
use tidewire_proto::message::{Kind, Message};

use super::feed::Readiness;
use super::history::History;
use super::rooms::LaneRooms;
use crate::broker::KeptName;
use crate::session::SessionId;

/// The joins and subscriptions of a lane that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingJoins {
    joins: Vec<WaitingJoin>,
    /// Whether the service has got one of them again.
    pub(super) is_repeating: bool,
    /// The answers of the node that the lane has seen.
    answers: u64,
}

/// A message that the service handles again later.
#[derive(Debug)]
pub(crate) struct WaitingJoin {
    pub(crate) id: SessionId,
    of: KeptName,
    kind: Kind,
    flags: u8,
    channel: u16,
    request: u32,
    name: Box<str>,
    payload: Box<[u8]>,
}

impl WaitingJoin {
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

impl LaneRooms<'_> {
    /// Whether a room or topic can be entered now. If it must wait, the session is not read until the lane has given the message to
    /// the service again.
    pub(crate) fn readiness(
        &mut self,
        id: SessionId,
        of: &KeptName,
        limits: Option<History>,
        message: &Message<'_>,
    ) -> Readiness {
        // The number of answers is read before the node is asked, so that no answer is missed.
        let answers = self.table.directory.node_answers();
        let readiness = self
            .table
            .directory
            .readiness(of, limits, self.is_repeating());
        if matches!(readiness, Readiness::Waits)
            && let Some(slot) = self.sessions.slot_of(id)
        {
            let waiting = &mut self.table.waiting;
            if waiting.joins.is_empty() {
                waiting.answers = answers;
            }
            waiting.joins.push(WaitingJoin {
                id,
                of: of.clone(),
                kind: message.kind,
                flags: message.flags,
                channel: message.channel,
                request: message.id,
                name: message.name.into(),
                payload: message.payload.into(),
            });
            self.sessions.pause_reading(slot, PauseReason::Room);
        }
        readiness
    }

    /// Notes that the service gets a message again that had to wait, or that it has handled it.
    pub(crate) fn set_repeating(&mut self, is_repeating: bool) {
        self.table.waiting.is_repeating = is_repeating;
    }

    /// Whether the service gets a message again that had to wait.
    pub(crate) fn is_repeating(&self) -> bool {
        self.table.waiting.is_repeating
    }

    /// Drops the joins of a session that ends.
    pub(super) fn forget_waiting(&mut self, slot: usize) {
        // Only a session that is not read has joins that wait. Any other one must not pay for the joins of all.
        let connection = &self.sessions[slot].connection;
        if self.table.has_waiting() && connection.is_paused_by(PauseReason::Room) {
            let id = self.sessions[slot].id;
            self.table.waiting.joins.retain(|join| join.id != id);
        }
    }

    /// Takes the joins that need not wait any more, and reads their sessions again.
    #[cold]
    pub(crate) fn take_ready(&mut self) -> Vec<WaitingJoin> {
        let directory = &self.table.directory;
        let waiting = &mut self.table.waiting;
        let answers = directory.node_answers();
        if std::mem::replace(&mut waiting.answers, answers) == answers {
            return Vec::new();
        }
        let is_ready = |join: &mut WaitingJoin| !directory.awaits(&join.of);
        let ready: Vec<WaitingJoin> = waiting.joins.extract_if(.., is_ready).collect();
        for join in &ready {
            if let Some(slot) = self.sessions.slot_of(join.id) {
                self.sessions.resume_reading(slot, PauseReason::Room);
            }
        }
        ready
    }
}

impl super::rooms::RoomTable {
    /// Whether joins wait.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.joins.is_empty()
    }
}
