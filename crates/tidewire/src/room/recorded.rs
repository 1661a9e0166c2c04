//! Recording messages in a room's history, and sending the history to new members.

use std::sync::Arc;

use tidewire_proto::codec::{AnyCodec, ChatMessage, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, MemberId, Message};

use super::history::{History, PastMessage, Remembered, RoomHistory};
use super::refusal::RoomError;
use super::rooms::{FRAME_OVERHEAD_BYTES_MAX, Joined, LaneRooms};
use super::shared_room::SharedRoom;
use crate::mailbox::BatchEntry;
use crate::session::{LaneSessions, SessionId, append_with_header};

/// A message that is being sent and recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recording {
    /// The number of the message in the history.
    number: u64,
    /// Other lanes that it was sent to, as bits.
    lanes: u64,
}

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
        let author = (member.id, &*member.name);
        self.recorded(&history, alias, author, payload, |rooms| {
            rooms.say(id, alias, payload)
        })
    }

    /// Sends a message as the room itself to all its members. This lane need not have any.
    pub(crate) fn announce(&mut self, room: &str, payload: &[u8]) -> Result<(), RoomError> {
        let shared = self.table.directory.by_name(room);
        let shared = shared.ok_or(RoomError::NoSuchRoom)?;
        if self.sessions.is_short_of_memory() && !self.sessions.may_grow() {
            return Err(RoomError::OutOfMemory);
        }
        let config = &self.sessions.config;
        config.check_shared_frame(payload.len(), FRAME_OVERHEAD_BYTES_MAX)?;
        let Some(history) = shared.history.get() else {
            return self.append_announced(&shared, payload);
        };
        self.recorded(history, shared.alias, (NOBODY, ""), payload, |rooms| {
            rooms.append_announced(&shared, payload)
        })
    }

    fn append_announced(&mut self, shared: &SharedRoom, payload: &[u8]) -> Result<(), RoomError> {
        let alias = shared.alias;
        let message = ChatMessage {
            channel: alias,
            member: NOBODY,
            name: "",
            private: false,
            payload,
        };
        let LaneSessions { outbox, config, .. } = &mut *self.sessions;
        if let Some(log) = outbox.logs.get_mut(alias) {
            let expected = payload.len() + FRAME_OVERHEAD_BYTES_MAX;
            let (position, bytes) = log.append_with(expected, |out| {
                config.codec.encode_chat_message(&message, out)
            })?;
            self.sessions.counters.chat_messages.add(1);
            self.handle_appended(alias, position, bytes, 0);
            return Ok(());
        }
        let mut frame = outbox.buffers.take();
        let encoded = config.codec.encode_chat_message(&message, &mut frame);
        if encoded.is_ok() {
            self.sessions.counters.chat_messages.add(1);
            self.send_chat_message(shared.other_lanes(self.exchange.lane), alias, &frame);
        }
        self.sessions.outbox.buffers.put(frame);
        Ok(encoded?)
    }

    /// Sends a message while its history is locked, and records it with the lanes that it was sent to. A message that
    /// is too large for the history is sent without a number, because numbers count recorded messages only.
    fn recorded<T>(
        &mut self,
        history: &RoomHistory,
        alias: u16,
        (member, name): (MemberId, &str),
        payload: &[u8],
        say: impl FnOnce(&mut Self) -> Result<T, RoomError>,
    ) -> Result<T, RoomError> {
        if !history.has_room_for(name, payload) {
            let result = say(self);
            if result.is_ok() {
                self.sessions.counters.history_skipped.add(1);
            }
            return result;
        }
        let mut records = history.lock();
        self.table.recording = Some(Recording {
            number: records.next,
            lanes: 0,
        });
        let result = say(self);
        let recording = self.table.recording.take();
        if result.is_ok() {
            let lanes = recording.map_or(0, |recording| recording.lanes);
            let message = Remembered {
                member,
                name: name.into(),
                payload: payload.into(),
            };
            history.record(&mut records, message, alias, lanes);
            self.table.directory.histories.touch(history);
        }
        result
    }

    /// Sends the frame of the current message to the lanes whose bits are set, with its number if it is being
    /// recorded.
    pub(super) fn send_chat_message(&mut self, lanes: u64, alias: u16, frame: &[u8]) {
        let Some(recording) = &mut self.table.recording else {
            return self.send_to_lanes(lanes, alias, frame);
        };
        recording.lanes = lanes;
        let number = recording.number;
        let entry = BatchEntry::Recorded {
            alias,
            number,
            frame,
        };
        self.send_entry(lanes, &entry);
    }

    /// Notes that a message of a history has arrived from another lane.
    pub(super) fn note_arrival(&self, alias: u16, number: u64) {
        let lane = self.exchange.lane;
        if let Some(history) = self.history_here(alias) {
            return history.lock().note_arrival(number, lane);
        }
        // All members of this lane have left, but others may join.
        if let Some((shared, _)) = self.table.directory.by_alias(alias)
            && let Some(history) = shared.history.get()
        {
            history.lock().note_arrival(number, lane);
        }
    }

    /// Appends the room's history to the output of a session that has just joined. The room keeps a history from now
    /// on. A new history starts with the messages that `past` returns for the room's name.
    pub(crate) fn queue_history(
        &mut self,
        id: SessionId,
        joined: &Joined,
        limits: History,
        past: impl FnOnce(&str) -> Vec<PastMessage>,
    ) {
        let directory = Arc::clone(&self.table.directory);
        let Some((shared, name)) = directory.by_alias(joined.room) else {
            return;
        };
        // Other lanes wait for this meanwhile, so no message can be recorded before the earlier ones are complete.
        let history = shared.history.get_or_init(|| {
            let history = directory.histories.open(&name, limits);
            history.begin_with(past(&name), joined.room);
            history
        });
        let earlier = history.lock().messages_for(self.exchange.lane, joined.room);
        let Some(session) = self.sessions.find(id) else {
            return;
        };
        let Some(membership) = session.room_membership(joined.room) else {
            return;
        };
        let subscription = session.memberships[membership].subscription();
        // An error affects only the one message that is not sent.
        let _ = self.sessions.append_to_current(|codec, out| {
            for message in &earlier {
                let encoded = append_with_header(codec, subscription, out, |out| {
                    encode_remembered(codec, joined.room, message, out)
                });
                if let Err(error) = encoded {
                    tracing::debug!(%error, "a message of the history was not sent");
                }
            }
            Ok(())
        });
    }

    /// Returns the history of a room that has members on this lane.
    fn history_here(&self, alias: u16) -> Option<Arc<RoomHistory>> {
        self.table.get(alias)?.shared.history.get().cloned()
    }
}

/// Frames a message of a history. Its author may have left, so the frame has the author's name if the codec has
/// names.
fn encode_remembered(
    codec: &AnyCodec,
    alias: u16,
    remembered: &Remembered,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let Remembered {
        member,
        name,
        payload,
    } = remembered;
    if codec.has_room_frames() && !name.is_empty() {
        let message = Message::with_id(Kind::Deliver, alias, member.0, payload);
        if codec.encode(&message.with_name(name), out).is_ok() {
            return Ok(());
        }
    }
    let message = ChatMessage {
        channel: alias,
        member: *member,
        name,
        private: false,
        payload,
    };
    codec.encode_chat_message(&message, out)
}

/// The member number of the room itself.
const NOBODY: MemberId = MemberId(0);
