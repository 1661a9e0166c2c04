//! Members of rooms for services: the rooms of a session, the names of members, and removals.

use std::collections::VecDeque;
use std::sync::Arc;

use tidewire_proto::codec::{AnyCodec, Codec, Presence};
use tidewire_proto::message::PresenceEvent;

use crate::mailbox::BatchEntry;
use crate::observe::DropReason;
use crate::room::{FRAME_OVERHEAD_BYTES_MAX, LaneRooms, RoomError};
use crate::session::{SessionId, append_with_header};

/// Members that handlers removed; `None` until a chat with a hook asks for them.
#[derive(Debug, Default)]
pub(in crate::room) struct Departures(Option<VecDeque<Departure>>);

/// A member of this lane that a handler has removed from a room.
#[derive(Debug)]
pub(crate) struct Departure {
    id: SessionId,
    room: Box<str>,
    name: Arc<str>,
}

impl Departure {
    /// Calls `hook` with the session, the room and the name of the member.
    pub(crate) fn tell(&self, hook: impl FnOnce(SessionId, &str, &str)) {
        hook(self.id, &self.room, &self.name);
    }
}

impl LaneRooms<'_> {
    pub(crate) fn name_of(&self, alias: u16) -> Option<Box<str>> {
        self.table.open.directory().name_of(alias)
    }

    /// Checks that a session of this lane is in a room.
    pub(super) fn check_member(&self, id: SessionId, alias: u16) -> Result<(), RoomError> {
        let session = self.sessions.table.find(id);
        let membership = session.and_then(|session| session.room_membership(alias));
        membership.map(|_| ()).ok_or(RoomError::NotJoined)
    }

    /// Removes a member from a room, on any lane.
    pub(crate) fn remove_member(&mut self, room: &str, name: &str) -> Result<(), RoomError> {
        let found = self.table.open.directory().member_of(room, name);
        let (id, alias) = found.ok_or(RoomError::NoSuchMember)?;
        if id.lane() == self.exchange.lane() {
            self.remove(id, alias);
        } else {
            let entry = BatchEntry::Remove { id, alias };
            self.exchange.batch(id.lane(), &entry);
        }
        Ok(())
    }

    /// Removes a session of this lane from a room, and sends it the presence frame of its own leave.
    pub(in crate::room) fn remove(&mut self, id: SessionId, alias: u16) {
        let Some(slot) = self.sessions.table.slot_of(id) else {
            return;
        };
        let Some(index) = self.sessions[slot].room_membership(alias) else {
            return;
        };
        self.note_departure(id, alias);
        let session = &self.sessions[slot];
        let subscription = session.memberships[index].subscription();
        if let Some(member) = session.profile.member.clone() {
            let left = Presence {
                channel: alias,
                member: member.id(),
                name: member.name(),
                event: PresenceEvent::Left,
            };
            let encode = |codec: &AnyCodec, out: &mut Vec<u8>| {
                append_with_header(codec, subscription, out, |out| {
                    codec.encode_presence(&left, out)
                })
            };
            let sent = self.exchange.send_to(self.sessions, id, encode);
            if let Err(error) = sent {
                tracing::debug!(session = %id, %error, "a member was not sent its removal");
            }
        }
        self.detach(slot, index, DropReason::Left);
    }

    /// Removes a session from a room on behalf of a handler, and notes the departure for the chat's hook.
    pub(crate) fn leave_noted(&mut self, id: SessionId, alias: u16) -> Result<(), RoomError> {
        self.note_departure(id, alias);
        self.leave(id, alias)
    }

    /// Takes the oldest departure, or the oldest of this session if a session is given. Departures are kept from the
    /// first call on.
    pub(crate) fn take_departure(&mut self, id: Option<SessionId>) -> Option<Departure> {
        let departures = self.table.departures.0.get_or_insert_default();
        let is_it = |departure: &Departure| id.is_none_or(|id| departure.id == id);
        let index = departures.iter().position(is_it)?;
        departures.remove(index)
    }

    fn note_departure(&mut self, id: SessionId, alias: u16) {
        if self.table.departures.0.is_none() {
            return;
        }
        if self.check_member(id, alias).is_ok()
            && let (Some(room), Some(name)) = (self.name_of(alias), self.member_name(id))
            && let Some(departures) = &mut self.table.departures.0
        {
            departures.push_back(Departure { id, room, name });
        }
    }

    /// Whether the room accepts a message of this size from this session now.
    pub(crate) fn check_say(
        &mut self,
        id: SessionId,
        alias: u16,
        payload_bytes: usize,
    ) -> Result<(), RoomError> {
        self.check_member(id, alias)?;
        let config = &self.sessions.config;
        config.check_shared_frame(payload_bytes, FRAME_OVERHEAD_BYTES_MAX)?;
        self.check_memory()
    }

    /// Whether a session may whisper to the member `name`, as far as this lane knows.
    pub(crate) fn check_whisper(
        &self,
        id: SessionId,
        alias: u16,
        name: &str,
    ) -> Result<(), RoomError> {
        self.check_member(id, alias)?;
        let directory = self.table.open.directory();
        let is_here = directory.member_in(alias, name).is_some();
        match is_here || directory.remote_named(alias, name).is_some() {
            true => Ok(()),
            false => Err(RoomError::NoSuchMember),
        }
    }

    pub(crate) fn rooms_of(&self, id: SessionId) -> impl Iterator<Item = u16> {
        let session = self.sessions.table.find(id);
        let memberships = session.map_or(&[][..], |session| &session.memberships);
        let rooms = memberships
            .iter()
            .filter(|membership| !membership.is_topic());
        rooms.map(|membership| membership.room())
    }

    pub(crate) fn member_name(&self, id: SessionId) -> Option<Arc<str>> {
        let member = self.sessions.table.find(id)?.profile.member.as_deref()?;
        Some(Arc::clone(member.name()))
    }
}
