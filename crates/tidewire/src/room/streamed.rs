//! Messages of rooms and topics whose history is fed by a stream that all nodes share; see [`feed`](super::feed).

use std::sync::Arc;

use tidewire_proto::backplane::{Entry, StreamKind};
use tidewire_proto::codec::Codec;
use tidewire_proto::message::MemberId;

use super::refusal::{PublishError, RoomError};
use super::replay::encode_position;
use super::rooms::{FRAME_OVERHEAD_BYTES_MAX, LaneRooms};
use super::shared_room::SharedRoom;
use super::topic::RECORDED_OVERHEAD_BYTES;
use crate::broker::{Addressee, Position};
use crate::session::{Member, SessionId};

impl LaneRooms<'_> {
    /// Gives a chat message to the node. It is delivered when the stream gives it back.
    pub(super) fn say_to_stream(
        &mut self,
        id: SessionId,
        alias: u16,
        member: &Member,
        payload: &[u8],
    ) -> Result<bool, RoomError> {
        let session = self.sessions.find(id).ok_or(RoomError::NotJoined)?;
        session.room_membership(alias).ok_or(RoomError::NotJoined)?;
        let shared = self.table.get(alias).map(|room| room.shared.clone());
        let shared = shared.ok_or(RoomError::NotJoined)?;
        let is_short = self.sessions.relief.is_short();
        if is_short && !self.sessions.may_grow() {
            return Err(RoomError::OutOfMemory);
        }
        self.send_to_stream(&shared, id, (member.id, &member.name), payload)?;
        self.sessions.counters.chat_messages.add(1);
        let must_stop = shared.is_congested();
        if must_stop {
            self.hold(id.slot(), &shared);
        }
        Ok(must_stop || is_short && self.sessions.wait_for_memory(id))
    }

    /// Gives the node a message for the stream of a room.
    pub(super) fn send_to_stream(
        &mut self,
        shared: &SharedRoom,
        sender: SessionId,
        (member, name): (MemberId, &str),
        payload: &[u8],
    ) -> Result<(), RoomError> {
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX + name.len())?;
        if self.table.directory.is_stream_full() {
            return Err(RoomError::HistoryFull);
        }
        let entry = Entry::ChatMessage {
            member,
            name,
            payload,
        };
        let room = shared.name.as_deref().ok_or(RoomError::NoSuchRoom)?;
        let (kind, session) = (StreamKind::Room, sender.number());
        let to = Addressee::Stream { kind, session };
        self.exchange.send_to_nodes(to, room, &entry);
        Ok(())
    }

    /// Gives the node a message for the stream of the recent topic. Subscribers of the topic get it when the stream gives it back;
    /// those of wildcards, who have no positions, get it now.
    #[cold]
    #[inline(never)]
    pub(super) fn publish_streamed(
        &mut self,
        sender: SessionId,
        topic: &str,
        payload: &[u8],
    ) -> Result<Option<usize>, PublishError> {
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), RECORDED_OVERHEAD_BYTES + topic.len())?;
        if self.table.directory.is_stream_full() {
            return Err(PublishError::HistoryFull);
        }
        let congested = self.append_to_each_match(|rooms, index| {
            let shared = Arc::clone(&rooms.table.recent.matches[index].shared);
            match shared.is_fed() {
                true => Ok(()),
                false => rooms.append_without_offset(&shared, topic, payload),
            }
        })?;
        let (kind, session) = (StreamKind::Topic, sender.number());
        let to = Addressee::Stream { kind, session };
        let published = Entry::Published { payload };
        self.exchange.send_to_nodes(to, topic, &published);
        Ok(congested)
    }

    /// Appends the frame of a message whose author is a session of this lane, which does not get it.
    pub(super) fn deliver_own(&mut self, alias: u16, author: SessionId, frame: &[u8]) {
        let appended =
            self.sessions
                .logs
                .append(&self.sessions.config.codec, alias, frame.len(), |_, out| {
                    out.extend_from_slice(frame);
                    Ok(())
                });
        if let Some(Ok((position, bytes))) = appended {
            let slot = self.sessions.slot_of(author);
            let own = slot.map_or(0, |slot| self.skip_own(alias, slot, position, bytes));
            self.count_and_plan(alias, position, bytes, own);
        }
    }

    /// Lets the author of the newest message of a log skip it. Returns 1 if it is a member of this lane.
    pub(super) fn skip_own_of(
        &mut self,
        alias: u16,
        author: MemberId,
        position: u64,
        bytes: usize,
    ) -> u64 {
        let room = self.table.get(alias).filter(|_| author != MemberId(0));
        let mut members = room.into_iter().flat_map(|room| &room.members);
        let slot = members.find(|slot| {
            let session = self.sessions.get(**slot);
            let member = session.and_then(|it| it.profile.member.as_ref());
            member.is_some_and(|member| member.id == author)
        });
        let slot = slot.copied();
        slot.map_or(0, |slot| self.skip_own(alias, slot, position, bytes))
    }

    fn skip_own(&mut self, alias: u16, slot: usize, position: u64, bytes: usize) -> u64 {
        self.sessions
            .skip_own(slot, alias, (position, bytes))
            .into()
    }

    /// Appends the position that the next message follows to the log of a room or topic.
    #[cold]
    pub(super) fn append_position(&mut self, alias: u16, position: Position) {
        if !self.sessions.config.codec.has_positions() {
            // Its clients cannot come back with a position either.
            return;
        }
        let appended = self.sessions.logs.append(
            &self.sessions.config.codec,
            alias,
            FRAME_OVERHEAD_BYTES_MAX,
            |codec, out| encode_position(codec, alias, position, out),
        );
        if let Some(Ok((position, bytes))) = appended {
            self.count_and_plan(alias, position, bytes, 0);
        }
    }

    /// Appends the notice that messages are missing to the log of a room. The caller has counted them.
    pub(super) fn append_gap(&mut self, alias: u16, lost: &mut u64) {
        let count = std::mem::take(lost);
        if count == 0 {
            return;
        }
        // A codec without gap notices cannot tell; the loss is counted.
        let appended = self.sessions.logs.append(
            &self.sessions.config.codec,
            alias,
            FRAME_OVERHEAD_BYTES_MAX,
            |codec, out| codec.encode_gap(alias, count, out),
        );
        if let Some(Ok((position, bytes))) = appended {
            self.count_and_plan(alias, position, bytes, 0);
        }
    }
}
