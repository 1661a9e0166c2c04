//! Chat messages: to a whole room, through its log, and to one member.

use std::sync::Arc;

use tidewire_proto::backplane::{Entry, SequenceKind};
use tidewire_proto::codec::{AnyCodec, ChatMessage, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::MemberId;

use crate::broker::Addressee;
use crate::history::{Numbering, Record, encode_chat_at};
use crate::room::deliveries::{InEachCodec, LaneDeliveries, LaneLogs, NewFrame, Origin};
use crate::room::histories::Recording;
use crate::room::{FRAME_OVERHEAD_BYTES_MAX, LaneRooms, RoomError, SharedRoom};
use crate::session::{LaneSessions, LogKey, Member, SessionId};

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
    fn say_at(
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
        let (logs, table) = LaneLogs::of(self.sessions, self.exchange);
        let session = table.get_mut(slot).filter(|session| session.id == id);
        let session = session.ok_or(RoomError::NotJoined)?;
        if !session.codec_number().is_main() {
            return self.say_in_other_codec(id, alias, payload, offset);
        }
        let index = session.room_membership(alias).ok_or(RoomError::NotJoined)?;
        let shared = self.table.open.shared(alias).ok_or(RoomError::NotJoined)?;
        let Some(member) = &session.profile.member else {
            return Err(RoomError::NotJoined);
        };
        let message = said_by(member, alias, payload);
        logs.check_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX)?;
        let held = shared.is_congested().then(|| Arc::clone(shared));
        let expected = payload.len() + FRAME_OVERHEAD_BYTES_MAX;
        let subscriber = &mut session.memberships[index].subscriber;
        let appended = self.table.open.append(
            logs,
            LogKey::main(alias),
            expected,
            |codec, out| encode(codec, &message, out),
            |log, position, bytes| {
                subscriber.skip_own(log, position, bytes);
                1
            },
        );
        let appended = appended?.ok_or(RoomError::NotJoined)?;
        self.sessions.counters.chat_messages.add(1);
        if appended.is_for_others() {
            self.send_said(id, appended, offset, payload)?;
        }
        if let Some(room) = &held {
            self.deliveries().hold(slot, room);
        }
        let must_wait = is_short
            && self
                .sessions
                .relief
                .pause_publisher(&mut self.sessions.table, id);
        Ok(held.is_some() || must_wait)
    }

    /// Sends a message that was appended for the members with the main codec on to all others.
    #[cold]
    #[inline(never)]
    fn send_said(
        &mut self,
        id: SessionId,
        appended: NewFrame,
        offset: Option<u64>,
        payload: &[u8],
    ) -> Result<(), RoomError> {
        let alias = appended.alias();
        self.pass_on(id, alias, payload, offset, |to, origin, message| {
            to.send_on(appended, offset, origin, message);
        })
    }

    /// As [`Self::say_at`], for a session with another codec than the main one.
    #[cold]
    #[inline(never)]
    fn say_in_other_codec(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
        offset: Option<u64>,
    ) -> Result<bool, RoomError> {
        self.check_member(id, alias)?;
        let shared = self.table.open.shared(alias).cloned();
        let shared = shared.ok_or(RoomError::NotJoined)?;
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX)?;
        self.pass_on(id, alias, payload, offset, |to, origin, message| {
            message.share(to, &shared, offset, origin);
        })?;
        self.sessions.counters.chat_messages.add(1);
        let is_congested = shared.is_congested();
        if is_congested {
            self.deliveries().hold(id.slot(), &shared);
        }
        let must_wait = self.sessions.relief.is_short()
            && self
                .sessions
                .relief
                .pause_publisher(&mut self.sessions.table, id);
        Ok(is_congested || must_wait)
    }

    /// Lets `give` pass on a chat message of a session, which can be framed with each codec.
    fn pass_on(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
        offset: Option<u64>,
        give: impl FnOnce(&mut LaneDeliveries<'_>, &Origin<'_>, InEachCodec<'_>),
    ) -> Result<(), RoomError> {
        let member = member_of(self.sessions, id).ok_or(RoomError::NotJoined)?;
        let message = said_by(&member, alias, payload);
        let frame =
            |codec: &AnyCodec, out: &mut Vec<u8>| encode_chat_at(codec, offset, &message, out);
        let message = InEachCodec::by(id, &frame, payload.len() + FRAME_OVERHEAD_BYTES_MAX);
        let origin = Origin::ChatMessage { id, payload };
        give(&mut self.deliveries(), &origin, message);
        Ok(())
    }

    /// Whether a message may be appended now.
    #[cold]
    pub(super) fn check_memory(&mut self) -> Result<(), RoomError> {
        match !self.sessions.relief.is_short() || self.sessions.relief_pass().may_grow() {
            true => Ok(()),
            false => Err(RoomError::OutOfMemory),
        }
    }

    /// Sends a chat message, as [`Self::say`] does, and records it if the room has a history.
    pub(crate) fn say_recorded(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
    ) -> Result<bool, RoomError> {
        let member = member_of(self.sessions, id);
        let (Some(history), Some(member)) = (self.table.open.history(alias), member) else {
            return self.say(id, alias, payload);
        };
        if history.numbering() == Numbering::Carrier {
            return self.say_by_carrier(id, alias, &member, payload);
        }
        let recording = self.histories().begin_record(&history, alias);
        let offset = Some(recording.offset());
        let must_stop = self.say_at(id, alias, payload, offset, |codec, chat, out| {
            encode_chat_at(codec, offset, chat, out)
        })?;
        let message = Record::by(member.id(), member.name(), payload);
        recording.end(&message, self.sessions);
        Ok(must_stop)
    }

    /// Gives a chat message to the node. The message is delivered when the carrier gives it back.
    fn say_by_carrier(
        &mut self,
        id: SessionId,
        alias: u16,
        member: &Member,
        payload: &[u8],
    ) -> Result<bool, RoomError> {
        self.check_member(id, alias)?;
        let shared = self.table.open.shared(alias).cloned();
        let shared = shared.ok_or(RoomError::NotJoined)?;
        self.check_memory()?;
        self.send_to_carrier(&shared, id, (member.id(), member.name()), payload)?;
        let must_stop = shared.is_congested();
        if must_stop {
            self.deliveries().hold(id.slot(), &shared);
        }
        let is_short = self.sessions.relief.is_short();
        Ok(must_stop
            || is_short
                && self
                    .sessions
                    .relief
                    .pause_publisher(&mut self.sessions.table, id))
    }

    /// Gives the node a message for the history of a room.
    fn send_to_carrier(
        &mut self,
        shared: &SharedRoom,
        sender: SessionId,
        (member, name): (MemberId, &str),
        payload: &[u8],
    ) -> Result<(), RoomError> {
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX + name.len())?;
        if self.table.open.directory().histories().is_full() {
            return Err(RoomError::HistoryFull);
        }
        let entry = Entry::ChatMessage {
            member,
            name,
            payload,
        };
        let (kind, session) = (SequenceKind::Room, sender.number());
        let to = Addressee::History { kind, session };
        self.exchange.send_to_nodes(to, shared.name(), &entry);
        self.sessions.counters.chat_messages.add(1);
        Ok(())
    }

    /// Sends a message as the room itself to all its members. This lane need not have any.
    pub(crate) fn announce(&mut self, room: &str, payload: &[u8]) -> Result<(), RoomError> {
        let shared = self.table.open.directory().room(room);
        let shared = shared.ok_or(RoomError::NoSuchRoom)?;
        self.check_memory()?;
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX)?;
        let history = shared.history();
        if shared.is_numbered_by_carrier() {
            return self.send_to_carrier(&shared, SessionId::NONE, (NOBODY, ""), payload);
        }
        let recording = history.map(|it| self.histories().begin_record(it, shared.alias()));
        let offset = recording.as_ref().map(Recording::offset);
        let chat = ChatMessage {
            channel: shared.alias(),
            member: NOBODY,
            name: "",
            private: false,
            payload,
        };
        let expected = payload.len() + FRAME_OVERHEAD_BYTES_MAX;
        let (mut deliveries, origin) = (self.deliveries(), Origin::Announced { payload });
        deliveries.append_shared(&shared, expected, offset, &origin, &|codec, out| {
            encode_chat_at(codec, offset, &chat, out)
        })?;
        self.sessions.counters.chat_messages.add(1);
        if let Some(recording) = recording {
            recording.end(&Record::without_author(payload), self.sessions);
        }
        Ok(())
    }

    /// Sends a message to one member of a room, on any lane or node.
    pub(crate) fn whisper(
        &mut self,
        id: SessionId,
        alias: u16,
        name: &str,
        payload: &[u8],
    ) -> Result<(), RoomError> {
        self.check_member(id, alias)?;
        let session = self.sessions.table.find(id).ok_or(RoomError::NotJoined)?;
        let member = session.profile.member.clone().ok_or(RoomError::NotJoined)?;
        let target = self.table.open.directory().member_in(alias, name);
        let Some(target) = target else {
            return self.whisper_to_node(alias, (member.id(), member.name()), name, payload);
        };
        let message = ChatMessage {
            channel: alias,
            member: member.id(),
            name: member.name(),
            private: true,
            payload,
        };
        let Self {
            sessions, exchange, ..
        } = self;
        let encode = |codec: &AnyCodec, out: &mut Vec<u8>| codec.encode_chat_message(&message, out);
        Ok(exchange.send_to(sessions, target, encode)?)
    }

    /// Sends a message to one member of a room on another node.
    fn whisper_to_node(
        &mut self,
        alias: u16,
        (author, author_name): (MemberId, &str),
        name: &str,
        payload: &[u8],
    ) -> Result<(), RoomError> {
        let remote = self.table.open.directory().remote_named(alias, name);
        let (room, remote) = remote.ok_or(RoomError::NoSuchMember)?;
        self.sessions
            .config
            .check_shared_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX)?;
        let entry = Entry::ChatMessage {
            member: author,
            name: author_name,
            payload,
        };
        self.exchange
            .send_to_nodes(remote.addressee(), &room, &entry);
        Ok(())
    }
}

/// A message of a member to all members of a room.
#[inline(always)]
fn said_by<'m>(member: &'m Member, room: u16, payload: &'m [u8]) -> ChatMessage<'m> {
    ChatMessage {
        channel: room,
        member: member.id(),
        name: member.name(),
        private: false,
        payload,
    }
}

/// The name and number that a session of this lane has in rooms.
fn member_of(sessions: &LaneSessions, id: SessionId) -> Option<Member> {
    let session = sessions.table.find(id)?;
    session.profile.member.as_deref().cloned()
}

/// The member number of the room itself.
const NOBODY: MemberId = MemberId(0);
