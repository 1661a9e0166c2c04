//! The other nodes: which live, what has arrived of them, and how far away they are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewire_proto::backplane::sequence::ReceivedSequences;

use super::PeerFigures;

/// The other nodes, by their ids.
#[derive(Debug, Default)]
pub(super) struct Peers {
    pub(super) all: HashMap<Arc<str>, Peer>,
}

/// Another node.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) epoch: u64,
    heard_at: Instant,
    /// A dead node keeps its positions: if it was only slow, its losses are counted when it is back.
    pub(super) is_alive: bool,
    pub(super) streams: ReceivedSequences,
    lag: Option<Duration>,
    pub(super) lost: u64,
    /// The epochs of earlier runs, the latest last.
    former: Vec<u64>,
    /// When it said that it ends.
    left_at: Option<Instant>,
    pub(super) received: u64,
    /// Rooms in which the members of the node are not known for sure, until it tells them.
    stale: HashSet<Box<str>>,
    /// Whether the node has told none of its rooms since it is there, and shall be asked once more.
    is_unknown: bool,
    asks: Spacing,
}

/// Spaces questions to all that may be what overloads a cluster: while they are needed, each one waits for twice as many heartbeats
/// as the one before.
#[derive(Debug, Default)]
pub(super) struct Spacing {
    wait: u32,
    left: u32,
}

/// The news of a packet about its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The node was alive.
    Again,
    /// The node is new, or was believed dead.
    New,
    /// The node has started again. Its former members have left.
    Restarted,
    /// The packet is of an earlier run. It came late, or two nodes have one id.
    Former,
    /// The packet came behind the farewell of its node.
    Late,
}

impl Peers {
    /// Notes a packet. `None` if there are too many nodes, so that this one stays unknown.
    pub(super) fn hear(&mut self, id: &str, epoch: u64, now: Instant) -> Option<(Arc<str>, Heard)> {
        if let Some((id, _)) = self.all.get_key_value(id) {
            let id = Arc::clone(id);
            let mut heard = Heard::Restarted;
            self.all.entry(Arc::clone(&id)).and_modify(|peer| {
                if let Some(over) = peer.over(epoch, now) {
                    heard = over;
                } else if peer.epoch != epoch {
                    peer.restart(epoch, now);
                } else {
                    peer.heard_at = now;
                    heard = match std::mem::replace(&mut peer.is_alive, true) {
                        true => Heard::Again,
                        false => Heard::New,
                    };
                    peer.is_unknown |= heard == Heard::New;
                }
            });
            return Some((id, heard));
        }
        if self.all.len() >= PEERS_MAX {
            self.all.retain(|_, peer| peer.is_alive);
            if self.all.len() >= PEERS_MAX {
                return None;
            }
        }
        let id: Arc<str> = id.into();
        self.all.insert(Arc::clone(&id), Peer::new(epoch, now));
        Some((id, Heard::New))
    }

    /// Notes that a node ends. Packets of this run that come later on other subjects do not bring it back.
    pub(super) fn end(&mut self, id: &str, now: Instant) {
        if let Some(peer) = self.all.get_mut(id) {
            peer.is_alive = false;
            peer.left_at = Some(now);
            peer.streams = ReceivedSequences::default();
        }
    }

    /// Returns the nodes that have been silent for too long, and marks them as dead.
    pub(super) fn bury(&mut self, silence_max: Duration, now: Instant) -> Vec<Arc<str>> {
        let mut dead: Vec<Arc<str>> = Vec::new();
        for (id, peer) in &mut self.all {
            if peer.is_alive && now.saturating_duration_since(peer.heard_at) > silence_max {
                peer.is_alive = false;
                dead.push(Arc::clone(id));
            }
        }
        dead
    }

    /// Counts the silence of all nodes from now, because this node could not hear them.
    pub(super) fn spare_all(&mut self, now: Instant) {
        for peer in self.all.values_mut() {
            peer.heard_at = now;
        }
    }

    /// Returns the node to ask at this heartbeat, each in turn.
    pub(super) fn at_beat(&self, beat: u64) -> Option<Arc<str>> {
        let alive = || self.all.iter().filter(|(_, peer)| peer.is_alive);
        let count = alive().count() as u64;
        let index = beat.checked_rem(count)? as usize;
        let mut ids: Vec<&Arc<str>> = alive().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids.get(index).map(|id| Arc::clone(id))
    }

    /// Returns the nodes to ask again at this heartbeat, because an answer is missing. One that never answers is not asked for ever.
    pub(super) fn nodes_to_ask(&mut self) -> Vec<Arc<str>> {
        let alive = self.all.iter_mut().filter(|(_, peer)| peer.is_alive);
        alive
            .filter_map(|(id, peer)| {
                let is_due = peer.asks.beat(peer.is_unknown || !peer.stale.is_empty());
                if is_due {
                    peer.is_unknown = false;
                    if peer.asks.wait == WAIT_BEATS_MAX {
                        peer.stale.clear();
                    }
                }
                is_due.then(|| Arc::clone(id))
            })
            .collect()
    }

    /// The number of nodes that live.
    pub(super) fn alive(&self) -> usize {
        self.all.values().filter(|peer| peer.is_alive).count()
    }

    pub(super) fn note_lag(&mut self, id: &str, lag: Duration) {
        if let Some(peer) = self.all.get_mut(id) {
            peer.lag = Some(lag);
        }
    }

    pub(super) fn figures(&self) -> Vec<PeerFigures> {
        let alive = self.all.iter().filter(|(_, peer)| peer.is_alive);
        let figures = alive.map(|(id, peer)| PeerFigures {
            id: id.to_string(),
            lag: peer.lag,
            lost: peer.lost,
            received: peer.received,
        });
        let mut figures: Vec<PeerFigures> = figures.collect();
        figures.sort_by(|one, other| one.id.cmp(&other.id));
        figures
    }
}

impl Spacing {
    /// Whether a question may go out at once, because none has for a while.
    fn begin(&mut self) -> bool {
        let is_first = self.wait == 0;
        if is_first {
            (self.wait, self.left) = (1, 1);
        }
        is_first
    }

    /// Counts a heartbeat. Returns whether a question is due, if one is needed.
    pub(super) fn beat(&mut self, is_needed: bool) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        if !is_needed {
            self.wait = 0;
            return false;
        }
        self.wait = (self.wait * 2).clamp(1, WAIT_BEATS_MAX);
        self.left = self.wait - 1;
        true
    }
}

impl Peer {
    fn new(epoch: u64, now: Instant) -> Self {
        Self {
            epoch,
            heard_at: now,
            is_alive: true,
            streams: ReceivedSequences::default(),
            lag: None,
            lost: 0,
            received: 0,
            former: Vec::new(),
            left_at: None,
            stale: HashSet::new(),
            is_unknown: true,
            asks: Spacing::default(),
        }
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
        self.asks.begin()
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

    /// Tells if this run of the node has ended, as far as is known. If the latest run is dead, an earlier one may be the one that
    /// lives.
    fn over(&self, epoch: u64, now: Instant) -> Option<Heard> {
        if epoch == self.epoch {
            let left_at = self.left_at?;
            let is_late = now.saturating_duration_since(left_at) < LATE_MAX;
            return is_late.then_some(Heard::Late);
        }
        let is_former = self.is_alive && self.former.contains(&epoch);
        is_former.then_some(Heard::Former)
    }
}

/// Nodes that are remembered, with those that are dead.
const PEERS_MAX: usize = 1024;

/// Rooms of one node that are asked for again. What is beyond them is asked for once, and answered with them.
const STALE_MAX: usize = 1024;

/// Most heartbeats between two questions.
const WAIT_BEATS_MAX: u32 = 30;

/// Earlier runs of a node that are remembered.
const FORMER_MAX: usize = 8;

/// How long packets of a node that has ended may come late.
const LATE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(5);

    #[test]
    fn a_silent_node_dies_once_and_comes_back_with_its_places() {
        let (mut peers, start) = (Peers::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let heard = |peers: &mut Peers, epoch, seconds| {
            let (_, heard) = peers.hear("one", epoch, at(seconds)).unwrap();
            heard
        };
        assert_eq!(heard(&mut peers, 7, 0), Heard::New);
        assert_eq!(heard(&mut peers, 7, 4), Heard::Again);
        assert!(peers.bury(SILENCE, at(9)).is_empty());
        assert_eq!(peers.bury(SILENCE, at(10)).len(), 1);
        assert!(peers.bury(SILENCE, at(20)).is_empty(), "it is dead already");
        assert!(peers.figures().is_empty());
        assert_eq!(heard(&mut peers, 7, 21), Heard::New);
        assert_eq!(heard(&mut peers, 8, 22), Heard::Restarted);
        peers.spare_all(at(100));
        assert!(peers.bury(SILENCE, at(101)).is_empty());
    }

    /// Regression: each packet of two nodes with one id looked like a restart to a third one. It forgot the members each time, and
    /// asked both for all their rooms.
    #[test]
    fn two_nodes_with_one_id_do_not_restart_each_other_for_ever() {
        let (mut peers, start) = (Peers::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let heard = |peers: &mut Peers, epoch, seconds| {
            let (_, heard) = peers.hear("one", epoch, at(seconds)).unwrap();
            heard
        };
        heard(&mut peers, 7, 0);
        assert_eq!(heard(&mut peers, 8, 1), Heard::Restarted);
        for seconds in 2..5 {
            assert_eq!(heard(&mut peers, 7, seconds), Heard::Former);
            assert_eq!(heard(&mut peers, 8, seconds), Heard::Again);
        }
        assert_eq!(peers.bury(SILENCE, at(20)).len(), 1);
        assert_eq!(
            heard(&mut peers, 7, 21),
            Heard::Restarted,
            "the other one is dead"
        );
        for epoch in 100..200 {
            heard(&mut peers, epoch, 22);
        }
        assert_eq!(peers.all["one"].former.len(), FORMER_MAX);
    }

    /// Regression: a packet that came behind the farewell of its node, on another subject, brought its members back for 5 s.
    #[test]
    fn late_packets_of_a_node_that_has_ended_do_not_bring_it_back() {
        let (mut peers, start) = (Peers::default(), Instant::now());
        peers.hear("one", 7, start);
        peers.end("one", start);
        let heard = |peers: &mut Peers, epoch, seconds| {
            let at = start + Duration::from_secs(seconds);
            peers.hear("one", epoch, at).unwrap().1
        };
        assert_eq!(heard(&mut peers, 7, 1), Heard::Late);
        assert!(peers.figures().is_empty());
        assert_eq!(heard(&mut peers, 8, 2), Heard::Restarted);
        assert_eq!(heard(&mut peers, 8, 3), Heard::Again);
        peers.end("one", start);
        assert_eq!(heard(&mut peers, 8, 60), Heard::New, "it did not end");
    }

    #[test]
    fn questions_that_are_needed_again_and_again_are_spaced() {
        let mut spacing = Spacing::default();
        let mut due: Vec<u32> = (0..200).filter(|_| spacing.beat(true)).collect();
        due.truncate(8);
        assert_eq!(due, [0, 1, 3, 7, 15, 31, 61, 91]);
        (0..WAIT_BEATS_MAX).for_each(|_| assert!(!spacing.beat(false)));
        assert!(spacing.begin() && !spacing.begin());
        assert!(!spacing.beat(true) && spacing.beat(true));
    }

    #[test]
    fn nodes_are_asked_in_turn_and_are_bounded() {
        let (mut peers, now) = (Peers::default(), Instant::now());
        assert_eq!(peers.at_beat(1), None);
        for id in ["b", "a", "c"] {
            peers.hear(id, 1, now);
        }
        let asked: Vec<Arc<str>> = (3..9).filter_map(|beat| peers.at_beat(beat)).collect();
        let asked: Vec<&str> = asked.iter().map(|id| &**id).collect();
        assert_eq!(asked, ["a", "b", "c", "a", "b", "c"]);
        peers.note_lag("b", SILENCE);
        assert_eq!(peers.figures()[1].lag, Some(SILENCE));
        for number in 0..2 * PEERS_MAX {
            peers.hear(&format!("n{number}"), 1, now);
        }
        assert_eq!(peers.all.len(), PEERS_MAX);
        peers.bury(Duration::ZERO, now + SILENCE);
        assert!(peers.hear("late", 1, now).is_some(), "the dead make room");
    }
}
