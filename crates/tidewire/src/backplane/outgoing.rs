//! From the lanes to other nodes: the messages of a turn become one packet for each room and topic.

use std::collections::HashMap;

use tidewire_proto::backplane::entry::encode_here;
use tidewire_proto::backplane::{
    Entries, SequenceKind, SequencePoint, encode_sequence, encode_whisper,
};

use super::{Node, Subject, Wire};
use crate::broker::{Addressee, Item, RoomOrTopic};
use crate::session::SessionId;

/// A packet that is being filled.
#[derive(Debug)]
struct Draft {
    kind: SequenceKind,
    name: Box<str>,
    entries: Vec<u8>,
    messages: u64,
    changes: u64,
}

/// The packets of one batch.
#[derive(Debug, Default)]
struct Drafts {
    all: Vec<Draft>,
    /// The draft that is being filled, for each room and topic.
    index: HashMap<(SequenceKind, Box<str>), usize>,
    /// The draft of the last entry, because most follow one of the same room.
    last: usize,
}

impl Drafts {
    /// Returns the draft of a room or topic that has room for this many bytes.
    fn draft(
        &mut self,
        kind: SequenceKind,
        name: &str,
        bytes: usize,
        bytes_max: usize,
    ) -> &mut Draft {
        let is_last = |draft: &Draft| draft.kind == kind && &*draft.name == name;
        let index = match self.all.get(self.last) {
            Some(draft) if is_last(draft) => Some(self.last),
            _ => self.index.get(&(kind, Box::from(name))).copied(),
        };
        let fits = |draft: &Draft| draft.entries.len() + bytes <= bytes_max;
        let index = match index {
            Some(index) if fits(&self.all[index]) => index,
            _ => {
                let index = self.all.len();
                self.all.push(Draft {
                    kind,
                    name: name.into(),
                    entries: Vec::new(),
                    messages: 0,
                    changes: 0,
                });
                self.index.insert((kind, name.into()), index);
                index
            }
        };
        self.last = index;
        &mut self.all[index]
    }
}

impl Node {
    /// Sends the messages of one turn of a lane.
    pub(super) fn send_batch(&mut self, mut batch: &[u8], wire: &mut dyn Wire) {
        let bytes_max = self.entry_bytes_max();
        let mut drafts = Drafts::default();
        while let Some(item) = Item::decode(&mut batch) {
            let entry = Entries::new(item.entry).next().flatten();
            let (kind, entry) = match (item.to, entry) {
                (Addressee::Own(news, session), _) => {
                    self.stored.note(news, SessionId::from_number(session));
                    continue;
                }
                (_, None) => continue,
                (Addressee::Member { node, member }, Some(entry)) => {
                    let mut packet = Vec::new();
                    let me = self.me.borrow();
                    encode_whisper(me, item.name, member, &entry, &mut packet);
                    let is_sent = self.publish(Subject::Node(node), &packet, wire);
                    self.count(1, is_sent);
                    continue;
                }
                (Addressee::Stream { kind, session }, _) => {
                    let session = SessionId::from_number(session);
                    self.append(&RoomOrTopic::new(kind, item.name), session, item.entry);
                    continue;
                }
                (Addressee::Room, Some(entry)) => (SequenceKind::Room, entry),
                (Addressee::Topic, Some(entry)) => (SequenceKind::Topic, entry),
            };
            if !self.tells_change(item.name, &entry) {
                continue;
            }
            let draft = drafts.draft(kind, item.name, item.entry.len(), bytes_max);
            draft.entries.extend_from_slice(item.entry);
            draft.messages += u64::from(entry.is_message());
            draft.changes += u64::from(entry.is_change());
        }
        for draft in drafts.all {
            self.send_stream(
                (draft.kind, &draft.name),
                (draft.messages, draft.changes),
                &draft.entries,
                wire,
            );
        }
    }

    /// Sends entries of a stream. The position counts them even if they cannot go out, so that the others find them missing. Returns
    /// whether they went out.
    pub(super) fn send_stream(
        &mut self,
        (kind, name): (SequenceKind, &str),
        (messages, changes): (u64, u64),
        entries: &[u8],
        wire: &mut dyn Wire,
    ) -> bool {
        let position = self.sent.next(kind, name, (messages, changes), STREAMS_MAX);
        let mut packet = Vec::with_capacity(entries.len() + name.len() + HEADER_BYTES);
        encode_sequence(self.me.borrow(), (kind, name), position, &mut packet);
        packet.extend_from_slice(entries);
        let is_sent = packet.len() <= self.packet_bytes_max
            && self.publish(subject(kind, name), &packet, wire);
        self.count(messages, is_sent);
        is_sent
    }

    /// Tells the position of a stream, and that a room has no members here, because nothing else would tell that the last change was
    /// lost. Returns whether it was sent.
    pub(super) fn send_position(
        &self,
        kind: SequenceKind,
        name: &str,
        position: SequencePoint,
        wire: &mut dyn Wire,
    ) -> bool {
        let mut packet = Vec::new();
        encode_sequence(self.me.borrow(), (kind, name), position, &mut packet);
        if kind == SequenceKind::Room && !self.rooms.contains_key(name) {
            encode_here(false, 0, std::iter::empty(), &mut packet);
        }
        // If it is lost on its way, the next message or question tells the position.
        self.publish(subject(kind, name), &packet, wire)
    }

    pub(super) fn publish(&self, to: Subject<'_>, packet: &[u8], wire: &mut dyn Wire) -> bool {
        !self.is_cut_off() && wire.publish(to, packet)
    }

    pub(super) fn count(&self, messages: u64, is_sent: bool) {
        match is_sent {
            true => self.counters.backplane_sent.add_shared(messages),
            false => self.counters.backplane_unsent.add_shared(messages),
        }
    }

    /// Most bytes of entries in a packet.
    pub(super) fn entry_bytes_max(&self) -> usize {
        let limit = self.packet_bytes_max;
        limit.saturating_sub(tidewire_proto::backplane::PACKET_OVERHEAD_BYTES_MAX)
    }
}

fn subject(kind: SequenceKind, name: &str) -> Subject<'_> {
    match kind {
        SequenceKind::Room => Subject::Room(name),
        SequenceKind::Topic => Subject::Topic(name),
    }
}

/// Streams whose positions a node remembers. A stream takes some 150 bytes here, and as many at each node that receives it.
const STREAMS_MAX: usize = 131_072;

/// Room for the fixed fields of a packet's header.
const HEADER_BYTES: usize = 96;
