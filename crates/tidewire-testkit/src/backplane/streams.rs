//! The streams of the engine within the process.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tidewire::History;
use tidewire::backplane::{HistoryState, RoomOrTopic};

/// The streams of rooms and topics that keep a history.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: HashMap<RoomOrTopic, Stream>,
    saved: HashMap<RoomOrTopic, Stream>,
    made: u64,
    replaced: usize,
}

#[derive(Clone, Debug)]
struct Stream {
    epoch: u64,
    last: u64,
    messages_max: usize,
    packets: VecDeque<Arc<[u8]>>,
    ids: HashSet<String>,
}

impl Streams {
    /// Whether there is a stream for this room or topic.
    pub(super) fn has(&self, name: &RoomOrTopic) -> bool {
        self.all.contains_key(name)
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Keeps a copy of all streams.
    pub(super) fn save(&mut self) {
        self.saved.clone_from(&self.all);
    }

    /// Replaces all streams by the copy.
    pub(super) fn restore(&mut self) {
        self.all.clone_from(&self.saved);
    }

    /// Makes all streams again, with sequences below the former ones.
    pub(super) fn begin_lower(&mut self) {
        for stream in self.all.values_mut() {
            self.made += 1;
            stream.epoch = self.made;
            stream.last /= 2;
            stream.packets.clear();
            stream.ids.clear();
        }
    }

    pub(super) fn lose_ends(&mut self, packets: usize) {
        for stream in self.all.values_mut() {
            let kept = stream.packets.len().saturating_sub(packets);
            stream.last -= (stream.packets.len() - kept) as u64;
            stream.packets.truncate(kept);
            stream.ids.clear();
        }
    }

    /// Removes the stream of this epoch, so that the next read makes another stream.
    pub(super) fn replace(&mut self, name: &RoomOrTopic, epoch: u64) {
        if self.all.get(name).is_some_and(|it| it.epoch == epoch) {
            self.all.remove(name);
            self.replaced += 1;
        }
    }

    /// Counts the streams that nodes have replaced.
    pub(super) fn replaced(&self) -> usize {
        self.replaced
    }

    /// Appends a packet. Returns its sequence, unless the stream has it already.
    pub(super) fn append(
        &mut self,
        name: &RoomOrTopic,
        id: &str,
        packet: &Arc<[u8]>,
    ) -> Option<u64> {
        let stream = self.all.get_mut(name)?;
        if !stream.ids.insert(id.to_owned()) {
            return None;
        }
        stream.last += 1;
        stream.packets.push_back(Arc::clone(packet));
        if stream.packets.len() > stream.messages_max {
            stream.packets.pop_front();
        }
        Some(stream.last)
    }

    /// Counts the packets that a stream was given, each once.
    pub(super) fn appended(&self, name: &RoomOrTopic) -> usize {
        self.all.get(name).map_or(0, |stream| stream.ids.len())
    }

    /// Returns the packets of a stream from a sequence on. Makes the stream if there is none.
    pub(super) fn read(
        &mut self,
        name: &RoomOrTopic,
        limits: &History,
        from: u64,
    ) -> (HistoryState, Vec<Arc<[u8]>>) {
        let made = self.made + 1;
        let stream = self.all.entry(name.clone()).or_insert_with(|| Stream {
            epoch: made,
            last: made << 32,
            messages_max: limits.messages_max,
            packets: VecDeque::new(),
            ids: HashSet::new(),
        });
        self.made = self.made.max(stream.epoch);
        let first = stream.last + 1 - stream.packets.len() as u64;
        // A stream that ends earlier is not the stream that the node knows.
        let is_other = from > stream.last && from < u64::MAX;
        let known = from.saturating_sub(first) as usize * usize::from(!is_other);
        let packets = stream.packets.iter().skip(known).cloned().collect();
        let (epoch, last) = (stream.epoch, stream.last);
        (HistoryState { epoch, from, last }, packets)
    }
}
