//! The state of a lane, and what reading, writing, rooms and timers all need of it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use slab::Slab;
use tidewire_io::datagram::DatagramOptions;
use tidewire_io::poller::{Interest, Poller, Token};
use tidewire_io::socket::SocketOptions;
use tidewire_io::timer::TimerWheel;
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::connection::{Connection, Identity, Rules};

use super::answers::NO_MESSAGE;
use super::buffers::BufferPool;
use super::clock::Clock;
use super::datagrams::{Cookies, PlannedDrops, Port, UnvalidatedSessions};
use super::ending::SilentLanes;
use super::gate::Gate;
use super::mailbox::{BatchEntry, LaneHandle, Post, SpareBatches};
use super::timers::TimerKey;
use super::wait::Spin;
use crate::context::Context;
use crate::deferred::{SpareFrames, Token as AnswerToken};
use crate::limits::{Limits, RoomDefaults};
use crate::listen::StreamListener;
use crate::metrics::LaneCounters;
use crate::output::Output;
use crate::pattern::{Directory, Room, Routes, SharedRoom};
use crate::reply::LastReply;
use crate::service::ConnectFailure;
use crate::session::{CloseReason, Session, SessionId};
use crate::sessions::SessionTable;
use crate::transport::Transport;

/// What all lanes of a server share. Nothing in it is touched per message.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) codec: AnyCodec,
    pub(crate) limits: Limits,
    /// Settings of all connections.
    pub(crate) rules: Rules,
    pub(crate) room_defaults: RoomDefaults,
    pub(crate) directory: Directory,
    pub(crate) gate: Gate,
    /// Where other threads find the open sessions.
    pub(crate) sessions: SessionTable,
    /// Bytes of the broadcasts under way.
    pub(crate) broadcast_bytes: Arc<AtomicUsize>,
    /// Challenges for strangers over UDP.
    pub(crate) cookies: Cookies,
    /// Addresses over UDP that cannot prove themselves may be sent more than they sent.
    pub(crate) trusts_datagram_peers: bool,
    /// How this server's and its lanes' own UDP sockets are opened.
    pub(crate) datagram_options: DatagramOptions,
    /// Emptied batches on their way back from the lanes that received them to those that send.
    pub(crate) spare_batches: SpareBatches,
    /// Emptied frames on their way back from lanes to those who answer later.
    pub(crate) spare_frames: SpareFrames,
    /// What the server says of itself in its welcome.
    pub(crate) agent: String,
    /// Of the connections that lanes make.
    pub(crate) socket_options: SocketOptions,
    /// How long lanes look for work before they sleep.
    pub(crate) spin: Spin,
    /// The lanes of which no more mail comes.
    pub(crate) silent_lanes: SilentLanes,
    /// Every lane of the server, in the order of their numbers.
    pub(crate) lanes: OnceLock<Vec<LaneHandle>>,
}

/// A lane without its service.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) lane: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: LaneHandle,
    pub(crate) poller: Box<dyn Poller>,
    pub(crate) sessions: Slab<Session>,
    pub(crate) listeners: Vec<StreamListener>,
    /// UDP sockets that sessions share.
    pub(crate) ports: Vec<Port>,
    pub(crate) planned_drops: PlannedDrops,
    /// UDP sessions of addresses that have proved nothing.
    pub(crate) unvalidated: UnvalidatedSessions,
    pub(crate) timers: TimerWheel<TimerKey>,
    pub(crate) buffers: BufferPool,
    pub(crate) counters: Arc<CachePadded<LaneCounters>>,
    pub(crate) clock: Clock,
    /// The time when the clock was read last: at the beginning of a turn, and after each read of a socket.
    pub(crate) now_ns: u64,
    /// Rooms with members, and patterns with subscribers, on this lane, by alias.
    pub(crate) rooms: Vec<Option<Box<Room>>>,
    /// Planned sweeps, earliest first.
    pub(crate) due: BinaryHeap<Reverse<(u64, u16)>>,
    /// Sessions with output to write at the end of the turn.
    pub(crate) dirty: Vec<usize>,
    /// Sessions to remove at the end of the turn.
    pub(crate) closed: Vec<usize>,
    /// Sessions whose reading goes on because their output drained.
    pub(crate) resumed: Vec<usize>,
    /// Sessions that read without being told, to be settled at the end of a turn.
    pub(crate) awake: Vec<usize>,
    /// Publishers held by a room that blocks for a slow subscriber.
    pub(crate) held: Vec<(SessionId, Arc<SharedRoom>)>,
    /// Where messages for topics go.
    pub(crate) routes: Routes,
    /// Scratch list of the patterns that a message matches.
    pub(crate) matched: Vec<Arc<SharedRoom>>,
    /// Rooms in which a subscriber of this lane holds the publishers.
    pub(crate) blocked_rooms: Vec<u16>,
    /// What this turn produced for each other lane, see [`BatchEntry`].
    pub(crate) batches: Vec<Vec<u8>>,
    pub(crate) connect_failures: Vec<(SessionId, ConnectFailure)>,
    /// Scratch list of timers that fired.
    pub(crate) expired: Vec<TimerKey>,
    /// Name of the method being called, if it has one.
    pub(crate) method_name: String,
    /// What the last replies had in common.
    pub(crate) last_reply: LastReply,
    /// Length, kind and channel of the last frame for the service that the codec decoded.
    pub(super) last_like: u64,
    /// Tokens of answered requests, to be used again.
    pub(crate) spare_tokens: Vec<Arc<AnswerToken>>,
    pub(crate) drain_deadline_ns: Option<u64>,
    pub(crate) stop: bool,
    /// The lane ends because its server does.
    pub(crate) server_ends: bool,
    pub(super) generation: u32,
    /// Where the next accepted connection goes.
    pub(crate) next_lane: usize,
    /// Until then failures to accept are counted but not logged.
    pub(crate) accept_error_quiet_until_ns: u64,
    /// Until then peers refused for a limit are counted but not logged.
    pub(crate) refusal_quiet_until_ns: u64,
    /// Until then registrations that are refused are counted but not logged.
    pub(crate) registration_quiet_until_ns: u64,
}

impl Core {
    pub(crate) fn new(
        lane: usize,
        shared: Arc<Shared>,
        handle: LaneHandle,
        poller: Box<dyn Poller>,
        counters: Arc<CachePadded<LaneCounters>>,
    ) -> Self {
        let clock = Clock::default();
        let now_ns = clock.now_ns();
        Self {
            lane,
            shared,
            handle,
            poller,
            sessions: Slab::new(),
            listeners: Vec::new(),
            ports: Vec::new(),
            planned_drops: PlannedDrops::default(),
            unvalidated: UnvalidatedSessions::default(),
            timers: TimerWheel::new(now_ns, TIMER_TICK_NS),
            buffers: BufferPool::default(),
            counters,
            clock,
            now_ns,
            rooms: Vec::new(),
            due: BinaryHeap::new(),
            dirty: Vec::new(),
            closed: Vec::new(),
            resumed: Vec::new(),
            awake: Vec::new(),
            held: Vec::new(),
            routes: Routes::default(),
            matched: Vec::new(),
            blocked_rooms: Vec::new(),
            batches: Vec::new(),
            connect_failures: Vec::new(),
            expired: Vec::new(),
            method_name: String::new(),
            last_reply: LastReply::NONE,
            last_like: 0,
            spare_tokens: Vec::new(),
            drain_deadline_ns: None,
            stop: false,
            server_ends: false,
            generation: 0,
            next_lane: 0,
            accept_error_quiet_until_ns: 0,
            refusal_quiet_until_ns: 0,
            registration_quiet_until_ns: 0,
        }
    }

    /// Watches a listener from this lane.
    pub(crate) fn add_listener(
        &mut self,
        listener: StreamListener,
    ) -> Result<(), tidewire_io::poller::RegisterError> {
        let token = listener_token(self.listeners.len());
        self.poller
            .add(listener.socket.as_fd(), token, Interest::READ)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// The codec that reads what a session's peer sends. What is written is framed by the server's codec for all.
    pub(crate) fn input_codec(&self, slot: usize) -> &AnyCodec {
        let terms = self.sessions[slot].listener.as_ref();
        terms.map_or(&self.shared.codec, |terms| terms.codec())
    }

    /// Takes the time from the clock.
    #[inline]
    pub(crate) fn read_clock(&mut self) {
        self.now_ns = self.clock.now_ns();
    }

    pub(crate) fn slot_of(&self, id: SessionId) -> Option<usize> {
        let slot = id.slot();
        self.sessions
            .get(slot)
            .filter(|session| session.id == id && !session.connection.is_closed())
            .map(|_| slot)
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions
            .get(id.slot())
            .filter(|session| session.id == id)
    }

    pub(crate) fn session_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions
            .get_mut(id.slot())
            .filter(|session| session.id == id)
    }

    /// The context of a call about session `id`; it holds the session's output until it is dropped.
    pub(crate) fn context(&mut self, id: SessionId) -> Context<'_> {
        let (output, frame_bytes_max, keeps_order) =
            self.session_mut(id)
                .map_or_else(Default::default, |session| {
                    (
                        std::mem::take(&mut session.output),
                        session.connection.frame_bytes_max(),
                        session.must_keep_order(),
                    )
                });
        let mut context = Context {
            core: self,
            id,
            output,
            frame_bytes_max,
            reply_bytes_max: 0,
            current: NO_MESSAGE,
            keeps_order,
            stopped: false,
        };
        context.settle_replies();
        context
    }

    pub(crate) fn context_without_session(&mut self) -> Context<'_> {
        Context {
            core: self,
            id: SessionId::NONE,
            output: Output::default(),
            frame_bytes_max: 0,
            reply_bytes_max: 0,
            current: NO_MESSAGE,
            keeps_order: false,
            stopped: false,
        }
    }

    /// Adds an entry to what this turn sends to another lane.
    pub(crate) fn batch(&mut self, lane: usize, entry: &BatchEntry<'_>) {
        if self.batches.len() <= lane {
            self.batches.resize_with(lane + 1, Vec::new);
        }
        let batch = &mut self.batches[lane];
        if batch.capacity() == 0 {
            *batch = self.shared.spare_batches.take();
        }
        entry.encode(batch);
    }

    /// Posts what this turn collected for other lanes. What finds a full queue stays and grows.
    pub(crate) fn post_batches(&mut self) {
        let Some(lanes) = self.shared.lanes.get() else {
            return;
        };
        for (lane, batch) in self.batches.iter_mut().enumerate() {
            if batch.is_empty() {
                continue;
            }
            let Some(target) = lanes.get(lane).filter(|target| !target.is_retired()) else {
                self.handle.count_undelivered(batch);
                batch.clear();
                continue;
            };
            if let Err(Post::Batch(back)) = target.post(Post::Batch(std::mem::take(batch))) {
                *batch = back;
            }
        }
    }

    /// Whether there is something for other lanes that has not been posted.
    pub(crate) fn has_batches(&self) -> bool {
        self.batches.iter().any(|batch| !batch.is_empty())
    }

    /// Whether another lane is so far behind that reading must wait for it.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.batches
            .iter()
            .any(|batch| batch.len() > BATCH_BYTES_MAX)
    }

    pub(crate) fn mark_dirty(&mut self, slot: usize) {
        let session = &mut self.sessions[slot];
        if !session.dirty {
            session.dirty = true;
            self.dirty.push(slot);
        }
    }

    /// Changes a connection, and takes the session apart at the end of this turn if that closed it.
    #[inline]
    pub(crate) fn change<T>(
        &mut self,
        slot: usize,
        change: impl FnOnce(&mut Connection, &Rules) -> T,
    ) -> T {
        let Self {
            sessions,
            shared,
            closed,
            ..
        } = self;
        let connection = &mut sessions[slot].connection;
        let was_closed = connection.is_closed();
        let result = change(connection, &shared.rules);
        if connection.is_closed() && !was_closed {
            closed.push(slot);
        }
        result
    }

    /// Ends a session at the end of this turn. What it still had to send is dropped and counted.
    pub(crate) fn close(&mut self, slot: usize, reason: CloseReason) {
        self.change(slot, |connection, _| connection.close(reason));
    }

    /// Ends a session after what it has to send has been written. Nothing more is read from it.
    pub(crate) fn finish(&mut self, slot: usize, reason: CloseReason) {
        self.change(slot, |connection, _| connection.finish(reason));
        self.update_interest(slot);
        self.mark_dirty(slot);
    }

    /// Appends the frames that a connection itself has to send to its session's output.
    pub(crate) fn transmit(&mut self, slot: usize) {
        let mut output = std::mem::take(&mut self.sessions[slot].output);
        self.transmit_to(slot, &mut output);
        self.sessions[slot].output = output;
    }

    /// The same, to the session's output that a context holds.
    pub(crate) fn transmit_to(&mut self, slot: usize, output: &mut Output) {
        let Self {
            sessions,
            shared,
            buffers,
            ..
        } = self;
        let session = &mut sessions[slot];
        let Shared { rules, codec, .. } = &**shared;
        let identity = Identity {
            agent: &shared.agent,
            session: session.id.number(),
        };
        while session.connection.has_transmit() {
            if output.bytes.capacity() == 0 {
                output.bytes = buffers.take();
            }
            let sent = session
                .connection
                .poll_transmit(rules, &identity, codec, &mut output.bytes);
            match sent {
                Some(Ok(())) => output.handle_appended(codec),
                Some(Err(error)) => {
                    tracing::debug!(session = %session.id, %error, "cannot encode a control frame");
                }
                None => {}
            }
        }
        self.mark_dirty(slot);
    }

    /// Tells the poller what the session now waits for, if that changed.
    pub(crate) fn update_interest(&mut self, slot: usize) {
        let session = &mut self.sessions[slot];
        let wanted = session.wanted_interest();
        if wanted == session.interest || session.connection.is_closed() {
            return;
        }
        session.interest = wanted;
        let result = session.stream.watch(&mut *self.poller, Token(slot), wanted);
        if let Err(error) = result {
            tracing::error!(session = %session.id, %error, "cannot change what is watched");
            self.close(slot, CloseReason::Io(std::io::ErrorKind::Other));
        }
    }

    /// When the lane must wake even if nothing arrives.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        let sweep = self.due.peek().map(|Reverse((at, _))| *at);
        let held = (!self.held.is_empty()).then_some(self.now_ns + HELD_CHECK_NS);
        let backed_up = self.has_batches().then_some(self.now_ns + BATCH_RETRY_NS);
        [
            sweep,
            self.timers.next_deadline(),
            self.planned_drops.wake_ns(),
            held,
            backed_up,
            self.drain_deadline_ns,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// The poller token of a listener: below the doorbell's, above every session's.
pub(crate) fn listener_token(index: usize) -> Token {
    Token(usize::MAX - 1 - index)
}

/// Resolution of timeouts. They are seconds long, so 10 ms is exact enough and keeps the wheel small.
const TIMER_TICK_NS: u64 = 10_000_000;

/// How often a lane looks whether a blocking room on another lane is clear again.
const HELD_CHECK_NS: u64 = 2_000_000;

/// Bytes waiting for another lane above which reading stops. 2 MiB is many turns' worth.
const BATCH_BYTES_MAX: usize = 2 << 20;

/// How soon a batch that found no place is offered again.
const BATCH_RETRY_NS: u64 = 100_000;
