//! The state of a room or a topic pattern that all lanes share.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::history::RoomHistory;

/// The state of one room, or of the subscribers of one pattern, that the lanes share.
#[derive(Debug)]
pub(crate) struct SharedRoom {
    pub(crate) alias: u16,
    /// The pattern; `None` for a room.
    pub(crate) pattern: Option<Arc<str>>,
    /// The name of a room that spans nodes.
    pub(crate) name: Option<Arc<str>>,
    /// Whether deliveries must name their topic, because the pattern has a wildcard.
    pub(crate) is_wildcard: bool,
    /// The address of the session that opened the room. The room counts for this address as long as it exists.
    pub(super) owner: Option<IpAddr>,
    /// Bit n is set while lane n has members; bit [`BACKPLANE`] while messages go to other nodes, too.
    lanes: AtomicU64,
    /// Bit n is set while a subscriber on lane n blocks the room's publishers.
    congested: AtomicU64,
    /// The room's history, from the first join that asked for one.
    pub(super) history: OnceLock<Arc<RoomHistory>>,
}

/// Members or subscribers by lane.
#[derive(Debug)]
pub(super) struct LaneCounts([u32; LANES_MAX + 1]);

impl SharedRoom {
    pub(super) fn new(alias: u16, pattern: Option<Arc<str>>, owner: Option<IpAddr>) -> Self {
        Self {
            alias,
            pattern,
            name: None,
            is_wildcard: false,
            owner,
            lanes: AtomicU64::new(0),
            congested: AtomicU64::new(0),
            history: OnceLock::new(),
        }
    }

    /// Lets the messages of this room go to other nodes, under this name.
    pub(super) fn span(&mut self, name: &str) {
        self.name = Some(name.into());
        self.lanes = AtomicU64::new(1 << BACKPLANE);
    }

    /// Whether the messages go to other nodes.
    pub(crate) fn spans(&self) -> bool {
        self.lanes.load(Ordering::Relaxed) & (1 << BACKPLANE) != 0
    }

    /// Returns all lanes that have members, as bits.
    pub(crate) fn lanes(&self) -> u64 {
        self.lanes.load(Ordering::Acquire) & !(1 << BACKPLANE)
    }

    /// Returns the lanes other than `lane` that have members, as bits.
    #[inline]
    pub(crate) fn other_lanes(&self, lane: usize) -> u64 {
        self.lanes.load(Ordering::Acquire) & !(1 << lane)
    }

    /// Whether the messages come from a stream that all nodes share.
    pub(crate) fn is_fed(&self) -> bool {
        self.history.get().is_some_and(|history| history.is_fed)
    }

    /// Whether a subscriber on any lane blocks the room's publishers.
    #[inline]
    pub(crate) fn is_congested(&self) -> bool {
        self.congested.load(Ordering::Relaxed) != 0
    }

    /// Sets whether a subscriber on `lane` blocks the room's publishers.
    pub(crate) fn set_congested(&self, lane: usize, congested: bool) {
        if congested {
            self.congested.fetch_or(1 << lane, Ordering::Relaxed);
        } else {
            self.congested.fetch_and(!(1 << lane), Ordering::Relaxed);
        }
    }
}

impl LaneCounts {
    /// Counts a member in, and marks its lane as one that gets the messages.
    pub(super) fn enter(&mut self, shared: &SharedRoom, lane: usize) {
        self.0[lane] += 1;
        shared.lanes.fetch_or(1 << lane, Ordering::AcqRel);
    }

    /// Counts a member out. Returns how many remain on all lanes.
    pub(super) fn exit(&mut self, shared: &SharedRoom, lane: usize) -> u64 {
        self.0[lane] -= 1;
        if self.0[lane] == 0 {
            shared.lanes.fetch_and(!(1 << lane), Ordering::AcqRel);
        }
        self.0.iter().map(|count| u64::from(*count)).sum()
    }
}

impl Default for LaneCounts {
    fn default() -> Self {
        Self([0; LANES_MAX + 1])
    }
}

/// Most lanes of a server: the bits in the mask of lanes with members, without that of the backplane.
pub(crate) const LANES_MAX: usize = 63;

/// The bit of the backplane in the mask of lanes, and the index of its batch.
pub(crate) const BACKPLANE: usize = crate::mailbox::BACKPLANE;
