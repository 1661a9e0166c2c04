//! The state of a room or a topic pattern that all lanes share.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tidewire_proto::topic::Shape;

use crate::config::{CodecNumber, Codecs};
use crate::history::{MessageHistory, Numbering};
use crate::mailbox::{LaneSet, RECEIVERS_MAX, Receiver, SharedLaneSet};

/// The state of one room, or of the subscribers of one pattern, that the lanes share.
#[derive(Debug)]
pub(crate) struct SharedRoom {
    alias: u16,
    /// The name of the room, or the text of the pattern, or that of a queue group.
    name: Arc<str>,
    is_topic: bool,
    /// The shape of a pattern with a wildcard, whose deliveries must name their topic.
    shape: Option<Shape>,
    /// The address of the session that opened the room. The room counts for this address as long as the room exists.
    owner: Option<IpAddr>,
    /// The lanes that have members, the node while messages go to other nodes, too, and whether members have another
    /// codec than the main one.
    receivers: SharedLaneSet,
    /// The lanes that have members with each codec. Empty before the first member with another than the main one.
    by_codec: OnceLock<Box<[SharedLaneSet]>>,
    /// The lanes on which a subscriber blocks the room's publishers.
    congested: SharedLaneSet,
    /// The room's history, from the first join that asked for one.
    history: OnceLock<Arc<MessageHistory>>,
    /// The unsent messages of the only subscriber, if this is a subscription in a queue group.
    unsent: Option<AtomicU64>,
}

/// Members or subscribers by lane, and the node.
#[derive(Debug)]
pub(super) struct LaneCounts([u32; RECEIVERS_MAX]);

impl SharedRoom {
    /// A room without members.
    pub(super) fn room(alias: u16, name: &str, owner: Option<IpAddr>) -> Self {
        Self {
            alias,
            name: name.into(),
            is_topic: false,
            shape: None,
            owner,
            receivers: SharedLaneSet::default(),
            by_codec: OnceLock::new(),
            congested: SharedLaneSet::default(),
            history: OnceLock::new(),
            unsent: None,
        }
    }

    /// A pattern without subscribers.
    pub(super) fn pattern(
        alias: u16,
        text: &str,
        shape: Option<Shape>,
        owner: Option<IpAddr>,
    ) -> Self {
        Self {
            is_topic: true,
            shape,
            ..Self::room(alias, text, owner)
        }
    }

    /// A subscription in a queue group, with the name of the group in the tables.
    pub(super) fn in_group(
        alias: u16,
        name: &str,
        shape: Option<Shape>,
        owner: Option<IpAddr>,
    ) -> Self {
        Self {
            unsent: Some(AtomicU64::new(0)),
            ..Self::pattern(alias, name, shape, owner)
        }
    }

    /// Whether this is a subscription in a queue group.
    #[inline]
    pub(super) fn is_in_group(&self) -> bool {
        self.unsent.is_some()
    }

    /// The unsent messages of a subscription in a queue group, when its lane looked last.
    pub(super) fn unsent(&self) -> u64 {
        let unsent = self.unsent.as_ref();
        unsent.map_or(0, |unsent| unsent.load(Ordering::Relaxed))
    }

    /// Counts a message that a publisher gave to this subscription.
    pub(super) fn add_unsent(&self) {
        if let Some(unsent) = &self.unsent {
            unsent.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn set_unsent(&self, count: u64) {
        if let Some(unsent) = &self.unsent {
            unsent.store(count, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn alias(&self) -> u16 {
        self.alias
    }

    /// The name of the room, or the text of the pattern.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn is_topic(&self) -> bool {
        self.is_topic
    }

    pub(super) fn is_wildcard(&self) -> bool {
        self.shape.is_some()
    }

    /// The shape of the pattern, if the limits count it.
    pub(super) fn limited_shape(&self) -> Option<Shape> {
        self.shape.filter(Shape::has_inner_wildcard)
    }

    /// The name of a delivery of this topic: empty if the pattern is the topic itself.
    #[inline]
    pub(crate) fn named_topic<'a>(&self, topic: &'a str) -> &'a str {
        if self.shape.is_some() { topic } else { "" }
    }

    /// The address of the session that opened the room.
    pub(super) fn owner(&self) -> Option<IpAddr> {
        self.owner
    }

    /// The room's history, if it keeps one.
    pub(super) fn history(&self) -> Option<&Arc<MessageHistory>> {
        self.history.get()
    }

    /// Keeps a history from now on, unless the room has one.
    pub(super) fn keep(&self, history: impl FnOnce() -> Arc<MessageHistory>) {
        self.history.get_or_init(history);
    }

    /// Lets the only subscriber, which is in a queue group, get the messages on its lane.
    pub(super) fn receive_on(&self, lane: usize) {
        self.receivers.add(Receiver::Lane(lane));
    }

    /// Lets the messages of this room go to other nodes.
    pub(super) fn span(&self) {
        self.receivers.add(Receiver::Node);
    }

    /// Whether the messages go to other nodes.
    pub(super) fn spans(&self) -> bool {
        self.receivers.get().has_node()
    }

    /// Notes that a lane has opened the log of a codec.
    pub(super) fn open_log(&self, codec: CodecNumber, lane: usize, codecs: &Codecs) {
        if codecs.is_one() {
            return;
        }
        let sets = || codecs.all().map(|_| SharedLaneSet::default()).collect();
        self.by_codec.get_or_init(sets)[Codecs::index(codec)].add(Receiver::Lane(lane));
        if !codec.is_main() {
            self.receivers.add(Receiver::OtherCodecs);
        }
    }

    /// Notes that a lane has closed the log of a codec.
    pub(super) fn close_log(&self, codec: CodecNumber, lane: usize) {
        if let Some(sets) = self.by_codec.get() {
            sets[Codecs::index(codec)].remove(Receiver::Lane(lane));
        }
    }

    /// Whether members have, or had, another codec than the main one.
    pub(crate) fn has_other_codecs(&self) -> bool {
        self.receivers.get().has_other_codecs()
    }

    /// The lanes that have members with this codec.
    pub(crate) fn lanes_with(&self, codec: CodecNumber) -> LaneSet {
        match self.by_codec.get() {
            Some(sets) => sets[Codecs::index(codec)].get(),
            None if codec.is_main() => self.lanes(),
            None => LaneSet::default(),
        }
    }

    /// All lanes that have members.
    pub(crate) fn lanes(&self) -> LaneSet {
        self.receivers.get().lanes_only()
    }

    /// The lanes other than `lane` that have members, and the node if messages go to other nodes.
    #[inline]
    pub(crate) fn others(&self, lane: usize) -> LaneSet {
        self.receivers.others(lane)
    }

    /// Whether the carrier numbers the messages, so that they come by the history.
    pub(crate) fn is_numbered_by_carrier(&self) -> bool {
        let history = self.history.get();
        history.is_some_and(|history| history.numbering() == Numbering::Carrier)
    }

    /// Whether a subscriber on any lane blocks the room's publishers.
    #[inline]
    pub(crate) fn is_congested(&self) -> bool {
        self.congested.has_any()
    }

    /// Sets whether a subscriber on `lane` blocks the room's publishers.
    pub(crate) fn set_congested(&self, lane: usize, congested: bool) {
        match congested {
            true => self.congested.add(Receiver::Lane(lane)),
            false => self.congested.remove(Receiver::Lane(lane)),
        }
    }
}

impl LaneCounts {
    /// Counts a member in, and lets its lane get the messages.
    pub(super) fn enter(&mut self, shared: &SharedRoom, receiver: Receiver) {
        self.0[receiver.index()] += 1;
        shared.receivers.add(receiver);
    }

    /// Counts a member out. Returns how many remain on all lanes.
    pub(super) fn exit(&mut self, shared: &SharedRoom, receiver: Receiver) -> u64 {
        let count = &mut self.0[receiver.index()];
        *count -= 1;
        if *count == 0 {
            shared.receivers.remove(receiver);
        }
        self.0.iter().map(|count| u64::from(*count)).sum()
    }
}

impl Default for LaneCounts {
    fn default() -> Self {
        Self([0; RECEIVERS_MAX])
    }
}
