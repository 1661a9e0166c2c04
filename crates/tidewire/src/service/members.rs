//! Actions of a handler on the members of rooms: announce as the room, remove a member, close a member's session.

use std::sync::Arc;

use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::body::{ErrorCode, GoAwayCode, RecoveryBody, Since};
use tidewire_proto::message::Message;

use super::{Context, HandlerError, HandlerResult};
use crate::broker::RoomOrTopic;
use crate::history::{History, PastMessage, Readiness};
use crate::room::{Joined, RoomError};
use crate::session::SessionId;

impl Context<'_> {
    /// Sends a chat message, as [`Context::say`] does. The room's [history](crate::Chat::history) keeps it, if the
    /// room has one.
    ///
    /// # Errors
    /// The errors of [`Context::say`].
    pub fn say_recorded(&mut self, room: u16, payload: &[u8]) -> Result<(), RoomError> {
        self.note_published();
        if self.core.rooms().say_recorded(self.id, room, payload)? {
            // As after [`Context::say`], the room blocks for a slow subscriber.
            self.stopped = true;
        }
        Ok(())
    }

    /// Sends `payload` to all members of the room of this name, on all lanes, as the room itself. The call needs no
    /// session and no membership. The room's history keeps the message, if the room has one.
    ///
    /// Members get it as [`Kind::Deliver`](crate::Kind::Deliver) of member 0. Over `lines` it is a notice: `* closing
    /// soon`.
    ///
    /// # Errors
    /// [`RoomError::NoSuchRoom`] if the room has no members, [`RoomError::Encode`] if the codec cannot express the message, and
    /// [`RoomError::OutOfMemory`] if the server is at its memory limit.
    pub fn announce(&mut self, room: &str, payload: &[u8]) -> Result<(), RoomError> {
        self.note_published();
        self.core.rooms().announce(room, payload)
    }

    /// Removes the member `name` from the room, on any lane. Its session stays open and may join again;
    /// [`Context::close_member`] closes it. The member gets the same presence frame as the others. Over `lines` it
    /// cannot come back. This calls the hook of [`Chat::on_leave`](crate::Chat::on_leave).
    ///
    /// # Errors
    /// [`RoomError::NoSuchMember`] if no member of that room has the name. If the member leaves by itself at this
    /// moment, the result is `Ok`.
    pub fn remove_member(&mut self, room: &str, name: &str) -> Result<(), RoomError> {
        self.note_published();
        self.core.rooms().remove_member(room, name)
    }

    /// Closes the session of the member `name`, on any lane, and sends it the reason, as [`Context::close_with`]
    /// does. After a code that [is final](GoAwayCode::is_final) its client does not reconnect. The name is then free
    /// for any session; a chat that must control its members checks them in [`Chat::on_join`](crate::Chat::on_join).
    ///
    /// # Errors
    /// [`RoomError::NoSuchMember`] if no member has that name.
    pub fn close_member(
        &mut self,
        name: &str,
        code: GoAwayCode,
        text: &str,
    ) -> Result<(), RoomError> {
        let id = self.core.rooms().session_of(name);
        let id = id.ok_or(RoomError::NoSuchMember)?;
        if id.lane() == self.lane() {
            self.close_session_with(id, code, text);
            return Ok(());
        }
        let closed = self.sessions().close_with(id, code, text);
        closed.map_err(|_| RoomError::NoSuchMember)
    }

    /// Returns this session's name as a member of rooms, which it got with its first join.
    #[must_use]
    pub fn member_name(&mut self) -> Option<Arc<str>> {
        self.core.rooms().member_name(self.id)
    }

    /// Returns the name of the room with this alias, if the room has members.
    #[must_use]
    pub fn room_name(&mut self, room: u16) -> Option<Box<str>> {
        self.core.rooms().name_of(room)
    }

    /// Whether this session is in the room with this alias.
    #[must_use]
    pub fn is_in_room(&self, room: u16) -> bool {
        let session = self.core.sessions.find(self.id);
        session.is_some_and(|session| session.room_membership(room).is_some())
    }

    /// Takes the session of this call out of a room. The chat has already called its hook.
    pub(super) fn leave_room(&mut self, room: u16) -> Result<(), RoomError> {
        self.core.rooms().leave(self.id, room)
    }

    /// Whether this session is in a room.
    pub(super) fn has_room(&self) -> bool {
        let session = self.core.sessions.find(self.id);
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
    /// a history from now on. Call [`Self::push_history`] behind the reply.
    pub(super) fn open_history(
        &mut self,
        joined: &Joined,
        history: History,
        since: Option<Since>,
        past: impl FnOnce(&str) -> Vec<PastMessage>,
    ) -> Option<RecoveryBody> {
        let mut rooms = self.core.rooms();
        rooms.open_history(self.id, joined, history, since, past)
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
        match self.core.rooms().readiness(self.id, &of, limits, message) {
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
        self.core.rooms().begin_replay(self.id, alias);
        self.handle_appended();
    }

    /// Whether the peer of a session knows positions.
    pub(crate) fn peer_knows_positions(&self, id: SessionId) -> bool {
        let session = self.core.sessions.find(id);
        session.is_some_and(|session| session.connection.knows_positions())
    }

    /// Refuses to let a session that does not know positions into a room or topic that keeps a history.
    pub(super) fn check_positions(&mut self) -> HandlerResult {
        match self.core.rooms().knows_positions(self.id) {
            true => Ok(()),
            false => Err(HandlerError::new(
                ErrorCode::Unsupported,
                "a history is kept here; connect with a client that has the feature positions",
            )),
        }
    }
}
