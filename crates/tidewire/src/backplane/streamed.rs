//! From the stream of a room or topic to its history on this node, and to the lanes. [`kept`](super::kept) has the order.

use std::sync::Arc;
use std::time::Instant;

use tidewire_proto::backplane::{Content, Entry, Packet, SequenceKind};
use tidewire_proto::body::validate_name;
use tidewire_proto::message::MemberId;

use super::Node;
use super::kept_stream::id_of;
use super::presence::Author;
use crate::broker::RoomOrTopic;
use crate::room::{FRAME_OVERHEAD_BYTES_MAX, Feed, RECORDED_OVERHEAD_BYTES, encode_streamed};
use crate::session::SessionId;

impl Node {
    /// Records the next packet of a stream, and delivers its message to the lanes.
    pub(super) fn record(&mut self, name: &RoomOrTopic, packet: &[u8], now: Instant) {
        let Some(kept) = self.kept.streams.get_mut(name) else {
            return;
        };
        let Some(feed) = kept.feed.clone() else {
            return;
        };
        let packet = Packet::decode(packet).ok();
        kept.note_id(id_of(packet.as_ref()));
        let message = packet.and_then(|packet| self.read_message(name, packet, now));
        let Some((author, session, payload)) = message else {
            self.counters.backplane_malformed.add_shared(1);
            return self.record_hole(name, &feed);
        };
        let overhead = match name {
            RoomOrTopic::Room(_) => FRAME_OVERHEAD_BYTES_MAX + author.name.len(),
            RoomOrTopic::Topic(topic) => RECORDED_OVERHEAD_BYTES + topic.len(),
        };
        if !self.config.fits_shared_frame(payload.len(), overhead) {
            self.counters.backplane_lost.add_shared(1);
            return self.record_hole(name, &feed);
        }
        if self.kept.is_wanted(name) && !feed.has_room_for(&author.name, payload) {
            self.counters.history_skipped.add_shared(1);
        }
        feed.record(author.member, &author.name, payload);
        // A lane that gets its first member later finds the message in the history. So the lanes are read behind the record.
        let shared = self.directory.fed(name);
        let Some(shared) = shared.filter(|shared| !shared.lanes().is_empty()) else {
            return;
        };
        let (lanes, alias) = (shared.lanes(), shared.alias);
        let offset = feed.last().offset;
        let mut frame = Vec::with_capacity(payload.len() + overhead);
        let codec = &self.config.codec;
        let told = (author.member, &*author.name, author.is_listed);
        // A lane that gets no frame takes the message from the history.
        let of = (alias, name.kind() == SequenceKind::Topic);
        if encode_streamed(codec, of, offset, told, payload, &mut frame).is_err() {
            frame.clear();
        }
        self.to_lanes
            .send_recorded(lanes, alias, (offset, session), &frame);
    }

    /// Records that the next message cannot be shown, and lets the lanes tell their members that it is missing.
    fn record_hole(&mut self, name: &RoomOrTopic, feed: &Feed) {
        feed.record_hole();
        self.send_hole(name, feed.last().offset);
    }

    /// Returns the author of a packet's message, the author's session on this node, and the payload. A message of a topic has no
    /// author.
    fn read_message<'p>(
        &mut self,
        of: &RoomOrTopic,
        packet: Packet<'p>,
        now: Instant,
    ) -> Option<(Author, SessionId, &'p [u8])> {
        let Content::Sequence(mut stream) = packet.content else {
            return None;
        };
        if (stream.kind, stream.name) != (of.kind(), of.text()) {
            return None;
        }
        let (member, name, payload) = match (of, stream.entries.next()??) {
            (
                RoomOrTopic::Room(_),
                Entry::ChatMessage {
                    member,
                    name,
                    payload,
                },
            ) => (member, name, payload),
            (RoomOrTopic::Topic(_), Entry::Published { payload }) => (MemberId(0), "", payload),
            _ => return None,
        };
        let is_announced = member == MemberId(0);
        if !is_announced && validate_name(name).is_err() {
            return None;
        }
        let name = if is_announced { "" } else { name };
        if packet.from == self.me.borrow() {
            self.confirm(of, stream.point.message, now);
            let session = self.directory.session_in(of.text(), member);
            let session = session.filter(|_| !is_announced);
            let author = Author {
                member,
                name: name.into(),
                is_listed: true,
            };
            return Some((author, session.unwrap_or(SessionId::NONE), payload));
        }
        self.counters.backplane_received.add_shared(1);
        let peers = &self.peers.all;
        let node = peers.get_key_value(packet.from.node);
        let node = node.filter(|(_, peer)| peer.epoch == packet.from.epoch && peer.is_alive);
        let node = node.map(|(id, _)| Arc::clone(id));
        let node = node.filter(|_| of.kind() == SequenceKind::Room);
        let known = node.and_then(|node| self.author(&node, of.text(), (member, name)));
        // Numbers of members are those of a run of their node.
        let author = known.unwrap_or_else(|| Author {
            member: MemberId(0),
            name: name.into(),
            is_listed: is_announced,
        });
        Some((author, SessionId::NONE, payload))
    }
}
