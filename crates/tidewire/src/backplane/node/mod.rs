//! A node: one server of a cluster, between its lanes and its engine. It does no I/O, and gets the time as an argument.
//!
//! ```text
//!   lanes ── batches ──▶ outgoing ── packets ──▶ wire (the engine)
//!   lanes ◀── frames ─── incoming ◀── packets ── carrier (the engine)
//! ```
//!
//! The node holds the order of steps. Its parts hold what it knows, and each part has a file or folder beside this one.

mod drafts;
mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use tidewire_proto::backplane::{ALIVE_ASKS, ALIVE_LEAVES, PACKET_OVERHEAD_BYTES_MAX};

use super::heartbeats::Heartbeats;
use super::histories::{Audience, Histories, HistoryMessage, HistoryState};
use super::membership::Membership;
use super::openings::{Openings, question_of};
use super::peers::Peers;
use super::presence::Presence;
use super::requests::Requests;
use super::to_engine::ToEngine;
use super::to_lanes::ToLanes;
use super::topics::Topics;
use super::{BackplaneError, NodeFigures, NodeSettings, Subject, Wire};
use crate::broker::{BackplaneLink, RoomOrTopic};
use crate::config::Config;
use crate::mailbox::Lanes;
use crate::observe::LaneCounters;
use crate::room::{Directory, SharedRoom};
use crate::session::OpenSessions;

/// One server of a cluster, with its [`NodeSettings`]. A [`Carrier`](super::Carrier) drives it. See the [module](super)
/// for the contract.
pub struct Node {
    settings: NodeSettings,
    link: Arc<BackplaneLink>,
    directory: Arc<Directory>,
    config: Arc<Config>,
    counters: Arc<CachePadded<LaneCounters>>,
    figures: Arc<Mutex<NodeFigures>>,
    membership: Membership,
    heartbeats: Heartbeats,
    engine: ToEngine,
    lanes: ToLanes,
    peers: Peers,
    presence: Presence,
    topics: Topics,
    openings: Openings,
    histories: Histories,
    requests: Requests,
    /// Whether all rooms and sequences must be told.
    tells_all: bool,
    /// When more rooms and sequences may be told.
    tell_at: Option<Instant>,
}

/// The parts of a server that its node needs.
pub(crate) struct NodeParts {
    pub(crate) settings: NodeSettings,
    pub(crate) link: Arc<BackplaneLink>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) config: Arc<Config>,
    pub(crate) sessions: Arc<OpenSessions>,
    pub(crate) counters: Arc<CachePadded<LaneCounters>>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) figures: Arc<Mutex<NodeFigures>>,
    pub(crate) packet_bytes_max: usize,
    /// Is told when the node is a member of its cluster, or why it cannot be one.
    pub(crate) started: Sender<Result<(), BackplaneError>>,
}

impl Node {
    pub(crate) fn new(parts: NodeParts) -> Self {
        let NodeParts {
            mut settings,
            link,
            directory,
            config,
            sessions,
            counters,
            lanes,
            figures,
            packet_bytes_max,
            started,
        } = parts;
        let services = std::mem::take(&mut settings.services);
        Self {
            membership: Membership::new(started),
            heartbeats: Heartbeats::new(settings.heartbeat),
            engine: ToEngine::new(link.life().clone(), packet_bytes_max, Arc::clone(&counters)),
            lanes: ToLanes::new(
                Arc::clone(&lanes),
                Arc::clone(&config),
                sessions,
                Arc::clone(&counters),
            ),
            peers: Peers::default(),
            presence: Presence::new(
                Arc::clone(&directory),
                Arc::clone(&config),
                Arc::clone(&counters),
            ),
            topics: Topics::new(Arc::clone(&directory)),
            openings: Openings::new(Arc::clone(&directory)),
            histories: Histories::new(
                Arc::clone(&link),
                Arc::clone(&directory),
                Arc::clone(&config),
                Arc::clone(&counters),
            ),
            requests: Requests::new(services, Arc::clone(&link), lanes, Arc::clone(&counters)),
            tells_all: false,
            tell_at: None,
            settings,
            link,
            directory,
            config,
            counters,
            figures,
        }
    }

    /// The id of the node.
    #[must_use]
    pub fn id(&self) -> &str {
        self.engine.me().node
    }

    /// Sets the function that wakes the thread of the carrier. Any thread calls it, and it must not block.
    pub fn set_waker(&mut self, waker: impl Fn() + Send + Sync + 'static) {
        self.link.set_waker(Box::new(waker));
    }

    /// Notes that the engine is reachable again, and the subscriptions are made.
    pub fn handle_connected(&mut self) {
        if self.engine.is_too_narrow() {
            return;
        }
        if let Some(was_told) = self.engine.connect() {
            self.link.set_cut_off(false);
            self.config.refuse_shared(false);
            if was_told {
                self.announce_everywhere(REJOINED);
            }
        }
        self.peers.ask_all();
        self.tells_all = true;
        self.histories.read_again(true);
    }

    /// Notes that the engine cannot be reached. Packets are not given out until it can.
    pub fn handle_disconnected(&mut self, now: Instant) {
        if self.engine.disconnect(now) {
            self.config
                .refuse_shared(self.settings.refuses_when_cut_off);
        }
    }

    /// Notes the largest packet that the engine carries from now on. Longer messages are refused if it is smaller than
    /// before. A node that would not start with this limit is cut off until the engine tells a larger one.
    pub fn handle_packet_limit(&mut self, bytes: usize) {
        if self.engine.limit(bytes) {
            self.histories.drop_long_pending(bytes);
            self.config
                .shorten_shared(bytes.saturating_sub(PACKET_OVERHEAD_BYTES_MAX).max(1));
        }
    }

    /// Notes that the engine refuses something. At the start of the node this is the reason why it does not start.
    pub fn handle_refusal(&mut self, text: &str) {
        self.engine.log_refusal(text);
        let text = text.to_owned();
        self.membership.fail(BackplaneError::Refused { text });
    }

    /// Notes that the engine dropped packets for this node. Their sequences tell how many.
    pub fn handle_overflow(&mut self) {
        self.counters.backplane_overflows.add_shared(1);
        self.peers.note_overflow();
        self.histories.read_again(false);
    }

    /// Notes that no node has subscribed to the service of a request that [`Wire::ask`] got.
    pub fn handle_unserved(&mut self, request: u64) {
        match question_of(request) {
            Some(question) => self.openings.handle_answer(question),
            None => self.requests.handle_unserved(request),
        }
    }

    /// Handles a new packet of a history.
    pub fn handle_appended(
        &mut self,
        name: &RoomOrTopic,
        message: HistoryMessage<'_>,
        now: Instant,
    ) {
        let mut audience = Audience::new(&self.peers, &mut self.presence, &mut self.lanes);
        self.histories
            .handle_appended(name, message, now, &mut audience);
    }

    /// Handles what the engine has read of a history.
    pub fn handle_history(
        &mut self,
        name: &RoomOrTopic,
        state: HistoryState,
        messages: &[HistoryMessage<'_>],
        now: Instant,
    ) {
        let mut audience = Audience::new(&self.peers, &mut self.presence, &mut self.lanes);
        self.histories
            .handle_read(name, state, messages, now, &mut audience);
    }

    /// Handles that the engine cannot make or read a history. Messages that wait for it go on waiting.
    pub fn handle_history_failure(&mut self, name: &RoomOrTopic, text: &str) {
        self.histories.handle_failure(name, text);
    }

    /// Sends what waits, and does what is due. Returns when the next turn is due, even if nothing happens; the times of
    /// [`NodeSettings`] decide it. `None` if the node has ended: everything was given to [`Wire`]; the carrier sends
    /// that, and returns.
    pub fn turn(&mut self, now: Instant, wire: &mut dyn Wire) -> Option<Instant> {
        if !self.heartbeats.has_begun() {
            self.begin(now, wire);
        }
        if self.engine.is_too_narrow() {
            self.handle_disconnected(now);
        }
        let must_stop = self.do_work(wire);
        if self.membership.claim(now) {
            self.requests.offer(wire);
            // The others hear of the node now.
            self.heartbeats.hasten(now);
            self.membership.start();
        }
        self.beat(now, wire);
        let more_at = self.tell(now, wire);
        self.send_due(wire);
        if must_stop {
            self.membership.stop(now);
        }
        let is_stopping = self.membership.is_stopping();
        let is_full = self.histories.serve(now, is_stopping, &self.engine, wire);
        if self.histories.take_answers() | self.openings.take_answers() {
            self.lanes.wake();
        }
        let is_waiting = self.lanes.post() || is_full;
        self.presence.list_members(&mut self.lanes);
        // A node that stops has nothing to wait for if the engine has all messages, or takes none any more.
        let is_done = self.engine.is_cut_off() || !self.histories.has_unappended();
        let has_failed = self.membership.has_failed();
        let has_ended = self.membership.has_stopped(now, is_done);
        if has_ended && !has_failed {
            self.send_alive(ALIVE_LEAVES, Subject::Nodes, wire);
        }
        let pause_at = (is_waiting || is_stopping).then(|| now + PAUSE);
        let times = [self.membership.claimed_at(), pause_at, more_at];
        let beat_at = self.heartbeats.due_at().unwrap_or(now);
        let wake_at = times.into_iter().flatten().fold(beat_at, Instant::min);
        (!has_ended && !has_failed).then_some(wake_at)
    }

    /// Does what the lanes have given to the node. Returns whether the server has ended.
    fn do_work(&mut self, wire: &mut dyn Wire) -> bool {
        let work = self.link.take();
        self.presence
            .open(&work.rooms, &mut self.openings, &mut self.engine, wire);
        self.histories
            .open(&work.histories, self.engine.is_cut_off());
        let (openings, peers) = (&mut self.openings, &mut self.peers);
        self.topics.follow(&work.patterns, openings, peers, wire);
        self.histories.take_questions(work.questions);
        for batch in work.batches {
            self.send_batch(&batch, wire);
        }
        self.presence.close(&work.rooms, &mut self.peers, wire);
        // Openings come after the rooms that close, because a join may want one of these rooms again.
        let (link, presence, topics) = (&self.link, &self.presence, &self.topics);
        let is_needless = |name: &RoomOrTopic| {
            link.is_cut_off()
                || match name {
                    RoomOrTopic::Room(room) => presence.has(room),
                    RoomOrTopic::Topic(pattern) => topics.has(pattern),
                }
        };
        self.openings
            .begin(work.openings, is_needless, &self.engine, wire);
        for directed in work.directed {
            self.send_directed(directed, wire);
        }
        self.requests.send_refusals(&self.engine, wire);
        if work.withdraw {
            self.requests.withdraw(wire);
        }
        work.stop
    }

    /// Subscribes to what every node gets, and asks the others.
    fn begin(&mut self, now: Instant, wire: &mut dyn Wire) {
        wire.subscribe(Subject::Nodes);
        wire.subscribe(Subject::Node(self.id()));
        self.heartbeats.hasten(now);
        self.membership.begin(now + self.settings.claim);
    }

    /// Sends the heartbeat, and finds dead nodes.
    fn beat(&mut self, now: Instant, wire: &mut dyn Wire) {
        let Some(late) = self.heartbeats.begin(now) else {
            return;
        };
        if late > self.settings.silence_max / 2 {
            // This process was stopped for a while. It has heard nobody, and the others have not heard it.
            self.peers.spare_all(now);
            self.peers.ask_all();
            self.tells_all = true;
        }
        for dead in self.peers.bury(self.settings.silence_max, now) {
            tracing::warn!(node = &*dead, "a node is silent; its members leave");
            for room in self.presence.rooms_with(&dead) {
                self.peers.ask_for_members_later(&dead, room);
            }
            self.forget(&dead);
        }
        self.notice_partition(now);
        let must_ask = self.peers.must_ask_all();
        if self.membership.is_claiming() {
            self.send_alive(ALIVE_ASKS, Subject::Node(self.id()), wire);
        } else {
            let flags = if must_ask { ALIVE_ASKS } else { 0 };
            if self.send_alive(flags, Subject::Nodes, wire) {
                self.peers.note_all_asked();
            }
        }
        if let Some(peer) = self.peers.at_beat(self.heartbeats.number()) {
            self.heartbeats.ping(peer, now);
        }
        self.peers.ask_again();
        self.presence.ask_again(self.peers.alive());
        self.engine.mark_silent();
        self.requests.tell(now, &self.engine, wire);
        self.histories.tend(now, wire);
        self.openings.tend(&self.engine, wire);
        self.presence.tell_counts_later();
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        figures.peers = self.peers.figures();
        figures.is_cut_off = self.engine.is_cut_off();
    }

    /// Tells the members of all rooms that the node is cut off, once this has lasted for a heartbeat.
    fn notice_partition(&mut self, now: Instant) {
        let patience = self.heartbeats.interval();
        if self.engine.begins_to_tell_cut_off(patience, now) {
            // From now on joins wait for nothing: their members are told.
            self.link.set_cut_off(true);
            self.openings.end_all();
            self.announce_everywhere(PARTITIONED);
        }
    }

    /// Sends a message of the room itself to the members of all rooms on this node.
    fn announce_everywhere(&mut self, text: &str) {
        let rooms: Vec<Arc<SharedRoom>> = self.presence.rooms().cloned().collect();
        for shared in rooms {
            self.lanes.announce(&shared, text);
        }
    }

    /// Tells members that another node asked for, the numbers of large rooms, and the points of sequences. Returns when
    /// more must be told. The pace is one that the others can follow.
    fn tell(&mut self, now: Instant, wire: &mut dyn Wire) -> Option<Instant> {
        if self.engine.is_cut_off() {
            return None;
        }
        if std::mem::take(&mut self.tells_all) {
            self.presence.tell_all_later();
            self.engine.unmark_all();
        }
        if self.tell_at.is_some_and(|at| now < at) {
            return self.tell_at;
        }
        let left = self.presence.tell(TOLD_PER_TURN, &mut self.engine, wire);
        let presence = &self.presence;
        self.engine
            .tell_points(left, |room| presence.has(room), wire);
        let has_more = self.presence.has_due_rooms() || self.engine.has_due_points();
        self.tell_at = has_more.then(|| now + TELL_PAUSE);
        self.tell_at
    }

    /// Sends heartbeats to single nodes.
    fn send_due(&mut self, wire: &mut dyn Wire) {
        let is_claiming = self.membership.is_claiming();
        let (heartbeats, engine) = (&mut self.heartbeats, &self.engine);
        heartbeats.send_replies(is_claiming, engine, wire);
        if !is_claiming {
            self.peers.send_questions(|node| {
                heartbeats.send(ALIVE_ASKS, Subject::Node(node), engine, wire)
            });
        }
    }

    fn send_alive(&self, flags: u8, to: Subject<'_>, wire: &mut dyn Wire) -> bool {
        self.heartbeats.send(flags, to, &self.engine, wire)
    }

    /// Ends what concerns a node that has died.
    fn forget(&mut self, node: &Arc<str>) {
        self.peers.end_question(node);
        self.presence.forget_node(node, &mut self.lanes);
        self.requests.forget_node(node);
    }
}

impl Drop for Node {
    /// Keeps no lane waiting for a node that has ended. A server that lives on without its node is cut off.
    fn drop(&mut self) {
        if !self.membership.is_stopping() && !self.membership.has_failed() {
            tracing::error!(
                node = self.id(),
                "the thread of the node has ended, so this server is cut off from its cluster; start it again"
            );
            self.link.set_full(true);
            let refuses = self.settings.refuses_when_cut_off;
            self.config.refuse_shared(refuses);
            let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
            figures.is_cut_off = true;
            figures.peers.clear();
        }
        self.counters.backplane_unsent.add_shared(self.link.close());
        self.directory.histories().note_answer();
        self.lanes.wake();
        self.histories.count_unappended();
        self.membership.fail(BackplaneError::Thread);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = formatter.debug_struct("Node");
        fields.field("id", &self.id());
        fields.field("membership", &self.membership);
        fields.finish_non_exhaustive()
    }
}

/// The announcement in all rooms of a node that is cut off.
const PARTITIONED: &str = "this server is cut off from the others: only members on it get messages";

/// The announcement in all rooms of a node that was cut off.
const REJOINED: &str = "this server reaches the others again";

/// Rooms and points that are told in one turn. The others follow after a pause.
const TOLD_PER_TURN: usize = 1_000;

/// The pause before more rooms and points are told: 200,000 a second.
const TELL_PAUSE: Duration = Duration::from_millis(5);

/// Pause before a batch is posted again after a mailbox was full.
const PAUSE: Duration = Duration::from_micros(500);
