//! Sets of lanes, of the node, which passes messages on to other nodes, and of other codecs.
//!
//! A room has a set of the lanes with members. Each message that is said asks for the others, so a set is a word of
//! bits. The node is one of them, and the members with another codec than the main one are another. No other file knows
//! which.

use std::sync::atomic::{AtomicU64, Ordering};

/// Lanes, perhaps with the node, and with other codecs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneSet(u64);

/// A set that lanes change while others read it.
#[derive(Debug, Default)]
pub(crate) struct SharedLaneSet(AtomicU64);

/// One that gets messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    Lane(usize),
    /// The node, for other nodes.
    Node,
    /// Members with another codec than the main one, on any lane.
    OtherCodecs,
}

impl Receiver {
    /// The number of its bit. That of a lane, and of the node, is below [`RECEIVERS_MAX`].
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Lane(lane) => lane,
            Self::Node => LANES_MAX,
            Self::OtherCodecs => LANES_MAX + 1,
        }
    }
}

impl From<Receiver> for LaneSet {
    fn from(receiver: Receiver) -> Self {
        Self(1 << receiver.index())
    }
}

impl LaneSet {
    #[inline(always)]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    pub(crate) const fn has_node(self) -> bool {
        self.0 & NODE != 0
    }

    #[inline(always)]
    pub(crate) const fn has_other_codecs(self) -> bool {
        self.0 & OTHER_CODECS != 0
    }

    /// The lanes alone.
    #[inline(always)]
    pub(crate) const fn lanes_only(self) -> Self {
        Self(self.0 & !(NODE | OTHER_CODECS))
    }

    /// The receivers other than this lane.
    #[inline(always)]
    pub(crate) const fn without(self, lane: usize) -> Self {
        Self(self.0 & !(1 << lane))
    }

    #[inline(always)]
    pub(crate) const fn has(self, lane: usize) -> bool {
        self.0 & (1 << lane) != 0
    }

    #[inline]
    pub(crate) fn lanes(self) -> impl Iterator<Item = usize> {
        let mut left = self.lanes_only().0;
        std::iter::from_fn(move || {
            let lane = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (lane < LANES_MAX).then_some(lane)
        })
    }
}

impl SharedLaneSet {
    /// Adds a receiver. What it had done before is visible to those who find it in the set.
    pub(crate) fn add(&self, receiver: Receiver) {
        self.0.fetch_or(LaneSet::from(receiver).0, Ordering::AcqRel);
    }

    pub(crate) fn remove(&self, receiver: Receiver) {
        self.0
            .fetch_and(!LaneSet::from(receiver).0, Ordering::AcqRel);
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> LaneSet {
        LaneSet(self.0.load(Ordering::Acquire))
    }

    /// The receivers other than this lane.
    #[inline(always)]
    pub(crate) fn others(&self, lane: usize) -> LaneSet {
        self.get().without(lane)
    }

    /// Whether the set has anybody. Changes of other threads may be seen later.
    #[inline(always)]
    pub(crate) fn has_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Most lanes of a server: the bits of a word, without those of the node and of other codecs.
pub(crate) const LANES_MAX: usize = 62;

/// The lanes and the node, whose members are counted.
pub(crate) const RECEIVERS_MAX: usize = LANES_MAX + 1;

const NODE: u64 = 1 << LANES_MAX;
const OTHER_CODECS: u64 = NODE << 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_each_lane_and_the_node_apart() {
        let shared = SharedLaneSet::default();
        assert!(!shared.has_any());
        for receiver in [0, 5, LANES_MAX - 1].map(Receiver::Lane) {
            shared.add(receiver);
        }
        shared.add(Receiver::Node);
        let all = shared.get();
        assert_eq!(all.lanes().collect::<Vec<_>>(), [0, 5, LANES_MAX - 1]);
        assert!(all.has_node() && all.has(5) && !all.has(6));
        assert!(!all.lanes_only().has_node());
        let others = shared.others(5);
        assert_eq!(others.lanes().collect::<Vec<_>>(), [0, LANES_MAX - 1]);
        for lane in [0, 5, LANES_MAX - 1] {
            shared.remove(Receiver::Lane(lane));
        }
        assert_eq!(shared.get(), Receiver::Node.into());
        assert_eq!(shared.get().lanes().next(), None);
        shared.remove(Receiver::Node);
        assert!(shared.get().is_empty());
    }
}
