//! Sending messages of rooms and topics that keep a history.
//!
//! A message gets its offset while the history is locked. The log of this lane gets the messages of other lanes that
//! precede it, and then the message. The other lanes get its frame with the offset; see [`history`](crate::history).

use std::sync::Arc;

use tidewire_proto::codec::ChatMessage;
use tidewire_proto::message::MemberId;

use super::refusal::RoomError;
use super::rooms::{FRAME_OVERHEAD_BYTES_MAX, LaneRooms};
use super::shared_room::SharedRoom;
use super::spanning::Origin;
use crate::broker::Position;
use crate::history::{MessageHistory, Numbering, Record, Records, encode_chat_at, encode_record};
use crate::mailbox::{BatchEntry, LaneSet};
use crate::session::SessionId;

impl LaneRooms<'_> {
    /// Sends a chat message, as `say` does, and records it if the room has a history.
    pub(crate) fn say_recorded(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
    ) -> Result<bool, RoomError> {
        let session = self.sessions.find(id);
        let member = session.and_then(|session| session.profile.member.as_deref().cloned());
        let (Some(history), Some(member)) = (self.history_here(alias), member) else {
            return self.say(id, alias, payload);
        };
        if history.numbering() == Numbering::Carrier {
            return self.say_by_carrier(id, alias, &member, payload);
        }
        let message = Record {
            member: member.id,
            name: &member.name,
            payload,
        };
        self.recorded(&history, alias, &message, |rooms, offset| {
            let offset = Some(offset);
            rooms.say_at(id, alias, payload, offset, |codec, chat, out| {
                encode_chat_at(codec, offset, chat, out)
            })
        })
    }

    /// Sends a message as the room itself to all its members. This lane need not have any.
    pub(crate) fn announce(&mut self, room: &str, payload: &[u8]) -> Result<(), RoomError> {
        let shared = self.table.directory.by_name(room);
        let shared = shared.ok_or(RoomError::NoSuchRoom)?;
        if self.sessions.relief.is_short() && !self.sessions.may_grow() {
            return Err(RoomError::OutOfMemory);
        }
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX)?;
        let message = Record {
            member: NOBODY,
            name: "",
            payload,
        };
        match shared.history.get() {
            None => self.append_announced(&shared, &message, None),
            Some(history) if history.numbering() == Numbering::Carrier => {
                self.send_to_carrier(&shared, SessionId::NONE, (NOBODY, ""), payload)?;
                self.sessions.counters.chat_messages.add(1);
                Ok(())
            }
            Some(history) => self.recorded(history, shared.alias, &message, |rooms, offset| {
                rooms.append_announced(&shared, &message, Some(offset))
            }),
        }
    }

    fn append_announced(
        &mut self,
        shared: &SharedRoom,
        message: &Record<'_>,
        offset: Option<u64>,
    ) -> Result<(), RoomError> {
        let chat = ChatMessage {
            channel: shared.alias,
            member: message.member,
            name: message.name,
            private: false,
            payload: message.payload,
        };
        let expected = message.payload.len() + FRAME_OVERHEAD_BYTES_MAX;
        let origin = Origin::Announced {
            payload: message.payload,
        };
        self.append_shared(shared, expected, offset, &origin, |codec, out| {
            encode_chat_at(codec, offset, &chat, out)
        })?;
        self.sessions.counters.chat_messages.add(1);
        Ok(())
    }

    /// Sends a message while its history is locked, and records it. `send` gets its offset.
    pub(super) fn recorded<T, E>(
        &mut self,
        history: &MessageHistory,
        alias: u16,
        message: &Record<'_>,
        send: impl FnOnce(&mut Self, u64) -> Result<T, E>,
    ) -> Result<T, E> {
        let (lane, now_ns) = (self.exchange.lane, self.sessions.now_ns());
        let mut records = history.lock();
        let last = records.last().offset;
        let has_members = self.table.get(alias).is_some();
        if has_members {
            self.catch_up(history, &mut records, alias, last);
        }
        let result = send(self, last + 1);
        if result.is_ok() {
            if has_members {
                history.note_arrival(&mut records, lane, last + 1);
            }
            history.record(&mut records, message, now_ns);
            history.touch();
            if !history.has_room_for(message) {
                self.sessions.counters.history_skipped.add(1);
            }
        }
        result
    }

    /// Appends the messages of the history up to this offset that this lane does not have to its log. A lane whose
    /// members joined without the history begins with it here.
    pub(super) fn catch_up(
        &mut self,
        history: &MessageHistory,
        records: &mut Records,
        alias: u16,
        to: u64,
    ) {
        let lane = self.exchange.lane;
        let Some(has) = records.has(lane) else {
            return history.note_arrival(records, lane, to);
        };
        if records.is_in_former_epoch(lane) {
            // The number of missing messages of the former epoch is unknown.
            let position = Position {
                offset: has,
                ..records.last()
            };
            self.append_position(alias, position);
            history.note_arrival(records, lane, has);
        }
        if has >= to {
            return;
        }
        let is_topic = self
            .table
            .get(alias)
            .is_some_and(|room| room.shared.pattern.is_some());
        let mut scratch = Vec::new();
        let is_of_carrier = history.numbering() == Numbering::Carrier;
        // The history of a node waits for its lanes only up to a limit.
        let first = records.first().clamp(has + 1, to + 1);
        let mut lost = match is_of_carrier {
            true => first - (has + 1),
            false => 0,
        };
        // The node has counted the holes that follow. It counts in the same number, from its own thread.
        self.sessions.counters.backplane_dropped.add_shared(lost);
        for offset in first..=to {
            let Some(message) = records.get(offset, &mut scratch) else {
                lost += u64::from(is_of_carrier);
                continue;
            };
            self.append_gap(alias, &mut lost);
            let author = match is_of_carrier {
                true => self.slot_of_member(alias, message.member),
                false => None,
            };
            let expected = message.payload.len() + FRAME_OVERHEAD_BYTES_MAX;
            let appended = self.append_of(alias, author, expected, |codec, out| {
                encode_record(codec, alias, is_topic, offset, &message, out)
            });
            match appended {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => tracing::debug!(%error, "a message of the history was not sent"),
            }
        }
        self.append_gap(alias, &mut lost);
        history.note_arrival(records, lane, to);
    }

    /// Handles a message with an offset from another lane.
    pub(super) fn deliver_recorded(
        &mut self,
        alias: u16,
        (offset, author): (u64, SessionId),
        frame: &[u8],
    ) {
        if self.table.get(alias).is_none() {
            // All members of this lane have left. Those that come get it from the history.
            return;
        }
        let Some(history) = self.history_here(alias) else {
            // The topic keeps a history only since its subscribers came.
            return self.deliver_entry(&BatchEntry::Room { alias, frame });
        };
        let (lane, now_ns) = (self.exchange.lane, self.sessions.now_ns());
        let mut records = history.lock();
        let is_former = records.is_in_former_epoch(lane);
        if records.has(lane).is_some_and(|has| offset <= has) && !is_former {
            return;
        }
        // A frame of a former epoch has no position any more. Its offset may be above those of this epoch.
        let last = records.last().offset;
        let frame = match offset <= records.epoch_start() || offset > last {
            true => &[],
            false => frame,
        };
        let offset = offset.min(last);
        if self.sessions.relief.is_short() && !self.may_deliver(alias, frame.len()) {
            // The history keeps the message meanwhile.
            if !self.table.behind.contains(&alias) {
                self.table.behind.push(alias);
            }
            return;
        }
        if frame.is_empty() {
            self.catch_up(&history, &mut records, alias, offset);
            return history.evict(&mut records, now_ns);
        }
        self.catch_up(&history, &mut records, alias, offset - 1);
        match author {
            SessionId::NONE => self.deliver_entry(&BatchEntry::Room { alias, frame }),
            author => self.deliver_own(alias, author, frame),
        }
        history.note_arrival(&mut records, lane, offset);
        history.evict(&mut records, now_ns);
    }

    /// Appends messages that waited in their histories for memory.
    #[cold]
    pub(super) fn catch_up_all(&mut self) {
        let now_ns = self.sessions.now_ns();
        for alias in std::mem::take(&mut self.table.behind) {
            let Some(history) = self.history_here(alias) else {
                continue;
            };
            if self.sessions.relief.is_short() && !self.may_deliver(alias, usize::MAX / 2) {
                self.table.behind.push(alias);
                continue;
            }
            let mut records = history.lock();
            let last = records.last().offset;
            self.catch_up(&history, &mut records, alias, last);
            history.evict(&mut records, now_ns);
        }
    }

    /// Sends the frame of a message to other lanes, with the offset that the message has in its history.
    pub(super) fn send_chat_message(
        &mut self,
        lanes: LaneSet,
        alias: u16,
        offset: Option<u64>,
        frame: &[u8],
    ) {
        let author = SessionId::NONE;
        let entry = match offset {
            None => BatchEntry::Room { alias, frame },
            Some(number) => BatchEntry::Recorded {
                alias,
                number,
                author,
                frame,
            },
        };
        self.send_entry(lanes, &entry);
    }

    /// Returns the history of a room or topic that has members on this lane.
    pub(super) fn history_here(&self, alias: u16) -> Option<Arc<MessageHistory>> {
        self.table.get(alias)?.shared.history.get().cloned()
    }
}

/// The member number of the room itself.
const NOBODY: MemberId = MemberId(0);
