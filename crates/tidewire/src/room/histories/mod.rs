//! The histories of rooms and topics, as a lane uses them: recording what is sent, and replaying it to newcomers.

mod expiring;
mod newest;
mod recording;
mod replay;

use std::sync::Arc;

use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::body::{Recovery, RecoveryBody, Since};
use tidewire_proto::topic::validate_topic;

pub(super) use recording::Recording;

use super::deliveries::{LaneDeliveries, OpenRooms};
use super::members::Joined;
use crate::broker::{Position, RoomOrTopic};
use crate::history::{History, HistoryPattern, PastMessage, TopicHistory};
use crate::mailbox::Exchange;
use crate::session::{LaneSessions, Session, SessionId};

/// The histories of the rooms and topics of a lane. See the module.
#[derive(Debug)]
pub(crate) struct LaneHistories<'a> {
    open: &'a mut OpenRooms,
    sessions: &'a mut LaneSessions,
    exchange: &'a mut Exchange,
}

impl<'a> LaneHistories<'a> {
    #[inline(always)]
    pub(super) fn new(
        open: &'a mut OpenRooms,
        sessions: &'a mut LaneSessions,
        exchange: &'a mut Exchange,
    ) -> Self {
        Self {
            open,
            sessions,
            exchange,
        }
    }

    #[inline(always)]
    fn deliveries(&mut self) -> LaneDeliveries<'_> {
        LaneDeliveries::new(self.open, self.sessions, self.exchange)
    }

    /// Sets which topics of the server keep a history. All lanes set the same.
    pub(crate) fn keep_topics(&mut self, patterns: Vec<HistoryPattern>) {
        for pattern in &patterns {
            self.plan_expiry(pattern.limits());
        }
        let histories = self.open.directory().histories();
        match histories.numbering() {
            _ if patterns.is_empty() => {}
            Some(_) => histories.keep_topics(patterns),
            None => histories.warn_of_none(),
        }
    }

    /// Opens the history of a room that a session has just joined, and plans what the session gets of the history. The
    /// room keeps a history from now on. A new history starts with the messages that `past` returns for the room's
    /// name.
    pub(crate) fn open_room(
        &mut self,
        id: SessionId,
        joined: &Joined,
        limits: History,
        since: Option<Since>,
        past: impl FnOnce(&str) -> Vec<PastMessage>,
    ) -> Option<RecoveryBody> {
        let directory = Arc::clone(self.open.directory());
        let shared = directory.by_alias(joined.room.0)?;
        let name = &**shared.name();
        let of = RoomOrTopic::new(SequenceKind::Room, name);
        if let Some(of_node) = directory.histories().of_node(&of) {
            shared.keep(|| of_node);
            return self.plan_replay(id, joined.room.0, since);
        }
        if directory.link().is_some() {
            directory.histories().warn_of_none();
            return since.map(|_| UNKNOWN);
        }
        self.plan_expiry(&limits);
        let now_ns = self.sessions.timers.now_ns();
        let owner = self.sessions.table.find(id).and_then(Session::owner);
        // Other lanes wait here meanwhile, so no message can be recorded before the earlier ones are complete.
        shared.keep(|| {
            let history = directory.histories().open_room(name, limits, || owner);
            history.begin_with(&past(name), now_ns);
            history
        });
        self.plan_replay(id, joined.room.0, since)
    }

    /// Plans what a new subscriber gets of the history of its topic. `None` if the topic keeps none. A subscriber of a
    /// wildcard may get the newest messages of each topic instead.
    pub(crate) fn open_topic(
        &mut self,
        id: SessionId,
        alias: u16,
        since: Option<Since>,
        gets_newest: bool,
    ) -> Option<RecoveryBody> {
        let directory = Arc::clone(self.open.directory());
        let shared = Arc::clone(self.open.shared(alias)?);
        let topic = &**shared.name();
        if shared.is_in_group() {
            // Its members share the live messages.
            return None;
        }
        if shared.is_wildcard() {
            let is_asked = since.is_some() && directory.histories().keeps_topics();
            return is_asked.then_some(match gets_newest {
                true => NO_POSITION,
                false => UNKNOWN,
            });
        }
        let owner = || self.sessions.table.find(id).and_then(Session::owner);
        let history = match directory.histories().topic(topic, owner)? {
            TopicHistory::Here(history) => history,
            TopicHistory::OfCarrier => {
                let of = RoomOrTopic::new(SequenceKind::Topic, topic);
                directory.histories().of_node(&of)?
            }
        };
        shared.keep(|| history);
        self.plan_replay(id, alias, since)
    }

    /// The limits of the history of a topic. `None` for a pattern, and if the topic keeps none.
    pub(crate) fn limits_of(&self, id: SessionId, pattern: &str) -> Option<History> {
        let histories = self.open.directory().histories();
        validate_topic(pattern).ok()?;
        histories.topic(pattern, || {
            self.sessions.table.find(id).and_then(Session::owner)
        })?;
        histories.topic_limits(pattern)
    }
}

/// The recovery of a pattern with a wildcard, which has no positions, if the newest messages follow.
const NO_POSITION: RecoveryBody = RecoveryBody {
    position: Position {
        epoch: 0,
        offset: 0,
    },
    recovery: Recovery::NotAsked,
};

/// The same if they do not follow.
const UNKNOWN: RecoveryBody = RecoveryBody {
    recovery: Recovery::Missing(None),
    ..NO_POSITION
};
