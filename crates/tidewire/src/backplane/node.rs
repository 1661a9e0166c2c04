//! A node: one server of a cluster, between its lanes and its engine. It does no I/O, and gets the time as an argument.
//!
//! ```text
//!   lanes ── batches ──▶ outgoing ── packets ──▶ wire (the engine)
//!   lanes ◀── frames ─── incoming ◀── packets ── carrier (the engine)
//!                        presence, peers: who is where, and which nodes live
//! ```

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use tidewire_io::clock::now_ns;
use tidewire_proto::backplane::sequence::SentSequences;
use tidewire_proto::backplane::{
    ALIVE_ANSWERS, ALIVE_ASKS, ALIVE_ECHO, ALIVE_LEAVES, ALIVE_OBJECTS, NodeLife,
    PACKET_OVERHEAD_BYTES_MAX, SequenceKind, SequencePoint, encode_alive,
};
use tidewire_proto::message::MemberId;

use super::directed::Requests;
use super::kept_stream::KeptStreams;
use super::opening::Openings;
use super::peers::{Peers, Spacing};
use super::presence::{FirstQuestion, LocalRoom};
use super::stored::Stored;
use super::to_lanes::ToLanes;
use super::{
    BackplaneError, NodeFigures, NodeSettings, PACKET_BYTES_MIN, Subject, Turn, WhenCutOff, Wire,
};
use crate::broker::BackplaneLink;
use crate::config::Config;
use crate::mailbox::Lanes;
use crate::observe::{LaneCounters, QuietLog};
use crate::room::{Directory, Routes};

/// One server of a cluster, with its [`NodeSettings`]. A [`Carrier`](super::Carrier) drives it. See the [module](super) for the contract.
pub struct Node {
    /// This run of the node.
    pub(super) me: NodeLife<Arc<str>>,
    pub(super) settings: NodeSettings,
    pub(super) packet_bytes_max: usize,
    pub(super) link: Arc<BackplaneLink>,
    pub(super) directory: Arc<Directory>,
    pub(super) config: Arc<Config>,
    pub(super) counters: Arc<CachePadded<LaneCounters>>,
    pub(super) figures: Arc<Mutex<NodeFigures>>,
    pub(super) to_lanes: ToLanes,
    pub(super) routes: Routes,
    pub(super) peers: Peers,
    /// The rooms with members on this node.
    pub(super) rooms: HashMap<Box<str>, LocalRoom>,
    /// The patterns with subscribers on this node.
    pub(super) patterns: HashSet<Box<str>>,
    pub(super) sent: SentSequences,
    /// Authors that are not listed and were noted since they were forgotten last.
    pub(super) authors: usize,
    pub(super) requests: Requests,
    /// The rooms and topics that keep a history.
    pub(super) kept: KeptStreams,
    pub(super) stored: Stored,
    pub(super) openings: Openings,
    pub(super) life: Life,
}

/// The parts of a server that its node needs.
pub(crate) struct NodeParts {
    pub(crate) settings: NodeSettings,
    pub(crate) link: Arc<BackplaneLink>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) config: Arc<Config>,
    pub(crate) counters: Arc<CachePadded<LaneCounters>>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) figures: Arc<Mutex<NodeFigures>>,
    pub(crate) packet_bytes_max: usize,
    /// Is told when the node is a member of its cluster, or why it cannot be one.
    pub(crate) started: Sender<Result<(), BackplaneError>>,
}

/// The life of a node by time.
#[derive(Debug)]
pub(super) struct Life {
    /// `Some` until the node is a member of its cluster.
    started: Option<Sender<Result<(), BackplaneError>>>,
    /// When the id is this node's, if nobody has objected.
    claimed_at: Option<Instant>,
    has_failed: bool,
    /// When the node ends at the latest, because its server has ended.
    stops_at: Option<Instant>,
    beat: u64,
    beat_at: Option<Instant>,
    /// The use of streams at the last heartbeat.
    marked: u64,
    /// The latest heartbeats at which a node was asked for an answer, each with its time, by their numbers.
    asked: [Option<(u64, Instant)>; ASKED_MAX],
    /// Whether the engine carries only packets that are too short for a node, which is then cut off.
    is_too_narrow: bool,
    /// When the engine was lost, and whether the members have been told.
    cut_off: Option<(Instant, bool)>,
    /// Limits the log lines of an engine that comes and goes.
    cut_off_log: QuietLog,
    /// Whether the log has the present loss of the engine.
    is_cut_off_logged: bool,
    /// Heartbeats to send in the next turn: to a node, or to all, with these flags.
    pub(super) due: Vec<(Option<Arc<str>>, u8, u64)>,
    /// Nodes that must be asked for their rooms and positions.
    pub(super) due_asks: HashSet<Arc<str>>,
    /// The first questions of rooms that not all nodes have answered.
    pub(super) first_questions: HashMap<Box<str>, FirstQuestion>,
    /// Whether all rooms and positions must be told.
    pub(super) tells_all: bool,
    /// Rooms whose members must be told in the next turn, and whether the others must be asked for theirs.
    pub(super) due_rooms: HashMap<Box<str>, bool>,
    /// Positions to tell, the next one last.
    pub(super) due_positions: Vec<(SequenceKind, Box<str>, SequencePoint)>,
    /// When more rooms and positions may be told.
    pub(super) tell_at: Option<Instant>,
    /// Large rooms whose number of members must be told at the next heartbeat.
    pub(super) due_counts: HashSet<Box<str>>,
    /// Whether the others must be asked for theirs.
    pub(super) asks: bool,
    /// Whether the engine dropped packets since all were asked because of that.
    has_overflowed: bool,
    overflow_asks: Spacing,
    has_logged_duplicate: bool,
    /// When the log last said that the engine refuses something.
    refusals: QuietLog,
}

impl Node {
    pub(crate) fn new(parts: NodeParts) -> Self {
        Self {
            me: parts.link.life().clone(),
            settings: parts.settings,
            packet_bytes_max: parts.packet_bytes_max,
            link: parts.link,
            directory: parts.directory,
            config: parts.config,
            counters: parts.counters,
            figures: parts.figures,
            to_lanes: ToLanes::new(parts.lanes),
            routes: Routes::default(),
            peers: Peers::default(),
            rooms: HashMap::new(),
            patterns: HashSet::new(),
            sent: SentSequences::default(),
            authors: 0,
            requests: Requests::default(),
            kept: KeptStreams::default(),
            stored: Stored::default(),
            openings: Openings::default(),
            life: Life {
                started: Some(parts.started),
                claimed_at: None,
                has_failed: false,
                stops_at: None,
                beat: 0,
                beat_at: None,
                marked: 0,
                asked: [None; ASKED_MAX],
                is_too_narrow: false,
                cut_off: None,
                due: Vec::new(),
                due_asks: HashSet::new(),
                first_questions: HashMap::new(),
                tells_all: false,
                due_rooms: HashMap::new(),
                due_positions: Vec::new(),
                tell_at: None,
                due_counts: HashSet::new(),
                asks: true,
                has_overflowed: false,
                overflow_asks: Spacing::default(),
                has_logged_duplicate: false,
                refusals: QuietLog::default(),
                cut_off_log: QuietLog::default(),
                is_cut_off_logged: false,
            },
        }
    }

    /// The id of the node.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.me.node
    }

    /// Sets the function that wakes the thread of the carrier. Any thread calls it, and it must not block.
    pub fn set_waker(&mut self, waker: impl Fn() + Send + Sync + 'static) {
        self.link.set_waker(Box::new(waker));
    }

    /// Notes that the engine is reachable again, and the subscriptions are made.
    pub fn handle_connected(&mut self) {
        if self.life.is_too_narrow {
            return;
        }
        if let Some((_, was_told)) = self.life.cut_off.take() {
            self.link.set_cut_off(false);
            self.config.refuse_shared(false);
            self.counters.backplane_reconnects.add_shared(1);
            if std::mem::take(&mut self.life.is_cut_off_logged) {
                tracing::info!(
                    node = &*self.me.node,
                    "the node reaches its backplane again"
                );
            }
            if was_told {
                self.announce_everywhere(REJOINED);
            }
        }
        self.life.asks = true;
        self.life.tells_all = true;
        self.read_streams(true);
    }

    /// Notes that the engine cannot be reached. Packets are not given out until it can.
    pub fn handle_disconnected(&mut self, now: Instant) {
        if self.life.cut_off.is_none() {
            if let Some(unlogged) = self.life.cut_off_log.may_log(now_ns()) {
                tracing::warn!(
                    node = &*self.me.node,
                    unlogged,
                    "the node is cut off from its backplane"
                );
                self.life.is_cut_off_logged = true;
            }
            self.life.cut_off = Some((now, false));
            self.config
                .refuse_shared(self.settings.when_cut_off == WhenCutOff::Fail);
        }
    }

    /// Notes the largest packet that the engine carries from now on. Longer messages are refused if it is smaller than before. A
    /// node that would not start with this limit is cut off until the engine tells a larger one.
    pub fn handle_packet_limit(&mut self, bytes: usize) {
        self.life.is_too_narrow = bytes < PACKET_BYTES_MIN;
        if self.life.is_too_narrow {
            let error = BackplaneError::PacketLimit { bytes };
            tracing::error!(node = &*self.me.node, %error, "the node is cut off from its backplane");
            return;
        }
        if bytes >= self.packet_bytes_max {
            return;
        }
        tracing::error!(
            node = &*self.me.node,
            bytes,
            "the backplane carries shorter packets than before, so longer messages of rooms and topics are refused; raise its \
             limit, and start the server again"
        );
        self.packet_bytes_max = bytes;
        self.drop_long_pending();
        self.config
            .shorten_shared(bytes.saturating_sub(PACKET_OVERHEAD_BYTES_MAX).max(1));
    }

    /// Notes that the engine refuses something. At the start of the node this is the reason why it does not start.
    pub fn handle_refusal(&mut self, text: &str) {
        if let Some(unlogged) = self.life.refusals.may_log(now_ns()) {
            tracing::error!(
                node = &*self.me.node,
                text,
                unlogged,
                "the backplane refuses the node"
            );
        }
        let text = text.to_owned();
        self.fail(BackplaneError::Refused { text });
    }

    /// Notes that the engine dropped packets for this node. Their positions tell how many.
    pub fn handle_overflow(&mut self) {
        self.counters.backplane_overflows.add_shared(1);
        self.life.has_overflowed = true;
        self.read_streams(false);
    }

    /// Whether the node does not know yet that its id is free. Until then it speaks only to one with the same id: another node
    /// would take it for that one, started again.
    fn is_claiming(&self) -> bool {
        self.life.started.is_some() || self.life.has_failed
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.life.cut_off.is_some()
    }

    /// Sends what waits, and does what is due.
    pub fn turn(&mut self, now: Instant, wire: &mut dyn Wire) -> Turn {
        if self.life.beat_at.is_none() {
            self.begin(now, wire);
        }
        if self.life.is_too_narrow {
            self.handle_disconnected(now);
        }
        let work = self.link.take();
        self.open_rooms(&work.rooms, wire);
        self.open_histories(work.histories.iter());
        self.follow_patterns(&work.patterns, wire);
        self.stored.take_questions(work.questions);
        for batch in work.batches {
            self.send_batch(&batch, wire);
        }
        self.close_rooms(&work.rooms, wire);
        // Openings come after the rooms that close, because a join may want one of these rooms again.
        self.begin_openings(work.openings, wire);
        for directed in work.directed {
            self.send_directed(directed, wire);
        }
        self.refuse_requests(wire);
        if work.withdraw {
            self.withdraw_services(wire);
        }
        self.claim(now, wire);
        self.beat(now, wire);
        let more_at = self.tell(now, wire);
        self.send_due(wire);
        if work.stop {
            self.life.stops_at.get_or_insert(now + STOP_MAX);
        }
        let is_stopping = self.life.stops_at.is_some();
        let is_full = self.serve_streams(now, wire, is_stopping);
        let is_waiting = self.to_lanes.post(&self.config.codec, &self.counters) || is_full;
        self.list_members();
        let has_ended = self.has_stopped(now);
        if has_ended && !self.life.has_failed {
            self.alive(ALIVE_LEAVES, Subject::Nodes, wire);
        }
        let mut wake_at = self.life.beat_at.unwrap_or(now);
        if let Some(claimed_at) = self.life.claimed_at {
            wake_at = wake_at.min(claimed_at);
        }
        if is_waiting || is_stopping {
            wake_at = wake_at.min(now + PAUSE);
        }
        if let Some(more_at) = more_at {
            wake_at = wake_at.min(more_at);
        }
        Turn {
            wake_at,
            has_ended: has_ended || self.life.has_failed,
        }
    }

    /// Whether a node stops and has nothing to wait for: the engine has all messages, or takes none any more.
    fn has_stopped(&self, now: Instant) -> bool {
        self.life
            .stops_at
            .is_some_and(|at| now >= at || self.is_cut_off() || !self.has_unappended())
    }

    /// Subscribes to what every node gets, and asks the others.
    fn begin(&mut self, now: Instant, wire: &mut dyn Wire) {
        wire.subscribe(Subject::Nodes);
        wire.subscribe(Subject::Node(&self.me.node));
        self.life.beat_at = Some(now);
        self.life.claimed_at = Some(now + self.settings.claim);
    }

    /// Becomes a member of the cluster, if nobody has objected to the id.
    fn claim(&mut self, now: Instant, wire: &mut dyn Wire) {
        if self.life.claimed_at.is_some_and(|at| at <= now) {
            self.life.claimed_at = None;
            self.offer_services(wire);
            // The others hear of the node now.
            self.life.beat_at = Some(now);
            if let Some(started) = self.life.started.take() {
                // The server may have given up.
                let _ = started.send(Ok(()));
            }
        }
    }

    pub(super) fn fail(&mut self, error: BackplaneError) {
        if let Some(started) = self.life.started.take() {
            self.life.has_failed = true;
            // The server may have given up.
            let _ = started.send(Err(error));
        }
    }

    /// Sends the heartbeat, and finds dead nodes.
    fn beat(&mut self, now: Instant, wire: &mut dyn Wire) {
        let Some(at) = self.life.beat_at.filter(|at| *at <= now) else {
            return;
        };
        if now.saturating_duration_since(at) > self.settings.silence_max / 2 {
            // This process was stopped for a while. It has heard nobody, and the others have not heard it.
            self.peers.spare_all(now);
            self.life.asks = true;
            self.life.tells_all = true;
        }
        self.life.beat_at = Some(now + self.settings.heartbeat);
        self.life.beat += 1;
        for dead in self.peers.bury(self.settings.silence_max, now) {
            tracing::warn!(node = &*dead, "a node is silent; its members leave");
            self.note_all_stale(&dead);
            self.forget(&dead);
        }
        self.notice_partition(now);
        // The answers of all nodes may be what overflows.
        if self.life.overflow_asks.beat(self.life.has_overflowed) {
            self.life.has_overflowed = false;
            self.life.asks = true;
        }
        if self.is_claiming() {
            self.alive(ALIVE_ASKS, Subject::Node(&self.me.node), wire);
        } else {
            let flags = if self.life.asks { ALIVE_ASKS } else { 0 };
            self.life.asks &= !self.alive(flags, Subject::Nodes, wire);
        }
        let beat = self.life.beat;
        if let Some(peer) = self.peers.at_beat(beat) {
            self.life.asked[beat as usize % ASKED_MAX] = Some((beat, now));
            self.life.due.push((Some(peer), ALIVE_ECHO, beat));
        }
        self.life.due_asks.extend(self.peers.nodes_to_ask());
        self.ask_rooms_again();
        self.mark();
        self.tell_requests(now, wire);
        self.tend_streams(now, wire);
        self.tend_openings(wire);
        let counts = std::mem::take(&mut self.life.due_counts);
        for room in counts {
            self.tell_later(&room, false);
        }
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        figures.peers = self.peers.figures();
        figures.is_cut_off = self.life.cut_off.is_some();
    }

    /// Tells the members of all rooms that the node is cut off, once this has lasted for a heartbeat.
    fn notice_partition(&mut self, now: Instant) {
        let heartbeat = self.settings.heartbeat;
        if let Some((since, was_told)) = &mut self.life.cut_off
            && !*was_told
            && now.saturating_duration_since(*since) >= heartbeat
        {
            *was_told = true;
            // From now on joins wait for nothing: their members are told.
            self.link.set_cut_off(true);
            self.end_all_openings();
            self.announce_everywhere(PARTITIONED);
        }
    }

    /// Tells a new member what all others were told.
    pub(super) fn tell_partition_to(&mut self, room: &str, member: MemberId) {
        if let Some((_, true)) = self.life.cut_off {
            self.announce_to(room, member, PARTITIONED);
        }
    }

    /// Collects the positions of streams that are silent since the last heartbeat, so that a loss of their last message is found.
    /// Those of the last time go out first.
    fn mark(&mut self) {
        if self.is_cut_off() || !self.life.due_positions.is_empty() {
            return;
        }
        let due = &mut self.life.due_positions;
        self.life.marked = self.sent.mark(self.life.marked, |kind, name, position| {
            due.push((kind, name.into(), position));
            true
        });
    }

    fn send_due(&mut self, wire: &mut dyn Wire) {
        for (to, flags, beat) in std::mem::take(&mut self.life.due) {
            let mut packet = Vec::new();
            encode_alive(self.me.borrow(), flags, beat, &mut packet);
            let is_to_namesake = to.as_deref() == Some(&*self.me.node);
            let subject = to.as_deref().map_or(Subject::Nodes, Subject::Node);
            if !self.is_cut_off() && (is_to_namesake || !self.is_claiming()) {
                // A lost answer is followed by the next one.
                let _ = wire.publish(subject, &packet);
            }
        }
        if self.is_claiming() || self.life.due_asks.is_empty() {
            return;
        }
        let mut due_asks = std::mem::take(&mut self.life.due_asks);
        due_asks.retain(|node| !self.alive(ALIVE_ASKS, Subject::Node(node), wire));
        self.life.due_asks = due_asks;
    }

    fn alive(&self, flags: u8, to: Subject<'_>, wire: &mut dyn Wire) -> bool {
        let mut packet = Vec::new();
        encode_alive(self.me.borrow(), flags, self.life.beat, &mut packet);
        !self.is_cut_off() && wire.publish(to, &packet)
    }

    /// Handles the heartbeat of another node.
    pub(super) fn handle_alive(&mut self, node: &Arc<str>, flags: u8, beat: u64, now: Instant) {
        if flags & ALIVE_LEAVES != 0 {
            tracing::info!(node = &**node, "a node has ended");
            self.forget(node);
            return self.peers.end(node, now);
        }
        if flags & ALIVE_ASKS != 0 {
            self.life.tells_all = true;
        }
        if flags & ALIVE_ECHO != 0 {
            let answer = (Some(Arc::clone(node)), ALIVE_ANSWERS, beat);
            self.life.due.push(answer);
        }
        if flags & ALIVE_ANSWERS != 0
            && let Some((asked, at)) = self.life.asked[beat as usize % ASKED_MAX]
            && asked == beat
        {
            self.peers.note_lag(node, now.saturating_duration_since(at));
        }
    }

    /// Ends what concerns a node that has died.
    pub(super) fn forget(&mut self, node: &Arc<str>) {
        self.life.due_asks.remove(node);
        self.forget_members_of(node);
        self.forget_requests_of(node);
    }

    /// Handles a packet of another run with this node's id.
    pub(super) fn handle_namesake(&mut self, flags: Option<u8>) {
        let id = self.settings.id.clone();
        if self.life.started.is_some() {
            // Two that start together both object, so neither starts.
            let namesake = Arc::clone(&self.me.node);
            self.life.due.push((Some(namesake), ALIVE_OBJECTS, 0));
            return self.fail(BackplaneError::DuplicateNode { id });
        }
        if flags.is_some_and(|flags| flags & ALIVE_ASKS != 0) {
            let namesake = Arc::clone(&self.me.node);
            self.life.due.push((Some(namesake), ALIVE_OBJECTS, 0));
        }
        if !std::mem::replace(&mut self.life.has_logged_duplicate, true) {
            tracing::error!(
                node = id,
                "another node has this id; stop one of them, because neither hears the other"
            );
        }
        self.counters.backplane_duplicates.add_shared(1);
    }
}

impl Drop for Node {
    /// Keeps no lane waiting for a node that has ended. A server that lives on without its node is cut off.
    fn drop(&mut self) {
        if self.life.stops_at.is_none() && !self.life.has_failed {
            tracing::error!(
                node = &*self.me.node,
                "the thread of the node has ended, so this server is cut off from its cluster; start it again"
            );
            self.link.set_full(true);
            let refuses = self.settings.when_cut_off == WhenCutOff::Fail;
            self.config.refuse_shared(refuses);
            let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
            figures.is_cut_off = true;
            figures.peers.clear();
        }
        self.counters.backplane_unsent.add_shared(self.link.close());
        self.directory.note_answer();
        self.to_lanes.wake();
        self.count_unappended();
        self.fail(BackplaneError::Thread);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = formatter.debug_struct("Node");
        fields.field("id", &self.me.node).field("life", &self.life);
        fields.finish_non_exhaustive()
    }
}

/// The announcement in all rooms of a node that is cut off.
const PARTITIONED: &str = "this server is cut off from the others: only members on it get messages";

/// The announcement in all rooms of a node that was cut off.
const REJOINED: &str = "this server reaches the others again";

/// Questions whose answers are timed. One that takes more heartbeats is ignored.
const ASKED_MAX: usize = 8;

/// The longest time for which a node that stops waits until the engine has its messages.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Pause before a batch is posted again after a mailbox was full.
const PAUSE: Duration = Duration::from_micros(500);
