//! The frames of what happens on other nodes: a message is framed once with the server's codec, and each lane with
//! members gets the frame.

use std::sync::Arc;

use tidewire_proto::codec::{ChatMessage, Codec, Presence};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, MemberId, Message, PresenceEvent};

use super::ToLanes;
use crate::backplane::author::Author;
use crate::history::encode_by_absent;
use crate::mailbox::{LaneSet, Receiver};
use crate::room::{FRAME_OVERHEAD_BYTES_MAX, PUBLISHED_OVERHEAD_BYTES, SharedRoom};
use crate::session::SessionId;

impl ToLanes {
    /// Sends a message to the members of a room.
    pub(in crate::backplane) fn say(
        &mut self,
        shared: &SharedRoom,
        author: &Author,
        payload: &[u8],
    ) {
        let mut frame = Vec::with_capacity(payload.len() + FRAME_OVERHEAD_BYTES_MAX);
        // A message that the codec cannot express is not sent.
        if self
            .frame_message(shared.alias(), author, payload, &mut frame)
            .is_ok()
        {
            self.send_message(shared, &frame);
        }
    }

    /// Sends a message of the room itself to all its members.
    pub(in crate::backplane) fn announce(&mut self, shared: &SharedRoom, text: &str) {
        self.say(shared, &Author::nameless(), text.as_bytes());
    }

    /// Sends a message of the room itself to one member.
    pub(in crate::backplane) fn announce_to(&mut self, id: SessionId, alias: u16, text: &str) {
        let mut frame = Vec::new();
        let author = Author::nameless();
        if self
            .frame_message(alias, &author, text.as_bytes(), &mut frame)
            .is_ok()
        {
            // A lane that is so far behind drops it, as it drops messages.
            let _ = self.send_to(id, &frame);
        }
    }

    /// Sends a message to the subscribers of a pattern.
    pub(in crate::backplane) fn publish(
        &mut self,
        shared: &SharedRoom,
        topic: &str,
        payload: &[u8],
    ) {
        let name = shared.named_topic(topic);
        let message = Message::new(Kind::Deliver, shared.alias(), payload).with_name(name);
        let overhead = PUBLISHED_OVERHEAD_BYTES + topic.len();
        let mut frame = Vec::with_capacity(payload.len() + overhead);
        if self.codec.encode(&message, &mut frame).is_ok() {
            self.send_message(shared, &frame);
        }
    }

    /// Tells the members or subscribers how many messages are missing.
    pub(in crate::backplane) fn tell_gap(&mut self, receivers: &[Arc<SharedRoom>], lost: u64) {
        for shared in receivers {
            let mut frame = Vec::new();
            // A codec without gap notices cannot tell; the loss is counted.
            if self
                .codec
                .encode_gap(shared.alias(), lost, &mut frame)
                .is_ok()
            {
                // A lane that drops it tells the number later. The loss is counted already.
                let _ = self.send(shared.lanes(), (shared.alias(), lost), &frame);
            }
        }
    }

    /// Sends a message to one session. Returns whether there was room.
    pub(in crate::backplane) fn send_message_to(
        &mut self,
        id: SessionId,
        message: &Message<'_>,
    ) -> bool {
        let mut frame = Vec::new();
        self.codec.encode(message, &mut frame).is_ok() && self.send_to(id, &frame)
    }

    /// Sends a message of another member to one member. Returns whether there was room.
    pub(in crate::backplane) fn whisper(
        &mut self,
        id: SessionId,
        alias: u16,
        author: &Author,
        payload: &[u8],
    ) -> bool {
        let message = ChatMessage {
            channel: alias,
            member: author.member(),
            name: author.name(),
            private: true,
            payload,
        };
        let mut frame = Vec::new();
        let encoded = self.codec.encode_chat_message(&message, &mut frame);
        encoded.is_ok() && self.send_to(id, &frame)
    }

    /// Tells the members of a room of a change of presence.
    pub(in crate::backplane) fn show(
        &mut self,
        shared: &SharedRoom,
        (member, name): (MemberId, &str),
        event: PresenceEvent,
    ) {
        self.show_to(shared.lanes(), shared.alias(), (member, name), event);
    }

    /// Lists a member to the members of a room on one lane.
    pub(in crate::backplane) fn list(&mut self, lane: usize, alias: u16, member: (MemberId, &str)) {
        let to = Receiver::Lane(lane).into();
        self.show_to(to, alias, member, PresenceEvent::Here);
    }

    fn show_to(
        &mut self,
        lanes: LaneSet,
        channel: u16,
        (member, name): (MemberId, &str),
        event: PresenceEvent,
    ) {
        let presence = Presence {
            channel,
            member,
            name,
            event,
        };
        let mut frame = Vec::new();
        if self.codec.encode_presence(&presence, &mut frame).is_ok() {
            self.send_presence(lanes, channel, &frame);
        }
    }

    fn send_message(&mut self, shared: &SharedRoom, frame: &[u8]) {
        let dropped = self.send(shared.lanes(), (shared.alias(), 1), frame);
        self.counters.backplane_dropped.add_shared(dropped);
    }

    /// Frames a message with its author's name, unless the members were told of the author.
    fn frame_message(
        &self,
        alias: u16,
        author: &Author,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let (member, name) = (author.member(), author.name());
        if !author.is_listed() {
            let message = Message::with_id(Kind::Deliver, alias, member.0, payload);
            return encode_by_absent(&self.codec, &message.with_name(name), out);
        }
        let message = ChatMessage {
            channel: alias,
            member,
            name,
            private: false,
            payload,
        };
        self.codec.encode_chat_message(&message, out)
    }
}
