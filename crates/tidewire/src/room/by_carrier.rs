//! Messages of rooms and topics that the carrier numbers; see [`history`](crate::history).

use std::sync::Arc;

use tidewire_proto::backplane::{Entry, SequenceKind};
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::MemberId;

use super::appending::{Appended, LaneLogs};
use super::refusal::{PublishError, RoomError};
use super::rooms::{FRAME_OVERHEAD_BYTES_MAX, LaneRooms};
use super::shared_room::SharedRoom;
use super::topic::RECORDED_OVERHEAD_BYTES;
use crate::broker::{Addressee, Position};
use crate::history::encode_position;
use crate::session::{Member, SessionId};

impl LaneRooms<'_> {
    /// Gives a chat message to the node. It is delivered when the carrier gives it back.
    pub(super) fn say_by_carrier(
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
        self.send_to_carrier(&shared, id, (member.id, &member.name), payload)?;
        self.sessions.counters.chat_messages.add(1);
        let must_stop = shared.is_congested();
        if must_stop {
            self.hold(id.slot(), &shared);
        }
        Ok(must_stop || is_short && self.sessions.wait_for_memory(id))
    }

    /// Gives the node a message for the history of a room.
    pub(super) fn send_to_carrier(
        &mut self,
        shared: &SharedRoom,
        sender: SessionId,
        (member, name): (MemberId, &str),
        payload: &[u8],
    ) -> Result<(), RoomError> {
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX + name.len())?;
        if self.table.directory.histories().is_full() {
            return Err(RoomError::HistoryFull);
        }
        let entry = Entry::ChatMessage {
            member,
            name,
            payload,
        };
        let room = shared.name.as_deref().ok_or(RoomError::NoSuchRoom)?;
        let (kind, session) = (SequenceKind::Room, sender.number());
        let to = Addressee::History { kind, session };
        self.exchange.send_to_nodes(to, room, &entry);
        Ok(())
    }

    /// Gives the node a message for the history of the recent topic. Subscribers of the topic get it when the carrier gives it back;
    /// those of wildcards, who have no positions, get it now.
    #[cold]
    #[inline(never)]
    pub(super) fn publish_by_carrier(
        &mut self,
        sender: SessionId,
        topic: &str,
        payload: &[u8],
    ) -> Result<Option<usize>, PublishError> {
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), RECORDED_OVERHEAD_BYTES + topic.len())?;
        if self.table.directory.histories().is_full() {
            return Err(PublishError::HistoryFull);
        }
        let congested = self.append_to_each_match(|rooms, index| {
            let shared = Arc::clone(&rooms.table.recent.matches[index].shared);
            match shared.is_numbered_by_carrier() {
                true => Ok(()),
                false => rooms.append_without_offset(&shared, topic, payload),
            }
        })?;
        let (kind, session) = (SequenceKind::Topic, sender.number());
        let to = Addressee::History { kind, session };
        let published = Entry::Published { payload };
        self.exchange.send_to_nodes(to, topic, &published);
        Ok(congested)
    }

    /// Appends the frame of a message whose author is a session of this lane, which does not get it.
    pub(super) fn deliver_own(&mut self, alias: u16, author: SessionId, frame: &[u8]) {
        let author = self.sessions.slot_of(author);
        let _ = self.append_of(alias, author, frame.len(), |_, out| {
            out.extend_from_slice(frame);
            Ok(())
        });
    }

    /// Returns the slot of a member of this lane.
    pub(super) fn slot_of_member(&self, alias: u16, member: MemberId) -> Option<usize> {
        let room = self.table.get(alias).filter(|_| member != MemberId(0))?;
        let is_it = |slot: &&usize| {
            let session = self.sessions.get(**slot);
            let own = session.and_then(|it| it.profile.member.as_ref());
            own.is_some_and(|own| own.id == member)
        };
        room.members.iter().find(is_it).copied()
    }

    /// Appends a frame to the log of a room or topic, whose author may be a session of this lane, which does not get it.
    pub(super) fn append_of(
        &mut self,
        alias: u16,
        author: Option<usize>,
        bytes_expected: usize,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<Option<Appended>, EncodeError> {
        let (logs, slab) = LaneLogs::of(self.sessions, self.exchange);
        let rooms = &mut self.table.rooms;
        rooms.append(
            logs,
            alias,
            bytes_expected,
            encode,
            |log, position, bytes| {
                let Some(session) = author.map(|slot| &mut slab[slot]) else {
                    return 0;
                };
                let Some(index) = session.room_membership(alias) else {
                    return 0;
                };
                let subscriber = &mut session.memberships[index].subscriber;
                // A subscriber that is being sent the history gets nothing from the log.
                if subscriber.next_of_history().is_some() {
                    return 0;
                }
                subscriber.skip_own(log, position, bytes);
                1
            },
        )
    }

    /// Appends the position that the next message follows to the log of a room or topic.
    #[cold]
    pub(super) fn append_position(&mut self, alias: u16, position: Position) {
        // Clients of a codec without positions cannot come back with a position either.
        if self.sessions.config.codec.format().has_positions {
            let _ = self.append(alias, FRAME_OVERHEAD_BYTES_MAX, |codec, out| {
                encode_position(codec, alias, position, out)
            });
        }
    }

    /// Appends the notice that messages are missing to the log of a room. The caller has counted them.
    pub(super) fn append_gap(&mut self, alias: u16, lost: &mut u64) {
        let count = std::mem::take(lost);
        if count > 0 {
            // A codec without gap notices cannot tell; the loss is counted.
            let _ = self.append(alias, FRAME_OVERHEAD_BYTES_MAX, |codec, out| {
                codec.encode_gap(alias, count, out)
            });
        }
    }
}
