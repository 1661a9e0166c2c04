//! The packets of one batch: the messages of a turn become one packet for each room and topic.

use std::collections::HashMap;

use tidewire_proto::backplane::sequence::EntryCounts;
use tidewire_proto::backplane::{Entry, SequenceKind};

use crate::backplane::Wire;
use crate::backplane::to_engine::ToEngine;

/// A packet that is being filled.
#[derive(Debug)]
struct Draft {
    kind: SequenceKind,
    name: Box<str>,
    entries: Vec<u8>,
    counts: EntryCounts,
}

/// The packets of one batch.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    all: Vec<Draft>,
    /// The draft that is being filled, for each room and topic.
    index: HashMap<(SequenceKind, Box<str>), usize>,
    /// The draft of the last entry, because most follow one of the same room.
    last: usize,
}

impl Drafts {
    /// Adds an entry, which is also given as its bytes, to the draft of its room or topic. A draft has at most
    /// `bytes_max`.
    pub(super) fn add(
        &mut self,
        (kind, name): (SequenceKind, &str),
        entry: &Entry<'_>,
        bytes: &[u8],
        bytes_max: usize,
    ) {
        let draft = self.draft(kind, name, bytes.len(), bytes_max);
        draft.entries.extend_from_slice(bytes);
        draft.counts.add(entry);
    }

    pub(super) fn send(self, engine: &mut ToEngine, wire: &mut dyn Wire) {
        for draft in self.all {
            let to = (draft.kind, &*draft.name);
            engine.send_entries(to, draft.counts, &draft.entries, wire);
        }
    }

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
                    counts: EntryCounts::default(),
                });
                self.index.insert((kind, name.into()), index);
                index
            }
        };
        self.last = index;
        &mut self.all[index]
    }
}
