//! From the lanes to other nodes.

use tidewire_proto::backplane::{Entries, Entry, SequenceKind, encode_whisper};
use tidewire_proto::message::MemberId;

use super::drafts::Drafts;
use super::{Node, PARTITIONED};
use crate::backplane::{Subject, Wire};
use crate::broker::{Addressee, Directed, Item, RoomOrTopic};
use crate::session::SessionId;

impl Node {
    /// Sends the messages of one turn of a lane.
    pub(super) fn send_batch(&mut self, mut batch: &[u8], wire: &mut dyn Wire) {
        let bytes_max = self.engine.entry_bytes_max();
        let mut drafts = Drafts::default();
        while let Some(item) = Item::decode(&mut batch) {
            let entry = Entries::new(item.entry).next().flatten();
            let (kind, entry) = match (item.to, entry) {
                (Addressee::Own(news, session), _) => {
                    let session = SessionId::from_number(session);
                    self.histories.note(news, session);
                    continue;
                }
                (_, None) => continue,
                (Addressee::Member { node, member }, Some(entry)) => {
                    self.send_whisper(item.name, (node, member), &entry, wire);
                    continue;
                }
                (Addressee::History { kind, session }, _) => {
                    let name = RoomOrTopic::new(kind, item.name);
                    let session = SessionId::from_number(session);
                    let packet_bytes_max = self.engine.packet_bytes_max();
                    self.histories
                        .append(&name, session, item.entry, packet_bytes_max);
                    continue;
                }
                (Addressee::Room, Some(entry)) => (SequenceKind::Room, entry),
                (Addressee::Topic, Some(entry)) => (SequenceKind::Topic, entry),
            };
            if let Entry::Joined { member, name } = entry {
                self.welcome(item.name, member, name);
            }
            if self.presence.tells(item.name, &entry) {
                drafts.add((kind, item.name), &entry, item.entry, bytes_max);
            }
        }
        drafts.send(&mut self.engine, wire);
    }

    fn send_whisper(
        &self,
        room: &str,
        (node, member): (&str, MemberId),
        message: &Entry<'_>,
        wire: &mut dyn Wire,
    ) {
        let mut packet = Vec::new();
        encode_whisper(self.engine.me(), room, member, message, &mut packet);
        let is_sent = self.engine.publish(Subject::Node(node), &packet, wire);
        self.engine.count(1, is_sent);
    }

    /// Shows namesakes on other nodes to the room of a new member of this one, and tells the member what all others
    /// were told.
    fn welcome(&mut self, room: &str, member: MemberId, name: &str) {
        self.presence.rename_namesakes(room, name, &mut self.lanes);
        if self.engine.is_cut_off_told()
            && let Some(shared) = self.presence.room(room)
            && let Some(id) = self.directory.session_in(room, member)
        {
            self.lanes.announce_to(id, shared.alias(), PARTITIONED);
        }
    }

    /// Sends a message for one session, or a step of a request.
    pub(super) fn send_directed(&mut self, directed: Directed, wire: &mut dyn Wire) {
        match directed {
            Directed::Message { to, packet } => {
                let is_sent = self.peers.living(to.borrow()).is_some()
                    && self.engine.publish(Subject::Node(&to.node), &packet, wire);
                self.engine.count(1, is_sent);
            }
            Directed::Request(work) => self.requests.send(work, &self.engine, wire),
        }
    }
}
