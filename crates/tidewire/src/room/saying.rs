//! Chat messages: to a whole room, through its log, and to one member.

use std::sync::Arc;

use tidewire_proto::codec::{AnyCodec, ChatMessage, Codec};
use tidewire_proto::error::EncodeError;

use super::appending::LaneLogs;
use super::refusal::RoomError;
use super::rooms::{FRAME_OVERHEAD_BYTES_MAX, LaneRooms};
use super::spanning::Origin;
use crate::session::SessionId;

impl LaneRooms<'_> {
    /// Appends a chat message of `id` to the room's log. Returns whether the publisher must stop for now.
    #[inline]
    pub(crate) fn say(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
    ) -> Result<bool, RoomError> {
        self.say_at(id, alias, payload, None, |codec, chat, out| {
            codec.encode_chat_message(chat, out)
        })
    }

    /// Appends a chat message that has this offset in the room's history, if it is recorded, as `encode` frames it.
    #[inline]
    pub(super) fn say_at(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
        offset: Option<u64>,
        encode: impl FnOnce(&AnyCodec, &ChatMessage<'_>, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<bool, RoomError> {
        let is_short = self.sessions.relief.is_short();
        if is_short {
            self.check_memory()?;
        }
        let slot = id.slot();
        let (logs, slab) = LaneLogs::of(self.sessions, self.exchange);
        let session = slab.get_mut(slot).filter(|session| session.id == id);
        let session = session.ok_or(RoomError::NotJoined)?;
        let index = session.room_membership(alias).ok_or(RoomError::NotJoined)?;
        let room = self.table.rooms.get(alias).ok_or(RoomError::NotJoined)?;
        let Some(member) = &session.profile.member else {
            return Err(RoomError::NotJoined);
        };
        let message = ChatMessage {
            channel: alias,
            member: member.id,
            name: &member.name,
            private: false,
            payload,
        };
        logs.check_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX)?;
        let held = room.shared.is_congested().then(|| Arc::clone(&room.shared));
        let expected = payload.len() + FRAME_OVERHEAD_BYTES_MAX;
        let subscriber = &mut session.memberships[index].subscriber;
        let appended = self.table.rooms.append(
            logs,
            alias,
            expected,
            |codec, out| encode(codec, &message, out),
            |log, position, bytes| {
                subscriber.skip_own(log, position, bytes);
                1
            },
        );
        let appended = appended?.ok_or(RoomError::NotJoined)?;
        self.sessions.counters.chat_messages.add(1);
        self.pass_on(appended, offset, || Origin::ChatMessage { id, payload });
        if let Some(room) = &held {
            self.hold(slot, room);
        }
        let must_wait = is_short && self.sessions.wait_for_memory(id);
        Ok(held.is_some() || must_wait)
    }

    /// Whether a message may be appended while memory is short.
    #[cold]
    pub(super) fn check_memory(&mut self) -> Result<(), RoomError> {
        match self.sessions.may_grow() {
            true => Ok(()),
            false => Err(RoomError::OutOfMemory),
        }
    }

    pub(crate) fn whisper(
        &mut self,
        id: SessionId,
        alias: u16,
        name: &str,
        payload: &[u8],
    ) -> Result<(), RoomError> {
        let session = self.sessions.find(id).ok_or(RoomError::NotJoined)?;
        session.room_membership(alias).ok_or(RoomError::NotJoined)?;
        let member = session.profile.member.clone().ok_or(RoomError::NotJoined)?;
        let target = self.table.directory.member_in(alias, name);
        let Some(target) = target else {
            return self.whisper_to_node(alias, (member.id, &member.name), name, payload);
        };
        let message = ChatMessage {
            channel: alias,
            member: member.id,
            name: &member.name,
            private: true,
            payload,
        };
        let Self {
            sessions, exchange, ..
        } = self;
        let encode = |codec: &AnyCodec, out: &mut Vec<u8>| codec.encode_chat_message(&message, out);
        Ok(exchange.send_to(sessions, target, encode)?)
    }
}
