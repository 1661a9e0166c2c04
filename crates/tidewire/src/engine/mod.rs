//! The state of a lane without its service.
//!
//! Problem: most methods of a lane need its sessions and one more part. As methods of one type, each of them could
//! touch all state of the lane. Approach: a part is a type that owns its state, and gets the sessions as an argument.
//! [`Acceptor`] has the listeners, [`Admission`] the limits of peers, [`Handshakes`] the costly steps that wait,
//! [`Ports`] the UDP sockets, and [`Exchange`] the messages for other lanes. [`LaneGuard`](authentication::LaneGuard)
//! borrows the parts that authentication needs. [`Core`] has the methods that need several parts: it makes and removes
//! sessions, adopts connections, drains, and hands over to another lane. Rejected: a part that owns the sessions or a
//! reference to them, because only one part could.

mod accept;
mod admission;
mod attachment;
mod authentication;
mod datagrams;
mod delivery;
mod dialing;
mod displacing;
mod draining;
mod expiry;
mod fair_queue;
mod forwarded;
mod handover;
mod handshakes;
mod inspect;
mod lifecycle;
mod outgoing;
mod panics;
mod placement;
mod proxied;
mod replies;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use crossbeam_utils::CachePadded;
use tidewire_io::poller::{Poller, PollerError};

use accept::Acceptor;
use admission::Admission;
pub(crate) use attachment::Attachment;
use authentication::PlaceQuestions;
pub(crate) use datagrams::{Cookies, Ports};
pub(crate) use dialing::Owner;
pub(crate) use draining::Ending;
use expiry::WallClock;
pub(crate) use handshakes::{CostlyStep, Handshakes};
pub(crate) use outgoing::Outgoing;
pub(crate) use panics::{Panic, panic_text};
pub(crate) use proxied::{PROXIED_LAST, proxied_of};
pub(crate) use replies::{Origin, Replies};

use crate::auth::Guard;
use crate::broker::BackplaneLink;
use crate::config::Config;
use crate::mailbox::{Exchange, Lanes, LanesAsked, Mailbox};
use crate::memory::{LaneMemory, MemoryAccount, Pressure};
use crate::observe::{LaneCounters, QuietLog};
use crate::room::{Directory, LaneRooms, RoomTable};
use crate::session::{LaneSessions, OpenSessions, SessionLimiter, SpareFrames};
use crate::transport::StreamListener;
use crate::transport::datagram::BoundPort;

/// The state that all lanes of a server share. Messages do not use it.
#[derive(Debug)]
pub(crate) struct ServerShared {
    pub(crate) config: Arc<Config>,
    pub(crate) outgoing: Outgoing,
    pub(crate) directory: Arc<Directory>,
    /// The authentication of peers. `None` if everybody may do everything.
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) limiter: Arc<SessionLimiter>,
    /// The memory that all lanes hold together.
    pub(crate) memory: Arc<MemoryAccount>,
    /// The table in which other threads find open sessions.
    pub(crate) sessions: Arc<OpenSessions>,
    /// Bytes of the broadcasts in flight.
    pub(crate) broadcast_bytes: Arc<AtomicUsize>,
    /// Challenges for unvalidated addresses over UDP.
    cookies: Cookies,
    /// Emptied frames of deferred answers, for reuse by their senders.
    pub(crate) spare_frames: Arc<SpareFrames>,
    pub(crate) lanes: Arc<Lanes>,
    /// Held by the thread that asks the lanes about themselves.
    pub(crate) inspecting: Mutex<LanesAsked>,
}

/// A lane without its service. Its parts own their state. A method here needs several of them.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) shared: Arc<ServerShared>,
    pub(crate) config: Arc<Config>,
    pub(crate) counters: Arc<CachePadded<LaneCounters>>,
    pub(crate) sessions: LaneSessions,
    pub(crate) rooms: RoomTable,
    pub(crate) exchange: Exchange,
    pub(crate) acceptor: Acceptor,
    pub(crate) admission: Admission,
    pub(crate) handshakes: Handshakes,
    pub(crate) ports: Ports,
    pub(crate) replies: Replies,
    /// Limits the log lines about failures of handlers.
    pub(crate) failure_log: QuietLog,
    /// Limits the log lines about panics.
    panic_log: QuietLog,
    /// Limits the log lines about peers that are not let in.
    authentication_log: QuietLog,
    pub(crate) ending: Ending,
    /// The upstreams of the service.
    pub(crate) upstreams: Attachment,
    pub(crate) wall_clock: WallClock,
    pub(crate) places: PlaceQuestions,
}

impl ServerShared {
    pub(crate) fn new(
        config: Config,
        outgoing: Outgoing,
        guard: Option<Arc<Guard>>,
        lanes: usize,
        backplane: Option<Arc<BackplaneLink>>,
    ) -> Self {
        let limits = &config.limits;
        let shared = Self {
            lanes: Arc::new(Lanes::new(backplane.clone())),
            directory: Arc::new(Directory::new(limits, guard.clone(), backplane)),
            guard,
            limiter: Arc::new(SessionLimiter::new(limits)),
            memory: Arc::new(MemoryAccount::new(limits.memory.bytes_max())),
            sessions: Arc::new(OpenSessions::new(lanes)),
            broadcast_bytes: Arc::default(),
            cookies: Cookies::default(),
            spare_frames: Arc::default(),
            inspecting: Mutex::default(),
            config: Arc::new(config),
            outgoing,
        };
        shared.hold_tables();
        shared
    }

    /// Counts the present tables of the authenticator in the account of memory.
    pub(crate) fn hold_tables(&self) {
        let bytes = self.guard.as_ref().map_or(0, |it| it.table_bytes());
        let bytes_max = self.memory.bytes_max();
        if bytes >= bytes_max / TABLES_PARTS {
            tracing::warn!(
                bytes,
                bytes_max,
                "the users, tokens and keys of this server leave little memory for its peers; raise `memory_bytes_max`"
            );
        }
        self.memory.set_tables(bytes);
    }
}

impl Core {
    pub(crate) fn new(
        lane: usize,
        shared: Arc<ServerShared>,
        mailbox: Arc<Mailbox>,
        poller: Box<dyn Poller>,
        counters: Arc<CachePadded<LaneCounters>>,
    ) -> Self {
        let config = Arc::clone(&shared.config);
        let spare_frames = Arc::clone(&shared.spare_frames);
        let sessions = LaneSessions::new(
            Arc::clone(&config),
            Arc::clone(&counters),
            poller,
            spare_frames,
            LaneMemory::new(Arc::clone(&shared.memory)),
        );
        Self {
            sessions,
            rooms: RoomTable::new(Arc::clone(&shared.directory), Arc::clone(&shared.limiter)),
            exchange: Exchange::new(
                lane,
                mailbox,
                Arc::clone(&shared.lanes),
                Arc::clone(&shared.sessions),
            ),
            acceptor: Acceptor::default(),
            admission: Admission::new(Arc::clone(&shared.limiter)),
            handshakes: Handshakes::default(),
            ports: Ports::new(Arc::clone(&shared.lanes)),
            replies: Replies::default(),
            failure_log: QuietLog::default(),
            panic_log: QuietLog::default(),
            authentication_log: QuietLog::default(),
            ending: Ending::default(),
            upstreams: Attachment::default(),
            wall_clock: WallClock::default(),
            places: PlaceQuestions::default(),
            counters,
            config,
            shared,
        }
    }

    /// Watches the sockets of the lane, and the wall clock if peers are authenticated.
    pub(crate) fn watch(
        &mut self,
        listeners: impl IntoIterator<Item = StreamListener>,
        ports: Vec<BoundPort>,
    ) -> Result<(), PollerError> {
        for listener in listeners {
            self.acceptor.add(&mut self.sessions, listener)?;
        }
        for port in ports {
            self.ports.add(&mut self.sessions, port)?;
        }
        if self.shared.guard.is_some() {
            self.wall_clock.watch(&mut self.sessions);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn rooms(&mut self) -> LaneRooms<'_> {
        let is_ending = self.ending.is_with_server();
        let Self {
            rooms,
            sessions,
            exchange,
            ..
        } = self;
        LaneRooms::new(rooms, sessions, exchange, is_ending)
    }

    /// Runs sweeps of rooms before the turn ends, if at least this many bytes wait for each member. The peers then
    /// work on them while the lane reads on.
    #[inline]
    pub(crate) fn sweep_early(&mut self, waiting_min: u64) {
        if self.rooms.open().has_grown() {
            self.rooms().deliveries().sweep_grown(waiting_min);
        }
    }

    /// Charges the changes since the last turn, and releases memory if necessary. Called once a turn.
    #[inline]
    pub(crate) fn settle_memory(&mut self) {
        let mail_bytes = self.exchange.held_bytes();
        if self.sessions.settle_memory(mail_bytes) != Pressure::Normal {
            // Lanes that sleep must release memory, too.
            self.exchange.wake_others();
        }
    }

    /// Whether only events bring more work.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        !self.sessions.table.has_resumed() && !self.handshakes.are_waiting()
    }

    /// Returns when the lane must wake even if nothing arrives.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        let now_ns = self.sessions.timers.now_ns();
        let held = self.rooms.open().holds_publishers();
        let backed_up = self.exchange.has_batches();
        let wake_ns = earlier(
            self.rooms.open().sweep_ns(),
            self.sessions.timers.next_deadline_ns(),
        );
        let wake_ns = earlier(wake_ns, self.ports.wake_ns());
        let wake_ns = earlier(wake_ns, held.then_some(now_ns + HELD_CHECK_NS));
        let wake_ns = earlier(wake_ns, backed_up.then_some(now_ns + BATCH_RETRY_NS));
        earlier(wake_ns, self.ending.drain_deadline_ns())
    }
}

/// The earlier of two times, either of which may be missing. An iterator would cost 100 instructions a turn.
#[inline(always)]
pub(crate) fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Interval in which a lane checks whether a blocking room on another lane is clear again.
const HELD_CHECK_NS: u64 = 2_000_000;

/// Delay before a batch is posted again after the mailbox was full.
const BATCH_RETRY_NS: u64 = 100_000;

/// The part of the memory from which on tables are worth a warning: much more, and no peer would be let in.
const TABLES_PARTS: usize = 4;
