//! Chat messages: to a whole room, through its log, and to one member.

use std::sync::Arc;

use tidewire_proto::codec::{AnyCodec, ChatMessage, Codec};
use tidewire_proto::error::EncodeError;

use super::recorded::encode_chat_at;
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
        self.say_framed(id, alias, payload, None, |codec, chat, out| {
            codec.encode_chat_message(chat, out)
        })
    }

    /// Appends a chat message that has this offset in the room's history.
    pub(super) fn say_at(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
        offset: u64,
    ) -> Result<bool, RoomError> {
        let offset = Some(offset);
        self.say_framed(id, alias, payload, offset, |codec, chat, out| {
            encode_chat_at(codec, offset, chat, out)
        })
    }

    /// Appends a chat message as `encode` frames it.
    #[inline]
    fn say_framed(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
        offset: Option<u64>,
        encode: impl FnOnce(&AnyCodec, &ChatMessage<'_>, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<bool, RoomError> {
        match self.sessions.relief.is_short() {
            false => self.append_chat_message(id, alias, payload, offset, encode),
            true => self.say_while_short(id, alias, payload, offset, encode),
        }
    }

    /// Appends a chat message while memory is short. It may be refused, and the publisher must stop until the end of
    /// the turn.
    #[cold]
    fn say_while_short(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
        offset: Option<u64>,
        encode: impl FnOnce(&AnyCodec, &ChatMessage<'_>, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<bool, RoomError> {
        if !self.sessions.may_grow() {
            return Err(RoomError::OutOfMemory);
        }
        let must_stop = self.append_chat_message(id, alias, payload, offset, encode)?;
        Ok(self.sessions.wait_for_memory(id) || must_stop)
    }

    #[inline]
    fn append_chat_message(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
        offset: Option<u64>,
        encode: impl FnOnce(&AnyCodec, &ChatMessage<'_>, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<bool, RoomError> {
        let slot = id.slot();
        let room = self.table.get(alias).ok_or(RoomError::NotJoined)?;
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX)?;
        let expected = payload.len() + FRAME_OVERHEAD_BYTES_MAX;
        let appended =
            self.sessions
                .append_own_to_log(id, alias, expected, |codec, member, out| {
                    let message = ChatMessage {
                        channel: alias,
                        member: member.id,
                        name: &member.name,
                        private: false,
                        payload,
                    };
                    encode(codec, &message, out)
                });
        let (position, bytes) = appended.ok_or(RoomError::NotJoined)??;
        let held = room.shared.is_congested().then(|| Arc::clone(&room.shared));
        self.sessions.counters.chat_messages.add(1);
        self.handle_appended(alias, (position, bytes), 1, offset, || {
            Origin::ChatMessage { id, payload }
        });
        if let Some(room) = &held {
            self.hold(slot, room);
        }
        Ok(held.is_some())
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
