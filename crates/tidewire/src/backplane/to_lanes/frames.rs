//! The frames of what happens on other nodes: a message is framed once with each codec that has members, and each lane
//! with such members gets the frame.

use std::sync::Arc;

use tidewire_proto::codec::{AnyCodec, ChatMessage, Codec, Presence};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, MemberId, Message, PresenceEvent};

use super::ToLanes;
use crate::backplane::author::Author;
use crate::history::encode_by_absent;
use crate::mailbox::Receiver;
use crate::room::SharedRoom;
use crate::session::SessionId;

impl ToLanes {
    /// Sends a message to the members of a room.
    pub(in crate::backplane) fn say(
        &mut self,
        shared: &SharedRoom,
        author: &Author,
        payload: &[u8],
    ) {
        let alias = shared.alias();
        self.send_message(shared, |codec, out| {
            frame_message(codec, alias, author, payload, out)
        });
    }

    /// Sends a message of the room itself to all its members.
    pub(in crate::backplane) fn announce(&mut self, shared: &SharedRoom, text: &str) {
        self.say(shared, &Author::nameless(), text.as_bytes());
    }

    /// Sends a message of the room itself to one member.
    pub(in crate::backplane) fn announce_to(&mut self, id: SessionId, alias: u16, text: &str) {
        let mut frame = Vec::new();
        let (codec, author) = (self.codec_of(id), Author::nameless());
        if frame_message(codec, alias, &author, text.as_bytes(), &mut frame).is_ok() {
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
        self.send_message(shared, |codec, out| codec.encode(&message, out));
    }

    /// Tells the members or subscribers how many messages are missing.
    pub(in crate::backplane) fn tell_gap(&mut self, receivers: &[Arc<SharedRoom>], lost: u64) {
        for shared in receivers {
            let alias = shared.alias();
            let gap = |codec: &AnyCodec, out: &mut Vec<u8>| codec.encode_gap(alias, lost, out);
            self.frame_for_each_codec(shared, gap, |this, lanes, log, frame| {
                // A codec without gap notices cannot tell; the loss is counted.
                if !frame.is_empty() {
                    // A lane that drops it tells the number later. The loss is counted already.
                    let _ = this.send(lanes, (log, lost), frame);
                }
            });
        }
    }

    /// Sends a message to one session. Returns whether there was room.
    pub(in crate::backplane) fn send_message_to(
        &mut self,
        id: SessionId,
        message: &Message<'_>,
    ) -> bool {
        let mut frame = Vec::new();
        self.codec_of(id).encode(message, &mut frame).is_ok() && self.send_to(id, &frame)
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
        let encoded = self.codec_of(id).encode_chat_message(&message, &mut frame);
        encoded.is_ok() && self.send_to(id, &frame)
    }

    /// Tells the members of a room of a change of presence.
    pub(in crate::backplane) fn show(
        &mut self,
        shared: &SharedRoom,
        (member, name): (MemberId, &str),
        event: PresenceEvent,
    ) {
        self.show_on(None, shared, (member, name), event);
    }

    /// Lists a member to the members of a room on one lane.
    pub(in crate::backplane) fn list(
        &mut self,
        lane: usize,
        shared: &SharedRoom,
        member: (MemberId, &str),
    ) {
        self.show_on(Some(lane), shared, member, PresenceEvent::Here);
    }

    fn show_on(
        &mut self,
        lane: Option<usize>,
        shared: &SharedRoom,
        (member, name): (MemberId, &str),
        event: PresenceEvent,
    ) {
        let presence = Presence {
            channel: shared.alias(),
            member,
            name,
            event,
        };
        let encode = |codec: &AnyCodec, out: &mut Vec<u8>| codec.encode_presence(&presence, out);
        self.frame_for_each_codec(shared, encode, |this, lanes, log, frame| {
            let lanes = match lane {
                Some(lane) if lanes.has(lane) => Receiver::Lane(lane).into(),
                Some(_) => return,
                None => lanes,
            };
            if !frame.is_empty() {
                this.send_presence(lanes, log, frame);
            }
        });
    }

    /// Sends a message to the members of a room or topic. Lanes count it for members whose codec cannot express it.
    fn send_message(
        &mut self,
        shared: &SharedRoom,
        frame: impl Fn(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) {
        self.frame_for_each_codec(shared, frame, |this, lanes, log, frame| {
            let dropped = this.send(lanes, (log, 1), frame);
            this.counters.backplane_dropped.add_shared(dropped);
        });
    }
}

/// Frames a message with its author's name, unless the members were told of the author.
fn frame_message(
    codec: &AnyCodec,
    alias: u16,
    author: &Author,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let (member, name) = (author.member(), author.name());
    if !author.is_listed() {
        let message = Message::with_id(Kind::Deliver, alias, member.0, payload);
        return encode_by_absent(codec, &message.with_name(name), out);
    }
    let message = ChatMessage {
        channel: alias,
        member,
        name,
        private: false,
        payload,
    };
    codec.encode_chat_message(&message, out)
}
