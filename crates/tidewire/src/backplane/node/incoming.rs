//! From other nodes to the parts of this one.

use std::sync::Arc;
use std::time::Instant;

use tidewire_proto::backplane::sequence::EntryCounts;
use tidewire_proto::backplane::{
    ALIVE_ANSWERS, ALIVE_ASKS, ALIVE_ECHO, ALIVE_LEAVES, ALIVE_OBJECTS, Content, Directed, Entry,
    NodeLife, Packet, SequenceKind, SequencePacket,
};
use tidewire_proto::message::MemberId;
use tidewire_proto::topic::validate_topic;

use super::Node;
use crate::backplane::BackplaneError;
use crate::backplane::peers::PeerNews;
use crate::room::{FRAME_OVERHEAD_BYTES_MAX, PUBLISHED_OVERHEAD_BYTES, SharedRoom};
use crate::session::SessionId;

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
        let me = self.engine.me();
        if packet.from.node == me.node {
            if packet.from != me {
                self.handle_namesake(&packet.content);
            }
            return;
        }
        let Some((node, news)) = self.peers.hear(packet.from, now) else {
            return self.counters.backplane_malformed.add_shared(1);
        };
        match news {
            PeerNews::Restarted => self.forget(&node),
            PeerNews::Former => return self.counters.backplane_duplicates.add_shared(1),
            PeerNews::Late => return,
            PeerNews::New | PeerNews::None => {}
        }
        if news != PeerNews::None {
            tracing::info!(node = &*node, "another node is there");
            // Its rooms and sequences are not known yet.
            self.peers.ask(&node);
        }
        let from = NodeLife {
            node: Arc::clone(&node),
            epoch: packet.from.epoch,
        };
        match packet.content {
            Content::Alive { flags, beat } => self.handle_alive(&node, flags, beat, now),
            Content::Sequence(sequence) => self.handle_sequence(&node, &sequence),
            Content::Whisper {
                room,
                target,
                message,
            } => {
                self.handle_whisper(&node, room, target, &message);
            }
            Content::Directed(directed) => self.handle_directed(&directed),
            Content::Asked(asked) => self.requests.handle_asked(from, &asked, now),
            Content::Answered(answered) => self.requests.handle_answered(&answered),
            Content::Working(working) => self.requests.handle_working(&node, &working),
            Content::GivenUp { request } => self.requests.handle_given_up(from, request),
        }
    }

    /// Handles a packet of another run with this node's id.
    fn handle_namesake(&mut self, content: &Content<'_>) {
        let asks = matches!(content, Content::Alive { flags, .. } if flags & ALIVE_ASKS != 0);
        let is_starting = self.membership.is_starting();
        // Two that start together both object, so neither starts.
        if is_starting || asks {
            let namesake = self.engine.me().node.into();
            self.heartbeats.reply_later(namesake, ALIVE_OBJECTS, 0);
        }
        if is_starting {
            let id = self.settings.id.clone();
            return self.membership.fail(BackplaneError::DuplicateNode { id });
        }
        if self.membership.is_first_namesake() {
            tracing::error!(
                node = self.settings.id,
                "another node has this id; stop one of them, because neither hears the other"
            );
        }
        self.counters.backplane_duplicates.add_shared(1);
    }

    /// Handles the heartbeat of another node.
    fn handle_alive(&mut self, node: &Arc<str>, flags: u8, beat: u64, now: Instant) {
        if flags & ALIVE_LEAVES != 0 {
            tracing::info!(node = &**node, "a node has ended");
            self.forget(node);
            return self.peers.end(node, now);
        }
        if flags & ALIVE_ASKS != 0 {
            self.tells_all = true;
        }
        if flags & ALIVE_ECHO != 0 {
            let to = Arc::clone(node);
            self.heartbeats.reply_later(to, ALIVE_ANSWERS, beat);
        }
        if flags & ALIVE_ANSWERS != 0
            && let Some(lag) = self.heartbeats.time_since_ping(beat, now)
        {
            self.peers.note_lag(node, lag);
        }
    }

    fn handle_sequence(&mut self, node: &Arc<str>, packet: &SequencePacket<'_>) {
        let receivers: Vec<Arc<SharedRoom>> = match packet.kind {
            SequenceKind::Room => {
                let openings = &mut self.openings;
                let room = self.presence.open_early(packet.name, openings);
                room.into_iter().collect()
            }
            SequenceKind::Topic if validate_topic(packet.name).is_ok() => {
                self.topics.receivers_of(packet.name)
            }
            SequenceKind::Topic => Vec::new(),
        };
        if receivers.is_empty() {
            return;
        }
        let mut counts = EntryCounts::default();
        for entry in packet.entries {
            let Some(entry) = entry else {
                self.counters.backplane_malformed.add_shared(1);
                break;
            };
            counts.add(&entry);
        }
        let Some(arrival) = self.peers.arrive(node, packet, counts) else {
            return;
        };
        if arrival.lost > 0 {
            self.counters.backplane_lost.add_shared(arrival.lost);
            self.lanes.tell_gap(&receivers, arrival.lost);
        }
        if arrival.is_stale {
            self.peers.ask_for_members(node, packet.name);
        }
        let mut known = arrival.known;
        for entry in packet.entries.flatten() {
            if entry.is_message() && known > 0 {
                known -= 1;
                continue;
            }
            if entry.is_change() && arrival.has_known_changes {
                continue;
            }
            self.handle_entry(node, packet, &receivers, &entry);
        }
        self.counters
            .backplane_received
            .add_shared(counts.messages - arrival.known);
    }

    fn handle_entry(
        &mut self,
        node: &Arc<str>,
        packet: &SequencePacket<'_>,
        receivers: &[Arc<SharedRoom>],
        entry: &Entry<'_>,
    ) {
        let (presence, lanes) = (&mut self.presence, &mut self.lanes);
        match (packet.kind, *entry) {
            (
                SequenceKind::Room,
                Entry::ChatMessage {
                    member,
                    name,
                    payload,
                },
            ) => {
                if let Some(author) = presence.author(node, packet.name, (member, name))
                    && self.fits(receivers, payload.len(), FRAME_OVERHEAD_BYTES_MAX)
                {
                    for shared in receivers {
                        self.lanes.say(shared, &author, payload);
                    }
                }
            }
            (SequenceKind::Topic, Entry::Published { payload }) => {
                // The node of the publisher has checked the same.
                let overhead = PUBLISHED_OVERHEAD_BYTES + packet.name.len();
                if self.fits(receivers, payload.len(), overhead) {
                    for shared in receivers {
                        self.lanes.publish(shared, packet.name, payload);
                    }
                }
            }
            (SequenceKind::Room, Entry::Joined { member, name }) => {
                presence.join(node, packet.name, (member, name), lanes);
            }
            (SequenceKind::Room, Entry::Left { member }) => {
                presence.leave(node, packet.name, member, lanes);
            }
            (SequenceKind::Room, Entry::Here(here)) => {
                if presence.has(packet.name) {
                    self.peers.note_told(node, packet.name);
                }
                presence.replace(node, packet.name, &here, lanes);
            }
            _ => self.counters.backplane_malformed.add_shared(1),
        }
    }

    /// Whether a message fits the frames of this node. The node of its author may allow longer ones; then it is a loss
    /// here.
    fn fits(&mut self, receivers: &[Arc<SharedRoom>], bytes: usize, overhead: usize) -> bool {
        let fits = self.config.fits_shared_frame(bytes, overhead);
        if !fits {
            self.counters.backplane_lost.add_shared(1);
            self.lanes.tell_gap(receivers, 1);
        }
        fits
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
        let author = self.presence.author(node, room, (member, name));
        let alias = self.presence.room(room).map(|shared| shared.alias());
        let is_delivered = match (session, author, alias) {
            (Some(id), Some(author), Some(alias)) => {
                self.lanes.whisper(id, alias, &author, payload)
            }
            _ => false,
        };
        self.count_delivered(is_delivered);
    }

    /// Delivers a message of another node to its session.
    fn handle_directed(&mut self, directed: &Directed<'_>) {
        let id = SessionId::from_number(directed.session);
        let is_for_this_run = directed.epoch == self.engine.me().epoch;
        let is_delivered = is_for_this_run && self.lanes.send_message_to(id, &directed.message);
        self.count_delivered(is_delivered);
    }

    fn count_delivered(&self, is_delivered: bool) {
        match is_delivered {
            true => self.counters.backplane_received.add_shared(1),
            false => self.counters.backplane_dropped.add_shared(1),
        }
    }
}
