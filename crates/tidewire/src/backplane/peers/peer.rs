//! One other node: what has arrived of it, and what it must be asked.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tidewire_proto::backplane::sequence::{Arrival, EntryCounts, ReceivedSequences};
use tidewire_proto::backplane::{SequenceKind, SequencePacket};

use super::spacing::Spacing;
use crate::backplane::PeerFigures;

/// Another node.
#[derive(Debug)]
pub(super) struct Peer {
    epoch: u64,
    heard_at: Instant,
    /// A dead node keeps its sequences: if it was only slow, its losses are counted when it is back.
    is_alive: bool,
    sequences: ReceivedSequences,
    lag: Option<Duration>,
    lost: u64,
    received: u64,
    /// The epochs of earlier runs, the latest last.
    former: Vec<u64>,
    /// When it said that it ends.
    left_at: Option<Instant>,
    /// Rooms in which the members of the node are not known for sure, until it tells them.
    stale: HashSet<Box<str>>,
    /// The node has not announced its rooms since it started; ask again.
    is_unknown: bool,
    questions: Spacing,
}

/// The news of a packet about its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backplane) enum PeerNews {
    /// The node was alive.
    None,
    /// The node is new, or was believed dead.
    New,
    /// The node has started again. Its former members have left.
    Restarted,
    /// The packet is of an earlier run. It came late, or two nodes have one id.
    Former,
    /// The packet came after the farewell of its node.
    Late,
}

impl Peer {
    pub(super) fn new(epoch: u64, now: Instant) -> Self {
        Self {
            epoch,
            heard_at: now,
            is_alive: true,
            sequences: ReceivedSequences::default(),
            lag: None,
            lost: 0,
            received: 0,
            former: Vec::new(),
            left_at: None,
            stale: HashSet::new(),
            is_unknown: true,
            questions: Spacing::default(),
        }
    }

    /// Notes a packet of the run with this epoch.
    pub(super) fn hear(&mut self, epoch: u64, now: Instant) -> PeerNews {
        if let Some(ended) = self.ended(epoch, now) {
            return ended;
        }
        if self.epoch != epoch {
            self.restart(epoch, now);
            return PeerNews::Restarted;
        }
        self.heard_at = now;
        match std::mem::replace(&mut self.is_alive, true) {
            true => PeerNews::None,
            false => {
                self.is_unknown = true;
                PeerNews::New
            }
        }
    }

    /// Tells if the run with this epoch has ended, as far as is known. If the latest run is dead, an earlier one may be
    /// the one that lives.
    fn ended(&self, epoch: u64, now: Instant) -> Option<PeerNews> {
        if epoch == self.epoch {
            let left_at = self.left_at?;
            let is_late = now.saturating_duration_since(left_at) < LATE_MAX;
            return is_late.then_some(PeerNews::Late);
        }
        let is_former = self.is_alive && self.former.contains(&epoch);
        is_former.then_some(PeerNews::Former)
    }

    fn restart(&mut self, epoch: u64, now: Instant) {
        let mut former = std::mem::take(&mut self.former);
        if former.len() >= FORMER_MAX {
            former.remove(0);
        }
        former.push(self.epoch);
        *self = Self {
            former,
            ..Self::new(epoch, now)
        };
    }

    /// Notes that the node ends.
    pub(super) fn end(&mut self, now: Instant) {
        self.is_alive = false;
        self.left_at = Some(now);
        self.sequences = ReceivedSequences::default();
    }

    pub(super) fn is_alive(&self) -> bool {
        self.is_alive
    }

    /// Whether the node lives, in the run with this epoch.
    pub(super) fn lives_as(&self, epoch: u64) -> bool {
        self.is_alive && self.epoch == epoch
    }

    /// Marks the node as dead if it lives and has been silent for too long. Returns whether it was.
    pub(super) fn bury(&mut self, silence_max: Duration, now: Instant) -> bool {
        let is_dead = self.is_alive && now.saturating_duration_since(self.heard_at) > silence_max;
        self.is_alive &= !is_dead;
        is_dead
    }

    /// Counts the silence of the node from now.
    pub(super) fn spare(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Notes the entries of a packet.
    pub(super) fn arrive(&mut self, packet: &SequencePacket<'_>, counts: EntryCounts) -> Arrival {
        let (kind, name) = (packet.kind, packet.name);
        let arrival = self.sequences.arrive(kind, name, packet.point, counts);
        self.received += counts.messages - arrival.known;
        self.lost = self.lost.saturating_add(arrival.lost);
        arrival
    }

    /// Forgets what has arrived for a room or topic.
    pub(super) fn forget(&mut self, kind: SequenceKind, name: &str) {
        self.sequences.forget(kind, name);
    }

    /// Forgets what has arrived for the topics for which `keeps` returns false.
    pub(super) fn retain_topics(&mut self, keeps: impl Fn(&str) -> bool) {
        self.sequences
            .retain(|kind, name| kind == SequenceKind::Room || keeps(name));
    }

    pub(super) fn note_lag(&mut self, lag: Duration) {
        self.lag = Some(lag);
    }

    /// Notes that the members of the node in a room are not known for sure.
    pub(super) fn note_stale(&mut self, room: &str) {
        if self.stale.len() < STALE_MAX {
            self.stale.insert(room.into());
        }
    }

    /// Notes that the node has told its members in a room.
    pub(super) fn note_told(&mut self, room: &str) {
        self.is_unknown = false;
        self.end_stale(room);
    }

    /// Asks for the members in a room no longer.
    pub(super) fn end_stale(&mut self, room: &str) {
        if !self.stale.is_empty() {
            self.stale.remove(room);
        }
    }

    /// Whether the node may be asked at once, between the heartbeats.
    pub(super) fn may_ask(&mut self) -> bool {
        self.questions.begin()
    }

    /// Counts a heartbeat. Returns whether the node must be asked again. A node that never answers is not asked for
    /// ever.
    pub(super) fn must_ask(&mut self) -> bool {
        let is_needed = self.is_unknown || !self.stale.is_empty();
        let is_due = self.questions.beat(is_needed);
        if is_due {
            self.is_unknown = false;
            if self.questions.is_longest() {
                self.stale.clear();
            }
        }
        is_due
    }

    pub(super) fn figures(&self, id: &str) -> PeerFigures {
        PeerFigures {
            id: id.to_owned(),
            lag: self.lag,
            lost: self.lost,
            received: self.received,
        }
    }

    #[cfg(test)]
    pub(super) fn former_lives(&self) -> usize {
        self.former.len()
    }

    #[cfg(test)]
    pub(super) fn sequences(&self) -> usize {
        self.sequences.len()
    }
}

/// Rooms of one node that are asked for again. The node is asked once for rooms beyond this limit, and its answer has
/// all.
const STALE_MAX: usize = 1024;

/// Earlier runs of a node that are remembered.
pub(super) const FORMER_MAX: usize = 8;

/// How long packets of a node that has ended may come late.
const LATE_MAX: Duration = Duration::from_secs(5);
