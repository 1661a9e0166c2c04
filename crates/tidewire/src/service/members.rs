//! What a handler can do with the members of rooms: say things as the room, remove somebody, close somebody's session.

use std::sync::Arc;

use tidewire_proto::body::GoAwayCode;

use super::Context;
use crate::room::{History, Joined, PastMessage, RoomError};

impl Context<'_> {
    /// As [`Context::say`], and the room's [history](crate::Chat::history) keeps the message, if the room has one.
    ///
    /// # Errors
    /// As [`Context::say`].
    pub fn say_recorded(&mut self, room: u16, payload: &[u8]) -> Result<(), RoomError> {
        if self.core.rooms().say_recorded(self.id, room, payload)? {
            // As after a plain one: the room blocks for a slow subscriber.
            self.stopped = true;
        }
        Ok(())
    }

    /// Says `payload` to all members of the room of this name, on all lanes, as the room itself. It needs no session, and no
    /// membership either. The room's history keeps it, if the room has one.
    ///
    /// Members get it as [`Kind::Deliver`](crate::Kind::Deliver) of member 0, over `lines` as a notice: `* closing soon`.
    ///
    /// # Errors
    /// [`RoomError::NoSuchRoom`] if the room has no members, [`RoomError::Encode`] if the codec cannot express the message, and
    /// [`RoomError::OutOfMemory`] if the server is at its memory limit.
    pub fn announce(&mut self, room: &str, payload: &[u8]) -> Result<(), RoomError> {
        self.core.rooms().announce(room, payload)
    }

    /// Takes the member of this name out of the room of that name, on whatever lane it is. Its session stays open and may join
    /// again; [`Context::close_member`] ends it. The member is told as the others are, by the presence of its own leaving.
    /// Over `lines` it cannot come back. The hook of [`Chat::on_leave`](crate::Chat::on_leave) is told.
    ///
    /// # Errors
    /// [`RoomError::NoSuchMember`] if no member of that room has the name. If the member leaves at this moment by itself, it is
    /// `Ok`.
    pub fn remove_member(&mut self, room: &str, name: &str) -> Result<(), RoomError> {
        self.core.rooms().remove_member(room, name)
    }

    /// Closes the session of the member of this name, on whatever lane it is, and tells it why, as
    /// [`Context::close_with`] does. With a code that [is final](GoAwayCode::is_final) its client stays away. The name is
    /// free then for whoever comes: a chat that must know who comes asks in [`Chat::on_join`](crate::Chat::on_join).
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

    /// The name of this session as a member of rooms, from the first one that it joined.
    #[must_use]
    pub fn member_name(&mut self) -> Option<Arc<str>> {
        self.core.rooms().member_name(self.id)
    }

    /// The name of a room that has members, by its alias.
    #[must_use]
    pub fn room_name(&mut self, room: u16) -> Option<Box<str>> {
        self.core.rooms().name_of(room)
    }

    /// Whether this session is in the room of this alias.
    #[must_use]
    pub fn is_in_room(&self, room: u16) -> bool {
        let session = self.core.sessions.find(self.id);
        session.is_some_and(|session| session.room_membership(room).is_some())
    }

    /// The session that this call is about leaves a room, which its chat knows.
    pub(super) fn leave_room(&mut self, room: u16) -> Result<(), RoomError> {
        self.core.rooms().leave(self.id, room)
    }

    /// A room that this session is in.
    pub(super) fn first_room(&mut self) -> Option<u16> {
        let id = self.id;
        self.core.rooms().rooms_of(id).next()
    }

    /// The rooms that this session is in, by alias.
    pub(super) fn rooms_of(&mut self) -> Vec<u16> {
        let id = self.id;
        self.core.rooms().rooms_of(id).collect()
    }

    /// Queues, for the session that just joined, what was said in the room before, and has the room keep it from now on.
    pub(super) fn push_history(
        &mut self,
        joined: &Joined,
        history: History,
        past: impl FnOnce(&str) -> Vec<PastMessage>,
    ) {
        let mut rooms = self.core.rooms();
        rooms.tell_history(self.id, joined, history, past);
        self.handle_appended();
    }
}
