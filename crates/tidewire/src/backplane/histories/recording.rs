//! From a history of the carrier to the messages on this node, and to the lanes. [`histories`](super) has the order.

use std::time::Instant;

use tidewire_proto::backplane::{Content, Entry, Packet, SequenceKind};
use tidewire_proto::body::validate_name;
use tidewire_proto::message::MemberId;

use super::{Histories, HistoryMessage};
use crate::backplane::author::Author;
use crate::backplane::peers::Peers;
use crate::backplane::presence::Presence;
use crate::backplane::to_lanes::ToLanes;
use crate::broker::RoomOrTopic;
use crate::history::{NodeHistory, encode_live};
use crate::room::{FRAME_OVERHEAD_BYTES_MAX, RECORDED_OVERHEAD_BYTES};
use crate::session::SessionId;

/// The parts of the node that know the author of a message, and bring the message to the lanes.
#[derive(Debug)]
pub(in crate::backplane) struct Audience<'n> {
    peers: &'n Peers,
    presence: &'n mut Presence,
    lanes: &'n mut ToLanes,
}

impl<'n> Audience<'n> {
    pub(in crate::backplane) fn new(
        peers: &'n Peers,
        presence: &'n mut Presence,
        lanes: &'n mut ToLanes,
    ) -> Self {
        Self {
            peers,
            presence,
            lanes,
        }
    }
}

/// A message of a packet.
struct PacketMessage<'p> {
    author: Author,
    /// The author's session on this node.
    session: SessionId,
    payload: &'p [u8],
}

impl Histories {
    /// Records a packet that was read. Those between the last one and this one are lost.
    pub(super) fn record_at(
        &mut self,
        name: &RoomOrTopic,
        message: HistoryMessage<'_>,
        now: Instant,
        audience: &mut Audience<'_>,
    ) {
        let followed = self.followed.get(name);
        let Some(history) = followed.and_then(|followed| followed.messages()) else {
            return;
        };
        if message.offset <= history.last().offset {
            return self.confirm_own(name, message.packet, now);
        }
        self.skip_to(name, message.offset - 1, audience);
        self.record(name, message.packet, now, audience);
    }

    /// Records the packets that came early, up to the next one that is missing.
    pub(super) fn record_early(
        &mut self,
        name: &RoomOrTopic,
        now: Instant,
        audience: &mut Audience<'_>,
    ) {
        while let Some(followed) = self.followed.get_mut(name)
            && let Some(next) = followed.take_early()
        {
            if let Some(packet) = next {
                self.record(name, &packet, now, audience);
            }
        }
    }

    /// Passes over packets that the history does not have any more.
    pub(super) fn skip_to(&mut self, name: &RoomOrTopic, offset: u64, audience: &mut Audience<'_>) {
        let followed = self.followed.get_mut(name);
        let lost = followed.map_or(0, |followed| followed.skip_to(offset));
        if lost > 0 {
            self.counters.backplane_lost.add_shared(lost);
            self.send_hole(name, offset, audience);
        }
    }

    /// Lets the lanes look into the history, up to an offset. They tell their members what is missing there.
    pub(super) fn send_hole(&self, name: &RoomOrTopic, offset: u64, audience: &mut Audience<'_>) {
        if let Some(shared) = self.directory.receiver_of_history(name) {
            audience
                .lanes
                .send_recorded(&shared, (offset, SessionId::NONE), &[]);
        }
    }

    /// Records the next packet of a history, and delivers its message to the lanes.
    pub(super) fn record(
        &mut self,
        name: &RoomOrTopic,
        packet: &[u8],
        now: Instant,
        audience: &mut Audience<'_>,
    ) {
        let Some(followed) = self.followed.get_mut(name) else {
            return;
        };
        let Some(history) = followed.messages().cloned() else {
            return;
        };
        let is_wanted = followed.is_wanted();
        let packet = Packet::decode(packet).ok();
        followed.note_id(packet.as_ref());
        let message = packet.and_then(|packet| self.read_message(name, packet, now, audience));
        let Some(message) = message else {
            self.counters.backplane_malformed.add_shared(1);
            return self.record_hole(name, &history, audience);
        };
        let PacketMessage {
            author,
            session,
            payload,
        } = message;
        let overhead = match name {
            RoomOrTopic::Room(_) => FRAME_OVERHEAD_BYTES_MAX + author.name().len(),
            RoomOrTopic::Topic(topic) => RECORDED_OVERHEAD_BYTES + topic.len(),
        };
        if !self.config.fits_shared_frame(payload.len(), overhead) {
            self.counters.backplane_lost.add_shared(1);
            return self.record_hole(name, &history, audience);
        }
        if is_wanted && !history.has_room_for(author.name(), payload) {
            self.counters.history_skipped.add_shared(1);
        }
        history.record(author.member(), author.name(), payload);
        // A lane that gets its first member later finds the message in the history. So the lanes are read after the
        // record.
        let shared = self.directory.receiver_of_history(name);
        let Some(shared) = shared.filter(|shared| !shared.lanes().is_empty()) else {
            return;
        };
        let offset = history.last().offset;
        let mut frame = Vec::with_capacity(payload.len() + overhead);
        let codec = self.config.codecs.main();
        let told = (author.member(), author.name(), author.is_listed());
        // A lane that gets no frame takes the message from the history.
        let of = (shared.alias(), name.kind() == SequenceKind::Topic);
        if encode_live(codec, of, offset, told, payload, &mut frame).is_err() {
            frame.clear();
        }
        audience
            .lanes
            .send_recorded(&shared, (offset, session), &frame);
    }

    /// Records that the next message cannot be shown, and lets the lanes tell their members that it is missing.
    fn record_hole(&self, name: &RoomOrTopic, history: &NodeHistory, audience: &mut Audience<'_>) {
        history.record_hole();
        self.send_hole(name, history.last().offset, audience);
    }

    /// Returns the message of a packet. A message of a topic has no author.
    fn read_message<'p>(
        &mut self,
        of: &RoomOrTopic,
        packet: Packet<'p>,
        now: Instant,
        audience: &mut Audience<'_>,
    ) -> Option<PacketMessage<'p>> {
        let Content::Sequence(mut sequence) = packet.content else {
            return None;
        };
        if (sequence.kind, sequence.name) != (of.kind(), of.text()) {
            return None;
        }
        let (member, name, payload) = match (of, sequence.entries.next()??) {
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
            self.confirm(of, sequence.point.message, now);
            let session = self.directory.session_in(of.text(), member);
            let session = session.filter(|_| !is_announced);
            return Some(PacketMessage {
                author: Author::listed(member, name),
                session: session.unwrap_or(SessionId::NONE),
                payload,
            });
        }
        self.counters.backplane_received.add_shared(1);
        let node = audience.peers.living(packet.from);
        let node = node.filter(|_| of.kind() == SequenceKind::Room);
        let presence = &mut audience.presence;
        let known = node.and_then(|node| presence.author(&node, of.text(), (member, name)));
        let author = known.unwrap_or_else(|| match is_announced {
            true => Author::nameless(),
            // Numbers of members are those of a run of their node.
            false => Author::unlisted(MemberId(0), name),
        });
        Some(PacketMessage {
            author,
            session: SessionId::NONE,
            payload,
        })
    }

    /// Forgets a pending message if this is its packet, which the node has recorded already, or has passed over.
    pub(super) fn confirm_own(&mut self, name: &RoomOrTopic, packet: &[u8], now: Instant) {
        if let Ok(packet) = Packet::decode(packet)
            && let Content::Sequence(sequence) = packet.content
            && packet.from == self.me.borrow()
        {
            self.confirm(name, sequence.point.message, now);
        }
    }

    /// Forgets a pending message that the history has given back.
    fn confirm(&mut self, name: &RoomOrTopic, number: u64, now: Instant) {
        let Some(followed) = self.followed.get_mut(name) else {
            return;
        };
        let Some(confirmed) = followed.pending().confirm(number, now) else {
            return self.confirmations.end_doubt(number);
        };
        self.confirmations.end(confirmed.span(), true);
        self.pending_bytes -= confirmed.bytes();
        if followed.pending().is_next_unappended() {
            self.due.insert(name.clone());
        }
    }
}
