//! Letting a session into a room or topic, for the services [`Chat`](crate::Chat) and [`PubSub`](crate::PubSub): its history, what
//! must be awaited before, and the rooms that it is in.

use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::body::{ErrorCode, RecoveryBody, Since};
use tidewire_proto::codec::Codec;
use tidewire_proto::message::Message;

use super::{Context, HandlerError, HandlerResult};
use crate::broker::RoomOrTopic;
use crate::history::{History, PastMessage, Readiness};
use crate::room::{Joined, RoomError};
use crate::session::SessionId;

impl Context<'_> {
    /// Takes the session of this call out of a room. The chat has already called its hook.
    pub(super) fn leave_room(&mut self, room: u16) -> Result<(), RoomError> {
        self.core.rooms().leave(self.id, room)
    }

    /// Whether this session is in a room.
    pub(super) fn has_room(&self) -> bool {
        let session = self.core.sessions.table.find(self.id);
        session.is_some_and(|it| it.memberships.iter().any(|room| !room.is_topic))
    }

    /// Returns a room that this session is in.
    pub(super) fn first_room(&mut self) -> Option<u16> {
        let id = self.id;
        self.core.rooms().rooms_of(id).next()
    }

    /// Returns the aliases of the rooms that this session is in.
    pub(super) fn rooms_of(&mut self) -> Vec<u16> {
        let id = self.id;
        self.core.rooms().rooms_of(id).collect()
    }

    /// Opens the history of the room that the session has just joined, and says what the session gets of it. The room keeps
    /// a history from now on. Call [`Self::push_history`] after the reply.
    pub(super) fn open_history(
        &mut self,
        joined: &Joined,
        history: History,
        since: Option<Since>,
        past: impl FnOnce(&str) -> Vec<PastMessage>,
    ) -> Option<RecoveryBody> {
        let mut rooms = self.core.rooms();
        rooms
            .histories()
            .open_room(self.id, joined, history, since, past)
    }

    /// Waits until the room or topic can be entered, which needs its history, or the node's subscription. `None` if the service gets
    /// the message again later.
    pub(super) fn await_entrance(
        &mut self,
        (kind, name): (SequenceKind, &str),
        limits: Option<History>,
        message: &Message<'_>,
    ) -> Result<Option<Readiness>, HandlerError> {
        let of = RoomOrTopic::new(kind, name);
        let mut rooms = self.core.rooms();
        match rooms.joins().readiness(self.id, &of, limits, message) {
            Readiness::Waits => {
                self.stopped = true;
                Ok(None)
            }
            Readiness::Failed(text) => {
                Err(HandlerError::new(ErrorCode::LimitReached, text.to_string()))
            }
            ready => Ok(Some(ready)),
        }
    }

    /// Queues the history of the room or topic that the session has just entered, and the roster of a room.
    pub(super) fn push_history(&mut self, alias: u16) {
        self.core.rooms().histories().begin_replay(self.id, alias);
        self.handle_appended();
    }

    /// Plans what the new subscriber gets of the history of its topic. Call [`Self::push_history`] after the reply.
    pub(super) fn open_topic_history(
        &mut self,
        subscription: u16,
        since: Option<Since>,
    ) -> Option<RecoveryBody> {
        let mut rooms = self.core.rooms();
        rooms.histories().open_topic(self.id, subscription, since)
    }

    /// Whether the peer of a session knows positions.
    pub(crate) fn peer_knows_positions(&self, id: SessionId) -> bool {
        let session = self.core.sessions.table.find(id);
        session.is_some_and(|session| session.connection.handshake().knows_positions())
    }

    /// Refuses to let a session that does not know positions into a room or topic that keeps a history.
    pub(super) fn check_positions(&mut self) -> HandlerResult {
        match !self.codec().format().has_positions || self.peer_knows_positions(self.id) {
            true => Ok(()),
            false => Err(HandlerError::new(
                ErrorCode::Unsupported,
                "a history is kept here; connect with a client that has the feature positions",
            )),
        }
    }
}
