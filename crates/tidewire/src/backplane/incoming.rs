//! From other nodes to the lanes: a message is framed once with the server's codec, and each lane with members gets the frame.

use std::sync::Arc;
use std::time::Instant;

use tidewire_proto::backplane::{Content, Entry, NodeLife, Packet, SequenceKind, SequencePacket};
use tidewire_proto::codec::{ChatMessage, Codec};
use tidewire_proto::message::{Kind, MemberId, Message};
use tidewire_proto::topic::validate_topic;

use super::Node;
use super::peers::Heard;
use super::presence::Author;
use crate::room::{FRAME_OVERHEAD_BYTES_MAX, PUBLISHED_OVERHEAD_BYTES, SharedRoom};

impl Node {
    /// Handles a packet. Bytes that are no packet are counted.
    pub fn handle_packet(&mut self, bytes: &[u8], now: Instant) {
        let packet = match Packet::decode(bytes) {
            Ok(packet) => packet,
            Err(error) => {
                tracing::debug!(%error, "a packet was dropped");
                return self.counters.backplane_malformed.add_shared(1);
            }
        };
        if packet.from.node == &*self.me.node {
            if packet.from.epoch != self.me.epoch {
                let flags = match packet.content {
                    Content::Alive { flags, .. } => Some(flags),
                    _ => None,
                };
                self.handle_namesake(flags);
            }
            return;
        }
        let Some((node, heard)) = self.peers.hear(packet.from.node, packet.from.epoch, now) else {
            return self.counters.backplane_malformed.add_shared(1);
        };
        match heard {
            Heard::Restarted => self.forget(&node),
            Heard::Former => return self.counters.backplane_duplicates.add_shared(1),
            Heard::Late => return,
            Heard::New | Heard::Again => {}
        }
        if heard != Heard::Again {
            tracing::info!(node = &*node, "another node is there");
            // Its rooms and positions are not known yet.
            self.ask_for_all(&node);
        }
        let from = NodeLife {
            node: Arc::clone(&node),
            epoch: packet.from.epoch,
        };
        match packet.content {
            Content::Alive { flags, beat } => self.handle_alive(&node, flags, beat, now),
            Content::Sequence(stream) => self.handle_stream(&node, &stream),
            Content::Whisper {
                room,
                target,
                message,
            } => {
                self.handle_whisper(&node, room, target, &message);
            }
            Content::Directed(directed) => self.handle_directed(&directed),
            Content::Asked(asked) => self.handle_asked(from, &asked, now),
            Content::Answered(answered) => self.handle_answered(&answered),
            Content::Working(working) => self.handle_working(&node, &working),
            Content::GivenUp { request } => self.handle_given_up(from, request),
        }
    }

    fn handle_stream(&mut self, node: &Arc<str>, stream: &SequencePacket<'_>) {
        let receivers = match stream.kind {
            SequenceKind::Room => {
                let room = self.local_room(stream.name);
                room.into_iter().collect()
            }
            SequenceKind::Topic if validate_topic(stream.name).is_ok() => {
                self.receivers_of(stream.name)
            }
            SequenceKind::Topic => Vec::new(),
        };
        if receivers.is_empty() {
            return;
        }
        let (mut messages, mut changes) = (0, 0);
        for entry in stream.entries {
            let Some(entry) = entry else {
                self.counters.backplane_malformed.add_shared(1);
                break;
            };
            messages += u64::from(entry.is_message());
            changes += u64::from(entry.is_change());
        }
        let Some(peer) = self.peers.all.get_mut(node) else {
            return;
        };
        let counts = (messages, changes);
        let arrival = peer
            .streams
            .arrive(stream.kind, stream.name, stream.point, counts);
        peer.received += messages - arrival.known;
        if arrival.lost > 0 {
            peer.lost = peer.lost.saturating_add(arrival.lost);
            self.counters.backplane_lost.add_shared(arrival.lost);
            self.tell_gap(&receivers, arrival.lost);
        }
        if arrival.is_stale {
            self.note_stale(node, stream.name);
        }
        let mut known = arrival.known;
        for entry in stream.entries.flatten() {
            if entry.is_message() && known > 0 {
                known -= 1;
                continue;
            }
            if entry.is_change() && arrival.has_known_changes {
                continue;
            }
            self.handle_entry(node, stream, &receivers, &entry);
        }
        self.counters
            .backplane_received
            .add_shared(messages - arrival.known);
    }

    fn handle_entry(
        &mut self,
        node: &Arc<str>,
        stream: &SequencePacket<'_>,
        receivers: &[Arc<SharedRoom>],
        entry: &Entry<'_>,
    ) {
        match (stream.kind, *entry) {
            (
                SequenceKind::Room,
                Entry::ChatMessage {
                    member,
                    name,
                    payload,
                },
            ) => {
                if let Some(author) = self.author(node, stream.name, (member, name)) {
                    self.deliver_chat_message(receivers, &author, payload);
                }
            }
            (SequenceKind::Topic, Entry::Published { payload }) => {
                self.deliver_published(stream.name, receivers, payload);
            }
            (SequenceKind::Room, Entry::Joined { member, name }) => {
                self.handle_joined(node, stream.name, member, name);
            }
            (SequenceKind::Room, Entry::Left { member }) => {
                self.handle_left(node, stream.name, member);
            }
            (SequenceKind::Room, Entry::Here(here)) => self.handle_here(node, stream.name, &here),
            _ => self.counters.backplane_malformed.add_shared(1),
        }
    }

    fn deliver_chat_message(
        &mut self,
        receivers: &[Arc<SharedRoom>],
        author: &Author,
        payload: &[u8],
    ) {
        if !self.fits(receivers, payload.len(), FRAME_OVERHEAD_BYTES_MAX) {
            return;
        }
        for shared in receivers {
            let mut frame = Vec::with_capacity(payload.len() + FRAME_OVERHEAD_BYTES_MAX);
            if self.frame_message(shared, author, payload, &mut frame) {
                self.send(shared, &frame);
            }
        }
    }

    /// Whether a message fits the frames of this node. The node of its author may allow longer ones; then it is a loss here.
    fn fits(&mut self, receivers: &[Arc<SharedRoom>], bytes: usize, overhead: usize) -> bool {
        let fits = self.config.fits_shared_frame(bytes, overhead);
        if !fits {
            self.counters.backplane_lost.add_shared(1);
            self.tell_gap(receivers, 1);
        }
        fits
    }

    /// Frames a message with its author's name, unless the members were told of the author.
    fn frame_message(
        &self,
        shared: &SharedRoom,
        author: &Author,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        let codec = &self.config.codec;
        let Author {
            member,
            name,
            is_listed,
        } = author;
        if !is_listed && codec.has_room_frames() && !name.is_empty() {
            let message = Message::with_id(Kind::Deliver, shared.alias, member.0, payload);
            if codec.encode(&message.with_name(name), out).is_ok() {
                return true;
            }
        }
        let message = ChatMessage {
            channel: shared.alias,
            member: *member,
            name,
            private: false,
            payload,
        };
        codec.encode_chat_message(&message, out).is_ok()
    }

    fn deliver_published(&mut self, topic: &str, receivers: &[Arc<SharedRoom>], payload: &[u8]) {
        // The node of the publisher has checked the same.
        let overhead = PUBLISHED_OVERHEAD_BYTES + topic.len();
        if !self.fits(receivers, payload.len(), overhead) {
            return;
        }
        for shared in receivers {
            let name = if shared.is_wildcard { topic } else { "" };
            let message = Message::new(Kind::Deliver, shared.alias, payload).with_name(name);
            let mut frame = Vec::with_capacity(payload.len() + overhead);
            if self.config.codec.encode(&message, &mut frame).is_ok() {
                self.send(shared, &frame);
            }
        }
    }

    /// The patterns that match a topic and have subscribers here, but not the topic itself if a stream has its messages.
    fn receivers_of(&mut self, topic: &str) -> Vec<Arc<SharedRoom>> {
        self.directory.refresh(&mut self.routes);
        let mut matches = Vec::new();
        self.routes.each_match(topic, |shared| {
            if !shared.lanes().is_empty() && !shared.is_fed() {
                matches.push(Arc::clone(shared));
            }
        });
        matches
    }

    /// Tells the members or subscribers here how many messages are missing.
    fn tell_gap(&mut self, receivers: &[Arc<SharedRoom>], lost: u64) {
        for shared in receivers {
            let mut frame = Vec::new();
            let codec = &self.config.codec;
            // A codec without gap notices cannot tell; the loss is counted.
            if codec.encode_gap(shared.alias, lost, &mut frame).is_ok() {
                // A lane that drops it tells the number later. The loss is counted already.
                let to = (shared.alias, lost);
                let _ = self.to_lanes.send(codec, shared.lanes(), to, &frame);
            }
        }
    }

    /// Sends a message of the room itself to the members of all rooms on this node.
    pub(super) fn announce_everywhere(&mut self, text: &str) {
        let rooms: Vec<Arc<SharedRoom>> = self
            .rooms
            .values()
            .map(|room| Arc::clone(&room.shared))
            .collect();
        for shared in rooms {
            if let Some(frame) = self.frame_announcement(&shared, text) {
                self.send(&shared, &frame);
            }
        }
    }

    /// Sends a message of the room itself to one member on this node.
    pub(super) fn announce_to(&mut self, room: &str, member: MemberId, text: &str) {
        let local = self.rooms.get(room);
        let frame = local.and_then(|room| self.frame_announcement(&room.shared, text));
        if let (Some(id), Some(frame)) = (self.directory.session_in(room, member), frame) {
            // A lane that is so far behind drops it, as it drops messages.
            let _ = self.to_lanes.send_to(id, &frame);
        }
    }

    fn frame_announcement(&self, shared: &SharedRoom, text: &str) -> Option<Vec<u8>> {
        let author = Author {
            member: MemberId(0),
            name: "".into(),
            is_listed: true,
        };
        let mut frame = Vec::new();
        let fits = self.frame_message(shared, &author, text.as_bytes(), &mut frame);
        fits.then_some(frame)
    }

    pub(super) fn send(&mut self, shared: &SharedRoom, frame: &[u8]) {
        let codec = &self.config.codec;
        let dropped = self
            .to_lanes
            .send(codec, shared.lanes(), (shared.alias, 1), frame);
        self.counters.backplane_dropped.add_shared(dropped);
    }

    fn handle_whisper(
        &mut self,
        node: &Arc<str>,
        room: &str,
        target: MemberId,
        message: &Entry<'_>,
    ) {
        let Entry::ChatMessage {
            member,
            name,
            payload,
        } = *message
        else {
            return;
        };
        let session = self.directory.session_in(room, target);
        let author = self.author(node, room, (member, name));
        let shared = self.rooms.get(room).map(|room| room.shared.alias);
        let (Some(id), Some(author), Some(channel)) = (session, author, shared) else {
            return self.counters.backplane_dropped.add_shared(1);
        };
        let message = ChatMessage {
            channel,
            member: author.member,
            name: &author.name,
            private: true,
            payload,
        };
        let mut frame = Vec::new();
        let encoded = self.config.codec.encode_chat_message(&message, &mut frame);
        if encoded.is_ok() && self.to_lanes.send_to(id, &frame) {
            self.counters.backplane_received.add_shared(1);
        } else {
            self.counters.backplane_dropped.add_shared(1);
        }
    }
}
