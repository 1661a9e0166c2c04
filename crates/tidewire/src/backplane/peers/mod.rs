//! The other nodes: which live, what has arrived of them, how far away they are, and what they must be asked.

mod peer;
mod spacing;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewire_proto::backplane::sequence::{Arrival, EntryCounts};
use tidewire_proto::backplane::{NodeLife, SequenceKind, SequencePacket};

use super::PeerFigures;
use peer::Peer;
pub(super) use peer::PeerNews;
use spacing::Spacing;

/// The other nodes.
#[derive(Debug)]
pub(super) struct Peers {
    all: HashMap<Arc<str>, Peer>,
    /// Nodes that must be asked for their rooms and sequences in the next turn.
    due_questions: HashSet<Arc<str>>,
    /// Whether all nodes must be asked at the next heartbeat.
    asks_all: bool,
    /// Whether the engine dropped packets since all were asked because of that.
    has_overflowed: bool,
    overflow_questions: Spacing,
}

impl Default for Peers {
    /// A node that starts asks all others.
    fn default() -> Self {
        Self {
            all: HashMap::new(),
            due_questions: HashSet::new(),
            asks_all: true,
            has_overflowed: false,
            overflow_questions: Spacing::default(),
        }
    }
}

impl Peers {
    /// Notes a packet. `None` if there are too many nodes, so that this one stays unknown.
    pub(super) fn hear(
        &mut self,
        from: NodeLife<&str>,
        now: Instant,
    ) -> Option<(Arc<str>, PeerNews)> {
        let NodeLife { node, epoch } = from;
        let known = self.all.get_key_value(node);
        if let Some(id) = known.map(|(id, _)| Arc::clone(id)) {
            let news = self.all.get_mut(&id)?.hear(epoch, now);
            return Some((id, news));
        }
        if self.all.len() >= PEERS_MAX {
            self.all.retain(|_, peer| peer.is_alive());
            if self.all.len() >= PEERS_MAX {
                return None;
            }
        }
        let id: Arc<str> = node.into();
        self.all.insert(Arc::clone(&id), Peer::new(epoch, now));
        Some((id, PeerNews::New))
    }

    /// Returns the id of the sender of a packet if it lives, in this run.
    pub(super) fn living(&self, from: NodeLife<&str>) -> Option<Arc<str>> {
        let (id, peer) = self.all.get_key_value(from.node)?;
        peer.lives_as(from.epoch).then(|| Arc::clone(id))
    }

    /// Notes that a node ends. Packets of this run that come later on other subjects do not bring it back.
    pub(super) fn end(&mut self, id: &str, now: Instant) {
        if let Some(peer) = self.all.get_mut(id) {
            peer.end(now);
        }
    }

    /// Returns the nodes that have been silent for too long, and marks them as dead.
    pub(super) fn bury(&mut self, silence_max: Duration, now: Instant) -> Vec<Arc<str>> {
        let peers = self.all.iter_mut();
        let dead = peers.filter_map(|(id, peer)| peer.bury(silence_max, now).then_some(id));
        dead.cloned().collect()
    }

    /// Counts the silence of all nodes from now, because this node could not hear them.
    pub(super) fn spare_all(&mut self, now: Instant) {
        self.all.values_mut().for_each(|peer| peer.spare(now));
    }

    /// Notes the entries of a packet of a node. `None` if the node is not known.
    pub(super) fn arrive(
        &mut self,
        node: &str,
        packet: &SequencePacket<'_>,
        counts: EntryCounts,
    ) -> Option<Arrival> {
        Some(self.all.get_mut(node)?.arrive(packet, counts))
    }

    /// Forgets what has arrived for a room, and what must be asked: messages that pass while the room has no members
    /// here are no loss.
    pub(super) fn forget_room(&mut self, room: &str) {
        for peer in self.all.values_mut() {
            peer.forget(SequenceKind::Room, room);
            peer.end_stale(room);
        }
    }

    pub(super) fn forget_topic(&mut self, topic: &str) {
        for peer in self.all.values_mut() {
            peer.forget(SequenceKind::Topic, topic);
        }
    }

    /// Forgets what has arrived for the topics for which `keeps` returns false.
    pub(super) fn retain_topics(&mut self, keeps: impl Fn(&str) -> bool) {
        for peer in self.all.values_mut() {
            peer.retain_topics(&keeps);
        }
    }

    /// Returns the node to ping at this heartbeat, each in turn.
    pub(super) fn at_beat(&self, beat: u64) -> Option<Arc<str>> {
        let alive = || self.all.iter().filter(|(_, peer)| peer.is_alive());
        let count = alive().count() as u64;
        let index = beat.checked_rem(count)? as usize;
        let mut ids: Vec<&Arc<str>> = alive().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids.get(index).map(|id| Arc::clone(id))
    }

    /// The number of nodes that live.
    pub(super) fn alive(&self) -> usize {
        self.all.values().filter(|peer| peer.is_alive()).count()
    }

    pub(super) fn note_lag(&mut self, id: &str, lag: Duration) {
        if let Some(peer) = self.all.get_mut(id) {
            peer.note_lag(lag);
        }
    }

    pub(super) fn figures(&self) -> Vec<PeerFigures> {
        let alive = self.all.iter().filter(|(_, peer)| peer.is_alive());
        let mut figures: Vec<PeerFigures> = alive.map(|(id, peer)| peer.figures(id)).collect();
        figures.sort_by(|one, other| one.id.cmp(&other.id));
        figures
    }

    /// Asks all nodes for their rooms and sequences at the next heartbeat.
    pub(super) fn ask_all(&mut self) {
        self.asks_all = true;
    }

    /// Asks all nodes soon, because the engine dropped packets.
    pub(super) fn note_overflow(&mut self) {
        self.has_overflowed = true;
    }

    /// Counts a heartbeat. Returns whether it must ask all nodes.
    pub(super) fn must_ask_all(&mut self) -> bool {
        // The answers of all nodes may be what overflows.
        if self.overflow_questions.beat(self.has_overflowed) {
            self.has_overflowed = false;
            self.asks_all = true;
        }
        self.asks_all
    }

    /// Notes that a heartbeat has asked all nodes.
    pub(super) fn note_all_asked(&mut self) {
        self.asks_all = false;
    }

    /// Asks a node for all its rooms and sequences in this turn.
    pub(super) fn ask(&mut self, node: &Arc<str>) {
        if let Some(peer) = self.all.get_mut(node) {
            // The next question waits for the answer to this one.
            let _ = peer.may_ask();
        }
        self.due_questions.insert(Arc::clone(node));
    }

    /// Asks a node for its members in a room, because a change of them is lost. It is asked again until it has told
    /// them.
    pub(super) fn ask_for_members(&mut self, node: &Arc<str>, room: &str) {
        if let Some(peer) = self.all.get_mut(node) {
            peer.note_stale(room);
            if peer.may_ask() {
                self.due_questions.insert(Arc::clone(node));
            }
        }
    }

    /// Asks a node that is believed dead for its members in a room, if it is back. Its sequences would not show that
    /// they are missing.
    pub(super) fn ask_for_members_later(&mut self, node: &str, room: &str) {
        if let Some(peer) = self.all.get_mut(node) {
            peer.note_stale(room);
        }
    }

    /// Notes that a node has told its members in a room.
    pub(super) fn note_told(&mut self, node: &str, room: &str) {
        if let Some(peer) = self.all.get_mut(node) {
            peer.note_told(room);
        }
    }

    /// Counts a heartbeat. Nodes that have not answered are asked again in this turn.
    pub(super) fn ask_again(&mut self) {
        let alive = self.all.iter_mut().filter(|(_, peer)| peer.is_alive());
        let silent = alive.filter_map(|(id, peer)| peer.must_ask().then_some(id));
        self.due_questions.extend(silent.cloned());
    }

    /// Asks a node that has gone no more.
    pub(super) fn end_question(&mut self, node: &str) {
        self.due_questions.remove(node);
    }

    /// Calls `send` for the nodes that must be asked now. It returns whether the question went out; others are asked in
    /// the next turn.
    pub(super) fn send_questions(&mut self, mut send: impl FnMut(&str) -> bool) {
        self.due_questions.retain(|node| !send(node));
    }

    /// The number of rooms and topics of which something has arrived from a node.
    #[cfg(test)]
    pub(super) fn sequences_of(&self, node: &str) -> usize {
        self.all[node].sequences()
    }
}

/// Nodes that are remembered, with those that are dead.
const PEERS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(5);

    fn hear(
        peers: &mut Peers,
        node: &str,
        epoch: u64,
        now: Instant,
    ) -> Option<(Arc<str>, PeerNews)> {
        peers.hear(NodeLife { node, epoch }, now)
    }

    #[test]
    fn a_silent_node_dies_once_and_comes_back_with_its_places() {
        let (mut peers, start) = (Peers::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let heard = |peers: &mut Peers, epoch, seconds| {
            let (_, heard) = hear(peers, "one", epoch, at(seconds)).unwrap();
            heard
        };
        assert_eq!(heard(&mut peers, 7, 0), PeerNews::New);
        assert_eq!(heard(&mut peers, 7, 4), PeerNews::None);
        assert!(peers.bury(SILENCE, at(9)).is_empty());
        assert_eq!(peers.bury(SILENCE, at(10)).len(), 1);
        assert!(peers.bury(SILENCE, at(20)).is_empty(), "it is dead already");
        assert!(peers.figures().is_empty());
        assert_eq!(heard(&mut peers, 7, 21), PeerNews::New);
        assert_eq!(heard(&mut peers, 8, 22), PeerNews::Restarted);
        peers.spare_all(at(100));
        assert!(peers.bury(SILENCE, at(101)).is_empty());
    }

    /// Regression: each packet of two nodes with one id looked like a restart to a third one. It forgot the members
    /// each time, and asked both for all their rooms.
    #[test]
    fn two_nodes_with_one_id_do_not_restart_each_other_for_ever() {
        let (mut peers, start) = (Peers::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let heard = |peers: &mut Peers, epoch, seconds| {
            let (_, heard) = hear(peers, "one", epoch, at(seconds)).unwrap();
            heard
        };
        heard(&mut peers, 7, 0);
        assert_eq!(heard(&mut peers, 8, 1), PeerNews::Restarted);
        for seconds in 2..5 {
            assert_eq!(heard(&mut peers, 7, seconds), PeerNews::Former);
            assert_eq!(heard(&mut peers, 8, seconds), PeerNews::None);
        }
        assert_eq!(peers.bury(SILENCE, at(20)).len(), 1);
        assert_eq!(
            heard(&mut peers, 7, 21),
            PeerNews::Restarted,
            "the other one is dead"
        );
        for epoch in 100..200 {
            heard(&mut peers, epoch, 22);
        }
        assert_eq!(peers.all["one"].former_lives(), peer::FORMER_MAX);
    }

    /// Regression: a packet that came behind the farewell of its node, on another subject, brought its members back for
    /// 5 s.
    #[test]
    fn late_packets_of_a_node_that_has_ended_do_not_bring_it_back() {
        let (mut peers, start) = (Peers::default(), Instant::now());
        hear(&mut peers, "one", 7, start);
        peers.end("one", start);
        let heard = |peers: &mut Peers, epoch, seconds| {
            let at = start + Duration::from_secs(seconds);
            hear(peers, "one", epoch, at).unwrap().1
        };
        assert_eq!(heard(&mut peers, 7, 1), PeerNews::Late);
        assert!(peers.figures().is_empty());
        assert_eq!(heard(&mut peers, 8, 2), PeerNews::Restarted);
        assert_eq!(heard(&mut peers, 8, 3), PeerNews::None);
        peers.end("one", start);
        assert_eq!(heard(&mut peers, 8, 60), PeerNews::New, "it did not end");
    }

    #[test]
    fn nodes_are_asked_in_turn_and_are_bounded() {
        let (mut peers, now) = (Peers::default(), Instant::now());
        assert_eq!(peers.at_beat(1), None);
        for id in ["b", "a", "c"] {
            hear(&mut peers, id, 1, now);
        }
        let asked: Vec<Arc<str>> = (3..9).filter_map(|beat| peers.at_beat(beat)).collect();
        let asked: Vec<&str> = asked.iter().map(|id| &**id).collect();
        assert_eq!(asked, ["a", "b", "c", "a", "b", "c"]);
        peers.note_lag("b", SILENCE);
        assert_eq!(peers.figures()[1].lag, Some(SILENCE));
        for number in 0..2 * PEERS_MAX {
            hear(&mut peers, &format!("n{number}"), 1, now);
        }
        assert_eq!(peers.all.len(), PEERS_MAX);
        peers.bury(Duration::ZERO, now + SILENCE);
        assert!(
            hear(&mut peers, "late", 1, now).is_some(),
            "the dead make room"
        );
    }
}
